//! The half of a queue pair that executes its peer's requests, in the order of the specification
//! (InfiniBand Architecture Specification, volume 1, section 9.7): the request is permitted, a receive
//! is there if it needs one, the length fits, the keys permit it; then its bytes are moved, and it
//! completes.
//!
//! Who brings a request moves its bytes: a ring all at once, TCP as they come, and unreliable queue
//! pairs from a message that was gathered. [`admit`](Responder::admit) and
//! [`place`](Responder::place) say whether and where, [`finish`](Responder::finish) what follows.
//! Nothing here sends an answer, raises an event or fails a queue pair: the results say what is to be
//! done.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use slab::Slab;

use super::completion_queues::Completion;
use super::core::Core;
use super::element_list::ElementList;
use super::memory::{Memory, RemoteRequest};
use super::receive_queue::{ReceiveQueue, SharedReceives};
use crate::hooks::inject;
use crate::provider::work::{ReceiveWork, Sge};
use crate::types::{
    Access, CompletionOpcode, CompletionStatus, Extras, RemoteKey, RemoteMemory, RemoteOperation,
    WrId,
};

/// What executes a request: the queue pair, the memory of its context, and the queue that its receives
/// come from.
pub(crate) struct Responder<'a> {
    core: &'a Core,
    memory: &'a mut Memory,
    receives: &'a mut ReceiveQueue,
}

/// A request of the peer.
pub(crate) struct Arrived<'a> {
    pub(crate) operation: &'a RemoteOperation,
    /// The bytes that it moves: those of its payload, or those that a READ asks for.
    pub(crate) len: u64,
    /// The READs and atomics of the peer in flight, with this one.
    pub(crate) outstanding: u8,
    pub(crate) is_solicited: bool,
}

/// What a request that was admitted does.
#[derive(Debug)]
pub(crate) enum Placement {
    /// It fills a receive.
    Receive(Held),
    /// It writes to memory. With an immediate, it completes a receive as well.
    Write(RemoteMemory, Option<Held>),
    Read(RemoteMemory),
    Atomic(RemoteOperation),
}

/// The receive that a request completes.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) wr_id: WrId,
    /// Its elements, once it has left its queue: before the payload comes, over TCP. Otherwise it is
    /// the next of the queue until the request is finished.
    taken: Option<ElementList>,
    data: Data,
    is_solicited: bool,
}

/// What a message brings besides bytes.
#[derive(Clone, Copy, Debug)]
enum Data {
    Nothing,
    Immediate(u32),
    Invalidate(RemoteKey),
}

/// Where bytes of a request go.
pub(crate) enum Place<'a> {
    /// Into these elements, from this byte on.
    Elements(&'a [Sge], usize),
    At(NonNull<u8>),
}

/// What a request has led to, to be carried out in this order.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// The shared receive queue has reached its limit.
    pub(crate) reached_limit: bool,
    pub(crate) completion: Option<Completion>,
}

/// Reason for not executing a request.
pub(crate) enum Rejection {
    /// No receive is posted: an RNR NAK answers the request.
    NotReady,
    /// The request cannot be executed now and stays in its slot.
    NotYet,
    /// The sender has reclaimed the memory that the request names, so the request no longer exists.
    Lost,
    /// The request is malformed: no software device sends it.
    Invalid,
    /// The request fails: the status for the requester, and how this side reports it.
    Status(CompletionStatus, LocalReport),
}

/// How this side reports a failed request.
pub(crate) enum LocalReport {
    /// By the completion of the receive that the request was to complete.
    Receive {
        wr_id: WrId,
        /// The receive has left its queue.
        is_taken: bool,
        status: CompletionStatus,
    },
    /// By an asynchronous event.
    RequestError,
    AccessError,
}

impl<'a> Responder<'a> {
    /// Lends the parts that execute a request. `own` is the queue pair's own receive queue.
    #[inline(always)]
    pub(crate) fn new(
        core: &'a Core,
        own: &'a mut ReceiveQueue,
        memory: &'a mut Memory,
        shared: &'a mut Slab<SharedReceives>,
    ) -> Self {
        let receives = ReceiveQueue::of(shared, core.srq, own);
        Self {
            core,
            memory,
            receives,
        }
    }

