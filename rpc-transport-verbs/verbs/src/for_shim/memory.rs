//! Pages of the program, protection domains, and what is in them besides queues.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{CompletionQueue, QueuePair, SharedReceiveQueue};
use crate::provider;
use crate::types::{
    Access, AddressVector, ExtendedConfig, LocalKey, QpType, QueuePairCapabilities, RemoteKey,
    VerbsError, WindowType,
};

/// Pages of the program that peers in shared memory map.
#[derive(Clone, Debug)]
pub struct Pages(Arc<provider::SharedMemory>);

impl Pages {
    /// Turns the pages that contain the bytes into shared memory with the same content.
    ///
    /// # Safety
    ///
    /// The pages are the program's, and are in no other `Pages`. The program neither writes into them
    /// during the call nor unmaps them as long as regions in them are registered.
    ///
    /// # Errors
    ///
    /// If the pages are not mapped, or the system has no memory for the copy.
    pub unsafe fn share(start: NonNull<u8>, len: usize) -> io::Result<Self> {
        // SAFETY: what the caller has promised.
        unsafe { provider::share(start, len) }.map(|memory| Self(Arc::new(memory)))
    }

    /// Gives this process a copy of its own of those pages that are still mapped where they were.
    ///
    /// # Errors
    ///
    /// If the system does not say what is mapped, or does not map it again.
    pub fn make_private(&self) -> io::Result<()> {
        provider::make_private(&self.0)
    }

    /// Does the same in the child of a fork, without using the heap.
    ///
    /// # Safety
    ///
    /// The pages are mapped where they were.
    ///
    /// # Errors
    ///
    /// If the system does not map them again.
    pub unsafe fn make_private_after_fork(&self) -> io::Result<()> {
        // SAFETY: the caller has promised.
        unsafe { provider::make_private_after_fork(&self.0) }
    }

    /// Returns the first address, and the first after the last.
    pub fn range(&self) -> (usize, usize) {
        let start = self.0.mapping.start().as_ptr().addr();
        (start, start + self.0.mapping.len())
    }

    /// Returns how many there are of this value: regions in the pages, and holders of it.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

/// A protection domain.
#[derive(Debug)]
pub struct ProtectionDomain(pub(super) provider::ProtectionDomain);

impl ProtectionDomain {
    /// Registers memory of the program. `pages`, which contain it, are needed on a device that peers in
    /// shared memory reach.
    ///
    /// # Safety
    ///
    /// The bytes are the program's, readable and writable, and stay mapped as long as the region is
    /// there. They are in `pages`.
    ///
    /// # Errors
    ///
    /// If the rights or the length are not possible.
    pub unsafe fn register(
        &self,
        pages: Option<&Pages>,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let pages = pages.map(|pages| &pages.0);
        // SAFETY: what the caller has promised.
        unsafe { self.0.register_at(pages, (start, len), access) }.map(MemoryRegion)
    }

    /// Creates a memory window.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub fn alloc_mw(&self, window_type: WindowType) -> Result<MemoryWindow, VerbsError> {
        self.0.alloc_mw(window_type).map(MemoryWindow)
    }

    /// Creates an address handle.
    ///
    /// # Errors
    ///
    /// If the address cannot be reached by datagrams.
    pub fn create_ah(&self, address: &AddressVector) -> Result<AddressHandle, VerbsError> {
        self.0.create_ah(address).map(AddressHandle)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// If a size is out of range.
    pub fn create_srq(
        &self,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        self.0.create_srq(max_wr, max_sge).map(SharedReceiveQueue)
    }

    /// Creates a queue pair of this type. Of the capabilities, those that are granted are in
    /// [`QueuePair::capabilities`].
    ///
    /// # Errors
    ///
    /// If a size is out of range, or an object is of another context.
    pub fn create_qp(
        &self,
        qp_type: QpType,
        (send_cq, recv_cq): (&CompletionQueue, &CompletionQueue),
        srq: Option<&SharedReceiveQueue>,
        sizes: &QueuePairCapabilities,
        sq_sig_all: bool,
    ) -> Result<QueuePair, VerbsError> {
        let config = provider::QueuePairConfig {
            send_cq: &send_cq.0,
            recv_cq: &recv_cq.0,
            srq: srq.map(|srq| &srq.0),
            options: provider::QueuePairOptions {
                qp_type,
                max_send_wr: sizes.max_send_wr,
                max_recv_wr: sizes.max_recv_wr,
                max_send_sge: sizes.max_send_sge,
                max_recv_sge: sizes.max_recv_sge,
                max_inline_data: sizes.max_inline_data,
                sq_sig_all,
                extended: ExtendedConfig::default(),
            },
        };
        let qp = self.0.create_qp(config)?;
        Ok(QueuePair { qp, qp_type })
    }
}

/// A registered region.
#[derive(Debug)]
pub struct MemoryRegion(pub(super) provider::MemoryRegion);

impl MemoryRegion {
    /// Returns the key for requests of this side.
    pub fn local_key(&self) -> LocalKey {
        self.0.local_key()
    }

    /// Returns the key for peers.
    pub fn remote_key(&self) -> RemoteKey {
        self.0.remote_key()
    }

    /// Returns whether a memory window is bound to the region.
    pub fn has_window(&self) -> bool {
        self.0.has_window()
    }
}

/// A memory window.
#[derive(Debug)]
pub struct MemoryWindow(pub(super) provider::MemoryWindow);

impl MemoryWindow {
    /// Returns the key that it was created with.
    pub fn first_key(&self) -> RemoteKey {
        self.0.first_key()
    }
}

/// An address handle.
#[derive(Debug)]
pub struct AddressHandle(pub(super) provider::AddressHandle);
