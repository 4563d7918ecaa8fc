//! A queue pair of the device: its attributes, its queues and its link.

use std::time::{Duration, Instant};

use super::core::Core;
use super::general_send::Outstanding;
use super::link::{Early, Link};
use super::receive_queue::ReceiveQueue;
use super::send_queue::SendQueue;
use crate::provider::soft::context::waiting::Waiting;

/// One queue pair.
#[derive(Debug)]
pub(crate) struct SoftQueuePair {
    pub(crate) core: Core,
    pub(crate) sends: SendQueue,
    /// Sends not carried out yet; used only by unreliable queue pairs.
    pub(crate) waiting: Waiting,
    pub(crate) receives: ReceiveQueue,
    pub(crate) link: Link,
    pub(crate) early: Early,
    /// True if the peer expects other sequence numbers than this side sends: it would silently drop
    /// every message.
    pub(crate) has_psn_mismatch: bool,
    pub(crate) retry: Retry,
    pub(crate) outstanding: Outstanding,
    /// Membership in the lists of `Common`.
    pub(crate) is_hot: bool,
    pub(crate) is_awaiting: bool,
    pub(crate) is_unacked: bool,
    /// Set on the way to SQD: raise `SqDrained` when nothing is in flight.
    pub(crate) draining: Option<NotifyDrained>,
    pub(crate) established: bool,
}

/// True if the application requested a `SqDrained` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotifyDrained(pub(crate) bool);

/// Retry state of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// RNR NAKs since the last progress.
    pub(crate) rnr_count: u32,
    /// Time at which the receiver may be asked to retry.
    pub(crate) rnr_until: Option<Instant>,
    /// Start of the peer's silence: it is dead or does not accept messages.
    pub(crate) silent_since: Option<Instant>,
    /// Time for which a peer over TCP has answered nothing that waits for an answer. The time in which
    /// this process did not run does not count.
    pub(crate) ignored_for: Duration,
}

impl SoftQueuePair {
    /// Compares the sequence numbers of both sides, to detect that the peer would drop every
    /// message. Call this when both are known and nothing has been sent.
    pub(super) fn compare_sequence_numbers(&mut self) {
        self.has_psn_mismatch = match (self.link.expected_psn(), self.core.attributes.sq_psn) {
            (Some(expected), Some(psn)) => expected != psn.get(),
            _ => false,
        };
    }
}
