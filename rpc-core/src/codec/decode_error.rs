//! [`DecodeError`]: why bytes were not decoded as a message.

use super::budget::AT_LEAST;

/// The error of [`Codec::decode`](super::Codec::decode).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not an encoded message.
    #[error("{0}")]
    Malformed(#[from] prost::DecodeError),
    /// The decoded message would take more memory than a message of its length may take. Decoding
    /// stopped at the limit, and freed what it had allocated.
    #[error(
        "the {len} bytes of `{message}` would take more than {limit} bytes of memory when they are \
         decoded. That is the limit for a message of this length, so that no peer exhausts the memory \
         with short messages. {}",
        advice(*.len, *.limit, *.is_estimate)
    )]
    OverBudget {
        /// The Rust type of the message.
        message: &'static str,
        /// The length of the encoded message.
        len: usize,
        /// The most memory in bytes that a message of this length may take.
        limit: usize,
        /// Whether the memory was estimated, because the message has no code from `rpc-codegen`. For
        /// other messages, the setting `decode_budget` of the build script changes the limit.
        is_estimate: bool,
    },
}

/// Says what to do about a message that is over its budget.
fn advice(len: usize, limit: usize, is_estimate: bool) -> String {
    match is_estimate {
        true => {
            "The memory was estimated, because the type has no code from `rpc-codegen`. If such \
                 messages are expected, let `rpc-codegen` generate the type, or split the message"
                .to_owned()
        }
        false => format!(
            "If such messages are expected, raise the limit in the build script of the side that \
             decodes them: `rpc_codegen::configure().decode_budget(\".package.Message\", n)`, with \
             n bytes for each byte of the message, more than {}",
            limit.saturating_sub(AT_LEAST) / len.max(1)
        ),
    }
}

impl DecodeError {
    #[cold]
    pub(crate) fn is_over_budget(&self) -> bool {
        matches!(self, Self::OverBudget { .. })
    }
}
