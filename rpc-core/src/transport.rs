//! The interface to the layer below: [`Transport`], which one poller drives, and [`Fabric`], which
//! opens transports and connects them.
//!
//! A transport moves whole frames between two connected peers, in order, each frame into one
//! receive slot of the peer. It knows nothing of calls. The driver is its only caller and repeats
//! these steps:
//!
//! 1. [`Transport::poll`] fills a batch of [`Event`]s;
//! 2. the driver reads each received frame and releases its slot with [`Transport::release`];
//! 3. to send, [`Transport::reserve`] returns a buffer of exactly the requested length, and
//!    [`Transport::send`] consumes it;
//! 4. [`Transport::flush`] rings the doorbell for everything sent since the last flush.
//!
//! Buffers are tokens: they are moved, never copied or cloned, and each of them is returned through
//! exactly one of `send`, `cancel` or `release`. A transport and its buffers belong to one thread;
//! a [`Fabric`] and its [`Fabric::Port`]s may be used from any thread.
//!
//! The core does the flow control: it never has more frames in flight to a peer than the peer has
//! promised receives ([`crate::credit`]). A transport may therefore treat a receiver that is not
//! ready as a bug to count rather than as a state to wait in.

use std::error::Error;
use std::fmt;
use std::io;
use std::iter::Sum;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use crate::limits::{Intents, Limits};

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
    /// The connection has ended. This is the last event for the connection. All frames received
    /// before its end have already been reported.
    Closed {
        /// The connection that ended.
        connection: ConnectionId,
        /// The reason, with the device's error if there is one.
        reason: CloseReason,
    },
}

/// The reason that a connection ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side closed it.
    Local,
    /// The peer closed it, or its process ended.
    PeerGone,
    /// The peer, a server, is shutting down. No more calls are started on the connection. Calls in
    /// flight may still receive responses before it ends.
    GoingAway,
    /// The connection failed. The error comes from the device, or reports a silent peer or a
    /// protocol violation.
    Failed(Arc<dyn Error + Send + Sync>),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("closed by this side"),
            Self::PeerGone => f.write_str("the peer closed the connection or its process ended"),
            Self::GoingAway => f.write_str("the server is shutting down"),
            Self::Failed(error) => write!(f, "the connection failed: {error}"),
        }
    }
}

/// The reason that no buffer could be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// All send slots, or all slots of this connection's send queue, are in flight. Slots become
    /// free as the device completes sends: poll, then try again.
    #[error("no send slot is free at the moment")]
    NoSlot,
    /// The frame is longer than a slot. A retry cannot succeed.
    #[error("a frame of {len} bytes is longer than the {limit} bytes of a slot")]
    TooLong {
        /// Bytes requested.
        len: usize,
        /// The longest frame on this connection: the smaller of both sides' slots.
        limit: usize,
    },
    /// The connection has ended, even if the event has not been reported yet.
    #[error("the connection has ended")]
    Closed,
}

/// The connection ended before the frame was posted to the device. The frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection has ended; the frame was not sent")]
pub struct SendError;

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

    /// Returns the sizes of this transport, as derived from the intents.
    fn limits(&self) -> &Limits;

    /// Returns a handle that reads the counters from any thread, without stopping this one.
    fn meter(&self) -> Arc<dyn Meter>;

    /// Returns the counters, all since the transport was opened.
    fn counters(&self) -> Counters {
        self.meter().counters()
    }

    /// Returns the current state of the transport's slots.
    fn slots_by_place(&self) -> SlotsByPlace;

    /// Returns the dialer, which performs handshakes for this transport on any thread.
    fn dialer(&self) -> Arc<dyn Dialer<Self::Dialed>>;

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
        let dialed = self.dialer().dial(address, session, timeout)?;
        self.adopt(dialed)
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

    /// Takes completions from the device, refills receives, and appends a bounded batch of events
    /// for the driver to `events`. Appends nothing if there are no events. Never blocks.
    fn poll(&mut self, events: &mut Vec<Event<Self::RecvBuf>>);

    /// Returns a receive slot, so that it can be posted again.
    fn release(&mut self, buf: Self::RecvBuf);

    /// Closes a connection. [`Event::Closed`] follows when its buffers have been returned.
    fn close(&mut self, connection: ConnectionId);

    /// Returns a waker that ends a [`wait`](Self::wait) of this transport from any thread: the
    /// current one, or else the next. It may cost a system call, so it is only used while the
    /// poller sleeps or is about to.
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
    /// `session` is passed to the server's [`Admission::admit`]; its reply becomes the
    /// [`Connected::session`] that [`Transport::adopt`] returns.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError`] if the connection could not be established. No request has been
    /// sent.
    fn dial(&self, address: &str, session: &[u8], timeout: Duration) -> Result<D, ConnectError>;
}

