//! Executes the peer's requests over TCP. [`Responder`] has the rules.
//!
//! A request is checked when its header has arrived, and its receive is taken then. The memory that its
//! payload goes to is checked again at each later part, because it may be deregistered in the meantime.

use crate::hooks;
use crate::provider::soft::context::completion_queues::Completion;
use crate::provider::soft::context::link::{Link, Tcp};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::responder::{Arrived, Placement, Rejection, Responder};
use crate::provider::soft::context::state::Common;
use crate::provider::soft::context::tcp_link::{Response, Target};
use crate::provider::soft::wire::header::{Header, Request};
use crate::provider::work::Sge;
use crate::types::{Access, CompletionStatus, RemoteOperation};

impl SoftQueuePair {
    /// Begins to execute a request.
    pub(super) fn begin_request(
        &mut self,
        common: &mut Common,
        header: &Header,
        request: &Request,
    ) -> Result<Placement, Rejection> {
        let Link::Tcp(Tcp {
            connection: Some(link),
            ..
        }) = &mut self.link
        else {
            return Err(Rejection::Invalid);
        };
        let responses = &mut link.outbound.responses;
        let len = match request.operation {
            RemoteOperation::Read(_) => request.read_len,
            _ => header.len,
        };
        // The peer's own count; and the responses that this side keeps for it, whatever it counts.
        let kept = u8::try_from(responses.len()).unwrap_or(u8::MAX);
        let mut responder = Responder::new(
            &self.core,
            &mut self.receives,
            &mut common.memory,
            &mut common.shared_receive_queues,
        );
        let mut placement = responder.admit(&Arrived {
            operation: &request.operation,
            len: len.into(),
            outstanding: request.outstanding.max(kept.saturating_add(1)),
            is_solicited: request.is_solicited,
        })?;
        let sequence = header.sequence;
        match placement {
            Placement::Read(memory) if len > 0 => {
                responder.permitted(memory, len.into(), Access::REMOTE_READ)?;
                responses.push_back(Response::Read {
                    sequence,
                    memory,
                    len,
                    sent: 0,
                });
            }
            Placement::Atomic(operation) => {
                let was = responder.operate(&operation)?.to_ne_bytes();
                responses.push_back(Response::Atomic { sequence, was });
            }
            Placement::Receive(_) | Placement::Write(..) if len > 0 => {
                responder.place(&placement, &mut [Sge::NONE], 0, len.into())?;
            }
            Placement::Receive(_) | Placement::Write(..) | Placement::Read(_) => {}
        }
        if responder.take(&mut placement) {
            common.raise_limit_event(self.core.srq);
        }
        Ok(placement)
    }

    /// Ends a request whose payload has arrived completely.
    pub(super) fn finish_placed(
        &mut self,
        common: &mut Common,
        placement: Placement,
        len: u32,
    ) -> Result<(), Rejection> {
        let shared = &mut common.shared_receive_queues;
        let done = Responder::new(&self.core, &mut self.receives, &mut common.memory, shared)
            .finish(placement, len)?;
        self.apply(common, done);
        common.counters.receives += 1;
        self.communication_established(common);
        Ok(())
    }

    /// Flushes the receive of the message that was arriving when the queue pair failed.
    pub(crate) fn flush_arriving(&mut self, common: &mut Common) {
        let link = self.link.tcp_mut();
        let arriving = link.and_then(|link| link.inbound.arriving.take());
        if let Some(Target::Request(placement)) = arriving.map(|arriving| arriving.target)
            && let Some(wr_id) = placement.taken_receive()
        {
            let flushed = CompletionStatus::WorkRequestFlushed;
            let completion = Completion::of_receive(wr_id, self.core.number, flushed);
            common.complete(self.core.recv_cq, completion);
        }
    }

    /// Fails the queue pair, and keeps its connection until the peer has read what was sent on it.
    pub(super) fn fail_gently(&mut self, common: &mut Common) {
        self.flush_arriving(common);
        if let Link::Tcp(tcp) = &mut self.link
            && let Some(link) = tcp.connection.take()
        {
            common.tcp.remove(&link, self.core.index);
            if let Some(socket) = link.stream.into_socket() {
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
        if let Some(link) = self.link.tcp_mut() {
            let refusal = Response::Refused { sequence, status };
            link.outbound.responses.push_back(refusal);
        }
        self.write_link(common, false);
        self.fail_gently(common);
    }
}
