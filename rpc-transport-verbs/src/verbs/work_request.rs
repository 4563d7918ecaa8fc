//! Everything that a send queue can be asked to do.

use std::fmt;

use super::address_handle::AddressHandle;
use super::element::Elements;
use super::memory_window::{Binding, MemoryWindow};
use super::slot::Slot;
use super::types::keys::RemoteKey;
use super::types::keys::RemoteMemory;
use super::types::queue_pair_attributes::QpNum;
use super::types::queue_pair_state::QpType;
use crate::provider;

/// A request for a send queue (`struct ibv_send_wr`), of any kind.
///
/// It owns the memory that it names until it has completed. What is often wanted has
/// a shorter way: [`SendRequest`](super::SendRequest), a plain message of one slot.
///
/// Not signaled, not fenced, not solicited and not inline, unless it is told to be.
#[derive(Debug)]
pub struct WorkRequest {
    pub(super) operation: Operation,
    pub(super) elements: Elements,
    pub(super) destination: Option<Destination>,
    pub(super) signaled: bool,
    pub(super) fenced: bool,
    pub(super) solicited: bool,
    pub(super) inline: bool,
}

/// Where a datagram goes.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) handle: AddressHandle,
    qp_num: QpNum,
    qkey: u32,
}

#[derive(Debug)]
pub(super) enum Operation {
    Send,
    SendWithImm(u32),
    SendWithInvalidate(RemoteKey),
    Write(RemoteMemory),
    WriteWithImm(RemoteMemory, u32),
    Read(RemoteMemory),
    CompareAndSwap {
        remote: RemoteMemory,
        expected: u64,
        desired: u64,
    },
    FetchAndAdd {
        remote: RemoteMemory,
        addend: u64,
    },
    LocalInvalidate(RemoteKey),
    BindWindow {
        window: MemoryWindow,
        binding: Binding,
        key: RemoteKey,
    },
}

impl WorkRequest {
    fn new(operation: Operation, elements: Elements) -> Self {
        Self {
            operation,
            elements,
            destination: None,
            signaled: false,
            fenced: false,
            solicited: false,
            inline: false,
        }
    }

    /// SEND: the bytes of the elements, one after another, into the peer's oldest receive.
    pub fn send(elements: impl Into<Elements>) -> Self {
        Self::new(Operation::Send, elements.into())
    }

    /// SEND with 32 bits that come with the peer's completion.
    pub fn send_with_imm(elements: impl Into<Elements>, imm: u32) -> Self {
        Self::new(Operation::SendWithImm(imm), elements.into())
    }

    /// SEND that takes a key of the peer's away when it arrives: of a type 2 window.
    pub fn send_with_invalidate(elements: impl Into<Elements>, key: RemoteKey) -> Self {
        Self::new(Operation::SendWithInvalidate(key), elements.into())
    }

    /// RDMA WRITE: the bytes of the elements into the peer's memory. The peer is told nothing.
    pub fn write(elements: impl Into<Elements>, to: RemoteMemory) -> Self {
        Self::new(Operation::Write(to), elements.into())
    }

    /// RDMA WRITE that then takes the peer's oldest receive, whose bytes stay as they are, for its
    /// completion with these 32 bits.
    pub fn write_with_imm(elements: impl Into<Elements>, to: RemoteMemory, imm: u32) -> Self {
        Self::new(Operation::WriteWithImm(to, imm), elements.into())
    }

    /// RDMA READ: bytes of the peer's memory into the elements, as many as these have. Their memory has to
    /// be writable for the device.
    pub fn read(elements: impl Into<Elements>, from: RemoteMemory) -> Self {
        Self::new(Operation::Read(from), elements.into())
    }

    /// Compares the peer's 64-bit number with `expected` and, where it is equal, puts `desired` there. What
    /// was there goes into the elements, eight bytes.
    pub fn compare_and_swap(
        result: impl Into<Elements>,
        remote: RemoteMemory,
        expected: u64,
        desired: u64,
    ) -> Self {
        let operation = Operation::CompareAndSwap {
            remote,
            expected,
            desired,
        };
        Self::new(operation, result.into())
    }

    /// Adds to the peer's 64-bit number, wrapping. What was there goes into the elements, eight bytes.
    pub fn fetch_and_add(result: impl Into<Elements>, remote: RemoteMemory, addend: u64) -> Self {
        Self::new(Operation::FetchAndAdd { remote, addend }, result.into())
    }

    /// Takes away a key of this side: of a type 2 window.
    pub fn local_invalidate(key: RemoteKey) -> Self {
        Self::new(Operation::LocalInvalidate(key), Elements::NONE)
    }

