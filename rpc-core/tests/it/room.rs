//! Connections that are not in use end for new clients when a server has no other left.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::support::{ECHO, Gate, HELD, call, register};
use rpc_core::transport::{CloseReason, ConnectionId, Host, RoomMade, RoomWanted};
use rpc_core::{Caller, Cause, Execution, Intents, LocalChannel, Request};
use rpc_core_testing::{Faults, LoopbackNode, Network, Node};

const SECOND: Duration = Duration::from_secs(1);

fn address(host: u8) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(192, 0, 2, host), 4000))
}

/// A server, and clients of several hosts.
struct World {
    network: Network,
    server: Rc<Node>,
    gate: Gate,
    clients: Vec<Client>,
    /// Requests for connections without a break.
    looks: Cell<u32>,
}

struct Client {
    host: u8,
    id: ConnectionId,
    channel: LocalChannel,
    node: Rc<Node>,
}

impl World {
    fn new() -> Self {
        let gate = Gate::default();
        let mut network = Network::new(Faults::none(), 0);
        let server = network.add("server", &Intents::default(), |methods| {
            register(methods, &gate);
        });
        Self {
            network,
            server,
            gate,
            clients: Vec::new(),
            looks: Cell::new(0),
        }
    }

    /// Connects a client of a host. Returns its index.
    fn connect(&mut self, host: u8) -> usize {
        self.network.use_address(address(host));
        let node = self.network.add("client", &Intents::default(), |_| ());
        let channel = node.poller().connect("server").unwrap();
        self.network.settle();
        let id = *self.server.connections().last().unwrap();
        self.clients.push(Client {
            host,
            id,
            channel,
            node,
        });
        self.clients.len() - 1
    }

    fn call(&self, client: usize) {
        let call = call(&self.clients[client].channel, &ECHO, "x");
        self.network.try_run(call).unwrap().unwrap();
    }

    /// Connects a client that makes one call, a little later than what was before.
    fn connect_and_call(&mut self, host: u8) -> usize {
        let client = self.connect(host);
        self.call(client);
        self.pass(Duration::from_millis(1));
        client
    }

    fn pass(&self, time: Duration) {
        self.network.advance(time);
        self.network.settle();
    }

    /// Lets connections become idle.
    fn rest(&self) {
        for _ in 0..5 {
            self.pass(SECOND);
        }
    }

    fn is_open(&self, client: usize) -> bool {
        self.server.connections().contains(&self.clients[client].id)
    }

    /// Asks for connections for clients of these hosts. The answer is there after a turn.
    fn wanted(&self, hosts: &[u8]) -> (RoomWanted, Receiver<RoomMade>) {
        let host = |host| Host::from(address(host));
        let mut places = HashMap::new();
        for client in (0..self.clients.len()).filter(|client| self.is_open(*client)) {
            *places.entry(host(self.clients[client].host)).or_default() += 1;
        }
        let clients = hosts.iter().map(|it| host(*it)).collect();
        let (sender, answer) = channel();
        let looks = self.looks.get().min(4);
        let wanted = RoomWanted::new(clients, places, looks, move |made| {
            sender.send(made).unwrap();
        });
        (wanted, answer)
    }

    /// Asks for connections for clients of these hosts. Returns the answer.
    fn ask(&self, hosts: &[u8]) -> RoomMade {
        let (wanted, answer) = self.wanted(hosts);
        self.server.ask_for_room(wanted);
        self.network.settle();
        self.looks.set(self.looks.get() + 1);
        answer.try_recv().unwrap()
    }

    /// Asks for connections, and asserts how many there are, and that none may follow.
    #[track_caller]
    fn assert_ends(&self, count: usize, hosts: &[u8]) {
        let made = self.ask(hosts);
        let expected = RoomMade {
            ended: count,
            may_follow: false,
        };
        assert_eq!(made, expected);
    }
}

#[test]
fn connections_without_a_call_end_for_anybody_the_oldest_of_the_host_with_most_first() {
    let mut world = World::new();
    let called = world.connect_and_call(1);
    let hosts = [2, 1, 1, 3];
    let silent = hosts.map(|host| {
        world.pass(Duration::from_millis(1));
        world.connect(host)
    });
    let made = world.ask(&[1]);
    assert_eq!((made.ended, made.may_follow), (0, true), "they may call");
    world.pass(Duration::from_millis(100));
    // Then each host has one: the oldest.
    for next in [silent[1], silent[0], silent[2], silent[3]] {
        world.assert_ends(1, &[1]);
        assert!(!world.is_open(next), "{next}");
    }
    world.assert_ends(0, &[1]);
    assert!(world.is_open(called));
    // Its own host has as many.
    world.rest();
    world.assert_ends(0, &[1, 2]);
}

#[test]
fn idle_connections_end_for_hosts_with_fewer_until_all_have_as_many() {
    let mut world = World::new();
    let mut clients: Vec<_> = (0..6).map(|_| world.connect_and_call(1)).collect();
    // The order is that of the latest calls.
    clients.swap(0, 1);
    for client in &clients {
        world.pass(2 * SECOND);
        world.call(*client);
    }
    world.rest();
    world.assert_ends(0, &[1]);
    for next in &clients[..2] {
        world.assert_ends(1, &[2]);
        assert!(!world.is_open(*next));
        world.connect_and_call(2);
    }
    // Both at once: the second would make it fewer.
    world.assert_ends(1, &[2, 2]);
    world.connect_and_call(2);
    for host in [1, 2] {
        world.rest();
        world.assert_ends(0, &[host]);
    }
    // A third host gets one of each.
    world.assert_ends(1, &[3]);
    assert!(!world.is_open(clients[3]));
    world.connect_and_call(3);
    world.rest();
    world.assert_ends(1, &[3]);
}

