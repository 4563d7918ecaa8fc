//! Memory for long messages that arrive. A message gets memory for all of its bytes or for none.
//! Among messages of about the same length, connections take turns; those of a connection get memory
//! in the order of their arrival. A host gets no more than its share (`peer_memory.rs`).
//!
//! A message in fragments with at most [`FREE_FRAGMENTS`] bytes never waits, because its sender
//! sends all of it without an answer. Its bytes go to the heap: a message before it may wait for
//! registered memory, and no device writes fragments there. What such messages use is bounded for the
//! process (`peer_memory.rs`), until the application drops them.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::super::TimerTarget;
use super::super::link_bodies::IncomingKey;
use super::super::links::Links;
use super::arrival::{Ended, Purpose};
use super::incoming::{Place, Receiving};
use super::looks::LOOK;
use crate::limits::LEAST_ON_HEAP;
use crate::peer_memory::{Charge, Use};
use crate::protocol::connection::{FREE_FRAGMENTS, MAX_SEGMENTS};
use crate::protocol::frame::{FRAGMENT, FrameKind};
use crate::status::Status;
use crate::stream::long::ReadAhead;
use crate::transport::{AllocateError, Transport};

/// The longest time for which a response waits for memory. The server does not know the call's
/// deadline on this side, and closes the connection if segments are kept for twice as long.
const LONGEST_WAIT: Duration = Duration::from_secs(15);

/// One in this many bytes of the memory for messages, at most, is for messages of streams that are
/// fetched ahead of their readers. A block of memory is up to twice as long as its message. These
/// blocks and the block of the longest message together have to fit into seven eighths of the memory:
/// that part is for messages that arrive.
const READ_AHEAD_PART: u64 = 4;

/// While others wait, a connection moves at least one in so many parts of the bytes for which it has memory
/// between two looks: with one message of 4 MiB, 14 kB in a second.
const LEAST_PARTS: u64 = 20;

const NO_HEAP: &str = "the receiver has no memory for the message: what waits for readers and peers uses \
     all that its process sets aside for this host. Try again later, or read what has arrived";

/// Bytes that a segment uses from its announcement until it is fetched: what the peer announced, and the READs
/// of it in the transport.
const OF_SEGMENT: u64 = 64;

/// The reason that a message is not received now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoMemory {
    /// The connection uses as much memory as it may use.
    OfConnection,
    /// Its host uses as much memory as it may use, beside others.
    OfHost,
    /// The poller has none at the moment.
    OfPoller,
    /// More is being registered, or others wait for that.
    NotYet,
    /// The message is longer than the most that can be registered for one.
    TooLong { limit: usize },
    /// There is memory, and the transport does not begin to read the message.
    NotRead,
}

impl<T: Transport> Receiving<T> {
    /// Gives a message memory for all of it, or lets it wait. Returns the status with which its call
    /// ends if it gets none.
    pub(in super::super) fn admit_incoming(
        &mut self,
        links: &mut Links<T>,
        key: IncomingKey,
    ) -> Option<Status> {
        let incoming = &self.incoming[key];
        let (len, form) = (incoming.len, incoming.form);
        if form == FRAGMENT && len <= FREE_FRAGMENTS {
            self.charge_incoming(links, key);
            self.expect_progress(links, key);
            let incoming = &mut self.incoming[key];
            incoming.is_accepted = true;
            let mut bytes = match mem::replace(&mut incoming.place, Place::Nowhere) {
                Place::Waiting(bytes) => bytes,
                _ => Vec::new(),
            };
            bytes.reserve_exact(len as usize - bytes.len());
            incoming.place = Place::Heap(bytes);
            return None;
        }
        let memory = match self.waiting.has_class_of(len) {
            true => Err(NoMemory::NotYet),
            false => self.memory_for(links, key),
        };
        let reason = match memory {
            Ok(memory) => match self.place(links, key, memory) {
                true => return None,
                false => NoMemory::NotRead,
            },
            Err(reason) => reason,
        };
        if self.is_refused(links, reason) {
            links.counters.transfers.refused.add(1);
            return Some(self.no_memory(links, key, reason));
        }
        links.counters.transfers.waited.add(1);
        self.waiting.push(self.incoming[key].link, key, len);
        // A response has a time limit, also one that ends a stream: its server keeps the pieces
        // exposed, and closes the connection if they are not released.
        if self.incoming[key].header.kind == FrameKind::Response {
            let end = links.clock.now() + LONGEST_WAIT;
            let timer = links.timers.insert(end, TimerTarget::Incoming(key));
            self.incoming[key].timer = Some(timer);
        }
        None
    }

