//! [`VerbsTransport`]: a poller's lanes, and the interface that the driver uses.
//!
//! Most operations go to one [`Lane`]: the lane of the connection or the buffer. Only polling and
//! flushing go to each lane in turn.
//!
//! A [`Device`](crate::Device) is an ordered list of names (`"rxe0,soft"`), and each poller has one
//! lane for each name. The transport finds the lane of a connection or of a buffer without a
//! lookup. The lane's number is in the low bits of the connection's index, and in each received
//! buffer. With one device these bits do not exist, so the core's tables stay dense.

pub(crate) mod buf;
pub(crate) mod buffer_pool;
pub(crate) mod close;
pub(crate) mod connection;
pub(crate) mod connections;
pub(crate) mod counters;
pub(crate) mod device_event;
pub(crate) mod endpoint;
pub(crate) mod events;
pub(crate) mod failure;
pub(crate) mod lane;
pub(crate) mod liveness_socket;
pub(crate) mod long_messages;
pub(crate) mod notices;
pub(crate) mod path;
pub(crate) mod peer_clock;
pub(crate) mod pending;
pub(crate) mod plan;
pub(crate) mod queue_pairs;
pub(crate) mod receive;
pub(crate) mod receive_queue;
pub(crate) mod reserve;
pub(crate) mod routes;
pub(crate) mod security;
pub(crate) mod send_queue;
pub(crate) mod sleep;
pub(crate) mod stall_watch;
pub(crate) mod sums;
pub(crate) mod transmit;
pub(crate) mod wakeup;

use std::fmt;
use std::sync::Arc;

use rpc_core::Limits;
use rpc_core::transport::{Event, SlotsByState};

pub use self::buf::{RecvBuf, SendBuf};
use self::lane::Lane;
pub use self::long_messages::registered_buf::RegisteredBuf;
use self::security::ClientSecurity;
use self::sleep::Sleep;

/// A poller's transport: one lane for each device, each with its own context, memory region,
/// completion queue and shared receive queue, and a queue pair for each connection.
///
/// Opened by [`Device`](crate::Device) through [`Fabric::open`](rpc_core::transport::Fabric::open),
/// and used by one thread. See [`Transport`](rpc_core::transport::Transport) for the order of the
/// calls.
///
/// # Example
///
/// A server and a client in one process, without calls. `rpc-core` drives both in a real program.
///
/// ```
/// use std::error::Error;
/// use std::sync::{Arc, atomic::AtomicUsize};
/// use std::time::Duration;
///
/// use rpc_core::Intents;
/// use rpc_core::transport::{Admission, Admitted, Event, Fabric, ConnectionQuota, Refusal, Transport};
/// use rpc_transport_verbs::Device;
///
/// struct AdmitAll;
///
/// impl Admission for AdmitAll {
///     fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal> {
///         let quota = ConnectionQuota::acquire(&Arc::new(AtomicUsize::new(0)));
///         Ok(Admitted::new(0, session.to_vec(), Vec::new(), quota))
///     }
/// }
///
/// fn main() -> Result<(), Box<dyn Error>> {
///     let device = Device::best()?;
///     let mut server = device.open(&Intents::default())?;
///     println!("{}", server.limits());
///     let ports = vec![device.port(&server)];
///     let listener = device.listen(device.bind("127.0.0.1:0")?, ports, Arc::new(AdmitAll))?;
///
///     let mut client = device.open(&Intents::default())?;
///     let address = listener.local_addr().to_string();
///     let connected = client.connect(&address, b"", Duration::from_secs(5))?;
///     let mut buf = client.reserve(connected.connection, 5)?;
///     buf.as_mut().copy_from_slice(b"hello");
///     client.send(connected.connection, buf)?;
///     client.flush();
///
///     loop {
///         if let Some(Event::Received { buf, .. }) = server.poll() {
///             assert_eq!(buf.as_ref(), b"hello");
///             server.release(buf);
///             return Ok(());
///         }
///     }
/// }
/// ```
///
pub struct VerbsTransport {
    /// The first lane, in its own field so that no lookup is needed with one device.
    pub(crate) first: Lane,
    others: Box<[Lane]>,
    /// The bits of a connection's index that contain the lane's number.
    pub(crate) lane_mask: u32,
    /// The lane that the next poll begins with, if there are several.
    next_lane: usize,
    /// Limits that hold for every lane.
    pub(crate) limits: Limits,
    pub(crate) sleep: Sleep,
    client_security: Option<Arc<dyn ClientSecurity>>,
}

