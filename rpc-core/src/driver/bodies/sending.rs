//! The sender's part of a long message: what it keeps of it while it is under way.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use bytes::Bytes;

use super::super::held_memory::PollerMemory;
use super::super::link::LinkKey;
use super::super::link_bodies::TransferKey;
use super::super::link_streams::StreamKey;
use super::super::links::Links;
use super::super::table::Table;
use super::super::timers::TimerKey;
use super::looks::Looks;
use crate::peer_memory::{Charge, Use};
use crate::protocol::frame::{CallId, FRAGMENT, TransferId};
use crate::transport::{Chunks, ExposureKey, Transport};

/// The most segments of a message that are exposed before its receiver has fetched one. The first
/// fetch shows that the receiver has memory for the message.
pub(super) const FIRST_SEGMENTS: usize = 8;

/// How many ended messages of a link have their numbers remembered, since an entry of a control frame
/// about one may still be on its way. Credits bound the messages that end meanwhile.
const ENDED: usize = 1024;

/// The call or the stream that a long message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferOwner {
    /// The request of a call of this side.
    Request(CallId),
    /// The response to a call of the peer.
    Response,
    /// A message of a stream.
    Stream(StreamKey),
}

/// A long message that this side sends.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) link: LinkKey,
    pub(super) id: TransferId,
    pub(super) owner: TransferOwner,
    /// [`FRAGMENT`] or
    /// [`SEGMENTS`](crate::protocol::frame::SEGMENTS).
    pub(super) form: u16,
    /// The bytes that have not been announced.
    pub(super) message: Chunks,
    /// Bytes that have been announced.
    pub(super) announced: u32,
    /// Segments that the receiver has not released, oldest first, with their lengths.
    pub(super) exposed: VecDeque<(ExposureKey, u32)>,
    /// True if the receiver has memory for the whole message.
    pub(super) is_accepted: bool,
    /// True if the rest is not wanted. If some of it has not been announced, a frame tells the
    /// receiver that nothing follows.
    pub(super) is_abandoned: bool,
    /// True if no frame of it follows.
    pub(super) has_ended: bool,
    /// Server: counts a message of a stream as unread, until nothing of it is left.
    pub(super) _unread: Charge,
    /// Runs out at the next look.
    pub(super) timer: Option<TimerKey>,
    /// The looks at what its receiver has to do.
    pub(super) looks: Looks<Awaited>,
}

/// What the receiver of a message has to do before its sender can go on. The numbers grow when it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Nothing: this side has to go on, or the receiver may take its time.
    Nothing,
    /// It has to release segments. The number is the bytes released so far.
    Release(u64),
    /// It has to accept the message.
    Acceptance,
    /// It has to grant credits. This is `credits_seen` of its connection.
    Credits(u64),
}

/// A message of a stream of which nothing is under way any more.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct SentMessage {
    pub(in super::super) stream: StreamKey,
    pub(in super::super) key: TransferKey,
}

/// The long messages that a poller sends.
pub(in super::super) struct Sending {
    pub(super) outgoing: Table<TransferKey, Outgoing>,
    /// Messages sent so far. Their numbers take their generations from it.
    begun: u32,
    /// Turns since a piece was sent last, in which pieces waited because the application was woken.
    pub(super) turns_yielded: u32,
    /// True if the last turn has sent pieces, and left others to the next turn.
    pub(super) has_more: bool,
    /// Counts the bytes into which messages are encoded.
    pub(super) memory: Arc<PollerMemory>,
    /// Bytes that peers may read.
    pub(super) exposed: u64,
    /// The pieces that they are in.
    pub(super) exposed_pieces: usize,
    /// Parts of messages that were sent. Their destructors may be the application's code, so they
    /// are dropped while nothing is borrowed.
    pub(in super::super) spent: Vec<Bytes>,
}

impl Sending {
    pub(super) fn new(memory: Arc<PollerMemory>) -> Self {
        Self {
            outgoing: Table::default(),
            begun: 0,
            turns_yielded: 0,
            has_more: false,
            memory,
            exposed: 0,
            exposed_pieces: 0,
            spent: Vec::new(),
        }
    }

