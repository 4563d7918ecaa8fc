//! Reads from a TCP connection: many messages at a time into the context's scratch memory, or the rest of
//! a long payload to where it belongs; and tells what has arrived, one after the other.

use std::ptr::NonNull;

use rustix::io::Errno;

use crate::provider::soft::capacities::MAX_SGE;
use crate::provider::soft::context::parts::Parts;
use crate::provider::soft::context::tcp_link::{Arriving, Phase, Target, TcpLink, extended};
use crate::provider::soft::wire::header::{Header, InvalidHeader, MAX_LEN};
use crate::provider::soft::wire::hello::ANSWER_LEN;
use crate::types::WrId;

/// Bytes from which on a payload is long, and bytes of a read around long ones.
const LONG_PAYLOAD: u32 = 64 * 1024;
const SHORT_READ: usize = 4 * 1024;

/// Looks for which an acknowledgement waits for a message that can carry it: a server that answers
/// at once does so before the second look.
const LOOKS_BEFORE_ACK: u8 = 2;

/// The destination of the rest of a payload, and the scratch memory.
pub(crate) type Destination = Parts<{ MAX_SGE + 1 }>;

/// What a read has brought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filled {
    /// Bytes that the socket has given.
    pub(crate) len: usize,
    /// Bytes of them that have arrived at their destination.
    pub(crate) direct: usize,
    /// Bytes that lie in the scratch memory, behind what was kept of the read before.
    pub(crate) in_scratch: usize,
    pub(crate) is_more_likely: bool,
}

/// What comes next in the bytes that have arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard<'a> {
    /// The peer's answer to this side's hello.
    Answer(&'a [u8; ANSWER_LEN]),
    /// Bytes of the payload that is arriving.
    Payload(&'a [u8]),
    /// A message, whose payload follows.
    Message(Header),
}

/// A message that no correct peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidMessage;

impl TcpLink {
    /// Makes one read: first into the destination of the payload that is arriving, then into the
    /// scratch memory. Returns `None` if the connection has ended.
    ///
    /// # Safety
    ///
    /// The destination is writable until this returns, and belongs to the device.
    #[inline(always)]
    pub(crate) unsafe fn fill(
        &mut self,
        destination: &mut Destination,
        scratch: &mut [u8],
    ) -> Result<Option<Filled>, Errno> {
        let kept = self.inbound.stash_len;
        scratch[..kept].copy_from_slice(&self.inbound.stash[..kept]);
        let direct = destination.bytes;
        // What lands in the scratch memory of a long payload has to be copied from there. After one
        // long message, another is likely.
        let is_long = self.inbound.was_long || direct >= LONG_PAYLOAD as usize;
        let scratch_len = if is_long { SHORT_READ } else { scratch.len() };
        let room = &mut scratch[kept..scratch_len];
        destination.push(NonNull::from(&mut *room).cast(), room.len());
        // SAFETY: the caller guarantees it. The scratch memory is lent to this call, which does not use
        // it until the read has returned.
        let len = unsafe { self.stream.read(destination.as_mut_slice())? };
        Ok((len > 0).then(|| Filled {
            len,
            direct: direct.min(len),
            in_scratch: kept + len.saturating_sub(direct),
            is_more_likely: len == destination.bytes || self.stream.may_have_more(),
        }))
    }

    /// Returns what comes next in these bytes, and what follows it; `None` if it is not whole yet.
    pub(crate) fn next_heard<'a>(
        &self,
        bytes: &'a [u8],
    ) -> Result<Option<(Heard<'a>, &'a [u8])>, InvalidHeader> {
        if self.phase == Phase::Dialed {
            let answer = bytes.split_first_chunk();
            return Ok(answer.map(|(answer, after)| (Heard::Answer(answer), after)));
        }
        if let Some(arriving) = &self.inbound.arriving {
            let (payload, after) = bytes.split_at(arriving.left().min(bytes.len()));
            return Ok(Some((Heard::Payload(payload), after)));
        }
        let header = Header::parse(bytes)?;
        Ok(header.map(|(header, len)| (Heard::Message(header), &bytes[len..])))
    }

    /// Keeps what is not a whole header until the next read.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() < MAX_LEN, "a header of that length is complete");
        self.inbound.stash[..bytes.len()].copy_from_slice(bytes);
        self.inbound.stash_len = bytes.len();
    }

    /// Has the bytes that come next taken for the payload of a message.
    pub(crate) fn expect_payload(&mut self, len: u32, target: Target) {
        if len > 0 {
            self.inbound.was_long = len >= LONG_PAYLOAD;
            self.inbound.arriving = Some(Arriving {
                len,
                arrived: 0,
                target,
            });
        }
    }

    /// Records that bytes of the payload have arrived at their destination. Returns the message if that
    /// was all of it.
    pub(crate) fn payload_arrived(&mut self, len: usize) -> Option<Arriving> {
        let arriving = self.inbound.arriving.as_mut()?;
        // The cast is lossless: at most the rest of the payload has arrived.
        arriving.arrived += len as u32;
        let is_whole = arriving.left() == 0;
        self.inbound.arriving.take_if(|_| is_whole)
    }

    /// Drops the payload that is arriving. Returns the receive that it has taken out of its queue.
    pub(crate) fn drop_arriving(&mut self) -> Option<WrId> {
        match self.inbound.arriving.take()?.target {
            Target::Request(placement) => placement.taken_receive(),
            Target::Response { .. } | Target::Nowhere => None,
        }
    }

    /// Takes the acknowledgement of all requests before the one with this number. Returns true if it
    /// is news.
    #[inline]
    pub(crate) fn take_ack(&mut self, low: u32) -> Result<bool, InvalidMessage> {
        let outbound = &mut self.outbound;
        let acked = extended(low, outbound.acked);
        // A peer executes nothing behind the request that it has refused, and that is sent again.
        let end = outbound.rewind_to.unwrap_or(outbound.next);
        if acked < outbound.acked || acked > end {
            return Err(InvalidMessage);
        }
        let is_news = acked > outbound.acked;
        outbound.acked = acked;
        Ok(is_news)
    }

    /// Returns the sequence number of the request that found no receive, if it was sent.
    pub(crate) fn sent(&self, low: u32) -> Result<u64, InvalidMessage> {
        let outbound = &self.outbound;
        let sequence = extended(low, outbound.acked);
        let is_begun = sequence == outbound.next && outbound.is_writing_request();
        match sequence < outbound.next || is_begun {
            true => Ok(sequence),
            false => Err(InvalidMessage),
        }
    }

    /// Returns the request to go back to, once no request is being written.
    pub(crate) fn take_rewind(&mut self) -> Option<u64> {
        if self.outbound.is_writing_request() {
            return None;
        }
        let sequence = self.outbound.rewind_to.take()?;
        self.outbound.next = sequence;
        Some(sequence)
    }

    /// Returns true if an acknowledgement that is due has to be written now: no message has carried it,
    /// and none may still, since this context is not polled or was looked at often enough.
    pub(crate) fn is_ack_overdue(&mut self, is_polled: bool) -> bool {
        let inbound = &mut self.inbound;
        let owes_ack = inbound.acknowledged < inbound.expected;
        if owes_ack && is_polled && inbound.looks_with_ack_due + 1 < LOOKS_BEFORE_ACK {
            inbound.looks_with_ack_due += 1;
            return false;
        }
        inbound.looks_with_ack_due = 0;
        true
    }
}

impl Arriving {
    /// Returns how many bytes of the payload have not arrived.
    pub(crate) fn left(&self) -> usize {
        (self.len - self.arrived) as usize
    }
}