    /// Binds a type 2 window that is free; `key` is the window's with other lower eight bits
    /// ([`MemoryWindow::next_key`]). A window whose binding has failed may be of no more use: some devices lose
    /// count of its keys.
    pub fn bind_window(window: &MemoryWindow, binding: Binding, key: RemoteKey) -> Self {
        let operation = Operation::BindWindow {
            window: window.clone(),
            binding,
            key,
        };
        Self::new(operation, Elements::NONE)
    }

    /// For a datagram: where it goes. If the highest bit of `qkey` is set, the queue pair's own is used in
    /// its place, as the specification has it.
    pub fn to(self, handle: &AddressHandle, qp_num: QpNum, qkey: u32) -> Self {
        let destination = Destination {
            handle: handle.clone(),
            qp_num,
            qkey,
        };
        Self {
            destination: Some(destination),
            ..self
        }
    }

    /// To be completed even if it succeeds.
    pub fn signaled(self) -> Self {
        Self {
            signaled: true,
            ..self
        }
    }

    /// Not to begin before all earlier READs and atomics of the queue have ended.
    pub fn fenced(self) -> Self {
        Self {
            fenced: true,
            ..self
        }
    }

    /// To ask for the receiver's attention: of a SEND, or a WRITE with immediate.
    pub fn solicited(self) -> Self {
        Self {
            solicited: true,
            ..self
        }
    }

    /// Copied while posting, so that its slots come back at once: of SENDs and WRITEs. Keys are not looked
    /// at.
    pub fn inline(self) -> Self {
        Self {
            inline: true,
            ..self
        }
    }

    /// What it asks for, by the name in the specification.
    pub fn name(&self) -> &'static str {
        self.operation.name()
    }

    /// Gives the slots among its elements back.
    pub(super) fn release(self, release: &mut impl FnMut(Slot)) {
        for element in self.elements {
            if let Some(slot) = element.into_slot() {
                release(slot);
            }
        }
    }

    pub(super) fn raw_destination(&self) -> Option<provider::Destination> {
        self.destination
            .as_ref()
            .map(|destination| provider::Destination {
                address: destination.handle.name(),
                qp_num: destination.qp_num,
                qkey: destination.qkey,
            })
    }
}

impl Operation {
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
            Self::LocalInvalidate(_) => "local invalidate",
            Self::BindWindow { .. } => "bind memory window",
        }
    }

    /// Which types of queue pairs carry it out.
    pub(super) fn is_for(&self, qp_type: QpType) -> bool {
        match (self, qp_type) {
            (_, QpType::ReliableConnection) | (Self::Send | Self::SendWithImm(_), _) => true,
            (Self::Write(_) | Self::WriteWithImm(..) | Self::BindWindow { .. }, other) => {
                other == QpType::UnreliableConnection
            }
            _ => false,
        }
    }

    /// Whether it sends bytes of this side, so that they can be inline.
    pub(super) fn sends_bytes(&self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendWithImm(_)
                | Self::SendWithInvalidate(_)
                | Self::Write(_)
                | Self::WriteWithImm(..)
        )
    }

    pub(super) fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. })
    }

    /// Whether it counts against `max_rd_atomic`.
    pub(super) fn waits_for_response(&self) -> bool {
        matches!(self, Self::Read(_)) || self.is_atomic()
    }

    pub(super) fn raw(&self) -> provider::Operation {
        match *self {
            Self::Send => provider::Operation::Send,
            Self::SendWithImm(imm) => provider::Operation::SendWithImm(imm),
            Self::SendWithInvalidate(key) => provider::Operation::SendWithInvalidate(key),
            Self::Write(remote) => provider::Operation::Write(remote),
            Self::WriteWithImm(remote, imm) => provider::Operation::WriteWithImm(remote, imm),
            Self::Read(remote) => provider::Operation::Read(remote),
            Self::CompareAndSwap {
                remote,
                expected,
                desired,
            } => provider::Operation::CompareAndSwap {
                remote,
                expected,
                desired,
            },
            Self::FetchAndAdd { remote, addend } => {
                provider::Operation::FetchAndAdd { remote, addend }
            }
            Self::LocalInvalidate(key) => provider::Operation::LocalInvalidate(key),
            Self::BindWindow {
                ref window,
                ref binding,
                key,
            } => provider::Operation::BindWindow(binding.raw(window, key)),
        }
    }
}

impl fmt::Display for WorkRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A receive of several elements (`struct ibv_recv_wr`): a message fills one after another. One of a single
/// slot has a shorter way: [`QueuePair::post_recv`](super::QueuePair::post_recv).
#[derive(Debug, Default)]
pub struct ReceiveRequest {
    pub(super) elements: Elements,
}

impl ReceiveRequest {
    /// With these elements; with none for a message without bytes, or a WRITE with immediate.
    pub fn new(elements: impl Into<Elements>) -> Self {
        Self {
            elements: elements.into(),
        }
    }
}
