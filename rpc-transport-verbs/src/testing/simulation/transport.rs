//! [`SimulatedTransport`]: a poller's transport, which finds its peers in its thread's world.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;
use std::time::Duration;

use rpc_core::Limits;
use rpc_core::for_testing::Clock;
use rpc_core::transport::{
    Admission, AllocateError, Chunks, ConnectError, Connected, ConnectionId, CounterReader,
    Counters, Dialer, Event, ExposeError, Exposed, ExposureKey, FetchKey, LongMessages,
    MemoryByOwner, PeerClock, PeerMemory, RemoteSegment, ReserveError, SendError, SlotsByState,
    Transport,
};

use super::clocks::Measurement;
use super::process_id::{Pairing, ProcessId};
use super::watched_socket::{End, WatchedSocket};
use super::{ProcessState, Simulation};
use crate::connect::handshake::Offer;
use crate::connect::server::Port;
use crate::transport::connection::Phase;
use crate::transport::endpoint::SOFT;
use crate::transport::liveness_socket::{LivenessSocket, SimulatedSocket};
use crate::transport::notices::LivenessKey;
use crate::transport::{RecvBuf, SendBuf, VerbsTransport};

/// The real transport of a simulated process. Its handshake is simulated, and the world simulates
/// its sleep.
pub struct SimulatedTransport {
    pub(super) verbs: VerbsTransport,
    pub(super) state: Rc<ProcessState>,
    pub(super) directory: Weak<Directory>,
    /// The clock of its host, if it is another one than that of its peers.
    pub(super) clock: Option<Clock>,
    /// The clocks of its peers, as measured when they connected.
    pub(super) peer_clocks: HashMap<ConnectionId, Measurement>,
}

/// Directory in which processes find each other.
pub(super) struct Directory {
    pub(super) simulation: Rc<Simulation>,
    pub(super) servers: RefCell<HashMap<String, Server>>,
    pub(super) sockets: RefCell<Vec<WatchedSocket>>,
    /// Every connection ever made, in order.
    pub(super) pairings: RefCell<Vec<Pairing>>,
}

#[derive(Clone)]
pub(super) struct Server {
    pub(super) state: Rc<ProcessState>,
    pub(super) port: Port,
    pub(super) admission: Arc<dyn Admission>,
    pub(super) clock: Option<Clock>,
}

impl SimulatedTransport {
    /// Returns the real transport.
    #[must_use]
    pub fn verbs(&self) -> &VerbsTransport {
        &self.verbs
    }

    /// Executes the steps of both sides of a handshake that concern the device.
    fn connect_to(
        &mut self,
        DialRequest { address, session }: DialRequest,
    ) -> Result<Connected, ConnectError> {
        let unreachable = |address: &str| ConnectError::Unreachable {
            address: address.to_owned(),
            source: std::io::ErrorKind::ConnectionRefused.into(),
        };
        let Some(directory) = self.directory.upgrade() else {
            return Err(unreachable(&address));
        };
        let server = directory.servers.borrow().get(&address).cloned();
        let server = server.filter(|server| !server.state.killer.has_killed());
        let Some(server) = server else {
            return Err(unreachable(&address));
        };
        let refused = |reason: String| ConnectError::Refused {
            address: address.clone(),
            reason,
        };
        let device_error = |error: Box<dyn std::error::Error + Send + Sync>| ConnectError::Device {
            address: address.clone(),
            source: error,
        };
        let limits = self.verbs.limits();
        let max_frame_len = limits.slot_len as u32;
        let lane = self.verbs.lane(0).ok_or_else(|| unreachable(&address))?;
        let queue_pairs = Arc::clone(&lane.queue_pairs);
        let qp_init = queue_pairs.create().map_err(|e| device_error(e.into()))?;
        let endpoint = queue_pairs.endpoint(&qp_init, SOFT);
        let client_qp_num = endpoint.qp_number;
        let offer = Offer {
            endpoints: vec![endpoint],
            max_frame_len,
            session,
        };
        let admitted = server
            .admission
            .admit(&offer.session)
            .map_err(|refusal| refused(refusal.reason))?;

        let socket = SimulatedSocket::default();
        let (key, server_key) = (LivenessKey::next(), LivenessKey::next());
        let create_queue_pair = || {
            let socket = LivenessSocket::Simulated(socket.clone());
            server
                .port
                .create_queue_pair(&offer, None, admitted, socket, server_key)
        };
        // This part runs on the server's control thread, so the server may be killed in it.
        let Some(client_in_rts) = directory
            .simulation
            .run_in(&server.state, create_queue_pair)
        else {
            return Err(unreachable(&address));
        };
        let client_in_rts = client_in_rts.map_err(|error| refused(error.to_string()))?;
        let welcome = client_in_rts.welcome;
        let end = |process, key, notice_sender| End {
            process,
            key,
            notice_sender,
            is_notified: false,
        };
        directory.sockets.borrow_mut().push(WatchedSocket {
            socket: socket.clone(),
            ends: [
                end(self.state.number, key, lane.notice_sender.clone()),
                end(server.state.number, server_key, client_in_rts.notice_sender),
            ],
            awaits_ready: false,
        });
        directory.pairings.borrow_mut().push(Pairing {
            client: (ProcessId(self.state.number), client_qp_num),
            server: (ProcessId(server.state.number), welcome.endpoint.qp_number),
        });
        let qp_rts = queue_pairs
            .connect(qp_init, &welcome.endpoint)
            .map_err(|error| {
                socket.shut_down();
                device_error(error.into())
            })?;
        if let Some(watched) = directory.sockets.borrow_mut().last_mut() {
            watched.awaits_ready = true;
        }
        let remote_frame_len = welcome.max_frame_len as usize;
        let socket = LivenessSocket::Simulated(socket);
        let connection = lane.add(qp_rts, socket, key, remote_frame_len, Phase::Open);
        if let (Some(ours), Some(theirs)) = (&self.clock, &server.clock) {
            let random = &directory.simulation.random;
            let measured = Measurement::new(ours, theirs, random);
            self.peer_clocks.insert(connection, measured);
        }
        Ok(Connected {
            connection,
            session: welcome.session,
            remote: SocketAddr::from(([127, 0, 0, 1], 0)),
        })
    }
}

