//! Reads from a link: many messages at a time into the context's scratch memory, or the rest of a
//! long payload to where it belongs.

use std::ptr::NonNull;
use std::time::Duration;

use rustix::io::Errno;

use super::batch::Parts;
use crate::provider::soft::capacities::MAX_SGE;
use crate::provider::soft::context::element_list::for_each_part;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::context::tcp_link::{Arriving, Phase, Target};
use crate::provider::soft::reliable::rejection::{LocalReport, Rejection};
use crate::provider::soft::shared::copy::copy_shared;
use crate::provider::soft::wire::header::{Header, MAX_LEN};
use crate::provider::soft::wire::hello::ANSWER_LEN;
use crate::provider::work::Sge;
use crate::types::{Access, CompletionStatus, RemoteMemory};

/// Maximum number of reads from a link before other links have their turn.
const READS: usize = 4;

/// Bytes from which on a payload is long, and bytes of a read around long ones.
pub(super) const LONG_PAYLOAD: u32 = 64 * 1024;
const SHORT_READ: usize = 4 * 1024;

/// Why nothing more is read from a link.
pub(super) enum End {
    /// Nothing more has arrived.
    Empty,
    /// The queue pair or its link has ended.
    Ended,
}

/// Where the bytes of a payload are that arrive now.
enum Place<'a> {
    Elements(&'a [Sge], usize),
    At(NonNull<u8>),
    Nowhere,
}

impl SoftQueuePair {
    /// Reads what has arrived, and executes it. Returns the number of messages.
    pub(super) fn receive_over_tcp(&mut self, common: &mut Common) -> usize {
        let mut scratch = common.tcp.take_scratch();
        let mut executed = 0;
        for _ in 0..READS {
            if !self.core.receives_now() || self.read(common, &mut scratch, &mut executed).is_err()
            {
                break;
            }
        }
        common.tcp.put_scratch_back(scratch);
        executed
    }

    /// Makes one read. Succeeds if more may have arrived.
    fn read(
        &mut self,
        common: &mut Common,
        scratch: &mut [u8],
        executed: &mut usize,
    ) -> Result<(), End> {
        let Some(link) = self.link.tcp_mut() else {
            return Err(End::Ended);
        };
        let stashed = link.inbound.stash_len;
        scratch[..stashed].copy_from_slice(&link.inbound.stash[..stashed]);
        let mut parts = Parts::<{ MAX_SGE + 1 }>::new();
        self.add_rest_of_payload(common, &mut parts)?;
        let direct = parts.bytes;
        let Some(link) = self.link.tcp_mut() else {
            return Err(End::Ended);
        };
        // What lands in the scratch memory of a long payload has to be copied from there. After one
        // long message, another is likely.
        let is_long = link.inbound.was_long || direct >= LONG_PAYLOAD as usize;
        let scratch_len = if is_long { SHORT_READ } else { scratch.len() };
        let room = &mut scratch[stashed..scratch_len];
        parts.push(NonNull::from(&mut *room).cast(), room.len());
        // SAFETY: the rest of the payload goes to memory that was just checked to be registered, and
        // stays so while the owner word is held. Its bytes belong to the device, or are accessed by
        // the application only through atomics or raw copies. The scratch memory is lent to this
        // call, which does not use it until the read has returned.
        let len = match unsafe { parts.read(link.readable()) } {
            Ok(0) => {
                self.end_link(common);
                return Err(End::Ended);
            }
            Ok(len) => len,
            Err(Errno::INTR) => return Ok(()),
            Err(Errno::AGAIN) => return Err(End::Empty),
            Err(error) => {
                tracing::debug!(%error, qp_num = %self.core.number, "a link cannot be read from");
                self.end_link(common);
                return Err(End::Ended);
            }
        };
        common.tcp.moved += len;
        let is_full = len == parts.bytes;
        if direct > 0 {
            self.advance(common, direct.min(len), executed)?;
        }
        let in_scratch = stashed + len.saturating_sub(direct);
        self.take_messages(common, &scratch[..in_scratch], executed)?;
        if is_full { Ok(()) } else { Err(End::Empty) }
    }

    /// Adds the destination of the rest of the payload that is arriving.
    fn add_rest_of_payload(
        &mut self,
        common: &mut Common,
        parts: &mut Parts<{ MAX_SGE + 1 }>,
    ) -> Result<(), End> {
        let Some(arriving) = self
            .link
            .tcp()
            .and_then(|link| link.inbound.arriving.as_ref())
        else {
            return Ok(());
        };
        let left = (arriving.len - arriving.arrived) as usize;
        match self.place(common, arriving, left) {
            Ok(Place::Elements(elements, start)) => {
                for_each_part(elements, start, left, |start, len| parts.push(start, len));
                Ok(())
            }
            Ok(Place::At(start)) => {
                parts.push(start, left);
                Ok(())
            }
            Ok(Place::Nowhere) => Ok(()),
            Err(rejection) => Err(self.reject_over_tcp(common, rejection)),
        }
    }

