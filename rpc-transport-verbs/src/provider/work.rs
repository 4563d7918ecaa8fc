//! Work requests, as a device gets them.

use std::ptr::NonNull;

use super::{AddressName, RegionName, WindowName};
use crate::verbs::types::{Access, LocalKey, QpNum, RemoteKey, RemoteMemory, WrId};

/// One send, as the device gets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWork {
    pub(crate) wr_id: WrId,
    pub(crate) addr: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) local_key: LocalKey,
    pub(crate) signaled: bool,
    pub(crate) inline: bool,
    pub(crate) solicited: bool,
    /// Of no use to whoever posts: the software device's note that there is more to it than this.
    pub(crate) general: bool,
}

impl SendWork {
    /// The same as a request of any kind, whose one element has this index in its list.
    pub(crate) fn general(&self, element: usize) -> Work {
        Work {
            wr_id: self.wr_id,
            operation: Operation::Send,
            first_element: element,
            element_count: 1,
            destination: None,
            signaled: self.signaled,
            fenced: false,
            solicited: self.solicited,
            inline: self.inline,
        }
    }
}

/// One receive, as the device gets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWork {
    pub(crate) wr_id: WrId,
    pub(crate) addr: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) local_key: LocalKey,
}

/// One scatter/gather element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge {
    pub(crate) addr: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) local_key: LocalKey,
}

/// One request of any kind. Which kinds a type of queue pair takes was checked, and so were counts and
/// lengths that it was made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) wr_id: WrId,
    pub(crate) operation: Operation,
    /// Its elements are these of the list that comes with the requests.
    pub(crate) first_element: usize,
    pub(crate) element_count: usize,
    /// Of a datagram, and of nothing else.
    pub(crate) destination: Option<Destination>,
    pub(crate) signaled: bool,
    pub(crate) fenced: bool,
    pub(crate) solicited: bool,
    pub(crate) inline: bool,
}

impl Work {
    /// Its own among the elements of the list.
    pub(crate) fn elements<'a>(&self, all: &'a [Sge]) -> &'a [Sge] {
        &all[self.first_element..][..self.element_count]
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
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
    BindWindow(WindowBinding),
}

/// What a window is to be bound to. Window and region live until the request has completed, and the region
/// for as long as the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowBinding {
    pub(crate) window: WindowName,
    pub(crate) region: RegionName,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    /// The key that it is to have; of a type 1 window, a proposal.
    pub(crate) key: RemoteKey,
}

/// Where a datagram goes. The address handle lives until the request has completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) address: AddressName,
    pub(crate) qp_num: QpNum,
    pub(crate) qkey: u32,
}

/// One receive of any number of elements: `count` of the list that comes with the receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveList {
    pub(crate) wr_id: WrId,
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl ReceiveList {
    /// Its own among the elements of the list.
    pub(crate) fn elements<'a>(&self, all: &'a [Sge]) -> &'a [Sge] {
        &all[self.first..][..self.count]
    }
}

// SAFETY: as for `SendWork`.
unsafe impl Send for Sge {}
// SAFETY: the address is a number for the device.
unsafe impl Sync for Sge {}

// SAFETY: the addresses are handed to the device, never dereferenced as references, and the memory
// behind them is owned by whoever holds the work request (see the module's promise), on any thread.
unsafe impl Send for SendWork {}
// SAFETY: as for `SendWork`.
unsafe impl Send for ReceiveWork {}
