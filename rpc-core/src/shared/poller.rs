//! [`SharedPoller`]: a poller of shared channels, which takes turns for all of its channels.
//!
//! A turn costs nothing for a channel that has nothing to do. It looks at these channels:
//!
//! | channels | found by |
//! | --- | --- |
//! | with work from other threads: submissions, notices, the end of an attempt to connect | their marks (`marks.rs`) |
//! | with calls that have ended | the permits in the driver's list |
//! | with calls or streams that wait for capacity, or connections that still have calls | `unfinished`, a few in each turn |
//! | whose callers wait for permits | `queues`, now and then |
//! | whose next attempt to connect is due, or the deadline of a request that waits | `times` |
//! | all | only after a connection has ended or its server goes away |
//!
//! A turn takes a bounded number of submissions, and shares it among the channels that have some. So
//! a channel with a thousand callers, or with a server that takes nothing, delays the others little.

#[cfg(feature = "test-util")]
pub(super) mod stepped;

use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::channels::Channels;
use super::dial_threads::Spawner;
use super::notices::Pending;
use super::polled_channel::{NewChannel, PolledChannel, SHORT_SLEEP};
use super::poller_state::PollerState;
use super::wakers::Wakers;
use crate::driver::Driver;
use crate::driver::held_permit::HeldPermit;
use crate::driver::timers::Timers;
use crate::limits::Waiting;
use crate::poller::idle::{BusyPoller, Idle};
use crate::transport::Transport;

/// Turns between two checks of the channels' times, and of the permit queues. Like the driver, a poller reads the clock only now and then while it spins.
const TURNS_PER_CHECK: u32 = 64;

/// Number of submissions after which a turn looks at no further word of marks. Each channel of a word
/// gets its turn, so there may be 63 more. A few doorbells suffice for them, so a burst of callers does
/// not delay responses.
const SUBMISSIONS: usize = 64;

/// Maximum number of channels with waiting calls that are looked at in one turn.
const UNFINISHED: usize = 8;

/// How long a poller that ends waits for its connections to close.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// A poller of shared channels.
pub(crate) struct SharedPoller<T: Transport> {
    driver: Rc<Driver<T>>,
    state: Arc<PollerState>,
    /// Channels that are handed over.
    new_channels: Receiver<NewChannel>,
    spawner: Rc<dyn Spawner>,
    channels: Channels<T>,
    /// Channels that need further turns, the one that has waited longest first.
    unfinished: VecDeque<u32>,
    /// How many of them have not been looked at since the latest event.
    behind: usize,
    /// Channels whose callers wait for permits.
    queues: Vec<u32>,
    /// The times at which channels have something to do.
    times: Timers<u32>,
    /// The word of marks with which the next turn begins.
    first_word: usize,
    wakers: Wakers,
    turns: u32,
}

impl<T: Transport> SharedPoller<T> {
    pub(super) fn new(
        driver: Driver<T>,
        state: Arc<PollerState>,
        new_channels: Receiver<NewChannel>,
        spawner: Rc<dyn Spawner>,
    ) -> Self {
        state.start(&driver.connections.wakeup, &driver.connections.counters);
        Self {
            driver: Rc::new(driver),
            state,
            new_channels,
            spawner,
            channels: Channels::default(),
            unfinished: VecDeque::new(),
            behind: 0,
            queues: Vec::new(),
            times: Timers::default(),
            first_word: 0,
            wakers: Wakers::default(),
            turns: 0,
        }
    }

    /// Adds a channel.
    pub(super) fn add(&mut self, new: NewChannel) {
        let number = new.number;
        let (driver, state) = (&self.driver, &self.state);
        let channel = PolledChannel::new(driver, new, state, &self.spawner, &self.wakers);
        self.channels.insert(number, channel);
        self.list(number);
    }

    /// Runs until the last channel and the last reference are dropped.
    pub(super) fn run(mut self, waiting: Waiting) {
        let _busy = BusyPoller::register(waiting);
        let mut idle = Idle::new(waiting);
        while !self.state.is_stopped() {
            if idle.after_turn(self.turn()) {
                self.driver.sleep(&|| self.max_sleep());
                // Send slots may have become free, and times may have come.
                self.behind = self.unfinished.len();
                self.visit_due();
            }
        }
        self.wakers.wake();
        self.driver.connections.close_all();
        let deadline = Instant::now() + CLOSE_TIME;
        while !self.driver.connections.is_closed() && Instant::now() < deadline {
            self.driver.turn();
        }
    }

