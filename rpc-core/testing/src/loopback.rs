//! [`Loopback`]: a transport within one thread that does a device's accounting.

mod dialed;
mod reads;
mod wires;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;
use std::time::Duration;

use rpc_core::Limits;
use rpc_core::for_testing::Random;
use rpc_core::stats::Counter;
use rpc_core::transport::{
    Admission, AllocateError, Chunks, CloseReason, ConnectError, Connected, ConnectionId,
    CounterReader, Counters, Dialer, Event, ExposeError, Exposed, ExposureKey, FetchKey,
    LongMessages, MemoryByOwner, Peer, PeerClock, PeerMemory, RemoteSegment, ReserveError,
    RoomWanted, SendError, SlotsByState, Stalled, Transport,
};

pub(crate) use self::dialed::Dialed;
use self::dialed::LoopbackDialer;
pub(crate) use self::reads::LoopbackMemory;
use self::reads::Reads;
use crate::faults::Faults;

/// Maximum number of events that one poll returns.
const BATCH: usize = 16;

/// All endpoints of one network.
#[derive(Default)]
pub(crate) struct Wires {
    endpoints: Vec<Endpoint>,
    listeners: HashMap<String, (usize, Arc<dyn Admission>)>,
    /// Long messages are read.
    reads: bool,
    /// No further message can be fetched.
    refuses_fetches: bool,
    /// If devices give no memory windows: whether one may come later.
    no_window: Option<bool>,
    /// READs that are executed before the others are held. `None`: all.
    reads_left: Option<usize>,
}

#[derive(Default)]
struct Endpoint {
    /// Indexed by the `index` of the connection's id.
    connections: Vec<Wire>,
    incoming: VecDeque<Event<Vec<u8>>>,
    posted: u32,
    held: u32,
    sending: u32,
    reads: Reads,
    counters: Arc<EndpointCounters>,
    /// Connections whose peers keep this side waiting.
    stalled: Vec<ConnectionId>,
}

#[derive(Default)]
struct EndpointCounters {
    sends: Counter,
    doorbells: Counter,
    receives: Counter,
    rnr: Counter,
}

impl CounterReader for EndpointCounters {
    fn counters(&self) -> Counters {
        Counters {
            sends: self.sends.get(),
            doorbells: self.doorbells.get(),
            receives: self.receives.get(),
            rnr: self.rnr.get(),
            ..Counters::default()
        }
    }
}

/// One side's state of a connection.
struct Wire {
    peer: Option<(usize, ConnectionId)>,
    unflushed: Vec<Vec<u8>>,
    /// Frames sent and not yet polled by the peer. They occupy the send queue.
    in_queue: u32,
}

/// The state of an endpoint's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCounts {
    /// Receives posted.
    pub posted: u32,
    /// Receives with a frame that has not been released yet.
    pub held: u32,
    /// Send slots reserved, or sent and not yet flushed.
    pub sending: u32,
    /// Frames that found no receive posted.
    pub rnr: u64,
    /// Segments that the peer may read.
    pub exposed: usize,
    /// Messages whose memory the device may write.
    pub fetching: usize,
    /// Bytes of memory for long messages in use.
    pub message_bytes: u64,
}

/// One node's transport.
pub struct Loopback {
    wires: Rc<RefCell<Wires>>,
    index: usize,
    limits: Limits,
    /// What servers are told about this process.
    peer: Option<Peer>,
    memory: PeerMemory,
    faults: Faults,
    random: Random,
    /// Events left in the current batch.
    batch_left: Option<usize>,
}

impl Loopback {
    pub(crate) fn new(
        wires: &Rc<RefCell<Wires>>,
        limits: Limits,
        faults: Faults,
        random: Random,
    ) -> Self {
        let mut all = wires.borrow_mut();
        let posted = limits.promisable_receives();
        all.endpoints.push(Endpoint {
            posted,
            ..Endpoint::default()
        });
        let index = all.endpoints.len() - 1;
        Self {
            wires: Rc::clone(wires),
            index,
            limits,
            peer: None,
            memory: PeerMemory::default(),
            faults,
            random,
            batch_left: None,
        }
    }

    /// Sets the address from which this process connects.
    pub(crate) fn set_address(&mut self, address: Option<SocketAddr>) {
        self.peer = address.map(|address| Peer::new(address).with_device("loopback"));
    }