/// A device, as the core sees it: it opens transports.
///
/// Cheap to clone. May be used from any thread, off the data path.
pub trait Fabric: Clone + Send + Sync + 'static {
    /// The type of its transports.
    type Transport: Transport;
    /// The handle through which a listener passes accepted connections to a poller's transport.
    type Port: Send + 'static;

    /// Opens a transport for the poller that runs on the calling thread.
    ///
    /// # Errors
    ///
    /// Returns [`FabricError`] if the device cannot provide what the intents need.
    fn open(&self, intents: &Intents) -> Result<Self::Transport, FabricError>;

    /// Returns the port of a transport that [`open`](Self::open) returned.
    fn port(&self, transport: &Self::Transport) -> Self::Port;

    /// Listens for handshakes at `host:port`, on a thread of its own. Clients accepted by
    /// `admission` go to the port whose index it returned.
    ///
    /// # Errors
    ///
    /// Returns [`FabricError`] if the listener cannot be started.
    fn listen(
        &self,
        address: &str,
        ports: Vec<Self::Port>,
        admission: Arc<dyn Admission>,
    ) -> Result<Box<dyn Listener>, FabricError>;

    /// Returns the cores that this process may run on, in ascending order.
    fn allowed_cores(&self) -> Vec<usize>;

    /// Pins the calling thread to a core.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call.
    fn pin_current_thread(&self, core: usize) -> Result<(), io::Error>;
}

/// A socket that accepts handshakes until it is dropped.
pub trait Listener: Send {
    /// Returns the bound address, with the port that the system chose if port 0 was requested.
    fn local_addr(&self) -> SocketAddr;
}

/// The core's part of a handshake on the server's side. Called by the listener's thread.
pub trait Admission: Send + Sync {
    /// Decides whether to accept a client, and assigns it to a poller.
    ///
    /// `session` is what the client's core passed to [`Transport::connect`]. It comes from a peer
    /// and is not trusted.
    ///
    /// # Errors
    ///
    /// Returns [`Refusal`], with the reason that is sent to the client, if the client is rejected.
    fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal>;
}

/// A client that was accepted.
#[derive(Debug)]
pub struct Admitted {
    /// Index of the port among those passed to [`Fabric::listen`].
    pub poller: usize,
    /// The session parameters that the client's core sent.
    pub client_session: Vec<u8>,
    /// The session parameters to send to the client's core.
    pub server_session: Vec<u8>,
    /// Held for as long as the connection, or the attempt to establish it, lives.
    pub permit: Permit,
}

/// One unit of a poller's connection limit. Dropping it returns the unit.
#[derive(Debug)]
pub struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// Takes a unit: increments the count.
    #[must_use]
    pub fn of(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // Relaxed, because the count publishes no other memory.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The reason that a client was rejected, in one sentence to display to its user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// One sentence: what is wrong and how to fix it.
    pub reason: String,
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

/// The reason that no connection could be established. No request was sent, so every affected call
/// is safe to retry.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address could not be parsed or resolved.
    #[error("'{address}' is not an address to connect to (wanted host:port): {source}")]
    Address {
        /// The address as the application specified it.
        address: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// Nothing listens at the address, or it is unreachable.
    #[error("no server answers at {address}: {source}. Is it running, and is this its port?")]
    Unreachable {
        /// The address as the application specified it.
        address: String,
        /// The socket's error.
        source: io::Error,
    },
    /// The peer is not a Verbline server.
    #[error("{address} does not answer as a Verbline server: {reason}")]
    NotVerbline {
        /// The address as the application specified it.
        address: String,
        /// What is wrong with the peer's reply.
        reason: String,
    },
    /// The two sides use different protocol versions.
    #[error(
        "{address} speaks version {remote} of the protocol, this side speaks {local}: upgrade the older one"
    )]
    Version {
        /// The address as the application specified it.
        address: String,
        /// This side's version.
        local: u32,
        /// The server's version.
        remote: u32,
    },
    /// The server rejected the connection.
    #[error("{address} refused the connection: {reason}")]
    Refused {
        /// The address as the application specified it.
        address: String,
        /// The server's reason, in one sentence.
        reason: String,
    },
    /// The server did not complete the handshake in time.
    #[error(
        "{address} accepted the connection but did not finish the handshake within {timeout:?}"
    )]
    TimedOut {
        /// The address as the application specified it.
        address: String,
        /// The time limit.
        timeout: Duration,
    },
    /// This side's device could not set up the connection.
    #[error("the device could not connect to {address}: {source}")]
    Device {
        /// The address as the application specified it.
        address: String,
        /// The device's error.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Prints the same sentence as `Display`, because a `main` that returns an error prints it with
/// `Debug`.
impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The reason that a device could not be set up.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The listening socket could not be opened.
    #[error(
        "cannot listen at {address}: {source} (wanted host:port of this machine, with a port that no other server has; 0 lets the system choose)"
    )]
    Listen {
        /// The address as the application specified it.
        address: String,
        /// The socket's error.
        source: io::Error,
    },
    /// An operation of the device failed.
    #[error("the device '{device}' {action}: {source}")]
    Device {
        /// The device's name.
        device: String,
        /// The operation that failed: "cannot register 4 MiB".
        action: String,
        /// The device's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The intents exceed the device's limits or contradict each other.
    #[error("{setting} = {value} does not fit: {reason}")]
    Intent {
        /// The name of the setter.
        setting: &'static str,
        /// The value it was set to.
        value: u64,
        /// The reason, with the limit.
        reason: String,
    },
}

