//! A queue pair of the device: its attributes, its queues and its link.

use super::core::Core;
use super::initiator::Initiator;
use super::link::{Early, Link};
use super::receive_queue::ReceiveQueue;
use super::waiting::Waiting;
use crate::member_list::Listed;

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
    /// Which of the context's [`Lists`](super::lists::Lists) it is in.
    pub(crate) listed: Listed,
    pub(crate) established: bool,
}
