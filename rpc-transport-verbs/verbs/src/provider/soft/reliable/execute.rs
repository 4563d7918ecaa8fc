//! Executes the peer's requests: those in a ring at once, and those over TCP as their payloads come.
//!
//! [`Responder`] has the rules. A request over TCP is checked when its header has arrived, and its receive
//! is taken then. The memory that its payload goes to is checked again at each later part, because it may
//! be deregistered in the meantime.

use std::collections::VecDeque;
use std::ptr::NonNull;

use crate::provider::soft::context::element_list::for_each_part;
use crate::provider::soft::context::link::Rings;
use crate::provider::soft::context::responder::{
    Arrived, Done, Place, Placement, Rejection, Responder,
};
use crate::provider::soft::context::send_queue::SendQueue;
use crate::provider::soft::context::tcp_link::{Arriving, Response, Target};
use crate::provider::soft::rings::take::{Body, NotLocated};
use crate::provider::soft::shared::commit::Flags;
use crate::provider::soft::shared::copy::copy_shared;
use crate::provider::soft::shared::ring::Incoming;
use crate::provider::soft::wire::header::{Header, Request};
use crate::provider::work::Sge;
use crate::types::{Access, CompletionStatus, RemoteOperation};

/// Why a part of a payload goes nowhere.
pub(super) enum NoPlace {
    /// The request of the peer fails.
    Request(Rejection),
    /// The oldest request of this side fails with this status.
    Response(CompletionStatus),
}

/// Executes a request that lies in a ring.
pub(super) fn execute_at_once(
    mut responder: Responder<'_>,
    rings: &Rings,
    incoming: &Incoming,
) -> Result<Done, Rejection> {
    let taken = rings.take_request(incoming).ok_or(Rejection::Invalid)?;
    let message = &taken.message;
    let len = match message.operation {
        RemoteOperation::Read(_) => message.piece.total.into(),
        _ => taken.payload_len().ok_or(Rejection::Invalid)?,
    };
    let placement = responder.admit(&Arrived {
        operation: &message.operation,
        len,
        outstanding: message.outstanding,
        is_solicited: incoming.flags.has(Flags::SOLICITED),
    })?;
    match placement {
        Placement::Read(memory) => {
            let to = rings.place_of_response(incoming, message.piece);
            let to = to.ok_or(Rejection::Invalid)?;
            if len > 0 {
                let from = responder.permitted(memory, len, Access::REMOTE_READ)?;
                // SAFETY: the permitted range has `total` bytes, of which the piece is a part. Its
                // place has room for the piece, and belongs to this side until the
                // acknowledgement.
                unsafe { copy_shared(from, to, message.piece.len as usize) };
            }
        }
        Placement::Atomic(operation) => {
            let was = responder.operate(&operation)?.to_ne_bytes();
            // SAFETY: a slot has room for eight bytes and belongs to this side until the
            // acknowledgement.
            unsafe { copy_shared(NonNull::from(&was).cast(), incoming.payload, was.len()) };
        }
        Placement::Receive(_) | Placement::Write(..) => {
            let body = Body::locate(&taken, &rings.peer)?;
            // The sender may have reclaimed the memory that its descriptors name.
            let receiver = &rings.receiver;
            let is_lost = || message.descriptors > 0 && receiver.is_closed_after_copy();
            if len > 0 {
                let mut only = [Sge::NONE];
                let place = responder.place(&placement, &mut only, 0, len)?;
                if is_lost() {
                    return Err(Rejection::Lost);
                }
                // SAFETY: `place` has room for the whole body, in registered memory, which stays
                // registered while the context's lock is held.
                unsafe { body.copy_to(place) };
            }
            if is_lost() {
                return Err(Rejection::Lost);
            }
        }
    }
    // The cast is lossless: a message's length fits in 32 bits.
    responder.finish(placement, len as u32)
}

/// Begins to execute a request over TCP: says what it does, and whether its receive was the last above the
/// limit of the shared receive queue. What it asks for is added to the responses.
pub(super) fn begin(
    responder: &mut Responder<'_>,
    responses: &mut VecDeque<Response>,
    header: &Header,
    request: &Request,
) -> Result<(Placement, bool), Rejection> {
    let len = match request.operation {
        RemoteOperation::Read(_) => request.read_len,
        _ => header.len,
    };
    // The peer's own count; and the responses that this side keeps for it, whatever it counts.
    let kept = u8::try_from(responses.len()).unwrap_or(u8::MAX);
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
    let reached_limit = responder.take(&mut placement);
    Ok((placement, reached_limit))
}

/// Lends `found` the place of the next `len` bytes of a payload, if they go anywhere, after a check of that
/// memory. `sends` has the requests of this side, to one of which a response belongs.
pub(super) fn with_place(
    arriving: &Arriving,
    responder: &Responder<'_>,
    sends: &SendQueue,
    len: usize,
    found: impl FnOnce(Place<'_>),
) -> Result<(), NoPlace> {
    match &arriving.target {
        Target::Nowhere => {}
        Target::Request(placement) => {
            let mut only = [Sge::NONE];
            let (from, len) = (arriving.arrived.into(), len as u64);
            let place = responder.place(placement, &mut only, from, len);
            found(place.map_err(NoPlace::Request)?);
        }
        Target::Response { number } => {
            let send = sends.general_at(*number);
            let send = send.ok_or(NoPlace::Request(Rejection::Invalid))?;
            let elements = send.elements();
            let checked = responder.check_local(elements);
            checked.map_err(NoPlace::Response)?;
            found(Place::Elements(elements, send.received as usize));
        }
    }
    Ok(())
}

/// Calls `found` with the parts of a place, `len` bytes in all, in order.
pub(super) fn for_each_part_of(
    place: Place<'_>,
    len: usize,
    mut found: impl FnMut(NonNull<u8>, usize),
) {
    match place {
        Place::Elements(elements, start) => for_each_part(elements, start, len, found),
        Place::At(start) if len > 0 => found(start, len),
        Place::At(_) => {}
    }
}

/// Copies bytes to a place.
///
/// # Safety
///
/// The place is writable, has room for the bytes, belongs to the device, and is accessed by the application
/// only as [`copy_shared`] permits.
pub(super) unsafe fn copy_to(place: Place<'_>, bytes: &[u8]) {
    let mut from = NonNull::from(bytes).cast::<u8>();
    for_each_part_of(place, bytes.len(), |to, len| {
        // SAFETY: the caller guarantees the place; the parts are as long as `bytes` together.
        unsafe {
            copy_shared(from, to, len);
            from = from.add(len);
        }
    });
}

impl From<NotLocated> for Rejection {
    fn from(reason: NotLocated) -> Self {
        match reason {
            NotLocated::NotYet => Self::NotYet,
            NotLocated::Invalid => Self::Invalid,
        }
    }
}
