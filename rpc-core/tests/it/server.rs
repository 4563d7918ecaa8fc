//! The server's threads: they start, and they end whatever fails. Also a client of a peer that is
//! not a server.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, Thread, ThreadId};
use std::time::Duration;

use rpc_core::codegen::v1::Instances;
use rpc_core::transport::{
    Admission, AllocateError, ConnectError, Connected, ConnectionId, CounterReader, Counters,
    Dialer, Event, Fabric, FabricError, HeapMemory, Listener, PeerClock, ReserveError, SendError,
    SlotsByState, Transport,
};
use rpc_core::{Intents, Limits, LocalPoller, Methods, Server, ServerError, Service};

/// A device without a network, which can simulate a bug in the first transport that it opens.
#[derive(Clone, Default)]
struct StubFabric {
    opened: Arc<AtomicU32>,
    polls_until_panic: Option<u32>,
}

struct StubTransport {
    limits: Limits,
    polls_until_panic: Option<u32>,
}

impl Transport for StubTransport {
    type SendBuf = Vec<u8>;
    type RecvBuf = Vec<u8>;
    type Dialed = ();
    type Memory = HeapMemory;

    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn counter_reader(&self) -> Arc<dyn CounterReader> {
        Arc::new(StubCounters)
    }
    fn slots_by_state(&self) -> SlotsByState {
        SlotsByState::default()
    }
    fn dialer(&self) -> Arc<dyn Dialer<()>> {
        Arc::new(StubDialer)
    }
    fn adopt(&mut self, (): ()) -> Result<Connected, ConnectError> {
        Ok(Connected {
            connection: ConnectionId {
                index: 0,
                generation: 0,
            },
            session: vec![0xff; 3],
            remote: SocketAddr::from(([127, 0, 0, 1], 1)),
        })
    }
    fn check_inline(&mut self, _: ConnectionId, _: usize) -> Result<(), ReserveError> {
        Err(ReserveError::Closed)
    }
    fn send_inline(&mut self, _: ConnectionId, _: &[u8]) -> Result<(), SendError> {
        Err(SendError)
    }
    fn reserve(&mut self, _: ConnectionId, _: usize) -> Result<Vec<u8>, ReserveError> {
        Err(ReserveError::Closed)
    }
    fn send(&mut self, _: ConnectionId, _: Vec<u8>) -> Result<(), SendError> {
        Err(SendError)
    }
    fn cancel(&mut self, _: Vec<u8>) {}
    fn flush(&mut self) {}
    fn set_promised(&mut self, _: u32) {}
    fn poll(&mut self) -> Option<Event<Vec<u8>>> {
        if let Some(left) = &mut self.polls_until_panic {
            *left = left.checked_sub(1).expect("this device has a bug");
        }
        None
    }
    fn release(&mut self, _: Vec<u8>) {}
    fn allocate(&mut self, len: usize) -> Result<HeapMemory, AllocateError> {
        Ok(HeapMemory::new(len))
    }

    fn peer_clock(&self, _: ConnectionId) -> Option<PeerClock> {
        None
    }
    fn close(&mut self, _: ConnectionId) {}
    fn waker(&self) -> Waker {
        Arc::new(Unpark(thread::current())).into()
    }
    fn arm(&mut self) {}
    fn wait(&mut self, timeout: Option<Duration>) {
        thread::park_timeout(timeout.unwrap_or(Duration::MAX));
    }
}

struct StubCounters;

impl CounterReader for StubCounters {
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

struct StubDialer;

impl Dialer<()> for StubDialer {
    fn dial(&self, _: &str, _: &[u8], _: Duration) -> Result<(), ConnectError> {
        Ok(())
    }
}

/// A waker that unparks a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

struct Address(SocketAddr);

impl Listener for Address {
    fn local_addr(&self) -> SocketAddr {
        self.0
    }
}

impl Fabric for StubFabric {
    type Transport = StubTransport;
    type Port = ();

