//! Sends of unreliable queue pairs. The thread that posts a send also carries it out.
//!
//! Two contexts take part in a message, but a thread is inside only one context at a time. So a
//! send has two steps. Inside its own context, it is checked, its bytes are gathered and it
//! completes, as if the bytes had left through a port. Then the thread leaves the context and
//! [delivers](super::deliver) the gathered bytes. There is no acknowledgement, so nothing remains
//! to wait for.

use super::datagram::interface_id;
use super::message::{Message, Route};
use crate::provider::limits::WrongValue;
use crate::provider::soft::capacities::MAX_MESSAGE_LEN;
use crate::provider::soft::context::completion_queues::Completion;
use crate::provider::soft::context::core::Core;
use crate::provider::soft::context::initiator::Initiator;
use crate::provider::soft::context::memory::Memory;
use crate::provider::soft::context::waiting::{Body, Waiting, WaitingSend};
use crate::provider::soft::shared::copy::gather;
use crate::provider::work::{Operation, Sge, Work};
use crate::types::{
    Access, Attribute, CompletionStatus, Gid, Mtu, PostError, PostErrorReason, QpAttributes,
    QpState, QpType, RemoteOperation,
};

/// Length in bytes of the longest datagram: one packet of the port's MTU.
const MAX_DATAGRAM_LEN: u64 = Mtu::Bytes4096.bytes() as u64;
/// Bytes gathered before they are delivered. A list may name the same memory any number of times,
/// so its total length could exceed the available memory.
const BATCH_LEN: usize = 1 << 20;
/// Requests carried out before other threads may enter the context.
const BATCH: usize = 64;

impl Body {
    fn len(&self) -> u64 {
        match self {
            Self::Elements(elements) => Sge::total_len(elements),
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

/// Result of a batch of sends.
pub(crate) struct Started {
    pub(crate) messages: Vec<Message>,
    /// True if more sends are to be carried out.
    pub(crate) has_more: bool,
}

impl Core {
    /// Rejects a remote address that an unreliable connection cannot reach.
    pub(crate) fn check_reach(
        &self,
        attributes: &QpAttributes,
        own: Gid,
    ) -> Result<(), WrongValue> {
        match attributes.address {
            Some(address) if self.qp_type == QpType::UnreliableConnection && address.gid != own => {
                Err(WrongValue {
                    attribute: Attribute::Address,
                    value: interface_id(address.gid),
                    reason: "gid: another process's; UC on the software device reaches queue pairs of its own process",
                })
            }
            _ => Ok(()),
        }
    }
}

/// What carries out the sends of an unreliable queue pair: its own parts, and the memory of its context.
pub(crate) struct UnreliableSends<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) initiator: &'a mut Initiator,
    pub(crate) waiting: &'a mut Waiting,
    pub(crate) memory: &'a mut Memory,
}

impl UnreliableSends<'_> {
    /// Puts a list of requests into the send queue. [`start`](Self::start) carries them out. In SQE and
    /// ERR, the caller flushes them.
    pub(crate) fn post(&mut self, list: &[Work], elements: &[Sge]) -> Result<(), PostError> {
        list.iter().enumerate().try_for_each(|(taken, work)| {
            self.take(work, elements)
                .map_err(|reason| PostError { taken, reason })
        })
    }

    /// Carries out a batch of the waiting requests, if the state allows sends to begin. `complete` is
    /// given their completions, and says whether the completion queue takes more.
    pub(crate) fn start(&mut self, mut complete: impl FnMut(Completion) -> bool) -> Started {
        let mut messages = Vec::new();
        let (mut len, mut has_room) = (0, true);
        for _ in 0..BATCH {
            if self.core.state != QpState::Rts || len >= BATCH_LEN || !has_room {
                break;
            }
            let Some(waiting) = self.waiting.pop_front() else {
                break;
            };
            let completion = match self.carry_out(&waiting) {
                Ok(message) => {
                    if let Some(message) = message {
                        len += message.payload.len();
                        messages.push(message);
                    }
                    let opcode = waiting.work.operation.opcode();
                    self.initiator.complete_oldest(self.core, opcode, 0)
                }
                Err(status) => {
                    // The queue pair goes only to SQE: it continues to receive.
                    self.core.state = QpState::Sqe;
                    self.initiator.fail_oldest(self.core, status)
                }
            };
            has_room = completion.is_none_or(&mut complete);
        }
        Started {
            messages,
            has_more: self.core.state == QpState::Rts && !self.waiting.is_empty(),
        }
    }

