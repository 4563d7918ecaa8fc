//! [`Driver`]: the work of one poller's thread, turn by turn.
//!
//! A turn, in the order of its steps:
//!
//! 1. [`Driver::turn`] flushes the frames sent since the last turn, and polls the transport.
//!    Blocked responses are the first to use the send slots that this poll freed.
//! 2. Each frame is checked and routed ([`Driver::receive`]): a response to the call that waits for
//!    it, a request to its handler (`incoming.rs`).
//! 3. Woken handlers are polled (`incoming.rs`).
//! 4. Waiting work is retried: calls without a credit, credits that no response carried, and
//!    deadlines.
//! 5. One flush.
//!
//! The state is never borrowed across application code: decoding, handlers, wakers and destructors
//! all run while nothing is borrowed, so they may reenter the poller.

pub(crate) mod block_on_waker;
pub(crate) mod call_origin;
pub(crate) mod call_table;
mod connect;
mod credits;
mod erased;
pub(crate) mod handle;
mod incoming;
#[cfg(feature = "test-util")]
mod leftovers;
pub(crate) mod link;
mod links;
pub(crate) mod outgoing;
mod request_permit;
mod responses;
pub(crate) mod running_handler;
mod sleep;
pub(crate) mod tasks;
pub(crate) mod timers;
pub(crate) mod waiters;
pub(crate) mod wakeup;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use slab::Slab;

use self::block_on_waker::BlockOnWaker;
use self::call_table::{ResponseOutcome, WakeTarget};
use self::incoming::LentTask;
use self::link::{Link, LinkKey};
use self::responses::Blocked;
use self::running_handler::RunningHandler;
use self::tasks::{ReadyQueue, TaskKey, Tasks};
use self::timers::Timers;
use self::waiters::WaiterKey;
use self::wakeup::Wakeup;
use crate::clock::Clock;
use crate::protocol::connection::ProtocolError;
use crate::protocol::credit::ReceiveBudget;
use crate::protocol::frame::{CallId, FrameHeader, FrameKind, ResponseHead};
use crate::protocol::inline_frame::{INLINE_FRAME_LEN, SpareFrame};
use crate::protocol::shares::Shares;
use crate::service::dispatch::Methods;
use crate::stats::{PollerCounters, TURNS_PER_GAUGE_UPDATE};
use crate::transport::{CloseReason, ConnectionId, Event, Transport};

/// Turns between two clock reads while deadlines are pending. A read costs about as much as an
/// empty poll, and a busy poller takes 64 turns in a few microseconds.
const TURNS_PER_CLOCK: u32 = 64;

/// Maximum number of events that a turn handles before it flushes.
const EVENTS_PER_TURN: u32 = 64;

/// The connections, calls and tasks of one poller, over its transport.
pub(crate) struct Driver<T: Transport> {
    pub(crate) state: RefCell<State<T>>,
    pub(crate) methods: RefCell<Methods>,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) clock: Clock,
    /// The waker of `block_on`.
    pub(crate) block_on_waker: BlockOnWaker,
    /// Notified by other threads that have work for this poller.
    pub(crate) wakeup: Arc<Wakeup>,
    /// Read by the server's watchdog.
    pub(crate) running_handler: Arc<RunningHandler>,
    /// This poller's counters, readable from any thread.
    pub(crate) counters: Arc<PollerCounters>,
    /// The same queue as in `tasks`, because every turn checks it.
    pub(crate) ready: Arc<ReadyQueue>,
    /// A spare frame, for responses.
    inline_frame: SpareFrame,
    /// Length of the longest frame that is sent inline.
    longest_inline: usize,
    /// The task whose waker the next handler is polled with for the first time.
    lent_task: Cell<Option<LentTask>>,
    turning: Cell<bool>,
    /// True if the previous turn handled an event.
    was_busy: Cell<bool>,
    turns: Cell<u32>,
    /// When the current batch was polled, if a frame of this batch or the previous one has a
    /// deadline.
    polled_at: Cell<Option<Instant>>,
    saw_deadline: Cell<bool>,
}

