//! [`StopSignal`]: ends a server's pollers, now or after the lame-duck time.
//!
//! ```text
//!  SERVING ──▶ LAME_DUCK ──▶ STOPPED
//!     │         until its time has passed      ▲
//!     └────────────────────────────────────────┘
//! ```

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::shutdown::Shutdown;
use crate::transport::Listener;

/// The signal for the pollers to stop, now or after the lame-duck time.
pub(super) struct StopSignal {
    /// One of the states below.
    state: AtomicU8,
    /// The times of the shutdown, if they differ from the server's setting. Set before `state`.
    pub(super) shutdown: OnceLock<Shutdown>,
    setting: Shutdown,
    /// The end of the lame-duck time; `None` within if it never ends. Set before `state`.
    lame_until: OnceLock<Option<Instant>>,
    /// The listener, until the server takes no more clients.
    listener: Mutex<Option<Box<dyn Listener>>>,
}

const SERVING: u8 = 0;
/// Serving until `lame_until`.
const LAME_DUCK: u8 = 1;
const STOPPED: u8 = 2;

impl StopSignal {
    pub(super) fn new(setting: Shutdown) -> Self {
        Self {
            state: AtomicU8::new(SERVING),
            shutdown: OnceLock::new(),
            setting,
            lame_until: OnceLock::new(),
            listener: Mutex::new(None),
        }
    }

    /// Stops the pollers when the lame-duck time of the shutdown has passed, if it has one.
    pub(super) fn set_later(&self) {
        let lame_duck = self.shutdown().lame_duck;
        if !lame_duck.is_zero() {
            let _ = self.lame_until.set(Instant::now().checked_add(lame_duck));
            self.leave_serving(LAME_DUCK);
        }
    }

    /// Stops the pollers, unless they stop later.
    pub(super) fn set(&self) {
        self.leave_serving(STOPPED);
    }

    pub(super) fn set_at_once(&self) {
        self.state.store(STOPPED, Ordering::Release);
    }

    fn leave_serving(&self, state: u8) {
        // Fails if the server stops already.
        let _ = self
            .state
            .compare_exchange(SERVING, state, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns how long the pollers serve at least. `None` if they stop now.
    pub(super) fn time_left(&self) -> Option<Duration> {
        match self.state.load(Ordering::Acquire) {
            SERVING => Some(Duration::MAX),
            LAME_DUCK => self.lame_duck_left(),
            _ => None,
        }
    }

    #[cold]
    fn lame_duck_left(&self) -> Option<Duration> {
        let Some(Some(until)) = self.lame_until.get() else {
            return Some(Duration::MAX);
        };
        let left = until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Returns true if the pollers serve for some more time.
    pub(super) fn is_lame_duck(&self) -> bool {
        self.state.load(Ordering::Acquire) == LAME_DUCK && self.time_left().is_some()
    }

    pub(super) fn set_listener(&self, listener: Box<dyn Listener>) {
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
    }

    /// Closes the listener, once. If another thread is about to, leaves it to that one.
    pub(super) fn close_listener(&self) {
        let listener = self.listener.try_lock().map(|mut listener| listener.take());
        drop(listener);
    }

    pub(super) fn shutdown(&self) -> Shutdown {
        self.shutdown.get().copied().unwrap_or(self.setting)
    }
}
