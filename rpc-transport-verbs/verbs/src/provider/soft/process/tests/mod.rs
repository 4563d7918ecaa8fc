//! Links between nodes whose engines the tests step, and between a node and a peer that is nothing
//! but a socket. All have GIDs of this process, which is what a link verifies.

mod accepting;
mod accepting_tcp;
mod claiming;
mod dialing;
mod messages;
mod publishing;

use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use super::engine::Engine;
use super::gid::new_gid;
use super::greeting::{Layouts, Limits};
use super::link::{LinkSocket, Listener, Packet};
use super::link_message::LinkMessage;
use super::node::Node;
use crate::provider::fork_guard::ForkGuard;
use crate::strangers::{PAUSE, TICK};
use crate::types::Gid;

/// A user without any rights: nobody.
const OTHER_USER: u32 = 65_534;

/// A node that accepts while its engine is stepped.
struct Accepting {
    node: Arc<Node>,
    engine: Engine,
}

impl Accepting {
    fn new() -> Self {
        let guard = ForkGuard::of_process().expect("a page");
        let node = Arc::new(Node::new(guard).expect("a node"));
        let engine = Engine::new(Arc::clone(&node));
        Self { node, engine }
    }

    fn step(&mut self) {
        self.step_at(Instant::now());
    }

    /// Steps the engine. The other tests of this process close files, too: while many of them wait,
    /// no engine accepts, so its next step comes after its pause.
    fn step_at(&mut self, mut now: Instant) {
        self.engine.step_links(now);
        while self.engine.has_paused_accepting() {
            thread::sleep(Duration::from_millis(1));
            now += PAUSE;
            // The first step watches the listener again, the second one accepts.
            self.engine.step_links(now);
            self.engine.step_links(now);
        }
    }

    /// Steps the engine while this much time passes.
    fn step_for(&mut self, time: Duration) {
        let start = Instant::now();
        let ticks = time.div_duration_f64(TICK).ceil() as u32;
        for tick in 0..=ticks {
            self.step_at(start + tick * TICK);
        }
    }

    /// Connects a socket that says nothing yet.
    fn connect(&self) -> LinkSocket {
        let socket = LinkSocket::connect(self.node.gid).expect("the node listens");
        socket.take_files().expect("a Unix socket");
        socket
    }

    /// Connects and greets as the process of `gid`.
    fn greeted(&mut self, gid: Gid) -> LinkSocket {
        let socket = self.connect();
        hello(&socket, gid);
        self.step();
        let answer = received(&socket);
        let is_welcome = matches!(answer, Some(LinkMessage::Welcome { .. }));
        assert!(is_welcome, "{answer:?}");
        socket
    }
}

/// Sends the greeting of a dialer.
fn hello(socket: &LinkSocket, gid: Gid) {
    socket.send(hello_of(Layouts::OWN, gid), &[]).expect("room");
}

fn hello_of(layouts: Layouts, gid: Gid) -> LinkMessage {
    LinkMessage::Hello {
        layouts,
        gid,
        limits: Limits::OWN,
    }
}

/// Returns the next message, or `None` at the end of the link.
///
/// # Panics
///
/// Panics if there is neither.
fn received(socket: &LinkSocket) -> Option<LinkMessage> {
    match socket.receive().expect("a socket") {
        Packet::Message(message, _) => Some(message),
        Packet::End => None,
        other => panic!("{other:?}"),
    }
}

fn is_open(socket: &LinkSocket) -> bool {
    !socket.has_ended()
}

fn gid() -> Gid {
    new_gid().expect("random bytes")
}

/// Runs code as another user. The kernel keeps the user of each thread. Returns `None`, and says so
/// on standard error, if this process is not root's and so cannot become another user's.
///
/// # Panics
///
/// Panics in that case if this is CI, which must not leave these tests out.
fn as_other_user<R: Send>(work: impl FnOnce() -> R + Send) -> Option<R> {
    if !geteuid().is_root() {
        const WHY: &str = "NOT RUN: this test becomes another user, so it needs root";
        assert!(std::env::var_os("CI").is_none(), "{WHY}");
        // Not by `eprintln`, which the test harness captures.
        let _ = writeln!(std::io::stderr(), "{WHY}");
        return None;
    }
    let become_and_work = || {
        let other = Uid::from_raw(OTHER_USER);
        set_thread_res_uid(other, other, other).expect("root may become another user");
        work()
    };
    let ended = thread::scope(|scope| scope.spawn(become_and_work).join());
    Some(ended.expect("no panic"))
}

/// Waits until something has happened that another thread does.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        thread::yield_now();
    }
}

/// A socket that listens as a process that never accepts anything.
fn silent_listener() -> (Gid, Listener) {
    let gid = gid();
    let listener = Listener::bind(gid).expect("the name is free");
    (gid, listener)
}