/// Whatever the order in which a table has the hosts.
#[test]
fn of_hosts_with_as_many_the_one_with_the_oldest_connection_loses_it() {
    let mut world = World::new();
    let hosts: Vec<u8> = (1..=20).collect();
    let idle: Vec<_> = hosts
        .iter()
        .map(|host| world.connect_and_call(*host))
        .collect();
    for host in &hosts {
        world.connect_and_call(*host);
    }
    world.rest();
    for next in &idle {
        world.assert_ends(1, &[100]);
        assert!(!world.is_open(*next), "{next}");
    }
    let silent: Vec<_> = hosts
        .iter()
        .map(|host| {
            world.pass(Duration::from_millis(1));
            world.connect(*host)
        })
        .collect();
    world.pass(SECOND);
    for next in &silent {
        world.assert_ends(1, &[1]);
        assert!(!world.is_open(*next), "{next}");
    }
}

#[test]
fn connections_in_use_never_end_and_nobody_waits_for_them() {
    let mut world = World::new();
    let clients: Vec<_> = (0..4).map(|_| world.connect_and_call(1)).collect();
    world.rest();
    let mut held: Vec<_> = clients
        .iter()
        .map(|client| Box::pin(call(&world.clients[*client].channel, &HELD, "held")))
        .collect();
    for held in &mut held {
        assert!(world.network.try_run(held).is_none());
    }
    for _ in 0..3 {
        world.rest();
        world.assert_ends(0, &[2]);
    }
    world.gate.open();
    for held in held {
        world.network.try_run(held).unwrap().unwrap();
    }
    // They have just been in use. A client of a host with fewer waits as long as they are not again.
    world.looks.set(0);
    for _ in 0..10 {
        let made = world.ask(&[2]);
        assert_eq!((made.ended, made.may_follow), (0, true));
        world.pass(Duration::from_millis(20));
    }
    for _ in 0..10 {
        for client in &clients {
            world.call(*client);
        }
        world.assert_ends(0, &[2]);
        world.pass(Duration::from_millis(20));
        world.assert_ends(0, &[2]);
    }
}

#[test]
fn a_connection_whose_peer_keeps_the_server_waiting_ends_for_anybody() {
    let mut world = World::new();
    let clients: Vec<_> = (0..3).map(|_| world.connect_and_call(1)).collect();
    world.assert_ends(0, &[1]);
    world.server.stall(world.clients[clients[1]].id);
    world.assert_ends(1, &[1]);
    assert!(!world.is_open(clients[1]));
}

/// The poller was stopped, or in a handler, and finds the request for connections before it finds what
/// its clients have sent.
#[test]
fn what_has_arrived_counts_before_connections_end() {
    let mut world = World::new();
    let clients: Vec<_> = (0..4).map(|_| world.connect_and_call(1)).collect();
    world.connect(1);
    world.rest();
    let (wanted, answer) = world.wanted(&[2, 2]);
    world.server.ask_for_room(wanted);
    let mut calls: Vec<_> = world
        .clients
        .iter()
        .map(|client| Box::pin(call(&client.channel, &ECHO, "x")))
        .collect();
    for (call, client) in calls.iter_mut().zip(&world.clients) {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(&mut cx).is_pending());
        client.node.step();
    }
    for call in calls {
        world.network.try_run(call).unwrap().unwrap();
    }
    let made = answer.try_recv().unwrap();
    assert_eq!((made.ended, made.may_follow), (0, false));
    assert!(clients.iter().all(|client| world.is_open(*client)));
}

#[test]
fn the_client_of_a_connection_that_has_ended_is_told_why() {
    let mut world = World::new();
    let client = world.connect(1);
    world.pass(SECOND);
    world.assert_ends(1, &[1]);
    let call = call(&world.clients[client].channel, &ECHO, "x");
    let error = world.network.try_run(call).unwrap().unwrap_err();
    assert_eq!(error.execution(), Execution::NeverSent);
    assert!(
        matches!(error.cause(), Cause::Disconnected(CloseReason::Evicted)),
        "{error}"
    );
    assert!(error.to_string().contains("raise `connections`"), "{error}");
}

/// Two idle channels with one place took it from each other without a pause.
#[test]
fn a_channel_that_makes_no_calls_comes_back_after_growing_delays() {
    let mut world = World::new();
    world.network.use_address(address(1));
    let node = world.network.share("server", &Intents::default());
    let channel = node.channel();
    let request = Request::new(b"x".to_vec());
    let first = channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, request);
    world.network.try_run(first).unwrap().unwrap();
    let accepted = || world.server.poller().stats().total().connections.accepted;
    // It is idle, and another host has fewer.
    let lose = |places: usize| {
        let host = |host| Host::from(address(host));
        let places = HashMap::from([(host(1), places)]);
        let wanted = RoomWanted::new(vec![host(2)], places, 0, drop);
        world.server.ask_for_room(wanted);
        world.pass(Duration::from_millis(10));
    };
    for _ in 0..6000 {
        lose(2);
    }
    // In a minute, with delays of up to five seconds.
    let count = accepted();
    assert!((8..40).contains(&count), "{count} connections");
    let request = Request::new(b"x".to_vec()).wait_for_ready(true);
    let mut next = Box::pin(channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, request));
    while world.network.try_run(&mut next).is_none() {
        world.pass(Duration::from_millis(10));
    }
    // A call was served, so the delays are short again.
    let before = accepted();
    world.rest();
    for _ in 0..100 {
        lose(2);
    }
    assert!(accepted() > before, "within a second");
}
