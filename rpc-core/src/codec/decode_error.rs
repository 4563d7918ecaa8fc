//! [`DecodeError`]: why bytes were not decoded as a message.

/// The error of [`Codec::decode`](super::Codec::decode).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not an encoded message.
    #[error("{0}")]
    Malformed(#[from] prost::DecodeError),
    /// The decoded message would take more memory than a message of its length may take. Decoding
    /// stopped at the limit, and freed what it had allocated.
    #[error("the message of {len} bytes would take more than {limit} bytes decoded")]
    OverBudget {
        /// The length of the encoded message.
        len: usize,
        /// The most memory in bytes that a message of this length may take.
        limit: usize,
    },
}

impl DecodeError {
    #[cold]
    pub(crate) fn is_over_budget(&self) -> bool {
        matches!(self, Self::OverBudget { .. })
    }
}
