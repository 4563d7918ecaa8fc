//! Completion queues and shared receive queues: creating and destroying them.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use verbline_verbs::QpNum;
use verbline_verbs::for_shim::{Completion, CompletionQueue, SharedReceiveQueue};

use crate::abi::{
    NONE, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_pd, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr,
};
use crate::boundary::{Errno, Made, Section, Users, lock, number, object};
use crate::devices::opened;
use crate::events::{Unacknowledged, channel_of};
use crate::memory::domain;

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) head: ibv_cq_ex,
    pub(crate) own: OwnCq,
}

/// What the program does not see of a completion queue.
pub(crate) struct OwnCq {
    pub(crate) inner: Mutex<CompletionQueue>,
    /// Completions that were taken from `inner`, and that the program has not polled: those that were
    /// there when a queue pair was reset or destroyed. Locked only with `inner`.
    kept: Mutex<VecDeque<Completion>>,
    /// From `ibv_start_poll` to `ibv_end_poll`.
    pub(crate) polling: Section,
    /// The completion that the program looks at, if it polls field by field.
    pub(crate) current: Mutex<Option<Completion>>,
    pub(crate) events: Unacknowledged,
    pub(crate) async_events: Unacknowledged,
    pub(crate) users: Users,
}

impl OwnCq {
    /// Returns the oldest completion of the queue, which is locked, if there is one.
    pub(crate) fn next(&self, inner: &mut CompletionQueue) -> Result<Option<Completion>, Errno> {
        match lock(&self.kept).pop_front() {
            Some(oldest) => Ok(Some(oldest)),
            None => Ok(inner.poll_one()?),
        }
    }

    /// Removes the completions of a queue pair that was reset or destroyed, as cards do: its number may be
    /// used again.
    pub(crate) fn forget(&self, qp_num: QpNum) {
        let mut inner = lock(&self.inner);
        let mut kept = lock(&self.kept);
        // More than these have arrived meanwhile, and are of others. An error is an overrun, which the
        // program learns when it polls.
        for _ in 0..inner.capacity() {
            let Ok(Some(completion)) = inner.poll_one() else {
                break;
            };
            kept.push_back(completion);
        }
        kept.retain(|completion| completion.qp_num != qp_num);
    }
}

/// Returns what is behind a queue that a program has.
///
/// # Safety
///
/// This library returned it, and it is not destroyed while the reference is used.
pub(crate) unsafe fn cq_of<'a>(cq: *mut ibv_cq) -> &'a OwnCq {
    // SAFETY: the pointer is to the head of a `Cq`.
    unsafe { &(*cq.cast::<Cq>()).own }
}

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    head: ibv_srq,
    own: OwnSrq,
}

/// What the program does not see of a shared receive queue.
pub(crate) struct OwnSrq {
    pub(crate) inner: SharedReceiveQueue,
    pub(crate) max_sge: u32,
    pub(crate) events: Unacknowledged,
    pub(crate) users: Users,
}

/// Returns what is behind a shared receive queue that a program has.
///
/// # Safety
///
/// As for [`cq_of`].
pub(crate) unsafe fn srq_of<'a>(srq: *mut ibv_srq) -> &'a OwnSrq {
    // SAFETY: the pointer is to the head of an `Srq`.
    unsafe { &(*srq.cast::<Srq>()).own }
}

/// Creates a completion queue.
///
/// # Safety
///
/// The context and the channel, if it is not null, are the program's.
pub(crate) unsafe fn create_cq(
    context: *mut ibv_context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
) -> Result<Made<Cq>, Errno> {
    // SAFETY: the program's context.
    let opened = unsafe { opened(context) };
    // There is one vector.
    if vector != 0 || cqe == 0 {
        return Err(Errno::INVALID);
    }
    // SAFETY: the program's channel.
    let of_channel = (!channel.is_null()).then(|| unsafe { channel_of(channel) });
    let of_device = of_channel.map(|channel| &*channel.inner);
    let inner = opened.device.create_cq(cqe as usize, of_device)?;
    let capacity = c_int::try_from(inner.capacity()).unwrap_or(c_int::MAX);
    let handle = inner.number();
    let cq = Made::from(Box::new(Cq {
        head: ibv_cq_ex {
            base: ibv_cq {
                context,
                channel,
                cq_context,
                handle,
                cqe: capacity,
                mutex: [0; 5],
                cond: [0; 6],
                comp_events_completed: 0,
                async_events_completed: 0,
            },
            comp_mask: 0,
            status: 0,
            wr_id: 0,
            functions: [NONE; 18],
        },
        own: OwnCq {
            inner: Mutex::new(inner),
            kept: Mutex::default(),
            polling: Section::default(),
            current: Mutex::default(),
            events: Unacknowledged::default(),
            async_events: Unacknowledged::default(),
            users: Users::default(),
        },
    }));
    lock(&opened.completion_queues).insert(handle, cq.0.cast());
    opened.users.add();
    if let Some(channel) = of_channel {
        channel.users.add();
    }
    Ok(cq)
}

