//! Why a queue pair was not modified.

use std::io;

use super::forked::Forked;
use super::queue_pair_state::{Attribute, QpState};

/// Why a queue pair was not modified. All its attributes are unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// The transition does not exist.
    #[error("a queue pair cannot go from {from} to {to}")]
    Transition {
        /// The current state (or the one in `current_state`).
        from: QpState,
        /// The requested state.
        to: QpState,
    },
    /// A required attribute is missing.
    #[error("{from} to {to} needs the attribute {attribute}")]
    Missing {
        /// The current state.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The first missing attribute.
        attribute: Attribute,
    },
    /// An attribute was passed that the transition does not allow.
    #[error("{from} to {to} does not take the attribute {attribute}")]
    Superfluous {
        /// The current state.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The first attribute that is not allowed.
        attribute: Attribute,
    },
    /// The device does not support an attribute's value.
    #[error("{from} to {to}: attribute {attribute} = {value}: {reason}")]
    Value {
        /// The current state.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The attribute.
        attribute: Attribute,
        /// The value passed, as a number.
        value: u64,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// The send queue is still draining. Until it has drained, the queue pair can only move to ERR
    /// and, on some devices, to RESET.
    #[error("the send queue is still draining")]
    Draining,
    /// The remote GID cannot be reached.
    #[error("the remote device {gid} cannot {action}: {source}")]
    Unreachable {
        /// The remote GID.
        gid: super::gid::Gid,
        /// The action that failed: "be reached".
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The operating system refused the call.
    #[error("modify: cannot {action}: {source}")]
    Os {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The process was forked after the device was opened.
    #[error(transparent)]
    Forked(#[from] Forked),
}
