//! Checks and carries out the peer's requests, in the order of the specification, as
//! [`execute`](crate::provider::soft::reliable::execute) does for those in a ring.
//!
//! A request is checked when its header has arrived. The memory that its payload goes to is checked
//! again at each later part, because it may be deregistered in the meantime.

use crate::hooks;
use crate::provider::soft::context::completion_queues::Completion;
use crate::provider::soft::context::element_list::ElementList;
use crate::provider::soft::context::link::Link;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::receive_queue::ReceiveQueue;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::context::tcp_link::{Response, TakenReceive, Target};
use crate::provider::soft::reliable::rejection::{LocalReport, Rejection};
use crate::provider::soft::wire::header::{Header, Request};
use crate::provider::work::Sge;
use crate::types::{
    Access, CompletionOpcode, CompletionStatus, Extras, RemoteKey, RemoteMemory, RemoteOperation,
    RnrTimer, WrId,
};

impl SoftQueuePair {
    /// Begins to execute a request. Returns where its payload goes.
    pub(super) fn begin_request_over_tcp(
        &mut self,
        common: &mut Common,
        header: &Header,
        request: &Request,
    ) -> Result<Target, Rejection> {
        // The peer's own count; and the responses that this side keeps for it, whatever it counts.
        let kept = u8::try_from(self.kept_responses()).unwrap_or(u8::MAX);
        let outstanding = request.outstanding.max(kept.saturating_add(1));
        self.check_request(&request.operation, outstanding)?;
        let sequence = header.sequence;
        let is_solicited = request.is_solicited;
        match request.operation {
            RemoteOperation::Send => self.begin_send(common, header.len, None, None, is_solicited),
            RemoteOperation::SendWithImm(imm) => {
                self.begin_send(common, header.len, Some(imm), None, is_solicited)
            }
            RemoteOperation::SendWithInvalidate(key) => {
                self.begin_send(common, header.len, None, Some(key), is_solicited)
            }
            RemoteOperation::Write(memory) => {
                self.check_write(common, memory, header.len)?;
                let notice = None;
                Ok(Target::Memory { memory, notice })
            }
            RemoteOperation::WriteWithImm(memory, imm) => {
                self.need_receive(common)?;
                self.check_write(common, memory, header.len)?;
                let wr_id = self.remove_receive(common).ok_or(Rejection::NotYet)?;
                let notice = Some((wr_id, imm, is_solicited));
                Ok(Target::Memory { memory, notice })
            }
            RemoteOperation::Read(memory) => {
                let len = request.read_len;
                if len > 0 {
                    self.permitted(common, memory, len.into(), Access::REMOTE_READ)?;
                    self.push_response(Response::Read {
                        sequence,
                        memory,
                        len,
                        sent: 0,
                    });
                }
                Ok(Target::Nowhere)
            }
            RemoteOperation::CompareAndSwap { remote, .. }
            | RemoteOperation::FetchAndAdd { remote, .. } => {
                self.begin_atomic(common, sequence, remote, &request.operation)
            }
        }
    }

    /// Returns the number of responses that the peer has not got.
    fn kept_responses(&self) -> usize {
        let responses = self.link.tcp().map(|link| &link.outbound.responses);
        responses.map_or(0, |responses| responses.len())
    }

    fn push_response(&mut self, response: Response) {
        if let Some(link) = self.link.tcp_mut() {
            link.outbound.responses.push_back(response);
        }
    }

    fn begin_send(
        &mut self,
        common: &mut Common,
        len: u32,
        imm: Option<u32>,
        invalidate: Option<RemoteKey>,
        is_solicited: bool,
    ) -> Result<Target, Rejection> {
        self.need_receive(common)?;
        let shared = &common.shared_receive_queues;
        let queue = ReceiveQueue::seen_by(shared, self.core.srq, &self.receives);
        let mut only = [Sge::NONE];
        let elements = queue.next_elements(&mut only).ok_or(Rejection::NotYet)?;
        if u64::from(len) > Sge::total_len(elements) {
            let status = CompletionStatus::RemoteInvalidRequest;
            let report = LocalReport::Receive(CompletionStatus::LocalLength);
            return Err(Rejection::Status(status, report));
        }
        if len > 0 {
            let needs = Access::LOCAL_WRITE;
            let checked = common
                .memory
                .regions
                .check_all(elements, self.core.domain, needs);
            checked.map_err(|status| {
                Rejection::Status(
                    CompletionStatus::RemoteOperation,
                    LocalReport::Receive(status),
                )
            })?;
        }
        let elements = ElementList::new(elements);
        let wr_id = self.remove_receive(common).ok_or(Rejection::NotYet)?;
        Ok(Target::Receive(TakenReceive {
            wr_id,
            elements,
            data: imm.or(invalidate.map(|key| key.0)),
            invalidates: invalidate.is_some(),
            is_solicited,
        }))
    }

    /// Takes the next receive out of its queue, without completing it.
    fn remove_receive(&mut self, common: &mut Common) -> Option<WrId> {
        let shared = &mut common.shared_receive_queues;
        let queue = ReceiveQueue::of(shared, self.core.srq, &mut self.receives);
        let wr_id = queue.next()?.wr_id;
        if queue.consume() {
            common.raise_limit_event(self.core.srq);
        }
        Some(wr_id)
    }

