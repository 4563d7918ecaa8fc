//! Memory that peers may read: pieces of messages, each under a window of its own.

use std::sync::Arc;

use bytes::Buf;
use rpc_core::transport::{
    Chunks, ConnectionId, ExposeError, Exposed, ExposureKey, MessageMemory, RemoteSegment,
};
use verbline_verbs::for_transport::BlockRegion;
use verbline_verbs::{MemoryWindow, WorkRequest};

use super::memory_pool::NoWindow;
use super::one_sided::Request;
use super::read_turns::Found;
use super::state::{Exposure, Memory};
use crate::transport::lane::Lane;
use crate::transport::pending::Pending;

/// Bytes of the longest piece that is exposed where it lies.
const MAX_REFERENCE_LEN: usize = 1 << 20;

/// Bytes of the shortest piece that is registered where it lies. A copy of a shorter one takes a few
/// microseconds, about as long as its registration.
const MIN_LENT_LEN: usize = 32 * 1024;

/// Invalidations are posted together, as soon as this many wait.
const REVOKED_AT_ONCE: usize = 8;
/// Fewer invalidations are posted after this many polls. The polls take some microseconds, in which
/// the receiver releases other pieces of the message too.
const REVOKING_POLLS: usize = 64;

impl Lane {
    /// Lets the connection's peer read the next piece of `message`, and removes the piece from
    /// `message`. If `is_accepted`, the peer has memory for the whole message.
    ///
    /// # Errors
    ///
    /// [`ExposeError::NotNow`] if no memory, window or entry of the send queue is free;
    /// [`ExposeError::NoWindow`] if the device gives no more windows; [`ExposeError::Closed`] if the
    /// connection is not open, or does not use READs.
    pub(crate) fn expose(
        &mut self,
        id: ConnectionId,
        message: &mut Chunks,
        is_accepted: bool,
    ) -> Result<Exposed, ExposeError> {
        let connection = self.connections.get(id).ok_or(ExposeError::Closed)?;
        if !connection.is_open() || !connection.one_sided.has_reads() {
            return Err(ExposeError::Closed);
        }
        let free = connection.queue_pair.send_slots_free();
        let has_room = self.long_messages.exposures.has_room()
            && connection.one_sided.has_room(1)
            && connection.sends.has_entry(free);
        // Windows are looked for first: a message that begins without an entry of the send queue, and
        // then finds that there are no windows, could not go on in fragments.
        let window = match self.long_messages.uses_windows {
            true => match self.long_messages.pools.take_window(is_accepted) {
                Ok(window) => Some(window),
                Err(none) => return Err(self.revoke_for_window(none)),
            },
            false => None,
        };
        if !has_room {
            if let Some(window) = window {
                self.long_messages.pools.put_window_back(window);
            }
            return Err(ExposeError::NotNow);
        }
        let Some(piece) = self.take_piece(id, message, is_accepted) else {
            if let Some(window) = window {
                self.long_messages.pools.put_window_back(window);
            }
            return Err(self.revoke_for_more());
        };
        // Between two steps of a copy, the device was polled: that may have failed the connection.
        if !self.connections.get(id).is_some_and(|it| it.is_open()) {
            if let Some(window) = window {
                self.long_messages.pools.put_window_back(window);
            }
            return Err(ExposeError::Closed);
        }
        self.expose_piece(id, piece, window)
    }

    /// Posts the invalidations that wait, because a message waits for the memory or the windows of
    /// their pieces: otherwise each of its pieces would wait for [`REVOKING_POLLS`].
    #[cold]
    fn revoke_for_more(&mut self) -> ExposeError {
        self.long_messages.polls_revoking = 0;
        self.post_invalidations();
        ExposeError::NotNow
    }

    /// Posts the invalidations that wait, if a window is to come from them.
    #[cold]
    fn revoke_for_window(&mut self, none: NoWindow) -> ExposeError {
        match none {
            NoWindow::Soon => self.revoke_for_more(),
            NoWindow::Scarce => {
                self.revoke_for_more();
                ExposeError::NoWindow { may_come: true }
            }
            NoWindow::Over => ExposeError::NoWindow { may_come: false },
        }
    }

