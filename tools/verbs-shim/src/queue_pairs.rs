//! Queue pairs: creating and destroying them, and what is in their send queues.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;
use std::sync::Mutex;

use verbline_verbs::for_shim::{CompletionQueue, QueuePair};
use verbline_verbs::{Gid, QpNum, QpType, QueuePairCapabilities};

use crate::abi::{NONE, ibv_gid, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr};
use crate::batch::Batch;
use crate::boundary::{Errno, Made, Section, lock, number, object};
use crate::devices::opened;
use crate::events::Unacknowledged;
use crate::memory::domain;
use crate::queues::{cq_of, srq_of};

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) head: ibv_qp_ex,
    pub(crate) own: OwnQp,
}

/// What the program does not see of a queue pair.
pub(crate) struct OwnQp {
    pub(crate) inner: Mutex<QueuePair>,
    pub(crate) qp_type: QpType,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) signals_all: bool,
    pub(crate) sends: Mutex<Sends>,
    /// From `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`.
    pub(crate) batching: Section,
    /// The requests that the program is putting together part by part.
    pub(crate) batch: Mutex<Batch>,
    pub(crate) events: Unacknowledged,
}

/// What has been posted to a send queue and not polled, and what may be posted.
#[derive(Debug, Default)]
pub(crate) struct Sends {
    /// The ids of the requests, and whether each is signaled.
    posted: VecDeque<(u64, bool)>,
    /// The queue pair is in a state in which it takes requests.
    pub(crate) may_post: bool,
    /// READs and atomics that may be outstanding.
    pub(crate) max_rd_atomic: u8,
}

impl Sends {
    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    pub(crate) fn add(&mut self, wr_id: u64, signaled: bool) {
        self.posted.push_back((wr_id, signaled));
    }

    /// Removes what a completion covers: all requests up to the next signaled one; after an error, each
    /// request has a completion of its own, but those before the first. A completion of a request that
    /// went with a reset covers nothing.
    pub(crate) fn complete(&mut self, wr_id: u64, succeeded: bool) {
        let is_it = |&(id, signaled): &(u64, bool)| id == wr_id && (signaled || !succeeded);
        if let Some(index) = self.posted.iter().position(is_it) {
            self.posted.drain(..=index);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.posted.clear();
    }
}

/// Returns what is behind a queue pair that a program has.
///
/// # Safety
///
/// As for [`cq_of`].
pub(crate) unsafe fn qp_of<'a>(qp: *mut ibv_qp) -> &'a OwnQp {
    // SAFETY: the pointer is to the head of a `Qp`.
    unsafe { &(*qp.cast::<Qp>()).own }
}

/// Returns a type that the devices have.
fn type_of(number: c_int) -> Result<QpType, Errno> {
    /// RAW_PACKET, XRC_SEND, XRC_RECV and DRIVER.
    const OTHERS: [c_int; 4] = [8, 9, 10, 0xff];
    match QpType::ALL
        .into_iter()
        .find(|known| *known as c_int == number)
    {
        Some(known) => Ok(known),
        None if OTHERS.contains(&number) => Err(Errno::UNSUPPORTED),
        None => Err(Errno::INVALID),
    }
}

/// Creates a queue pair, and writes what is granted into `init.cap`.
///
/// # Safety
///
/// The domain and the objects that `init` names are the program's.
pub(crate) unsafe fn create_qp(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> Result<Made<Qp>, Errno> {
    // SAFETY: the program's domain, and its own context.
    let (domain, context) = unsafe { (domain(pd), (*pd).context) };
    let qp_type = type_of(init.qp_type)?;
    if init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the program's queues.
    let (send_cq, recv_cq) = unsafe { (cq_of(init.send_cq), cq_of(init.recv_cq)) };
    // SAFETY: as above.
    let srq = (!init.srq.is_null()).then(|| unsafe { srq_of(init.srq) });
    let sizes = QueuePairCapabilities {
        // A queue pair that only receives may ask for none.
        max_send_wr: init.cap.max_send_wr.max(1) as usize,
        max_recv_wr: init.cap.max_recv_wr as usize,
        max_send_sge: init.cap.max_send_sge as usize,
        max_recv_sge: init.cap.max_recv_sge as usize,
        max_inline_data: init.cap.max_inline_data as usize,
    };
    let of_srq = srq.map(|srq| &srq.inner);
    let create = |queues: (&CompletionQueue, &CompletionQueue)| {
        let signals_all = init.sq_sig_all != 0;
        domain
            .inner
            .create_qp(qp_type, queues, of_srq, &sizes, signals_all)
    };
    let inner = if ptr::eq(send_cq, recv_cq) {
        let only = lock(&send_cq.inner);
        create((&only, &only))?
    } else if ptr::from_ref(send_cq) < ptr::from_ref(recv_cq) {
        // In the order of their addresses: another thread may have the same two the other way round.
        let (send, recv) = (lock(&send_cq.inner), lock(&recv_cq.inner));
        create((&send, &recv))?
    } else {
        let (recv, send) = (lock(&recv_cq.inner), lock(&send_cq.inner));
        create((&send, &recv))?
    };
    let granted = inner.capabilities();
    let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    init.cap = ibv_qp_cap {
        max_send_wr: small(granted.max_send_wr),
        max_recv_wr: small(granted.max_recv_wr),
        max_send_sge: small(granted.max_send_sge),
        max_recv_sge: small(granted.max_recv_sge),
        max_inline_data: small(granted.max_inline_data),
    };
    let qp_num = inner.qp_num().0;
    let qp = Made::from(Box::new(Qp {
        head: ibv_qp_ex {
            base: ibv_qp {
                context,
                qp_context: init.qp_context,
                pd,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                handle: qp_num,
                qp_num,
                state: 0, // IBV_QPS_RESET
                qp_type: init.qp_type,
                mutex: [0; 5],
                cond: [0; 6],
                events_completed: 0,
            },
            comp_mask: 0,
            wr_id: 0,
            wr_flags: 0,
            functions: [NONE; 21],
        },
        own: OwnQp {
            inner: Mutex::new(inner),
            qp_type,
            cap: init.cap,
            signals_all: init.sq_sig_all != 0,
            sends: Mutex::default(),
            batching: Section::default(),
            batch: Mutex::default(),
            events: Unacknowledged::default(),
        },
    }));
    // SAFETY: the domain's own context.
    let opened = unsafe { opened(context) };
    lock(&opened.queue_pairs).insert(qp_num, qp.0.cast());
    domain.users.add();
    send_cq.users.add();
    recv_cq.users.add();
    if let Some(srq) = srq {
        srq.users.add();
    }
    Ok(qp)
}

/// `ibv_create_qp(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    object(|| {
        // SAFETY: the program's domain, attributes and objects.
        unsafe { create_qp(pd, &mut *init) }
    })
}

