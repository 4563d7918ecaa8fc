//! [`RegisteredBuf`]: registered memory of one message.

use std::fmt;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use rpc_core::transport::MessageMemory;
use verbline_verbs::CopyRule;
use verbline_verbs::for_transport::{Block, BlockRegion};

use super::process_memory::{CountedBytes, Kept};

/// Registered memory of one message. It goes back to its poller's pool when it is dropped, on any
/// thread. If the poller is gone, it is deregistered with the last memory of its region
/// (`ibv_dereg_mr(3)`).
///
/// Until they are written, its bytes are zeros or those of an earlier message.
pub struct RegisteredBuf {
    /// `None` while the block is elsewhere ([`WithoutBlock`]), and in `drop`.
    block: Option<Block>,
    len: usize,
    place: Place,
}

/// The pool that a block goes back to.
pub(super) trait TakesBack: Send + Sync {
    /// Takes back a block of the chunk with this index.
    fn give_back(&self, chunk: usize, block: Block);
}

/// Where a block belongs.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) pool: Weak<dyn TakesBack>,
    /// The index of the chunk in the pool.
    pub(super) chunk: usize,
    /// Counts the chunk's bytes as registered for as long as any of them is in use.
    pub(super) counted: Option<Arc<CountedBytes>>,
}

impl RegisteredBuf {
    pub(super) fn new(block: Block, len: usize, place: Place) -> Self {
        debug_assert!(len <= block.len());
        Self {
            block: Some(block),
            len,
            place,
        }
    }

    /// Returns the bytes that its block takes.
    pub(super) fn block_len(&self) -> usize {
        self.block.as_ref().map_or(0, Block::len)
    }

    /// Returns true if the block belongs to this pool.
    pub(super) fn is_of<T>(&self, pool: &T) -> bool {
        std::ptr::addr_eq(self.place.pool.as_ptr(), pool)
    }

    /// Takes the block out. The rest describes it until [`with_block`](WithoutBlock::with_block)
    /// puts it back.
    pub(super) fn take_block(mut self) -> Result<(Block, WithoutBlock), Self> {
        match self.block.take() {
            Some(block) => Ok((block, WithoutBlock(self))),
            None => Err(self),
        }
    }

    /// Returns the region, and the address of the first byte.
    pub(super) fn region(&self) -> Option<(Arc<BlockRegion>, usize)> {
        let block = self.block.as_ref()?;
        Some((Arc::clone(block.region()), block.address()))
    }
}

/// A [`RegisteredBuf`] whose block is elsewhere.
#[derive(Debug)]
pub(super) struct WithoutBlock(RegisteredBuf);

impl WithoutBlock {
    pub(super) fn len(&self) -> usize {
        self.0.len
    }

    /// Puts the block back.
    pub(super) fn with_block(self, block: Block) -> RegisteredBuf {
        let mut buf = self.0;
        buf.block = Some(block);
        buf
    }
}

impl Drop for RegisteredBuf {
    fn drop(&mut self) {
        if let Some(block) = self.block.take()
            && let Some(pool) = self.place.pool.upgrade()
        {
            // Before the chunk can be found free: the registrar deregisters it to make room, and
            // would find its bytes still counted. The chunk counts them until then.
            self.place.counted = None;
            pool.give_back(self.place.chunk, block);
        }
    }
}

impl AsRef<[u8]> for RegisteredBuf {
    fn as_ref(&self) -> &[u8] {
        match &self.block {
            Some(block) => &block.as_ref()[..self.len],
            None => &[],
        }
    }
}

impl AsMut<[u8]> for RegisteredBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        match &mut self.block {
            Some(block) => &mut block.as_mut()[..len],
            None => &mut [],
        }
    }
}

impl MessageMemory for RegisteredBuf {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        let to = &mut self.as_mut()[at..at + bytes.len()];
        CopyRule::of_this_machine().copy(to, bytes);
    }

    fn freeze(mut self: Box<Self>, len: usize) -> Bytes {
        assert!(
            len <= self.len,
            "there are {} bytes, fewer than {len}",
            self.len
        );
        self.len = len;
        let kept = self.place.counted.as_ref();
        Bytes::from_owner(Shared {
            _kept: kept.and_then(CountedBytes::keep),
            memory: *self,
        })
    }
}

/// Memory that is no longer written.
struct Shared {
    /// Before `memory`, so that it is dropped first: like `Place::counted`, it must be gone before the
    /// chunk can be found free.
    _kept: Option<Kept>,
    memory: RegisteredBuf,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref()
    }
}

impl fmt::Debug for RegisteredBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredBuf")
            .field("len", &self.len)
            .field("block_len", &self.block_len())
            .finish_non_exhaustive()
    }
}
