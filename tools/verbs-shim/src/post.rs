//! Posts sends and receives. What a card would read from the queue is checked here, before the device
//! has it.

use std::ffi::c_int;
use std::ptr;

use verbline_verbs::for_shim::RemoteOperation as R;
use verbline_verbs::for_shim::{Binding, Element, Operation, QueuePair, Request, access};
use verbline_verbs::{PostErrorReason, QpNum, QpType, RemoteKey, RemoteMemory};

use crate::abi::{
    Function, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge,
    ibv_srq,
};
use crate::boundary::{Errno, lock, number, say};
use crate::memory::{Handle, Region, Window};
use crate::queue_pairs::{OwnQp, qp_of};
use crate::queues::srq_of;

/// The functions of `ibv_context_ops` that are here, by index.
pub(crate) const OPS: [(usize, Function); 4] = [
    (8, bind_mw as Function),
    (20, post_srq_recv as Function),
    (25, post_send as Function),
    (26, post_recv as Function),
];

/// `enum ibv_send_flags`.
pub(crate) mod flag {
    pub(crate) const FENCE: u32 = 1;
    pub(crate) const SIGNALED: u32 = 2;
    pub(crate) const SOLICITED: u32 = 4;
    pub(crate) const INLINE: u32 = 8;
    pub(super) const ALL: u32 = FENCE | SIGNALED | SOLICITED | INLINE;
}

/// `enum ibv_wr_opcode`.
pub(crate) mod opcode {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_WITH_IMM: u32 = 3;
    pub(crate) const RDMA_READ: u32 = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub(crate) const LOCAL_INV: u32 = 7;
    pub(crate) const BIND_MW: u32 = 8;
    pub(crate) const SEND_WITH_INV: u32 = 9;
}

/// Reads the program's list of elements.
///
/// # Safety
///
/// The list has `count` elements, if this is not negative.
unsafe fn elements(list: *const ibv_sge, count: c_int, limit: u32) -> Result<Vec<Element>, Errno> {
    let count = u32::try_from(count).map_err(|_| Errno::INVALID)?;
    if count > limit || (count > 0 && list.is_null()) {
        return Err(Errno::INVALID);
    }
    let read = |index: u32| {
        // SAFETY: the caller has promised, and the index is below the count.
        let sge = unsafe { &*list.add(index as usize) };
        Element {
            addr: sge.addr,
            len: sge.length,
            local_key: sge.lkey,
        }
    };
    Ok((0..count).map(read).collect())
}

/// `ibv_post_send(3)`.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    number(|| {
        // SAFETY: the program's queue pair.
        let own = unsafe { qp_of(qp) };
        let mut inner = lock(&own.inner);
        while !wr.is_null() {
            // SAFETY: a request of the program's list. A list that is a circle ends when the queue is
            // full.
            let request = unsafe { &*wr };
            // SAFETY: the request's own elements and objects.
            let posted =
                unsafe { elements(request.sg_list, request.num_sge, own.cap.max_send_sge) }
                    .and_then(|list| {
                        // SAFETY: as above.
                        let checked = unsafe { check(own, request, &list) }?;
                        // SAFETY: the program leaves the memory alone until the completion.
                        unsafe { post(own, &mut inner, &checked, &list) }
                    });
            if let Err(errno) = posted {
                // SAFETY: the program's place for the request that failed.
                unsafe { *bad = wr };
                return Err(errno);
            }
            wr = request.next;
        }
        Ok(())
    })
}