/// The state that is borrowed between calls of application code.
pub(crate) struct State<T: Transport> {
    pub(crate) transport: T,
    /// True if a frame was sent since the last flush.
    unflushed: bool,
    /// Shared with the driver.
    pub(crate) counters: Arc<PollerCounters>,
    pub(crate) links: Slab<Link<T::RecvBuf>>,
    /// Maps the transport's connection index to the link.
    routes: Vec<Option<(ConnectionId, LinkKey)>>,
    pub(crate) budget: ReceiveBudget,
    /// Receives that the transport keeps posted for promises.
    posted_for: u32,
    pub(crate) timers: Timers<TimerTarget>,
    /// Responses that found no free send slot, oldest first.
    pub(crate) blocked: VecDeque<Blocked>,
    /// Links that owe credits that no response carried, each at most once.
    pub(crate) owing: Vec<LinkKey>,
    /// Connections that the admission may still accept, and the initial window of each. Growing
    /// windows leave this part of the budget free.
    expected_connections: u32,
    initial_window: u32,
    /// Links with waiting calls.
    pub(crate) waiting: Vec<LinkKey>,
    /// Time of the latest check by [`Driver::on_idle`].
    pub(crate) idle_checked_at: Option<Instant>,
    /// True once the server has begun to shut down.
    pub(crate) going_away: bool,
    /// Wakers to call as soon as the state is no longer borrowed.
    wakers: Vec<Waker>,
    /// Permits of a shared channel whose calls have to be polled.
    pub(crate) settled: Vec<u32>,
}

/// The target of a deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimerTarget {
    Call(LinkKey, CallId),
    Waiter(LinkKey, WaiterKey),
    Task(TaskKey),
    /// A call of a shared channel that has not been sent yet.
    Permit(u32),
}

impl<T: Transport> Driver<T> {
    pub(crate) fn new(transport: T, methods: Methods, clock: Clock) -> Self {
        let budget = ReceiveBudget::new(transport.limits().promisable_receives());
        let shares = Shares::from_limits(transport.limits());
        let wakeup = Arc::new(Wakeup::new(transport.waker()));
        let longest_inline = transport.limits().max_inline_len.min(INLINE_FRAME_LEN);
        let tasks = Tasks::new(Arc::clone(&wakeup), methods.max_concurrent_calls());
        // Without methods, nobody connects to this poller.
        let expected_connections = if methods.is_empty() {
            0
        } else {
            shares.connections
        };
        let counters = Arc::new(PollerCounters::new(
            methods.numbered().map(|(_, spec)| spec.path),
            clock.clone(),
            transport.limits().device.clone(),
            transport.counter_reader(),
        ));
        Self {
            ready: tasks.ready(),
            block_on_waker: BlockOnWaker::new(Arc::clone(&wakeup)),
            wakeup,
            running_handler: Arc::default(),
            counters: Arc::clone(&counters),
            tasks: RefCell::new(tasks),
            state: RefCell::new(State {
                transport,
                unflushed: false,
                counters,
                links: Slab::new(),
                routes: Vec::new(),
                budget,
                posted_for: 0,
                timers: Timers::default(),
                blocked: VecDeque::new(),
                owing: Vec::new(),
                expected_connections,
                initial_window: shares.initial_window,
                waiting: Vec::new(),
                idle_checked_at: None,
                going_away: false,
                wakers: Vec::new(),
                settled: Vec::new(),
            }),
            methods: RefCell::new(methods),
            clock,
            inline_frame: SpareFrame::default(),
            longest_inline,
            lent_task: Cell::new(None),
            turning: Cell::new(false),
            was_busy: Cell::new(false),
            turns: Cell::new(0),
            polled_at: Cell::new(None),
            saw_deadline: Cell::new(false),
        }
    }

    /// Runs `work` as a part of a turn: calls that are polled in it register and wait.
    pub(crate) fn run_in_turn<R>(&self, work: impl FnOnce() -> R) -> R {
        let _mark = TurnMark::set(&self.turning);
        work()
    }

    /// Takes one turn. Returns true if the poll returned any events; woken handlers alone do not
    /// count. Returns false at once if this thread is already inside a turn.
    pub(crate) fn turn(&self) -> bool {
        !self.turning.get() && self.run_in_turn(|| self.take_turn())
    }

    // Inlined into each caller, because a busy poller mostly takes turns that find nothing.
    #[inline(always)]
    fn take_turn(&self) -> bool {
        let turns = self.counters.turns.taken.add(1);
        if turns.is_multiple_of(TURNS_PER_GAUGE_UPDATE) {
            self.maintain();
        }
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        state.flush();
        let first = match state.transport.poll() {
            Some(event) => Some(event),
            // Most turns of a busy poller end here. Their duration is a part of every response's
            // latency, because a frame that arrives just after a poll waits for the next one.
            None if !state.has_deferred_work() && !self.ready.has_any() => {
                self.was_busy.set(false);
                return false;
            }
            None => None,
        };
        let any_blocked = !state.blocked.is_empty();
        drop(borrowed);
        self.take_busy_turn(first, any_blocked)
    }

    /// Updates the gauges. Also returns the credits of idle connections, which is done before a sleep
    /// too, but a busy poller never sleeps.
    #[cold]
    #[inline(never)]
    fn maintain(&self) {
        self.update_gauges();
        self.on_idle(self.clock.now());
        self.state.borrow_mut().post_fewer();
    }

