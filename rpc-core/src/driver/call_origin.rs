//! [`CallOrigin`]: the origin of a call, and how the call waits when it cannot be sent at once.

use std::task::Waker;
use std::time::Instant;

use super::block_on_waker::BlockOnWaker;
use super::call_table::WakeTarget;
use super::handle::BeginOutcome;
use super::held_permit::HeldPermit;
use super::link::LinkKey;
use super::links::Links;
use super::waiters::{WaiterKey, Waiters};
use crate::stats::Counter;
use crate::transport::Transport;

/// The origin of a call, which is notified when the call ends.
pub(crate) trait CallOrigin: Copy {
    /// The value that a call gets if it must wait.
    type Waiting;

    /// Returns the queue entry of a call that has waited.
    fn waiter(self) -> Option<WaiterKey>;

    /// Returns true if the call may be sent now: first come, first served.
    fn is_turn(self, waiters: &Waiters) -> bool;

    /// Keeps a call waiting. `stall` counts the reason. May exchange `wake`, which the caller drops
    /// while nothing is borrowed.
    fn wait<T: Transport>(
        &self,
        links: &mut Links<T>,
        link: LinkKey,
        deadline: Option<Instant>,
        stall: &Counter,
        wake: &mut WakeTarget,
    ) -> BeginOutcome<Self::Waiting>;

    /// Returns the target to wake when the response arrives.
    fn wake_target(self, block_on_waker: &BlockOnWaker) -> WakeTarget;
}

/// A future that makes a call. A call that has to wait is queued, and its waker is woken.
#[derive(Clone, Copy)]
pub(crate) struct CallingFuture<'a> {
    /// The waker that the future is polled with.
    pub(super) waker: &'a Waker,
    /// The call's queue entry, if it has waited.
    pub(super) waiter: Option<WaiterKey>,
}

impl<'a> CallingFuture<'a> {
    /// A future whose call does not wait to be sent.
    pub(super) fn new(waker: &'a Waker) -> Self {
        let waiter = None;
        Self { waker, waiter }
    }
}

impl CallOrigin for CallingFuture<'_> {
    type Waiting = WaiterKey;

    fn waiter(self) -> Option<WaiterKey> {
        self.waiter
    }

    fn is_turn(self, waiters: &Waiters) -> bool {
        match self.waiter {
            Some(waiter) => waiters.is_turn_of(waiter),
            None => waiters.is_empty(),
        }
    }

    fn wait<T: Transport>(
        &self,
        links: &mut Links<T>,
        link: LinkKey,
        deadline: Option<Instant>,
        stall: &Counter,
        wake: &mut WakeTarget,
    ) -> BeginOutcome<WaiterKey> {
        BeginOutcome::Waiting(links.wait(link, *self, deadline, stall, wake))
    }

    fn wake_target(self, block_on_waker: &BlockOnWaker) -> WakeTarget {
        block_on_waker.target_of(self.waker)
    }
}

/// There is no capacity yet, and nothing was queued.
#[derive(Debug)]
pub(crate) struct NoCapacity;

impl CallOrigin for HeldPermit {
    type Waiting = NoCapacity;

    fn waiter(self) -> Option<WaiterKey> {
        None
    }

    fn is_turn(self, _: &Waiters) -> bool {
        true
    }

    fn wait<T: Transport>(
        &self,
        _: &mut Links<T>,
        _: LinkKey,
        _: Option<Instant>,
        _: &Counter,
        _: &mut WakeTarget,
    ) -> BeginOutcome<NoCapacity> {
        BeginOutcome::Waiting(NoCapacity)
    }

    fn wake_target(self, _: &BlockOnWaker) -> WakeTarget {
        WakeTarget::Permit(self)
    }
}