/// Converts a request, and checks what the device leaves to the layer above it: the operation, whether the
/// queue pair's type has it, and lengths.
///
/// # Safety
///
/// The objects that the request names are the program's, and live until it has completed.
pub(crate) unsafe fn check<'a>(
    own: &OwnQp,
    wr: &ibv_send_wr,
    list: &[Element],
) -> Result<Request<'a>, Errno> {
    let has = |bit: u32| wr.send_flags & bit != 0;
    if wr.send_flags & !flag::ALL != 0 {
        return Err(Errno::INVALID);
    }
    let memory = |key| RemoteMemory {
        addr: wr.wr.addr_or_ah,
        key: RemoteKey(key),
    };
    // The lower half.
    let remote = memory(wr.wr.key_or_operand as u32);
    let atomic = memory(wr.wr.atomic_key);
    let imm = u32::from_be(wr.imm_data);
    let operation = match wr.opcode {
        opcode::RDMA_WRITE => Operation::Remote(R::Write(remote)),
        opcode::RDMA_WRITE_WITH_IMM => Operation::Remote(R::WriteWithImm(remote, imm)),
        opcode::SEND => Operation::Remote(R::Send),
        opcode::SEND_WITH_IMM => Operation::Remote(R::SendWithImm(imm)),
        opcode::RDMA_READ => Operation::Remote(R::Read(remote)),
        opcode::ATOMIC_CMP_AND_SWP => Operation::Remote(R::CompareAndSwap {
            remote: atomic,
            expected: wr.wr.key_or_operand,
            desired: wr.wr.swap,
        }),
        opcode::ATOMIC_FETCH_AND_ADD => Operation::Remote(R::FetchAndAdd {
            remote: atomic,
            addend: wr.wr.key_or_operand,
        }),
        opcode::LOCAL_INV => Operation::LocalInvalidate(RemoteKey(wr.imm_data)),
        opcode::SEND_WITH_INV => Operation::Remote(R::SendWithInvalidate(RemoteKey(wr.imm_data))),
        opcode::BIND_MW => {
            let mw = wr.bind_mw.mw;
            // SAFETY: the program's window and region.
            let binding = unsafe { binding(mw, &wr.bind_mw.bind_info, wr.bind_mw.rkey, 2) }?;
            Operation::BindWindow(binding)
        }
        _ => return Err(Errno::INVALID),
    };
    check_operation(own, &operation, list, has(flag::INLINE))?;
    let destination = match own.qp_type {
        QpType::UnreliableDatagram => {
            // The program has put a pointer there.
            let ah: *const Handle = ptr::with_exposed_provenance(wr.wr.addr_or_ah as usize);
            if ah.is_null() {
                return Err(Errno::INVALID);
            }
            let (qp_num, qkey) = (wr.wr.key_or_operand as u32, wr.wr.key_or_operand >> 32);
            // SAFETY: the program's address handle.
            Some((unsafe { &(*ah).inner }, QpNum(qp_num), qkey as u32))
        }
        _ => None,
    };
    Ok(Request {
        wr_id: wr.wr_id,
        operation,
        destination,
        signaled: has(flag::SIGNALED) || own.signals_all,
        fenced: has(flag::FENCE),
        solicited: has(flag::SOLICITED),
        inline: has(flag::INLINE),
    })
}

fn check_operation(
    own: &OwnQp,
    operation: &Operation<Binding<'_>>,
    list: &[Element],
    inline: bool,
) -> Result<(), Errno> {
    let len: u64 = list.iter().map(|element| u64::from(element.len)).sum();
    let refused = if !operation.is_for(own.qp_type) {
        "the queue pair's type does not have the operation"
    } else if inline && !operation.has_payload() {
        "the operation sends no bytes of this side, and cannot be inline"
    } else if inline && len > own.cap.max_inline_data.into() {
        "more bytes than can be inline"
    } else if operation.is_atomic() && len != 8 {
        "the result of an atomic has eight bytes"
    } else if operation.has_response() && lock(&own.sends).max_rd_atomic == 0 {
        "max_rd_atomic is 0, so that READs and atomics would wait for ever"
    } else {
        return Ok(());
    };
    say(&refused);
    Err(Errno::INVALID)
}

/// Posts a request that was checked.
///
/// # Safety
///
/// The program leaves the memory of the elements to the device until the request has completed.
pub(crate) unsafe fn post(
    own: &OwnQp,
    inner: &mut QueuePair,
    request: &Request<'_>,
    list: &[Element],
) -> Result<(), Errno> {
    let mut sends = lock(&own.sends);
    if !sends.may_post {
        return Err(Errno::INVALID);
    }
    if sends.len() >= own.cap.max_send_wr as usize {
        let capacity = own.cap.max_send_wr as usize;
        return Err(PostErrorReason::QueueFull { capacity }.into());
    }
    let list = match request.operation {
        Operation::Remote(_) => list,
        Operation::LocalInvalidate(_) | Operation::BindWindow(_) => &[],
    };
    // SAFETY: what the caller has promised; an entry is free; and the rest was checked.
    unsafe { inner.post(request, list) }?;
    sends.add(request.wr_id, request.signaled);
    Ok(())
}