/// `ibv_create_cq(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    object(|| {
        let cqe = u32::try_from(cqe).map_err(|_| Errno::INVALID)?;
        let vector = u32::try_from(vector).map_err(|_| Errno::INVALID)?;
        // SAFETY: the program's context and channel.
        unsafe { create_cq(context, cqe, cq_context, channel, vector) }
    })
}

/// `ibv_resize_cq(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    number(|| {
        let depth = usize::try_from(cqe).map_err(|_| Errno::INVALID)?;
        // SAFETY: the program's queue.
        let own = unsafe { cq_of(cq) };
        let inner = lock(&own.inner);
        inner.resize(depth)?;
        let granted = c_int::try_from(inner.capacity()).unwrap_or(c_int::MAX);
        // SAFETY: the program's queue.
        unsafe { (*cq).cqe = granted };
        Ok(())
    })
}

/// `ibv_destroy_cq(3)`: waits until all events are acknowledged.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    number(|| {
        // SAFETY: the program's queue.
        let own = unsafe { cq_of(cq) };
        own.users.check_none()?;
        // SAFETY: the program's queue, and its own context.
        let (handle, channel, opened) =
            unsafe { ((*cq).handle, (*cq).channel, opened((*cq).context)) };
        lock(&opened.completion_queues).remove(&handle);
        own.events.wait_for_none();
        own.async_events.wait_for_none();
        // SAFETY: `create_cq` made it as a box, and nothing needs it any more.
        drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
        opened.users.remove();
        if !channel.is_null() {
            // SAFETY: the queue's channel, which is not destroyed before the queue.
            let channel = unsafe { channel_of(channel) };
            channel.events.retain(|event| *event != handle);
            channel.users.remove();
        }
        Ok(())
    })
}

/// Creates a shared receive queue.
///
/// # Safety
///
/// The domain is the program's.
pub(crate) unsafe fn create_srq(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    wanted: &mut ibv_srq_attr,
) -> Result<Made<Srq>, Errno> {
    // SAFETY: the program's domain, and its own context.
    let (domain, context) = unsafe { (domain(pd), (*pd).context) };
    // SAFETY: as above.
    let opened = unsafe { opened(context) };
    let (max_wr, max_sge) = (wanted.max_wr.max(1), wanted.max_sge);
    let inner = domain.inner.create_srq(max_wr as usize, max_sge as usize)?;
    wanted.max_wr = max_wr;
    let handle = inner.number().0;
    let srq = Made::from(Box::new(Srq {
        head: ibv_srq {
            context,
            srq_context,
            pd,
            handle,
            mutex: [0; 5],
            cond: [0; 6],
            events_completed: 0,
        },
        own: OwnSrq {
            inner,
            max_sge,
            events: Unacknowledged::default(),
            users: Users::default(),
        },
    }));
    lock(&opened.shared_receive_queues).insert(handle, srq.0.cast());
    domain.users.add();
    Ok(srq)
}

/// `ibv_create_srq(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    object(|| {
        // SAFETY: the program's domain and attributes.
        unsafe { create_srq(pd, (*init).srq_context, &mut (*init).attr) }
    })
}

/// `ibv_modify_srq(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    const MAX_WR: c_int = 1;
    const LIMIT: c_int = 2;
    number(|| {
        // SAFETY: the program's queue and attributes.
        let (own, attr) = unsafe { (srq_of(srq), &*attr) };
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(Errno::INVALID);
        }
        if mask & MAX_WR != 0 {
            own.inner.resize(attr.max_wr as usize)?;
        }
        if mask & LIMIT != 0 {
            own.inner.arm_limit(attr.srq_limit as usize)?;
        }
        Ok(())
    })
}

/// `ibv_query_srq(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, out: *mut ibv_srq_attr) -> c_int {
    number(|| {
        // SAFETY: the program's queue.
        let known = unsafe { srq_of(srq) }.inner.query()?;
        let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let answer = ibv_srq_attr {
            max_wr: small(known.max_wr),
            max_sge: small(known.max_sge),
            srq_limit: small(known.limit),
        };
        // SAFETY: the program's place for the answer.
        unsafe { *out = answer };
        Ok(())
    })
}

/// `ibv_destroy_srq(3)`: waits until all events are acknowledged.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    number(|| {
        // SAFETY: the program's queue.
        let own = unsafe { srq_of(srq) };
        own.users.check_none()?;
        // SAFETY: the program's queue, and its own context and domain.
        let (handle, pd, opened) = unsafe { ((*srq).handle, (*srq).pd, opened((*srq).context)) };
        lock(&opened.shared_receive_queues).remove(&handle);
        own.events.wait_for_none();
        // SAFETY: `create_srq` made it as a box, and nothing needs it any more.
        drop(unsafe { Box::from_raw(srq.cast::<Srq>()) });
        // SAFETY: the queue's own domain.
        unsafe { domain(pd) }.users.remove();
        Ok(())
    })
}
