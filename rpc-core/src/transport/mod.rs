//! The interface to the layer below: [`Transport`], which one poller drives, and [`Fabric`], which
//! opens transports and connects them.
//!
//! A transport moves whole frames between two connected peers, in order, each frame into one
//! receive slot of the peer. It knows nothing of calls. The driver is its only caller and repeats
//! these steps:
//!
//! 1. [`Transport::poll`] returns the next [`Event`], until there is none;
//! 2. the driver reads each received frame and releases its slot with [`Transport::release`];
//! 3. to send a short frame, [`Transport::send_inline`] copies it;
//! 4. to send a longer one, [`Transport::reserve`] returns a buffer of exactly the requested length,
//!    and [`Transport::send`] consumes it;
//! 5. [`Transport::flush`] rings the doorbell for everything sent since the last flush.
//!
//! Buffers are tokens: they are moved, never copied or cloned, and each of them is returned through
//! exactly one of `send`, `cancel` or `release`. A transport and its buffers belong to one thread;
//! a [`Fabric`] and its [`Fabric::Port`]s may be used from any thread.
//!
//! The core does the flow control: it never has more frames in flight to a peer than the peer has
//! promised receives. A transport may therefore treat a receiver that is not ready as a bug to
//! count rather than as a state to wait in.

mod admission;
mod cores;
mod counters;
mod error;
mod fabric;
mod long_messages;
mod memory;
mod peer_clock;
mod remedy;
mod version_range;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;
use std::time::Duration;

pub use self::admission::{
    Admission, Admitted, ConnectionQuota, Refusal, RoomMade, RoomWanted, Stalled,
};
pub use self::cores::{CoreClaim, CoreRefusal};
pub use self::counters::{CounterReader, Counters, SlotsByState};
pub use self::error::{CloseReason, ConnectError, FabricError, ReserveError, SendError};
pub(crate) use self::fabric::FORKED;
pub use self::fabric::{Fabric, Listener};
pub use self::long_messages::{
    AllocateError, ExposeError, Exposed, ExposureKey, FetchKey, LongMessages, MemoryByOwner,
    RemoteSegment,
};
pub use self::memory::HeapMemory;
pub use self::peer_clock::PeerClock;
pub use self::remedy::{Attempt, Remedy, limit_reached};
pub use self::version_range::VersionRange;
pub use crate::codec::{Chunks, MessageMemory};
use crate::limits::Limits;
pub use crate::peer::{Host, Peer};
pub use crate::peer_memory::PeerMemory;
pub use crate::peer_sentence::PeerSentence;

/// Identifies one connection of one transport for as long as the transport lives.
///
/// The index is reused, the generation is not: the id of a connection that has ended never matches
/// another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    /// A dense index, for tables.
    pub index: u32,
    /// Distinguishes connections that had the same index.
    pub generation: u32,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.index, self.generation)
    }
}

/// An event that [`Transport::poll`] reports.
#[derive(Debug)]
pub enum Event<R> {
    /// A peer connected to a listener and was assigned to this poller.
    ///
    /// The peer may already have sent frames, which arrive in later events.
    Accepted {
        /// The new connection.
        connection: ConnectionId,
        /// The client that [`Admission::admit`] accepted, with the bytes that the peer's core sent.
        /// Boxed, so that the events of the data path stay small.
        admitted: Box<Admitted>,
    },
    /// A frame arrived. The frames of one connection arrive in the order in which they were sent.
    Received {
        /// The connection it arrived on.
        connection: ConnectionId,
        /// The frame in its receive slot, which must be returned with [`Transport::release`].
        buf: R,
    },
    /// The peer's memory of a [`Transport::fetch`] has arrived.
    Fetched {
        /// The connection.
        connection: ConnectionId,
        /// The message.
        fetch: FetchKey,
        /// Bytes of the segment that was fetched. The segments of a fetch arrive in their order.
        len: u32,
    },
    /// A fetch that was cancelled has ended: the device no longer writes its memory.
    FetchCancelled {
        /// The connection.
        connection: ConnectionId,
        /// The message.
        fetch: FetchKey,
    },
    /// New clients wait for connections of this poller, which has as many as it takes. Boxed, so that
    /// the events of the data path stay small: with it unboxed, a call took 60 instructions more.
    RoomWanted(Box<RoomWanted>),
    /// The connection has ended. This is the last event for the connection. All frames received
    /// before its end have already been reported.
    Closed {
        /// The connection that ended.
        connection: ConnectionId,
        /// The reason, with the device's error if there is one.
        reason: CloseReason,
    },
}

