//! A send-queue request other than a plain message of one element, from its post to its completion.

use std::ops::Range;
use std::ptr::NonNull;

use super::element_list::{ElementList, for_each_part};
use crate::provider::soft::shared::copy::{copy_message, copy_shared};
use crate::provider::soft::shared::request_message::MAX_READ_IN_SLOT;
use crate::provider::soft::shared::ring::{MAX_BUFFERED, STAGE_LEN};
use crate::provider::soft::wire::header::{BASE_LEN, EncodedHeader};
use crate::provider::work::{Operation, Sge, Work};
use crate::types::RemoteOperation;

/// A request other than a plain message of one element.
#[derive(Debug)]
pub(crate) struct GeneralSend {
    /// Its sequence number in the send queue.
    pub(crate) number: u64,
    pub(crate) operation: Operation,
    pub(crate) fenced: bool,
    pub(crate) solicited: bool,
    elements: ElementList,
    /// The bytes of an inline request, copied while it was posted.
    pub(crate) inline: Option<InlineBytes>,
    /// Total bytes of all elements.
    pub(crate) total: u64,
    /// The units that the request has taken so far, ring slots or sequence numbers; `None` until it has
    /// begun. The range is empty for an operation carried out locally, and has several slots for a
    /// long READ over a ring.
    pub(crate) slots: Option<Range<u64>>,
    /// Of a READ over a ring: bytes requested so far. 0 over TCP, where one request asks for all.
    pub(crate) requested: u64,
    /// Bytes of the response that have been received.
    pub(crate) received: u64,
}

/// The bytes of an inline request, behind room for the header of a SEND.
#[derive(Debug)]
pub(crate) struct InlineBytes {
    bytes: Box<[u8; BASE_LEN + MAX_BUFFERED]>,
    len: usize,
}

impl InlineBytes {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Box::new([0; BASE_LEN + MAX_BUFFERED]),
            len: 0,
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[BASE_LEN..][..self.len]
    }

    /// Takes these bytes in place of the ones before. There is room: the layer above limits inline
    /// requests.
    pub(crate) fn fill(&mut self, bytes: &[u8]) {
        self.bytes[BASE_LEN..][..bytes.len()].copy_from_slice(bytes);
        self.len = bytes.len();
    }

    /// Returns the bytes behind this header, if it has the length of a SEND's.
    pub(crate) fn behind(&mut self, header: &EncodedHeader) -> Option<&[u8]> {
        let header = header.as_bytes();
        if header.len() != BASE_LEN {
            return None;
        }
        self.bytes[..BASE_LEN].copy_from_slice(header);
        Some(&self.bytes[..BASE_LEN + self.len])
    }

    /// Appends `len` bytes, for which there is room: the layer above limits inline requests.
    ///
    /// # Safety
    ///
    /// `from` is readable for `len` bytes.
    unsafe fn append(&mut self, from: NonNull<u8>, len: usize) {
        let room = &mut self.bytes[BASE_LEN + self.len..][..len];
        // SAFETY: the caller guarantees that the source is readable, and the target was just
        // checked to have room.
        unsafe { copy_shared(from, NonNull::from(room).cast(), len) };
        self.len += len;
    }
}

/// State of a queue pair's sending half besides the send queue itself.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    /// READs and atomics in flight.
    pub(crate) reads: u8,
    /// Requests sent and not known to be executed that a READ must not overtake: see
    /// [`GeneralSend::holds_up_reads`].
    pub(crate) unexecuted: u32,
}

/// A part of a READ.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) len: u32,
    pub(crate) is_staged: bool,
}

impl GeneralSend {
    pub(crate) fn new(number: u64, work: &Work, elements: &[Sge]) -> Self {
        Self {
            number,
            operation: work.operation,
            fenced: work.fenced,
            solicited: work.solicited,
            elements: ElementList::new(elements),
            inline: None,
            total: Sge::total_len(elements),
            slots: None,
            requested: 0,
            received: 0,
        }
    }

