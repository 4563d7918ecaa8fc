//! Posting: puts requests into the send queue of a reliable queue pair, where they wait to be written.
//!
//! In a ring, a plain message of one element needs no more than what was posted, or its bytes if it is
//! inline. All other requests have a [`GeneralSend`], and over TCP every request has one until it
//! completes: if it finds no receive, it is sent again.

use super::core::Core;
use super::general_send::GeneralSend;
use super::initiator::Initiator;
use super::link::Link;
use super::send_queue::Unwritten;
use crate::provider::work::{Operation, SendWork, Sge, Work};
use crate::types::{PostError, PostErrorReason, RemoteOperation, WrId};

impl Initiator {
    /// Puts requests of any kind into the send queue. Returns how many have found a free entry.
    pub(crate) fn post(
        &mut self,
        core: &Core,
        link: &Link,
        list: &[Work],
        elements: &[Sge],
    ) -> usize {
        for (taken, work) in list.iter().enumerate() {
            if !self.sends.make_room() {
                return taken;
            }
            self.sends.add(work.wr_id, work.signaled || core.sq_sig_all);
            let is_plain = matches!(work.operation, Operation::Remote(RemoteOperation::Send))
                && !work.fenced
                && !work.inline;
            // SAFETY: the call that posts the request is running, and its elements belong to the caller
            // until that returns.
            unsafe {
                match work.elements(elements) {
                    &[only] if is_plain => self.push(&work.plain(only), link),
                    elements => self.push_general(work, elements, link),
                }
            }
        }
        list.len()
    }

    /// Puts an inline message into the send queue.
    pub(crate) fn post_inline(
        &mut self,
        core: &Core,
        link: &Link,
        wr_id: WrId,
        bytes: &[u8],
        signaled: bool,
    ) -> Result<(), PostError> {
        core.check_post(1)?;
        if !self.sends.make_room() {
            return self.all_posted(0, 1);
        }
        self.sends.add(wr_id, signaled || core.sq_sig_all);
        self.push_inline(bytes, false, link);
        Ok(())
    }

    /// Fails if only `taken` requests of a list of `count` have found a free entry.
    #[inline]
    pub(crate) fn all_posted(&self, taken: usize, count: usize) -> Result<(), PostError> {
        if taken == count {
            return Ok(());
        }
        let capacity = self.sends.capacity();
        Err(PostError {
            taken,
            reason: PostErrorReason::QueueFull { capacity },
        })
    }

    /// Keeps a plain message that waits to be written. It was just added to the send queue.
    ///
    /// # Safety
    ///
    /// The bytes of an inline message are readable.
    #[cold]
    pub(crate) unsafe fn push(&mut self, work: &SendWork, link: &Link) {
        if work.inline {
            let len = work.len as usize;
            // SAFETY: the caller guarantees it; the bytes are the caller's own memory, not a peer's.
            let bytes = unsafe { std::slice::from_raw_parts(work.addr.as_ptr(), len) };
            return self.push_inline(bytes, work.solicited, link);
        }
        if link.repeats_requests() {
            let element = Sge {
                addr: work.addr,
                len: work.len,
                local_key: work.local_key,
            };
            // SAFETY: no byte of a request that is not inline is read.
            return unsafe { self.push_general(&work.general(0), &[element], link) };
        }
        self.sends.push_unwritten(Unwritten::Plain(*work));
    }

    /// Keeps an inline message that waits to be written. It was just added to the send queue.
    fn push_inline(&mut self, bytes: &[u8], solicited: bool, link: &Link) {
        if link.repeats_requests() {
            let mut inline = self.sends.inline_bytes();
            inline.fill(bytes);
            let number = self.sends.posted - 1;
            let send = GeneralSend::of_bytes(number, inline, solicited);
            self.sends.general.push_back(send);
        } else {
            self.sends.push_unwritten(Unwritten::Inline {
                bytes: bytes.into(),
                solicited,
            });
        }
    }

    /// Keeps a request of any kind that waits to be written. It was just added to the send queue.
    ///
    /// # Safety
    ///
    /// The elements of an inline request are readable.
    unsafe fn push_general(&mut self, work: &Work, elements: &[Sge], link: &Link) {
        let mut send = GeneralSend::new(self.sends.posted - 1, work, elements);
        if work.inline {
            // SAFETY: the caller guarantees it.
            unsafe { send.stage(self.sends.inline_bytes()) };
        }
        self.sends.general.push_back(send);
        if !link.repeats_requests() {
            self.sends.push_unwritten(Unwritten::General);
        }
    }
}
