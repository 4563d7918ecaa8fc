//! [`ControlEntry`]: an entry in the body of a control frame, about a call or a long message.
//!
//! ```text
//!  0             4                     8
//! ┌─────────────┬─────────────────────┐
//! │ call id or  │ value               │
//! │ transfer id │ u32                 │
//! └─────────────┴─────────────────────┘
//! ```
//!
//! | value | about | meaning |
//! | --- | --- | --- |
//! | 1 to 2³¹ − 1 | a call | a window grant of so many bytes |
//! | 0x8000_0000 | a call | a cancellation |
//! | 0xa000_0000 + n | a long message | the receiver has fetched the next n segments, n ≥ 1 |
//! | 0xc000_0000 | a long message | the receiver has taken memory for all of it |
//! | 0xe000_0000 | a long message | the receiver wants no more of it, and reads none of it any more |

use super::{CallId, FrameError, FrameHeader, TransferId};

/// Length of an entry in bytes.
pub const ENTRY_LEN: usize = 8;

const CANCEL: u32 = 1 << 31;
const FETCHED: u32 = 0xa000_0000;
const ACCEPTED: u32 = 0xc000_0000;
const STOPPED: u32 = 0xe000_0000;

/// An entry of a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ControlEntry {
    /// The call that the entry is about; or the long message, as `TransferId` with the same bits.
    pub call: CallId,
    /// The request or the report of the sender of the control frame.
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
    /// The receiver of a long message has fetched this many more of its segments: from 1 to
    /// [`ControlEntry::MAX_FETCHED`].
    Fetched(u32),
    /// The receiver of a long message has taken memory for all of it.
    Accepted,
    /// The receiver of a long message wants no more of it, and does not read its segments any more.
    Stopped,
}

impl ControlEntry {
    /// The largest grant of one entry.
    pub const MAX_GRANT: u32 = CANCEL - 1;

    /// The most segments of one entry.
    pub const MAX_FETCHED: u32 = ACCEPTED - FETCHED - 1;

    /// Creates an entry about a long message.
    #[must_use]
    pub fn of_transfer(transfer: TransferId, request: ControlRequest) -> Self {
        let call = CallId(transfer.0);
        Self { call, request }
    }

    /// Returns the long message that the entry is about, if it is about one.
    #[must_use]
    pub fn transfer(self) -> Option<TransferId> {
        match self.request {
            ControlRequest::Cancel | ControlRequest::Grant(_) => None,
            ControlRequest::Fetched(_) | ControlRequest::Accepted | ControlRequest::Stopped => {
                Some(TransferId(self.call.0))
            }
        }
    }

    /// Encodes the entry.
    #[must_use]
    pub fn encode(self) -> [u8; ENTRY_LEN] {
        (u64::from(self.call.0) | u64::from(self.value()) << 32).to_le_bytes()
    }

    /// Returns the value, as encoded.
    pub(crate) fn value(self) -> u32 {
        match self.request {
            ControlRequest::Cancel => CANCEL,
            ControlRequest::Grant(bytes) => {
                debug_assert!((1..=Self::MAX_GRANT).contains(&bytes));
                bytes & Self::MAX_GRANT
            }
            ControlRequest::Fetched(segments) => {
                debug_assert!((1..=Self::MAX_FETCHED).contains(&segments));
                FETCHED | segments & Self::MAX_FETCHED
            }
            ControlRequest::Accepted => ACCEPTED,
            ControlRequest::Stopped => STOPPED,
        }
    }

    fn parse(bytes: [u8; ENTRY_LEN]) -> Result<Self, FrameError> {
        let bits = u64::from_le_bytes(bytes);
        let value = (bits >> 32) as u32;
        let request = match value {
            CANCEL => ControlRequest::Cancel,
            1..=Self::MAX_GRANT => ControlRequest::Grant(value),
            ACCEPTED => ControlRequest::Accepted,
            STOPPED => ControlRequest::Stopped,
            _ if value > FETCHED && value < ACCEPTED => ControlRequest::Fetched(value - FETCHED),
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

impl FrameHeader {
    /// Validates the body of a control frame with this header, and returns its entries.
    ///
    /// # Errors
    ///
    /// Returns [`FrameError`] if the frame has metadata, or if its body is not a sequence of valid
    /// entries.
    pub(crate) fn control_entries<'a>(
        &self,
        body: &'a [u8],
    ) -> Result<ControlEntries<'a>, FrameError> {
        match self.metadata_len {
            0 => ControlEntries::parse(body),
            metadata_len => Err(FrameError::ControlLen {
                metadata_len: metadata_len.into(),
                len: body.len(),
            }),
        }
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
