//! The extension of `ibv_context`: functions that programs look for in a table, with attributes that say
//! which of their fields are there; and completion queues that are polled field by field.

use std::ffi::c_int;
use std::ptr;

use verbline_verbs::QpType;
use verbline_verbs::for_shim::Completion;

use crate::abi::{
    Function, NONE, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device_attr_ex,
    ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr_ex,
};
use crate::batch;
use crate::boundary::{Errno, lock, number, object};
use crate::devices::{attributes, opened, query_port};
use crate::poll::{data, flags, opcode, take};
use crate::queue_pairs::create_qp;
use crate::queues::{cq_of, create_cq, create_srq};

/// Returns the table of `verbs_context`. Programs take a function that is not there as not supported.
pub(crate) fn functions() -> [Function; 39] {
    let mut functions = [NONE; 39];
    for (index, function) in [
        (0, query_port as Function),
        (25, create_cq_ex as Function),
        (27, query_device_ex as Function),
        (33, create_qp_ex as Function),
        (34, get_srq_num as Function),
        (35, create_srq_ex as Function),
    ] {
        functions[index] = function;
    }
    functions
}

/// `ibv_query_device_ex(3)`: of the fields that are not in `ibv_query_device`, the number of ports.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const u32,
    out: *mut ibv_device_attr_ex,
    len: usize,
) -> c_int {
    number(|| {
        // SAFETY: the program's input, if there is one, begins with the mask of its fields.
        if (!input.is_null() && unsafe { *input } != 0)
            || len < std::mem::offset_of!(ibv_device_attr_ex, between)
        {
            return Err(Errno::INVALID);
        }
        // SAFETY: the program's context.
        let opened = unsafe { opened(context) };
        let orig_attr = attributes(opened);
        let answer = ibv_device_attr_ex {
            orig_attr,
            comp_mask: 0,
            between: [0; 6],
            others: [0; 13],
            xrc_odp_caps: 0,
            phys_port_cnt_ex: orig_attr.phys_port_cnt.into(),
        };
        let known = len.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: the program's struct has `len` bytes.
        unsafe {
            ptr::write_bytes(out.cast::<u8>(), 0, len);
            ptr::copy_nonoverlapping((&raw const answer).cast::<u8>(), out.cast(), known);
        }
        Ok(())
    })
}

/// `ibv_create_cq_ex(3)`.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    /// `IBV_WC_STANDARD_FLAGS`: no times, tags and VLANs.
    const STANDARD: u64 = (1 << 7) - 1;
    /// `IBV_CQ_INIT_ATTR_MASK_FLAGS`, and of the flags `IBV_CREATE_CQ_ATTR_SINGLE_THREADED` and
    /// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`: this one is not there.
    const HAS_FLAGS: u32 = 1;
    const SINGLE_THREADED: u32 = 1;
    object(|| {
        // SAFETY: the program's attributes.
        let init = unsafe { &*init };
        let has_flags = init.comp_mask & HAS_FLAGS != 0;
        if init.comp_mask & !HAS_FLAGS != 0
            || init.wc_flags & !STANDARD != 0
            || (has_flags && init.flags & !SINGLE_THREADED != 0)
        {
            return Err(Errno::UNSUPPORTED);
        }
        let (cq_context, channel, vector) = (init.cq_context, init.channel, init.comp_vector);
        // SAFETY: the program's context and channel.
        let cq = unsafe { create_cq(context, init.cqe, cq_context, channel, vector) }?;
        let functions = [
            start_poll as Function,
            next_poll as Function,
            end_poll as Function,
            read_opcode as Function,
            read_nothing as Function, // vendor_err
            read_byte_len as Function,
            read_data as Function,
            read_qp_num as Function,
            read_src_qp as Function,
            read_flags as Function,
            read_nothing as Function, // slid
            read_nothing as Function, // sl
            read_nothing as Function, // dlid_path_bits
        ];
        // SAFETY: it was just made, and the program does not have it yet.
        let places = unsafe { &mut (*cq.0).head.functions };
        places[..functions.len()].copy_from_slice(&functions);
        Ok(cq)
    })
}

/// Makes the next completion the one that the program looks at.
///
/// # Safety
///
/// The queue is the program's.
unsafe fn next(cq: *mut ibv_cq_ex) -> c_int {
    number(|| {
        let base: *mut ibv_cq = cq.cast();
        // SAFETY: the program's queue, and its own context.
        let (own, context) = unsafe { (cq_of(base), (*base).context) };
        let mut current = lock(&own.current);
        // SAFETY: the queue's own context.
        let found = unsafe { take(context, own, &mut lock(&own.inner)) }?;
        let completion = found.ok_or(Errno(libc::ENOENT))?;
        // SAFETY: the program's queue, which it polls with this thread alone.
        unsafe {
            (*cq).status = completion.status;
            (*cq).wr_id = completion.wr_id;
        }
        *current = Some(completion);
        Ok(())
    })
}

/// `ibv_start_poll` of `ibv_create_cq_ex(3)`: `ENOENT` if there is no completion.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *const u32) -> c_int {
    // SAFETY: the program's attributes begin with the mask of the fields, of which there are none.
    if unsafe { *attr } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the program's queue.
    let own = unsafe { cq_of(cq.cast()) };
    own.polling.enter();
    // SAFETY: as above.
    let found = unsafe { next(cq) };
    if found != 0 {
        // Without a completion, there is no `ibv_end_poll`.
        own.polling.leave();
    }
    found
}