impl VerbsTransport {
    /// Combines lanes, whose numbers are their indexes.
    pub(crate) fn new(first: Lane, others: Vec<Lane>, limits: Limits, sleep: Sleep) -> Self {
        let lane_mask = first.connections.lane_mask();
        Self {
            first,
            others: others.into_boxed_slice(),
            lane_mask,
            next_lane: 0,
            limits,
            sleep,
            client_security: None,
        }
    }

    /// Has connections to servers secured: none is made without it.
    pub(crate) fn secure_as_client(&mut self, security: Option<Arc<dyn ClientSecurity>>) {
        self.client_security = security;
    }

    pub(crate) fn client_security(&self) -> Option<&Arc<dyn ClientSecurity>> {
        self.client_security.as_ref()
    }

    /// Returns how many slots are in each state now, summed over all lanes. The total is
    /// [`Limits::slots`] for each device. Not for the data path.
    #[must_use]
    pub fn slots_by_state(&self) -> SlotsByState {
        self.lanes().map(Lane::slots_by_state).sum()
    }

    /// Returns how often the limit of a shared receive queue was armed: once for each device at
    /// startup, again after each event for which there was a reserve to post, after slots were
    /// returned to the reserve, and after the number of promised receives has changed.
    #[must_use]
    pub fn limit_armings(&self) -> u64 {
        self.lanes().map(Lane::limit_armings).sum()
    }

    /// Returns the number of ignored completions, which matched no outstanding request or
    /// connection.
    #[must_use]
    pub fn stale_completions(&self) -> u64 {
        self.lanes().map(|lane| lane.counters.stale.get()).sum()
    }

    /// Returns all lanes, in the order of their devices.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Lane> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn lanes_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    // Out of line: with one device, the caller only makes one comparison.
    #[inline(never)]
    pub(crate) fn flush_others(&mut self) {
        for lane in &mut self.others {
            lane.flush();
        }
    }

    /// Polls the lanes in turn until one has an event. The next poll begins with the lane after
    /// it, so a busy lane cannot starve the others.
    #[inline(never)]
    pub(crate) fn poll_lanes(&mut self) -> Option<Event<RecvBuf>> {
        for _ in 0..=self.others.len() {
            let number = self.next_lane;
            self.next_lane = (number + 1) % (self.others.len() + 1);
            let lane = match number.checked_sub(1) {
                None => &mut self.first,
                Some(other) => &mut self.others[other],
            };
            let event = lane.poll();
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Returns the lane with this number. Ignores the bits above the lane's number, so the index of
    /// a connection can be passed.
    #[inline]
    pub(crate) fn lane(&mut self, number: u32) -> Option<&mut Lane> {
        match number & self.lane_mask {
            0 => Some(&mut self.first),
            other => self.others.get_mut(other as usize - 1),
        }
    }

    /// Returns the lane with this number for reading.
    #[inline]
    pub(crate) fn lane_ref(&self, number: u32) -> Option<&Lane> {
        match number & self.lane_mask {
            0 => Some(&self.first),
            other => self.others.get(other as usize - 1),
        }
    }
}

impl fmt::Debug for VerbsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsTransport")
            .field("limits", &self.limits)
            .field("slots", &self.slots_by_state())
            .field("missed", &self.lanes().map(Lane::misses).sum::<u64>())
            .finish_non_exhaustive()
    }
}