    #[inline(never)]
    fn take_busy_turn(&self, first: Option<Event<T::RecvBuf>>, any_blocked: bool) -> bool {
        self.counters.turns.busy.add(1);
        let found_any = first.is_some();
        // A turn without an event lies between the frames of a lone call. Without one, more frames
        // probably wait, and share a flush.
        let expects_more = self.was_busy.replace(found_any);
        if found_any && self.polled_at.get().is_some() {
            self.renew_arrival();
        }
        if any_blocked {
            // Before the new requests: the slots that this poll freed belong to the oldest
            // responses.
            self.retry_blocked_responses();
        }
        if let Some(event) = first {
            self.handle(event);
            if expects_more {
                self.handle_more();
            }
        }
        if self.ready.has_any() {
            self.run_ready_tasks();
        }
        let has_deferred_work = {
            let state = &mut *self.state.borrow_mut();
            state.flush();
            state.has_deferred_work()
        };
        if has_deferred_work {
            self.retry_waiting();
        }
        found_any
    }

    /// Handles the events that wait behind the first one of a turn.
    #[inline(never)]
    fn handle_more(&self) {
        for _ in 1..EVENTS_PER_TURN {
            let Some(event) = self.state.borrow_mut().transport.poll() else {
                return;
            };
            self.handle(event);
        }
    }

    #[inline(always)]
    fn handle(&self, event: Event<T::RecvBuf>) {
        match event {
            Event::Received { connection, buf } => self.receive(connection, buf),
            Event::Accepted {
                connection,
                admitted,
            } => self.state.borrow_mut().accept(connection, *admitted),
            Event::Closed { connection, reason } => self.close(connection, reason),
        }
    }

    /// Forgets the time of the previous batch. That batch needed the time, so this one probably needs
    /// it too: reads the clock now.
    #[cold]
    fn renew_arrival(&self) {
        self.polled_at.set(None);
        if self.saw_deadline.take() {
            self.arrival();
        }
    }

    /// Returns the approximate arrival time of the current frame, which has a deadline.
    pub(crate) fn arrival_for_deadline(&self) -> Instant {
        self.saw_deadline.set(true);
        self.arrival()
    }

    pub(crate) fn arrival(&self) -> Instant {
        self.polled_at.get().unwrap_or_else(|| {
            let now = self.clock.now();
            self.polled_at.set(Some(now));
            now
        })
    }

    /// Checks a frame and routes it: a request to its handler, a response to its call.
    #[inline(always)]
    fn receive(&self, id: ConnectionId, buf: T::RecvBuf) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let Some((key, link)) = state.open_link(id) else {
            // This side has closed the connection, but the peer has not noticed yet.
            return state.transport.release(buf);
        };
        let header = match FrameHeader::parse(buf.as_ref()) {
            Ok((header, ..)) => header,
            Err(error) => return state.close_for_violation(key, buf, error.into()),
        };
        if let Err(error) = link.connection.handle_header(&header) {
            return state.close_for_violation(key, buf, error);
        }
        if header.going_away {
            state.server_goes_away(key);
        }
        match header.kind {
            FrameKind::Request => {
                drop(borrowed);
                self.serve(key, &header, buf);
            }
            FrameKind::Response => {
                let wake = state.complete_call(key, &header, buf);
                match wake {
                    WakeTarget::BlockOn => self.block_on_waker.wake(),
                    WakeTarget::Permit(permit) => state.settled.push(permit),
                    WakeTarget::None => {}
                    WakeTarget::Task(waker) => {
                        drop(borrowed);
                        waker.wake();
                    }
                }
            }
            FrameKind::Credit => {
                state.release_freed(key);
                state.transport.release(buf);
            }
        }
    }

    fn close(&self, id: ConnectionId, reason: CloseReason) {
        let block_on_waker = self.block_on_waker.waker();
        let Some(key) = self.state.borrow_mut().close(id, reason, block_on_waker) else {
            return;
        };
        self.discard_tasks_of(key);
        let reaped = self.state.borrow_mut().reap(key);
        drop(reaped);
        self.wake_collected();
    }

    pub(crate) fn wake_collected(&self) {
        let mut wakers = std::mem::take(&mut self.state.borrow_mut().wakers);
        for waker in wakers.drain(..) {
            waker.wake();
        }
        let mut state = self.state.borrow_mut();
        if state.wakers.is_empty() {
            state.wakers = wakers;
        }
    }

    #[cold]
    fn retry_waiting(&self) {
        let turns = self.turns.get().wrapping_add(1);
        self.turns.set(turns);
        let mut state = self.state.borrow_mut();
        state.wake_waiters();
        state.send_owed_credits();
        let check_clock = turns.is_multiple_of(TURNS_PER_CLOCK) && !state.timers.is_empty();
        state.flush();
        let any_woken = !state.wakers.is_empty();
        drop(state);
        if check_clock {
            self.expire_deadlines();
        }
        if any_woken || check_clock {
            self.wake_collected();
        }
    }

    /// Ends everything whose deadline has passed.
    pub(crate) fn expire_deadlines(&self) {
        let now = self.clock.now();
        loop {
            let mut borrowed = self.state.borrow_mut();
            let state = &mut *borrowed;
            let Some(target) = state.timers.pop_expired(now) else {
                break;
            };
            match target {
                TimerTarget::Call(key, call) => {
                    if let Some(link) = state.links.get_mut(key.index()) {
                        let waiting = link.calls.expire(call);
                        collect(
                            waiting,
                            self.block_on_waker.waker(),
                            &mut state.wakers,
                            &mut state.settled,
                        );
                    }
                }
                TimerTarget::Waiter(key, waiter) => {
                    let waker = state
                        .links
                        .get_mut(key.index())
                        .and_then(|link| link.waiters.expire(waiter));
                    state.wakers.extend(waker);
                }
                TimerTarget::Permit(permit) => state.settled.push(permit),
                TimerTarget::Task(task) => {
                    drop(borrowed);
                    self.expire_task(task);
                }
            }
        }
    }

    /// Returns true if a client is still owed a response.
    pub(crate) fn is_serving(&self) -> bool {
        self.tasks.borrow().parked() > 0 || !self.state.borrow().blocked.is_empty()
    }
}

