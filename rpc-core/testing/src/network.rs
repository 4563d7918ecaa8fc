//! [`Network`] and [`Pair`]: nodes that communicate over a loopback.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rpc_core::for_testing::{Clock, Random};
use rpc_core::transport::Transport;
use rpc_core::{
    FRAME_OVERHEAD, Intents, Limits, LocalChannel, MethodSpec, Methods, SLOT_MESSAGE_LEN,
};

use crate::faults::Faults;
use crate::loopback::{Loopback, SlotCounts, Wires};
use crate::node::{LoopbackNode, Node};
use crate::raw_peer::RawPeer;
use crate::shared::SharedNode;

/// Rounds without events after which a network counts as quiet: more than a run of late polls is
/// long, at the rates of [`Faults`].
const QUIET_ROUNDS: u32 = 64;

/// Rounds after which a network that is not quiet must have a bug.
const MAX_ROUNDS: u32 = 1_000_000;

/// Nodes on one thread that connect to each other by name.
pub struct Network {
    wires: Rc<RefCell<Wires>>,
    clock: Clock,
    faults: Faults,
    random: Random,
    slot_message_len: Cell<usize>,
    address: Cell<Option<SocketAddr>>,
    nodes: Vec<Rc<Node>>,
    shared: Vec<Rc<SharedNode<Loopback>>>,
    raw: RefCell<Vec<Rc<RawPeer>>>,
}

impl Network {
    /// Creates a network without nodes. Its faults are generated from `seed`.
    #[must_use]
    pub fn new(faults: Faults, seed: u64) -> Self {
        Self {
            wires: Rc::default(),
            clock: Clock::manual(),
            faults,
            random: Random::new(seed),
            slot_message_len: Cell::new(SLOT_MESSAGE_LEN),
            address: Cell::new(None),
            nodes: Vec::new(),
            shared: Vec::new(),
            raw: RefCell::default(),
        }
    }

    /// Lets long messages be read by their receivers, instead of being sent in fragments.
    pub fn use_reads(&self) {
        self.wires.borrow_mut().use_reads();
    }

    /// Lets transports that have no room for another fetch refuse it, or have room again.
    pub fn refuse_fetches(&self, refuses: bool) {
        self.wires.borrow_mut().refuse_fetches(refuses);
    }

    /// Lets devices give no memory windows, of which one `may_come` later, or give them again with
    /// `None`.
    pub fn refuse_windows(&self, may_come: Option<bool>) {
        self.wires.borrow_mut().refuse_windows(may_come);
    }

    /// Lets this many more READs, and ends of fetches, take place, as if the peers' processes were
    /// then stopped.
    pub fn hold_reads_after(&self, count: usize) {
        self.wires.borrow_mut().hold_reads_after(count);
    }

    /// Gives the slots of the nodes that are added from now on room for messages of this length.
    pub fn use_slots(&self, message_len: usize) {
        self.slot_message_len.set(message_len);
    }

    /// Lets the nodes and raw clients that are added from now on connect from this address.
    pub fn use_address(&self, address: SocketAddr) {
        self.address.set(Some(address));
    }

    /// Returns the limits that a device without limits of its own would derive.
    fn limits_of(&self, intents: &Intents) -> Limits {
        let slot_message_len = intents.max_message_len.min(self.slot_message_len.get());
        Limits {
            slot_len: slot_message_len + FRAME_OVERHEAD,
            ..limits_of(intents)
        }
    }

    /// Adds a node with the address `name` that serves the methods that `register` adds.
    pub fn add(
        &mut self,
        name: &str,
        intents: &Intents,
        register: impl FnOnce(&mut Methods),
    ) -> Rc<Node> {
        self.add_sized(name, self.limits_of(intents), register)
    }