    /// Takes the next piece: a chunk where it lies, or a copy of some bytes. Returns `None` if
    /// there is no memory.
    ///
    /// A copy ends early where the message goes on with a chunk that can be exposed where it lies,
    /// and when a call has arrived ([`is_call`](Self::is_call)): the call waits for one step of the
    /// copy.
    fn take_piece(
        &mut self,
        id: ConnectionId,
        message: &mut Chunks,
        is_accepted: bool,
    ) -> Option<Piece> {
        let long_messages = &self.long_messages;
        if let Some(region) = long_messages.region_of_front(message) {
            let bytes = message.take_front(MAX_REFERENCE_LEN)?;
            return Some(Piece {
                region,
                address: bytes.as_ptr().addr(),
                len: bytes.len(),
                memory: Memory::Shared(bytes),
            });
        }
        // Over TCP, the kernel takes the bytes on this core.
        let is_read_here = self
            .connections
            .get_ref(id)
            .is_some_and(|connection| connection.is_read_by_peer);
        if is_read_here && let Some(piece) = self.lend_front(message) {
            return Some(piece);
        }
        let long_messages = &self.long_messages;
        let len = long_messages.next_piece_len(message.len());
        let mut buf = long_messages.pools.allocate_piece(len, is_accepted)?;
        let step_len = long_messages.step_len;
        let mut at = 0;
        while at < len {
            let front = message.chunk();
            let count = front.len().min(len - at).min(step_len);
            let ends_chunk = count == front.len();
            match is_read_here {
                // It finds them in the caches.
                true => buf.as_mut()[at..at + count].copy_from_slice(&front[..count]),
                false => buf.write(at, &front[..count]),
            }
            message.advance(count);
            at += count;
            let is_next_exposed = || {
                let is_lent = is_read_here && self.can_be_lent(message);
                ends_chunk && (is_lent || self.long_messages.region_of_front(message).is_some())
            };
            if at < len && (is_next_exposed() || self.has_call_beside(id)) {
                break;
            }
        }
        let (region, address) = buf.region()?;
        Some(Piece {
            region,
            address,
            len: at,
            memory: Memory::Copied(buf),
        })
    }

    /// Returns true if the message's first chunk is worth being registered where it lies.
    fn can_be_lent(&self, message: &Chunks) -> bool {
        // Without windows, peers know the keys of whole regions, which last longer than a piece.
        self.long_messages.uses_windows
            && message
                .front()
                .is_some_and(|front| front.len() >= MIN_LENT_LEN)
    }

    /// Takes the next piece where it lies in the application's memory, which is registered for it, if
    /// that is worth it.
    fn lend_front(&self, message: &mut Chunks) -> Option<Piece> {
        if !self.can_be_lent(message) {
            return None;
        }
        let front = message.front()?;
        let bytes = front.slice(..front.len().min(MAX_REFERENCE_LEN));
        let (address, len) = (bytes.as_ptr().addr(), bytes.len());
        // With too many regions, the piece is copied.
        let region = self.queue_pairs.domain().lend(bytes).ok()?;
        message.advance(len);
        Some(Piece {
            region: Arc::new(region),
            address,
            len,
            memory: Memory::Lent,
        })
    }

    fn expose_piece(
        &mut self,
        id: ConnectionId,
        piece: Piece,
        window: Option<MemoryWindow>,
    ) -> Result<Exposed, ExposeError> {
        let Piece {
            region,
            address,
            len,
            memory,
        } = piece;
        let key = match &window {
            None => region.remote_key(),
            Some(window) => {
                let key = window.next_key();
                let request = WorkRequest::bind_window(window, region.binding(address, len), key);
                let posted = self.post_one_sided(id.index, [(Request::Bind, request)], false);
                if posted.is_err() {
                    self.long_messages.pools.forget_window();
                    return Err(ExposeError::Closed);
                }
                key
            }
        };
        let was_copied = matches!(memory, Memory::Copied(_));
        self.long_messages.exposed += memory.bytes();
        let exposure = Exposure {
            connection: id,
            memory,
            window: window.map(|window| (window, key)),
            is_concealed: false,
        };
        // `expose` has checked that there is room.
        let name = self.long_messages.exposures.insert(exposure);
        let name = name.map_err(|_| ExposeError::Closed)?;
        Ok(Exposed {
            segment: RemoteSegment {
                address: address as u64,
                key: key.0,
                // Fits: a piece is far shorter than 4 GiB.
                len: len as u32,
            },
            key: ExposureKey(name),
            was_copied,
        })
    }

    /// Ends the exposure of a piece. Without a window, its memory is free at once. Otherwise, the
    /// invalidation of its key is queued for a later poll: see
    /// [`post_invalidations_if_due`](Self::post_invalidations_if_due).
    pub(crate) fn conceal(&mut self, key: ExposureKey) {
        let Some(exposure) = self.long_messages.exposures.get_mut(key.0) else {
            return;
        };
        if std::mem::replace(&mut exposure.is_concealed, true) {
            return;
        }
        let (id, has_window) = (exposure.connection, exposure.window.is_some());
        if !has_window {
            self.end_exposure(key.0);
            return;
        }
        // If the connection is being closed, the memory is kept until its queue pair is gone.
        if let Some(connection) = self.connections.get(id)
            && connection.is_open()
        {
            connection.one_sided.to_invalidate.push_back(key.0);
            self.long_messages.revoking.push(id.index);
            self.pending.set(Pending::LONG_MESSAGES);
        }
    }