    /// Charges what a message uses of the heap: its metadata, its bytes if its sender sends them without an
    /// answer, and the segments that its sender may announce at once. Returns the status of the call if there
    /// is no memory for them. There is always memory for [`LEAST_ON_HEAP`] of a connection, with what the
    /// application keeps.
    pub(super) fn charge_heap(&mut self, links: &Links<T>, key: IncomingKey) -> Option<Status> {
        let incoming = &self.incoming[key];
        let len = match incoming.place {
            Place::Waiting(_) | Place::Heap(_) if incoming.form == FRAGMENT => {
                u64::from(incoming.len.min(FREE_FRAGMENTS))
            }
            Place::Waiting(_) | Place::Fetch(_) => MAX_SEGMENTS as u64 * OF_SEGMENT,
            _ => 0,
        };
        let len = len + incoming.metadata.len() as u64;
        if len == 0 {
            return None;
        }
        let link = &links[incoming.link];
        let mut heap = link.memory.charge(Use::Heap, 0);
        if !heap.resize(len) {
            let account = link.bodies.account.as_ref();
            let held = match self.incoming[key].form {
                FRAGMENT => account.map_or(0, |account| account.held()),
                // A single message has room whatever the application keeps of others.
                _ => 0,
            };
            let others = link.bodies.incoming.values();
            let others: u64 = others.map(|key| self.incoming[*key].heap.bytes()).sum();
            if held + others + len > LEAST_ON_HEAP {
                links.counters.transfers.refused.add(1);
                return Some(Status::resource_exhausted(NO_HEAP));
            }
            heap.set(len);
        }
        self.incoming[key].heap = heap;
        None
    }

    fn memory_for(
        &mut self,
        links: &mut Links<T>,
        key: IncomingKey,
    ) -> Result<T::Memory, NoMemory> {
        let incoming = &self.incoming[key];
        let len = incoming.len;
        let link = &links[incoming.link].bodies;
        let used = link.receiving + link.account.as_ref().map_or(0, |account| account.held());
        // Messages that wait for a reader must not keep calls from getting memory. They have a limit of
        // their own.
        let ahead = link.read_ahead.load(Ordering::Relaxed);
        let used = used.saturating_sub(ahead);
        let cap = links.transport.limits().connection_memory;
        // A single message has room whatever the cap, and whatever the application keeps.
        let is_only = link.receiving <= ahead;
        if !is_only && used + u64::from(len) > cap {
            return Err(NoMemory::OfConnection);
        }
        let capacity = links.transport.limits().receive_memory();
        let footprint = links.transport.footprint(len as usize);
        if !links[incoming.link]
            .memory
            .has_registered(footprint, capacity)
        {
            return Err(NoMemory::OfHost);
        }
        let id = links[incoming.link].id;
        match links.transport.allocate_for(id, len as usize) {
            Ok(memory) => Ok(memory),
            Err(AllocateError::TooLong { limit, .. }) => Err(NoMemory::TooLong { limit }),
            Err(AllocateError::NotNow) => Err(NoMemory::NotYet),
            Err(AllocateError::InUse) => Err(NoMemory::OfPoller),
        }
    }

    /// Counts a message of a stream as fetched ahead of its reader. Returns `None` if it exceeds the
    /// limit for such messages, which leaves memory for the longest message of a call.
    pub(in super::super) fn read_ahead(
        &self,
        links: &Links<T>,
        key: IncomingKey,
    ) -> Option<ReadAhead> {
        let incoming = &self.incoming[key];
        let len = u64::from(incoming.len);
        let of_link = &links[incoming.link].bodies.read_ahead;
        let of_all = &self.read_ahead;
        let limits = links.transport.limits();
        let longest = limits.max_message_len as u64;
        let room = (limits.message_memory * 7 / 16).saturating_sub(longest);
        let room = room.min(limits.message_memory / READ_AHEAD_PART);
        let has_room = |count: &AtomicU64, room| count.load(Ordering::Relaxed) + len <= room;
        let is_short = incoming.form == FRAGMENT && incoming.len <= FREE_FRAGMENTS;
        let fits = has_room(of_link, limits.connection_memory / 2) && has_room(of_all, room);
        (is_short || fits).then(|| ReadAhead::new(len, [of_link, of_all].map(Arc::clone)))
    }

    /// Returns true if a message that gets no memory now does not wait for it.
    fn is_refused(&self, links: &Links<T>, reason: NoMemory) -> bool {
        match reason {
            NoMemory::TooLong { .. } | NoMemory::NotRead => true,
            NoMemory::NotYet => false,
            NoMemory::OfConnection | NoMemory::OfHost | NoMemory::OfPoller => {
                !links.transport.limits().waits_for_memory
            }
        }
    }