    /// Draws the faults of a poll. Returns the number of events in its batch.
    fn begin_batch(&mut self) -> usize {
        if self.random.happens(self.faults.late) {
            return 0;
        }
        self.execute_reads();
        let mut wires = self.wires.borrow_mut();
        if self.random.happens(self.faults.disconnect) {
            let up = wires.connections(self.index);
            if !up.is_empty() {
                let victim = up[self.random.below(up.len() as u64) as usize];
                let failed = CloseReason::Failed(Arc::from(Box::from(
                    "an injected fault closed the connection",
                )));
                wires.close(self.index, victim, &failed, &failed);
            }
        }
        let batch = wires.endpoints[self.index].incoming.len().min(BATCH);
        if batch > 1 && self.random.happens(self.faults.short_batch) {
            return 1 + self.random.below(batch as u64) as usize;
        }
        batch
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn slot_counts(&self) -> SlotCounts {
        self.wires.borrow().slot_counts(self.index)
    }

    pub(crate) fn connections(&self) -> Vec<ConnectionId> {
        self.wires.borrow().connections(self.index)
    }

    pub(crate) fn ask_for_room(&self, wanted: RoomWanted) {
        self.with_endpoint(|endpoint| {
            endpoint
                .incoming
                .push_back(Event::RoomWanted(Box::new(wanted)))
        });
    }

    pub(crate) fn stall(&self, connection: ConnectionId) {
        self.with_endpoint(|endpoint| endpoint.stalled.push(connection));
    }

    pub(crate) fn inject(&self, connection: ConnectionId, frame: Vec<u8>) {
        let mut wires = self.wires.borrow_mut();
        wires.inject(self.index, connection, frame);
    }

    fn with_endpoint<R>(&self, act: impl FnOnce(&mut Endpoint) -> R) -> R {
        act(&mut self.wires.borrow_mut().endpoints[self.index])
    }
}

impl Endpoint {
    fn arrive(&mut self, event: Event<Vec<u8>>) {
        if self.posted == 0 {
            self.counters.rnr.add(1);
        } else {
            self.posted -= 1;
            self.held += 1;
        }
        self.counters.receives.add(1);
        self.incoming.push_back(event);
    }
}

impl Transport for Loopback {
    type SendBuf = Vec<u8>;
    type RecvBuf = Vec<u8>;
    type Dialed = Dialed;
    type Memory = LoopbackMemory;

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn counter_reader(&self) -> Arc<dyn CounterReader> {
        self.with_endpoint(|endpoint| Arc::clone(&endpoint.counters) as Arc<_>)
    }

    fn slots_by_state(&self) -> SlotsByState {
        let slot_counts = self.wires.borrow().slot_counts(self.index);
        SlotsByState {
            receives_posted: slot_counts.posted,
            receives_held: slot_counts.held,
            sends_free: self.limits.send_slots.saturating_sub(slot_counts.sending),
            sends_in_flight: slot_counts.sending,
            ..SlotsByState::default()
        }
    }

    fn dialer(&self, _: Arc<AtomicBool>) -> Arc<dyn Dialer<Dialed>> {
        Arc::new(LoopbackDialer)
    }

    fn adopt(&mut self, Dialed { address, session }: Dialed) -> Result<Connected, ConnectError> {
        let mut wires = self.wires.borrow_mut();
        let Some((server, admission)) = wires.listeners.get(&address).cloned() else {
            let source = std::io::ErrorKind::ConnectionRefused.into();
            return Err(ConnectError::Unreachable { address, source });
        };
        let mut admitted = admission
            .admit(&session)
            .map_err(|refusal| ConnectError::Refused {
                address,
                reason: refusal.reason,
            })?;
        let (connection, remote) = (wires.add_wire(self.index), wires.add_wire(server));
        wires.endpoints[self.index].connections[connection.index as usize].peer =
            Some((server, remote));
        wires.endpoints[server].connections[remote.index as usize].peer =
            Some((self.index, connection));
        if let Some(peer) = self.peer.clone() {
            admitted.set_peer(peer);
        }
        let session = admitted.server_session.clone();
        wires.endpoints[server].incoming.push_back(Event::Accepted {
            connection: remote,
            admitted: Box::new(admitted),
        });
        Ok(Connected {
            connection,
            session,
            remote: SocketAddr::from(([127, 0, 0, 1], 0)),
        })
    }

    fn longest_frame(&self, connection: ConnectionId) -> usize {
        let has_ended = self.with_endpoint(|endpoint| {
            let wire = &endpoint.connections[connection.index as usize];
            wire.peer.is_none()
        });
        match has_ended {
            true => 0,
            false => self.limits.slot_len,
        }
    }

    fn send_inline<R>(
        &mut self,
        connection: ConnectionId,
        frame: &mut [u8],
        complete: impl FnOnce(&mut [u8]) -> Option<R>,
    ) -> Result<Option<R>, ReserveError> {
        let mut buf = self.reserve(connection, frame.len())?;
        let completed = complete(frame);
        if completed.is_some() {
            buf.copy_from_slice(frame);
            let _ = self.send(connection, buf);
        } else {
            self.cancel(buf);
        }
        Ok(completed)
    }

