//! A memory registration, owned by a region, or jointly by the slots of a region.

use std::sync::Arc;

use crate::provider;

/// The registration, owned by the region, or jointly by its slots.
pub(super) struct RegisteredMemory {
    // Before the domain: fields are dropped in order, and a domain with regions cannot be
    // destroyed.
    pub(super) raw: provider::MemoryRegion,
    _domain: Arc<provider::ProtectionDomain>,
}

impl RegisteredMemory {
    pub(super) fn new(
        raw: provider::MemoryRegion,
        domain: Arc<provider::ProtectionDomain>,
    ) -> Self {
        Self {
            raw,
            _domain: domain,
        }
    }
}