    /// Takes one turn. Returns true if it found anything to do.
    pub(crate) fn turn(&mut self) -> bool {
        let any_submitted = self.state.marks.any() && self.take_marked();
        let found_any = self.driver.turn() | any_submitted;
        let any_settled = self.settle() | found_any;
        if !self.unfinished.is_empty() {
            self.visit_unfinished(any_settled);
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_CHECK) {
            self.check_times();
        }
        let found_any = any_settled || self.behind > 0;
        self.wakers.end_turn(found_any);
        found_any
    }

    /// Looks at the channels that have work from other threads. Returns true if any had calls.
    #[inline]
    fn take_marked(&mut self) -> bool {
        if self.state.marks.words() > 1 {
            return self.take_marked_words();
        }
        // A word has at most as many channels as a turn takes submissions.
        let most = match self.channels.end() {
            0 | 1 => SUBMISSIONS,
            _ => SUBMISSIONS / self.state.marks.count().max(1) as usize,
        };
        let mut any_submitted = false;
        for number in self.state.marks.take(0) {
            any_submitted |= self.take_from(number, most) > 0;
        }
        any_submitted
    }

    #[cold]
    #[inline(never)]
    fn take_marked_words(&mut self) -> bool {
        let marked = self.state.marks.count().max(1) as usize;
        let most = (SUBMISSIONS / marked).max(1);
        let mut left = SUBMISSIONS;
        let words = self.state.marks.words();
        let mut word = self.first_word;
        for _ in 0..words {
            for number in self.state.marks.take(word) {
                let taken = self.take_from(number, most.min(left).max(1));
                left = left.saturating_sub(taken);
            }
            word += 1;
            if word == words {
                word = 0;
            }
            if left == 0 {
                // The next turn begins with the marks that are left.
                self.first_word = word;
                break;
            }
        }
        left < SUBMISSIONS
    }

    /// Takes what other threads have for a channel. Returns the number of calls.
    #[inline]
    fn take_from(&mut self, number: u32, most: usize) -> usize {
        match self.channels.get(number) {
            Some(channel) if !channel.calls.inbox.any_notices() => {}
            Some(_) => self.take_notices(number),
            None => {
                // It may have been dropped already.
                self.take_new_channels();
                self.take_notices(number);
            }
        }
        let Some(channel) = self.channels.get_mut(number) else {
            return 0;
        };
        let taken = channel
            .calls
            .take_submissions(&mut channel.connection, most);
        if !channel.connection.is_connected() || channel.calls.any_waiting() || taken == most {
            self.after_taking(number, taken == most);
        }
        taken
    }