    /// Posts the invalidations that wait, if they are many and this poll has found no call, or if they
    /// have waited for some polls.
    ///
    /// An invalidation waits for all requests before it, and those behind it wait for the
    /// invalidation: a message that is being sent would stop for a round trip.
    pub(super) fn post_invalidations_if_due(&mut self, found: Found) {
        let long_messages = &mut self.long_messages;
        if long_messages.revoking.is_empty() {
            return;
        }
        long_messages.polls_revoking += 1;
        let are_many = long_messages.revoking.len() >= REVOKED_AT_ONCE && found != Found::Call;
        if are_many || long_messages.polls_revoking > REVOKING_POLLS {
            long_messages.polls_revoking = 0;
            self.post_invalidations();
        }
    }

    /// Posts the invalidations that wait, with one signal for each connection.
    pub(super) fn post_invalidations(&mut self) {
        let mut revoking = std::mem::take(&mut self.long_messages.revoking);
        for index in revoking.drain(..) {
            self.post_invalidations_of(index);
        }
        // Keeps the list's allocation.
        if self.long_messages.revoking.is_empty() {
            self.long_messages.revoking = revoking;
        }
    }

    pub(super) fn post_invalidations_of(&mut self, index: u32) {
        let Some((_, connection)) = self.connections.at(index) else {
            return;
        };
        if !connection.is_open() {
            return;
        }
        let mut requests = Vec::new();
        let free = connection.queue_pair.send_slots_free();
        while connection.sends.has_entry(free - requests.len())
            && connection.one_sided.has_room(requests.len() + 1)
            && let Some(key) = connection.one_sided.to_invalidate.pop_front()
        {
            let exposure = self.long_messages.exposures.at(key);
            if let Some((_, bound)) = exposure.and_then(|exposure| exposure.window.as_ref()) {
                let request = WorkRequest::local_invalidate(*bound);
                requests.push((Request::Invalidate(key), request));
            }
        }
        // Invalidations that found no entry of the queue wait for a completion. A failed post has
        // ended the connection.
        let _ = self.post_one_sided(index, requests, true);
    }

    /// Frees the memory and the window of a piece that no peer can read any more.
    pub(super) fn end_exposure(&mut self, key: u32) {
        let Some(exposure) = self.long_messages.exposures.remove(key) else {
            return;
        };
        self.long_messages.exposed -= exposure.memory.bytes();
        if let Some((window, _)) = exposure.window {
            self.long_messages.pools.give_back_window(window);
        }
    }

    /// Frees the pieces of a connection whose queue pair is gone. Their windows are deallocated
    /// instead of used again, because it is not known whether they were invalidated.
    pub(super) fn end_exposures_of(&mut self, id: ConnectionId) {
        let of_it = |exposure: &Exposure| exposure.connection == id;
        for key in self.long_messages.exposures.keys_of(of_it) {
            if let Some(exposure) = self.long_messages.exposures.at(key)
                && exposure.window.take().is_some()
            {
                self.long_messages.pools.forget_window();
            }
            self.end_exposure(key);
        }
    }

    /// Leaks the pieces of a connection whose queue pair cannot be destroyed, as
    /// [`leak_exposures`](Self::leak_exposures) does.
    #[cold]
    pub(super) fn leak_exposures_of(&mut self, id: ConnectionId) {
        self.leak_exposures_that(|exposure| exposure.connection == id);
    }

    /// Leaks the pieces of all connections, because a queue pair cannot be destroyed: its peer may
    /// still read its pieces. So their memory is never used again, nor deregistered. It counts as
    /// exposed.
    #[cold]
    pub(crate) fn leak_exposures(&mut self) {
        self.leak_exposures_that(|_| true);
    }

    fn leak_exposures_that(&mut self, is_it: impl Fn(&Exposure) -> bool) {
        for key in self.long_messages.exposures.keys_of(is_it) {
            let leaked = self.long_messages.exposures.remove(key);
            if leaked.as_ref().is_some_and(|it| it.window.is_some()) {
                self.long_messages.pools.forget_window();
            }
            std::mem::forget(leaked);
        }
    }
}

/// A piece of a message, before it is exposed.
struct Piece {
    region: Arc<BlockRegion>,
    address: usize,
    len: usize,
    memory: Memory,
}
