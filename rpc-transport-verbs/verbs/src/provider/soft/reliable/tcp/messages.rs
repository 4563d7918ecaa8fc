//! Handles the messages of a link: each as its header says.

use std::ptr::NonNull;

use super::acknowledge::InvalidMessage;
use super::receive::{End, LONG_PAYLOAD};
use crate::hooks::inject;
use crate::provider::soft::context::completion_queues::Completion;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::receive_queue::ReceiveQueue;
use crate::provider::soft::context::responder::{Done, LocalReport, Rejection, straight_receive};
use crate::provider::soft::context::state::Common;
use crate::provider::soft::context::tcp_link::{Arriving, Target, extended};
use crate::provider::soft::shared::copy::copy_message;
use crate::provider::soft::wire::header::{Header, Message, Request};
use crate::provider::soft::wire::hello::{ANSWER_LEN, Answer, GreetingError};
use crate::types::{AsyncEvent, CompletionStatus, Extras, RemoteOperation};

impl SoftQueuePair {
    /// Receives a message that has arrived completely, if everything about it is usual: a plain
    /// message that fits the next receive. Returns what follows it in `bytes`; or does nothing and
    /// returns `None`.
    pub(super) fn receive_straight_over_tcp<'a>(
        &mut self,
        common: &mut Common,
        header: &Header,
        bytes: &'a [u8],
    ) -> Option<&'a [u8]> {
        let Message::Request(request) = header.message else {
            return None;
        };
        let len = header.len as usize;
        let (payload, after) = bytes.split_at_checked(len)?;
        let link = self.link.tcp()?;
        let is_next = header.sequence == link.inbound.expected as u32;
        if request.operation != RemoteOperation::Send || !is_next || link.outbound.awaits_reads() {
            return None;
        }
        let shared = &mut common.shared_receive_queues;
        let queue = ReceiveQueue::of(shared, self.core.srq, &mut self.receives);
        let receive = straight_receive(&self.core, &common.memory, queue, len);
        let (place, receive) = receive.filter(|_| !inject!(ReceiverNotReady))?;
        if self.acknowledge(common, header.acked).is_err() {
            // The general way reports it.
            return None;
        }
        // SAFETY: the receive is at least as long as the payload, and was checked to lie in a region
        // of this context, which stays registered while the owner word is held. Its bytes belong to
        // the device until its completion is polled. The scratch memory is no registered memory.
        unsafe { copy_message(NonNull::from(payload).cast(), receive.addr, len) };
        let shared = &mut common.shared_receive_queues;
        let queue = ReceiveQueue::of(shared, self.core.srq, &mut self.receives);
        let solicited = if request.is_solicited {
            Extras::SOLICITED
        } else {
            0
        };
        let success = CompletionStatus::Success;
        let done = Done {
            reached_limit: queue.consume_at(place),
            completion: Some(Completion {
                extras: Extras(solicited),
                byte_len: header.len,
                ..Completion::of_receive(receive.wr_id, self.core.number, success)
            }),
        };
        self.apply(common, done);
        common.counters.receives += 1;
        self.communication_established(common);
        if let Some(link) = self.link.tcp_mut() {
            link.inbound.was_long = false;
            link.inbound.is_refusing = false;
            link.inbound.is_ack_requested |= request.is_ack_requested;
            link.inbound.expected += 1;
            common.tcp.owe_ack(self.core.index, link);
        }
        Some(after)
    }

    /// Handles the peer's answer to this side's hello.
    pub(super) fn handle_answer(
        &mut self,
        common: &mut Common,
        answer: &[u8; ANSWER_LEN],
    ) -> Result<(), End> {
        match Answer::parse(answer) {
            Ok(answer) if answer.is_accepted => {
                self.open_link(common, answer.expected_psn);
                return Ok(());
            }
            // There is no such queue pair.
            Ok(_) => {}
            Err(error @ GreetingError::Version(_)) => {
                log_limited!(warn, qp_num = %self.core.number, %error, "the peer refuses a link");
            }
            Err(error) => {
                log_limited!(warn, qp_num = %self.core.number, %error, "a link was not answered as a link");
                self.end_link(common);
                return Err(End::Ended);
            }
        }
        common.raise(AsyncEvent::QpFatal {
            qp_num: self.core.number,
        });
        self.fail(common, Some(CompletionStatus::RetryExceeded));
        Err(End::Ended)
    }

    pub(super) fn handle_header(
        &mut self,
        common: &mut Common,
        header: &Header,
        executed: &mut usize,
    ) -> Result<(), End> {
        let handled = match header.message {
            Message::Request(request) => {
                self.acknowledge(common, header.acked)
                    .map_err(|invalid| self.fail_over_tcp(common, invalid))?;
                return self.handle_request(common, header, &request, executed);
            }
            Message::Ack => self.acknowledge(common, header.acked),
            Message::Response => return self.handle_response(common, header),
            Message::ReceiverNotReady { timer } => {
                self.receiver_not_ready(common, header.sequence, timer)
            }
            Message::Refused { status } => self.refused(common, header.sequence, status),
        };
        handled.map_err(|invalid| self.fail_over_tcp(common, invalid))?;
        if self.link.tcp().is_none() {
            return Err(End::Ended);
        }
        Ok(())
    }

    fn handle_request(
        &mut self,
        common: &mut Common,
        header: &Header,
        request: &Request,
        executed: &mut usize,
    ) -> Result<(), End> {
        let Some(link) = self.link.tcp_mut() else {
            return Err(End::Ended);
        };
        let inbound = &mut link.inbound;
        let sequence = extended(header.sequence, inbound.expected);
        if sequence > inbound.expected && inbound.is_refusing {
            // Behind a request that found no receive: it will be sent again.
            self.expect_payload(header.len, Target::Nowhere);
            return Ok(());
        }
        if sequence != inbound.expected {
            return Err(self.reject_over_tcp(common, Rejection::Invalid));
        }
        inbound.is_refusing = false;
        inbound.is_ack_requested |= request.is_ack_requested;
        let outbound = &link.outbound;
        if outbound.awaits_reads() && !outbound.is_blocked && request.operation.may_change_memory()
        {
            // READs see memory as it was before the requests behind them, unless the peer reads so
            // slowly that their responses cannot be written: then only a fence would help.
            self.write_link(common, false);
            // A response may have been refused, because its key was revoked.
            if self.link.tcp().is_none_or(|link| link.has_ended()) {
                return Err(End::Ended);
            }
        }
        match self.begin_request(common, header, request) {
            Ok(placement) if header.len == 0 => {
                *executed += 1;
                self.finish_request(common, 0, placement)
            }
            Ok(placement) => {
                self.expect_payload(header.len, Target::Request(placement));
                Ok(())
            }
            Err(Rejection::NotReady) => {
                self.send_rnr_nak(common);
                self.expect_payload(header.len, Target::Nowhere);
                Ok(())
            }
            Err(rejection) => Err(self.reject_over_tcp(common, rejection)),
        }
    }

    fn expect_payload(&mut self, len: u32, target: Target) {
        if len > 0
            && let Some(link) = self.link.tcp_mut()
        {
            link.inbound.was_long = len >= LONG_PAYLOAD;
            link.inbound.arriving = Some(Arriving {
                len,
                arrived: 0,
                target,
            });
        }
    }

    fn handle_response(&mut self, common: &mut Common, header: &Header) -> Result<(), End> {
        // Every request before the one that is responded to was executed.
        self.acknowledge_through(common, header.sequence);
        let awaited = self.awaited_response(header.sequence);
        match awaited {
            Some((number, missing)) if header.len > 0 && u64::from(header.len) <= missing => {
                self.expect_payload(header.len, Target::Response { number });
            }
            _ => return Err(self.fail_over_tcp(common, InvalidMessage)),
        }
        let acknowledged = self.acknowledge(common, header.acked);
        acknowledged.map_err(|invalid| self.fail_over_tcp(common, invalid))
    }

    /// Ends the queue pair because of the peer's request, which is answered by a fatal NAK.
    #[cold]
    pub(super) fn reject_over_tcp(&mut self, common: &mut Common, rejection: Rejection) -> End {
        let sequence = self.link.tcp().map(|link| link.inbound.expected as u32);
        let sequence = sequence.unwrap_or_default();
        match rejection {
            Rejection::Status(status, report) => {
                if let LocalReport::Receive { is_taken: true, .. } = report
                    && let Some(link) = self.link.tcp_mut()
                {
                    // It completes now: nothing is left to be flushed.
                    link.inbound.arriving = None;
                }
                self.report(common, report);
                self.refuse_over_tcp(common, sequence, status);
            }
            Rejection::Invalid | Rejection::NotReady | Rejection::NotYet | Rejection::Lost => {
                self.fail_invalid_message(common);
            }
        }
        End::Ended
    }

    /// Ends the queue pair because the response to its oldest request cannot be stored.
    #[cold]
    pub(super) fn fail_response(&mut self, common: &mut Common, status: CompletionStatus) -> End {
        self.complete_acknowledged(common);
        self.complete_oldest_send(common, status);
        self.fail_from_here(common, None);
        End::Ended
    }

    /// Ends the queue pair because of an answer of the peer to a request of this side.
    #[cold]
    fn fail_over_tcp(&mut self, common: &mut Common, _: InvalidMessage) -> End {
        log_limited!(warn, qp_num = %self.core.number, "a peer answered a request that was not sent, or in a way that no queue pair does: closing the connection");
        self.fail(common, Some(CompletionStatus::BadResponse));
        End::Ended
    }
}
