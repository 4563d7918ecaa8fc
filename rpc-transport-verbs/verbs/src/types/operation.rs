//! The operations of a send queue.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Access, CompletionOpcode, QpType, RemoteKey, RemoteMemory};

/// What a request of a send queue does (`opcode` of `struct ibv_send_wr`, `ibv_post_send(3)`). Each
/// layer names the window and the region of a binding in its own way, as `Binding`.
#[derive(Clone, Copy, Debug)]
pub enum Operation<Binding> {
    /// The peer carries it out.
    Remote(RemoteOperation),
    /// A key of this side becomes invalid.
    LocalInvalidate(RemoteKey),
    /// A memory window of this side is bound.
    BindWindow(Binding),
}

/// An operation that the peer carries out. The fields of `struct ibv_send_wr` that have other names
/// are noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteOperation {
    /// Writes the bytes into the oldest receive.
    Send,
    /// The same, with an immediate for the completion.
    SendWithImm(u32),
    /// The same, and invalidates a key of the peer.
    SendWithInvalidate(RemoteKey),
    /// Writes the bytes to this memory.
    Write(RemoteMemory),
    /// The same, and consumes the oldest receive, whose completion has the immediate.
    WriteWithImm(RemoteMemory, u32),
    /// Reads this memory.
    Read(RemoteMemory),
    /// Replaces a 64-bit number by `desired` if it is `expected`, and reads what it was.
    CompareAndSwap {
        /// Where the number is.
        remote: RemoteMemory,
        /// `compare_add` of `struct ibv_send_wr`.
        expected: u64,
        /// `swap` of `struct ibv_send_wr`.
        desired: u64,
    },
    /// Adds to a 64-bit number, wrapping, and reads what it was.
    FetchAndAdd {
        /// Where the number is.
        remote: RemoteMemory,
        /// `compare_add` of `struct ibv_send_wr`.
        addend: u64,
    },
}

impl<Binding> Operation<Binding> {
    /// Returns the same operation with another name of what is bound.
    pub(crate) fn map_binding<Other>(
        &self,
        name: impl FnOnce(&Binding) -> Other,
    ) -> Operation<Other> {
        match self {
            Self::Remote(operation) => Operation::Remote(*operation),
            Self::LocalInvalidate(key) => Operation::LocalInvalidate(*key),
            Self::BindWindow(binding) => Operation::BindWindow(name(binding)),
        }
    }

    /// Returns the name in the InfiniBand specification.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Remote(operation) => operation.name(),
            Self::LocalInvalidate(_) => "local invalidate",
            Self::BindWindow(_) => "bind memory window",
        }
    }

    /// Returns true if queue pairs of this type support the operation.
    pub fn is_for(&self, qp_type: QpType) -> bool {
        use RemoteOperation as R;
        match (self, qp_type) {
            (_, QpType::ReliableConnection) | (Self::Remote(R::Send | R::SendWithImm(_)), _) => {
                true
            }
            (Self::Remote(R::Write(_) | R::WriteWithImm(..)) | Self::BindWindow(_), other) => {
                other == QpType::UnreliableConnection
            }
            _ => false,
        }
    }

    /// Returns what the peer carries out, if it does.
    pub(crate) fn remote(&self) -> Option<RemoteOperation> {
        match self {
            Self::Remote(operation) => Some(*operation),
            Self::LocalInvalidate(_) | Self::BindWindow(_) => None,
        }
    }

    /// Returns true if the request sends bytes of this side, so that they can be inline.
    pub fn has_payload(&self) -> bool {
        self.remote()
            .is_some_and(|operation| operation.has_payload())
    }

    /// Returns true if the request is complete only when a response has come. It counts against
    /// `max_rd_atomic`.
    pub fn has_response(&self) -> bool {
        self.remote()
            .is_some_and(|operation| operation.has_response())
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Self::Remote(RemoteOperation::Read(_)))
    }

    /// Returns true for the operations on one 64-bit number.
    pub fn is_atomic(&self) -> bool {
        self.has_response() && !self.is_read()
    }

    /// Returns the opcode of the completion of a request.
    pub(crate) fn opcode(&self) -> CompletionOpcode {
        match self {
            Self::Remote(operation) => operation.opcode(),
            Self::LocalInvalidate(_) => CompletionOpcode::LocalInvalidate,
            Self::BindWindow(_) => CompletionOpcode::BindWindow,
        }
    }
}

