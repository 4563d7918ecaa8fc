//! Receives what a TCP connection brings: the peer's requests, and its answers to this side's.
//!
//! [`execute`](super::execute) has what is done with requests, [`answers`](super::answers) what the answers
//! mean.

use std::ptr::NonNull;

use rustix::io::Errno;

use super::answers::Answers;
use super::execute::{NoPlace, begin, copy_to, for_each_part_of, with_place};
use super::receive::report_limit;
use crate::hooks;
use crate::hooks::inject;
use crate::provider::soft::context::check::check_queue_pair;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::receive_queue::ReceiveQueue;
use crate::provider::soft::context::responder::{
    LocalReport, Place, Placement, Rejection, Responder, finish_straight, straight_receive,
};
use crate::provider::soft::context::state::Common;
use crate::provider::soft::context::tcp_link::{Arriving, Target, TcpLink, extended};
use crate::provider::soft::shared::copy::copy_message;
use crate::provider::soft::tcp::read::{Destination, Heard, InvalidMessage};
use crate::provider::soft::wire::header::{Header, Message, Request};
use crate::provider::soft::wire::hello::{ANSWER_LEN, Answer, GreetingError};
use crate::types::{AsyncEvent, CompletionStatus, RemoteOperation};

/// Maximum number of reads from a link before other links have their turn.
const READS: usize = 4;

/// Why nothing more is read from a link.
enum End {
    /// Nothing more has arrived.
    Empty,
    /// The queue pair or its link has ended.
    Ended,
}

impl SoftQueuePair {
    // ---- reads ----

    /// Reads what has arrived, executes it, and writes what the peer waits for. Returns the number of
    /// messages.
    pub(crate) fn read_link(&mut self, common: &mut Common) -> usize {
        let mut scratch = common.tcp.take_scratch();
        let mut executed = 0;
        let mut reads = 0;
        // Nothing else would tell of what the stream holds. It reads no more before that is taken, so
        // this ends.
        while (reads < READS || self.holds_unread())
            && self.core.receives_now()
            && self.read(common, &mut scratch, &mut executed).is_ok()
        {
            reads += 1;
        }
        common.tcp.put_scratch_back(scratch);
        self.write_after_read(common);
        check_queue_pair(self);
        executed
    }

    fn holds_unread(&self) -> bool {
        let link = self.link.tcp();
        link.is_some_and(|link| link.stream.holds_unread())
    }

    /// Makes one read. Succeeds if more may have arrived.
    fn read(
        &mut self,
        common: &mut Common,
        scratch: &mut [u8],
        executed: &mut usize,
    ) -> Result<(), End> {
        let mut destination = Destination::new();
        let arriving = self
            .link
            .tcp()
            .and_then(|link| link.inbound.arriving.as_ref());
        let left = arriving.map_or(0, Arriving::left);
        self.find_place(common, left, |place| {
            for_each_part_of(place, left, |start, len| destination.push(start, len));
        })?;
        let Some(link) = self.link.tcp_mut() else {
            return Err(End::Ended);
        };
        // SAFETY: the rest of the payload goes to memory that was just checked to be registered, and
        // stays so while the context's lock is held. Its bytes belong to the device, or are accessed by
        // the application only through atomics or raw copies.
        let filled = match unsafe { link.fill(&mut destination, scratch) } {
            Ok(Some(filled)) => filled,
            Err(Errno::INTR) => return Ok(()),
            Err(Errno::AGAIN) => return Err(End::Empty),
            ended => {
                if let Err(error) = ended {
                    tracing::debug!(%error, qp_num = %self.core.number, "a link cannot be read from");
                }
                self.end_link(common);
                return Err(End::Ended);
            }
        };
        common.tcp.moved += filled.len;
        if filled.direct > 0 {
            self.advance(common, filled.direct, executed)?;
        }
        self.take_messages(common, &scratch[..filled.in_scratch], executed)?;
        if filled.is_more_likely {
            Ok(())
        } else {
            Err(End::Empty)
        }
    }

    /// Handles what is in `bytes`, and keeps what is not a whole header.
    fn take_messages(
        &mut self,
        common: &mut Common,
        bytes: &[u8],
        executed: &mut usize,
    ) -> Result<(), End> {
        let mut rest = bytes;
        if let Some(link) = self.link.tcp_mut() {
            link.inbound.stash_len = 0;
        }
        while !rest.is_empty() {
            let Some(link) = self.link.tcp() else {
                return Err(End::Ended);
            };
            let heard = match link.next_heard(rest) {
                Ok(None) => break,
                Ok(Some((heard, after))) => {
                    rest = after;
                    heard
                }
                Err(_) => return Err(self.reject_request(common, Rejection::Invalid)),
            };
            match heard {
                Heard::Answer(answer) => self.handle_answer(common, answer)?,
                Heard::Payload(payload) => {
                    // SAFETY: the place was just checked to be registered memory, which stays so while
                    // the context's lock is held, and has room: the payload is at most what is left of a
                    // message that was admitted, or of a response that is awaited. Its bytes belong to
                    // the device, or are accessed by the application only as `copy_shared` permits.
                    self.find_place(common, payload.len(), |place| unsafe {
                        copy_to(place, payload);
                    })?;
                    self.advance(common, payload.len(), executed)?;
                }
                Heard::Message(header) => {
                    if let Some(after) = self.take_straight(common, &header, rest) {
                        rest = after;
                        *executed += 1;
                    } else {
                        self.handle_header(common, &header, executed)?;
                    }
                }
            }
        }
        if let Some(link) = self.link.tcp_mut() {
            link.keep(rest);
        }
        Ok(())
    }