impl<R> Event<R> {
    /// Returns the connection to which this event belongs, if it belongs to one.
    #[must_use]
    pub fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Accepted { connection, .. }
            | Self::Received { connection, .. }
            | Self::Fetched { connection, .. }
            | Self::FetchCancelled { connection, .. }
            | Self::Closed { connection, .. } => Some(*connection),
            Self::RoomWanted(_) => None,
        }
    }
}

/// A poller's interface to its peers.
///
/// Used by one thread. No method blocks except [`connect`](Self::connect) and [`wait`](Self::wait).
///
/// # Sleeping
///
/// A poller that has nothing to do may sleep. It does so in three steps, so that it misses no
/// event: [`arm`](Self::arm), then a last [`poll`](Self::poll) that must find nothing, then
/// [`wait`](Self::wait). Events on the device after `arm`, and uses of the [`waker`](Self::waker)
/// after `arm`, end the wait.
pub trait Transport: 'static {
    /// A reserved send slot, of exactly the requested length.
    type SendBuf: AsMut<[u8]>;
    /// An occupied receive slot. Its bytes are the frame.
    type RecvBuf: AsRef<[u8]>;
    /// A connection whose handshake was performed on another thread, until [`adopt`](Self::adopt)
    /// takes it over. Dropping it closes the connection.
    type Dialed: Send + 'static;
    /// Registered memory of one message, which is longer than a slot or is being made.
    type Memory: MessageMemory;

    /// Returns the sizes of this transport, as derived from the intents.
    fn limits(&self) -> &Limits;

    /// Returns a handle that reads the counters from any thread, without stopping this one.
    fn counter_reader(&self) -> Arc<dyn CounterReader>;

    /// Returns the counters, all since the transport was opened.
    fn counters(&self) -> Counters {
        self.counter_reader().counters()
    }

    /// Returns the current state of the transport's slots.
    fn slots_by_state(&self) -> SlotsByState;

    /// Returns a dialer, which performs handshakes for this transport on any thread. The dialers of one
    /// channel, at each of its pollers, share `was_protected`: once one of them has
    /// connected over a device on which nobody else can take the server's place, it sets it, and none of them
    /// offers another kind of device any more.
    fn dialer(&self, was_protected: Arc<AtomicBool>) -> Arc<dyn Dialer<Self::Dialed>>;

    /// Takes over a connection that the [`dialer`](Self::dialer) established.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError`] if the connection has ended in the meantime or belongs to another
    /// transport.
    fn adopt(&mut self, dialed: Self::Dialed) -> Result<Connected, ConnectError>;

    /// Connects to a server's listener and performs the handshake, like [`Dialer::dial`] followed
    /// by [`adopt`](Self::adopt). Blocks the thread.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError`] if the connection could not be established. No request has been
    /// sent.
    fn connect(
        &mut self,
        address: &str,
        session: &[u8],
        timeout: Duration,
    ) -> Result<Connected, ConnectError> {
        let dialed = self
            .dialer(Arc::default())
            .dial(address, session, timeout)?;
        self.adopt(dialed)
    }

    /// Sends a copy of `frame`, which has at most [`Limits::max_inline_len`] bytes. A peer that polls
    /// may receive it at once, and the others after the next [`flush`](Self::flush).
    ///
    /// The transport calls `complete` when it is known that the frame can be sent now. It writes what
    /// is missing, such as a header whose credits must not be lost. If it returns `None`, nothing is
    /// sent. If the device rejects the frame after that, an event reports that the connection has
    /// ended.
    ///
    /// # Errors
    ///
    /// Returns [`ReserveError`] if no entry of the send queue is free at the moment, the frame is too
    /// long for the peer, or the connection has ended. `complete` was not called.
    fn send_inline<R>(
        &mut self,
        connection: ConnectionId,
        frame: &mut [u8],
        complete: impl FnOnce(&mut [u8]) -> Option<R>,
    ) -> Result<Option<R>, ReserveError>;

    /// Returns the length in bytes of the longest frame that the connection's peer can receive and
    /// this side can send: at least [`Limits::max_inline_len`], or 0 if the connection has ended. The
    /// default is right for a transport whose peers have the same slots.
    fn longest_frame(&self, connection: ConnectionId) -> usize {
        let _ = connection;
        self.limits().slot_len
    }

    /// Reserves a send slot for a frame of `len` bytes to `connection`.
    ///
    /// # Errors
    ///
    /// Returns [`ReserveError`] if no slot is free at the moment, the frame is too long, or the
    /// connection has ended.
    fn reserve(
        &mut self,
        connection: ConnectionId,
        len: usize,
    ) -> Result<Self::SendBuf, ReserveError>;

    /// Queues a written frame on the connection's send queue. It is posted at the next
    /// [`flush`](Self::flush) at the latest, and earlier if the chain is long.
    ///
    /// # Errors
    ///
    /// Returns [`SendError`] if the connection has ended. The frame was not sent.
    fn send(&mut self, connection: ConnectionId, buf: Self::SendBuf) -> Result<(), SendError>;

    /// Returns a reserved slot unsent.
    fn cancel(&mut self, buf: Self::SendBuf);

    /// Posts all queued frames to the device.
    fn flush(&mut self);

    /// Announces that from now on up to `receives` receives may be promised to peers at a time, at
    /// most [`Limits::promisable_receives`]. That many are posted before this returns, those counted
    /// whose frames are on their way to the driver. Before the first call, all receives may be
    /// promised.
    fn set_promised(&mut self, receives: u32);

    /// Takes the next event from the device. Returns `None` if there is none at the moment, and may
    /// return `None` to end a batch while others wait. Also refills receives. Never blocks.
    ///
    /// The previous event must have been handled: from this poll on, the index of a connection that
    /// was reported as closed may belong to another one.
    fn poll(&mut self) -> Option<Event<Self::RecvBuf>>;

    /// Returns a receive slot, so that it can be posted again.
    fn release(&mut self, buf: Self::RecvBuf);

    /// Returns how long messages travel on a connection. The default is right for a transport
    /// without READs.
    fn long_messages(&self, connection: ConnectionId) -> LongMessages {
        let _ = connection;
        LongMessages::Fragments
    }

    /// Takes registered memory for a message of `len` bytes that this side makes. It goes back when it
    /// is dropped, on whatever thread. Such memory never uses what
    /// [`allocate_for`](Self::allocate_for) needs.
    ///
    /// # Errors
    ///
    /// Returns [`AllocateError`] if there is none at the moment, or never. More may be registered
    /// off the data path; then the transport's waker is used.
    fn allocate(&mut self, len: usize) -> Result<Self::Memory, AllocateError>;

    /// Takes memory for a message that arrives from the peer of `connection`. A poller that uses no
    /// memory for arriving messages on this device gets some even beyond
    /// [`Limits::message_memory`]. The default is right for a transport without READs, whose
    /// messages to send need no such memory.
    ///
    /// # Errors
    ///
    /// As for [`allocate`](Self::allocate).
    fn allocate_for(
        &mut self,
        connection: ConnectionId,
        len: usize,
    ) -> Result<Self::Memory, AllocateError> {
        let _ = connection;
        self.allocate(len)
    }

    /// Returns the bytes of registered memory for messages, by their owner.
    fn memory_by_owner(&self) -> MemoryByOwner {
        MemoryByOwner::default()
    }

    /// Returns the bytes of [`Limits::message_memory`] in use by messages that have arrived and whose
    /// fields the application keeps, of all transports of the process. The default is right for a
    /// transport that shares its memory with no other.
    fn kept_memory(&self) -> u64 {
        0
    }

    /// Returns the bytes of memory that a message of `len` bytes uses while it arrives.
    fn footprint(&self, len: usize) -> u64 {
        len as u64
    }

    /// Returns the memory that the poller shares with others, for what waits on behalf of peers and for long
    /// messages that arrive. The default is right for a transport whose registered memory is the process's.
    fn peer_memory(&self) -> PeerMemory {
        PeerMemory::of_process()
    }

    /// Takes the next piece from the front of `message`, and lets the connection's peer read it. If
    /// `is_accepted`, the peer has memory for all of the message: its next piece gets memory even if
    /// pieces that wait for their receivers use all that they may have. A chunk that lies in
    /// registered memory of this transport is exposed where it is; the bytes of others are copied, at
    /// most [`Limits::piece_len`] of them. The driver keeps references to these chunks meanwhile, so
    /// that none of them is dropped here. The peer may read the piece once it has received a frame
    /// that is sent after this, until [`conceal`](Self::conceal).
    ///
    /// # Errors
    ///
    /// Returns [`ExposeError`] if that is not possible, at the moment or on this connection. After
    /// [`ExposeError::NotNow`], nothing was taken from `message`.
    fn expose(
        &mut self,
        connection: ConnectionId,
        message: &mut Chunks,
        is_accepted: bool,
    ) -> Result<Exposed, ExposeError> {
        let _ = (connection, message, is_accepted);
        Err(ExposeError::Closed)
    }

    /// Revokes the key of a piece that the peer has read or no longer needs. Its memory is kept until
    /// the device has confirmed that the key is gone.
    fn conceal(&mut self, exposed: ExposureKey) {
        let _ = exposed;
    }

    /// Begins to fetch a message from the connection's peer into `memory`, which the transport owns
    /// until [`finish_fetch`](Self::finish_fetch).
    ///
    /// # Errors
    ///
    /// Returns the memory if the connection has ended or does not use READs, or if as many messages
    /// are being fetched as may be.
    fn begin_fetch(
        &mut self,
        connection: ConnectionId,
        memory: Self::Memory,
    ) -> Result<FetchKey, Self::Memory> {
        let _ = connection;
        Err(memory)
    }

    /// Fetches a segment to `at` in the memory of a fetch; the caller has checked that it fits. The
    /// READs are posted in turn with those of other connections, as their number and the device
    /// permit, by this call and by later polls. [`Event::Fetched`] follows.
    fn fetch(&mut self, fetch: FetchKey, segment: RemoteSegment, at: usize) {
        let _ = (fetch, segment, at);
    }

    /// Ends a fetch of which all segments have arrived, and returns its memory. Returns `None` if the
    /// device may still write it, or if the connection has ended.
    fn finish_fetch(&mut self, fetch: FetchKey) -> Option<Self::Memory> {
        let _ = fetch;
        None
    }

    /// Ends a fetch whose message nobody wants. [`Event::FetchCancelled`] follows when the device no
    /// longer reads the peer's memory; it may follow at once. The end of the connection cancels its
    /// fetches without that event.
    fn cancel_fetch(&mut self, fetch: FetchKey) {
        let _ = fetch;
    }

    /// Returns the clock of the connection's peer, or `None` if it is not known well enough. Only
    /// the client needs it, whose requests have deadlines; a server may return `None`.
    fn peer_clock(&self, connection: ConnectionId) -> Option<PeerClock>;

    /// Looks for connections whose peers keep this side waiting. Called for each
    /// [`Event::RoomWanted`]. Others [may follow](Stalled::may_follow) if they have kept this side waiting
    /// at this look and at least `looks` before. The default is right for a transport that reports no such
    /// event.
    fn stalled_connections(&mut self, looks: u32) -> Stalled {
        let _ = looks;
        Stalled::default()
    }

    /// Closes a connection. [`Event::Closed`] follows when its buffers have been returned.
    fn close(&mut self, connection: ConnectionId);

    /// Returns a waker that ends a [`wait`](Self::wait) of this transport from any thread. If no
    /// wait is in progress, it ends the next one. Waking may cost a system call, so the waker is
    /// used only while the poller sleeps or is about to sleep.
    fn waker(&self) -> Waker;

    /// Requests that events on the device from now on end the next [`wait`](Self::wait). A
    /// [`poll`](Self::poll) must follow, which finds the events that came before.
    fn arm(&mut self);

    /// Sleeps until the device has an event, the [`waker`](Self::waker) is used, or `timeout` has
    /// passed (`None`: no limit). May return early. Must only be called after [`arm`](Self::arm)
    /// and a [`poll`](Self::poll) that found nothing.
    fn wait(&mut self, timeout: Option<Duration>);
}

/// Performs handshakes. Blocks the calling thread.
pub trait Dialer<D>: Send + Sync {
    /// Connects to a server's listener and performs the handshake, within `timeout`.
    ///
    /// `session` is passed to the server's [`Admission::admit`]. The reply of `admit` becomes the
    /// [`Connected::session`] that [`Transport::adopt`] returns.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError`] if the connection could not be established. No request has been
    /// sent.
    fn dial(&self, address: &str, session: &[u8], timeout: Duration) -> Result<D, ConnectError>;
}

/// The result of [`Transport::connect`].
#[derive(Debug)]
pub struct Connected {
    /// The new connection. Both sides are ready to send.
    pub connection: ConnectionId,
    /// The reply of the server's [`Admission::admit`]. It comes from a peer and is not trusted.
    pub session: Vec<u8>,
    /// The server's address.
    pub remote: SocketAddr,
}
