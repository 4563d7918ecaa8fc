//! Completion queues (`ibv_poll_cq(3)`): polled into a small array, and converted to values one by
//! one.

use std::mem::MaybeUninit;
use std::os::raw::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rdma_sys::{ibv_cq, ibv_poll_cq, ibv_req_notify_cq, ibv_wc, ibv_wc_flags, ibv_wc_opcode};

use super::super::limits::in_range;
use super::completion_channel::CompletionChannel;
use super::datagrams::Datagrams;
use super::handle::{Handle, not_supported};
use super::queue_events::Queue;
use super::{check, next_number, os_error, to_u32};
use crate::types::{CompletionOpcode, Extras, QpNum, RemoteKey, VerbsError, WorkCompletion, WrId};

#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(super) queue: Arc<Queue>,
    capacity: AtomicUsize,
}

impl CompletionQueue {
    pub(super) fn create(
        handle: &Arc<Handle>,
        depth: usize,
        channel: Option<&CompletionChannel>,
        vector: u32,
    ) -> Result<Self, VerbsError> {
        const CALL: &str = "create_cq";
        handle.fork_guard.check()?;
        in_range(CALL, "depth", depth, 1, handle.limits.max_cqe)?;
        let last_vector = handle.limits.num_comp_vectors.saturating_sub(1);
        in_range(CALL, "comp_vector", vector as usize, 0, last_vector)?;
        let depth = to_u32(CALL, "depth", depth)?;
        if channel.is_some_and(|channel| !channel.is_of(handle)) {
            return Err(VerbsError::ForeignObject {
                call: CALL,
                object: "the completion channel",
            });
        }
        let number = next_number();
        // SAFETY: the context is open while `handle` lives. The queue's own context is a number and
        // is never dereferenced; the channel, if any, is of this context (checked above) and lives
        // as long as the queue; the vector is one of the context's (checked above).
        let raw = unsafe {
            (handle.library.ibv_create_cq)(
                handle.raw(),
                c_int::try_from(depth).unwrap_or(c_int::MAX),
                ptr::without_provenance_mut(number as usize),
                channel.map_or(ptr::null_mut(), |channel| channel.channel.raw()),
                c_int::try_from(vector).unwrap_or(c_int::MAX),
            )
        };
        if raw.is_null() {
            return Err(os_error(CALL));
        }
        // SAFETY: the library has initialized the queue, and nothing else uses it yet.
        let capacity = super::limit(unsafe { (*raw).cqe });
        let channel = channel.map(|channel| Arc::clone(&channel.channel));
        let queue = Arc::new(Queue {
            raw,
            number,
            channel,
            unacknowledged: AtomicU32::new(0),
            with_inv: match handle.is_soft_roce {
                true => WITH_INV | WITH_INV_OF_SOFT_ROCE,
                false => WITH_INV,
            },
            datagrams: Datagrams::default(),
            handle: Arc::clone(handle),
        });
        if let Some(channel) = &queue.channel {
            channel.add_queue(number, &queue);
        }
        Ok(Self {
            queue,
            capacity: AtomicUsize::new(capacity),
        })
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.queue.raw
    }

    pub(crate) fn poll(
        &self,
        held: &mut HeldCompletions,
        out: &mut Vec<WorkCompletion>,
        max: usize,
    ) -> Result<usize, VerbsError> {
        self.queue.handle.fork_guard.check()?;
        let mut has_looked = false;
        for polled in 0..max {
            if held.is_empty() {
                // The driver returned fewer than it was asked for, so it has no more.
                if has_looked && held.was_partial() {
                    return Ok(polled);
                }
                self.fill(held)?;
                has_looked = true;
            }
            match held.next(&self.queue) {
                Some(completion) => out.push(completion),
                None => return Ok(polled),
            }
        }
        Ok(max)
    }

    #[inline]
    pub(crate) fn poll_one(
        &self,
        held: &mut HeldCompletions,
    ) -> Result<Option<WorkCompletion>, VerbsError> {
        self.queue.handle.fork_guard.check()?;
        if held.is_empty() {
            self.fill(held)?;
        }
        Ok(held.next(&self.queue))
    }

    /// Polls the device once, into `held`, which is empty.
    #[inline]
    fn fill(&self, held: &mut HeldCompletions) -> Result<(), VerbsError> {
        (held.next, held.count) = (0, 0);
        // SAFETY: the queue is alive while `self` is, and the array has `HELD` elements.
        let count = unsafe {
            ibv_poll_cq(
                self.queue.raw,
                HELD as i32,
                held.completions.as_mut_ptr().cast(),
            )
        };
        match usize::try_from(count) {
            Ok(count) => held.count = count.min(HELD),
            Err(_) => return Err(driver_failed(count)),
        }
        Ok(())
    }

