//! [`Network`], [`Node`] and [`Pair`]: pollers that are stepped by hand.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::faults::{Faults, Random};
use super::loopback::{Loopback, Places, Wires};
use crate::client::LocalChannel;
use crate::clock::Clock;
use crate::dispatch::Methods;
use crate::driver::Driver;
use crate::limits::{FRAME_OVERHEAD, Intents, Limits};
use crate::poller::LocalPoller;
use crate::server::ServerAdmission;
use crate::shutdown::{Shutdown, ShuttingDown};
use crate::transport::ConnectionId;

/// Rounds in which nothing happens before a network counts as quiet: more than a run of late polls
/// is long, at the rates that [`Faults`] has.
const QUIET_ROUNDS: u32 = 64;

/// Rounds after which a network that does not come to rest has a bug.
const MAX_ROUNDS: u32 = 1_000_000;

/// Nodes that reach each other by name, on one thread.
pub struct Network {
    wires: Rc<RefCell<Wires>>,
    clock: Clock,
    faults: Faults,
    random: Random,
    nodes: Vec<Rc<Node>>,
}

/// A poller in a [`Network`]: a server at its own name, and a client of the others.
pub struct Node {
    driver: Rc<Driver<Loopback>>,
    poller: LocalPoller,
    wires: Rc<RefCell<Wires>>,
    endpoint: usize,
    shutting_down: RefCell<Option<ShuttingDown>>,
    is_shutting_down: Cell<bool>,
}

impl Network {
    /// A network without nodes, whose faults come from `seed`.
    #[must_use]
    pub fn new(faults: Faults, seed: u64) -> Self {
        Self {
            wires: Rc::default(),
            clock: Clock::manual(),
            faults,
            random: Random::new(seed),
            nodes: Vec::new(),
        }
    }

    /// Adds a node that serves what `register` adds, at the address `name`.
    pub fn add(
        &mut self,
        name: &str,
        intents: &Intents,
        register: impl FnOnce(&mut Methods),
    ) -> Rc<Node> {
        self.add_sized(name, limits_of(intents), register)
    }

    /// The same with limits that do not follow from intents.
    pub fn add_sized(
        &mut self,
        name: &str,
        limits: Limits,
        register: impl FnOnce(&mut Methods),
    ) -> Rc<Node> {
        let mut methods = Methods::new();
        register(&mut methods);
        let numbered = methods.numbered().collect();
        let admission = Arc::new(ServerAdmission::new(&limits, numbered, 1));
        let transport = Loopback::new(&self.wires, limits, self.faults, self.random.clone());
        let endpoint = transport.index();
        self.wires.borrow_mut().listen(name, endpoint, admission);
        let driver = Rc::new(Driver::new(transport, methods, self.clock.clone()));
        let poller = LocalPoller::stepped(Rc::clone(&driver) as Rc<_>);
        let node = Rc::new(Node {
            driver,
            poller,
            wires: Rc::clone(&self.wires),
            endpoint,
            shutting_down: RefCell::default(),
            is_shutting_down: Cell::new(false),
        });
        self.nodes.push(Rc::clone(&node));
        node
    }

    /// The clock of all nodes.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Moves the clock, and lets every node see what is due, and which connections are idle.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
        for node in &self.nodes {
            node.step_with(|driver| {
                driver.as_part_of_a_turn(|| driver.expire_deadlines());
                driver.wake_collected();
                driver.on_idle(driver.clock.now());
                false
            });
        }
    }

    /// One turn of each node; whether any found anything.
    pub fn step(&self) -> bool {
        let mut found_any = false;
        for node in &self.nodes {
            found_any |= node.step();
        }
        found_any
    }

    /// Steps until nothing is on its way any more.
    ///
    /// # Panics
    ///
    /// If that takes for ever.
    pub fn settle(&self) {
        let mut quiet = 0;
        for _ in 0..MAX_ROUNDS {
            let moved = self.step() || !self.wires.borrow().is_quiet();
            quiet = if moved { 0 } else { quiet + 1 };
            if quiet == QUIET_ROUNDS {
                return;
            }
        }
        panic!("the network did not come to rest in {MAX_ROUNDS} rounds");
    }

    /// Runs a future to its end, stepping all nodes; `None` if it waits for something that does
    /// not come although all is quiet.
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

    /// Checks that every slot of every node is where it was at the start, that nothing is under
    /// way, and that no frame ever found no receive.
    ///
    /// # Panics
    ///
    /// If not, with the node and its places.
    pub fn assert_nothing_left(&self) {
        self.settle();
        for (index, node) in self.nodes.iter().enumerate() {
            let posted = node.limits().promisable_receives();
            let expected = Places {
                posted,
                held: 0,
                sending: 0,
                rnr: 0,
            };
            assert_eq!(node.places(), expected, "node {index}");
            assert_eq!(
                node.driver.leftovers(),
                Vec::<String>::new(),
                "node {index}"
            );
        }
    }
}

