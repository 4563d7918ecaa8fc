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

mod admission;
mod counters;
mod error;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

pub use self::admission::{Admission, Admitted, Permit, Refusal};
pub use self::counters::{Counters, Meter, SlotsByPlace};
pub use self::error::{CloseReason, ConnectError, FabricError, ReserveError, SendError};
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
