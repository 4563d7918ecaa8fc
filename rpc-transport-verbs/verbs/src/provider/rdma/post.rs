//! The fast path of messages: plain sends of one slot, and receives (`ibv_post_send(3)`,
//! `ibv_post_recv(3)`).

use std::mem::MaybeUninit;
use std::os::raw::{c_int, c_uint};
use std::ptr::{self, NonNull};

use rdma_sys::{
    ibv_post_recv, ibv_post_send, ibv_qp, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
};

use super::super::work::{InlineError, ReceiveWork, SendWork};
use super::post_results::{index_of, reason};
use super::queue_pair::QueuePair;
use super::raw_attributes::to_raw;
use super::receives::post_receives;
use super::{BATCH, sge};
use crate::types::{PostError, PostErrorReason, QpAttributes, QpState, WrId};

impl QueuePair {
    pub(crate) fn post_send(&mut self, work: &[SendWork]) -> Result<(), PostError> {
        let refuse = |taken, reason| Err(PostError { taken, reason });
        if work.is_empty() {
            return Ok(());
        }
        let raw = match self.ready_to_send() {
            Ok(raw) => raw,
            Err(reason) => return refuse(0, reason),
        };
        for (batch, chunk) in work.chunks(BATCH).enumerate() {
            let mut elements = [const { MaybeUninit::<ibv_sge>::uninit() }; BATCH];
            let mut requests = [const { MaybeUninit::<ibv_send_wr>::uninit() }; BATCH];
            // From here until the device has read the chain, the arrays are accessed only through
            // these pointers.
            let element: *mut ibv_sge = elements.as_mut_ptr().cast();
            let first: *mut ibv_send_wr = requests.as_mut_ptr().cast();
            for (index, work) in chunk.iter().enumerate() {
                let is_last = index + 1 == chunk.len();
                let next = if is_last {
                    ptr::null_mut()
                } else {
                    first.wrapping_add(index + 1)
                };
                // SAFETY: a chunk has at most `BATCH` requests, the length of both arrays.
                unsafe {
                    element
                        .add(index)
                        .write(sge(work.addr, work.len, work.local_key));
                    first
                        .add(index)
                        .write(send_request(work, element.add(index), next));
                }
            }
            let mut refused = ptr::null_mut();
            // SAFETY: the queue pair is alive while `self` holds it, and the chain is complete and
            // null-terminated. The memory that it names belongs to the device until the requests
            // complete (see the module `provider`).
            let errno = unsafe { ibv_post_send(raw.as_ptr(), first, &mut refused) };
            if errno != 0 {
                let taken = batch * BATCH + index_of(first, refused, chunk.len());
                return refuse(taken, reason(errno, self.capabilities.max_send_wr));
            }
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn post_inline(
        &mut self,
        wr_id: WrId,
        bytes: &[u8],
        signaled: bool,
    ) -> Result<(), InlineError> {
        let rejected = 0;
        self.ready_to_send()
            .map_err(|reason| InlineError { rejected, reason })?;
        if self.inline.is_full() {
            self.ring_doorbell()?;
        }
        self.inline.push(wr_id, bytes, signaled);
        Ok(())
    }

    #[inline]
    pub(crate) fn ring_doorbell(&mut self) -> Result<(), InlineError> {
        if self.inline.is_empty() {
            return Ok(());
        }
        match self.ready_to_send() {
            // SAFETY: the queue pair is alive while `self` holds it, and the chain was made for
            // its granted capabilities.
            Ok(raw) => unsafe { self.inline.post(raw) },
            Err(reason) => {
                let rejected = self.inline.clear();
                Err(InlineError { rejected, reason })
            }
        }
    }

    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        let raw = self
            .ready_to_receive()
            .map_err(|reason| PostError { taken: 0, reason })?;
        let posted = post_receives(work, self.capabilities.max_recv_wr, |first, refused| {
            // SAFETY: the queue pair is alive while `self` holds it, and `post_receives` passes a
            // complete, null-terminated chain.
            unsafe { ibv_post_recv(raw.as_ptr(), first, refused) }
        });
        self.after_receives(raw);
        posted
    }

    pub(super) fn ready_to_receive(&self) -> Result<NonNull<ibv_qp>, PostErrorReason> {
        self.domain
            .handle
            .fork_guard
            .check()
            .map_err(PostErrorReason::Forked)?;
        if self.srq.is_some() {
            return Err(PostErrorReason::HasSharedReceiveQueue);
        }
        match self.raw {
            Some(raw) if self.state != QpState::Reset => Ok(raw),
            _ => Err(PostErrorReason::State {
                state: QpState::Reset,
            }),
        }
    }

    pub(super) fn after_receives(&self, raw: NonNull<ibv_qp>) {
        if self.state == QpState::Error {
            self.flush_again(raw);
        }
    }

    /// Flushes a receive that was posted in ERR. Some drivers do not notify the device of such a
    /// receive, which then stays in the queue; moving the queue pair to ERR again flushes it.
    fn flush_again(&self, raw: NonNull<ibv_qp>) {
        let error = QpAttributes::default();
        let (mut values, attr_mask) = to_raw(QpState::Error, &error);
        let modify = self.domain.handle.library.ibv_modify_qp;
        // SAFETY: the queue pair is alive while `self` holds it; the driver reads only the fields
        // in the mask.
        let returned = unsafe { modify(raw.as_ptr(), &mut values, attr_mask.0 as c_int) };
        if returned != 0 {
            tracing::debug!(errno = returned, "a queue pair in error cannot be flushed");
        }
    }
}

/// Builds one request of a chain.
#[inline]
fn send_request(work: &SendWork, element: *mut ibv_sge, next: *mut ibv_send_wr) -> ibv_send_wr {
    let mut flags: c_uint = 0;
    if work.signaled {
        flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    if work.inline {
        flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    }
    if work.solicited {
        flags |= ibv_send_flags::IBV_SEND_SOLICITED.0;
    }
    // SAFETY: a struct of numbers, pointers and unions of them, for which all zeros is a valid
    // value. The unions stay zero: a plain send has no immediate, remote address or window.
    let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
    request.wr_id = work.wr_id.to_raw();
    request.next = next;
    request.sg_list = element;
    request.num_sge = 1;
    request.opcode = ibv_wr_opcode::IBV_WR_SEND;
    request.send_flags = flags;
    request
}
