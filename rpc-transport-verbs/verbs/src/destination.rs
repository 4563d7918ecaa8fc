//! Destinations of RDMA READs: blocks that nobody can access meanwhile.

use std::ops::Range;
use std::sync::Arc;

use super::block::Block;
use super::element::Element;

/// A block that READs fill. Nobody can access its bytes until all requests that name it have
/// completed or their queue pair is gone.
#[derive(Debug)]
pub struct Destination(Arc<Block>);

impl Destination {
    /// Gives a block up to the READs that will name it.
    pub fn new(block: Block) -> Self {
        Self(Arc::new(block))
    }

    /// Makes an element of the bytes of `range`, for an RDMA READ. The request shares ownership of
    /// the block until it has completed. Returns `None` if the block has no such bytes.
    pub fn element(&self, range: Range<usize>) -> Option<Element> {
        let block = &self.0;
        if range.start > range.end || range.end > block.len() {
            return None;
        }
        let len = u32::try_from(range.len()).ok()?;
        // SAFETY: the range was just checked to be inside the block, whose bytes stay mapped while
        // the element shares ownership of the block.
        let start = unsafe { block.start().add(range.start) };
        let key = block.local_key();
        Some(Element::of_block(Arc::clone(block), start, len, key))
    }

    /// Returns the block, if no request names it.
    ///
    /// # Errors
    ///
    /// Returns the destination otherwise.
    pub fn into_block(self) -> Result<Block, Self> {
        Arc::try_unwrap(self.0).map_err(Self)
    }
}