    fn open(&self, _: &Intents) -> Result<StubTransport, FabricError> {
        let limits = Limits {
            receives_posted: 64,
            max_connections: 4,
            max_in_flight: 4,
            ..Limits::default()
        };
        let first = self.opened.fetch_add(1, Ordering::Relaxed) == 0;
        let polls_until_panic = self.polls_until_panic.filter(|_| first);
        Ok(StubTransport {
            limits,
            polls_until_panic,
        })
    }
    fn port(&self, _: &StubTransport) {}
    fn bind(&self, address: &str) -> Result<TcpListener, FabricError> {
        TcpListener::bind(address).map_err(|source| FabricError::Listen {
            address: address.to_owned(),
            source,
        })
    }
    fn listen(
        &self,
        socket: TcpListener,
        _: Vec<()>,
        _: Arc<dyn Admission>,
    ) -> Result<Box<dyn Listener>, FabricError> {
        Ok(Box::new(Address(socket.local_addr().unwrap())))
    }
    fn allowed_cores(&self) -> Vec<usize> {
        Vec::new()
    }
    fn pin_current_thread(&self, core: usize) -> Result<(), io::Error> {
        Err(io::Error::other(format!("there is no core {core}")))
    }
}

/// A service without methods, which can panic when it is registered on its `n`th poller.
struct Registered {
    count: AtomicU32,
    panic_at: Option<u32>,
}

impl Service for Registered {
    fn name(&self) -> &'static str {
        "test.Registered"
    }
    fn register(&self, _: &mut Methods) {
        let nth = self.count.fetch_add(1, Ordering::Relaxed);
        assert_ne!(Some(nth), self.panic_at, "this service has a bug");
    }
}

fn service(panic_at: Option<u32>) -> Registered {
    Registered {
        count: AtomicU32::new(0),
        panic_at,
    }
}

#[test]
fn a_server_that_is_dropped_before_it_runs_ends_its_threads() {
    let server = Server::builder(&StubFabric::default())
        .pollers(3)
        .bind("127.0.0.1:0")
        .unwrap();
    drop(server);
}

#[test]
fn an_address_that_is_taken_is_an_error_and_not_a_hang() {
    let outcome = Server::builder(&StubFabric::default())
        .pollers(2)
        .bind("taken");
    assert!(matches!(
        outcome,
        Err(ServerError::Fabric(FabricError::Listen { .. }))
    ));
}

#[test]
fn a_core_that_is_not_there_is_named() {
    let outcome = Server::builder(&StubFabric::default())
        .cores([77])
        .bind("127.0.0.1:0");
    assert!(matches!(outcome, Err(ServerError::Pin { core: 77, .. })));
}

#[test]
fn a_service_that_panics_while_it_registers_is_an_error_and_not_a_hang() {
    let outcome = Server::builder(&StubFabric::default())
        .add_service(service(Some(1)))
        .pollers(3)
        .bind("127.0.0.1:0");
    let Err(ServerError::PollerPanicked { message, .. }) = outcome else {
        panic!("the second poller panicked");
    };
    assert!(message.contains("this service has a bug"), "{message}");
}

#[test]
fn a_service_is_added_once() {
    let outcome = Server::builder(&StubFabric::default())
        .add_service(service(None))
        .add_service(service(None))
        .bind("127.0.0.1:0");
    assert!(matches!(
        outcome,
        Err(ServerError::DuplicateService {
            name: "test.Registered"
        })
    ));
}

#[test]
fn a_server_runs_until_it_is_told_to_stop() {
    let server = Server::builder(&StubFabric::default())
        .pollers(2)
        .bind("127.0.0.1:0")
        .unwrap();
    assert_ne!(server.local_addr().port(), 0);
    let handle = server.spawn();
    handle.shutdown().unwrap();
}

#[test]
fn when_one_poller_panics_the_server_ends_and_says_so() {
    let device = StubFabric {
        polls_until_panic: Some(1000),
        ..StubFabric::default()
    };
    let server = Server::builder(&device)
        .pollers(3)
        .bind("127.0.0.1:0")
        .unwrap();
    // The other two pollers would serve forever.
    let error = server.run().unwrap_err();
    assert!(
        error.to_string().contains("this device has a bug"),
        "{error}"
    );
}

#[test]
fn a_server_whose_session_is_garbage_is_refused_however_often_it_is_tried() {
    let poller = LocalPoller::new(&StubFabric::default()).unwrap();
    // More attempts than there are receives to promise.
    for _ in 0..100 {
        let error = poller.connect("garbage").unwrap_err();
        assert!(matches!(error, ConnectError::NotVerbline { .. }), "{error}");
    }
}

#[test]
fn each_poller_has_its_own_instance_made_on_its_thread() {
    let instances = Instances::per_poller(|| thread::current().id());
    let of = |instances: &Instances<ThreadId>| *instances.instance();
    assert_eq!(of(&instances), thread::current().id());
    let other = instances.clone();
    let (made, thread) = thread::spawn(move || (of(&other), thread::current().id()))
        .join()
        .unwrap();
    assert_eq!(made, thread);
    let shared = Instances::shared(Arc::new(7));
    assert_eq!(*shared.instance(), 7);
}
