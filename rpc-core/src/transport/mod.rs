//! The two seams that point down: [`Transport`], which one poller drives, and [`Fabric`], which
//! opens transports and connects them.
//!
//! A transport moves whole frames between two connected peers, in order, each frame into one
//! receive slot of the peer. It knows nothing of calls. The driver (the only caller) uses it in
//! this order, over and over:
//!
//! 1. [`Transport::poll`] fills a batch of [`Event`]s;
//! 2. for each received frame, the driver reads it and gives the slot back with
//!    [`Transport::release`];
//! 3. to send, [`Transport::reserve`] gives a buffer of exactly the wanted length,
//!    [`Transport::send`] consumes it;
//! 4. [`Transport::flush`] rings the doorbell for what was sent since the last time.
//!
//! Buffers are tokens: they are moved, never copied or cloned, and every one of them goes back
//! through exactly one of `send`, `cancel` or `release`. A transport and its buffers belong to one
//! thread; a [`Fabric`] and its [`Fabric::Port`]s may be used from any.
//!
//! Flow control is the core's: it never has more frames under way to a peer than the peer has
//! promised receives for ([`crate::credit`]). A transport may therefore treat a receiver that is
//! not ready as a bug to be counted, not as a state to be waited in.

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

/// Names one connection of one transport for as long as the transport lives.
///
/// The index is reused, the generation is not: an id that outlives its connection names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    /// Dense, for tables.
    pub index: u32,
    /// Differs between two connections that had the same index.
    pub generation: u32,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.index, self.generation)
    }
}

/// What [`Transport::poll`] reports.
#[derive(Debug)]
pub enum Event<R> {
    /// A peer connected to a listener and was given to this poller.
    ///
    /// It may already have sent: its frames come in later events.
    Accepted {
        /// The new connection.
        connection: ConnectionId,
        /// What [`Admission::admit`] let in, with the bytes that the peer's core had sent. Boxed, so
        /// that the events of the data path stay small.
        admitted: Box<Admitted>,
    },
    /// A frame arrived. Frames of one connection arrive in the order in which they were sent.
    Received {
        /// Where it came from.
        connection: ConnectionId,
        /// The frame, in its receive slot, until it is given to [`Transport::release`].
        buf: R,
    },
    /// The connection has ended; this is the last event that names it. Everything that had been
    /// received before was reported before.
    Closed {
        /// The connection that ended.
        connection: ConnectionId,
        /// Why, in words for a person and with what the device said.
        reason: CloseReason,
    },
}

/// Why a connection ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side closed it.
    Local,
    /// The peer closed it, or its process ended.
    PeerGone,
    /// The peer, a server, shuts down: no more calls are begun on the connection. Those under way may
    /// still be answered before it ends.
    GoingAway,
    /// The device failed the connection.
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

/// Why no buffer could be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// Every send slot, or every slot of this connection's send queue, is in flight. Some come
    /// back as the device completes sends: poll, then try again.
    #[error("no send slot is free at the moment")]
    NoSlot,
    /// The frame is longer than a slot. Never worth another try.
    #[error("a frame of {len} bytes is longer than the {limit} bytes of a slot")]
    TooLong {
        /// Bytes asked for.
        len: usize,
        /// The most that this connection takes: the smaller of both sides' slots.
        limit: usize,
    },
    /// The connection has ended, or is about to be reported as such.
    #[error("the connection has ended")]
    Closed,
}

/// The connection ended before the frame could be given to the device: it was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection has ended; the frame was not sent")]
pub struct SendError;

