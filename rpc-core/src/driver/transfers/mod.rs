//! [`Transfers`]: long messages, which do not fit a slot, while they are on their way.
//!
//! A long message begins with a frame of its call, which says the message's length and has the first
//! piece. Continuations bring the others (`protocol/frame/long.rs`). A frame's slot is released as
//! soon as the frame has been handled: fragments are copied out of it, and the descriptions of
//! segments are kept.
//!
//! | file | step |
//! | --- | --- |
//! | `outgoing.rs` | sender: what is kept of a message that is under way |
//! | `first_frame.rs` | sender: the first frame leaves, and all others if they are few |
//! | `pump.rs` | sender: pieces leave, some in each turn |
//! | `release.rs` | sender: the receiver's entries release pieces, or stop the message |
//! | `arrival.rs` | the purpose of a long message, and its outcome |
//! | `incoming.rs` | receiver: a first frame or a continuation arrives |
//! | `admission.rs` | receiver: a message gets memory for all of it, or waits for it, or is refused |
//! | `fetch.rs` | receiver: segments are read |
//! | `progress.rs` | receiver: a sender that stops sending loses its connection |
//! | `looks.rs` | both: the time that a peer has, for `release.rs` and `progress.rs` |
//! | `stop.rs` | receiver: a message that is no longer wanted is stopped |
//! | `deliver.rs` | receiver: a complete message goes to its handler or its call |
//! | `control.rs` | receiver: entries of control frames, for the sender |
//! | `end.rs` | the end of a connection |
//!
//! Both forms of a message differ only in their pieces. *Fragments* are copied into slots, and out of
//! them. *Segments* describe memory that the sender exposes and the receiver reads.
//!
//! A message that waits for memory holds no slot and no credit. A sender sends only a little of a
//! message before its receiver has memory for it.

mod admission;
mod arrival;
mod control;
mod deliver;
mod end;
mod fetch;
mod first_frame;
mod incoming;
mod looks;
mod outgoing;
mod progress;
mod pump;
mod release;
mod stop;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;

use self::admission::WaitingMessages;
pub(super) use self::arrival::{Completed, LongMessage, Purpose};
use self::incoming::{Incoming, Place};
use self::outgoing::Outgoing;
pub(super) use self::outgoing::TransferOwner;
pub(super) use self::release::SentMessage;
use super::held_memory::PollerMemory;
use super::link::LinkKey;
use super::link_transfers::{IncomingKey, TransferKey};
use super::table::Table;
use super::waiting::Waiting;
use crate::transport::{FetchKey, Transport};

/// The long messages of one poller.
pub(crate) struct Transfers<T: Transport> {
    outgoing: Table<TransferKey, Outgoing>,
    incoming: Table<IncomingKey, Incoming<T::Memory>>,
    /// Messages sent so far. Their numbers take their generations from it.
    begun: u32,
    /// Turns since a piece was sent last, in which pieces waited because the application was woken.
    turns_yielded: u32,
    /// True if the last turn has sent pieces, and left others to the next turn.
    has_more: bool,
    /// Received messages that wait for memory.
    waiting: WaitingMessages,
    /// Messages with entries for control frames.
    owed: Waiting<LinkKey, IncomingKey>,
    /// Messages that are being fetched, by the transport's number for them.
    fetches: HashMap<FetchKey, IncomingKey>,
    memory: Arc<PollerMemory>,
    /// Bytes of messages that are being received, which have memory.
    receiving: u64,
    /// Bytes of messages of streams that were fetched ahead of their readers.
    read_ahead: Arc<AtomicU64>,
    /// Bytes that peers may read.
    exposed: u64,
    /// The pieces that they are in.
    exposed_pieces: usize,
    /// Parts of messages that were sent. Their destructors may be the application's code, so they
    /// are dropped while nothing is borrowed.
    spent: Vec<Bytes>,
}

impl<T: Transport> Default for Transfers<T> {
    fn default() -> Self {
        Self {
            outgoing: Table::default(),
            incoming: Table::default(),
            begun: 0,
            turns_yielded: 0,
            has_more: false,
            waiting: WaitingMessages::default(),
            owed: Waiting::default(),
            fetches: HashMap::new(),
            memory: Arc::default(),
            receiving: 0,
            read_ahead: Arc::default(),
            exposed: 0,
            exposed_pieces: 0,
            spent: Vec::new(),
        }
    }
}

impl<T: Transport> Transfers<T> {
    /// Returns a number other than 0 if messages, or parts to drop, wait for a turn.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len() | self.spent.len()
    }

    /// Keeps parts of a message until nothing is borrowed.
    fn spend(&mut self, parts: impl IntoIterator<Item = Bytes>) {
        self.spent.extend(parts);
    }

    /// Returns true if pieces can be sent although nothing has arrived.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Returns true if no long message is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.outgoing.is_empty() && self.incoming.is_empty()
    }

    /// Returns true if a message has been received whose sender has not been told so.
    pub(super) fn owes_last_entries(&self) -> bool {
        let is_received = |incoming: &Incoming<T::Memory>| matches!(incoming.place, Place::Nowhere);
        let mut incoming = self.incoming.iter();
        incoming.any(|(key, incoming)| self.owed.contains(key) && is_received(incoming))
    }

    /// Returns the number of messages of a connection about which entries wait.
    pub(super) fn entries_owed(&self, link: LinkKey) -> usize {
        self.owed.len_of(link)
    }

    /// Returns the numbers of messages that are sent and received, for tests.
    #[cfg(feature = "test-util")]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.outgoing.len(), self.incoming.len())
    }

    /// Returns the bytes of messages that are being received, and of those that the application keeps.
    pub(super) fn received(&self) -> (u64, u64) {
        (self.receiving, self.memory.held())
    }
}
