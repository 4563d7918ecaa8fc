//! Work requests in the form that is passed to a device.

use std::ptr::NonNull;

use super::names::{AddressName, RegionName, WindowName};
use crate::types::{
    Access, LocalKey, PostError, PostErrorReason, QpNum, RemoteKey, RemoteOperation, WrId,
};

/// One send, as passed to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWork {
    pub(crate) wr_id: WrId,
    pub(crate) addr: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) local_key: LocalKey,
    pub(crate) signaled: bool,
    pub(crate) inline: bool,
    pub(crate) solicited: bool,
}

impl SendWork {
    /// Makes an inline send of these bytes.
    pub(crate) fn of_bytes(wr_id: WrId, bytes: &[u8], signaled: bool) -> Self {
        Self {
            wr_id,
            addr: NonNull::from(bytes).cast(),
            // The cast is lossless: inline sends are short.
            len: bytes.len() as u32,
            local_key: LocalKey(0),
            signaled,
            inline: true,
            solicited: false,
        }
    }

    /// Converts this into a request of any kind, whose only element has index `element` in the
    /// list.
    pub(crate) fn general(&self, element: usize) -> Work {
        Work {
            wr_id: self.wr_id,
            operation: Operation::Remote(RemoteOperation::Send),
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

/// Inline sends that were not posted.
#[derive(Clone, Copy, Debug)]
pub struct InlineError {
    /// How many earlier inline sends, which waited for the doorbell, the device rejected as well.
    pub rejected: usize,
    /// Why the send was not posted.
    pub reason: PostErrorReason,
}

impl InlineError {
    /// The error of a device whose inline sends do not wait for the doorbell.
    #[cold]
    pub(crate) fn of_one(error: PostError) -> Self {
        Self {
            rejected: 0,
            reason: error.reason,
        }
    }
}

/// One receive, as passed to the device.
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

impl Sge {
    pub(crate) const NONE: Self = Self {
        addr: NonNull::dangling(),
        len: 0,
        local_key: LocalKey(0),
    };

    /// Returns the number of bytes of all elements.
    pub(crate) fn total_len(elements: &[Self]) -> u64 {
        let lengths = elements.iter().map(|element| u64::from(element.len));
        lengths.sum()
    }
}

/// One request of any kind. The layer above has checked that the queue pair's type supports the
/// operation, and that counts and lengths are within the queue pair's limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) wr_id: WrId,
    pub(crate) operation: Operation,
    /// Index of its first element in the list that is passed with the requests.
    pub(crate) first_element: usize,
    pub(crate) element_count: usize,
    /// Present for a datagram only.
    pub(crate) destination: Option<Destination>,
    pub(crate) signaled: bool,
    pub(crate) fenced: bool,
    pub(crate) solicited: bool,
    pub(crate) inline: bool,
}

impl Work {
    /// Returns the request's own elements, out of the list of all requests.
    pub(crate) fn elements<'a>(&self, all: &'a [Sge]) -> &'a [Sge] {
        &all[self.first_element..][..self.element_count]
    }

    /// Converts a SEND of one element, which is not inline, into a plain message.
    pub(crate) fn plain(&self, only: Sge) -> SendWork {
        SendWork {
            wr_id: self.wr_id,
            addr: only.addr,
            len: only.len,
            local_key: only.local_key,
            signaled: self.signaled,
            inline: false,
            solicited: self.solicited,
        }
    }
}

/// The operation of a request.
pub(crate) type Operation = crate::types::Operation<WindowBinding>;

/// Parameters of a window binding. Window and region live until the request has completed, and the
/// region as long as the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowBinding {
    pub(crate) window: WindowName,
    pub(crate) region: RegionName,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    /// The window's new key; for a type 1 window it is only a proposal.
    pub(crate) key: RemoteKey,
}

/// Destination of a datagram. The address handle lives until the request has completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) address: AddressName,
    pub(crate) qp_num: QpNum,
    pub(crate) qkey: u32,
}

/// One receive of any number of elements: `count` elements from index `first` of the list that is
/// passed with the receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveList {
    pub(crate) wr_id: WrId,
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl ReceiveList {
    /// Returns the request's own elements, out of the list of all requests.
    pub(crate) fn elements<'a>(&self, all: &'a [Sge]) -> &'a [Sge] {
        &all[self.first..][..self.count]
    }
}

// SAFETY: the address is only passed to the device, and its memory belongs to the holder of the
// request, as for `SendWork` below.
unsafe impl Send for Sge {}
// SAFETY: a shared `Sge` only exposes the address as a number for the device and dereferences
// nothing.
unsafe impl Sync for Sge {}

// SAFETY: the addresses are passed to the device and never dereferenced as references. The memory
// behind them belongs to the holder of the work request, on any thread (see the module's
// invariant).
unsafe impl Send for SendWork {}
// SAFETY: the address is only passed to the device, and its memory belongs to the holder of the
// request, as for `SendWork`.
unsafe impl Send for ReceiveWork {}
