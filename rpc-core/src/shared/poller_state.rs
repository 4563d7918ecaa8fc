//! [`PollerState`]: a poller as other threads see it, and [`PollerRef`], which keeps it running.
//!
//! A poller runs until its last [`PollerRef`] is dropped: those of its channels, and those of
//! [`Pollers`](super::Pollers). It has room for a fixed number of channels. A channel gets a number
//! first ([`Reserved`]), which its callers mark (`marks.rs`), and is then handed over to the poller.
//! When the channel is dropped, there is room for another one at once, with another number: the
//! poller releases the number of the dropped channel after it has removed it.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::marks::Marks;
use super::permits::PermitWaits;
use crate::driver::wakeup::Wakeup;
use crate::limits::Limits;
use crate::poller::cores::PinnedThread;
use crate::stats::{PollerCounters, PollerStats};

/// A poller as other threads see it.
pub(crate) struct PollerState {
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
    numbers: Mutex<ChannelNumbers>,
}

/// The numbers of a poller's channels.
struct ChannelNumbers {
    /// A stack of the numbers that were in use before and are free.
    free: Vec<u32>,
    /// The lowest number that was never in use.
    next: u32,
    end: u32,
    /// Channels that the poller has room for.
    most: u32,
    /// Channels that have not been dropped.
    open: u32,
}

/// Numbers for channels that are opened before the poller has removed others that were dropped.
const SPARE_NUMBERS: u32 = 64;

impl ChannelNumbers {
    fn new(most: u32) -> Self {
        Self {
            free: Vec::new(),
            next: 0,
            end: most.saturating_add(SPARE_NUMBERS),
            most,
            open: 0,
        }
    }

    fn take(&mut self) -> Option<u32> {
        if self.open == self.most {
            return None;
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.next < self.end => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        self.open += 1;
        Some(number)
    }
}

impl PollerState {
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

    /// Publishes the poller's sizes, when it has opened its device, and its core.
    pub(super) fn set_limits(&self, limits: &Limits, pinned: &Option<PinnedThread>) {
        let _ = self.limits.set(Limits {
            cores: vec![pinned.as_ref().map(|pinned| pinned.core)],
            ..limits.clone()
        });
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

    /// Makes room for another channel, because one was dropped.
    pub(super) fn leave(&self) {
        self.numbers().open -= 1;
    }

    /// Releases the number of a channel that was dropped, and that the poller has removed.
    pub(super) fn release(&self, channel: u32) {
        self.numbers().free.push(channel);
    }

    /// Publishes that the poller ends.
    pub(super) fn close(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Before the queues of the channels are drained: see `PollerHandle::submit`.
        fence(Ordering::SeqCst);
    }

    fn numbers(&self) -> MutexGuard<'_, ChannelNumbers> {
        // Under this lock only the allocator can panic.
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a poller running.
pub(super) struct PollerRef(Arc<PollerState>);

impl PollerRef {
    /// Creates a poller that has not started, with room for `channels` channels.
    pub(super) fn new(channels: u32) -> Self {
        let numbers = ChannelNumbers::new(channels);
        Self(Arc::new(PollerState {
            marks: Marks::new(numbers.end),
            wakeup: OnceLock::new(),
            limits: OnceLock::new(),
            counters: OnceLock::new(),
            waits: Arc::default(),
            is_stopped: AtomicBool::new(false),
            references: AtomicUsize::new(1),
            numbers: Mutex::new(numbers),
        }))
    }

    /// Returns the poller for its own thread, and for threads that dial for it. It does not keep the
    /// poller running.
    pub(super) fn state(&self) -> Arc<PollerState> {
        Arc::clone(&self.0)
    }

    /// Returns the number of channels that have not been dropped.
    pub(super) fn channels(&self) -> usize {
        self.numbers().open as usize
    }

    /// Returns the number of channels that have a number: those, and those that the poller has not
    /// removed yet.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn numbered(&self) -> usize {
        let numbers = self.numbers();
        numbers.next as usize - numbers.free.len()
    }

    /// Takes a number for a channel. Returns `None` if the poller has no room, or has ended.
    pub(super) fn reserve(&self) -> Option<Reserved> {
        if self.is_stopped() {
            return None;
        }
        let channel = self.numbers().take()?;
        self.marks.include(channel);
        Some(Reserved {
            poller: self.clone(),
            channel,
            is_used: false,
        })
    }
}

impl Deref for PollerRef {
    type Target = PollerState;

    #[inline]
    fn deref(&self) -> &PollerState {
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

/// The number of a channel that has not been handed over yet. Dropping it releases the number.
pub(super) struct Reserved {
    poller: PollerRef,
    channel: u32,
    is_used: bool,
}

impl Reserved {
    /// Returns the poller and the number, for a channel that will be handed over. From now on, the
    /// channel makes room when it is dropped, and the poller releases the number.
    pub(super) fn into_parts(mut self) -> (PollerRef, u32) {
        self.is_used = true;
        (self.poller.clone(), self.channel)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.is_used {
            self.poller.leave();
            self.poller.release(self.channel);
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
        let state = poller.state();
        drop(poller);
        assert!(!state.is_stopped());
        state.leave();
        assert_eq!((kept.channels(), kept.numbered()), (0, 1));
        state.release(number);
        assert_eq!(kept.numbered(), 0);
        drop(kept);
        assert!(state.is_stopped());
    }

    #[test]
    fn a_channel_that_was_dropped_makes_room_at_once_and_keeps_its_number_until_it_is_removed() {
        let poller = PollerRef::new(1);
        let mut numbers = Vec::new();
        for _ in 0..=SPARE_NUMBERS {
            let (_, number) = poller.reserve().unwrap().into_parts();
            assert!(poller.reserve().is_none(), "there is room for one");
            assert!(!numbers.contains(&number));
            numbers.push(number);
            poller.leave();
        }
        assert!(poller.reserve().is_none(), "the poller has removed none");
        poller.release(7);
        assert_eq!(poller.reserve().unwrap().into_parts().1, 7);
    }

    #[test]
    fn a_poller_that_has_ended_takes_no_channel() {
        let poller = PollerRef::new(2);
        poller.close();
        assert!(poller.reserve().is_none());
        assert_eq!(poller.channels(), 0);
    }
}