    pub(crate) fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.queue.handle.fork_guard.check()?;
        if self.queue.channel.is_none() {
            return Err(VerbsError::NoCompletionChannel);
        }
        // SAFETY: the queue is alive while `self` is; the header's inline function calls the driver
        // through the context's table.
        let returned = unsafe { ibv_req_notify_cq(self.queue.raw, solicited_only.into()) };
        check("req_notify_cq", returned)
    }

    pub(crate) fn resize(&self, depth: usize) -> Result<(), VerbsError> {
        const CALL: &str = "resize_cq";
        let handle = &self.queue.handle;
        handle.fork_guard.check()?;
        in_range(CALL, "depth", depth, 1, handle.limits.max_cqe)?;
        let wanted = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: the queue is alive while `self` is, and the driver resizes it under its own lock.
        let returned = unsafe { (handle.library.ibv_resize_cq)(self.queue.raw, wanted) };
        if returned.saturating_abs() == rustix::io::Errno::INVAL.raw_os_error() {
            return Err(VerbsError::InvalidArgument {
                call: CALL,
                argument: "depth",
                value: depth as u64,
                reason: "it holds more completions than that",
            });
        }
        check(CALL, returned)
            .map_err(|error| not_supported(handle, CALL, "other depths", error))?;
        // SAFETY: the library has written the new depth, and only one thread at a time resizes a
        // queue.
        let granted = super::limit(unsafe { (*self.queue.raw).cqe });
        // Relaxed: it publishes no other memory.
        self.capacity.store(granted, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    pub(crate) fn number(&self) -> u32 {
        self.queue.number
    }
}

/// Maximum number of completions that one poll of the device returns: few enough to lie in a few
/// cache lines.
const HELD: usize = 16;

/// The completions that the last poll of the device returned. The first `next` of them have been
/// handed out.
pub(crate) struct HeldCompletions {
    next: usize,
    /// Number of completions that the library has written.
    count: usize,
    completions: Box<[MaybeUninit<ibv_wc>; HELD]>,
}

impl HeldCompletions {
    #[inline]
    fn is_empty(&self) -> bool {
        self.next == self.count
    }

    /// Returns true if the last poll of the device returned fewer completions than fit.
    fn was_partial(&self) -> bool {
        self.count < HELD
    }

    #[inline]
    fn next(&mut self, queue: &Queue) -> Option<WorkCompletion> {
        if self.is_empty() {
            return None;
        }
        let raw = self.completions[self.next].as_ptr();
        self.next += 1;
        // SAFETY: the library has written the first `count` completions. Fields that it leaves out
        // on an error (all but `wr_id`, `status` and `qp_num`) are not read.
        Some(unsafe { completion(raw, queue) })
    }
}

impl Default for HeldCompletions {
    fn default() -> Self {
        Self {
            next: 0,
            count: 0,
            completions: Box::new([const { MaybeUninit::uninit() }; HELD]),
        }
    }
}

impl std::fmt::Debug for HeldCompletions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeldCompletions({})", self.count - self.next)
    }
}

#[cold]
fn driver_failed(returned: c_int) -> VerbsError {
    VerbsError::Os {
        call: "poll_cq",
        // The return value is not an error number (ibv_poll_cq(3)).
        source: std::io::Error::other(format!("the driver failed, and says {returned}")),
    }
}

/// Converts a completion of the library.
///
/// # Safety
///
/// `raw` must point to a completion of which `wr_id`, `status` and `qp_num` have been written, and
/// on success all fields of its kind.
#[inline]
unsafe fn completion(raw: *const ibv_wc, queue: &Queue) -> WorkCompletion {
    // SAFETY: the caller guarantees that these fields, which every completion has, were written.
    let (wr_id, status, qp_num) = unsafe { ((*raw).wr_id, (*raw).status, (*raw).qp_num) };
    let mut completion = WorkCompletion {
        wr_id: WrId::from_raw(wr_id),
        status,
        qp_num: QpNum(qp_num),
        byte_len: 0,
        data: 0,
        src_qp: 0,
        opcode: CompletionOpcode::Send,
        // Kernel verbs do not report whether the sender requested a solicited event.
        extras: Extras::default(),
    };
    if status == 0 {
        // SAFETY: the caller guarantees that a successful completion has an opcode, and that the
        // completion of a receive also has a length and flags.
        unsafe {
            match (*raw).opcode {
                ibv_wc_opcode::IBV_WC_SEND => {}
                ibv_wc_opcode::IBV_WC_RECV => {
                    completion.opcode = CompletionOpcode::Receive;
                    completion.byte_len = (*raw).byte_len;
                    let is_plain = (*raw).wc_flags & (WITH_IMM | queue.with_inv) == 0;
                    if !is_plain || queue.datagrams.contains(completion.qp_num) {
                        received(raw, queue, &mut completion);
                    }
                }
                _ => other_than_message(raw, queue, &mut completion),
            }
        }
    }
    completion
}

