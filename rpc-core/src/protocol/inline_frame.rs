//! [`InlineFrame`]: private memory of this side in which a short frame is encoded or decoded.
//!
//! A short frame needs no slot of the transport while it is encoded or decoded. So application code
//! that panics or reenters the poller there holds nothing that has to be given back.

use std::cell::Cell;
use std::fmt;

use super::frame::HEADER_LEN;

/// Length of the longest inline frame: as many bytes as the software device sends inline. A driver uses as
/// much of it as its transport sends inline.
pub(crate) const INLINE_FRAME_LEN: usize = 1024;

/// Memory for one frame. On the heap, so that it moves as a pointer.
pub(crate) struct InlineFrame(Box<[u8; INLINE_FRAME_LEN]>);

impl InlineFrame {
    fn new() -> Self {
        Self(Box::new([0; INLINE_FRAME_LEN]))
    }

    /// Returns all of the memory.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; INLINE_FRAME_LEN] {
        &mut self.0
    }

    /// Returns the memory for the body of a frame of at most `longest` bytes.
    #[inline]
    pub(crate) fn body_mut(&mut self, longest: usize) -> &mut [u8] {
        let end = longest.clamp(HEADER_LEN, INLINE_FRAME_LEN);
        &mut self.0[HEADER_LEN..end]
    }

    /// Returns the frame whose body has `body_len` bytes.
    #[inline]
    pub(crate) fn frame_mut(&mut self, body_len: usize) -> &mut [u8] {
        &mut self.0[..HEADER_LEN + body_len]
    }
}

/// A spare inline frame, kept so that calls do not allocate.
#[derive(Default)]
pub(crate) struct SpareFrame(Cell<Option<InlineFrame>>);

impl SpareFrame {
    /// Takes the spare frame. Allocates another while the spare is in use, which happens only in
    /// calls that application code makes while it encodes or decodes.
    #[inline]
    pub(crate) fn take(&self) -> InlineFrame {
        self.0.take().unwrap_or_else(InlineFrame::new)
    }

    #[inline]
    pub(crate) fn put_back(&self, frame: InlineFrame) {
        self.0.set(Some(frame));
    }
}

impl fmt::Debug for SpareFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpareFrame")
    }
}
