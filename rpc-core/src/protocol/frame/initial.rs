//! The metadata section of a response with [`Flags::INITIAL`](super::Flags::INITIAL): the length of
//! the initial metadata, the initial metadata, the trailing metadata.
//!
//! ```text
//!  0              2
//! ┌──────────────┬──────────────────┬───────────────────┐
//! │ initial_len  │ initial metadata │ trailing metadata │
//! │ u16          │                  │                   │
//! └──────────────┴──────────────────┴───────────────────┘
//! ```

use super::FrameError;

/// Length in bytes of the initial metadata's length, which is a little-endian `u16`.
pub const INITIAL_LEN: usize = 2;

/// Splits the metadata section of a response into initial and trailing metadata.
///
/// # Errors
///
/// Returns [`FrameError::InitialLen`] if the section is too short.
pub fn split_initial(metadata: &[u8]) -> Result<(&[u8], &[u8]), FrameError> {
    let split = metadata
        .split_first_chunk::<INITIAL_LEN>()
        .and_then(|(len, rest)| rest.split_at_checked(u16::from_le_bytes(*len).into()));
    split.ok_or(FrameError::InitialLen {
        metadata_len: metadata.len(),
    })
}