/// One poller's way to its peers.
///
/// Used by one thread. Nothing here blocks, but [`connect`](Self::connect) and
/// [`wait`](Self::wait).
///
/// # Sleeping
///
/// A poller that has nothing to do may sleep. It does so in three steps, so that nothing that comes
/// at any moment is slept through: [`arm`](Self::arm), then a last [`poll`](Self::poll) that has to
/// find nothing, then [`wait`](Self::wait). What the device gets after `arm`, and whoever uses
/// [`waker`](Self::waker) after `arm`, ends the wait.
pub trait Transport: 'static {
    /// A send slot in hand, exactly as long as was reserved.
    type SendBuf: AsMut<[u8]>;
    /// A receive slot in hand; its bytes are the frame.
    type RecvBuf: AsRef<[u8]>;
    /// A connection whose handshake was carried out on another thread, until
    /// [`adopt`](Self::adopt) takes it in. Dropping it ends it.
    type Dialed: Send + 'static;

    /// What this transport was sized to, from the intents it was opened with.
    fn limits(&self) -> &Limits;

    /// What reads its counters, on any thread and without stopping this one.
    fn meter(&self) -> Arc<dyn Meter>;

    /// What it has counted since it was opened.
    fn counters(&self) -> Counters {
        self.meter().counters()
    }

    /// Where its slots are at this moment.
    fn slots_by_place(&self) -> SlotsByPlace;

    /// What carries out handshakes for this transport, on any thread.
    fn dialer(&self) -> Arc<dyn Dialer<Self::Dialed>>;

    /// Takes in a connection that [`dialer`](Self::dialer) made.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if it has ended in the meantime, or does not belong to this transport.
    fn adopt(&mut self, dialed: Self::Dialed) -> Result<Connected, ConnectError>;

    /// Connects to a server's listener and carries out the handshake, blocking the thread: what
    /// [`Dialer::dial`] and [`adopt`](Self::adopt) do, one after the other.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; nothing has been sent.
    fn connect(
        &mut self,
        address: &str,
        session: &[u8],
        timeout: Duration,
    ) -> Result<Connected, ConnectError> {
        let dialed = self.dialer().dial(address, session, timeout)?;
        self.adopt(dialed)
    }

    /// Takes a send slot for a frame of `len` bytes to `connection`.
    fn reserve(
        &mut self,
        connection: ConnectionId,
        len: usize,
    ) -> Result<Self::SendBuf, ReserveError>;

    /// Gives a written frame to the connection's send queue. It leaves at the next
    /// [`flush`](Self::flush) at the latest, earlier when the chain is long.
    fn send(&mut self, connection: ConnectionId, buf: Self::SendBuf) -> Result<(), SendError>;

    /// Gives a reserved slot back unsent.
    fn cancel(&mut self, buf: Self::SendBuf);

    /// Hands everything that was sent to the device.
    fn flush(&mut self);

    /// Takes completions from the device, refills receives, and appends what the driver should
    /// know to `events`: a bounded batch, nothing if there is nothing. Never blocks.
    fn poll(&mut self, events: &mut Vec<Event<Self::RecvBuf>>);

    /// Gives a receive slot back, so that it can be posted again.
    fn release(&mut self, buf: Self::RecvBuf);

    /// Ends a connection; [`Event::Closed`] follows when its buffers are back.
    fn close(&mut self, connection: ConnectionId);

    /// Ends a [`wait`](Self::wait) of this transport, from any thread: the one under way, or else the
    /// next. Used while the poller sleeps or is about to, since it may cost a system call.
    fn waker(&self) -> Waker;

    /// Asks the device to end the next [`wait`](Self::wait) when something comes from now on. What
    /// came before is found by the [`poll`](Self::poll) that has to follow.
    fn arm(&mut self);

    /// Sleeps until the device has something, the [`waker`](Self::waker) is used, or `timeout` has
    /// passed (`None`: however long it takes). May return early. Only after [`arm`](Self::arm) and a
    /// [`poll`](Self::poll) that brought nothing.
    fn wait(&mut self, timeout: Option<Duration>);
}

/// Carries out handshakes, blocking the thread that it is used on.
pub trait Dialer<D>: Send + Sync {
    /// Connects to a server's listener and carries out the handshake.
    ///
    /// `session` is what the server's [`Admission::admit`] is given; the
    /// [`Connected::session`] that [`Transport::adopt`] returns is what that answered.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; nothing has been sent.
    fn dial(&self, address: &str, session: &[u8], timeout: Duration) -> Result<D, ConnectError>;
}

/// A device, as far as the core needs one: where transports come from.
///
/// Cheap to clone; used from any thread, off the data path.
pub trait Fabric: Clone + Send + Sync + 'static {
    /// What it opens.
    type Transport: Transport;
    /// How a listener hands accepted connections to a poller's transport.
    type Port: Send + 'static;

    /// Opens a transport for the poller that runs on the calling thread.
    fn open(&self, intents: &Intents) -> Result<Self::Transport, FabricError>;

    /// The port of a transport that [`open`](Self::open) returned.
    fn port(&self, transport: &Self::Transport) -> Self::Port;

    /// Listens for handshakes on a thread of its own. Whom `admission` lets in goes to the port
    /// with the index that it named.
    fn listen(
        &self,
        address: &str,
        ports: Vec<Self::Port>,
        admission: Arc<dyn Admission>,
    ) -> Result<Box<dyn Listener>, FabricError>;

    /// The cores this process may run on, in ascending order.
    fn allowed_cores(&self) -> Vec<usize>;

    /// Pins the calling thread to a core.
    fn pin_current_thread(&self, core: usize) -> Result<(), io::Error>;
}

/// A socket that takes handshakes until it is dropped.
pub trait Listener: Send {
    /// The address it is bound to, with the port that the system chose if 0 was asked for.
    fn local_addr(&self) -> SocketAddr;
}

/// The core's part of a handshake, on the server's side. Called by the listener's thread.
pub trait Admission: Send + Sync {
    /// Decides whether a client may connect, and to which poller it goes.
    ///
    /// `session` is what the client's core passed to [`Transport::connect`]: bytes from a peer.
    fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal>;
}

/// A client that was let in.
#[derive(Debug)]
pub struct Admitted {
    /// Index of the port, among those given to [`Fabric::listen`].
    pub poller: usize,
    /// What the client's core had sent.
    pub client_session: Vec<u8>,
    /// What the client's core is told.
    pub server_session: Vec<u8>,
    /// Held for as long as the connection, or its attempt, lives.
    pub permit: Permit,
}

/// A place among the connections that a poller admits; dropping it frees the place.
#[derive(Debug)]
pub struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// Takes a place: adds one to the count.
    #[must_use]
    pub fn of(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // A count and nothing else: no memory is published through it.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a client was not let in, in one sentence that it will show to its user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// One sentence: what was wrong and what to change.
    pub reason: String,
}

