//! How a poller sleeps: on one epoll set with the completion channels of its lanes and its eventfd.
//!
//! ```text
//!   arm:   each lane's completion queue      ── from now on, a completion raises an event
//!   poll:  finds earlier completions, or nothing
//!   wait:  ┌ completion channel of each lane ◄─ the device, a peer of the software device, its engine
//!          └ eventfd ◄───────────────────────── wakers; notices of the control and event threads
//! ```
//!
//! None of this is on the path of a call while the poller is awake. The poller arms the queues only
//! after it has polled without result for as long as its [`Waiting`](rpc_core::Waiting)
//! mode specifies.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use verbline_verbs::for_transport::epoll_add;

use crate::transport::VerbsTransport;
use crate::transport::lane::Lane;
use crate::transport::pending::Pending;
use crate::transport::wakeup::Wakeup;

/// Maximum sleep while a connection is being closed: polls drive the steps of closing, and the
/// shortest time limit of a step is 20 ms.
const MAX_SLEEP_WHILE_CLOSING: Duration = Duration::from_millis(1);

/// Maximum of one wait. `epoll_wait` takes milliseconds in 31 bits, and refuses more than that. A longer
/// sleep is several waits.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The eventfd's key in the epoll set. The key of a completion channel is its lane's number.
const WAKEUP: u64 = u64::MAX;

/// Maximum number of events per wait. If more files are readable, the next wait returns the others.
const MAX_EVENTS: usize = 8;
type EventBuffer = [MaybeUninit<epoll::Event>; MAX_EVENTS];

/// The files on which a poller sleeps.
pub(crate) struct Sleep {
    pub(crate) wakeup: Arc<Wakeup>,
    files: OwnedFd,
}

impl Sleep {
    pub(crate) fn new<'a>(
        wakeup: Arc<Wakeup>,
        lanes: impl Iterator<Item = &'a Lane>,
    ) -> io::Result<Self> {
        let files = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll_add(&files, &wakeup, epoll::EventData::new_u64(WAKEUP), readable)?;
        for lane in lanes {
            if let Some(channel) = &lane.channel {
                let number = epoll::EventData::new_u64(lane.number.into());
                epoll_add(&files, channel, number, readable)?;
            }
        }
        Ok(Self { wakeup, files })
    }

    /// Returns the readable files as soon as there are any, or nothing after `timeout`.
    fn wait<'a>(
        &self,
        space: &'a mut EventBuffer,
        timeout: Option<Duration>,
    ) -> &'a [epoll::Event] {
        let timeout =
            timeout.and_then(|timeout| Timespec::try_from(timeout.min(LONGEST_WAIT)).ok());
        match epoll::wait(&self.files, space, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => &[],
            Err(error) => {
                // This process does nothing that makes a wait fail, but in case it does, do not
                // spin.
                tracing::error!(%error, "epoll failed: a poller sleeps for a millisecond instead of until the next event");
                std::thread::sleep(MAX_SLEEP_WHILE_CLOSING);
                &[]
            }
        }
    }
}

impl VerbsTransport {
    pub(crate) fn arm_lanes(&mut self) {
        let mut is_armed = true;
        for lane in self.lanes_mut() {
            is_armed &= lane.arm();
        }
        if !is_armed {
            // Stay awake and poll: polling reports the error.
            self.sleep.wakeup.notify();
        }
    }

    pub(crate) fn sleep(&mut self, timeout: Option<Duration>) {
        if self.lanes().any(Lane::must_be_polled) {
            return;
        }
        let is_closing = self.lanes().any(|lane| !lane.closing.is_empty());
        let timeout = if is_closing {
            Some(timeout.map_or(MAX_SLEEP_WHILE_CLOSING, |timeout| {
                timeout.min(MAX_SLEEP_WHILE_CLOSING)
            }))
        } else {
            timeout
        };
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut left = timeout;
        loop {
            let is_woken = self.is_woken_within(left);
            left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if is_woken || left.is_some_and(|left| left.is_zero()) {
                return;
            }
        }
    }

    /// Waits once and drains the files that were readable. Returns true if the poller has to wake
    /// up.
    fn is_woken_within(&mut self, timeout: Option<Duration>) -> bool {
        let mut is_woken = false;
        let mut space: EventBuffer = [const { MaybeUninit::uninit() }; MAX_EVENTS];
        for file in self.sleep.wait(&mut space, timeout) {
            match file.data.u64() {
                WAKEUP => {
                    self.sleep.wakeup.clear();
                    is_woken = true;
                }
                // A lane's number has 32 bits.
                number => {
                    let lane = self.lane(number as u32);
                    is_woken |= lane.is_some_and(|lane| lane.take_completion_events());
                }
            }
        }
        is_woken
    }

    /// Returns true if a sleep would end now. For simulations.
    #[cfg(feature = "test-util")]
    pub(crate) fn is_woken(&mut self) -> bool {
        let is_kept_awake = |lane: &Lane| lane.must_be_polled() || !lane.closing.is_empty();
        self.lanes().any(is_kept_awake) || self.is_woken_within(Some(Duration::ZERO))
    }
}

impl Lane {
    /// Arms the completion queue. Returns true if every later completion will end a sleep.
    fn arm(&mut self) -> bool {
        if self.is_idle() {
            // Nothing to arm: a notice will add the lane's next connection.
            self.is_armed = false;
            return true;
        }
        let armed = self.completion_queue.arm(false);
        self.is_armed = armed.is_ok();
        if let Err(error) = armed {
            tracing::debug!(%error, lane = self.number, "a completion queue cannot be armed: the poller stays awake");
        }
        self.is_armed
    }

    /// Returns true if the lane has to be polled again before a sleep: the poll after arming has
    /// added its first connection, or has left completions, events or READs to post.
    fn must_be_polled(&self) -> bool {
        (!self.is_armed && !self.is_idle())
            || self
                .pending
                .has(Pending::MORE | Pending::EVENTS | Pending::LONG_MESSAGES)
    }

    /// Drains the events of the lane's completion queue. Returns true if there was one.
    fn take_completion_events(&mut self) -> bool {
        let Some(channel) = &self.channel else {
            return false;
        };
        let mut has_event = false;
        loop {
            match channel.wait(Some(Duration::ZERO)) {
                Ok(Some(_)) => has_event = true,
                Ok(None) => return has_event,
                Err(error) => {
                    // The next poll determines whether the device has failed.
                    tracing::debug!(%error, lane = self.number, "a completion channel has failed");
                    return true;
                }
            }
        }
    }
}