    /// Like [`add`](Self::add), with explicit limits instead of intents.
    pub fn add_sized(
        &mut self,
        name: &str,
        limits: Limits,
        register: impl FnOnce(&mut Methods),
    ) -> Rc<Node> {
        let mut transport = Loopback::new(&self.wires, limits, self.faults, self.random.clone());
        transport.set_address(self.address.get());
        let endpoint = transport.index();
        let node = Rc::new(Node::over(transport, &self.clock, register));
        let admission = Arc::clone(node.admission());
        self.wires.borrow_mut().listen(name, endpoint, admission);
        self.nodes.push(Rc::clone(&node));
        node
    }

    /// Adds a shared channel to the node with the address `server`.
    pub fn share(&mut self, server: &str, intents: &Intents) -> Rc<SharedNode<Loopback>> {
        let (limits, random) = (self.limits_of(intents), self.random.clone());
        let seed = random.next_u64();
        let mut transport = Loopback::new(&self.wires, limits, self.faults, random);
        transport.set_address(self.address.get());
        let node = Rc::new(SharedNode::over(transport, &self.clock, server, seed));
        self.shared.push(Rc::clone(&node));
        node
    }

    /// Adds a client of the node with the address `server` that has no driver.
    ///
    /// # Panics
    ///
    /// Panics if the server rejects it.
    pub fn raw_client(&self, server: &str) -> Rc<RawPeer> {
        let limits = self.limits_of(&Intents::default());
        self.add_raw(RawPeer::client(
            &self.wires,
            limits,
            self.address.get(),
            server,
        ))
    }

    /// Adds a server with the address `name` that has no driver. `methods` have their indices as
    /// numbers.
    pub fn raw_server(&self, name: &str, methods: &[&'static MethodSpec]) -> Rc<RawPeer> {
        let limits = self.limits_of(&Intents::default());
        self.add_raw(RawPeer::server(&self.wires, limits, name, methods))
    }

    fn add_raw(&self, raw: RawPeer) -> Rc<RawPeer> {
        let raw = Rc::new(raw);
        self.raw.borrow_mut().push(Rc::clone(&raw));
        raw
    }

    /// Returns the clock of all nodes.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Advances the clock, and lets every node expire deadlines and detect idle connections.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
        for node in &self.nodes {
            node.check_timers();
        }
        for node in &self.shared {
            node.check_timers();
        }
    }

    /// Takes one turn of each node. Returns true if any event arrived at any of them.
    pub fn step(&self) -> bool {
        let mut found_any = false;
        for node in &self.nodes {
            found_any |= node.step();
        }
        for node in &self.shared {
            found_any |= node.step();
        }
        for raw in &*self.raw.borrow() {
            found_any |= raw.step();
        }
        found_any
    }

    /// Steps all nodes until nothing is in flight any more.
    ///
    /// # Panics
    ///
    /// Panics if the network does not become quiet.
    pub fn settle(&self) {
        let mut quiet = 0;
        for _ in 0..MAX_ROUNDS {
            let moved = self.step() || !self.wires.borrow().is_quiet();
            quiet = if moved { 0 } else { quiet + 1 };
            if quiet == QUIET_ROUNDS {
                return;
            }
        }
        panic!("the network was still active after {MAX_ROUNDS} rounds");
    }

