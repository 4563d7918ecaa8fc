//! [`Network`] and [`Pair`]: nodes that reach each other over a loopback.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::faults::{Faults, Random};
use super::loopback::{Loopback, Places, Wires};
use super::node::Node;
use super::shared::SharedNode;
use crate::client::LocalChannel;
use crate::clock::Clock;
use crate::limits::{FRAME_OVERHEAD, Intents, Limits};
use crate::service::dispatch::Methods;
use crate::transport::Transport;

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
    shared: Vec<Rc<SharedNode<Loopback>>>,
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
            shared: Vec::new(),
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
        let transport = Loopback::new(&self.wires, limits, self.faults, self.random.clone());
        let endpoint = transport.index();
        let node = Rc::new(Node::over(transport, &self.clock, register));
        let admission = Arc::clone(node.admission());
        self.wires.borrow_mut().listen(name, endpoint, admission);
        self.nodes.push(Rc::clone(&node));
        node
    }

    /// Adds a shared channel to the node at the address `server`.
    pub fn share(&mut self, server: &str, intents: &Intents) -> Rc<SharedNode<Loopback>> {
        let (limits, random) = (limits_of(intents), self.random.clone());
        let seed = random.next_u64();
        let transport = Loopback::new(&self.wires, limits, self.faults, random);
        let node = Rc::new(SharedNode::over(transport, &self.clock, server, seed));
        self.shared.push(Rc::clone(&node));
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
            node.look_at_the_clock();
        }
        for node in &self.shared {
            node.look_at_the_clock();
        }
    }

    /// One turn of each node; whether any found anything.
    pub fn step(&self) -> bool {
        let mut found_any = false;
        for node in &self.nodes {
            found_any |= node.step();
        }
        for node in &self.shared {
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
        let at_rest = |limits: Limits| Places {
            posted: limits.promisable_receives(),
            held: 0,
            sending: 0,
            rnr: 0,
        };
        for (index, node) in self.nodes.iter().enumerate() {
            assert_eq!(node.places(), at_rest(node.limits()), "node {index}");
            assert_eq!(node.leftovers(), Vec::<String>::new(), "node {index}");
        }
        for (index, node) in self.shared.iter().enumerate() {
            let (places, limits) =
                node.with_transport(|loopback| (loopback.places(), loopback.limits().clone()));
            assert_eq!(places, at_rest(limits), "shared channel {index}");
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
        // A handler may hold a channel of its own node, and so the node itself.
        for node in &self.nodes {
            node.discard_services();
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
