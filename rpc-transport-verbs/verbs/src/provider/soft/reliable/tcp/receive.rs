//! Reads from a link: many messages at a time into the context's scratch memory, or the rest of a
//! long payload to where it belongs.

use std::ptr::NonNull;
use std::time::Duration;

use rustix::io::Errno;

use crate::provider::soft::capacities::MAX_SGE;
use crate::provider::soft::context::element_list::for_each_part;
use crate::provider::soft::context::parts::Parts;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::responder::{Place, Placement, Rejection, Responder};
use crate::provider::soft::context::state::Common;
use crate::provider::soft::context::tcp_link::{Arriving, Phase, Target};
use crate::provider::soft::shared::copy::copy_shared;
use crate::provider::soft::wire::header::{Header, MAX_LEN};
use crate::provider::soft::wire::hello::ANSWER_LEN;
use crate::provider::work::Sge;
use crate::types::Access;

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

impl SoftQueuePair {
    /// Reads what has arrived, and executes it. Returns the number of messages.
    pub(super) fn receive_over_tcp(&mut self, common: &mut Common) -> usize {
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
        let len = match unsafe { link.stream.read(parts.as_mut_slice()) } {
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
        let is_more_likely = len == parts.bytes || link.stream.may_have_more();
        if direct > 0 {
            self.advance(common, direct.min(len), executed)?;
        }
        let in_scratch = stashed + len.saturating_sub(direct);
        self.take_messages(common, &scratch[..in_scratch], executed)?;
        if is_more_likely {
            Ok(())
        } else {
            Err(End::Empty)
        }
    }

    /// Adds the destination of the rest of the payload that is arriving.
    fn add_rest_of_payload(
        &mut self,
        common: &mut Common,
        parts: &mut Parts<{ MAX_SGE + 1 }>,
    ) -> Result<(), End> {
        let arriving = self
            .link
            .tcp()
            .and_then(|link| link.inbound.arriving.as_ref());
        let left = arriving.map_or(0, |arriving| (arriving.len - arriving.arrived) as usize);
        self.find_place(common, left, |place| match place {
            Place::Elements(elements, start) => {
                for_each_part(elements, start, left, |start, len| parts.push(start, len));
            }
            Place::At(start) => parts.push(start, left),
        })
    }

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
        match &arriving.target {
            Target::Nowhere => Ok(()),
            Target::Request(placement) => {
                let responder = Responder::new(
                    &self.core,
                    &mut self.receives,
                    &mut common.memory,
                    &mut common.shared_receive_queues,
                );
                let (from, len) = (arriving.arrived.into(), len as u64);
                let mut only = [Sge::NONE];
                let placed = responder.place(placement, &mut only, from, len);
                let placed = placed.map(found);
                placed.map_err(|rejection| self.reject_over_tcp(common, rejection))
            }
            Target::Response { number } => {
                let Some(send) = self.initiator.sends.general_at(*number) else {
                    return Err(self.reject_over_tcp(common, Rejection::Invalid));
                };
                let (regions, domain) = (&common.memory.regions, self.core.domain);
                let elements = send.elements();
                match regions.check_all(elements, domain, Access::LOCAL_WRITE) {
                    Ok(()) => {
                        found(Place::Elements(elements, send.received as usize));
                        Ok(())
                    }
                    Err(status) => Err(self.fail_response(common, status)),
                }
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
        self.initiator.retry.ignored_for = Duration::ZERO;
        if let Target::Response { number } = arriving.target
            && let Some(send) = self.initiator.sends.general_at_mut(number)
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
                self.complete_acknowledged(common);
                Ok(())
            }
            Target::Request(placement) => self.finish_request(common, len, placement),
        }
    }

    pub(super) fn finish_request(
        &mut self,
        common: &mut Common,
        len: u32,
        placement: Placement,
    ) -> Result<(), End> {
        self.finish_placed(common, placement, len)
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
        let mut from = NonNull::from(bytes).cast::<u8>();
        self.find_place(common, bytes.len(), |place| match place {
            Place::Elements(elements, start) => {
                for_each_part(elements, start, bytes.len(), |to, len| {
                    // SAFETY: the elements were just checked to lie in registered memory, which
                    // stays registered while the owner word is held; the parts are as long as
                    // `bytes` together. The application accesses them only as `copy_shared` permits.
                    unsafe {
                        copy_shared(from, to, len);
                        from = from.add(len);
                    }
                });
            }
            // SAFETY: as above, for the range that the peer may write.
            Place::At(to) => unsafe { copy_shared(from, to, bytes.len()) },
        })
    }
}
