//! The handle of an open device, and the queries on it.

use std::io;
use std::os::fd::BorrowedFd;

use rdma_sys::{ibv_context, ibv_gid, ibv_port_attr};

use super::super::fork_guard::ForkGuard;
use super::super::limits::{AttributeLimits, in_range};
use super::decode::port_attributes;
use super::interruption::Interruption;
use super::known_windows::KnownWindows;
use super::library::Library;
use super::{check, os_error};
use crate::types::{DeviceAttributes, Gid, PartitionKey, PortAttributes, VerbsError};

/// The open device, shared by everything that was created from it.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) raw: *mut ibv_context,
    pub(super) library: &'static Library,
    pub(super) name: String,
    pub(super) interruption: Interruption,
    pub(super) fork_guard: ForkGuard,
    /// The device's attributes, except that `max_inline_data`, which it does not report, is 0 here.
    pub(super) limits: DeviceAttributes,
    pub(super) attribute_limits: AttributeLimits,
    /// Whether this is the kernel's software device (Soft-RoCE), whose driver behaves differently.
    pub(super) is_soft_roce: bool,
    pub(super) windows: KnownWindows,
}

// SAFETY: libibverbs locks the state that its calls share, and the pointer is only passed to those
// calls.
unsafe impl Send for Handle {}

// SAFETY: any verb may be called from any thread (ibv_open_device(3) and the library's
// documentation of thread safety), so shared references may be used concurrently.
unsafe impl Sync for Handle {}

impl Handle {
    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw
    }

    pub(super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context and its file stay open for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.raw).async_fd) }
    }

    /// Returns true in the process that opened the device. Destructors act only there.
    pub(super) fn is_ours(&self) -> bool {
        self.fork_guard.check().is_ok()
    }

    fn check_port(&self, call: &'static str, port: u8) -> Result<(), VerbsError> {
        let count = self.limits.port_count;
        in_range(call, "port", port.into(), 1, count.into())
    }

    pub(super) fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.fork_guard.check()?;
        self.check_port("query_port", port)?;
        // SAFETY: a plain struct of numbers, for which all zeros is a valid value. It must be
        // zeroed, because the exported function writes an older, shorter struct.
        let mut raw: ibv_port_attr = unsafe { std::mem::zeroed() };
        let attributes: *mut ibv_port_attr = &mut raw;
        // SAFETY: the older struct is a prefix of ours, so the pointer is valid for the function's
        // writes.
        let returned = unsafe { (self.library.ibv_query_port)(self.raw, port, attributes.cast()) };
        check("query_port", returned)?;
        Ok(port_attributes(&raw))
    }

    pub(super) fn query_pkey(&self, port: u8, index: u16) -> Result<PartitionKey, VerbsError> {
        const CALL: &str = "query_pkey";
        self.fork_guard.check()?;
        self.check_port(CALL, port)?;
        let count = usize::from(self.query_port(port)?.pkey_count);
        in_range(CALL, "index", index.into(), 0, count.saturating_sub(1))?;
        let mut key: u16 = 0;
        // SAFETY: the context is open while `self` lives, and the key is written to a local
        // variable.
        let returned =
            unsafe { (self.library.ibv_query_pkey)(self.raw, port, index.into(), &mut key) };
        match returned {
            0 => Ok(PartitionKey(u16::from_be(key))),
            _ => Err(os_error(CALL)),
        }
    }

    pub(super) fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.fork_guard.check()?;
        self.check_port("query_gid", port)?;
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open while `self` lives, and the GID is written to a local
        // variable.
        let returned =
            unsafe { (self.library.ibv_query_gid)(self.raw, port, index.into(), &mut gid) };
        if returned != 0 {
            let error = os_error("query_gid");
            // Checked only after a failure: most callers know the length of the table.
            let count = self.query_port(port)?.gid_count as usize;
            in_range(
                "query_gid",
                "index",
                index.into(),
                0,
                count.saturating_sub(1),
            )?;
            return Err(error);
        }
        // SAFETY: every pattern of 16 bytes is a valid value of the union's field.
        Ok(Gid(unsafe { gid.raw }))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: every object that was created from the context holds an `Arc` of it, so none
            // is left.
            let returned = unsafe { (self.library.ibv_close_device)(self.raw) };
            if returned != 0 {
                tracing::error!(device = %self.name, "the device cannot be closed");
            }
        }
    }
}

/// Replaces `error` by `NotSupported` if the device reported that it lacks `what`.
pub(super) fn not_supported(
    handle: &Handle,
    call: &'static str,
    what: &'static str,
    error: VerbsError,
) -> VerbsError {
    match &error {
        VerbsError::Os { source, .. } if source.kind() == io::ErrorKind::Unsupported => {
            VerbsError::NotSupported {
                call,
                device: handle.name.clone(),
                what,
            }
        }
        _ => error,
    }
}
