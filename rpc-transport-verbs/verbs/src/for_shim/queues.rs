//! Completion channels, completion queues and shared receive queues.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::Element;
use super::request::{Receive, receive};
use crate::provider;
use crate::types::{
    CompletionOpcode, Extras, PostErrorReason, QpNum, SrqAttributes, SrqNum, VerbsError,
};

/// A completion channel.
#[derive(Debug)]
pub struct CompletionChannel(pub(super) provider::CompletionChannel);

impl CompletionChannel {
    /// Returns the number of the next queue that raised an event; `None` after the timeout.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<u32>, VerbsError> {
        self.0.wait(timeout)
    }

    /// Returns the file that is readable when there may be an event.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue(
    pub(super) provider::CompletionQueue,
    pub(super) provider::HeldCompletions,
);

/// A completion, as the device reports it.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The program's id of the request.
    pub wr_id: u64,
    /// libibverbs' code of the status.
    pub status: u32,
    /// What was done. Says after a failure only whether it was a receive.
    pub opcode: CompletionOpcode,
    /// Bytes that were received.
    pub byte_len: u32,
    /// The immediate or the key that was invalidated, if `has` says so.
    pub data: u32,
    /// The queue pair.
    pub qp_num: QpNum,
    /// The sender of a datagram.
    pub src_qp: u32,
    /// True if `data` is an immediate.
    pub has_immediate: bool,
    /// True if `data` is a key that was invalidated.
    pub has_invalidated: bool,
    /// True if a global routing header precedes the message.
    pub has_route: bool,
}

impl CompletionQueue {
    /// Asks for an event when the next completion arrives.
    ///
    /// # Errors
    ///
    /// If the queue has no channel.
    pub fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.0.arm(solicited_only)
    }

    /// Takes the next completion, if there is one.
    ///
    /// # Errors
    ///
    /// If the queue has overrun.
    pub fn poll_one(&mut self) -> Result<Option<Completion>, VerbsError> {
        let Some(found) = self.0.poll_one(&mut self.1)? else {
            return Ok(None);
        };
        let has = |bit| found.extras.0 & bit != 0;
        Ok(Some(Completion {
            wr_id: found.wr_id.to_raw(),
            status: found.status,
            opcode: found.opcode,
            byte_len: found.byte_len,
            data: found.data,
            qp_num: found.qp_num,
            src_qp: found.src_qp,
            has_immediate: has(Extras::IMMEDIATE),
            has_invalidated: has(Extras::INVALIDATED),
            has_route: has(Extras::GLOBAL_ROUTE),
        }))
    }

    /// Changes the depth.
    ///
    /// # Errors
    ///
    /// If the depth is out of range, or less than the completions in the queue.
    pub fn resize(&self, depth: usize) -> Result<(), VerbsError> {
        self.0.resize(depth)
    }

    /// Returns the depth.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Returns the number that events carry.
    pub fn number(&self) -> u32 {
        self.0.number()
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedReceiveQueue(pub(super) provider::SharedReceiveQueue);

impl SharedReceiveQueue {
    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The program leaves the elements' bytes to the device until the receive has completed.
    ///
    /// # Errors
    ///
    /// If the queue is full.
    pub unsafe fn post_recv(&self, wr_id: u64, list: &[Element]) -> Result<(), PostErrorReason> {
        let list: Vec<_> = list.iter().map(Element::sge).collect();
        let posted = match receive(wr_id, &list) {
            Receive::Simple(work) => self.0.post_recv(&[work]),
            Receive::List(work) => self.0.post_recv_lists(&[work], &list),
        };
        posted.map_err(|error| error.reason)
    }

    /// Changes the number of entries.
    ///
    /// # Errors
    ///
    /// If it is out of range.
    pub fn resize(&self, max_wr: usize) -> Result<(), VerbsError> {
        self.0.resize(max_wr)
    }

    /// Asks for an event when fewer receives than this are left.
    ///
    /// # Errors
    ///
    /// If it is out of range.
    pub fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        self.0.arm_limit(limit)
    }

    /// Returns the attributes.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn query(&self) -> Result<SrqAttributes, VerbsError> {
        self.0.query()
    }

    /// Returns the number that events carry.
    pub fn number(&self) -> SrqNum {
        self.0.number()
    }
}
