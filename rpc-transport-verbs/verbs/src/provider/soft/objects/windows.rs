//! Memory windows and address handles, as the provider interface above sees them.

use std::sync::Arc;

use super::ProtectionDomain;
use crate::provider::soft::names::{AddressName, WindowName};
use crate::provider::soft::process::node::domain::Domain;
use crate::provider::soft::unreliable::datagram::check_address;
use crate::types::{AddressVector, RemoteKey, VerbsError, WindowType};

#[derive(Debug)]
pub(crate) struct MemoryWindow {
    domain: Arc<Domain>,
    index: WindowName,
    first_key: RemoteKey,
}

impl MemoryWindow {
    pub(crate) fn first_key(&self) -> RemoteKey {
        self.first_key
    }

    pub(crate) fn name(&self) -> WindowName {
        self.index
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // In the child of a fork there is nothing to release.
        if let Ok(mut state) = self.domain.enter() {
            state.common.memory.dealloc_window(self.index);
        }
    }
}

#[derive(Debug)]
pub(crate) struct AddressHandle {
    address: AddressVector,
}

impl AddressHandle {
    pub(crate) fn name(&self) -> AddressName {
        self.address
    }
}

impl ProtectionDomain {
    pub(crate) fn alloc_mw(&self, window_type: WindowType) -> Result<MemoryWindow, VerbsError> {
        let serial = self.domain.node.next_serial();
        let mut state = self.domain.enter()?;
        let (index, first_key) =
            state
                .common
                .memory
                .alloc_window(serial, self.number, window_type)?;
        Ok(MemoryWindow {
            domain: Arc::clone(&self.domain),
            index,
            first_key,
        })
    }

    pub(crate) fn create_ah(&self, address: &AddressVector) -> Result<AddressHandle, VerbsError> {
        self.domain.node.check()?;
        check_address(address, self.domain.gids.first())
            .map_err(|wrong| wrong.to_argument_error("create_ah", "address"))?;
        Ok(AddressHandle { address: *address })
    }
}