    // ---- payloads ----

    /// Finds where the next `len` bytes of the payload that is arriving go, if they go anywhere, after a
    /// check of that memory.
    fn find_place(
        &mut self,
        common: &mut Common,
        len: usize,
        found: impl FnOnce(Place<'_>),
    ) -> Result<(), End> {
        let link = self.link.tcp();
        let Some(arriving) = link.and_then(|link| link.inbound.arriving.as_ref()) else {
            return Ok(());
        };
        let (memory, shared) = (&mut common.memory, &mut common.shared_receive_queues);
        let responder = Responder::new(&self.core, &mut self.receives, memory, shared);
        let sends = &self.initiator.sends;
        match with_place(arriving, &responder, sends, len, found) {
            Ok(()) => Ok(()),
            Err(NoPlace::Request(rejection)) => Err(self.reject_request(common, rejection)),
            Err(NoPlace::Response(status)) => {
                // The response to the oldest request cannot be stored.
                self.complete_acknowledged(common);
                self.complete_oldest(common, status);
                self.fail_from_here(common, None);
                Err(End::Ended)
            }
        }
    }

    /// Records that bytes of the payload have arrived at their destination.
    fn advance(
        &mut self,
        common: &mut Common,
        len: usize,
        executed: &mut usize,
    ) -> Result<(), End> {
        let Some(link) = self.link.tcp_mut() else {
            return Err(End::Ended);
        };
        self.initiator.retry.end_ignorance();
        let arriving = link.inbound.arriving.as_ref();
        if let Some(Target::Response { number }) = arriving.map(|arriving| &arriving.target)
            && let Some(send) = self.initiator.sends.general_at_mut(*number)
        {
            send.received += len as u64;
        }
        let Some(whole) = link.payload_arrived(len) else {
            return Ok(());
        };
        *executed += 1;
        match whole.target {
            Target::Nowhere => Ok(()),
            Target::Response { .. } => {
                self.complete_acknowledged(common);
                Ok(())
            }
            Target::Request(placement) => self.finish_request(common, whole.len, placement),
        }
    }

    // ---- requests of the peer ----

    /// Receives a message that has arrived completely, if everything about it is usual: a plain
    /// message that fits the next receive. Returns what follows it in `bytes`; or does nothing and
    /// returns `None`.
    fn take_straight<'a>(
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
        // The general way reports an error.
        if self.answers()?.acknowledge(header.acked).ok()? {
            self.complete_acknowledged(common);
        }
        // SAFETY: the receive is at least as long as the payload, and was checked to lie in a region
        // of this context, which stays registered while the context's lock is held. Its bytes belong to
        // the device until its completion is polled. The scratch memory is no registered memory.
        unsafe { copy_message(NonNull::from(payload).cast(), receive.addr, len) };
        let shared = &mut common.shared_receive_queues;
        let queue = ReceiveQueue::of(shared, self.core.srq, &mut self.receives);
        let (held, is_solicited) = ((place, receive.wr_id), request.is_solicited);
        let done = finish_straight(&self.core, queue, held, header.len, is_solicited);
        self.apply(common, done);
        common.counters.receives += 1;
        self.communication_established(common);
        if let Some(link) = self.link.tcp_mut() {
            link.inbound.was_long = false;
            link.inbound.is_refusing = false;
            link.inbound.is_ack_requested |= request.is_ack_requested;
            link.inbound.expected += 1;
            common.tcp.owe_ack(link);
        }
        Some(after)
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
            link.expect_payload(header.len, Target::Nowhere);
            return Ok(());
        }
        if sequence != inbound.expected {
            return Err(self.reject_request(common, Rejection::Invalid));
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
        let Some(link) = self.link.tcp_mut() else {
            return Err(End::Ended);
        };
        let (memory, shared) = (&mut common.memory, &mut common.shared_receive_queues);
        let mut responder = Responder::new(&self.core, &mut self.receives, memory, shared);
        match begin(
            &mut responder,
            &mut link.outbound.responses,
            header,
            request,
        ) {
            Ok((placement, reached_limit)) => {
                if reached_limit {
                    report_limit(common, self.core.srq);
                }
                if header.len == 0 {
                    *executed += 1;
                    return self.finish_request(common, 0, placement);
                }
                link.expect_payload(header.len, Target::Request(placement));
                Ok(())
            }
            Err(Rejection::NotReady) => {
                link.expect_payload(header.len, Target::Nowhere);
                self.send_rnr_nak(common);
                Ok(())
            }
            Err(rejection) => Err(self.reject_request(common, rejection)),
        }
    }

