//! Work requests: every operation of a send queue, and receives of several elements.

use std::fmt;

use super::address_handle::AddressHandle;
use super::element::Elements;
use super::memory_window::{Binding, MemoryWindow};
use super::slot::Slot;
use super::types::keys::RemoteKey;
use super::types::keys::RemoteMemory;
use super::types::queue_pair_attributes::QpNum;
use super::types::{self, RemoteOperation};
use crate::provider;

/// A request of any kind for a send queue (`struct ibv_send_wr`, `ibv_post_send(3)`).
///
/// It owns the memory that it names until it has completed. For a plain message in one slot,
/// [`SendRequest`](super::SendRequest) is simpler and faster.
///
/// By default it is not signaled, fenced, solicited or inline.
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

/// The destination of a datagram.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) handle: AddressHandle,
    qp_num: QpNum,
    qkey: u32,
}

pub(super) type Operation = types::Operation<WindowBinding>;

/// The binding of a window, with its new key.
#[derive(Debug)]
pub(super) struct WindowBinding {
    pub(super) window: MemoryWindow,
    pub(super) binding: Binding,
    pub(super) key: RemoteKey,
}

impl WindowBinding {
    pub(super) fn raw(&self) -> provider::WindowBinding {
        self.binding.raw(&self.window, self.key)
    }
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

    fn remote(operation: RemoteOperation, elements: Elements) -> Self {
        Self::new(Operation::Remote(operation), elements)
    }

    /// Creates a SEND, which writes the bytes of the elements, in order, into the peer's oldest
    /// receive.
    pub fn send(elements: impl Into<Elements>) -> Self {
        Self::remote(RemoteOperation::Send, elements.into())
    }

    /// Creates a SEND with immediate: `imm` appears in the peer's completion.
    pub fn send_with_imm(elements: impl Into<Elements>, imm: u32) -> Self {
        Self::remote(RemoteOperation::SendWithImm(imm), elements.into())
    }

    /// Creates a SEND with invalidate: on arrival it invalidates a key of the peer's type 2 window.
    pub fn send_with_invalidate(elements: impl Into<Elements>, key: RemoteKey) -> Self {
        Self::remote(RemoteOperation::SendWithInvalidate(key), elements.into())
    }

    /// Creates an RDMA WRITE, which writes the bytes of the elements to the peer's memory. The peer
    /// is not notified.
    pub fn write(elements: impl Into<Elements>, to: RemoteMemory) -> Self {
        Self::remote(RemoteOperation::Write(to), elements.into())
    }

    /// Creates an RDMA WRITE with immediate. After the write, it consumes the peer's oldest receive
    /// without changing the receive's bytes, and `imm` appears in that receive's completion.
    pub fn write_with_imm(elements: impl Into<Elements>, to: RemoteMemory, imm: u32) -> Self {
        Self::remote(RemoteOperation::WriteWithImm(to, imm), elements.into())
    }

    /// Creates an RDMA READ, which fills the elements from the peer's memory. The device needs
    /// write access to them ([`Access::LOCAL_WRITE`](super::Access::LOCAL_WRITE)).
    pub fn read(elements: impl Into<Elements>, from: RemoteMemory) -> Self {
        Self::remote(RemoteOperation::Read(from), elements.into())
    }

    /// Compares the peer's 64-bit number with `expected` and, if they are equal, replaces it by
    /// `desired`. The old value is written to the elements, which must have eight bytes.
    pub fn compare_and_swap(
        result: impl Into<Elements>,
        remote: RemoteMemory,
        expected: u64,
        desired: u64,
    ) -> Self {
        let operation = RemoteOperation::CompareAndSwap {
            remote,
            expected,
            desired,
        };
        Self::remote(operation, result.into())
    }

    /// Adds `addend` to the peer's 64-bit number, wrapping. The old value is written to the
    /// elements, which must have eight bytes.
    pub fn fetch_and_add(result: impl Into<Elements>, remote: RemoteMemory, addend: u64) -> Self {
        let operation = RemoteOperation::FetchAndAdd { remote, addend };
        Self::remote(operation, result.into())
    }

    /// Invalidates a local key of a type 2 window.
    pub fn local_invalidate(key: RemoteKey) -> Self {
        Self::new(Operation::LocalInvalidate(key), Elements::NONE)
    }

    /// Binds a type 2 window that is not bound. `key` is the window's key with different lower
    /// eight bits ([`MemoryWindow::next_key`]). After a failed binding the window may be unusable:
    /// some devices lose track of its keys.
    pub fn bind_window(window: &MemoryWindow, binding: Binding, key: RemoteKey) -> Self {
        let binding = WindowBinding {
            window: window.clone(),
            binding,
            key,
        };
        Self::new(Operation::BindWindow(binding), Elements::NONE)
    }

    /// Sets the destination of a datagram. If the highest bit of `qkey` is set, the queue pair's
    /// own Q_Key is used in its place, as the InfiniBand specification requires.
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

    /// Requests a completion even on success (`IBV_SEND_SIGNALED`).
    pub fn signaled(self) -> Self {
        Self {
            signaled: true,
            ..self
        }
    }

    /// Delays the request until all earlier READs and atomics of the queue have completed
    /// (`IBV_SEND_FENCE`).
    pub fn fenced(self) -> Self {
        Self {
            fenced: true,
            ..self
        }
    }

    /// Requests a solicited event at the receiver (`IBV_SEND_SOLICITED`), for a SEND or a WRITE
    /// with immediate.
    pub fn solicited(self) -> Self {
        Self {
            solicited: true,
            ..self
        }
    }

    /// Copies the bytes while posting, so that the slots are returned at once (`IBV_SEND_INLINE`),
    /// for SENDs and WRITEs. Keys are not checked.
    pub fn inline(self) -> Self {
        Self {
            inline: true,
            ..self
        }
    }

    /// Returns the operation's name in the InfiniBand specification.
    pub fn name(&self) -> &'static str {
        self.operation.name()
    }

    /// Releases the slots among its elements.
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

impl fmt::Display for WorkRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A receive of several elements (`struct ibv_recv_wr`, `ibv_post_recv(3)`): a message fills them
/// in order. For a single slot, [`QueuePair::post_recv`](super::QueuePair::post_recv) is simpler.
#[derive(Debug, Default)]
pub struct ReceiveRequest {
    pub(super) elements: Elements,
}

impl ReceiveRequest {
    /// Makes a receive of these elements. Without elements it accepts a message without bytes or a
    /// WRITE with immediate.
    pub fn new(elements: impl Into<Elements>) -> Self {
        Self {
            elements: elements.into(),
        }
    }
}