/// A requested connection. The simulation has a single thread, so the connection is made only when
/// the transport adopts it.
pub struct DialRequest {
    address: String,
    session: Vec<u8>,
}

struct DirectDialer;

impl Dialer<DialRequest> for DirectDialer {
    fn dial(
        &self,
        address: &str,
        session: &[u8],
        _: Duration,
    ) -> Result<DialRequest, ConnectError> {
        Ok(DialRequest {
            address: address.to_owned(),
            session: session.to_vec(),
        })
    }
}

impl Transport for SimulatedTransport {
    type SendBuf = SendBuf;
    type RecvBuf = RecvBuf;
    type Dialed = DialRequest;
    type Memory = <VerbsTransport as Transport>::Memory;

    fn limits(&self) -> &Limits {
        self.verbs.limits()
    }

    fn counter_reader(&self) -> Arc<dyn CounterReader> {
        self.verbs.counter_reader()
    }

    fn counters(&self) -> Counters {
        self.verbs.counters()
    }

    fn slots_by_state(&self) -> SlotsByState {
        Transport::slots_by_state(&self.verbs)
    }

    fn dialer(&self, _: Arc<AtomicBool>) -> Arc<dyn Dialer<DialRequest>> {
        Arc::new(DirectDialer)
    }

    fn adopt(&mut self, request: DialRequest) -> Result<Connected, ConnectError> {
        self.connect_to(request)
    }

    fn send_inline<R>(
        &mut self,
        connection: ConnectionId,
        frame: &mut [u8],
        complete: impl FnOnce(&mut [u8]) -> Option<R>,
    ) -> Result<Option<R>, ReserveError> {
        self.verbs.send_inline(connection, frame, complete)
    }
    fn reserve(&mut self, connection: ConnectionId, len: usize) -> Result<SendBuf, ReserveError> {
        self.verbs.reserve(connection, len)
    }

    fn send(&mut self, connection: ConnectionId, buf: SendBuf) -> Result<(), SendError> {
        self.verbs.send(connection, buf)
    }

    fn cancel(&mut self, buf: SendBuf) {
        self.verbs.cancel(buf);
    }

    fn flush(&mut self) {
        self.verbs.flush();
    }

    fn set_promised(&mut self, receives: u32) {
        self.verbs.set_promised(receives);
    }

    fn poll(&mut self) -> Option<Event<RecvBuf>> {
        self.verbs.poll()
    }

    fn release(&mut self, buf: RecvBuf) {
        self.verbs.release(buf);
    }

    fn longest_frame(&self, connection: ConnectionId) -> usize {
        self.verbs.longest_frame(connection)
    }

    fn long_messages(&self, connection: ConnectionId) -> LongMessages {
        self.verbs.long_messages(connection)
    }

    fn allocate(&mut self, len: usize) -> Result<Self::Memory, AllocateError> {
        self.verbs.allocate(len)
    }

    fn allocate_for(
        &mut self,
        connection: ConnectionId,
        len: usize,
    ) -> Result<Self::Memory, AllocateError> {
        self.verbs.allocate_for(connection, len)
    }

    fn footprint(&self, len: usize) -> u64 {
        self.verbs.footprint(len)
    }

    fn memory_by_owner(&self) -> MemoryByOwner {
        self.verbs.memory_by_owner()
    }

    fn peer_memory(&self) -> PeerMemory {
        self.state.peer_memory
    }

    fn kept_memory(&self) -> u64 {
        self.verbs.kept_memory()
    }

    fn expose(
        &mut self,
        connection: ConnectionId,
        message: &mut Chunks,
        is_accepted: bool,
    ) -> Result<Exposed, ExposeError> {
        self.verbs.expose(connection, message, is_accepted)
    }

    fn conceal(&mut self, exposed: ExposureKey) {
        self.verbs.conceal(exposed);
    }

    fn begin_fetch(
        &mut self,
        connection: ConnectionId,
        memory: Self::Memory,
    ) -> Result<FetchKey, Self::Memory> {
        self.verbs.begin_fetch(connection, memory)
    }

    fn fetch(&mut self, fetch: FetchKey, segment: RemoteSegment, at: usize) {
        self.verbs.fetch(fetch, segment, at);
    }

    fn finish_fetch(&mut self, fetch: FetchKey) -> Option<Self::Memory> {
        self.verbs.finish_fetch(fetch)
    }

    fn cancel_fetch(&mut self, fetch: FetchKey) {
        self.verbs.cancel_fetch(fetch);
    }

    fn peer_clock(&self, connection: ConnectionId) -> Option<PeerClock> {
        match (&self.clock, self.peer_clocks.get(&connection)) {
            (Some(clock), Some(measured)) => Some(measured.peer_clock(clock.now())),
            _ => self.verbs.peer_clock(connection),
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        self.verbs.close(connection);
    }

    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    fn arm(&mut self) {
        self.verbs.arm();
    }

    /// Returns at once: processes are stepped by hand, and sleep while their world does not step
    /// them.
    fn wait(&mut self, _: Option<Duration>) {}
}