    /// Returns the number of parts to drop.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.spent.len()
    }

    /// Keeps parts of a message until nothing is borrowed.
    pub(super) fn spend(&mut self, parts: impl IntoIterator<Item = Bytes>) {
        self.spent.extend(parts);
    }

    /// Returns true if pieces can be sent although nothing has arrived.
    pub(in super::super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Returns the number of messages.
    pub(super) fn len(&self) -> usize {
        self.outgoing.len()
    }

    /// Ends the messages of a connection that the transport has closed.
    pub(super) fn end_all_of<T: Transport>(&mut self, links: &mut Links<T>, link: LinkKey) {
        for key in mem::take(&mut links[link].bodies.outgoing) {
            links.outbox.pieces.remove(key);
            let outgoing = self.outgoing.remove(key);
            if let Some(timer) = outgoing.timer {
                links.timers.cancel(timer);
            }
            self.conceal_all(links, link, outgoing.exposed);
            self.discard(outgoing.message);
        }
    }

    /// Counts a message of `len` bytes of a client's stream as unread, until it is dropped.
    pub(super) fn count_unread<T: Transport>(
        links: &Links<T>,
        link: LinkKey,
        owner: TransferOwner,
        len: u32,
    ) -> Charge {
        let link = &links[link];
        match owner {
            TransferOwner::Stream(_) if link.is_server() => {
                link.memory.charge(Use::Unread, u64::from(len))
            }
            _ => Charge::default(),
        }
    }

    /// Adds a message that this side sends, and numbers it.
    pub(super) fn insert(&mut self, outgoing: Outgoing) -> TransferKey {
        self.begun = self.begun.wrapping_add(1);
        let generation = self.begun;
        // At most `MAX_TRANSFERS` for each connection.
        let key = self.outgoing.insert(outgoing);
        self.outgoing[key].id = TransferId(CallId::new(key.number(), generation).0);
        key
    }

    /// Returns true if a message that has just begun is still under way.
    pub(in super::super) fn is_sending(&self, key: TransferKey) -> bool {
        self.outgoing.contains(key)
    }

    /// Returns a message of this side that a peer names.
    pub(super) fn outgoing_of(&self, link: LinkKey, id: TransferId) -> Option<TransferKey> {
        let key = self.outgoing.key_at(CallId(id.0).index() as u32)?;
        let outgoing = &self.outgoing[key];
        (outgoing.id == id && outgoing.link == link).then_some(key)
    }

    /// Copies the next bytes of a message that is under way.
    pub(super) fn copy_next(&mut self, key: TransferKey, out: &mut [u8]) {
        let mut message = mem::take(&mut self.outgoing[key].message);
        self.copy_out(&mut message, out);
        self.outgoing[key].message = message;
    }

    /// Copies the next bytes of a message.
    pub(super) fn copy_out(&mut self, message: &mut Chunks, mut out: &mut [u8]) {
        while !out.is_empty() {
            let Some(part) = message.take_front(out.len()) else {
                return;
            };
            let (to, rest) = out.split_at_mut(part.len());
            to.copy_from_slice(&part);
            out = rest;
            self.spend([part]);
        }
    }

    /// Drops a message later, when nothing is borrowed.
    pub(in super::super) fn discard(&mut self, mut message: Chunks) {
        while let Some(part) = message.take_front(usize::MAX) {
            self.spend([part]);
        }
    }

    /// Removes a message of which nothing follows and nothing is exposed. Returns it if it was one of a
    /// stream, which has to be told.
    #[must_use]
    pub(super) fn end_if_done<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        key: TransferKey,
    ) -> Option<SentMessage> {
        let outgoing = &self.outgoing[key];
        let is_queued = links.outbox.pieces.contains(key);
        if !outgoing.has_ended || !outgoing.exposed.is_empty() || is_queued {
            return None;
        }
        let outgoing = self.outgoing.remove(key);
        if let Some(timer) = outgoing.timer {
            links.timers.cancel(timer);
        }
        let link = &mut links[outgoing.link].bodies;
        link.outgoing.retain(|other| *other != key);
        if outgoing.form == FRAGMENT || outgoing.is_abandoned {
            if link.ended.len() == ENDED {
                link.ended.pop_front();
            }
            link.ended.push_back(outgoing.id);
        }
        self.discard(outgoing.message);
        match outgoing.owner {
            TransferOwner::Stream(stream) => Some(SentMessage { stream, key }),
            TransferOwner::Request(_) | TransferOwner::Response => None,
        }
    }

    pub(super) fn conceal_all<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        exposed: impl IntoIterator<Item = (ExposureKey, u32)>,
    ) {
        let of_link = &mut links.table[link].bodies;
        for (key, len) in exposed {
            of_link.exposed -= u64::from(len);
            of_link.exposed_pieces -= 1;
            self.exposed -= u64::from(len);
            self.exposed_pieces -= 1;
            links.transport.conceal(key);
        }
    }

    /// Queues a message of which a piece may be sent.
    pub(super) fn queue_piece<T: Transport>(&mut self, links: &mut Links<T>, key: TransferKey) {
        let link = self.outgoing[key].link;
        links.outbox.pieces.insert(link, key);
        links.outbox.note_any();
    }
}

#[cfg(debug_assertions)]
impl Sending {
    /// Checks that the pieces which peers may read are those of the messages that are under way.
    pub(in super::super) fn assert_sums<T: Transport>(&self, links: &Links<T>) {
        let mut all = (0, 0);
        for link in links.table.values() {
            let messages = link.bodies.outgoing.iter().map(|key| &self.outgoing[*key]);
            let pieces = messages.flat_map(|outgoing| &outgoing.exposed);
            let sum = pieces.fold((0, 0), |(bytes, pieces), (_, len)| {
                (bytes + u64::from(*len), pieces + 1)
            });
            let counted = (link.bodies.exposed, link.bodies.exposed_pieces);
            assert_eq!(counted, sum, "bytes and pieces that a peer may read");
            all = (all.0 + sum.0, all.1 + sum.1);
        }
        let counted = (self.exposed, self.exposed_pieces);
        assert_eq!(counted, all, "bytes and pieces that peers may read");
    }
}
