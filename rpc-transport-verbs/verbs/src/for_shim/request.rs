//! Requests, as the program names them.

use std::ptr::NonNull;

use super::{AddressHandle, MemoryRegion, MemoryWindow};
use crate::provider;
use crate::types::{Access, LocalKey, Operation, QpNum, RemoteKey, WrId};

/// Bytes of this side that a request names.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// The first byte's address.
    pub addr: u64,
    /// The number of bytes.
    pub len: u32,
    /// The key of the region that they are in.
    pub local_key: u32,
}

impl Element {
    pub(super) fn sge(&self) -> provider::Sge {
        // The device checks it before use. Zero is in no region.
        let addr = std::ptr::with_exposed_provenance_mut(self.addr as usize);
        provider::Sge {
            addr: NonNull::new(addr).unwrap_or(NonNull::dangling()),
            len: self.len,
            local_key: LocalKey(self.local_key),
        }
    }
}

pub(super) enum Receive {
    Simple(provider::ReceiveWork),
    List(provider::ReceiveList),
}

pub(super) fn receive(wr_id: u64, list: &[provider::Sge]) -> Receive {
    let wr_id = WrId::from_raw(wr_id);
    match *list {
        [only] => Receive::Simple(provider::ReceiveWork {
            wr_id,
            addr: only.addr,
            len: only.len,
            local_key: only.local_key,
        }),
        _ => Receive::List(provider::ReceiveList {
            wr_id,
            first: 0,
            count: list.len(),
        }),
    }
}

/// A request for the send queue, without its elements.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The program's id.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation<Binding<'a>>,
    /// Where a datagram goes: the handle, the queue pair and its Q_Key.
    pub destination: Option<(&'a AddressHandle, QpNum, u32)>,
    /// Generate a completion even on success.
    pub signaled: bool,
    /// Wait for the READs and atomics before it.
    pub fenced: bool,
    /// Raise an event at a peer that waits for solicited ones.
    pub solicited: bool,
    /// Copy the elements while posting, and look at no key.
    pub inline: bool,
}

/// The binding of a memory window.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    /// The window.
    pub window: &'a MemoryWindow,
    /// The region that the bytes are in.
    pub region: &'a MemoryRegion,
    /// The first byte's address.
    pub addr: u64,
    /// The number of bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// What peers may do.
    pub access: Access,
    /// The window's new key.
    pub key: RemoteKey,
}

impl Binding<'_> {
    pub(super) fn raw(&self) -> provider::WindowBinding {
        provider::WindowBinding {
            window: self.window.0.name(),
            region: self.region.0.name(),
            addr: self.addr,
            len: self.len,
            access: self.access,
            key: self.key,
        }
    }
}
