//! The sending half of a ring: the receiver's memory, mapped into this process.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use biased_lock::BiasedLock;

use super::super::announcements::{AnnouncementPage, Announcer};
use super::super::commit::{Commit, Flags};
use super::super::descriptor::{DESCRIPTOR_LEN, Descriptor};
use super::super::published::{ContextNotes, Published};
use super::super::sync::{AtomicU64, Ordering};
use super::super::wake::{self, InSharedMemory, Mapped, ReceiverState};
use super::super::wake_socket::{EngineCaller, WakeSender};
use super::buffer::Pieces;
use super::{
    CLOSED, FIRST, LAYOUT_VERSION, MAGIC, MAX_BUFFERED, MAX_IN_RING, READY, Ring, SLOT_COUNT,
};
use crate::hooks::point;
use crate::provider::soft::shared::copy::{copy_message, copy_shared};
use crate::provider::soft::shared::memory::{Mapping, PeerMemory};
use crate::provider::soft::shared::peer_file::PeerFile;

/// The sending half of a ring.
#[derive(Debug)]
pub(crate) struct RingSender {
    ring: Ring,
    /// The PSN that the receiver expects first.
    expected_psn: u32,
    /// Sequence number of the next message.
    next: u64,
    /// The receiver's acknowledgement when it was last read; never beyond the last message sent.
    acked: u64,
    /// The pieces of the buffer.
    buffer: Pieces,
    /// Responses are pending in slots. A slot must not be rewritten before its response is read, so
    /// only the code that reads responses may collect acknowledgements.
    is_held: bool,
    /// The receiver seemed to poll the ring when a message since the last doorbell was committed.
    has_unannounced: bool,
    notifier: RingNotifier,
}

/// Handle that notifies a peer's context that does not poll its rings, and wakes it if it sleeps.
#[derive(Debug)]
pub(crate) struct ContextNotifier {
    /// Where this process announces rings to the context. All its contexts do so.
    page: Mapped<AnnouncementPage>,
    announcer: BiasedLock<Announcer>,
    notes: Mapped<ContextNotes>,
    wake: WakeSender,
    /// Makes the engine of the context's process maintain its contexts.
    engine: EngineCaller,
}

/// The files with which a context is notified and read from: the page of announcements of one peer, its
/// notes, and the peer's end of a pair of wake sockets.
pub(crate) type NotifierFiles = [OwnedFd; 3];

impl ContextNotifier {
    /// Adopts the files that a peer sent for one of its contexts.
    pub(crate) fn from_peer(
        files: [impl Into<PeerFile>; 3],
        engine: EngineCaller,
    ) -> io::Result<Self> {
        let [page, notes, wake] = files.map(Into::into);
        Ok(Self {
            page: mapped(&page, PeerMemory::Announcements)?,
            announcer: BiasedLock::new(Announcer::default()),
            notes: mapped(&notes, PeerMemory::ContextNotes)?,
            wake: WakeSender::from_peer(wake)?,
            engine,
        })
    }
}

