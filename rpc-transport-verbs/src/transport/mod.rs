//! [`VerbsTransport`]: a poller's lanes, and the face that the driver sees.
//!
//! Whatever it is asked goes to one [`Lane`]: that of the connection, or of the buffer. Only what
//! concerns all of them, polling and flushing, goes to each in turn.

pub(crate) mod alarm;
pub(crate) mod buffer_pool;
pub(crate) mod close;
pub(crate) mod connection;
pub(crate) mod counters;
pub(crate) mod events;
pub(crate) mod failure;
pub(crate) mod lane;
pub(crate) mod lifeline;
pub(crate) mod mailbox;
pub(crate) mod queue_pairs;
pub(crate) mod receive;
pub(crate) mod receive_queue;
pub(crate) mod reserve;
pub(crate) mod routes;
pub(crate) mod send_queue;
pub(crate) mod sleep;
pub(crate) mod transmit;

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use rpc_core::limits::Limits;
use rpc_core::transport::{
    ConnectError, Connected, ConnectionId, Counters, Dialer, Event, Meter, ReserveError, SendError,
    SlotsByPlace, Transport,
};

use crate::connect::client::{self, Dialed, HandshakeDialer};
use crate::connect::server::Port;
use crate::transport::counters::TransportMeter;
use crate::transport::lane::Lane;
use crate::transport::sleep::Sleep;
use crate::verbs::Slot;

/// A poller's way to its peers: one lane for each device, with its own context, registration,
/// completion queue and shared receive queue, and a queue pair for each connection.
///
/// Opened by [`Device`](crate::Device) through [`Fabric::open`](rpc_core::transport::Fabric::open);
/// used by one thread. See [`Transport`] for the order of the calls.
pub struct VerbsTransport {
    /// Apart from the others, so that with one device nothing is looked up.
    first: Lane,
    others: Box<[Lane]>,
    /// The bits of a connection's index that name its lane.
    lane_mask: u32,
    /// What holds for every lane.
    limits: Limits,
    pub(crate) sleep: Sleep,
}

/// A send slot in hand: exactly as long as was reserved.
#[derive(Debug)]
pub struct SendBuf {
    pub(crate) slot: Slot,
    pub(crate) len: u32,
    pub(crate) connection: ConnectionId,
}

impl AsMut<[u8]> for SendBuf {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.slot[..self.len as usize]
    }
}

/// A receive slot in hand: its bytes are the frame.
#[derive(Debug)]
pub struct RecvBuf {
    pub(crate) slot: Slot,
    pub(crate) len: u32,
    /// Whose shared receive queue the slot goes back to.
    pub(crate) lane: u32,
}

impl AsRef<[u8]> for RecvBuf {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.slot[..self.len as usize]
    }
}

impl VerbsTransport {
    /// Puts lanes together whose numbers are their order.
    pub(crate) fn new(first: Lane, others: Vec<Lane>, limits: Limits, sleep: Sleep) -> Self {
        let lane_mask = first.connections.lane_mask();
        Self {
            first,
            others: others.into_boxed_slice(),
            lane_mask,
            limits,
            sleep,
        }
    }

    /// Where every slot is at this moment, of all lanes together. Their sum is
    /// [`Limits::slots`] for each device. Off the data path.
    #[must_use]
    pub fn slots_by_place(&self) -> SlotsByPlace {
        self.lanes().map(Lane::slots_by_place).sum()
    }

    /// How often a shared receive queue's limit was armed: once for each device at the beginning,
    /// and again after each event that had a reserve to post, or after the reserve was given back.
    #[must_use]
    pub fn limit_armings(&self) -> u64 {
        self.lanes().map(Lane::limit_armings).sum()
    }

    /// Completions that named nothing any more and were ignored.
    #[must_use]
    pub fn stale_completions(&self) -> u64 {
        self.lanes().map(|lane| lane.tally.stale.get()).sum()
    }

    pub(crate) fn port(&self) -> Port {
        Port::new(self.lanes().map(Lane::port).collect())
    }

    /// All lanes, in the order of their devices.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Lane> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn lanes_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    // Out of line, so that with one device there is one comparison.
    #[inline(never)]
    fn flush_others(&mut self) {
        for lane in &mut self.others {
            lane.flush_chains();
        }
    }

    #[inline(never)]
    fn poll_others(&mut self, events: &mut Vec<Event<RecvBuf>>) {
        for lane in &mut self.others {
            lane.poll_completions(events);
        }
    }

    /// The lane with this number; what is above the lane's bits is ignored, so that the index of a
    /// connection will do.
    #[inline]
    pub(crate) fn lane(&mut self, number: u32) -> Option<&mut Lane> {
        match number & self.lane_mask {
            0 => Some(&mut self.first),
            other => self.others.get_mut(other as usize - 1),
        }
    }
}

impl Transport for VerbsTransport {
    type SendBuf = SendBuf;
    type RecvBuf = RecvBuf;
    type Dialed = Dialed;

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn meter(&self) -> Arc<dyn Meter> {
        Arc::new(TransportMeter(self.lanes().map(Lane::meter).collect()))
    }

    fn counters(&self) -> Counters {
        self.lanes().for_each(Lane::publish);
        self.meter().counters()
    }

    fn slots_by_place(&self) -> SlotsByPlace {
        self.lanes().for_each(Lane::publish);
        Self::slots_by_place(self)
    }

    fn dialer(&self) -> Arc<dyn Dialer<Dialed>> {
        Arc::new(HandshakeDialer::new(self))
    }

    fn adopt(&mut self, dialed: Dialed) -> Result<Connected, ConnectError> {
        client::adopt(self, dialed)
    }

    #[inline]
    fn reserve(&mut self, connection: ConnectionId, len: usize) -> Result<SendBuf, ReserveError> {
        self.lane(connection.index)
            .ok_or(ReserveError::Closed)?
            .reserve_slot(connection, len)
    }

    #[inline]
    fn send(&mut self, connection: ConnectionId, buf: SendBuf) -> Result<(), SendError> {
        debug_assert_eq!(
            connection, buf.connection,
            "a buffer is sent where it was reserved for"
        );
        self.lane(buf.connection.index)
            .ok_or(SendError)?
            .send_slot(buf)
    }

    fn cancel(&mut self, buf: SendBuf) {
        if let Some(lane) = self.lane(buf.connection.index) {
            lane.cancel_slot(buf);
        }
    }

    #[inline]
    fn flush(&mut self) {
        self.first.flush_chains();
        if self.lane_mask != 0 {
            self.flush_others();
        }
    }

    #[inline]
    fn poll(&mut self, events: &mut Vec<Event<RecvBuf>>) {
        // Each lane has its batch in every poll, so that a busy one cannot starve the others.
        self.first.poll_completions(events);
        if self.lane_mask != 0 {
            self.poll_others(events);
        }
    }

    #[inline]
    fn release(&mut self, buf: RecvBuf) {
        if let Some(lane) = self.lane(buf.lane) {
            lane.release_slot(buf);
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        if let Some(lane) = self.lane(connection.index) {
            lane.close_locally(connection);
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.sleep.alarm))
    }

    fn arm(&mut self) {
        self.arm_lanes();
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.sleep(timeout);
    }
}

impl fmt::Debug for VerbsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsTransport")
            .field("limits", &self.limits)
            .field("slots", &self.slots_by_place())
            .finish_non_exhaustive()
    }
}
