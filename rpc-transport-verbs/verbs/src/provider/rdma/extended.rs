//! `ibv_create_qp_ex(3)`, which is an inline function of the header that calls through the
//! context's extended table. rdma-sys's version looks for that table at an offset that is never
//! right on a 64-bit machine.

use std::mem::offset_of;
use std::os::raw::c_int;
use std::ptr::{self, NonNull};

use rdma_sys::{
    ibv_context, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask as mask,
    verbs_context,
};

use super::log_leak;
use super::memory::Domain;
use crate::types::{CreateFlags, ExtendedConfig, VerbsError};

const CALL: &str = "create_qp_ex";

type CreateQpEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;

/// Creates a queue pair, and writes the granted capabilities to `wanted`. Returns the error number
/// on failure.
///
/// # Safety
///
/// The queues of `wanted` must be alive and of the domain's context.
pub(super) unsafe fn create_qp_ex(
    domain: &Domain,
    wanted: &mut ibv_qp_init_attr,
    extended: &ExtendedConfig,
) -> Result<NonNull<ibv_qp>, c_int> {
    let context = domain.handle.raw();
    // SAFETY: `domain.handle` has opened the context, and keeps it open while it is borrowed.
    let Some(create) = (unsafe { entry(context) }) else {
        return Err(rustix::io::Errno::OPNOTSUPP.raw_os_error());
    };
    // SAFETY: a plain struct of numbers and pointers, for which all zeros is a valid value.
    let mut raw: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    raw.qp_context = wanted.qp_context;
    raw.send_cq = wanted.send_cq;
    raw.recv_cq = wanted.recv_cq;
    raw.srq = wanted.srq;
    raw.cap = wanted.cap;
    raw.qp_type = wanted.qp_type;
    raw.sq_sig_all = wanted.sq_sig_all;
    raw.pd = domain.raw();
    let mut comp_mask = mask::IBV_QP_INIT_ATTR_PD;
    let mut flags = extended.create_flags;
    if let Some(number) = extended.source_qpn {
        raw.source_qpn = number.0;
        flags = flags | CreateFlags::SOURCE_QPN;
    }
    if flags != CreateFlags::default() {
        raw.create_flags = flags.bits();
        comp_mask |= mask::IBV_QP_INIT_ATTR_CREATE_FLAGS;
    }
    if let Some(len) = extended.max_tso_header {
        raw.max_tso_header = len;
        comp_mask |= mask::IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    }
    if extended.send_ops.bits() != 0 {
        raw.send_ops_flags = extended.send_ops.bits();
        comp_mask |= mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    }
    raw.comp_mask = comp_mask.0;
    // SAFETY: the domain is alive while it is borrowed, and the caller guarantees that the queues
    // are. The struct has all fields that its mask names.
    let made = unsafe { create(context, &mut raw) };
    wanted.cap = raw.cap;
    NonNull::new(made).ok_or_else(|| {
        let error = std::io::Error::last_os_error();
        error.raw_os_error().unwrap_or_default()
    })
}

/// Returns the call in the extended table, if the library has both (`verbs_get_ctx_op` in the
/// header).
///
/// # Safety
///
/// The context must be open.
unsafe fn entry(context: *mut ibv_context) -> Option<CreateQpEx> {
    // SAFETY: the caller guarantees that the context is open until this returns, so it can be read.
    let is_extended = unsafe { (*context).abi_compat }.addr() == usize::MAX;
    if !is_extended {
        return None;
    }
    // SAFETY: the marker in `abi_compat` says that the context is the last field of the larger
    // struct.
    let table =
        unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast::<verbs_context>();
    // The struct grows at its beginning, so its size, counted from the end, determines which fields
    // it has.
    let needed = size_of::<verbs_context>() - offset_of!(verbs_context, create_qp_ex);
    // SAFETY: the size field is near the end, where every version of the struct has it.
    if unsafe { (*table).sz } < needed {
        return None;
    }
    // SAFETY: the size checked above shows that the struct contains the field.
    unsafe { ptr::addr_of!((*table).create_qp_ex).read() }
}

/// Finds the option that the device lacks by requesting each option separately; `None` if it has
/// all of them.
///
/// # Safety
///
/// As for [`create_qp_ex`].
#[cold]
pub(super) unsafe fn lacking(
    domain: &Domain,
    wanted: &ibv_qp_init_attr,
    extended: &ExtendedConfig,
) -> Option<VerbsError> {
    let handle = &domain.handle;
    let (_, what) = extended.fields().find(|(alone, _)| {
        let mut wanted = *wanted;
        // SAFETY: the caller guarantees that the queues are alive and of the domain's context.
        match unsafe { create_qp_ex(domain, &mut wanted, alone) } {
            Ok(made) => {
                // SAFETY: the queue pair was created in this iteration, and nothing else uses it.
                let returned = unsafe { (handle.library.ibv_destroy_qp)(made.as_ptr()) };
                log_leak("destroy_qp", returned);
                false
            }
            Err(_) => true,
        }
    })?;
    Some(VerbsError::NotSupported {
        call: CALL,
        device: handle.name.clone(),
        what,
    })
}
