//! What the answers of a peer over TCP mean for the requests of this side.

use crate::hooks;
use crate::provider::soft::context::core::Core;
use crate::provider::soft::context::initiator::Initiator;
use crate::provider::soft::context::tcp_link::{Target, TcpLink, extended};
use crate::provider::soft::tcp::read::InvalidMessage;
use crate::provider::soft::wire::header::Header;
use crate::types::{CompletionStatus, DeviceCounters};

/// The requesting half of a queue pair, and its connection. The caller completes what is acknowledged
/// afterwards.
pub(super) struct Answers<'a> {
    pub(super) core: &'a Core,
    pub(super) initiator: &'a mut Initiator,
    pub(super) link: &'a mut TcpLink,
}

impl Answers<'_> {
    /// Takes the acknowledgement of the requests before the one with this sequence number. Returns true
    /// if it is news.
    #[inline]
    pub(super) fn acknowledge(&mut self, low: u32) -> Result<bool, InvalidMessage> {
        let is_news = self.link.take_ack(low)?;
        if is_news {
            self.initiator.retry.end_retries();
            self.initiator.retry.end_ignorance();
        }
        Ok(is_news)
    }

    /// Has the payload of a response taken to the request that awaits it.
    pub(super) fn response(&mut self, header: &Header) -> Result<(), InvalidMessage> {
        // The peer executes requests in order, so it has executed those before this one. Later
        // acknowledgements may have said so already: then the number is too old.
        let _ = self.acknowledge(header.sequence);
        let (number, missing) = self.awaited(header.sequence).ok_or(InvalidMessage)?;
        if header.len == 0 || u64::from(header.len) > missing {
            return Err(InvalidMessage);
        }
        let target = Target::Response { number };
        self.link.expect_payload(header.len, target);
        self.acknowledge(header.acked)?;
        Ok(())
    }

    /// Returns the number of the request whose response comes next, and how many bytes of it are
    /// missing, if its sequence number is this one.
    fn awaited(&self, low: u32) -> Option<(u64, u64)> {
        let unit = extended(low, self.link.outbound.acked);
        self.initiator.awaited_response(unit)
    }

    /// Handles an RNR NAK: the request and those behind it are sent again, after the time that the
    /// receiver asks for. Returns the status of the request if the permitted number of retries is used
    /// up.
    pub(super) fn not_ready(
        &mut self,
        low: u32,
        timer: u8,
        counters: &mut DeviceCounters,
    ) -> Result<Option<CompletionStatus>, InvalidMessage> {
        self.acknowledge(low)?;
        let sequence = self.link.sent(low)?;
        let retry = &mut self.initiator.retry;
        // One NAK answers one transmission.
        if retry.rnr_until.is_some() {
            return Err(InvalidMessage);
        }
        let rnr_retry = self.core.attributes.rnr_retry;
        if let Err(status) = retry.begin_pause(counters, rnr_retry, timer, hooks::now) {
            return Ok(Some(status));
        }
        self.link.outbound.rewind_to = Some(sequence);
        // Otherwise once the request is whole that is being written.
        if let Some(unit) = self.link.take_rewind() {
            self.initiator.go_back(unit);
        }
        Ok(None)
    }

    /// Handles a fatal NAK. Returns the status of the request.
    pub(super) fn refused(
        &mut self,
        low: u32,
        status: u8,
    ) -> Result<CompletionStatus, InvalidMessage> {
        let acknowledged = self.acknowledge(low);
        // Later messages may have acknowledged a READ already, although it is refused now.
        if self.awaited(low).is_none() {
            acknowledged?;
        }
        CompletionStatus::of_refusal(status).ok_or(InvalidMessage)
    }
}
