//! Completion queues: polled into an array on the stack, and handed on as values.

use std::mem::MaybeUninit;
use std::os::raw::c_int;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_cq, ibv_poll_cq, ibv_wc, ibv_wc_opcode};

use super::super::limits::in_range;
use super::context::Handle;
use super::{BATCH, log_leak, next_number, os_error, to_u32};
use crate::verbs::{CompletionOpcode, CompletionStatus, QpNum, VerbsError, WorkCompletion, WrId};

/// The queue, shared by the queue pairs that complete to it.
#[derive(Debug)]
pub(super) struct Queue {
    raw: *mut ibv_cq,
    pub(super) handle: Arc<Handle>,
}

// SAFETY: libibverbs locks a completion queue while it is polled; the rest is set-up.
unsafe impl Send for Queue {}
// SAFETY: as for `Send`.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.handle.is_ours() {
            // SAFETY: the queue pairs that complete to it hold an `Arc` of it, so none is left. It
            // waits for events of the queue to be acknowledged, which their reader does at once.
            log_leak("destroy_cq", unsafe {
                (self.handle.library.ibv_destroy_cq)(self.raw)
            });
        }
    }
}

#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(super) queue: Arc<Queue>,
    capacity: usize,
    number: u32,
}

impl CompletionQueue {
    pub(super) fn create(handle: &Arc<Handle>, depth: usize) -> Result<Self, VerbsError> {
        const CALL: &str = "create_cq";
        handle.fork_guard.check()?;
        in_range(CALL, "depth", depth, 1, handle.limits.max_cqe)?;
        let depth = to_u32(CALL, "depth", depth)?;
        let number = next_number();
        // SAFETY: the context is open. The queue's own context is a number and is never followed; it
        // has no completion channel, and the first vector is always there.
        let raw = unsafe {
            (handle.library.ibv_create_cq)(
                handle.raw(),
                c_int::try_from(depth).unwrap_or(c_int::MAX),
                ptr::without_provenance_mut(number as usize),
                ptr::null_mut(),
                0,
            )
        };
        if raw.is_null() {
            return Err(os_error(CALL));
        }
        // SAFETY: the library filled it in.
        let capacity = super::limit(unsafe { (*raw).cqe });
        let handle = Arc::clone(handle);
        Ok(Self {
            queue: Arc::new(Queue { raw, handle }),
            capacity,
            number,
        })
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.queue.raw
    }

    #[inline]
    pub(crate) fn poll(
        &self,
        out: &mut Vec<WorkCompletion>,
        max: usize,
    ) -> Result<usize, VerbsError> {
        self.queue.handle.fork_guard.check()?;
        let mut batch = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let mut polled = 0;
        while polled < max {
            let wanted = (max - polled).min(BATCH);
            // SAFETY: the queue is alive, and there is room for as many as are wanted.
            let count =
                unsafe { ibv_poll_cq(self.queue.raw, wanted as i32, batch.as_mut_ptr().cast()) };
            let Ok(count) = usize::try_from(count) else {
                return Err(VerbsError::Os {
                    call: "poll_cq",
                    // No error number (ibv_poll_cq(3)).
                    source: std::io::Error::other(format!("the driver failed, and says {count}")),
                });
            };
            for raw in &batch[..count.min(wanted)] {
                // SAFETY: the library has written the first `count`; what it leaves out on an error
                // (everything but `wr_id`, `status`, `qp_num`) is never looked at below.
                out.push(unsafe { completion(raw.as_ptr()) });
            }
            polled += count;
            if count < wanted {
                break;
            }
        }
        Ok(polled)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

/// # Safety
///
/// `raw` points to a completion of which `wr_id`, `status` and `qp_num` have been written, and on
/// success all that its kind has.
#[inline]
unsafe fn completion(raw: *const ibv_wc) -> WorkCompletion {
    // SAFETY: written in every completion, says the caller.
    let (wr_id, status, qp_num) = unsafe { ((*raw).wr_id, (*raw).status, (*raw).qp_num) };
    let status = CompletionStatus::from_code(status);
    let (opcode, byte_len) = if status == CompletionStatus::Success {
        // SAFETY: written in every successful completion; the length in those of receives.
        unsafe {
            match (*raw).opcode {
                ibv_wc_opcode::IBV_WC_RECV => (CompletionOpcode::Receive, (*raw).byte_len),
                ibv_wc_opcode::IBV_WC_SEND => (CompletionOpcode::Send, 0),
                other => {
                    let number = u8::try_from(other).unwrap_or(u8::MAX);
                    (CompletionOpcode::Other(number), 0)
                }
            }
        }
    } else {
        (CompletionOpcode::Send, 0)
    };
    // Kernel verbs do not say whether the sender asked for attention.
    let solicited = false;
    WorkCompletion::new(
        WrId::from_raw(wr_id),
        status,
        QpNum(qp_num),
        opcode,
        byte_len,
        solicited,
    )
}