/// Prints the same sentence as `Display`, because a `main` that returns an error prints it with
/// `Debug`.
impl fmt::Debug for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads a transport's counters from any thread. It remains usable after the transport ends.
pub trait Meter: Send + Sync {
    /// Returns the counters, all since the transport was opened. May make system calls.
    fn counters(&self) -> Counters;
}

/// A transport's counters, all since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames posted to the device.
    pub sends: u64,
    /// Of these, frames that requested a completion.
    pub signaled: u64,
    /// Chains posted to the device: one doorbell each.
    pub doorbells: u64,
    /// Frames received.
    pub receives: u64,
    /// Times that the shared receive queue fell below its limit because the poller fell behind.
    pub srq_limit_events: u64,
    /// Receives posted from the reserve for that reason.
    pub reserve_posted: u64,
    /// Frames that found no receive posted: a bug in flow control, or a hostile peer.
    pub rnr: u64,
    /// Completions ignored because they match nothing any more, such as those of a queue pair that
    /// was destroyed after its time limit.
    pub stale: u64,
    /// Peers whose connections were closed because they did not answer keepalive probes.
    pub silent_peers: u64,
}

impl Counters {
    const LEN: usize = 9;

    /// Returns all counters with their names.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); Self::LEN] {
        [
            ("sends", self.sends),
            ("signaled", self.signaled),
            ("doorbells", self.doorbells),
            ("receives", self.receives),
            ("srq_limit_events", self.srq_limit_events),
            ("reserve_posted", self.reserve_posted),
            ("rnr", self.rnr),
            ("stale", self.stale),
            ("silent_peers", self.silent_peers),
        ]
    }

    fn from_array(counts: [u64; Self::LEN]) -> Self {
        let [
            sends,
            signaled,
            doorbells,
            receives,
            srq_limit_events,
            reserve_posted,
            rnr,
            stale,
            silent_peers,
        ] = counts;
        Self {
            sends,
            signaled,
            doorbells,
            receives,
            srq_limit_events,
            reserve_posted,
            rnr,
            stale,
            silent_peers,
        }
    }

    fn with(&self, other: &Self, join: impl Fn(u64, u64) -> u64) -> Self {
        let (mine, others) = (self.named(), other.named());
        Self::from_array(std::array::from_fn(|n| join(mine[n].1, others[n].1)))
    }

    /// Returns the difference to an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::saturating_add)
    }
}

/// The number of slots in each state at one moment.
///
/// When a transport reports its own slots, it counts the free ones in its lists and the others at
/// each state change. The sum is thus a check: it equals [`Limits::slots`] as long as no slot is
/// lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotsByPlace {
    /// Waiting to be posted.
    pub receives_free: u32,
    /// In the shared receive queue, or consumed by the device and not polled yet.
    pub receives_posted: u32,
    /// In the reserve, for a poller that falls behind.
    pub receives_reserved: u32,
    /// Held by the driver.
    pub receives_held: u32,
    /// Waiting to be reserved.
    pub sends_free: u32,
    /// Reserved by the driver.
    pub sends_in_hand: u32,
    /// Queued for the device, or in flight.
    pub sends_in_flight: u32,
}

impl SlotsByPlace {
    /// Returns the sum over all states.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.named().iter().map(|(_, count)| count).sum()
    }

    /// Returns the count of each state with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u32); 7] {
        [
            ("receives_free", self.receives_free),
            ("receives_posted", self.receives_posted),
            ("receives_reserved", self.receives_reserved),
            ("receives_held", self.receives_held),
            ("sends_free", self.sends_free),
            ("sends_in_hand", self.sends_in_hand),
            ("sends_in_flight", self.sends_in_flight),
        ]
    }
}

/// Adds up each state separately.
impl Sum for SlotsByPlace {
    fn sum<I: Iterator<Item = Self>>(pools: I) -> Self {
        pools.fold(Self::default(), |sum, pool| Self {
            receives_free: sum.receives_free + pool.receives_free,
            receives_posted: sum.receives_posted + pool.receives_posted,
            receives_reserved: sum.receives_reserved + pool.receives_reserved,
            receives_held: sum.receives_held + pool.receives_held,
            sends_free: sum.sends_free + pool.sends_free,
            sends_in_hand: sum.sends_in_hand + pool.sends_in_hand,
            sends_in_flight: sum.sends_in_flight + pool.sends_in_flight,
        })
    }
}

impl fmt::Display for SlotsByPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} slots: receives {} free + {} posted + {} in reserve + {} held; sends {} free + {} in hand + {} in flight",
            self.total(),
            self.receives_free,
            self.receives_posted,
            self.receives_reserved,
            self.receives_held,
            self.sends_free,
            self.sends_in_hand,
            self.sends_in_flight
        )
    }
}
