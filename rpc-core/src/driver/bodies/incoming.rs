//! [`Receiving`]: the long messages that a poller receives, with what each holds.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::super::TimerTarget;
use super::super::held_memory::{Account, PollerMemory};
use super::super::link::LinkKey;
use super::super::link_bodies::IncomingKey;
use super::super::links::Links;
use super::super::table::Table;
use super::super::timers::TimerKey;
use super::super::waiting::Waiting;
use super::arrival::{Ended, Outcome, Purpose};
use super::looks::{LOOK, Looks};
use super::waiting_messages::WaitingMessages;
use crate::peer_memory::Charge;
use crate::protocol::frame::{FrameHeader, TransferId};
use crate::transport::{FetchKey, RemoteSegment, Transport};

/// A long message that this side receives.
#[derive(Debug)]
pub(super) struct Incoming<M> {
    pub(super) link: LinkKey,
    pub(super) id: TransferId,
    pub(super) purpose: Purpose,
    /// The header of the first frame.
    pub(super) header: FrameHeader,
    pub(super) metadata: Box<[u8]>,
    pub(super) len: u32,
    /// [`FRAGMENT`](crate::protocol::frame::FRAGMENT) or
    /// [`SEGMENTS`](crate::protocol::frame::SEGMENTS).
    pub(super) form: u16,
    /// Bytes that the sender has sent or described.
    pub(super) announced: u32,
    /// The link's `arrived` at the latest look.
    pub(super) arrived_on_link: u64,
    /// The link's `announced` after the latest piece of this message.
    pub(super) announced_on_link: u64,
    /// True if the sender sends no more: everything was announced, or it has given up.
    pub(super) is_announced: bool,
    pub(super) place: Place<M>,
    /// Segments that arrived before there was memory.
    pub(super) segments: VecDeque<RemoteSegment>,
    /// The number of segments that were announced and have not been fetched.
    pub(super) unfetched: usize,
    /// Bytes of segments whose fetch has begun.
    pub(super) fetching: u32,
    /// Bytes that have arrived.
    pub(super) received: u32,
    /// What it uses of the heap, for its metadata and for a short message.
    pub(super) heap: Charge,
    /// The registered memory that it uses.
    pub(super) registered: Charge,
    /// Bytes counted in the link's and the poller's `receiving`.
    pub(super) charged: u64,
    /// True if some of it can be fetched or has arrived.
    pub(super) has_begun: bool,
    /// True if it has been given memory for all of its bytes.
    pub(super) is_accepted: bool,
    pub(super) owed: Owed,
    /// The deadline of its call, if it has one and the message itself has to end the call.
    pub(super) deadline: Option<Instant>,
    /// Runs out at the deadline, at the end of a response's wait for memory, or at the next look at
    /// the progress of a message that has memory.
    pub(super) timer: Option<TimerKey>,
    /// The looks at its progress, once it has memory.
    pub(super) looks: Looks<Progress>,
}

/// How far a long message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// Grows with each piece of the message that is announced, and with each that arrives.
    pub(super) own: u64,
    /// What else moves it on.
    pub(super) of_others: OfOthers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfOthers {
    /// Its sender has to go on: bytes announced since, of the other messages that take turns with it.
    Announced(u64),
    /// READs of it have to complete: segments read on its connection.
    Read(u64),
}

impl Progress {
    pub(super) const NONE: Self = Self {
        own: 0,
        of_others: OfOthers::Announced(0),
    };
}

/// Where the bytes of a long message are.
#[derive(Debug)]
pub(super) enum Place<M> {
    /// It waits for memory. The fragments that have arrived are here.
    Waiting(Vec<u8>),
    /// Fragments are copied here.
    Memory(M),
    /// Fragments of a message that never waits, because its sender sends all of it without an answer.
    Heap(Vec<u8>),
    /// Segments are fetched.
    Fetch(FetchKey),
    /// The message is no longer wanted, but the device may still write its memory.
    Cancelling(FetchKey),
    /// The message was delivered, or dropped.
    Nowhere,
}