impl Node {
    /// Its poller, for `connect`.
    #[must_use]
    pub fn poller(&self) -> &LocalPoller {
        &self.poller
    }

    /// What it was sized to.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.poller.limits()
    }

    /// Where its slots are.
    #[must_use]
    pub fn places(&self) -> Places {
        self.wires.borrow().places(self.endpoint)
    }

    /// One turn; whether it found anything.
    pub fn step(&self) -> bool {
        self.step_with(|driver| {
            let found_any = driver.turn();
            if self.is_shutting_down.get()
                && let Some(shutting_down) = &mut *self.shutting_down.borrow_mut()
            {
                let is_over = shutting_down.after_turn(driver, found_any);
                self.is_shutting_down.set(!is_over);
            }
            found_any
        })
    }

    /// Begins to shut its server down, as a server's handle does; its steps carry that on.
    pub fn shut_down(&self, shutdown: Shutdown) {
        let shutting_down = ShuttingDown::begin(&self.driver, shutdown);
        *self.shutting_down.borrow_mut() = Some(shutting_down);
        self.is_shutting_down.set(true);
    }

    /// Whether that is over.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.shutting_down.borrow().is_some() && !self.is_shutting_down.get()
    }

    /// Receives that it has promised to its peers.
    #[must_use]
    pub fn promised_receives(&self) -> u32 {
        self.driver.state.borrow().budget.promised()
    }

    /// Its connections that are up, oldest first.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.wires.borrow().connections(self.endpoint)
    }

    /// Lets a frame arrive that no honest peer has sent.
    pub fn inject(&self, connection: ConnectionId, frame: Vec<u8>) {
        self.wires
            .borrow_mut()
            .inject(self.endpoint, connection, frame);
    }

    fn step_with(&self, act: impl FnOnce(&Driver<Loopback>) -> bool) -> bool {
        LocalPoller::set_current(Some(self.poller.clone()));
        let found_any = act(&self.driver);
        LocalPoller::set_current(None);
        found_any
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A handler may hold a channel of its own node, and so the node itself.
        for node in &self.nodes {
            node.driver.discard_all_tasks();
        }
    }
}

/// Limits as a device without limits of its own would derive them.
fn limits_of(intents: &Intents) -> Limits {
    Limits {
        device: "loopback".to_owned(),
        slot_len: intents.max_message_len + FRAME_OVERHEAD,
        max_inline_len: 0,
        receives_posted: 256,
        receives_reserved: 64,
        receives_held: 64,
        send_slots: 128,
        send_queue_depth: intents.max_in_flight.max(1),
        signal_interval: 1,
        completion_queue_depth: u32::MAX,
        max_connections: intents.connections,
        max_in_flight: intents.max_in_flight,
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
    /// A pair without faults, whose server serves what `register` adds.
    #[must_use]
    pub fn new(register: impl FnOnce(&mut Methods)) -> Self {
        Self::with(&Intents::default(), Faults::none(), 0, register)
    }

    /// A pair with intents for both sides, and with faults from a seed.
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

    /// A new connection of the client to the server.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    #[must_use]
    pub fn connect(&self) -> LocalChannel {
        self.client
            .poller()
            .connect("server")
            .expect("the server admits the client")
    }

    /// Runs a future of the client to its end.
    ///
    /// # Panics
    ///
    /// If it waits for something that does not come.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.network
            .try_run(future)
            .expect("the future waits, and all is quiet")
    }

    /// The network, to step it and to move its clock.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The client's node.
    #[must_use]
    pub fn client(&self) -> &Node {
        &self.client
    }

    /// The server's node.
    #[must_use]
    pub fn server(&self) -> &Node {
        &self.server
    }

    /// See [`Network::assert_nothing_left`].
    ///
    /// # Panics
    ///
    /// If something is.
    pub fn assert_nothing_left(&self) {
        self.network.assert_nothing_left();
    }
}
