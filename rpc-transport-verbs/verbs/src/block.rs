//! Blocks: pieces of a region that peers may be let read, each an exclusive token for its bytes.

use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

use super::exposed_memory::ExposedMemory;
use super::memory_window::Binding;
use super::protection_domain::ProtectionDomain;
use super::registered_memory::RegisteredMemory;
use super::types::access::Access;
use super::types::keys::{LocalKey, RemoteKey};
use super::types::verbs_error::VerbsError;

/// A region that is divided into [`Block`]s. No peer can write it: it has no remote rights, or the
/// right to read only, and so have the windows that [`binding`](Self::binding) describes. Its bytes
/// are therefore plain memory of the owners of the blocks.
#[derive(Debug)]
pub struct BlockRegion {
    /// Private: with access to it, windows with other rights could be bound.
    memory: ExposedMemory,
}

/// A piece of a [`BlockRegion`]. It is the only token for its bytes: its owner may write them, and
/// whoever borrows it may read them. A peer may read them too, while a window is bound over them.
#[derive(Debug)]
pub struct Block {
    region: Arc<BlockRegion>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a block is the only token for its bytes (`register_blocks` makes one for each disjoint
// piece of a region that it has just registered), so sending it transfers the exclusive right to
// them. The region, which it shares with other blocks, is Send and Sync.
unsafe impl Send for Block {}
// SAFETY: through `&Block`, this process only reads the bytes. Nothing writes them meanwhile: a
// write needs `&mut Block`, and a request of the device a `Destination`, which owns the block.
unsafe impl Sync for Block {}

impl ProtectionDomain {
    /// Registers a region of `count` blocks of `block_len` bytes each, and returns them in the order
    /// of their addresses. If `is_readable`, peers that know the region's key may read all of it at
    /// any time. Otherwise they may read what windows are bound over.
    ///
    /// # Errors
    ///
    /// As for [`expose`](Self::expose).
    #[doc(hidden)]
    pub fn register_blocks(
        &self,
        block_len: usize,
        count: usize,
        is_readable: bool,
    ) -> Result<(Arc<BlockRegion>, Vec<Block>), VerbsError> {
        let access = match is_readable {
            true => Access::LOCAL_WRITE | Access::REMOTE_READ,
            false => Access::LOCAL_WRITE | Access::MW_BIND,
        };
        let memory = self.expose(block_len.saturating_mul(count), access)?;
        let region = Arc::new(BlockRegion { memory });
        let blocks = (0..count).map(|index| Block {
            // SAFETY: `expose` has mapped at least `block_len * count` bytes, and `index` is less
            // than `count`. They stay mapped while `region` lives, and the block shares its
            // ownership.
            start: unsafe { region.memory.start().add(index * block_len) },
            len: block_len,
            region: Arc::clone(&region),
        });
        let blocks = blocks.collect();
        Ok((region, blocks))
    }
}

impl ProtectionDomain {
    /// Registers `bytes` where they lie, on the software device, and keeps them: peers over TCP may read
    /// what windows are bound over. Nobody writes them.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if there are none or too many, [`VerbsError::Exhausted`] if there
    /// are too many regions, and an error on other devices.
    #[doc(hidden)]
    pub fn lend(&self, bytes: Bytes) -> Result<BlockRegion, VerbsError> {
        let raw = self.raw.lend(bytes)?;
        let memory = RegisteredMemory::new(raw, Arc::clone(&self.raw));
        let memory = ExposedMemory::new(memory, Access::MW_BIND);
        Ok(BlockRegion { memory })
    }
}

impl BlockRegion {
    /// Returns the address of the first byte.
    pub fn address(&self) -> usize {
        self.memory.start().as_ptr().addr()
    }

    /// Returns the registered length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "it has at least one byte")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns the key with which peers may read the region, if it was registered for that.
    pub fn remote_key(&self) -> RemoteKey {
        self.memory.remote_key()
    }

    /// Describes a window that lets peers read the `len` bytes at `address`, which must be inside
    /// the region.
    pub fn binding(&self, address: usize, len: usize) -> Binding {
        // An address before the region becomes a range that no post accepts.
        let start = address.wrapping_sub(self.address());
        let end = start.saturating_add(len);
        Binding::new(&self.memory, start..end, Access::REMOTE_READ)
    }
}

impl Block {
    /// Returns the region that the block is a piece of.
    pub fn region(&self) -> &Arc<BlockRegion> {
        &self.region
    }

    /// Returns a pointer to the first byte, for the device.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the region's key for local work requests.
    pub(super) fn local_key(&self) -> LocalKey {
        self.region.memory.local_key()
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "it has at least one byte")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the bytes are mapped and initialized while `region` lives. Nothing writes them
        // while `self` is borrowed: a write needs `&mut Block`, a request of the device needs a
        // `Destination`, which owns the block, and peers have no right to write (`BlockRegion`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for Block {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_ref`, and nothing in this process reads the bytes: `self` is the only
        // token for them. A peer that still reads them sees old or new bytes, through its own
        // mapping or through its device.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}