const WITH_IMM: u32 = ibv_wc_flags::IBV_WC_WITH_IMM.0;
const WITH_INV: u32 = ibv_wc_flags::IBV_WC_WITH_INV.0;
/// The same flag as written by Soft-RoCE's driver, which uses the kernel's internal number for it
/// (Linux 6.1, rxe_resp.c). In the header that number is `IBV_WC_IP_CSUM_OK`, which the driver
/// never reports.
const WITH_INV_OF_SOFT_ROCE: u32 = 1 << 2;

/// Reads the optional fields of a receive.
///
/// # Safety
///
/// As for [`completion`]; `raw` must be a successful receive.
#[cold]
unsafe fn received(raw: *const ibv_wc, queue: &Queue, completion: &mut WorkCompletion) {
    // SAFETY: the caller guarantees that this is a successful receive, in which the flags are
    // written.
    let flags = unsafe { (*raw).wc_flags };
    // SAFETY: called only if a flag says that the union was written.
    let data = || unsafe { &(*raw).imm_data_invalidated_rkey_union };
    if flags & WITH_IMM != 0 {
        // SAFETY: the flag says that the immediate was written, in network byte order.
        completion.data = u32::from_be(unsafe { data().imm_data });
        completion.extras.0 |= Extras::IMMEDIATE;
    } else if flags & queue.with_inv != 0 {
        // SAFETY: the flag says that the invalidated key was written.
        completion.data = unsafe { data().invalidated_rkey };
        let key = RemoteKey(completion.data);
        queue.handle.windows.note_invalidated(key);
        completion.extras.0 |= Extras::INVALIDATED;
    }
    // Some drivers set the flag for a global route in every receive, so it is ignored except in
    // receives of datagrams.
    if queue.datagrams.contains(completion.qp_num) {
        // SAFETY: the field is written in every successful receive of a datagram.
        completion.src_qp = unsafe { (*raw).src_qp };
        completion.extras.0 |= Extras::SOURCE;
        if flags & ibv_wc_flags::IBV_WC_GRH.0 != 0 {
            completion.extras.0 |= Extras::GLOBAL_ROUTE;
        }
    }
}

/// Converts a completion of any other operation.
///
/// # Safety
///
/// As for [`completion`]; `raw` must be a successful completion.
#[cold]
unsafe fn other_than_message(raw: *const ibv_wc, queue: &Queue, completion: &mut WorkCompletion) {
    // SAFETY: the caller guarantees success, and every successful completion has an opcode.
    let (opcode, has_len) = match unsafe { (*raw).opcode } {
        ibv_wc_opcode::IBV_WC_RDMA_WRITE => (CompletionOpcode::RdmaWrite, false),
        ibv_wc_opcode::IBV_WC_RDMA_READ => (CompletionOpcode::RdmaRead, true),
        ibv_wc_opcode::IBV_WC_COMP_SWAP => (CompletionOpcode::CompareAndSwap, true),
        ibv_wc_opcode::IBV_WC_FETCH_ADD => (CompletionOpcode::FetchAndAdd, true),
        ibv_wc_opcode::IBV_WC_BIND_MW => (CompletionOpcode::BindWindow, false),
        ibv_wc_opcode::IBV_WC_LOCAL_INV => (CompletionOpcode::LocalInvalidate, false),
        ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => (CompletionOpcode::ReceiveRdmaWithImm, true),
        other => {
            let number = u8::try_from(other).unwrap_or(u8::MAX);
            (CompletionOpcode::Other(number), false)
        }
    };
    completion.opcode = opcode;
    if has_len {
        // SAFETY: the length is written in completions of operations that bring bytes to this side.
        completion.byte_len = unsafe { (*raw).byte_len };
    }
    if completion.opcode == CompletionOpcode::ReceiveRdmaWithImm {
        // SAFETY: the opcode is that of a receive, and the caller guarantees success.
        unsafe { received(raw, queue, completion) };
    }
}