impl RemoteOperation {
    fn name(&self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendWithImm(_) => "SEND with immediate",
            Self::SendWithInvalidate(_) => "SEND with invalidate",
            Self::Write(_) => "RDMA WRITE",
            Self::WriteWithImm(..) => "RDMA WRITE with immediate",
            Self::Read(_) => "RDMA READ",
            Self::CompareAndSwap { .. } => "compare-and-swap",
            Self::FetchAndAdd { .. } => "fetch-and-add",
        }
    }

    /// Returns the opcode of the completion on the side that requests the operation.
    pub(crate) fn opcode(&self) -> CompletionOpcode {
        match self {
            Self::Send | Self::SendWithImm(_) | Self::SendWithInvalidate(_) => {
                CompletionOpcode::Send
            }
            Self::Write(_) | Self::WriteWithImm(..) => CompletionOpcode::RdmaWrite,
            Self::Read(_) => CompletionOpcode::RdmaRead,
            Self::CompareAndSwap { .. } => CompletionOpcode::CompareAndSwap,
            Self::FetchAndAdd { .. } => CompletionOpcode::FetchAndAdd,
        }
    }

    /// Returns what the side that carries it out has to permit.
    pub(crate) fn needs(&self) -> Access {
        match self {
            Self::Send | Self::SendWithImm(_) | Self::SendWithInvalidate(_) => Access::NONE,
            Self::Write(_) | Self::WriteWithImm(..) => Access::REMOTE_WRITE,
            Self::Read(_) => Access::REMOTE_READ,
            Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. } => Access::REMOTE_ATOMIC,
        }
    }

    pub(crate) fn has_response(&self) -> bool {
        matches!(
            self,
            Self::Read(_) | Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. }
        )
    }

    /// Returns true if bytes of the side that requests the operation go with it.
    pub(crate) fn has_payload(&self) -> bool {
        !self.has_response()
    }

    /// Returns true if the operation may change memory of the side that carries it out.
    pub(crate) fn may_change_memory(&self) -> bool {
        !matches!(self, Self::Read(_))
    }

    /// Returns true if a READ behind the operation must see what the operation has changed:
    /// memory, or the validity of a key.
    pub(crate) fn changes_what_is_read(&self) -> bool {
        !matches!(self, Self::Send | Self::SendWithImm(_) | Self::Read(_))
    }

    /// Carries out an atomic operation. Returns the previous value.
    ///
    /// # Panics
    ///
    /// Panics if the operation is no atomic.
    pub(crate) fn operate(&self, cell: &AtomicU64) -> u64 {
        match *self {
            Self::CompareAndSwap {
                expected, desired, ..
            } => cell
                .compare_exchange(expected, desired, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|was| was),
            Self::FetchAndAdd { addend, .. } => cell.fetch_add(addend, Ordering::SeqCst),
            _ => unreachable!("{self:?} is no atomic"),
        }
    }
}

/// Operations of all kinds, for the tests of their encodings.
#[cfg(test)]
pub(crate) fn any_operation() -> impl proptest::strategy::Strategy<Value = RemoteOperation> {
    use proptest::prelude::*;

    let memory = any::<(u64, u32)>().prop_map(|(addr, key)| RemoteMemory {
        addr,
        key: RemoteKey(key),
    });
    (0..8, memory, any::<u32>(), any::<[u64; 2]>()).prop_map(|(kind, remote, data, [a, b])| {
        match kind {
            0 => RemoteOperation::Send,
            1 => RemoteOperation::SendWithImm(data),
            2 => RemoteOperation::SendWithInvalidate(RemoteKey(data)),
            3 => RemoteOperation::Write(remote),
            4 => RemoteOperation::WriteWithImm(remote, data),
            5 => RemoteOperation::Read(remote),
            6 => RemoteOperation::CompareAndSwap {
                remote,
                expected: a,
                desired: b,
            },
            _ => RemoteOperation::FetchAndAdd { remote, addend: a },
        }
    })
}
