//! Memory windows (`ibv_alloc_mw(3)`) and address handles (`ibv_create_ah(3)`).

use std::os::raw::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_ah, ibv_alloc_mw, ibv_dealloc_mw, ibv_mw, ibv_mw_type};

use super::super::limits::WrongValue;
use super::handle::not_supported;
use super::memory::{Domain, ProtectionDomain};
use super::modify::address_refused;
use super::names::{AddressName, WindowName, from_any_thread};
use super::raw_attributes::address_handle;
use super::{log_leak, os_error};
use crate::types::{AddressVector, RemoteKey, VerbsError, WindowType};

#[derive(Debug)]
pub(crate) struct MemoryWindow {
    raw: NonNull<ibv_mw>,
    first_key: RemoteKey,
    domain: Arc<Domain>,
}

impl ProtectionDomain {
    pub(crate) fn alloc_mw(&self, window_type: WindowType) -> Result<MemoryWindow, VerbsError> {
        MemoryWindow::alloc(&self.domain, window_type)
    }
}

impl MemoryWindow {
    fn alloc(domain: &Arc<Domain>, window_type: WindowType) -> Result<Self, VerbsError> {
        const CALL: &str = "alloc_mw";
        domain.handle.fork_guard.check()?;
        let (raw_type, what) = match window_type {
            WindowType::Type1 => (ibv_mw_type::IBV_MW_TYPE_1, "memory windows of type 1"),
            WindowType::Type2 => (ibv_mw_type::IBV_MW_TYPE_2, "memory windows of type 2"),
        };
        // SAFETY: the domain is alive while it is borrowed here. The header's inline function calls
        // the driver through the context's table, if the driver has the call. It may return `Some`
        // of a null pointer.
        let raw = unsafe { ibv_alloc_mw(domain.raw(), raw_type) };
        let Some(raw) = raw.and_then(NonNull::new) else {
            return Err(not_supported(&domain.handle, CALL, what, os_error(CALL)));
        };
        // SAFETY: the library has initialized the window, and no request can bind it yet.
        let first_key = RemoteKey(unsafe { (*raw.as_ptr()).rkey });
        if window_type == WindowType::Type2 {
            domain.handle.windows.add(first_key);
        }
        Ok(Self {
            raw,
            first_key,
            domain: Arc::clone(domain),
        })
    }

    pub(crate) fn first_key(&self) -> RemoteKey {
        self.first_key
    }

    pub(crate) fn name(&self) -> WindowName {
        WindowName(self.raw)
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if self.domain.handle.is_ours() {
            self.domain.handle.windows.remove(self.first_key);
            // SAFETY: the window was allocated once. Requests in flight that bind it hold it, so
            // none is left. If it is still bound, deallocating it ends the binding.
            log_leak("dealloc_mw", unsafe { ibv_dealloc_mw(self.raw.as_ptr()) });
        }
    }
}

#[derive(Debug)]
pub(crate) struct AddressHandle {
    raw: NonNull<ibv_ah>,
    domain: Arc<Domain>,
}

impl ProtectionDomain {
    pub(crate) fn create_ah(&self, address: &AddressVector) -> Result<AddressHandle, VerbsError> {
        AddressHandle::create(&self.domain, address)
    }
}

impl AddressHandle {
    fn create(domain: &Arc<Domain>, address: &AddressVector) -> Result<Self, VerbsError> {
        const CALL: &str = "create_ah";
        let handle = &domain.handle;
        handle.fork_guard.check()?;
        let named = |wrong: WrongValue| wrong.to_argument_error(CALL, "address");
        handle
            .attribute_limits
            .check_address(address)
            .map_err(named)?;
        let mut attributes = address_handle(*address);
        // SAFETY: the domain is alive while it is borrowed here; the driver reads the attributes
        // during the call and does not keep the pointer.
        let raw = unsafe { (handle.library.ibv_create_ah)(domain.raw(), &mut attributes) };
        let Some(raw) = NonNull::new(raw) else {
            let error = os_error(CALL);
            return Err(address_refused(handle, address.port, address).map_or(error, named));
        };
        Ok(Self {
            raw,
            domain: Arc::clone(domain),
        })
    }

    pub(crate) fn name(&self) -> AddressName {
        AddressName(self.raw)
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        let handle = &self.domain.handle;
        if handle.is_ours() {
            // SAFETY: the handle was created once. Requests in flight that use it hold it, so none
            // is left.
            let returned: c_int = unsafe { (handle.library.ibv_destroy_ah)(self.raw.as_ptr()) };
            log_leak("destroy_ah", returned);
        }
    }
}

from_any_thread! { MemoryWindow AddressHandle }