    /// Runs a future to completion while stepping all nodes. Returns `None` if the future is still
    /// pending when the network is quiet.
    pub fn try_run<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        let mut quiet = 0;
        while quiet < QUIET_ROUNDS {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return Some(output);
            }
            quiet = if self.step() { 0 } else { quiet + 1 };
        }
        None
    }

    /// Asserts that every slot of every node is free again, that nothing is in flight, and that
    /// every frame found a receive.
    ///
    /// # Panics
    ///
    /// Panics otherwise, naming the node and its slots.
    pub fn assert_nothing_left(&self) {
        self.settle();
        let at_rest = |limits: Limits| SlotCounts {
            posted: limits.promisable_receives(),
            held: 0,
            sending: 0,
            rnr: 0,
            exposed: 0,
            fetching: 0,
            message_bytes: 0,
        };
        for (index, node) in self.nodes.iter().enumerate() {
            assert_eq!(node.slot_counts(), at_rest(node.limits()), "node {index}");
            assert_eq!(node.leftovers(), Vec::<String>::new(), "node {index}");
            let stats = node.poller().stats().total();
            let in_flight: u64 = stats.served.iter().map(|method| method.in_flight).sum();
            assert_eq!(in_flight, 0, "calls counted at node {index}");
        }
        for (index, node) in self.shared.iter().enumerate() {
            let (slot_counts, limits) =
                node.with_transport(|loopback| (loopback.slot_counts(), loopback.limits().clone()));
            assert_eq!(slot_counts, at_rest(limits), "shared channel {index}");
            assert_eq!(
                node.leftovers(),
                Vec::<String>::new(),
                "shared channel {index}"
            );
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A handler may own a channel of its own node, and a channel keeps its node alive.
        for node in &self.nodes {
            node.discard_services();
        }
    }
}

/// Returns the limits that a device without limits of its own would derive, but for the slots.
fn limits_of(intents: &Intents) -> Limits {
    Limits {
        device: "loopback".to_owned(),
        max_message_len: intents.max_message_len,
        max_send_message_len: intents.max_send_message_len,
        message_memory: intents.message_memory,
        connection_memory: (intents.message_memory / 4).max(intents.max_message_len as u64),
        waits_for_memory: intents.waits_for_memory,
        // Short, so that the messages of tests have several pieces.
        piece_len: 4096,
        long_messages: "as the network of the test says".to_owned(),
        // Short enough that the messages of tests are sent both ways.
        max_inline_len: 64,
        receives_posted: 320,
        receives_reserved: 64,
        receives_held: 64,
        send_slots: 128,
        send_queue_depth: intents.max_in_flight.max(1),
        signal_interval: 1,
        completion_queue_depth: u32::MAX,
        max_connections: intents.connections,
        max_in_flight: intents.max_in_flight,
        max_streams: intents.max_streams,
        latency_sampling: intents.latency_sampling,
        ..Limits::default()
    }
}

/// A client and a server.
pub struct Pair {
    network: Network,
    client: Rc<Node>,
    server: Rc<Node>,
}

impl Pair {
    /// Creates a pair without faults. The server serves the methods that `register` adds.
    #[must_use]
    pub fn new(register: impl FnOnce(&mut Methods)) -> Self {
        Self::with(&Intents::default(), Faults::none(), 0, register)
    }

    /// Creates a pair with intents for both sides, and with faults generated from a seed.
    #[must_use]
    pub fn with(
        intents: &Intents,
        faults: Faults,
        seed: u64,
        register: impl FnOnce(&mut Methods),
    ) -> Self {
        let mut network = Network::new(faults, seed);
        let server = network.add("server", intents, register);
        let client = network.add("client", intents, |_| ());
        Self {
            network,
            client,
            server,
        }
    }

    /// Connects the client to the server.
    ///
    /// # Panics
    ///
    /// Panics if the server rejects the connection.
    #[must_use]
    pub fn connect(&self) -> LocalChannel {
        self.client
            .poller()
            .connect("server")
            .expect("the server admits the client")
    }

    /// Runs a future of the client to completion.
    ///
    /// # Panics
    ///
    /// Panics if the future is still pending when the network is quiet.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.network
            .try_run(future)
            .expect("the future is still pending although the network is quiet")
    }

    /// Returns the network, to step it and to advance its clock.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Returns the client's node.
    #[must_use]
    pub fn client(&self) -> &Node {
        &self.client
    }

    /// Returns the server's node.
    #[must_use]
    pub fn server(&self) -> &Node {
        &self.server
    }

    /// Calls [`Network::assert_nothing_left`].
    ///
    /// # Panics
    ///
    /// Panics if anything is left.
    pub fn assert_nothing_left(&self) {
        self.network.assert_nothing_left();
    }
}
