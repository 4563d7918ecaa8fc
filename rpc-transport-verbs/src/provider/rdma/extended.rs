//! `ibv_create_qp_ex`, which the header does inline, through the larger table of the context. rdma-sys's own
//! looks for that table where it never is on a 64-bit machine.

use std::mem::offset_of;
use std::os::raw::c_int;
use std::ptr::{self, NonNull};

use rdma_sys::{
    ibv_context, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask as mask,
    verbs_context,
};

use super::log_leak;
use super::memory::Domain;
use crate::verbs::types::{CreateFlags, ExtendedConfig, VerbsError};

const CALL: &str = "create_qp_ex";

type CreateQpEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;

/// A queue pair of the domain, or the error number of what was asked for; what was granted is written to
/// `wanted`.
///
/// # Safety
///
/// The queues of `wanted` are alive and of the domain's context.
pub(super) unsafe fn create_qp_ex(
    domain: &Domain,
    wanted: &mut ibv_qp_init_attr,
    extended: &ExtendedConfig,
) -> Result<NonNull<ibv_qp>, c_int> {
    let context = domain.handle.raw();
    // SAFETY: the context is open.
    let Some(create) = (unsafe { entry(context) }) else {
        return Err(rustix::io::Errno::OPNOTSUPP.raw_os_error());
    };
    // SAFETY: a plain struct of numbers and pointers, for which zero is a value.
    let mut raw: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    raw.qp_context = wanted.qp_context;
    raw.send_cq = wanted.send_cq;
    raw.recv_cq = wanted.recv_cq;
    raw.srq = wanted.srq;
    raw.cap = wanted.cap;
    raw.qp_type = wanted.qp_type;
    raw.sq_sig_all = wanted.sq_sig_all;
    raw.pd = domain.raw();
    let mut which = mask::IBV_QP_INIT_ATTR_PD;
    let mut flags = extended.create_flags;
    if let Some(number) = extended.source_qpn {
        raw.source_qpn = number.0;
        flags = flags | CreateFlags::SOURCE_QPN;
    }
    if flags != CreateFlags::default() {
        raw.create_flags = flags.bits();
        which |= mask::IBV_QP_INIT_ATTR_CREATE_FLAGS;
    }
    if let Some(len) = extended.max_tso_header {
        raw.max_tso_header = len;
        which |= mask::IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    }
    if extended.send_ops.bits() != 0 {
        raw.send_ops_flags = extended.send_ops.bits();
        which |= mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    }
    raw.comp_mask = which.0;
    // SAFETY: domain and queues are alive, says the caller; the struct is as long as its mask says.
    let made = unsafe { create(context, &mut raw) };
    wanted.cap = raw.cap;
    NonNull::new(made).ok_or_else(|| {
        let error = std::io::Error::last_os_error();
        error.raw_os_error().unwrap_or_default()
    })
}

/// The call in the larger table, if the library has both: `verbs_get_ctx_op` of the header.
///
/// # Safety
///
/// The context is open.
unsafe fn entry(context: *mut ibv_context) -> Option<CreateQpEx> {
    // SAFETY: open, says the caller.
    let is_extended = unsafe { (*context).abi_compat }.addr() == usize::MAX;
    if !is_extended {
        return None;
    }
    // SAFETY: the mark says that the context is the last field of the larger struct.
    let table =
        unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast::<verbs_context>();
    // The struct grows at its beginning: what is in it is told by its size, from the end.
    let needed = size_of::<verbs_context>() - offset_of!(verbs_context, create_qp_ex);
    // SAFETY: the size is near the end of each version of the struct.
    if unsafe { (*table).sz } < needed {
        return None;
    }
    // SAFETY: the struct is long enough to have it.
    unsafe { ptr::addr_of!((*table).create_qp_ex).read() }
}

/// Names what of it the device lacks, by asking for each by itself; `None` if it has each.
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
        // SAFETY: says the caller.
        match unsafe { create_qp_ex(domain, &mut wanted, alone) } {
            Ok(made) => {
                // SAFETY: made in this loop, and used by nobody.
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
