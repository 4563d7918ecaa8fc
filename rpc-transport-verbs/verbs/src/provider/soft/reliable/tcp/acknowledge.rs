//! Completes requests as the peer acknowledges, answers or refuses them.

use std::time::Duration;

use crate::hooks;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::context::tcp_link::{Phase, extended};
use crate::types::CompletionStatus;

/// A message that no correct peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidMessage;

impl SoftQueuePair {
    /// Completes the requests before the one with this sequence number.
    pub(super) fn acknowledge(
        &mut self,
        common: &mut Common,
        low: u32,
    ) -> Result<(), InvalidMessage> {
        let Some(link) = self.link.tcp_mut() else {
            return Ok(());
        };
        let outbound = &mut link.outbound;
        let acked = extended(low, outbound.acked);
        if acked < outbound.acked || acked > outbound.next {
            return Err(InvalidMessage);
        }
        if acked == outbound.acked {
            return Ok(());
        }
        outbound.acked = acked;
        self.initiator.retry.rnr_count = 0;
        self.initiator.retry.ignored_for = Duration::ZERO;
        self.complete_acknowledged(common);
        Ok(())
    }

    /// Completes the requests before the one that a response answers. The peer executes requests in
    /// order, so it has executed these. Later acknowledgements may have completed them already.
    pub(super) fn acknowledge_through(&mut self, common: &mut Common, low: u32) {
        // The error says that the number is too old or impossible. The caller finds the latter: it
        // awaits no response with this number.
        let _ = self.acknowledge(common, low);
    }

    /// Returns the number of the request whose response comes next, and how many bytes of it are
    /// missing, if its sequence number is this one.
    pub(super) fn awaited_response(&self, low: u32) -> Option<(u64, u64)> {
        let acked = self.link.tcp()?.outbound.acked;
        self.initiator.awaited_response(extended(low, acked))
    }

    /// Handles an RNR NAK: the request and those behind it are sent again, after the time that the
    /// receiver asks for, unless the permitted number of retries is used up.
    pub(super) fn receiver_not_ready(
        &mut self,
        common: &mut Common,
        low: u32,
        timer: u8,
    ) -> Result<(), InvalidMessage> {
        self.acknowledge(common, low)?;
        let Some(link) = self.link.tcp_mut() else {
            return Ok(());
        };
        let sequence = extended(low, link.outbound.acked);
        let is_writing = link.outbound.is_writing_request();
        let is_sent =
            sequence < link.outbound.next || (sequence == link.outbound.next && is_writing);
        // One NAK answers one transmission.
        if !is_sent || self.initiator.retry.rnr_until.is_some() {
            return Err(InvalidMessage);
        }
        let rnr_retry = self.core.attributes.rnr_retry;
        let begun =
            self.initiator
                .retry
                .begin_pause(&mut common.counters, rnr_retry, timer, hooks::now);
        if let Err(status) = begun {
            self.fail(common, Some(status));
            return Ok(());
        }
        link.outbound.rewind_to = Some(sequence);
        self.rewind();
        self.await_progress(common);
        Ok(())
    }

    /// Goes back to the request that found no receive, once no request is being written.
    pub(super) fn rewind(&mut self) {
        let Some(link) = self.link.tcp_mut() else {
            return;
        };
        let outbound = &mut link.outbound;
        let Some(sequence) = outbound.rewind_to else {
            return;
        };
        if outbound.is_writing_request() {
            return;
        }
        outbound.rewind_to = None;
        outbound.next = sequence;
        self.initiator.go_back(sequence);
    }

    /// Handles a fatal NAK.
    pub(super) fn refused(
        &mut self,
        common: &mut Common,
        low: u32,
        status: u8,
    ) -> Result<(), InvalidMessage> {
        // Later messages may have acknowledged the READ already, although it is refused now.
        match self.awaited_response(low) {
            Some(_) => self.acknowledge_through(common, low),
            None => self.acknowledge(common, low)?,
        }
        let status = CompletionStatus::from_code(u32::from(status));
        let is_of_responder = matches!(
            status,
            CompletionStatus::RemoteInvalidRequest
                | CompletionStatus::RemoteAccess
                | CompletionStatus::RemoteOperation
        );
        if !is_of_responder {
            return Err(InvalidMessage);
        }
        self.fail(common, Some(status));
        Ok(())
    }

    /// Ends the link's connection, or records that it has ended.
    pub(super) fn end_link(&mut self, common: &mut Common) {
        let index = self.core.index;
        if let Some(link) = self.link.tcp_mut()
            && !link.has_ended()
        {
            link.phase = Phase::Ended;
            common.tcp.remove(link, index);
            link.stream.shut_down();
            common.note_tcp_links();
        }
    }
}