    /// Lets a message arrive in `memory`. Returns false if the transport cannot begin another fetch:
    /// the message is then refused.
    fn place(&mut self, links: &mut Links<T>, key: IncomingKey, mut memory: T::Memory) -> bool {
        self.charge_incoming(links, key);
        self.expect_progress(links, key);
        let incoming = &mut self.incoming[key];
        let footprint = links.transport.footprint(incoming.len as usize);
        let of_host = &links[incoming.link].memory;
        incoming.registered = of_host.charge(Use::Arriving, footprint);
        incoming.is_accepted = true;
        if incoming.form == FRAGMENT {
            if let Place::Waiting(bytes) = &incoming.place
                && !bytes.is_empty()
            {
                memory.as_mut()[..bytes.len()].copy_from_slice(bytes);
            }
            incoming.place = Place::Memory(memory);
            incoming.heap.set(incoming.metadata.len() as u64);
            // Its sender waits for that.
            incoming.owed.is_accepted = true;
            self.owe_entry(links, key);
            return true;
        }
        let id = links[incoming.link].id;
        let Ok(fetch) = links.transport.begin_fetch(id, memory) else {
            incoming.place = Place::Nowhere;
            incoming.registered = Charge::default();
            self.cancel_incoming_timer(links, key);
            self.discharge(links, key);
            // If the connection has ended, the next event reports it.
            return links.transport.longest_frame(id) == 0;
        };
        incoming.place = Place::Fetch(fetch);
        if !incoming.has_begun {
            // Its sender may have no memory to expose before it knows that the message is fetched.
            incoming.owed.is_accepted = true;
            self.owe_entry(links, key);
        }
        self.fetches.insert(fetch, key);
        self.fetch_announced(links, key, fetch);
        true
    }

    /// Gives free memory to messages that wait, until one is to be refused instead. Returns that one.
    fn place_waiting(
        &mut self,
        links: &mut Links<T>,
        left: &mut u32,
    ) -> Option<(IncomingKey, NoMemory)> {
        let mut next = self.waiting.class_from(0);
        self.is_short = false;
        while let Some(class) = next {
            // A message whose connection or host is at its limit does not hold up those of others.
            let mut full = 0;
            while full < self.waiting.links_of(class) {
                let Some(key) = self.waiting.first(class) else {
                    break;
                };
                if *left == 0 {
                    return None;
                }
                match self.memory_for(links, key) {
                    Ok(memory) => {
                        *left -= 1;
                        full = 0;
                        self.waiting.end_turn(class);
                        self.waiting.leave(key, self.incoming[key].len);
                        if !self.place(links, key, memory) {
                            return Some((key, NoMemory::NotRead));
                        }
                    }
                    Err(reason) if self.is_refused(links, reason) => {
                        *left -= 1;
                        return Some((key, reason));
                    }
                    Err(NoMemory::OfConnection | NoMemory::OfHost) => {
                        full += 1;
                        self.waiting.end_turn(class);
                    }
                    Err(_) => {
                        self.is_short = true;
                        break;
                    }
                }
            }
            next = self.waiting.class_from(class + 1);
        }
        None
    }

    /// Builds the status of a call whose message is not received.
    #[cold]
    pub(super) fn no_memory(&self, links: &Links<T>, key: IncomingKey, reason: NoMemory) -> Status {
        let len = self.incoming[key].len;
        Status::resource_exhausted(match reason {
            NoMemory::TooLong { limit } => format!(
                "the receiver has no memory for a message of {len} bytes: it can register {limit} bytes for \
                 one message. Raise its `message_memory`, or the limits of its process (address space, size \
                 of files, locked memory) if one of them is lower: its log names it"
            ),
            NoMemory::NotRead => format!(
                "the receiver did not begin to read a message of {len} bytes, for which it has memory: it \
                 already reads as many messages at a time as it can, or the connection is closing. Try again"
            ),
            NoMemory::OfHost => {
                let (own, all) = links[self.incoming[key].link].memory.registered();
                format!(
                    "the receiver has no memory for a message of {len} bytes: the host of its sender uses {own} \
                     of the {} bytes for messages that arrive at all pollers of the process, others use {}, and a \
                     host may use three times what it leaves to others",
                    links.transport.limits().receive_memory(),
                    all.saturating_sub(own)
                )
            }
            NoMemory::OfConnection | NoMemory::OfPoller | NoMemory::NotYet => format!(
                "the receiver has no memory for a message of {len} bytes: {}",
                self.use_of_memory(links, key)
            ),
        })
    }

    /// Builds the status of a call whose deadline has passed while its request waited for memory.
    #[cold]
    pub(super) fn waited_until_deadline(&self, links: &Links<T>, key: IncomingKey) -> Status {
        Status::deadline_exceeded(format!(
            "the deadline passed while the request's message of {} bytes waited for memory of the server; \
             the call did not run: {}",
            self.incoming[key].len,
            self.use_of_memory(links, key)
        ))
    }

