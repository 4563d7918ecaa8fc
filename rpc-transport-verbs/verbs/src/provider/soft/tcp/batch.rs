//! [`Batch`]: the messages that one system call writes.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use rustix::io::Errno;

use crate::provider::soft::capacities::MAX_SGE;
use crate::provider::soft::context::link_stream::LinkStream;
use crate::provider::soft::context::parts::Parts;
use crate::provider::soft::context::tcp_link::PartialKind;
use crate::provider::soft::wire::header::EncodedHeader;

/// Maximum number of messages in a batch.
pub(crate) const MAX_MESSAGES: usize = 32;
/// Maximum number of parts in a batch: a header and two elements for each message on average.
const MAX_PARTS: usize = 3 * MAX_MESSAGES;
/// Parts that one message needs at most.
const PARTS_OF_ONE: usize = 1 + MAX_SGE;

/// The messages that one system call writes. A message's header is held here, so a batch is not
/// moved while it has messages.
pub(crate) struct Batch {
    parts: Parts<MAX_PARTS>,
    headers: [MaybeUninit<EncodedHeader>; MAX_MESSAGES],
    /// The first `count` are initialized, as are their headers.
    messages: [MaybeUninit<Batched>; MAX_MESSAGES],
    count: usize,
}

/// One message of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batched {
    pub(crate) kind: PartialKind,
    /// Bytes of the message that an earlier batch has written.
    pub(crate) written: usize,
    /// Bytes of header and payload.
    pub(crate) len: usize,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self {
            parts: Parts::new(),
            headers: [const { MaybeUninit::uninit() }; MAX_MESSAGES],
            messages: [const { MaybeUninit::uninit() }; MAX_MESSAGES],
            count: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of bytes to write.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.bytes
    }

    /// Returns true if any message still fits.
    pub(crate) fn has_room(&self) -> bool {
        self.count < MAX_MESSAGES && self.parts.as_slice().len() + PARTS_OF_ONE <= MAX_PARTS
    }

    /// Adds a message, for which there is room, without its first `written` bytes. `payload_len`
    /// bytes of payload follow the header: see [`add_payload`](Self::add_payload).
    pub(crate) fn add(
        &mut self,
        kind: PartialKind,
        header: EncodedHeader,
        written: usize,
        payload_len: usize,
    ) {
        let header = self.headers[self.count].write(header).as_bytes();
        let rest = &header[written.min(header.len())..];
        self.messages[self.count].write(Batched {
            kind,
            written,
            len: header.len() + payload_len,
        });
        if !rest.is_empty() {
            self.parts.push(NonNull::from(rest).cast(), rest.len());
        }
        self.count += 1;
    }

    /// Adds a message, for which there is room, whose header and payload are `bytes`.
    pub(crate) fn add_whole(&mut self, kind: PartialKind, header: EncodedHeader, bytes: &[u8]) {
        self.headers[self.count].write(header);
        self.messages[self.count].write(Batched {
            kind,
            written: 0,
            len: bytes.len(),
        });
        self.parts.push(NonNull::from(bytes).cast(), bytes.len());
        self.count += 1;
    }

    /// Adds a part of the payload of the message that was added last.
    pub(crate) fn add_payload(&mut self, start: NonNull<u8>, len: usize) {
        self.parts.push(start, len);
    }

    /// Returns true if there is a message of this kind.
    pub(crate) fn holds(&self, kind: PartialKind) -> bool {
        self.messages().any(|(message, _)| message.kind == kind)
    }

    /// Returns the messages, each with its header.
    pub(crate) fn messages(&self) -> impl Iterator<Item = (Batched, &EncodedHeader)> {
        let filled = self.messages[..self.count].iter().zip(&self.headers);
        // SAFETY: `add` and `add_whole` have initialized the first `count` messages and headers.
        filled.map(|(message, header)| unsafe { (message.assume_init(), header.assume_init_ref()) })
    }

    /// Writes as much as the link takes. Returns the number of bytes.
    ///
    /// # Safety
    ///
    /// Every part of a payload is readable until this returns.
    pub(crate) unsafe fn write(&self, stream: &mut LinkStream) -> Result<usize, Errno> {
        // SAFETY: the headers are held by this batch, which has not moved since they were added: it
        // was only lent. The caller guarantees the rest.
        unsafe { stream.write(self.parts.as_slice()) }
    }
}