/// The entries that the sender is to get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Owed {
    pub(super) fetched: u32,
    pub(super) is_accepted: bool,
    pub(super) is_stopped: bool,
}

/// The long messages that a poller receives.
pub(in super::super) struct Receiving<T: Transport> {
    pub(super) incoming: Table<IncomingKey, Incoming<T::Memory>>,
    /// Messages that wait for memory.
    pub(super) waiting: WaitingMessages,
    /// Some of them wait for memory that others use, and not only for that of their own connection or host.
    pub(super) is_short: bool,
    /// Messages with entries for control frames.
    pub(super) owed: Waiting<LinkKey, IncomingKey>,
    /// Messages that are being fetched, by the transport's number for them.
    pub(super) fetches: HashMap<FetchKey, IncomingKey>,
    /// Counts the bytes that the application keeps.
    pub(super) memory: Arc<PollerMemory>,
    /// Bytes of messages that have memory.
    pub(super) receiving: u64,
    /// Bytes of messages of streams that were fetched ahead of their readers.
    pub(super) read_ahead: Arc<AtomicU64>,
}

impl<T: Transport> Receiving<T> {
    pub(super) fn new(memory: Arc<PollerMemory>) -> Self {
        Self {
            incoming: Table::default(),
            waiting: WaitingMessages::default(),
            is_short: false,
            owed: Waiting::default(),
            fetches: HashMap::new(),
            memory,
            receiving: 0,
            read_ahead: Arc::default(),
        }
    }

    /// Returns the number of messages that wait for memory.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of messages.
    pub(super) fn len(&self) -> usize {
        self.incoming.len()
    }

    /// Returns true if a message has been received whose sender has not been told so.
    pub(in super::super) fn owes_last_entries(&self) -> bool {
        let is_received = |incoming: &Incoming<T::Memory>| matches!(incoming.place, Place::Nowhere);
        let mut incoming = self.incoming.iter();
        incoming.any(|(key, incoming)| self.owed.contains(key) && is_received(incoming))
    }

    /// Returns the number of messages of a connection about which entries wait.
    pub(in super::super) fn entries_owed(&self, link: LinkKey) -> usize {
        self.owed.len_of(link)
    }

    /// Returns the bytes of messages that are being received, and of those that the application keeps.
    pub(in super::super) fn bytes(&self) -> (u64, u64) {
        (self.receiving, self.memory.held())
    }

    pub(super) fn cancel_incoming_timer(&mut self, links: &mut Links<T>, key: IncomingKey) {
        if let Some(timer) = self.incoming[key].timer.take() {
            links.timers.cancel(timer);
        }
    }

    pub(super) fn charge_incoming(&mut self, links: &mut Links<T>, key: IncomingKey) {
        let incoming = &mut self.incoming[key];
        incoming.charged = incoming.len.into();
        links[incoming.link].bodies.receiving += incoming.charged;
        self.receiving += incoming.charged;
    }

    /// Records that the memory of a message is no longer being received into.
    pub(super) fn discharge(&mut self, links: &mut Links<T>, key: IncomingKey) {
        let incoming = &mut self.incoming[key];
        let charged = mem::take(&mut incoming.charged);
        self.receiving -= charged;
        links[incoming.link].bodies.receiving -= charged;
    }

    /// Returns the account of the bytes that the application keeps of a link's messages.
    pub(super) fn account_of(&mut self, links: &mut Links<T>, link: LinkKey) -> Arc<Account> {
        let memory = &self.memory;
        let account = &mut links[link].bodies.account;
        let account = account.get_or_insert_with(|| Account::new(Arc::clone(memory)));
        Arc::clone(account)
    }

    /// Queues a message's entries for the next control frame.
    pub(super) fn owe_entry(&mut self, links: &mut Links<T>, key: IncomingKey) {
        let link = self.incoming[key].link;
        self.owed.insert(link, key);
        links.owe(link);
    }