/// What [`Transport::connect`] achieved.
#[derive(Debug)]
pub struct Connected {
    /// The new connection; both sides are ready to send.
    pub connection: ConnectionId,
    /// What the server's [`Admission::admit`] answered: bytes from a peer.
    pub session: Vec<u8>,
    /// Where the server is.
    pub remote: SocketAddr,
}

/// Why a connection could not be made. Nothing was sent, so every such call is safe to repeat.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address could not be read or resolved.
    #[error("'{address}' is not an address to connect to (wanted host:port): {source}")]
    Address {
        /// As it was given.
        address: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// Nobody listens there, or it cannot be reached.
    #[error("no server answers at {address}: {source}. Is it running, and is this its port?")]
    Unreachable {
        /// As it was given.
        address: String,
        /// What the socket said.
        source: io::Error,
    },
    /// Something answered, but not as a Verbline server does.
    #[error("{address} does not answer as a Verbline server: {reason}")]
    NotVerbline {
        /// As it was given.
        address: String,
        /// What was wrong with its answer.
        reason: String,
    },
    /// The two sides speak different protocol versions.
    #[error(
        "{address} speaks version {remote} of the protocol, this side speaks {local}: upgrade the older one"
    )]
    Version {
        /// As it was given.
        address: String,
        /// This side's.
        local: u32,
        /// The server's.
        remote: u32,
    },
    /// The server answered and said no.
    #[error("{address} refused the connection: {reason}")]
    Refused {
        /// As it was given.
        address: String,
        /// The server's sentence.
        reason: String,
    },
    /// The server did not answer in time.
    #[error(
        "{address} accepted the connection but did not finish the handshake within {timeout:?}"
    )]
    TimedOut {
        /// As it was given.
        address: String,
        /// How long was waited.
        timeout: Duration,
    },
    /// This side's device could not set the connection up.
    #[error("the device could not connect to {address}: {source}")]
    Device {
        /// As it was given.
        address: String,
        /// What the device said.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// The sentence: a `main` that returns an error prints it with `Debug`.
impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a device could not do what was asked at set-up.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The listening socket could not be opened.
    #[error(
        "cannot listen at {address}: {source} (wanted host:port of this machine, with a port that no other server has; 0 lets the system choose)"
    )]
    Listen {
        /// As it was given.
        address: String,
        /// What the socket said.
        source: io::Error,
    },
    /// The device refused.
    #[error("the device '{device}' {action}: {source}")]
    Device {
        /// The device's name.
        device: String,
        /// What could not be done: "cannot register 4 MiB".
        action: String,
        /// What it said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The intents do not fit the device, or each other.
    #[error("{setting} = {value} does not fit: {reason}")]
    Intent {
        /// The name of the setter.
        setting: &'static str,
        /// What it was set to.
        value: u64,
        /// Why not, with the limit.
        reason: String,
    },
}

/// The sentence: a `main` that returns an error prints it with `Debug`.
impl fmt::Debug for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads what a transport counts, for as long as anybody asks, from any thread.
pub trait Meter: Send + Sync {
    /// What it has counted since it was opened. May make system calls.
    fn counters(&self) -> Counters;
}

/// What a transport counts, all since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames given to the device.
    pub sends: u64,
    /// Of these, those that asked for a completion.
    pub signaled: u64,
    /// Chains given to the device: one doorbell each.
    pub doorbells: u64,
    /// Frames received.
    pub receives: u64,
    /// Times that the shared receive queue fell below its limit because this poller lagged.
    pub srq_limit_events: u64,
    /// Receives that were posted from the reserve because of that.
    pub reserve_posted: u64,
    /// Frames that found no receive posted: a bug in flow control, or a hostile peer.
    pub rnr: u64,
    /// Completions that named nothing any more and were ignored: of connections that were given up.
    pub stale: u64,
    /// Peers that were given up since they did not answer the keepalive.
    pub silent_peers: u64,
}

impl Counters {
    const LEN: usize = 9;

    /// Each with its name.
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

    /// What was counted since an earlier look.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::saturating_add)
    }
}

/// How many slots are in each place at one moment.
///
/// In a transport's own look, the free ones are counted by looking and the others when a slot changes
/// its place, so that the sum is a check: it is [`Limits::slots`] as long as none was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotsByPlace {
    /// Waiting to be posted.
    pub receives_free: u32,
    /// In the shared receive queue, or consumed by the device and not polled yet.
    pub receives_posted: u32,
    /// In reserve, for when the poller lags.
    pub receives_reserved: u32,
    /// In the driver's hands.
    pub receives_held: u32,
    /// Waiting to be reserved.
    pub sends_free: u32,
    /// In the driver's hands.
    pub sends_in_hand: u32,
    /// Queued for the device, or in flight.
    pub sends_in_flight: u32,
}

impl SlotsByPlace {
    /// The sum of all places.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.named().iter().map(|(_, count)| count).sum()
    }

    /// Each place with its name.
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

/// Place by place.
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