    /// Does this side's part of a request. An error is the status that the request completes with.
    fn carry_out(&mut self, waiting: &WaitingSend) -> Result<Option<Message>, CompletionStatus> {
        let (domain, from) = (self.core.domain, self.core.number);
        let work = &waiting.work;
        let operation = match work.operation {
            Operation::Remote(
                operation @ (RemoteOperation::Send
                | RemoteOperation::SendWithImm(_)
                | RemoteOperation::Write(_)
                | RemoteOperation::WriteWithImm(..)),
            ) => operation,
            Operation::BindWindow(binding) => {
                self.memory.bind_window(&binding, domain, from)?;
                return Ok(None);
            }
            // The layer above rejects these operations for unreliable queue pairs.
            _ => return Err(CompletionStatus::LocalQpOperation),
        };
        let (to, route, most) = self
            .destination_of(work)
            .ok_or(CompletionStatus::LocalQpOperation)?;
        if waiting.body.len() > most {
            return Err(CompletionStatus::LocalLength);
        }
        let payload = match &waiting.body {
            Body::Bytes(bytes) => bytes.clone(),
            Body::Elements(elements) => {
                self.memory
                    .regions
                    .check_all(elements, domain, Access::NONE)?;
                // SAFETY: each element was just checked to lie in a region of this context, which
                // stays registered while the context's lock is held. The device may read the bytes
                // until the request completes, which happens after this call.
                unsafe { gather(elements) }.ok_or(CompletionStatus::LocalQpOperation)?
            }
        };
        Ok(Some(Message {
            from,
            to,
            route,
            operation,
            solicited: work.solicited,
            payload,
        }))
    }

    /// Puts a request into the send queue, and stores its details in `waiting`.
    fn take(&mut self, work: &Work, elements: &[Sge]) -> Result<(), PostErrorReason> {
        let state = self.core.state;
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostErrorReason::State { state });
        }
        if let Some(destination) = work.destination
            && destination.address.of_soft().is_none()
        {
            let object = "the address handle";
            return Err(PostErrorReason::ForeignObject { object });
        }
        if !self.initiator.sends.make_room() {
            let capacity = self.initiator.sends.capacity();
            return Err(PostErrorReason::QueueFull { capacity });
        }
        self.initiator
            .sends
            .add(work.wr_id, work.signaled || self.core.sq_sig_all);
        if matches!(state, QpState::Sqe | QpState::Error) {
            // The caller is about to flush it.
            return Ok(());
        }
        let elements = work.elements(elements);
        let body = if work.inline {
            // SAFETY: this runs inside the call that posts the request, and until that call returns
            // the inline bytes belong to the caller, which lets them be read.
            let bytes = unsafe { gather(elements) };
            // A few hundred bytes at most: see `max_inline_data`.
            Body::Bytes(bytes.unwrap_or_default())
        } else {
            Body::Elements(elements.into())
        };
        self.waiting.push_back(WaitingSend { work: *work, body });
        Ok(())
    }

    /// Returns a message's destination, how it finds its receiver, and its maximum length in bytes.
    fn destination_of(&self, work: &Work) -> Option<(crate::types::QpNum, Route, u64)> {
        match work.destination {
            Some(destination) => {
                let address = destination.address.of_soft()?;
                // The highest bit selects the queue pair's own Q_Key.
                let qkey = if destination.qkey >> 31 == 0 {
                    destination.qkey
                } else {
                    self.core.attributes.qkey?
                };
                let route = Route::Datagram { address, qkey };
                Some((destination.qp_num, route, MAX_DATAGRAM_LEN))
            }
            None => {
                let to = self.core.attributes.dest_qp_num?;
                Some((to, Route::Connected, MAX_MESSAGE_LEN as u64))
            }
        }
    }
}