    /// A SEND of these bytes.
    pub(crate) fn of_bytes(number: u64, bytes: InlineBytes, solicited: bool) -> Self {
        Self {
            number,
            operation: Operation::Remote(RemoteOperation::Send),
            fenced: false,
            solicited,
            elements: ElementList::new(&[]),
            total: bytes.len as u64,
            inline: Some(bytes),
            slots: None,
            requested: 0,
            received: 0,
        }
    }

    pub(crate) fn elements(&self) -> &[Sge] {
        self.elements.as_slice()
    }

    /// Returns true if a READ behind the request must see what the request has changed at the peer:
    /// memory, or the validity of a key. So it is with a READ that the peer executes: if the peer
    /// rejects it, those behind it are not executed.
    pub(crate) fn holds_up_reads(&self) -> bool {
        let is_requested = self.slots.as_ref().is_some_and(|slots| !slots.is_empty());
        self.operation.remote().is_some_and(|operation| {
            operation.changes_what_is_read() || self.operation.is_read() && is_requested
        })
    }

    /// Copies the bytes of an inline request into `bytes`.
    ///
    /// # Safety
    ///
    /// The elements are readable for their lengths. The poster guarantees this until its call
    /// returns.
    pub(crate) unsafe fn stage(&mut self, bytes: InlineBytes) {
        let mut inline = bytes;
        inline.len = 0;
        for element in self.elements.as_slice() {
            // SAFETY: the caller guarantees it.
            unsafe { inline.append(element.addr, element.len as usize) };
        }
        self.inline = Some(inline);
    }

    /// Copies `len` bytes at `from` into the elements, starting at their byte `offset`.
    ///
    /// # Safety
    ///
    /// The elements were checked to lie in registered memory, and `from` is readable for `len`
    /// bytes.
    pub(crate) unsafe fn scatter(&self, from: NonNull<u8>, offset: u64, len: usize) {
        let mut from = from;
        for_each_part(self.elements(), offset as usize, len, |to, part| {
            // SAFETY: the range is within the element and within `from`. While the request is in
            // flight, the application and peers access both only through atomics or raw copies.
            unsafe {
                copy_shared(from, to, part);
                from = from.add(part);
            }
        });
    }
}

impl GeneralSend {
    /// Copies the bytes at `from` into the elements, until all of them are full.
    ///
    /// # Safety
    ///
    /// The elements were checked to lie in registered memory, and `from` is readable for as many
    /// bytes as all elements have.
    pub(crate) unsafe fn fill(&self, mut from: NonNull<u8>) {
        for element in self.elements() {
            let len = element.len as usize;
            // SAFETY: the caller guarantees both ranges. A mapped arena of a peer does not overlap
            // registered memory of this process. While the request is in flight, the application
            // accesses the element only through atomics or raw copies.
            unsafe {
                copy_message(from, element.addr, len);
                from = from.add(len);
            }
        }
    }

    /// Returns the piece of a READ, or the response of an atomic, that begins at byte `start`.
    pub(crate) fn piece(&self, start: u64) -> Piece {
        let whole = self.response_len().unwrap_or(0);
        Piece {
            // The cast is lossless: the length is at most STAGE_LEN.
            len: (whole - start.min(whole)).min(STAGE_LEN as u64) as u32,
            is_staged: whole > u64::from(MAX_READ_IN_SLOT),
        }
    }

    /// Returns the length of the response, if the operation has one.
    pub(crate) fn response_len(&self) -> Option<u64> {
        match self.operation.remote()? {
            RemoteOperation::Read(_) => Some(self.total),
            RemoteOperation::CompareAndSwap { .. } | RemoteOperation::FetchAndAdd { .. } => Some(8),
            _ => None,
        }
    }

    pub(crate) fn pieces_received(&self) -> u64 {
        self.received.div_ceil(STAGE_LEN as u64)
    }
}
