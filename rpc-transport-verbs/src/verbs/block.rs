//! Blocks: pieces of a region that peers may be let read, each an exclusive token for its bytes.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::element::Element;
use super::exposed_memory::ExposedMemory;
use super::memory_window::Binding;
use super::protection_domain::ProtectionDomain;
use super::types::access::Access;
use super::types::keys::RemoteKey;
use super::types::verbs_error::VerbsError;

/// A region that is divided into [`Block`]s. No peer can write it: it has no remote rights, or the
/// right to read only, and so have the windows that [`binding`](Self::binding) describes. Its bytes
/// are therefore plain memory of the owners of the blocks.
#[derive(Debug)]
pub(crate) struct BlockRegion {
    /// Private: with access to it, windows with other rights could be bound.
    memory: ExposedMemory,
}

/// A piece of a [`BlockRegion`]. It is the only token for its bytes: its owner may write them, and
/// whoever borrows it may read them. A peer may read them too, while a window is bound over them.
#[derive(Debug)]
pub(crate) struct Block {
    region: Arc<BlockRegion>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a block is the only token for its bytes (`register_blocks` makes one for each disjoint
// piece of a region that it has just registered), so sending it transfers the exclusive right to
// them. The region, which it shares with other blocks, is Send and Sync.
unsafe impl Send for Block {}
// SAFETY: a shared block only permits reading its bytes.
unsafe impl Sync for Block {}

/// A block that READs fill. Nobody can access its bytes until all requests that name it have
/// completed or their queue pair is gone.
#[derive(Debug)]
pub(crate) struct Destination(Arc<Block>);

impl ProtectionDomain {
    /// Registers a region of `count` blocks of `block_len` bytes each, and returns them in the order
    /// of their addresses. If `is_readable`, peers that know the region's key may read all of it at
    /// any time. Otherwise they may read what windows are bound over.
    ///
    /// # Errors
    ///
    /// As for [`expose`](Self::expose).
    pub(crate) fn register_blocks(
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
            // SAFETY: the region has at least `block_len * count` bytes, which stay mapped while
            // `region` lives.
            start: unsafe { region.memory.start().add(index * block_len) },
            len: block_len,
            region: Arc::clone(&region),
        });
        let blocks = blocks.collect();
        Ok((region, blocks))
    }
}

impl BlockRegion {
    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.memory.start().as_ptr().addr()
    }

    /// Returns the registered length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns the key with which peers may read the region, if it was registered for that.
    pub(crate) fn remote_key(&self) -> RemoteKey {
        self.memory.remote_key()
    }

    /// Describes a window that lets peers read the `len` bytes at `address`, which must be inside
    /// the region.
    pub(crate) fn binding(&self, address: usize, len: usize) -> Binding {
        let start = address.saturating_sub(self.address());
        Binding::new(&self.memory, start..start + len, Access::REMOTE_READ)
    }
}

impl Block {
    /// Returns the region that the block is a piece of.
    pub(crate) fn region(&self) -> &Arc<BlockRegion> {
        &self.region
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
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

impl Destination {
    /// Gives a block up to the READs that will name it.
    pub(crate) fn new(block: Block) -> Self {
        Self(Arc::new(block))
    }

    /// Makes an element of the bytes of `range`, for an RDMA READ. The request shares ownership of
    /// the block until it has completed. Returns `None` if the block has no such bytes.
    pub(crate) fn element(&self, range: Range<usize>) -> Option<Element> {
        let block = &self.0;
        if range.start > range.end || range.end > block.len {
            return None;
        }
        let len = u32::try_from(range.len()).ok()?;
        // SAFETY: the range is inside the block, as was just checked.
        let start = unsafe { block.start.add(range.start) };
        let key = block.region.memory.local_key();
        Some(Element::of_block(Arc::clone(block), start, len, key))
    }

    /// Returns the block, if no request names it.
    pub(crate) fn into_block(self) -> Result<Block, Self> {
        Arc::try_unwrap(self.0).map_err(Self)
    }
}
