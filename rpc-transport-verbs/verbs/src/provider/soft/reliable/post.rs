//! Posts sends to a reliable connection: puts them into the send queue, and writes what can be written
//! at once.
//!
//! An inline message goes straight into the peer's ring if nothing has to wait. All other requests wait
//! in the send queue until [`transmit`](super::transmit) writes them, which is mostly before the post
//! returns. In a ring, a plain message of one element needs no more than what was posted. All other
//! requests have a [`GeneralSend`], and over TCP every request has one until it completes: if it finds
//! no receive, it is sent again.

use std::ptr::NonNull;

use crate::hooks::{accepted, inject};
use crate::provider::soft::context::general_send::GeneralSend;
use crate::provider::soft::context::link::{Link, Rings, Unannounced};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::send_queue::Unwritten;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::shared::ring::MAX_IN_RING;
use crate::provider::work::{Operation, SendWork, Sge, Work};
use crate::types::{PostError, PostErrorReason, QpState, QpType, RemoteOperation, WrId};

impl SoftQueuePair {
    /// Posts an inline send of `bytes` and writes it at once, if nothing has to wait. Returns
    /// `false` and does nothing otherwise. `ring_doorbell` notifies the receiver.
    #[inline]
    pub(crate) fn try_post_inline(
        &mut self,
        common: &mut Common,
        wr_id: WrId,
        bytes: &[u8],
        signaled: bool,
    ) -> bool {
        let Link::Rings(Rings {
            sender: Some(sender),
            unannounced,
            ..
        }) = &mut self.link
        else {
            return false;
        };
        if !self.initiator.may_send(&self.core)
            || !self.initiator.sends.is_written()
            || self.initiator.sends.is_full()
            || !sender.is_known_to_have_room()
            || bytes.len() > MAX_IN_RING
            || inject!(NoRoom)
        {
            return false;
        }
        sender.send(NonNull::from(bytes).cast(), bytes.len(), 0);
        let signaled = signaled || self.core.sq_sig_all;
        self.initiator.sends.add(wr_id, signaled);
        self.initiator.sends.started += 1;
        *unannounced = Unannounced::Messages;
        common.counters.sends += 1;
        if signaled || !self.is_unacked {
            self.watch_acks(common);
        }
        #[cfg(debug_assertions)]
        crate::provider::soft::context::check::check_queue_pair(self);
        true
    }

    /// Posts an inline send that waits for room, for earlier requests, or over TCP for the doorbell.
    #[cold]
    #[inline(never)]
    pub(crate) fn post_inline_in_order(
        &mut self,
        common: &mut Common,
        wr_id: WrId,
        bytes: &[u8],
        signaled: bool,
    ) -> Result<(), PostError> {
        self.check_post(1)?;
        if self.initiator.sends.is_full() {
            return Err(self.full(0));
        }
        let work = SendWork::of_bytes(wr_id, bytes, signaled);
        self.initiator
            .sends
            .add(wr_id, signaled || self.core.sq_sig_all);
        // SAFETY: `bytes` is readable.
        unsafe { self.push(&work) };
        match &mut self.link {
            // With all that is posted until the doorbell, it costs one system call.
            Link::Tcp(tcp) => {
                tcp.is_doorbell_due = true;
                self.watch_acks(common);
            }
            Link::Rings(_) | Link::Down => self.after_post(common),
        }
        Ok(())
    }

    /// Posts a list of sends and writes as many as there is room for, with one doorbell.
    #[inline]
    pub(crate) fn post_send(
        &mut self,
        common: &mut Common,
        list: &[SendWork],
    ) -> Result<(), PostError> {
        self.check_post(list.len())?;
        let mut taken = accepted!(Sends, list.len(), Some(self.core.number.0));
        for (index, work) in list[..taken].iter().enumerate() {
            if self.initiator.sends.is_full() {
                taken = index;
                break;
            }
            self.initiator
                .sends
                .add(work.wr_id, work.signaled || self.core.sq_sig_all);
            if self.initiator.sends.is_written() && self.try_write(common, work) {
                self.initiator.sends.started += 1;
            } else {
                // SAFETY: the call that posts the request is running, so the bytes of an inline
                // request are readable.
                unsafe { self.push(work) };
            }
        }
        self.after_post(common);
        if taken == list.len() {
            Ok(())
        } else {
            Err(self.full(taken))
        }
    }