/// `ibv_next_poll`.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program's queue.
    unsafe { next(cq) }
}

/// `ibv_end_poll`.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program's queue.
    let own = unsafe { cq_of(cq.cast()) };
    *lock(&own.current) = None;
    own.polling.leave();
}

/// Returns a field of the completion that the program looks at; 0 if it looks at none.
///
/// # Safety
///
/// The queue is the program's.
unsafe fn read(cq: *mut ibv_cq_ex, field: impl Fn(&Completion) -> u32) -> u32 {
    // SAFETY: the caller has promised.
    let current = lock(&unsafe { cq_of(cq.cast()) }.current);
    current.as_ref().map_or(0, field)
}

/// Defines functions that read a field of a completion.
macro_rules! reads {
    ($($name:ident, $field:expr;)*) => {
        $(
            /// # Safety
            ///
            /// As the man page asks.
            unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> u32 {
                // SAFETY: the program's queue.
                unsafe { read(cq, $field) }
            }
        )*
    };
}

reads! {
    read_opcode, |completion| opcode(completion.opcode);
    read_byte_len, |completion| completion.byte_len;
    read_data, data;
    read_qp_num, |completion| completion.qp_num.0;
    read_src_qp, |completion| completion.src_qp;
    read_flags, flags;
    read_nothing, |_| 0;
}

/// `ibv_create_srq_ex(3)`: of the basic type.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn create_srq_ex(
    _: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    /// `IBV_SRQ_INIT_ATTR_TYPE` and `IBV_SRQ_INIT_ATTR_PD`.
    const TYPE: u32 = 1;
    const DOMAIN: u32 = 2;
    object(|| {
        // SAFETY: the program's attributes.
        let init = unsafe { &mut *init };
        let is_basic = init.comp_mask & TYPE == 0 || init.srq_type == 0;
        if init.comp_mask & !(TYPE | DOMAIN) != 0 || !is_basic {
            return Err(Errno::UNSUPPORTED);
        }
        if init.comp_mask & DOMAIN == 0 || init.pd.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the program's domain.
        unsafe { create_srq(init.pd, init.srq_context, &mut init.attr) }
    })
}

/// `ibv_get_srq_num(3)`: the number that asynchronous events carry in this library.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, out: *mut u32) -> c_int {
    // SAFETY: the program's queue, and its place for the answer.
    unsafe { *out = (*srq).handle };
    0
}

/// `enum ibv_qp_create_send_ops_flags` of the operations that a type has.
fn operations(qp_type: QpType) -> u64 {
    const WRITES: u64 = 1 | 1 << 1;
    const SENDS: u64 = 1 << 2 | 1 << 3;
    const READ_AND_ATOMICS: u64 = 1 << 4 | 1 << 5 | 1 << 6;
    const BIND_WINDOW: u64 = 1 << 8;
    const INVALIDATES: u64 = 1 << 7 | 1 << 9;
    match qp_type {
        QpType::ReliableConnection => WRITES | SENDS | READ_AND_ATOMICS | BIND_WINDOW | INVALIDATES,
        QpType::UnreliableConnection => WRITES | SENDS | BIND_WINDOW,
        _ => SENDS,
    }
}

/// `ibv_create_qp_ex(3)`.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn create_qp_ex(
    _: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    /// `IBV_QP_INIT_ATTR_PD`, `_CREATE_FLAGS` and `_SEND_OPS_FLAGS`.
    const DOMAIN: u32 = 1;
    const FLAGS: u32 = 1 << 2;
    const OPERATIONS: u32 = 1 << 6;
    object(|| {
        // SAFETY: the program's attributes.
        let init = unsafe { &mut *init };
        let has = |bit| init.comp_mask & bit != 0;
        if init.comp_mask & !(DOMAIN | FLAGS | OPERATIONS) != 0
            || (has(FLAGS) && init.create_flags != 0)
        {
            return Err(Errno::UNSUPPORTED);
        }
        if !has(DOMAIN) || init.pd.is_null() {
            return Err(Errno::INVALID);
        }
        let mut plain = ibv_qp_init_attr {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
        };
        let wanted = QpType::ALL
            .into_iter()
            .find(|known| *known as c_int == init.qp_type);
        if let Some(qp_type) = wanted
            && has(OPERATIONS)
            && init.send_ops_flags & !operations(qp_type) != 0
        {
            return Err(Errno::UNSUPPORTED);
        }
        // SAFETY: the program's domain and objects.
        let qp = unsafe { create_qp(init.pd, &mut plain) }?;
        if has(OPERATIONS) {
            // SAFETY: it was just made, and the program does not have it yet.
            unsafe { (*qp.0).head.functions = batch::functions() };
        }
        init.cap = plain.cap;
        Ok(qp)
    })
}

/// `ibv_qp_to_qp_ex(3)`: null for a queue pair that was made without operations.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    let extended: *mut ibv_qp_ex = qp.cast();
    // SAFETY: every queue pair has this head.
    match unsafe { (*extended).functions[0].is_null() } {
        true => ptr::null_mut(),
        false => extended,
    }
}