    /// Removes a message if nothing of it follows in either direction.
    pub(super) fn forget_if_done(&mut self, links: &mut Links<T>, key: IncomingKey) {
        let Some(incoming) = self.incoming.get(key) else {
            return;
        };
        if incoming.is_done() && !self.owed.contains(key) {
            let link = &mut links[incoming.link].bodies;
            link.incoming.remove(&incoming.id);
            self.incoming.remove(key);
        }
    }

    /// Takes the purpose of a message, which is then nobody's.
    pub(super) fn take_purpose(&mut self, links: &mut Links<T>, key: IncomingKey) -> Purpose {
        let incoming = &mut self.incoming[key];
        let purpose = mem::replace(&mut incoming.purpose, Purpose::Nobody);
        let call = incoming.header.call.0;
        let by_call = &mut links[incoming.link].bodies.by_call;
        // A message of a stream is not there, but another message may have the number of its call.
        if by_call.get(&call) == Some(&key) {
            by_call.remove(&call);
        }
        purpose
    }

    /// Starts the progress timer of a message that has been given memory. Replaces the timer with
    /// which it waited.
    pub(super) fn expect_progress(&mut self, links: &mut Links<T>, key: IncomingKey) {
        self.cancel_incoming_timer(links, key);
        let incoming = &mut self.incoming[key];
        let link = &links[incoming.link].bodies;
        incoming.looks = Looks::begin(incoming.progress(link));
        incoming.arrived_on_link = link.arrived;
        self.start_look(links, key);
    }

    pub(super) fn start_look(&mut self, links: &mut Links<T>, key: IncomingKey) {
        let incoming = &mut self.incoming[key];
        let look = links.clock.now() + LOOK;
        let end = incoming.deadline.map_or(look, |end| end.min(look));
        incoming.timer = Some(links.timers.insert(end, TimerTarget::Incoming(key)));
    }

    /// Begins to fetch the segments that have been announced.
    pub(super) fn fetch_announced(
        &mut self,
        links: &mut Links<T>,
        key: IncomingKey,
        fetch: FetchKey,
    ) {
        let incoming = &mut self.incoming[key];
        for segment in incoming.segments.drain(..) {
            // The lengths add up to no more than the message's.
            links
                .transport
                .fetch(fetch, segment, incoming.fetching as usize);
            incoming.fetching += segment.len;
            links.counters.transfers.reads.add(1);
        }
    }
}

impl<M> Incoming<M> {
    /// Returns what the end of the message tells.
    pub(super) fn ended(&self, key: IncomingKey, outcome: Outcome) -> Ended {
        Ended {
            link: self.link,
            key,
            header: self.header,
            purpose: self.purpose,
            outcome,
        }
    }

    /// Returns true if nothing follows in either direction but entries. A message that somebody wants
    /// is not done: if its memory has gone with its connection, the end of the connection ends it.
    pub(super) fn is_done(&self) -> bool {
        let is_nowhere = matches!(self.place, Place::Nowhere);
        let is_wanted = !matches!(self.purpose, Purpose::Nobody);
        self.is_announced && is_nowhere && !is_wanted
    }
}

#[cfg(debug_assertions)]
impl<T: Transport> Receiving<T> {
    /// Checks that the memory which is received into is that of the messages that arrive, and that
    /// messages which wait for memory or owe entries are there.
    pub(in super::super) fn assert_sums(&self, links: &Links<T>) {
        let mut all = 0;
        for link in links.table.values() {
            let messages = link.bodies.incoming.values();
            let sum: u64 = messages.map(|key| self.incoming[*key].charged).sum();
            let counted = link.bodies.receiving;
            assert_eq!(counted, sum, "bytes that a connection receives into");
            all += sum;
        }
        assert_eq!(self.receiving, all, "bytes that are received into");
        assert!(self.owed.keys().all(|key| self.incoming.contains(key)));
        let in_links = links.table.values().map(|link| link.bodies.incoming.len());
        assert_eq!(self.incoming.len(), in_links.sum::<usize>());
    }
}
