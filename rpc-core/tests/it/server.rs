//! The server's threads: they start, and they end whatever fails. Also a client of a peer that is
//! not a server.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, Thread, ThreadId};
use std::time::{Duration, Instant};

use rpc_core::codegen::v1::Instances;
use rpc_core::transport::{
    Admission, AllocateError, ConnectError, Connected, ConnectionId, CoreClaim, CoreRefusal,
    CounterReader, Counters, Dialer, Event, Fabric, FabricError, HeapMemory, Listener, PeerClock,
    ReserveError, SendError, SlotsByState, Transport,
};
use rpc_core::{
    Channel, ChannelError, Intents, Limits, LocalPoller, Methods, Pollers, Server, ServerError,
    Service, Shutdown, Waiting, block_on,
};

/// A device without a network, which can simulate a bug in the first transport that it opens.
#[derive(Clone, Default)]
struct StubFabric {
    opened: Arc<AtomicU32>,
    polls_until_panic: Option<u32>,
    /// The cores that the process may use, and to which it can pin threads.
    cores: Vec<usize>,
    /// Cores that another process has claimed.
    taken: Vec<usize>,
    refuses_to_pin: bool,
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
    fn dialer(&self, _: Arc<AtomicBool>) -> Arc<dyn Dialer<()>> {
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
    fn send_inline<R>(
        &mut self,
        _: ConnectionId,
        _: &mut [u8],
        _: impl FnOnce(&mut [u8]) -> Option<R>,
    ) -> Result<Option<R>, ReserveError> {
        Err(ReserveError::Closed)
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
        self.cores.clone()
    }
    fn claim_core(&self, core: usize) -> Result<CoreClaim, CoreRefusal> {
        let holder = "process 17".to_owned();
        match self.taken.contains(&core) {
            true => Err(CoreRefusal::Taken { holder }),
            false => Ok(Box::new(())),
        }
    }
    fn pin_current_thread(&self, core: usize) -> Result<(), io::Error> {
        match self.cores.contains(&core) && !self.refuses_to_pin {
            true => Ok(()),
            false => Err(io::Error::other(format!("there is no core {core}"))),
        }
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

/// Starts pollers by each of the builders that start threads, and returns their cores.
fn cores_by_builder(device: &StubFabric, intents: &Intents, pollers: usize) -> [Cores; 3] {
    let server = Server::builder(device)
        .intents(intents.clone())
        .pollers(pollers)
        .bind("127.0.0.1:0")
        .unwrap();
    let of_server = server.limits().cores.clone();
    drop(server);
    let shared = Pollers::builder(device)
        .intents(intents.clone())
        .pollers(pollers);
    let of_pollers = shared.start().unwrap().limits().cores.clone();
    until_claims_have_ended(device);
    let channel = Channel::builder(device, "127.0.0.1:0")
        .intents(intents.clone())
        .connect_lazy()
        .unwrap();
    let of_channel = until(|| Some(channel.limits()?.cores.clone()));
    drop(channel);
    until_claims_have_ended(device);
    [of_server, of_pollers, of_channel]
}

type Cores = Vec<Option<usize>>;

/// Waits until a poller would get any core. The threads of clients end later than what they serve.
fn until_claims_have_ended(device: &StubFabric) {
    let free = StubFabric {
        taken: Vec::new(),
        ..device.clone()
    };
    // A single core is never claimed.
    if free.cores.len() < 2 {
        return;
    }
    let is_free = |core: &usize| {
        let intents = Intents {
            waiting: Waiting::Busy,
            cores: Some(vec![*core]),
            ..Intents::default()
        };
        let server = Server::builder(&free).intents(intents);
        let server = server.bind("127.0.0.1:0").unwrap();
        server.limits().cores == [Some(*core)]
    };
    until(|| free.cores.iter().all(is_free).then_some(()));
}

/// Waits for what other threads do.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < patience, "another thread does not go on");
        thread::yield_now();
    }
}

/// How pollers wait, the cores that are named, those that the process may use, those that other processes
/// have; and the core of each poller.
type CoresRow = (
    Waiting,
    Option<&'static [usize]>,
    &'static [usize],
    &'static [usize],
    &'static [Option<usize>],
);

#[test]
fn pollers_are_pinned_as_they_wait_and_as_the_cores_are_free() {
    use Waiting::{Adaptive, Busy, Event};
    const FOUR: &[usize] = &[100, 101, 102, 103];
    let rows: [CoresRow; 11] = [
        // Unasked, only those that never sleep, to the highest that are free.
        (Busy, None, FOUR, &[], &[Some(103), Some(102)]),
        (Busy, None, FOUR, &[103], &[Some(102), Some(101)]),
        (Busy, None, FOUR, &[100, 101, 103], &[Some(102), None]),
        (Busy, None, FOUR, FOUR, &[None]),
        // One core is left to the other threads.
        (Busy, None, &[100, 101], &[], &[None, None]),
        (Busy, Some(&[]), FOUR, &[], &[None]),
        (Adaptive, None, FOUR, &[], &[None]),
        (Event, None, FOUR, &[], &[None, None]),
        // Named cores are used by all, and whoever has claimed them.
        (Event, Some(&[101]), FOUR, &[], &[Some(101), Some(101)]),
        (Busy, Some(&[101, 100]), FOUR, &[], &[Some(101), Some(100)]),
        (Adaptive, Some(&[103]), FOUR, &[103], &[Some(103)]),
    ];
    for (waiting, named, allowed, taken, wanted) in rows {
        let device = StubFabric {
            cores: allowed.to_vec(),
            taken: taken.to_vec(),
            ..StubFabric::default()
        };
        let intents = Intents {
            waiting,
            cores: named.map(<[usize]>::to_vec),
            ..Intents::default()
        };
        let row = format!("{waiting} {named:?} of {allowed:?} without {taken:?}");
        let [of_server, of_pollers, of_channel] = cores_by_builder(&device, &intents, wanted.len());
        assert_eq!(of_server, wanted, "server: {row}");
        assert_eq!(of_pollers, wanted, "pollers: {row}");
        // It has one poller, and more cores are free for it.
        if wanted.len() == 1 || taken.is_empty() && allowed.len() == 4 {
            assert_eq!(of_channel, wanted[..1], "channel: {row}");
        }
        // The thread of a local poller is the application's.
        let local = LocalPoller::builder(&device).intents(intents).build();
        let wanted = named.and_then(|named| named.first().copied());
        assert_eq!(local.unwrap().limits().cores, [wanted], "local: {row}");
    }
}

#[test]
fn the_busy_pollers_of_one_process_have_a_core_each_until_they_end() {
    let device = StubFabric {
        cores: vec![200, 201, 202, 203],
        ..StubFabric::default()
    };
    let start = || {
        let server = Server::builder(&device).waiting(Waiting::Busy);
        let server = server.bind("127.0.0.1:0").unwrap();
        (server.limits().cores[0], server)
    };
    let mut servers: Vec<_> = (0..4).map(|_| start()).collect();
    let cores: Vec<_> = servers.iter().map(|(core, _)| *core).collect();
    assert_eq!(cores, [Some(203), Some(202), Some(201), None]);
    let shown = servers[1].1.limits().to_string();
    assert!(shown.contains("\n  cores      core 202"), "{shown}");
    let shown = servers[3].1.limits().to_string();
    assert!(shown.contains("\n  cores      not pinned"), "{shown}");
    drop(servers.remove(1));
    assert_eq!(start().0, Some(202));
}

#[test]
fn a_core_that_cannot_be_had_is_an_error_only_if_it_was_named() {
    let device = StubFabric {
        cores: vec![300, 301],
        refuses_to_pin: true,
        ..StubFabric::default()
    };
    let busy = Intents {
        waiting: Waiting::Busy,
        ..Intents::default()
    };
    assert_eq!(
        cores_without_probe(&device, &busy),
        [vec![None], vec![None]]
    );
    let is_named = |error: &FabricError| matches!(error, FabricError::Pin { core: 77, .. });
    let server = Server::builder(&device).cores([77]).bind("127.0.0.1:0");
    assert!(matches!(server, Err(ServerError::Fabric(error)) if is_named(&error)));
    let pollers = Pollers::builder(&device).cores([77]).start();
    assert!(matches!(pollers, Err(ChannelError::Fabric(error)) if is_named(&error)));
    let channel = Channel::builder(&device, "127.0.0.1:0").cores([77]);
    let channel = block_on(channel.connect());
    assert!(matches!(channel, Err(ChannelError::Fabric(error)) if is_named(&error)));
    let local = LocalPoller::builder(&device).cores([77]).build();
    assert!(matches!(local, Err(error) if is_named(&error)));
}

fn cores_without_probe(device: &StubFabric, intents: &Intents) -> [Cores; 2] {
    let server = Server::builder(device).intents(intents.clone());
    let pollers = Pollers::builder(device).intents(intents.clone());
    let of_server = server.bind("127.0.0.1:0").unwrap().limits().cores.clone();
    [of_server, pollers.start().unwrap().limits().cores.clone()]
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
        .shutdown(Shutdown {
            lame_duck: Duration::MAX,
            ..Shutdown::default()
        })
        .bind("127.0.0.1:0")
        .unwrap();
    // The other two pollers would serve forever, and nobody waits for balancers.
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