/// Reads what binds a window of this type.
///
/// # Safety
///
/// Window and region are the program's.
unsafe fn binding<'a>(
    mw: *mut ibv_mw,
    info: &ibv_mw_bind_info,
    key: u32,
    of_type: c_int,
) -> Result<Binding<'a>, Errno> {
    if mw.is_null() || info.mr.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the program's window.
    let window = unsafe { &*mw.cast::<Window>() };
    if window.head.kind != of_type {
        return Err(Errno::INVALID);
    }
    // SAFETY: the program's region.
    let region = unsafe { &*info.mr.cast::<Region>() };
    Ok(Binding {
        window: &window.inner,
        region: &region.inner,
        addr: info.addr,
        len: info.length,
        access: access(info.access),
        key: RemoteKey(key),
    })
}

/// `ibv_bind_mw(3)`.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    number(|| {
        if mw.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the program's queue pair, window and request.
        let (own, rkey, bind) = unsafe { (qp_of(qp), (*mw).rkey, &*bind) };
        if bind.send_flags & !flag::ALL != 0 {
            return Err(Errno::INVALID);
        }
        // The lower eight bits count the bindings.
        let key = rkey & !0xff | rkey.wrapping_add(1) & 0xff;
        // SAFETY: the program's window and region.
        let binding = unsafe { binding(mw, &bind.info, key, 1) }?;
        let request = Request {
            wr_id: bind.wr_id,
            operation: Operation::BindWindow(binding),
            destination: None,
            signaled: bind.send_flags & flag::SIGNALED != 0 || own.signals_all,
            fenced: bind.send_flags & flag::FENCE != 0,
            solicited: false,
            inline: false,
        };
        check_operation(own, &request.operation, &[], false)?;
        // SAFETY: window and region live until the request has completed, as the man page asks.
        unsafe { post(own, &mut lock(&own.inner), &request, &[]) }?;
        // SAFETY: the program's window.
        unsafe { (*mw).rkey = key };
        Ok(())
    })
}

/// Posts a list of receives, each with `one`.
///
/// # Safety
///
/// The list is the program's.
unsafe fn post_receives(
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    max_sge: u32,
    one: impl Fn(u64, &[Element]) -> Result<(), PostErrorReason>,
) -> Result<(), Errno> {
    while !wr.is_null() {
        // SAFETY: a request of the program's list, with its elements. A list that is a circle ends when
        // the queue is full.
        let (request, list) = unsafe { (&*wr, elements((*wr).sg_list, (*wr).num_sge, max_sge)) };
        let posted = list.and_then(|list| Ok(one(request.wr_id, &list)?));
        if let Err(errno) = posted {
            // SAFETY: the program's place for the request that failed.
            unsafe { *bad = wr };
            return Err(errno);
        }
        wr = request.next;
    }
    Ok(())
}

/// `ibv_post_recv(3)`.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    number(|| {
        // SAFETY: the program's queue pair.
        let own = unsafe { qp_of(qp) };
        let inner = lock(&own.inner);
        // SAFETY: the program's list; it leaves the memory to the device until the completion.
        unsafe {
            post_receives(wr, bad, own.cap.max_recv_sge, |wr_id, list| {
                inner.post_recv(wr_id, list)
            })
        }
    })
}

/// `ibv_post_srq_recv(3)`.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    number(|| {
        // SAFETY: the program's queue.
        let own = unsafe { srq_of(srq) };
        // SAFETY: as above, and its list.
        unsafe {
            post_receives(wr, bad, own.max_sge, |wr_id, list| {
                own.inner.post_recv(wr_id, list)
            })
        }
    })
}