/// `ibv_destroy_qp(3)`: waits until all events are acknowledged.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    number(|| {
        // SAFETY: the program's queue pair.
        let (own, head) = unsafe { (qp_of(qp), ptr::read(qp)) };
        // SAFETY: the queue pair's own context.
        lock(&unsafe { opened(head.context) }.queue_pairs).remove(&head.qp_num);
        own.events.wait_for_none();
        // SAFETY: `create_qp` made it as a box, and nothing needs it any more.
        drop(unsafe { Box::from_raw(qp.cast::<Qp>()) });
        // SAFETY: the queue pair's own objects, which are not destroyed before it.
        unsafe {
            for cq in [cq_of(head.send_cq), cq_of(head.recv_cq)] {
                cq.forget(QpNum(head.qp_num));
                cq.users.remove();
            }
            domain(head.pd).users.remove();
            if !head.srq.is_null() {
                srq_of(head.srq).users.remove();
            }
        }
        Ok(())
    })
}

/// `ibv_attach_mcast(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    number(|| {
        // SAFETY: the program's queue pair and GID.
        let (own, gid) = unsafe { (qp_of(qp), (*gid).0) };
        // The first byte of a group's GID.
        if own.qp_type != QpType::UnreliableDatagram || gid[0] != 0xff {
            return Err(Errno::INVALID);
        }
        Ok(lock(&own.inner).attach_multicast(Gid(gid), lid)?)
    })
}

/// `ibv_detach_mcast(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    number(|| {
        // SAFETY: the program's queue pair and GID.
        let (own, gid) = unsafe { (qp_of(qp), (*gid).0) };
        match lock(&own.inner).detach_multicast(Gid(gid), lid)? {
            true => Ok(()),
            false => Err(Errno::INVALID),
        }
    })
}