    /// Ends a request whose payload has arrived completely.
    fn finish_request(
        &mut self,
        common: &mut Common,
        len: u32,
        placement: Placement,
    ) -> Result<(), End> {
        let shared = &mut common.shared_receive_queues;
        let finished = Responder::new(&self.core, &mut self.receives, &mut common.memory, shared)
            .finish(placement, len);
        let done = finished.map_err(|rejection| self.reject_request(common, rejection))?;
        self.apply(common, done);
        common.counters.receives += 1;
        self.communication_established(common);
        if let Some(link) = self.link.tcp_mut() {
            link.inbound.expected += 1;
            common.tcp.owe_ack(link);
        }
        Ok(())
    }

    /// Refuses a request of the peer, which ends the queue pair.
    #[cold]
    fn reject_request(&mut self, common: &mut Common, rejection: Rejection) -> End {
        if let Rejection::Status(_, LocalReport::Receive { is_taken: true, .. }) = &rejection
            && let Some(link) = self.link.tcp_mut()
        {
            // Its receive completes now: nothing is left to be flushed.
            link.inbound.arriving = None;
        }
        self.reject(common, rejection);
        End::Ended
    }

    // ---- answers of the peer ----

    /// Handles the peer's answer to this side's hello.
    fn handle_answer(&mut self, common: &mut Common, answer: &[u8; ANSWER_LEN]) -> Result<(), End> {
        match Answer::parse(answer) {
            Ok(answer) if answer.is_accepted => {
                self.open_link(answer.expected_psn);
                self.resume(common);
                // A record layer that seals nothing has ended it.
                let has_ended = self.link.tcp().is_none_or(TcpLink::has_ended);
                return if has_ended { Err(End::Ended) } else { Ok(()) };
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
        common.events.raise(AsyncEvent::QpFatal {
            qp_num: self.core.number,
        });
        self.fail(common, Some(CompletionStatus::RetryExceeded));
        Err(End::Ended)
    }

    /// Handles a message, whose payload is yet to come.
    fn handle_header(
        &mut self,
        common: &mut Common,
        header: &Header,
        executed: &mut usize,
    ) -> Result<(), End> {
        let Some(mut answers) = self.answers() else {
            return Err(End::Ended);
        };
        let heard = match header.message {
            Message::Request(_) | Message::Ack => answers.acknowledge(header.acked).map(|_| None),
            Message::Response => answers.response(header).map(|()| None),
            Message::ReceiverNotReady { timer } => {
                answers.not_ready(header.sequence, timer, &mut common.counters)
            }
            Message::Refused { status } => answers.refused(header.sequence, status).map(Some),
        };
        self.complete_acknowledged(common);
        let status = match heard {
            Ok(None) => {
                match header.message {
                    Message::Request(request) => {
                        return self.handle_request(common, header, &request, executed);
                    }
                    // Polls look when the pause is over.
                    Message::ReceiverNotReady { .. } => self.await_progress(common),
                    Message::Ack | Message::Response | Message::Refused { .. } => {}
                }
                return Ok(());
            }
            Ok(Some(status)) => status,
            Err(InvalidMessage) => {
                log_limited!(warn, qp_num = %self.core.number, "a peer answered a request that was not sent, or in a way that no queue pair does: closing the connection");
                CompletionStatus::BadResponse
            }
        };
        self.fail(common, Some(status));
        Err(End::Ended)
    }

    /// Lends the parts that the peer's answers concern.
    pub(super) fn answers(&mut self) -> Option<Answers<'_>> {
        Some(Answers {
            link: self.link.tcp_mut()?,
            core: &self.core,
            initiator: &mut self.initiator,
        })
    }

    // ---- what is written then ----

    /// Writes what the peer waits for after this side has read: responses, and requests that waited
    /// for the responses to earlier ones.
    fn write_after_read(&mut self, common: &mut Common) {
        let Some(link) = self.link.tcp_mut() else {
            return;
        };
        let was_blocked = link.stream.is_to_itself() && link.outbound.is_blocked;
        if was_blocked {
            common.tcp.set_blocked(link, false);
        }
        let has_requests = self.initiator.sends.started < self.initiator.sends.posted;
        let has_work = has_requests || link.has_unsent() || was_blocked;
        if has_work && !link.outbound.is_blocked {
            self.write_link(common, was_blocked);
        }
        if self.initiator.sends.local_failure.is_some() || self.initiator.draining.is_some() {
            self.process_acks(common, hooks::now);
        }
    }
}