    #[cold]
    #[inline(never)]
    fn after_taking(&mut self, number: u32, may_have_more: bool) {
        if may_have_more {
            self.state.marks.set(number);
        }
        match self.channels.get(number) {
            // The second half of the turn looks at it.
            Some(channel) if channel.connection.is_connected() => self.list(number),
            _ => self.visit(number),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_new_channels(&mut self) {
        while let Ok(new) = self.new_channels.try_recv() {
            self.add(new);
        }
    }

    /// Takes the streams that callers have submitted, and cancels the calls that they have dropped.
    #[cold]
    #[inline(never)]
    fn take_notices(&mut self, number: u32) {
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        let Pending {
            streams,
            given_up,
            abandoned,
            pushback,
            allocations,
            any_queued,
            is_closed,
        } = channel.calls.inbox.take_notices();
        channel.calls.abandon(abandoned);
        channel.calls.hold_back(pushback);
        for (len, caller) in allocations {
            caller.send(self.driver.connections.allocate_message(len));
        }
        if !streams.is_empty() {
            channel.calls.submit_streams(streams, &channel.connection);
            channel.send_waiting();
        }
        channel.calls.give_up_streams(given_up);
        if any_queued && !mem::replace(&mut channel.has_queue, true) {
            self.queues.push(number);
        }
        if is_closed {
            self.remove(number);
        }
    }

    /// Settles the calls that have ended. Returns true if there were any.
    #[inline]
    fn settle(&mut self) -> bool {
        let mut state = self.driver.connections.state.borrow_mut();
        let links_changed = mem::take(&mut state.links.links_changed);
        if state.links.settled.is_empty() && !links_changed {
            return false;
        }
        let settled = mem::take(&mut state.links.settled);
        drop(state);
        let any = !settled.is_empty();
        self.settle_all(settled);
        if links_changed {
            self.maintain_connections();
        }
        any
    }

    fn settle_all(&mut self, mut settled: Vec<HeldPermit>) {
        for permit in settled.drain(..) {
            if let Some(channel) = self.channels.get_mut(permit.channel) {
                channel.calls.settle(permit.number);
            }
        }
        let state = &mut *self.driver.connections.state.borrow_mut();
        if state.links.settled.is_empty() {
            state.links.settled = settled;
        }
    }

    /// Replaces connections that have ended, or whose servers go away.
    #[cold]
    #[inline(never)]
    fn maintain_connections(&mut self) {
        for number in 0..self.channels.end() {
            let channel = self.channels.get(number);
            if channel.is_some_and(|channel| channel.connection.is_unusable()) {
                self.visit(number);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn visit_unfinished(&mut self, found_any: bool) {
        if found_any {
            self.behind = self.unfinished.len();
        }
        for _ in 0..self.unfinished.len().min(UNFINISHED) {
            let Some(number) = self.unfinished.pop_front() else {
                break;
            };
            if let Some(channel) = self.channels.get_mut(number) {
                channel.is_listed = false;
            }
            self.visit(number);
        }
        let left = self.behind.saturating_sub(UNFINISHED);
        self.behind = left.min(self.unfinished.len());
    }

    #[cold]
    #[inline(never)]
    fn check_times(&mut self) {
        if !self.times.is_empty() {
            self.visit_due();
        }
        if !self.queues.is_empty() {
            self.maintain_queues();
        }
    }

    /// Looks at the channels whose times have come.
    #[cold]
    #[inline(never)]
    fn visit_due(&mut self) {
        let now = self.driver.connections.clock.now();
        while let Some(number) = self.times.pop_expired(now) {
            if let Some(channel) = self.channels.get_mut(number) {
                channel.timer = None;
            }
            self.visit(number);
        }
    }

    /// Lets a channel connect and send what waits.
    #[cold]
    #[inline(never)]
    fn visit(&mut self, number: u32) {
        if let Some(channel) = self.channels.get_mut(number) {
            channel.advance();
            self.list(number);
        }
    }

    /// Schedules the channel's next visit, if it needs one.
    #[cold]
    fn list(&mut self, number: u32) {
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        if channel.needs_turns() && !mem::replace(&mut channel.is_listed, true) {
            self.unfinished.push_back(number);
        }
        let next = channel.next_time();
        if next != channel.timer.map(|(until, _)| until) {
            if let Some((_, timer)) = channel.timer.take() {
                self.times.cancel(timer);
            }
            channel.timer = next.map(|until| (until, self.times.insert(until, number)));
        }
    }

    /// Removes a channel whose last handle was dropped.
    fn remove(&mut self, number: u32) {
        let Some(mut channel) = self.channels.remove(number) else {
            return;
        };
        if let Some((_, timer)) = channel.timer {
            self.times.cancel(timer);
        }
        self.unfinished.retain(|&listed| listed != number);
        self.queues.retain(|&listed| listed != number);
        channel.close();
        // Calls of the next channel with this number may have the same permits.
        let settled = &mut self.driver.connections.state.borrow_mut().links.settled;
        settled.retain(|permit| permit.channel != number);
        self.state.release(number);
    }

    /// Wakes the callers that wait for permits, as far as it is their turn.
    #[cold]
    #[inline(never)]
    fn maintain_queues(&mut self) {
        let now = self.driver.connections.clock.now();
        let channels = &mut self.channels;
        self.queues.retain(|&number| {
            let Some(channel) = channels.get_mut(number) else {
                return false;
            };
            channel.has_queue = channel.calls.inbox.permits.maintain_queue(now).any;
            channel.has_queue
        });
    }

    /// Returns how long the poller may sleep if no event occurs, or `None` if there is something to
    /// do.
    fn max_sleep(&self) -> Option<Duration> {
        if self.state.marks.any() || self.state.is_stopped() || self.behind > 0 {
            return None;
        }
        let now = self.driver.connections.clock.now();
        let mut until = self.times.next_deadline();
        let mut is_short = false;
        for &number in &self.queues {
            if let Some(channel) = self.channels.get(number) {
                let queue = channel.calls.inbox.permits.maintain_queue(now);
                until = until.into_iter().chain(queue.next_deadline).min();
                is_short |= queue.is_waiting;
            }
        }
        let mut unfinished = self.unfinished.iter();
        is_short |= unfinished.any(|&number| {
            let channel = self.channels.get(number);
            channel.is_some_and(PolledChannel::awaits_slot)
        });
        let longest = until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
        Some(if is_short {
            longest.min(SHORT_SLEEP)
        } else {
            longest
        })
    }
}

impl<T: Transport> Drop for SharedPoller<T> {
    /// Settles all calls, so that no caller waits for this thread, however it ends.
    fn drop(&mut self) {
        self.state.close();
        for new in self.new_channels.try_iter() {
            self.state.release(new.number);
            new.refuse();
        }
        for channel in self.channels.iter_mut() {
            channel.end();
        }
        self.wakers.wake();
    }
}
