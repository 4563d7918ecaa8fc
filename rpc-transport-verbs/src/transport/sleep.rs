//! A poller's sleep: one set of files, of its lanes' completion channels and of its alarm.
//!
//! ```text
//!   arm:   each lane's completion queue      ── what the device completes from now on raises an event
//!   poll:  finds what came before, or nothing
//!   wait:  ┌ completion channel of each lane ◄─ the device, a peer of the software device, its engine
//!          └ alarm ◄─────────────────────────── wakers; notices of the control and event threads
//! ```
//!
//! Nothing here is on the way of a call while the poller is awake: it arms when it has looked for long
//! enough, as its [`Waiting`](rpc_core::limits::Waiting) says.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::transport::VerbsTransport;
use crate::transport::alarm::Alarm;
use crate::transport::lane::Lane;

/// How long a poller sleeps at most while a connection is being closed: its steps are taken by polls
/// and have time limits, the shortest of 20 ms.
const NAP: Duration = Duration::from_millis(1);

/// Names the alarm among the files; lanes have their numbers.
const ALARM: u64 = u64::MAX;

/// Files that are seen readable at a time. Those of more lanes than this are seen the next time.
const AT_A_TIME: usize = 8;
type Space = [MaybeUninit<epoll::Event>; AT_A_TIME];

/// What a poller waits for.
pub(crate) struct Sleep {
    pub(crate) alarm: Arc<Alarm>,
    files: OwnedFd,
}

impl Sleep {
    pub(crate) fn new<'a>(
        alarm: Arc<Alarm>,
        lanes: impl Iterator<Item = &'a Lane>,
    ) -> io::Result<Self> {
        let files = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&files, &alarm, epoll::EventData::new_u64(ALARM), readable)?;
        for lane in lanes {
            if let Some(channel) = &lane.channel {
                let number = epoll::EventData::new_u64(lane.number.into());
                epoll::add(&files, channel, number, readable)?;
            }
        }
        Ok(Self { alarm, files })
    }

    /// What is readable, as soon as anything is, or nothing after `timeout`.
    fn wait<'a>(&self, space: &'a mut Space, timeout: Option<Duration>) -> &'a [epoll::Event] {
        // More time than fits is for ever.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match epoll::wait(&self.files, space, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => &[],
            Err(error) => {
                // Nothing that this process does makes a wait fail; but it must not spin.
                tracing::error!(%error, "a poller cannot sleep as it should");
                std::thread::sleep(NAP);
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
            // It has to go on polling, which is how it will hear why.
            self.sleep.alarm.ring();
        }
    }

    pub(crate) fn sleep(&mut self, timeout: Option<Duration>) {
        // The poll after arming may have brought a lane its first connection.
        if self.lanes().any(|lane| !lane.is_armed && !lane.is_idle) {
            return;
        }
        let is_closing = self.lanes().any(|lane| !lane.closing.is_empty());
        let timeout = if is_closing {
            Some(timeout.map_or(NAP, |timeout| timeout.min(NAP)))
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

    /// One wait, and what was readable is taken: whether that is something to wake up for.
    fn is_woken_within(&mut self, timeout: Option<Duration>) -> bool {
        let mut is_woken = false;
        let mut space: Space = [const { MaybeUninit::uninit() }; AT_A_TIME];
        for file in self.sleep.wait(&mut space, timeout) {
            match file.data.u64() {
                ALARM => {
                    self.sleep.alarm.turn_off();
                    is_woken = true;
                }
                // Lanes are numbered in 32 bits.
                number => {
                    let lane = self.lane(number as u32);
                    is_woken |= lane.is_some_and(|lane| lane.take_completion_events());
                }
            }
        }
        is_woken
    }

    /// Whether a sleep would end now, for a simulation.
    #[cfg(feature = "test-util")]
    pub(crate) fn is_woken(&mut self) -> bool {
        let is_kept_awake =
            |lane: &Lane| (!lane.is_armed && !lane.is_idle) || !lane.closing.is_empty();
        self.lanes().any(is_kept_awake) || self.is_woken_within(Some(Duration::ZERO))
    }
}

impl Lane {
    /// Whether what comes from now on, if anything may come at all, will end a sleep.
    fn arm(&mut self) -> bool {
        if self.is_idle {
            // A notice brings its next connection.
            self.is_armed = false;
            return true;
        }
        let armed = self.completion_queue.arm(false);
        self.is_armed = armed.is_ok();
        if let Err(error) = armed {
            tracing::debug!(%error, lane = self.number, "a poller cannot sleep");
        }
        self.is_armed
    }

    /// Takes all events of the lane's completion queue: whether there was one.
    fn take_completion_events(&mut self) -> bool {
        let Some(channel) = &self.channel else {
            return false;
        };
        let mut is_any = false;
        loop {
            match channel.wait(Some(Duration::ZERO)) {
                Ok(Some(_)) => is_any = true,
                Ok(None) => return is_any,
                Err(error) => {
                    // The poll that follows finds out what has become of the device.
                    tracing::debug!(%error, lane = self.number, "a completion channel has failed");
                    return true;
                }
            }
        }
    }
}
