//! A queue pair of the device: its attributes, its queues and its link.

use super::core::Core;
use super::initiator::Initiator;
use super::link::{Early, Link};
use super::receive_queue::ReceiveQueue;
use crate::provider::soft::context::waiting::Waiting;

/// One queue pair.
#[derive(Debug)]
pub(crate) struct SoftQueuePair {
    pub(crate) core: Core,
    pub(crate) initiator: Initiator,
    /// Sends not carried out yet; used only by unreliable queue pairs.
    pub(crate) waiting: Waiting,
    pub(crate) receives: ReceiveQueue,
    pub(crate) link: Link,
    pub(crate) early: Early,
    /// Membership in the lists of `Common`.
    pub(crate) is_hot: bool,
    pub(crate) is_awaiting: bool,
    pub(crate) is_unacked: bool,
    pub(crate) established: bool,
}

impl SoftQueuePair {
    /// Compares the sequence numbers of both sides, to detect that the peer would drop every
    /// message. Call this when both are known and nothing has been sent.
    pub(super) fn compare_sequence_numbers(&mut self) {
        self.initiator.has_psn_mismatch =
            match (self.link.expected_psn(), self.core.attributes.sq_psn) {
                (Some(expected), Some(psn)) => expected != psn.get(),
                _ => false,
            };
    }
}
