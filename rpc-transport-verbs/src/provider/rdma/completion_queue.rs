//! Completion queues: polled into an array on the stack, and handed on as values.

use std::mem::MaybeUninit;
use std::os::raw::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys::{ibv_cq, ibv_poll_cq, ibv_req_notify_cq, ibv_wc, ibv_wc_opcode};

use super::super::limits::in_range;
use super::completion_channel::{Channel, CompletionChannel};
use super::context::Handle;
use super::{BATCH, check, log_leak, next_number, os_error, to_u32};
use crate::verbs::{CompletionOpcode, Extras, QpNum, VerbsError, WorkCompletion, WrId};

/// Events of a queue that are acknowledged at a time: the library takes a mutex for each call.
const ACKNOWLEDGED_AT_ONCE: u32 = 64;

/// The queue, shared by the queue pairs that complete to it.
#[derive(Debug)]
pub(super) struct Queue {
    raw: *mut ibv_cq,
    number: u32,
    /// Where it raises events; and what was taken from there and not acknowledged yet.
    channel: Option<Arc<Channel>>,
    unacknowledged: AtomicU32,
    pub(super) handle: Arc<Handle>,
}

impl Queue {
    /// An event of this queue has been taken from its channel.
    pub(super) fn count_event(&self) {
        // A count and nothing else: no memory is published through it.
        if self.unacknowledged.fetch_add(1, Ordering::Relaxed) + 1 >= ACKNOWLEDGED_AT_ONCE {
            self.acknowledge();
        }
    }

    fn acknowledge(&self) {
        let count = self.unacknowledged.swap(0, Ordering::Relaxed);
        if count > 0 {
            // SAFETY: the queue is alive; so many events were taken, and the swap hands each to one
            // acknowledgement.
            unsafe { (self.handle.library.ibv_ack_cq_events)(self.raw, count) };
        }
    }
}

// SAFETY: libibverbs locks a completion queue while it is polled or armed, and its count of events; the
// rest is set-up.
unsafe impl Send for Queue {}
// SAFETY: as for `Send`.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.handle.is_ours() {
            if let Some(channel) = &self.channel {
                // From here on, a thread that takes an event of this queue acknowledges it at once.
                channel.forget(self.number);
                self.acknowledge();
            }
            // SAFETY: the queue pairs that complete to it hold an `Arc` of it, so none is left. It
            // waits for events of the queue to be acknowledged: asynchronous ones by their reader, at
            // once; its own above, or by a thread that has just taken one.
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
}

impl CompletionQueue {
    pub(super) fn create(
        handle: &Arc<Handle>,
        depth: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self, VerbsError> {
        const CALL: &str = "create_cq";
        handle.fork_guard.check()?;
        in_range(CALL, "depth", depth, 1, handle.limits.max_cqe)?;
        let depth = to_u32(CALL, "depth", depth)?;
        if channel.is_some_and(|channel| !channel.is_of(handle)) {
            return Err(VerbsError::ForeignObject {
                call: CALL,
                object: "the completion channel",
            });
        }
        let number = next_number();
        // SAFETY: the context is open. The queue's own context is a number and is never followed; the
        // channel, if any, is of this context and lives as long as the queue; the first vector is always
        // there.
        let raw = unsafe {
            (handle.library.ibv_create_cq)(
                handle.raw(),
                c_int::try_from(depth).unwrap_or(c_int::MAX),
                ptr::without_provenance_mut(number as usize),
                channel.map_or(ptr::null_mut(), |channel| channel.channel.raw()),
                0,
            )
        };
        if raw.is_null() {
            return Err(os_error(CALL));
        }
        // SAFETY: the library filled it in.
        let capacity = super::limit(unsafe { (*raw).cqe });
        let channel = channel.map(|channel| Arc::clone(&channel.channel));
        let queue = Arc::new(Queue {
            raw,
            number,
            channel,
            unacknowledged: AtomicU32::new(0),
            handle: Arc::clone(handle),
        });
        if let Some(channel) = &queue.channel {
            channel.know(number, &queue);
        }
        Ok(Self { queue, capacity })
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

    pub(crate) fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.queue.handle.fork_guard.check()?;
        if self.queue.channel.is_none() {
            return Err(VerbsError::NoCompletionChannel);
        }
        // SAFETY: the queue is alive; the header's inline function calls the driver through the
        // context's table.
        let returned = unsafe { ibv_req_notify_cq(self.queue.raw, solicited_only.into()) };
        check("req_notify_cq", returned)
    }

    pub(crate) fn resize(&self, _depth: usize) -> Result<(), VerbsError> {
        check("resize_cq", 95)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn number(&self) -> u32 {
        self.queue.number
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
    let mut completion = WorkCompletion {
        wr_id: WrId::from_raw(wr_id),
        status,
        qp_num: QpNum(qp_num),
        byte_len: 0,
        data: 0,
        src_qp: 0,
        opcode: CompletionOpcode::Send,
        // Kernel verbs do not say whether the sender asked for attention.
        extras: Extras::default(),
    };
    if status == 0 {
        // SAFETY: written in every successful completion; the length in those of receives.
        unsafe {
            match (*raw).opcode {
                ibv_wc_opcode::IBV_WC_SEND => {}
                ibv_wc_opcode::IBV_WC_RECV => {
                    completion.opcode = CompletionOpcode::Receive;
                    completion.byte_len = (*raw).byte_len;
                }
                other => {
                    let number = u8::try_from(other).unwrap_or(u8::MAX);
                    completion.opcode = CompletionOpcode::Other(number);
                }
            }
        }
    }
    completion
}