fn mapped<T: InSharedMemory>(file: &PeerFile, memory: PeerMemory) -> io::Result<Mapped<T>> {
    let mapping = Mapping::from_peer(file, size_of::<T>(), memory)?;
    // The length was checked.
    Mapped::new(Arc::new(mapping)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Handle that notifies a context about one of its rings.
#[derive(Clone, Debug)]
pub(crate) struct RingNotifier {
    context: Arc<ContextNotifier>,
    index: usize,
}

impl RingNotifier {
    /// Creates the handle for a ring. `index` may come from a peer unchecked: the receiver ignores one that it
    /// does not have.
    pub(crate) fn new(context: Arc<ContextNotifier>, index: usize) -> Self {
        Self { context, index }
    }

    #[cold]
    #[inline(never)]
    fn announce(&self) {
        point!(Announcement);
        let ContextNotifier {
            page, announcer, ..
        } = &*self.context;
        announcer.enter().announce(page, self.index);
    }

    #[cold]
    #[inline(never)]
    fn wake_sleeper(&self) {
        point!(Wake);
        self.context.wake.wake();
    }

    #[cold]
    fn wake_engine(&self) {
        if self.context.notes.sleep.is_unattended_after_commit() {
            self.context.engine.call();
        }
    }
}

/// An RNR NAK: the number of RNR NAKs so far, and the receiver's timer code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nak {
    pub(crate) count: u64,
    pub(crate) timer: u8,
}

/// Returns how many bytes of the buffer a message of `len` bytes takes, which are at most `MAX_BUFFERED`, if a
/// slot has `prefix_len` bytes in front of them: none if they fit the slot.
#[inline]
pub(crate) fn in_buffer(prefix_len: usize, len: usize) -> usize {
    if prefix_len + len > MAX_IN_RING {
        len
    } else {
        0
    }
}

impl RingSender {
    /// Adopts a ring that a peer created, after checking its magic number, version and slot count.
    pub(crate) fn new(mapping: Mapping, notifier: RingNotifier) -> io::Result<Self> {
        let ring = Ring::new(mapping)?;
        let preamble = &ring.head().preamble;
        let invalid = |reason| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        let version = preamble.version.load(Ordering::Relaxed);
        if preamble.magic.load(Ordering::Relaxed) != MAGIC {
            return invalid("a ring does not begin as one".to_owned());
        }
        if version != LAYOUT_VERSION {
            return invalid(format!(
                "a ring has shared-memory layout {version}, this process has {LAYOUT_VERSION}: run the same version of Verbline on both sides"
            ));
        }
        let slots = preamble.slot_count.load(Ordering::Relaxed);
        if u64::from(slots) != SLOT_COUNT {
            return invalid(format!("a ring has {slots} slots instead of {SLOT_COUNT}"));
        }
        // The cast is lossless: a PSN has 24 bits.
        let expected_psn = (preamble.psn.load(Ordering::Relaxed) & 0x00ff_ffff) as u32;
        Ok(Self {
            ring,
            expected_psn,
            next: FIRST,
            acked: FIRST - 1,
            buffer: Pieces::default(),
            is_held: false,
            has_unannounced: false,
            notifier,
        })
    }

    /// Returns the PSN that the receiver expects first: it would silently drop anything else.
    pub(crate) fn expected_psn(&self) -> u32 {
        self.expected_psn
    }

    /// Returns true if the receiver accepts messages. A receiver that is not ready silently drops
    /// them.
    pub(crate) fn is_ready(&self) -> bool {
        self.ring.head().readiness.state.load(Ordering::Acquire) == READY
    }

    /// Returns true if the receiver will never accept a message again.
    pub(crate) fn is_receiver_closed(&self) -> bool {
        self.ring.head().readiness.state.load(Ordering::Acquire) == CLOSED
    }

    /// Returns true if any message was ever sent.
    pub(crate) fn is_used(&self) -> bool {
        self.next != FIRST
    }

    /// Returns the number of messages sent and not known to be acknowledged.
    #[inline]
    pub(crate) fn unacked(&self) -> u64 {
        self.next - 1 - self.acked
    }

    /// Returns true if a message that takes `in_buffer` bytes of the buffer is known to fit into the ring,
    /// without reading the acknowledgement.
    #[inline]
    pub(crate) fn is_known_to_have_room(&self, in_buffer: usize) -> bool {
        self.unacked() < SLOT_COUNT && (in_buffer == 0 || self.buffer.has_room(in_buffer))
    }

    /// Returns true if a message that takes `in_buffer` bytes of the buffer fits into the ring. Reads the
    /// acknowledgement only if the ring seems full.
    #[inline]
    pub(crate) fn has_room(&mut self, in_buffer: usize) -> bool {
        self.is_known_to_have_room(in_buffer)
            || !self.is_held && {
                // `collect_ack` runs again where completions are made, and an invalid
                // acknowledgement is reported there.
                let _ = self.collect_ack();
                self.is_known_to_have_room(in_buffer)
            }
    }

    /// Reads the acknowledgement and returns how many more messages it covers. Fails if it covers
    /// messages that were never sent, or fewer messages than before.
    #[inline]
    pub(crate) fn collect_ack(&mut self) -> Result<u64, BadAck> {
        let ack = self.ring.head().progress.ack.peek();
        // Both counts are far below 2⁶³, unless the peer wrote an invalid value.
        let newly = ack.wrapping_sub(self.acked);
        if newly > self.unacked() {
            return Err(BadAck);
        }
        self.acked = ack;
        self.buffer.free(ack);
        Ok(newly)
    }

    /// Writes and commits a message. The caller has checked that there is room and that `len` is at
    /// most `MAX_BUFFERED`, and it owns the bytes at `from`.
    #[inline]
    pub(crate) fn send(&mut self, from: NonNull<u8>, len: usize, flags: u16) {
        debug_assert!(self.is_known_to_have_room(in_buffer(0, len)));
        if len > MAX_IN_RING {
            return self.send_buffered(from, len, flags);
        }
        point!(Payload);
        let payload = self.ring.payload(self.next);
        // SAFETY: the caller guarantees that `from` is readable for `len` bytes, which is at most a
        // slot's payload. The slot's previous message was acknowledged, so the receiver no longer
        // reads it. A ring never overlaps registered memory.
        unsafe { copy_message(from, payload, len) };
        self.commit(len, flags);
    }

    /// Writes the bytes of a message, or of a request, into the buffer, and commits it. The caller has checked
    /// that there is room and that `len` is at most `MAX_BUFFERED`, and it owns the bytes at `from`.
    #[inline(never)]
    fn send_buffered(&mut self, from: NonNull<u8>, len: usize, flags: u16) {
        debug_assert!(len <= MAX_BUFFERED);
        point!(Payload);
        let payload = self.ring.buffer(self.buffer.take(len, self.next));
        // SAFETY: the caller guarantees that `from` is readable for `len` bytes, and `take` that they fit
        // the buffer. The messages that had this piece before were acknowledged, so the receiver no longer
        // reads them. A ring never overlaps registered memory.
        unsafe { copy_message(from, payload, len) };
        self.commit(len, flags | Flags::BUFFERED);
    }

    /// Writes and commits a descriptor in place of a long message.
    pub(crate) fn send_descriptor(&mut self, descriptor: Descriptor, flags: u16) {
        let bytes = descriptor.encode();
        self.send(
            NonNull::from(&bytes).cast(),
            DESCRIPTOR_LEN,
            flags | Flags::DESCRIPTOR,
        );
    }

    /// Writes and commits a request: its request word, its prefix, and then the bytes of `parts`.
    /// The caller has checked that there is room, and that prefix and parts together are at most
    /// `MAX_IN_RING` bytes.
    ///
    /// # Safety
    ///
    /// Each part is readable for its length, and during the call nothing reaches it through a
    /// mutable reference.
    pub(crate) unsafe fn send_request(
        &mut self,
        word: u64,
        prefix: &[u8],
        parts: impl Iterator<Item = (NonNull<u8>, usize)>,
        flags: u16,
    ) {
        let payload = self.ring.payload(self.next);
        let mut len = 0;
        for (from, part_len) in
            std::iter::once((NonNull::from(prefix).cast(), prefix.len())).chain(parts)
        {
            debug_assert!(len + part_len <= MAX_IN_RING);
            let part_len = part_len.min(MAX_IN_RING - len);
            // SAFETY: the caller guarantees that the part is readable. The copy ends within the
            // slot's payload. The slot's previous message was acknowledged and its response read.
            unsafe { copy_shared(from, payload.add(len), part_len) };
            len += part_len;
        }
        // Relaxed: the commit word publishes this store.
        self.ring
            .request_word(self.next)
            .store(word, Ordering::Relaxed);
        self.commit(len, flags | Flags::REQUEST);
    }

    /// Writes and commits a request whose payload is longer than its slot has room for: its request word, its
    /// prefix, and the payload into the buffer. The caller has checked that there is room.
    pub(crate) fn send_buffered_request(
        &mut self,
        word: u64,
        prefix: &[u8],
        payload: &[u8],
        flags: u16,
    ) {
        debug_assert!(prefix.len() <= MAX_IN_RING && self.is_known_to_have_room(payload.len()));
        let slot = self.ring.payload(self.next);
        // SAFETY: the prefix fits a slot, whose previous message was acknowledged and its response read.
        unsafe { copy_shared(NonNull::from(prefix).cast(), slot, prefix.len()) };
        // Relaxed: the commit word publishes this store.
        self.ring
            .request_word(self.next)
            .store(word, Ordering::Relaxed);
        let from = NonNull::from(payload).cast();
        self.send_buffered(from, payload.len(), flags | Flags::REQUEST);
    }

    /// Returns what the receiver's context publishes, and the index of the receiver's queue pair in
    /// it, which is a claim of the peer.
    #[inline]
    pub(crate) fn published(&self) -> (&Published, usize) {
        let RingNotifier { context, index } = &self.notifier;
        (&context.notes.published, *index)
    }

    /// Returns the sequence number of the next message.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the sequence number up to which messages were acknowledged when this was last read.
    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    pub(crate) fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Returns the receiver's response in the slot of an acknowledged request.
    pub(crate) fn response_in_slot(&self, sequence: u64) -> NonNull<u8> {
        self.ring.payload(sequence)
    }

    /// Returns the receiver's response in the staging memory; `None` if the receiver created none.
    pub(crate) fn response_in_stage(&self, number: u64) -> Option<NonNull<u8>> {
        self.ring.stage(number)
    }

    /// Wakes the engine of the receiver's process if nothing else polls the context. Called after
    /// the notification of one-sided requests.
    pub(crate) fn wake_engine(&self) {
        self.notifier.wake_engine();
    }

    #[inline]
    fn commit(&mut self, len: usize, flags: u16) {
        // `len` fits u16: it is at most MAX_BUFFERED.
        let commit = Commit {
            len: len as u16,
            flags: Flags(flags),
        };
        point!(Commit);
        self.ring.commit_word(self.next).publish(self.next, commit);
        self.next += 1;
        let mark = &self.ring.head().readiness.mark;
        if !wake::announce_if_armed(mark, || self.notifier.announce()) {
            self.has_unannounced = true;
        }
    }

    /// Notifies the receiver of all messages since the last doorbell, unless it polls the ring, and wakes it
    /// if it sleeps.
    #[inline]
    pub(crate) fn ring_doorbell(&mut self) -> ReceiverState {
        point!(Doorbell);
        let are_announced = !std::mem::take(&mut self.has_unannounced);
        let notifier = &self.notifier;
        let mark = &self.ring.head().readiness.mark;
        let sleep = &notifier.context.notes.sleep;
        let found = wake::ring_doorbell(mark, sleep, are_announced, || notifier.announce());
        if found == ReceiverState::Asleep {
            notifier.wake_sleeper();
        }
        found
    }

    /// Returns the status of the fatal NAK, if the receiver sent one for the oldest unacknowledged
    /// message. A fatal NAK for any other message is a peer's mistake and is ignored.
    #[inline]
    pub(crate) fn fatal_nak(&self) -> Option<u8> {
        let word = self.ring.head().progress.fatal_nak.load(Ordering::Acquire);
        (word >> 8 == self.acked + 1).then_some(word as u8)
    }

    /// Returns the latest RNR NAK.
    #[inline]
    pub(crate) fn nak(&self) -> Nak {
        let word = self.ring.head().progress.nak.load(Ordering::Acquire);
        Nak {
            count: word >> 8,
            timer: word as u8 & 31,
        }
    }

    /// Lets the receiver retry the message that it sent the RNR NAK for.
    pub(crate) fn allow_retry(&mut self, nak: Nak) {
        let retry: &AtomicU64 = &self.ring.head().notices.retry;
        point!(Retry);
        // Release: a receiver that sees this store has its own `nak` acknowledged; no data is
        // published.
        retry.store(nak.count, Ordering::Release);
        self.has_unannounced = true;
        self.ring_doorbell();
    }

    /// Voids all descriptors in flight: afterwards the memory that they name may be written again.
    pub(crate) fn close(&self) {
        point!(Close);
        self.ring.head().notices.closed.close();
    }
}

/// Error: the peer's acknowledgement is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadAck;
