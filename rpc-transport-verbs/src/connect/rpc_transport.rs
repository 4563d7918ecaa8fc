//! [`VerbsTransport`] as rpc-core's [`Transport`]: it dials, and moves frames through its lanes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;
use std::time::Duration;

use rpc_core::Limits;
use rpc_core::transport::{
    AllocateError, Chunks, ConnectError, Connected, ConnectionId, CounterReader, Counters, Dialer,
    Event, ExposeError, Exposed, ExposureKey, FetchKey, LongMessages, MemoryByOwner, PeerClock,
    RemoteSegment, ReserveError, SendError, SlotsByState, Stalled, Transport,
};

use super::client::{self, Dialed, HandshakeDialer};
use crate::transport::counters::TransportCounterReader;
use crate::transport::lane::Lane;
use crate::transport::long_messages::size_class::block_len;
use crate::transport::{RecvBuf, RegisteredBuf, SendBuf, VerbsTransport};

impl Transport for VerbsTransport {
    type SendBuf = SendBuf;
    type RecvBuf = RecvBuf;
    type Dialed = Dialed;
    type Memory = RegisteredBuf;

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn counter_reader(&self) -> Arc<dyn CounterReader> {
        Arc::new(TransportCounterReader(
            self.lanes().map(Lane::counter_reader).collect(),
        ))
    }

    fn counters(&self) -> Counters {
        self.lanes().for_each(Lane::publish_counters);
        self.counter_reader().counters()
    }

    fn slots_by_state(&self) -> SlotsByState {
        self.lanes().for_each(Lane::publish_counters);
        Self::slots_by_state(self)
    }

    fn dialer(&self, was_protected: Arc<AtomicBool>) -> Arc<dyn Dialer<Dialed>> {
        Arc::new(HandshakeDialer::new(self, was_protected))
    }

    fn adopt(&mut self, dialed: Dialed) -> Result<Connected, ConnectError> {
        client::adopt(self, dialed)
    }

    #[inline]
    fn send_inline<R>(
        &mut self,
        connection: ConnectionId,
        frame: &mut [u8],
        complete: impl FnOnce(&mut [u8]) -> Option<R>,
    ) -> Result<Option<R>, ReserveError> {
        self.lane(connection.index)
            .ok_or(ReserveError::Closed)?
            .send_inline(connection, frame, complete)
    }

    fn longest_frame(&self, connection: ConnectionId) -> usize {
        let lane = self.lane_ref(connection.index);
        lane.map_or(0, |lane| lane.longest_frame(connection))
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
        self.first.flush();
        if self.lane_mask != 0 {
            self.flush_others();
        }
    }

    fn set_promised(&mut self, receives: u32) {
        // The frames may arrive on any lane.
        let receives = receives.min(self.limits.promisable_receives());
        for lane in self.lanes_mut() {
            lane.set_promised(receives);
        }
    }

    // Always inlined: each turn is one call, and the compiler decides otherwise now and then.
    #[inline(always)]
    fn poll(&mut self) -> Option<Event<RecvBuf>> {
        if self.lane_mask == 0 {
            self.first.poll()
        } else {
            self.poll_lanes()
        }
    }

    // Always inlined: every call releases two slots, and other callers go through one that is cold.
    #[inline(always)]
    fn release(&mut self, buf: RecvBuf) {
        if let Some(lane) = self.lane(buf.lane) {
            lane.release_slot(buf);
        }
    }

    fn long_messages(&self, connection: ConnectionId) -> LongMessages {
        let lane = self.lane_ref(connection.index);
        lane.map_or(LongMessages::Fragments, |lane| {
            lane.long_messages(connection)
        })
    }

    fn allocate(&mut self, len: usize) -> Result<RegisteredBuf, AllocateError> {
        self.first.long_messages.pools.allocate_to_send(len)
    }

    fn allocate_for(
        &mut self,
        connection: ConnectionId,
        len: usize,
    ) -> Result<RegisteredBuf, AllocateError> {
        match self.lane(connection.index) {
            Some(lane) => lane.long_messages.pools.allocate_to_receive(len),
            None => self.first.long_messages.pools.allocate_to_receive(len),
        }
    }

    fn footprint(&self, len: usize) -> u64 {
        block_len(len) as u64
    }

    fn memory_by_owner(&self) -> MemoryByOwner {
        let lanes = self
            .lanes()
            .map(|lane| lane.long_messages.memory_by_owner());
        lanes.fold(MemoryByOwner::default(), |sum, lane| MemoryByOwner {
            registered: sum.registered + lane.registered,
            exposed: sum.exposed + lane.exposed,
            fetching: sum.fetching + lane.fetching,
            held: sum.held + lane.held,
        })
    }

    fn kept_memory(&self) -> u64 {
        self.first.long_messages.pools.kept_by_process()
    }

    fn expose(
        &mut self,
        connection: ConnectionId,
        message: &mut Chunks,
        is_accepted: bool,
    ) -> Result<Exposed, ExposeError> {
        self.lane(connection.index)
            .ok_or(ExposeError::Closed)?
            .expose(connection, message, is_accepted)
    }

    fn conceal(&mut self, exposed: ExposureKey) {
        if let Some(lane) = self.lane(exposed.0) {
            lane.conceal(exposed);
        }
    }

    fn begin_fetch(
        &mut self,
        connection: ConnectionId,
        memory: RegisteredBuf,
    ) -> Result<FetchKey, RegisteredBuf> {
        match self.lane(connection.index) {
            Some(lane) => lane.begin_fetch(connection, memory),
            None => Err(memory),
        }
    }

    fn fetch(&mut self, fetch: FetchKey, segment: RemoteSegment, at: usize) {
        if let Some(lane) = self.lane(fetch.0) {
            lane.fetch(fetch, segment, at);
        }
    }

    fn finish_fetch(&mut self, fetch: FetchKey) -> Option<RegisteredBuf> {
        self.lane(fetch.0)?.finish_fetch(fetch)
    }

    fn cancel_fetch(&mut self, fetch: FetchKey) {
        if let Some(lane) = self.lane(fetch.0) {
            lane.cancel_fetch(fetch);
        }
    }

    #[inline]
    fn peer_clock(&self, connection: ConnectionId) -> Option<PeerClock> {
        self.lane_ref(connection.index)?.peer_clock(connection)
    }

    fn stalled_connections(&mut self, looks: u32) -> Stalled {
        let lanes = self.lanes_mut().map(|lane| lane.stalled_connections(looks));
        lanes.fold(Stalled::default(), |mut all, lane| {
            all.connections.extend(lane.connections);
            all.may_follow |= lane.may_follow;
            all
        })
    }

    fn close(&mut self, connection: ConnectionId) {
        if let Some(lane) = self.lane(connection.index) {
            lane.close_locally(connection);
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.sleep.wakeup))
    }

    fn arm(&mut self) {
        self.arm_lanes();
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.sleep(timeout);
    }
}