impl<T: Transport> State<T> {
    /// Rings the doorbell for the frames sent since the last flush, if there are any.
    #[inline]
    pub(super) fn flush(&mut self) {
        if self.unflushed {
            self.unflushed = false;
            self.transport.flush();
        }
    }

    /// Returns true if anything waits for a turn besides the events of the transport.
    #[inline]
    fn has_deferred_work(&self) -> bool {
        // One test for all of them, because every turn makes it.
        self.blocked.len()
            | self.waiting.len()
            | self.owing.len()
            | self.wakers.len()
            | self.timers.len()
            != 0
    }

    /// Returns the link of a connection that this side has not closed.
    #[inline]
    fn open_link(&mut self, id: ConnectionId) -> Option<(LinkKey, &mut Link<T::RecvBuf>)> {
        let key = self.route(id)?;
        let link = self.links.get_mut(key.index())?;
        link.ended.is_none().then_some((key, link))
    }

    /// Ends the call that a response belongs to. Returns the target to wake.
    #[inline]
    fn complete_call(&mut self, key: LinkKey, header: &FrameHeader, buf: T::RecvBuf) -> WakeTarget {
        let head = ResponseHead {
            code: header.selector,
            metadata_len: header.metadata_len,
        };
        let calls = &mut self.links[key.index()].calls;
        match calls.complete(header.call, head, buf) {
            ResponseOutcome::Completed { waiting, timer } => {
                if let Some(timer) = timer {
                    self.timers.cancel(timer);
                }
                waiting
            }
            ResponseOutcome::Abandoned(buf) => {
                self.release_response(buf);
                WakeTarget::None
            }
            ResponseOutcome::UnknownCall(buf) => {
                let call = header.call;
                self.close_for_violation(key, buf, ProtocolError::UnknownCall { call });
                WakeTarget::None
            }
        }
    }

    fn wake_waiters(&mut self) {
        let (links, wakers) = (&mut self.links, &mut self.wakers);
        self.waiting.retain(|key| {
            let Some(link) = links.get_mut(key.index()) else {
                return false;
            };
            // On a link that has ended or is about to, wake all waiters, so that they fail as never
            // sent.
            let room = if link.ended.is_some() || link.going_away {
                u32::MAX
            } else {
                link.connection.requests_allowed()
            };
            link.waiters.wake_next(room, |waker| wakers.push(waker));
            !link.waiters.is_empty()
        });
    }
}

/// Records the target to notify of the end of a call, for when nothing is borrowed.
fn collect(
    waiting: WakeTarget,
    block_on_waker: &Waker,
    wakers: &mut Vec<Waker>,
    settled: &mut Vec<u32>,
) {
    match waiting {
        WakeTarget::None => {}
        WakeTarget::BlockOn => wakers.push(block_on_waker.clone()),
        WakeTarget::Task(waker) => wakers.push(waker),
        WakeTarget::Permit(permit) => settled.push(permit),
    }
}

/// Marks this thread as inside a turn until dropped, even by a panic.
pub(crate) struct TurnMark<'a> {
    turning: &'a Cell<bool>,
    before: bool,
}

impl<'a> TurnMark<'a> {
    #[inline]
    pub(crate) fn set(turning: &'a Cell<bool>) -> Self {
        Self {
            turning,
            before: turning.replace(true),
        }
    }
}

impl Drop for TurnMark<'_> {
    fn drop(&mut self) {
        self.turning.set(self.before);
    }
}