    fn reserve(&mut self, connection: ConnectionId, len: usize) -> Result<Vec<u8>, ReserveError> {
        if len > self.limits.slot_len {
            return Err(ReserveError::TooLong {
                len,
                limit: self.limits.slot_len,
            });
        }
        let refused = self.random.happens(self.faults.no_slot);
        let Limits {
            send_slots,
            send_queue_depth,
            ..
        } = self.limits;
        self.with_endpoint(|endpoint| {
            let wire = &endpoint.connections[connection.index as usize];
            if wire.peer.is_none() {
                return Err(ReserveError::Closed);
            }
            if refused || endpoint.sending >= send_slots || wire.in_queue >= send_queue_depth {
                return Err(ReserveError::NoSlot);
            }
            endpoint.sending += 1;
            Ok(vec![0; len])
        })
    }

    fn send(&mut self, connection: ConnectionId, buf: Vec<u8>) -> Result<(), SendError> {
        self.with_endpoint(|endpoint| {
            let wire = &mut endpoint.connections[connection.index as usize];
            if wire.peer.is_none() {
                endpoint.sending -= 1;
                return Err(SendError);
            }
            wire.unflushed.push(buf);
            wire.in_queue += 1;
            Ok(())
        })
    }

    fn cancel(&mut self, _: Vec<u8>) {
        self.with_endpoint(|endpoint| endpoint.sending -= 1);
    }

    fn flush(&mut self) {
        let mut wires = self.wires.borrow_mut();
        for index in 0..wires.endpoints[self.index].connections.len() {
            wires.flush(
                self.index,
                ConnectionId {
                    index: index as u32,
                    generation: 0,
                },
            );
        }
    }

    /// Does nothing: all receives are always posted.
    fn set_promised(&mut self, _: u32) {}

    fn poll(&mut self) -> Option<Event<Vec<u8>>> {
        let left = match self.batch_left.take() {
            Some(left) => left,
            None => self.begin_batch(),
        };
        // Nothing is left: the batch ends with `None`.
        let left = left.checked_sub(1)?;
        let mut wires = self.wires.borrow_mut();
        let event = wires.endpoints[self.index].incoming.pop_front()?;
        if let Event::Received { connection, .. } = &event {
            wires.acknowledge(self.index, *connection);
        }
        self.batch_left = Some(left);
        Some(event)
    }

    fn release(&mut self, _: Vec<u8>) {
        self.with_endpoint(|endpoint| {
            endpoint.held -= 1;
            endpoint.posted += 1;
        });
    }

    fn long_messages(&self, _: ConnectionId) -> LongMessages {
        match self.wires.borrow().reads {
            true => LongMessages::Read,
            false => LongMessages::Fragments,
        }
    }

    fn allocate(&mut self, len: usize) -> Result<LoopbackMemory, AllocateError> {
        self.allocate_to_send(len)
    }

    fn allocate_for(
        &mut self,
        _: ConnectionId,
        len: usize,
    ) -> Result<LoopbackMemory, AllocateError> {
        self.allocate_to_receive(len)
    }

    fn peer_memory(&self) -> PeerMemory {
        self.memory
    }

    fn memory_by_owner(&self) -> MemoryByOwner {
        self.with_endpoint(|endpoint| endpoint.reads.memory_by_owner())
    }

    fn expose(
        &mut self,
        connection: ConnectionId,
        message: &mut Chunks,
        is_accepted: bool,
    ) -> Result<Exposed, ExposeError> {
        self.expose_piece(connection, message, is_accepted)
    }

    fn conceal(&mut self, exposed: ExposureKey) {
        self.conceal_piece(exposed);
    }

    fn begin_fetch(
        &mut self,
        connection: ConnectionId,
        memory: LoopbackMemory,
    ) -> Result<FetchKey, LoopbackMemory> {
        self.begin_fetching(connection, memory)
    }

    fn fetch(&mut self, fetch: FetchKey, segment: RemoteSegment, at: usize) {
        self.fetch_segment(fetch, segment, at);
    }

    fn finish_fetch(&mut self, fetch: FetchKey) -> Option<LoopbackMemory> {
        self.finish_fetching(fetch)
    }

    fn cancel_fetch(&mut self, fetch: FetchKey) {
        self.cancel_fetching(fetch);
    }

    fn peer_clock(&self, _: ConnectionId) -> Option<PeerClock> {
        Some(PeerClock::SAME_HOST)
    }

    fn stalled_connections(&mut self, _: u32) -> Stalled {
        Stalled {
            connections: self.with_endpoint(|endpoint| endpoint.stalled.clone()),
            may_follow: false,
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        self.wires.borrow_mut().close(
            self.index,
            connection,
            &CloseReason::Local,
            &CloseReason::PeerGone,
        );
    }
    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    fn arm(&mut self) {}

    /// Does nothing: nodes are stepped by hand and never sleep.
    fn wait(&mut self, _: Option<Duration>) {}
}