    /// Posts a list of requests of any kind.
    pub(crate) fn post(
        &mut self,
        common: &mut Common,
        list: &[Work],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        if self.core.qp_type != QpType::ReliableConnection {
            return self.post_unreliable(common, list, elements);
        }
        self.check_post(list.len())?;
        let mut taken = 0;
        for work in list {
            if self.initiator.sends.is_full() {
                break;
            }
            self.initiator
                .sends
                .add(work.wr_id, work.signaled || self.core.sq_sig_all);
            let is_plain = matches!(work.operation, Operation::Remote(RemoteOperation::Send))
                && !work.fenced
                && !work.inline;
            // SAFETY: this call posts the request, and its elements belong to the caller until the
            // call returns.
            unsafe {
                match work.elements(elements) {
                    &[only] if is_plain => self.push(&SendWork {
                        wr_id: work.wr_id,
                        addr: only.addr,
                        len: only.len,
                        local_key: only.local_key,
                        signaled: work.signaled,
                        inline: false,
                        solicited: work.solicited,
                    }),
                    elements => self.push_general(work, elements),
                }
            }
            taken += 1;
        }
        self.after_post(common);
        if taken == list.len() {
            Ok(())
        } else {
            Err(self.full(taken))
        }
    }

    /// Fails if the state does not allow requests to be posted.
    #[inline]
    fn check_post(&self, count: usize) -> Result<(), PostError> {
        let state = self.core.state;
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) && count > 0 {
            return Err(PostError {
                taken: 0,
                reason: PostErrorReason::State { state },
            });
        }
        Ok(())
    }

    /// Returns the error for a list of which only `taken` requests found a free entry.
    #[cold]
    fn full(&self, taken: usize) -> PostError {
        let capacity = self.initiator.sends.capacity();
        PostError {
            taken,
            reason: PostErrorReason::QueueFull { capacity },
        }
    }

    /// Keeps a message that waits to be written. It was just added to the send queue.
    ///
    /// # Safety
    ///
    /// The bytes of an inline message are readable.
    #[cold]
    unsafe fn push(&mut self, work: &SendWork) {
        let request = match (&self.link, work.inline) {
            (Link::Tcp(_), _) => {
                let element = Sge {
                    addr: work.addr,
                    len: work.len,
                    local_key: work.local_key,
                };
                // SAFETY: the caller guarantees it.
                return unsafe { self.push_general(&work.general(0), &[element]) };
            }
            (_, false) => Unwritten::Plain(*work),
            (_, true) => {
                let len = work.len as usize;
                // SAFETY: the caller guarantees it; the bytes are the caller's own memory, not a
                // peer's.
                let bytes = unsafe { std::slice::from_raw_parts(work.addr.as_ptr(), len) };
                Unwritten::Inline {
                    bytes: bytes.into(),
                    solicited: work.solicited,
                }
            }
        };
        self.initiator.sends.push_unwritten(request);
    }

    /// Keeps a request of any kind that waits to be written. It was just added to the send queue.
    ///
    /// # Safety
    ///
    /// The elements of an inline request are readable.
    unsafe fn push_general(&mut self, work: &Work, elements: &[Sge]) {
        let mut send = GeneralSend::new(self.initiator.sends.posted - 1, work, elements);
        if work.inline {
            // SAFETY: the caller guarantees it.
            unsafe { send.stage(self.initiator.sends.inline_bytes()) };
        }
        self.initiator.sends.general.push_back(send);
        if !matches!(self.link, Link::Tcp(_)) {
            self.initiator.sends.push_unwritten(Unwritten::General);
        }
    }

    /// Does what follows the posting of requests: writes those that had to wait, or flushes them.
    #[inline]
    fn after_post(&mut self, common: &mut Common) {
        if self.core.state == QpState::Error {
            self.flush_sends(common);
        } else if self.initiator.sends.started == self.initiator.sends.posted {
            self.watch_acks(common);
            self.ring_doorbell(common);
        } else {
            self.transmit(common);
        }
        #[cfg(debug_assertions)]
        crate::provider::soft::context::check::check_queue_pair(self);
    }
}
