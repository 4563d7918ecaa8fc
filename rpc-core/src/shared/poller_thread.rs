//! [`PollerThread`]: a poller as other threads see it, and [`PollerRef`], which keeps it running.
//!
//! A poller runs until its last [`PollerRef`] is dropped: those of its channels, and those of
//! [`Pollers`](super::Pollers). It has room for a fixed number of channels. A channel gets a number
//! first ([`Reserved`]), which its callers mark (`marks.rs`), and is then handed over to the poller.
//! The poller gives the number back after it has removed the channel.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::marks::Marks;
use super::permits::PermitWaits;
use crate::driver::wakeup::Wakeup;
use crate::limits::Limits;
use crate::stats::{PollerCounters, PollerStats};

/// A poller as other threads see it.
pub(crate) struct PollerThread {
    /// The channels that have work from other threads.
    pub(super) marks: Marks,
    /// Set when the poller starts.
    wakeup: OnceLock<Arc<Wakeup>>,
    /// Set when the poller has opened its device.
    limits: OnceLock<Limits>,
    counters: OnceLock<Arc<PollerCounters>>,
    /// Calls that waited for a permit of any of the poller's channels.
    pub(super) waits: Arc<PermitWaits>,
    /// Set when the poller has no more references, and when it has ended.
    is_stopped: AtomicBool,
    /// The number of [`PollerRef`]s.
    references: AtomicUsize,
    room: Mutex<Room>,
}

/// The numbers of a poller's channels.
struct Room {
    /// A stack of the numbers that are not in use.
    free: Vec<u32>,
    in_use: usize,
}

impl PollerThread {
    /// Returns true if the poller should end, or has ended.
    #[inline]
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Publishes the poller's handles, when it starts.
    pub(super) fn start(&self, wakeup: &Arc<Wakeup>, counters: &Arc<PollerCounters>) {
        let _ = self.wakeup.set(Arc::clone(wakeup));
        let _ = self.counters.set(Arc::clone(counters));
    }

    pub(super) fn set_limits(&self, limits: &Limits) {
        let _ = self.limits.set(limits.clone());
    }

    /// Returns the poller's sizes, once it has opened its device.
    #[inline]
    pub(super) fn limits(&self) -> Option<&Limits> {
        self.limits.get()
    }

    /// Returns the poller's counters, which are zero until it has opened its device.
    pub(super) fn stats(&self) -> PollerStats {
        let counters = self.counters.get();
        let mut stats = counters.map(|counters| counters.read()).unwrap_or_default();
        stats.stalls.no_permit = self.waits.waited.load(Ordering::Relaxed);
        stats.stalls.gave_up = self.waits.gave_up.load(Ordering::Relaxed);
        stats
    }

    /// Tells the poller that a channel has work, which was stored before.
    #[inline]
    pub(super) fn notify(&self, channel: u32) {
        self.marks.set(channel);
        self.wake();
    }

    /// Wakes the poller if it sleeps.
    #[inline]
    fn wake(&self) {
        match self.wakeup.get() {
            Some(wakeup) => wakeup.notify(),
            None => self.wake_before_start(),
        }
    }

    /// The poller has not started. The work was stored before this fence. After it stores `wakeup`,
    /// the poller issues a fence of its own and checks for work: if this load misses `wakeup`, the
    /// poller's check finds the work.
    #[cold]
    fn wake_before_start(&self) {
        fence(Ordering::SeqCst);
        if let Some(wakeup) = self.wakeup.get() {
            wakeup.notify();
        }
    }

    /// Gives the number of a channel back that the poller has removed.
    pub(super) fn give_back(&self, channel: u32) {
        let mut room = self.room();
        room.free.push(channel);
        room.in_use -= 1;
    }

    /// Publishes that the poller ends.
    pub(super) fn close(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Before the queues of the channels are drained: see `PollerHandle::submit`.
        fence(Ordering::SeqCst);
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        // Under this lock only the allocator can panic.
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a poller running.
pub(super) struct PollerRef(Arc<PollerThread>);

impl PollerRef {
    /// Creates a poller that has not started, with room for `channels` channels.
    pub(super) fn new(channels: u32) -> Self {
        Self(Arc::new(PollerThread {
            marks: Marks::new(channels),
            wakeup: OnceLock::new(),
            limits: OnceLock::new(),
            counters: OnceLock::new(),
            waits: Arc::default(),
            is_stopped: AtomicBool::new(false),
            references: AtomicUsize::new(1),
            room: Mutex::new(Room {
                free: (0..channels).rev().collect(),
                in_use: 0,
            }),
        }))
    }

    /// Returns the poller for its own thread, and for threads that dial for it. It does not keep the
    /// poller running.
    pub(super) fn thread(&self) -> Arc<PollerThread> {
        Arc::clone(&self.0)
    }

    /// Returns the number of channels that have a number.
    pub(super) fn channels(&self) -> usize {
        self.room().in_use
    }

    /// Takes a number for a channel. Returns `None` if the poller has no room.
    pub(super) fn reserve(&self) -> Option<Reserved> {
        let mut room = self.room();
        let channel = room.free.pop()?;
        room.in_use += 1;
        drop(room);
        Some(Reserved {
            poller: self.clone(),
            channel,
            is_used: false,
        })
    }
}

impl Deref for PollerRef {
    type Target = PollerThread;

    #[inline]
    fn deref(&self) -> &PollerThread {
        &self.0
    }
}

impl Clone for PollerRef {
    fn clone(&self) -> Self {
        self.references.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for PollerRef {
    fn drop(&mut self) {
        // The poller reads nothing that was written before the drop except through its own queues.
        if self.references.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.is_stopped.store(true, Ordering::Relaxed);
            self.wake();
        }
    }
}

/// The number of a channel that has not been handed over yet. Dropping it gives the number back.
pub(super) struct Reserved {
    poller: PollerRef,
    channel: u32,
    is_used: bool,
}

impl Reserved {
    /// Returns the poller and the number, for a channel that will be handed over. From now on the
    /// poller gives the number back.
    pub(super) fn into_parts(mut self) -> (PollerRef, u32) {
        self.is_used = true;
        (self.poller.clone(), self.channel)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.is_used {
            self.poller.give_back(self.channel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poller_has_room_for_so_many_channels_and_ends_with_its_last_reference() {
        let poller = PollerRef::new(2);
        let first = poller.reserve().unwrap();
        let second = poller.reserve().unwrap();
        assert!(poller.reserve().is_none());
        assert_eq!(poller.channels(), 2);
        drop(second);
        let (kept, number) = first.into_parts();
        assert_eq!((poller.channels(), number), (1, 0));
        let thread = poller.thread();
        drop(poller);
        assert!(!thread.is_stopped());
        thread.give_back(number);
        assert_eq!(kept.channels(), 0);
        drop(kept);
        assert!(thread.is_stopped());
    }
}