    /// Returns what a request does, if the queue pair permits it, and if it fits the receive that it
    /// needs.
    pub(crate) fn admit(&self, arrived: &Arrived<'_>) -> Result<Placement, Rejection> {
        let operation = arrived.operation;
        let attributes = &self.core.attributes;
        let access = attributes.access.unwrap_or_default();
        let depth = attributes.max_dest_rd_atomic.unwrap_or(0);
        let is_too_many = operation.has_response() && arrived.outstanding > depth;
        if !access.contains(operation.needs()) || is_too_many {
            return Err(Rejection::Status(
                CompletionStatus::RemoteInvalidRequest,
                LocalReport::RequestError,
            ));
        }
        match *operation {
            RemoteOperation::Write(remote) => Ok(Placement::Write(remote, None)),
            RemoteOperation::WriteWithImm(remote, imm) => {
                let held = self.next_receive(Data::Immediate(imm), arrived.is_solicited)?;
                Ok(Placement::Write(remote, Some(held)))
            }
            RemoteOperation::Read(remote) => Ok(Placement::Read(remote)),
            RemoteOperation::CompareAndSwap { .. } | RemoteOperation::FetchAndAdd { .. } => {
                Ok(Placement::Atomic(*operation))
            }
            RemoteOperation::Send => self.admit_send(arrived, Data::Nothing),
            RemoteOperation::SendWithImm(imm) => self.admit_send(arrived, Data::Immediate(imm)),
            RemoteOperation::SendWithInvalidate(key) => {
                self.admit_send(arrived, Data::Invalidate(key))
            }
        }
    }

    fn admit_send(&self, arrived: &Arrived<'_>, data: Data) -> Result<Placement, Rejection> {
        let held = self.next_receive(data, arrived.is_solicited)?;
        let mut only = [Sge::NONE];
        if arrived.len > Sge::total_len(self.elements(&held, &mut only)) {
            return Err(Rejection::Status(
                CompletionStatus::RemoteInvalidRequest,
                held.report(CompletionStatus::LocalLength),
            ));
        }
        Ok(Placement::Receive(held))
    }

    fn next_receive(&self, data: Data, is_solicited: bool) -> Result<Held, Rejection> {
        let next = self.receives.next();
        // An unreliable queue pair has nobody to send a NAK to.
        let receive = next.filter(|_| !self.core.is_reliable() || !inject!(ReceiverNotReady));
        Ok(Held {
            wr_id: receive.ok_or(Rejection::NotReady)?.wr_id,
            taken: None,
            data,
            is_solicited,
        })
    }

    fn elements<'b>(&'b self, held: &'b Held, only: &'b mut [Sge; 1]) -> &'b [Sge] {
        match &held.taken {
            Some(elements) => elements.as_slice(),
            None => self.receives.next_elements(only).unwrap_or_default(),
        }
    }

    /// Returns where the `len` bytes of a SEND or a WRITE go that begin with byte `from`, after the
    /// check of the keys. If the bytes come in parts, it is made for each of them, because the memory
    /// may be deregistered in between. `only` holds the element of an ordinary receive.
    pub(crate) fn place<'b>(
        &'b self,
        placement: &'b Placement,
        only: &'b mut [Sge; 1],
        from: u64,
        len: u64,
    ) -> Result<Place<'b>, Rejection> {
        match placement {
            Placement::Receive(held) => {
                let elements = self.elements(held, only);
                let (regions, domain) = (&self.memory.regions, self.core.domain);
                let checked = regions.check_all(elements, domain, Access::LOCAL_WRITE);
                checked.map_err(|status| {
                    Rejection::Status(CompletionStatus::RemoteOperation, held.report(status))
                })?;
                // The cast is lossless: a message's length fits in 32 bits.
                Ok(Place::Elements(elements, from as usize))
            }
            Placement::Write(remote, _) => self
                .permitted(remote.offset(from), len, Access::REMOTE_WRITE)
                .map(Place::At),
            Placement::Read(_) | Placement::Atomic(_) => Err(Rejection::Invalid),
        }
    }

    /// Returns where memory of this context is, if the key permits the peer this access to `len` bytes,
    /// which are at least one.
    pub(crate) fn permitted(
        &self,
        memory: RemoteMemory,
        len: u64,
        needs: Access,
    ) -> Result<NonNull<u8>, Rejection> {
        let request = RemoteRequest {
            memory,
            len,
            needs,
            domain: self.core.domain,
            qp_num: self.core.number,
        };
        let found = self.memory.check_remote(&request);
        found.ok_or(Rejection::Status(
            CompletionStatus::RemoteAccess,
            LocalReport::AccessError,
        ))
    }

    /// Makes the local protection check for elements that the response to a request of this side fills.
    pub(crate) fn check_local(&self, elements: &[Sge]) -> Result<(), CompletionStatus> {
        let regions = &self.memory.regions;
        regions.check_all(elements, self.core.domain, Access::LOCAL_WRITE)
    }

    /// Carries out an atomic operation. Returns the previous value.
    pub(crate) fn operate(&self, operation: &RemoteOperation) -> Result<u64, Rejection> {
        let (RemoteOperation::CompareAndSwap { remote, .. }
        | RemoteOperation::FetchAndAdd { remote, .. }) = *operation
        else {
            return Err(Rejection::Invalid);
        };
        let misaligned = Rejection::Status(
            CompletionStatus::RemoteInvalidRequest,
            LocalReport::RequestError,
        );
        if !remote.addr.is_multiple_of(8) {
            return Err(misaligned);
        }
        let permitted = self.permitted(remote, 8, Access::REMOTE_ATOMIC)?;
        let cell = permitted.cast::<AtomicU64>();
        if !cell.is_aligned() {
            // A zero-based window may begin at any address.
            return Err(misaligned);
        }
        // SAFETY: the eight bytes are permitted, aligned, and mapped while the context's lock is held;
        // they are accessed only through atomics.
        Ok(operation.operate(unsafe { cell.as_ref() }))
    }

    /// Takes the receive of a request out of its queue, if the request needs one. Returns true if the
    /// queue has reached its limit.
    pub(crate) fn take(&mut self, placement: &mut Placement) -> bool {
        let (Placement::Receive(held) | Placement::Write(_, Some(held))) = placement else {
            return false;
        };
        let mut only = [Sge::NONE];
        let elements = ElementList::new(self.elements(held, &mut only));
        held.taken = Some(elements);
        self.receives.consume()
    }

    /// Ends a request all of whose bytes have been moved.
    pub(crate) fn finish(&mut self, placement: Placement, len: u32) -> Result<Done, Rejection> {
        let (held, opcode) = match placement {
            Placement::Receive(held) => (held, CompletionOpcode::Receive),
            Placement::Write(_, Some(held)) => (held, CompletionOpcode::ReceiveRdmaWithImm),
            Placement::Write(_, None) | Placement::Read(_) | Placement::Atomic(_) => {
                return Ok(Done::default());
            }
        };
        let (data, extra) = match held.data {
            Data::Nothing => (0, 0),
            Data::Immediate(imm) => (imm, Extras::IMMEDIATE),
            Data::Invalidate(key) => {
                let invalidated = self
                    .memory
                    .invalidate(key, self.core.domain, self.core.number);
                invalidated.map_err(|status| {
                    Rejection::Status(status, held.report(CompletionStatus::LocalAccess))
                })?;
                (key.0, Extras::INVALIDATED)
            }
        };
        let solicited = if held.is_solicited {
            Extras::SOLICITED
        } else {
            0
        };
        let success = CompletionStatus::Success;
        Ok(Done {
            reached_limit: held.taken.is_none() && self.receives.consume(),
            completion: Some(Completion {
                opcode,
                extras: Extras(extra | solicited),
                byte_len: len,
                data,
                ..Completion::of_receive(held.wr_id, self.core.number, success)
            }),
        })
    }

    /// Completes the receive of a request that has failed.
    pub(crate) fn fail_receive(
        &mut self,
        wr_id: WrId,
        is_taken: bool,
        status: CompletionStatus,
    ) -> Done {
        Done {
            reached_limit: !is_taken && self.receives.consume(),
            completion: Some(Completion::of_receive(wr_id, self.core.number, status)),
        }
    }
}

