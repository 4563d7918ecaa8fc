//! [`VerbsTransport`]: a poller's lanes, and the interface that the driver uses.
//!
//! Most operations go to one [`Lane`]: the lane of the connection or the buffer. Only polling and
//! flushing go to each lane in turn.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use rpc_core::limits::Limits;
use rpc_core::transport::{
    ConnectError, Connected, ConnectionId, Counters, Dialer, Event, Meter, ReserveError, SendError,
    SlotsByPlace, Transport,
};

use crate::accept::Port;
use crate::connect::{self, Dialed, HandshakeDialer};
use crate::lane::Lane;
use crate::meter::TransportMeter;
use crate::sleep::Sleep;
use crate::verbs::Slot;

/// A poller's transport: one lane for each device, each with its own context, memory region,
/// completion queue and shared receive queue, and a queue pair for each connection.
///
/// Opened by [`Device`](crate::Device) through [`Fabric::open`](rpc_core::transport::Fabric::open),
/// and used by one thread. See [`Transport`] for the order of the calls.
pub struct VerbsTransport {
    /// The first lane, in its own field so that no lookup is needed with one device.
    first: Lane,
    others: Box<[Lane]>,
    /// The bits of a connection's index that contain the lane's number.
    lane_mask: u32,
    /// Limits that hold for every lane.
    limits: Limits,
    pub(crate) sleep: Sleep,
}

/// A send slot owned by the driver. Its length is exactly the reserved length.
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

/// A receive slot owned by the driver. Its bytes are the frame.
#[derive(Debug)]
pub struct RecvBuf {
    pub(crate) slot: Slot,
    pub(crate) len: u32,
    /// The number of the lane to whose shared receive queue the slot returns.
    pub(crate) lane: u32,
}

impl AsRef<[u8]> for RecvBuf {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.slot[..self.len as usize]
    }
}

impl VerbsTransport {
    /// Combines lanes, whose numbers are their indexes.
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

    /// Returns how many slots are in each state now, summed over all lanes. The total is
    /// [`Limits::slots`] for each device. Not for the data path.
    #[must_use]
    pub fn slots_by_place(&self) -> SlotsByPlace {
        self.lanes().map(Lane::slots_by_place).sum()
    }

    /// Returns how often the limit of a shared receive queue was armed: once for each device at
    /// startup, and again after each event for which there was a reserve to post, or after slots
    /// were returned to the reserve.
    #[must_use]
    pub fn limit_armings(&self) -> u64 {
        self.lanes().map(Lane::limit_armings).sum()
    }

    /// Returns the number of ignored completions, which matched no outstanding request or
    /// connection.
    #[must_use]
    pub fn stale_completions(&self) -> u64 {
        self.lanes().map(|lane| lane.tally.stale.get()).sum()
    }

    pub(crate) fn port(&self) -> Port {
        Port::new(self.lanes().map(Lane::port).collect())
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

    /// Returns the lane with this number. Ignores the bits above the lane's number, so the index of
    /// a connection can be passed.
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
        connect::adopt(self, dialed)
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
        // Each lane polls one batch each time, so a busy lane cannot starve the others.
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