    fn check_write(
        &self,
        common: &Common,
        memory: RemoteMemory,
        len: u32,
    ) -> Result<(), Rejection> {
        if len > 0 {
            self.permitted(common, memory, len.into(), Access::REMOTE_WRITE)?;
        }
        Ok(())
    }

    fn begin_atomic(
        &mut self,
        common: &mut Common,
        sequence: u32,
        memory: RemoteMemory,
        operation: &RemoteOperation,
    ) -> Result<Target, Rejection> {
        let was = self.operate(common, memory, operation)?.to_ne_bytes();
        self.push_response(Response::Atomic { sequence, was });
        Ok(Target::Nowhere)
    }

    /// Ends a request whose payload has arrived completely.
    pub(super) fn finish_request_over_tcp(
        &mut self,
        common: &mut Common,
        len: u32,
        target: Target,
    ) -> Result<(), Rejection> {
        let success = CompletionStatus::Success;
        match target {
            Target::Receive(receive) => {
                let mut extras = if receive.is_solicited {
                    Extras::SOLICITED
                } else {
                    0
                };
                if let Some(data) = receive.data {
                    if receive.invalidates {
                        let key = RemoteKey(data);
                        let done =
                            common
                                .memory
                                .invalidate(key, self.core.domain, self.core.number);
                        if let Err(status) = done {
                            let failed = CompletionStatus::LocalAccess;
                            let report = LocalReport::Taken(receive.wr_id, failed);
                            return Err(Rejection::Status(status, report));
                        }
                        extras |= Extras::INVALIDATED;
                    } else {
                        extras |= Extras::IMMEDIATE;
                    }
                }
                let data = receive.data.unwrap_or(0);
                self.complete_taken(common, receive.wr_id, success, len, data, extras);
            }
            Target::Memory {
                notice: Some((wr_id, imm, is_solicited)),
                ..
            } => {
                let solicited = if is_solicited { Extras::SOLICITED } else { 0 };
                let completion = Completion {
                    opcode: CompletionOpcode::ReceiveRdmaWithImm,
                    ..self.taken(wr_id, success, len, imm, solicited | Extras::IMMEDIATE)
                };
                common.complete(self.core.recv_cq, completion);
            }
            Target::Memory { notice: None, .. } | Target::Response { .. } | Target::Nowhere => {}
        }
        common.counters.receives += 1;
        self.communication_established(common);
        Ok(())
    }

    fn taken(
        &self,
        wr_id: WrId,
        status: CompletionStatus,
        byte_len: u32,
        data: u32,
        extras: u8,
    ) -> Completion {
        Completion {
            extras: Extras(extras),
            byte_len,
            data,
            ..Completion::of_receive(wr_id, self.core.number, status)
        }
    }

    /// Completes a receive that was taken out of its queue.
    pub(crate) fn complete_taken(
        &mut self,
        common: &mut Common,
        wr_id: WrId,
        status: CompletionStatus,
        byte_len: u32,
        data: u32,
        extras: u8,
    ) {
        let completion = self.taken(wr_id, status, byte_len, data, extras);
        common.complete(self.core.recv_cq, completion);
    }

    /// Flushes the receive of the message that was arriving when the queue pair failed.
    pub(crate) fn flush_arriving(&mut self, common: &mut Common) {
        let arriving = self
            .link
            .tcp_mut()
            .and_then(|link| link.inbound.arriving.take());
        let wr_id = match arriving.map(|arriving| arriving.target) {
            Some(Target::Receive(receive)) => receive.wr_id,
            Some(Target::Memory {
                notice: Some((wr_id, ..)),
                ..
            }) => wr_id,
            _ => return,
        };
        let status = CompletionStatus::WorkRequestFlushed;
        self.complete_taken(common, wr_id, status, 0, 0, 0);
    }

    /// Answers a request, for which no receive is posted, with an RNR NAK.
    pub(crate) fn send_rnr_nak_over_tcp(&mut self, common: &mut Common) {
        let timer = self
            .core
            .attributes
            .min_rnr_timer
            .unwrap_or(RnrTimer::LONGEST);
        if let Some(link) = self.link.tcp_mut() {
            link.inbound.is_refusing = true;
            let sequence = link.inbound.expected as u32;
            let nak = Response::ReceiverNotReady {
                sequence,
                timer: timer.code(),
            };
            // A peer that repeats the request without waiting for the answer gets one.
            if !link.outbound.responses.contains(&nak) {
                link.outbound.responses.push_back(nak);
            }
            common.counters.rnr_nak_sent += 1;
        }
    }

    /// Fails the queue pair, and keeps its connection until the peer has read what was sent on it.
    pub(super) fn fail_gently(&mut self, common: &mut Common) {
        self.flush_arriving(common);
        if let Link::Tcp(tcp) = &mut self.link
            && let Some(link) = tcp.connection.take()
        {
            common.tcp.remove(&link, self.core.index);
            if let Some(socket) = link.into_socket() {
                common.tcp.linger(socket, hooks::now());
            }
        }
        self.fail(common, None);
    }

    /// Sends a fatal NAK for a request, and fails the queue pair. What cannot be sent now is not sent.
    #[cold]
    pub(crate) fn refuse_over_tcp(
        &mut self,
        common: &mut Common,
        sequence: u32,
        status: CompletionStatus,
    ) {
        // The cast is lossless: status codes are below 256.
        let status = status.code() as u8;
        self.push_response(Response::Refused { sequence, status });
        self.write_link(common, false);
        self.fail_gently(common);
    }
}
