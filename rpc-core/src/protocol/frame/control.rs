//! [`ControlEntry`]: a cancellation or a window grant in the body of a control frame.
//!
//! ```text
//!  0          4  31 30                 0
//! ┌──────────┬────┬────────────────────┐
//! │ call id  │ c  │ grant in bytes     │   c = 1: cancellation, and the grant is 0
//! │ u32      │        u32              │   c = 0: the grant is at least 1
//! └──────────┴────┴────────────────────┘
//! ```

use super::{CallId, FrameError};

/// Length of an entry in bytes.
pub const ENTRY_LEN: usize = 8;

const CANCEL: u32 = 1 << 31;

/// An entry of a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ControlEntry {
    /// The call that the entry is about.
    pub call: CallId,
    /// What the sender requests.
    pub request: ControlRequest,
}

/// The content of a [`ControlEntry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlRequest {
    /// The call is cancelled: its response should come soon.
    Cancel,
    /// The receiver may send this many more bytes of the call's messages: from 1 to
    /// [`ControlEntry::MAX_GRANT`].
    Grant(u32),
}

impl ControlEntry {
    /// The largest grant of one entry.
    pub const MAX_GRANT: u32 = CANCEL - 1;

    /// Encodes the entry.
    #[must_use]
    pub fn encode(self) -> [u8; ENTRY_LEN] {
        let value = match self.request {
            ControlRequest::Cancel => CANCEL,
            ControlRequest::Grant(bytes) => {
                debug_assert!((1..=Self::MAX_GRANT).contains(&bytes));
                bytes & Self::MAX_GRANT
            }
        };
        (u64::from(self.call.0) | u64::from(value) << 32).to_le_bytes()
    }

    fn parse(bytes: [u8; ENTRY_LEN]) -> Result<Self, FrameError> {
        let bits = u64::from_le_bytes(bytes);
        let value = (bits >> 32) as u32;
        let request = match value {
            CANCEL => ControlRequest::Cancel,
            1..=Self::MAX_GRANT => ControlRequest::Grant(value),
            _ => return Err(FrameError::ControlValue { value }),
        };
        let call = CallId(bits as u32);
        Ok(Self { call, request })
    }
}

/// The entries of a control frame, all of which are valid.
#[derive(Clone, Debug)]
pub struct ControlEntries<'a>(std::slice::Iter<'a, [u8; ENTRY_LEN]>);

impl<'a> ControlEntries<'a> {
    /// Validates the body of a control frame, before any of its entries takes effect.
    ///
    /// # Errors
    ///
    /// Returns [`FrameError`] if the body is not a sequence of valid entries.
    pub fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let (entries, rest) = body.as_chunks::<ENTRY_LEN>();
        if !rest.is_empty() {
            return Err(FrameError::ControlLen {
                metadata_len: 0,
                len: body.len(),
            });
        }
        for &entry in entries {
            ControlEntry::parse(entry)?;
        }
        Ok(Self(entries.iter()))
    }
}

impl Iterator for ControlEntries<'_> {
    type Item = ControlEntry;

    fn next(&mut self) -> Option<ControlEntry> {
        // Every entry was validated, so this ends with the last one.
        ControlEntry::parse(*self.0.next()?).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for ControlEntries<'_> {}
