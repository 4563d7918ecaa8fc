//! Address handles: destinations of datagrams (`ibv_create_ah(3)`).

use std::sync::Arc;

use super::protection_domain::ProtectionDomain;
use super::types::busy::Busy;
use super::types::queue_pair_attributes::AddressVector;
use super::types::verbs_error::VerbsError;
use crate::provider;

/// An address handle: the path to a remote port, for datagrams
/// ([`WorkRequest::to`](super::WorkRequest::to)). Cloning is cheap: all clones are the same handle.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    raw: provider::AddressHandle,
    address: AddressVector,
    domain: Arc<provider::ProtectionDomain>,
}

impl ProtectionDomain {
    /// Creates an address handle for datagrams (`ibv_create_ah(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidArgument`] if the device does not accept an attribute of the address,
    /// [`VerbsError::Exhausted`] or [`VerbsError::Os`] if the device refuses,
    /// [`VerbsError::Forked`] in a forked child.
    pub fn create_ah(&self, address: AddressVector) -> Result<AddressHandle, VerbsError> {
        AddressHandle::new(self, address)
    }
}

impl AddressHandle {
    fn new(domain: &ProtectionDomain, address: AddressVector) -> Result<Self, VerbsError> {
        Ok(Self {
            shared: Arc::new(Shared {
                raw: domain.raw.create_ah(&address)?,
                address,
                domain: Arc::clone(&domain.raw),
            }),
        })
    }

    /// Returns the address vector that the handle was created from.
    pub fn address(&self) -> AddressVector {
        self.shared.address
    }

    pub(super) fn is_of(&self, domain: &Arc<provider::ProtectionDomain>) -> bool {
        Arc::ptr_eq(&self.shared.domain, domain)
    }

    pub(super) fn name(&self) -> provider::AddressName {
        self.shared.raw.name()
    }

    /// Destroys the handle (`ibv_destroy_ah(3)`).
    ///
    /// # Errors
    ///
    /// [`Busy`], with the handle, while there are clones of it or requests in flight that use it.
    pub fn destroy(self) -> Result<(), Busy<Self>> {
        Busy::unless_sole("destroy_ah", self.shared, |shared| Self { shared })
    }
}