    /// Returns where the next `len` bytes of a payload go, after a check of that memory.
    fn place<'a>(
        &'a self,
        common: &Common,
        arriving: &'a Arriving,
        len: usize,
    ) -> Result<Place<'a>, Rejection> {
        let arrived = arriving.arrived as usize;
        match &arriving.target {
            Target::Nowhere => Ok(Place::Nowhere),
            Target::Receive(receive) => {
                let elements = receive.elements.as_slice();
                let needs = Access::LOCAL_WRITE;
                let checked = common
                    .memory
                    .regions
                    .check_all(elements, self.core.domain, needs);
                checked.map_err(|status| {
                    Rejection::Status(
                        CompletionStatus::RemoteOperation,
                        LocalReport::Taken(receive.wr_id, status),
                    )
                })?;
                Ok(Place::Elements(elements, arrived))
            }
            Target::Memory { memory, .. } => {
                let memory: RemoteMemory = memory.offset(arrived as u64);
                self.permitted(common, memory, len as u64, Access::REMOTE_WRITE)
                    .map(Place::At)
            }
            Target::Response { number } => {
                let send = self.sends.general_at(*number).ok_or(Rejection::Invalid)?;
                let needs = Access::LOCAL_WRITE;
                let checked =
                    common
                        .memory
                        .regions
                        .check_all(send.elements(), self.core.domain, needs);
                checked.map_err(Rejection::OfResponse)?;
                Ok(Place::Elements(send.elements(), send.received as usize))
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
        let Some(arriving) = &mut link.inbound.arriving else {
            return Ok(());
        };
        // The cast is lossless: at most the rest of the payload has arrived.
        arriving.arrived += len as u32;
        // A peer that sends a payload answers nothing before the end of its message.
        self.retry.ignored_for = Duration::ZERO;
        if let Target::Response { number } = arriving.target
            && let Some(send) = self.sends.general_at_mut(number)
        {
            send.received += len as u64;
        }
        if arriving.arrived == arriving.len {
            let Arriving { len, target, .. } = match link.inbound.arriving.take() {
                Some(arriving) => arriving,
                None => return Ok(()),
            };
            *executed += 1;
            self.finish_message(common, len, target)?;
        }
        Ok(())
    }

    /// Handles the end of a message.
    fn finish_message(&mut self, common: &mut Common, len: u32, target: Target) -> Result<(), End> {
        match target {
            Target::Nowhere => Ok(()),
            Target::Response { .. } => {
                self.complete_over_tcp(common);
                Ok(())
            }
            target => self.finish_request(common, len, target),
        }
    }

    pub(super) fn finish_request(
        &mut self,
        common: &mut Common,
        len: u32,
        target: Target,
    ) -> Result<(), End> {
        self.finish_request_over_tcp(common, len, target)
            .map_err(|rejection| self.reject_over_tcp(common, rejection))?;
        if let Some(link) = self.link.tcp_mut() {
            link.inbound.expected += 1;
            common.tcp.owe_ack(self.core.index, link);
        }
        Ok(())
    }

    /// Handles the messages in `bytes`, and keeps what is not a whole header.
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
            let Some(link) = self.link.tcp_mut() else {
                return Err(End::Ended);
            };
            if link.phase == Phase::Dialed {
                let Some((answer, after)) = rest.split_first_chunk::<ANSWER_LEN>() else {
                    break;
                };
                rest = after;
                self.handle_answer(common, answer)?;
                continue;
            }
            if let Some(arriving) = &link.inbound.arriving {
                let left = (arriving.len - arriving.arrived) as usize;
                let (now, after) = rest.split_at(left.min(rest.len()));
                rest = after;
                self.copy(common, now)?;
                self.advance(common, now.len(), executed)?;
                continue;
            }
            match Header::parse(rest) {
                Ok(None) => break,
                Ok(Some((header, len))) => {
                    rest = &rest[len..];
                    if let Some(after) = self.receive_straight_over_tcp(common, &header, rest) {
                        rest = after;
                        *executed += 1;
                        continue;
                    }
                    self.handle_header(common, &header, executed)?;
                }
                Err(_) => return Err(self.reject_over_tcp(common, Rejection::Invalid)),
            }
        }
        if let Some(link) = self.link.tcp_mut() {
            debug_assert!(rest.len() < MAX_LEN, "a header of that length is complete");
            link.inbound.stash[..rest.len()].copy_from_slice(rest);
            link.inbound.stash_len = rest.len();
        }
        Ok(())
    }

    /// Copies bytes of the payload from the scratch memory.
    fn copy(&mut self, common: &mut Common, bytes: &[u8]) -> Result<(), End> {
        let Some(arriving) = self
            .link
            .tcp()
            .and_then(|link| link.inbound.arriving.as_ref())
        else {
            return Ok(());
        };
        let mut from = NonNull::from(bytes).cast::<u8>();
        match self.place(common, arriving, bytes.len()) {
            Ok(Place::Elements(elements, start)) => {
                for_each_part(elements, start, bytes.len(), |to, len| {
                    // SAFETY: the elements were just checked to lie in registered memory, which
                    // stays registered while the owner word is held; the parts are as long as
                    // `bytes` together. The application accesses them only as `copy_shared` permits.
                    unsafe {
                        copy_shared(from, to, len);
                        from = from.add(len);
                    }
                });
                Ok(())
            }
            Ok(Place::At(to)) => {
                // SAFETY: as above, for the range that the peer may write.
                unsafe { copy_shared(from, to, bytes.len()) };
                Ok(())
            }
            Ok(Place::Nowhere) => Ok(()),
            Err(rejection) => Err(self.reject_over_tcp(common, rejection)),
        }
    }
}