    /// Says what uses the memory that a message waits for, and what the limits are.
    fn use_of_memory(&self, links: &Links<T>, key: IncomingKey) -> String {
        let incoming = &self.incoming[key];
        let link = &links[incoming.link].bodies;
        let own = link.receiving;
        let kept = link.account.as_ref().map_or(0, |account| account.held());
        let all = self.receiving + self.memory.held();
        let others = all.saturating_sub(own + kept);
        let limits = links.transport.limits();
        format!(
            "{own} bytes are used by messages that arrive on this connection, {kept} by fields of its \
             messages that the application keeps, and {others} by other connections of its poller. The \
             limits are {} bytes for a connection and {} for messages that arrive at all pollers of the \
             process, in whole chunks (seven eighths of `message_memory`): send fewer at a time, \
             keep fewer received fields, or raise the receiver's `message_memory`",
            limits.connection_memory,
            limits.receive_memory()
        )
    }

    /// Gives memory to the messages that wait, if there is some, until one is refused instead, and to `left` of
    /// them at most. The caller tells the stream of a refused one, which stops its other messages, before it
    /// calls again.
    pub(in super::super) fn admit_waiting(
        &mut self,
        links: &mut Links<T>,
        left: &mut u32,
    ) -> Option<Ended> {
        if self.waiting.len() == 0 {
            return None;
        }
        let (key, reason) = self.place_waiting(links, left)?;
        Some(self.refuse(links, key, reason))
    }

    /// Refuses a message that has waited for memory and gets none.
    #[cold]
    fn refuse(&mut self, links: &mut Links<T>, key: IncomingKey, reason: NoMemory) -> Ended {
        let status = self.no_memory(links, key, reason);
        links.counters.transfers.refused.add(1);
        self.end_refused(links, key, status)
    }

    /// Ends a call whose deadline has passed before its request was complete, or whose response has
    /// waited for memory for too long. Looks at the progress of a message that has memory.
    #[cold]
    pub(in super::super) fn expire(
        &mut self,
        links: &mut Links<T>,
        key: IncomingKey,
        now: Instant,
    ) -> Option<Ended> {
        let incoming = &mut self.incoming[key];
        incoming.timer = None;
        let is_accepted = incoming.is_accepted;
        if is_accepted && incoming.deadline.is_none_or(|deadline| deadline > now) {
            return self.check_progress(links, key);
        }
        if incoming.header.kind != FrameKind::Request {
            return Some(self.refuse(links, key, NoMemory::OfPoller));
        }
        let status = match is_accepted {
            true => Status::deadline_exceeded(
                "the deadline passed before the request had arrived in full; the call did not run",
            ),
            false => self.waited_until_deadline(links, key),
        };
        links.counters.handlers.expired.add(1);
        Some(self.end_refused(links, key, status))
    }

    /// Handles the progress timer of a message that has memory. Returns the end of one that is refused.
    fn check_progress(&mut self, links: &mut Links<T>, key: IncomingKey) -> Option<Ended> {
        let others_wait = self.is_short && self.waiting.has_others_than(self.incoming[key].link);
        let incoming = &mut self.incoming[key];
        let link = &links[incoming.link];
        let progress = incoming.progress(&link.bodies);
        let noted = incoming.looks.noted();
        let is_stalled = progress == noted;
        // The messages of a connection take turns.
        let arrived = link.bodies.arrived;
        let moved = arrived - mem::replace(&mut incoming.arrived_on_link, arrived);
        let is_wanted = !matches!(incoming.purpose, Purpose::Nobody);
        let uses_memory = is_wanted && incoming.registered.bytes() > 0;
        let is_slow = others_wait && uses_memory && moved * LEAST_PARTS < link.bodies.receiving;
        // The sender cannot go on while this side holds all receives that it was promised. A READ
        // needs none.
        let is_held_here = !incoming.is_read() && !link.connection.peer_has_credits();
        let is_late = (is_stalled || is_slow) && !is_held_here;
        if !incoming.looks.is_too_late(progress, is_late) {
            self.start_look(links, key);
            return None;
        }
        if is_stalled {
            let (link, error) = (incoming.link, incoming.stalled());
            links.close_failed(link, error, "closing a connection");
            return None;
        }
        let status = Status::resource_exhausted(format!(
            "{moved} bytes of all messages of the connection have arrived in {} s, and others wait for the \
             memory that the receiver has for this one, of {} bytes: send it again when the path is faster",
            LOOK.as_secs(),
            incoming.len
        ));
        links.counters.transfers.refused.add(1);
        Some(self.end_refused(links, key, status))
    }
}