/// Returns the next receive, and its place for `consume_at`, if a plain message of `len` bytes goes
/// there by the same rules: every check of [`Responder`] passes, and nothing about it is unusual.
#[inline(always)]
pub(crate) fn straight_receive(
    core: &Core,
    memory: &Memory,
    receives: &ReceiveQueue,
    len: usize,
) -> Option<(usize, ReceiveWork)> {
    let (place, &receive) = receives.next_single()?;
    if len > receive.len as usize {
        return None;
    }
    if len > 0 {
        let whole = (receive.addr, receive.len as usize);
        let (key, needs) = (receive.local_key, Access::LOCAL_WRITE);
        memory.regions.find(key, core.domain, whole, needs)?;
    }
    Some((place, receive))
}

/// Completes the receive at a place that [`straight_receive`] has returned with a plain message of `len`
/// bytes, which are in it.
#[inline(always)]
pub(crate) fn finish_straight(
    core: &Core,
    receives: &mut ReceiveQueue,
    (place, wr_id): (usize, WrId),
    len: u32,
    is_solicited: bool,
) -> Done {
    let solicited = if is_solicited { Extras::SOLICITED } else { 0 };
    let success = CompletionStatus::Success;
    Done {
        reached_limit: receives.consume_at(place),
        completion: Some(Completion {
            extras: Extras(solicited),
            byte_len: len,
            ..Completion::of_receive(wr_id, core.number, success)
        }),
    }
}

impl Placement {
    /// Returns the receive that the request has taken out of its queue.
    pub(crate) fn taken_receive(&self) -> Option<WrId> {
        match self {
            Self::Receive(held) | Self::Write(_, Some(held)) => {
                held.taken.is_some().then_some(held.wr_id)
            }
            Self::Write(_, None) | Self::Read(_) | Self::Atomic(_) => None,
        }
    }
}

impl Held {
    fn report(&self, status: CompletionStatus) -> LocalReport {
        LocalReport::Receive {
            wr_id: self.wr_id,
            is_taken: self.taken.is_some(),
            status,
        }
    }
}
