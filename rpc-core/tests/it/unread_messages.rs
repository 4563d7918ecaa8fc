//! Long messages that a server's handlers have made and its clients do not read: while a host leaves much
//! unread, no further ones are made for it.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rpc_core::frame::{CallId, Flags, FrameHeader, FrameKind};
use rpc_core::transport::{PeerMemory, Transport};
use rpc_core::{
    Caller, Code, Idempotency, Intents, MethodKind, MethodSpec, Request, Response, Shutdown,
    Status, Stream, Streaming,
};
use rpc_core_testing::{Faults, Pair};

use crate::support::raw::{Frame, Raw, cancel, header, open};

const fn method(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "bytes", "bytes")
}

const ECHO: MethodSpec = method("test.Unread/Echo", MethodKind::Unary);
/// Answers with a long message.
const LARGE: MethodSpec = method("test.Unread/Large", MethodKind::Unary);
/// Sends ten long messages.
const LARGE_ONES: MethodSpec = method("test.Unread/LargeOnes", MethodKind::ServerStreaming);

/// The numbers of the methods.
const ECHO_NUMBER: u16 = 0;
const LARGE_NUMBER: u16 = 1;
const LARGE_ONES_NUMBER: u16 = 2;

/// Bytes of a long message.
const LEN: usize = 100_000;

const MESSAGES: usize = 10;

/// Bytes of the heap that hosts share.
const LIMIT: u64 = 1 << 20;

/// Long messages of a host above which no further one is made: half of it is left for others.
const MOST: usize = (LIMIT / 2) as usize / LEN + 1;

/// How long requests are held.
const PATIENCE: Duration = Duration::from_secs(15);

struct Scene {
    pair: Pair,
    memory: PeerMemory,
    /// Long messages that handlers have made.
    made: Rc<Cell<usize>>,
}

/// So many messages. Counts them.
struct Made(usize, Rc<Cell<usize>>);

impl Stream for Made {
    type Item = Result<Vec<u8>, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self(left, made) = self.get_mut();
        if *left == 0 {
            return Poll::Ready(None);
        }
        *left -= 1;
        made.set(made.get() + 1);
        Poll::Ready(Some(Ok(vec![7; LEN])))
    }
}

impl Scene {
    fn new() -> Self {
        let intents = Intents {
            connections: 4,
            max_streams: 100,
            ..Intents::default()
        };
        let made = Rc::<Cell<usize>>::default();
        let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
            methods.unary(&ECHO, |request: Request<Vec<u8>>| async {
                Ok(Response::new(request.into_inner()))
            });
            let counter = Rc::clone(&made);
            methods.unary(&LARGE, move |_: Request<Vec<u8>>| {
                counter.set(counter.get() + 1);
                async { Ok(Response::new(vec![7; LEN])) }
            });
            let counter = Rc::clone(&made);
            methods.server_streaming(&LARGE_ONES, move |_: Request<Vec<u8>>, responses| {
                let messages = Made(MESSAGES, Rc::clone(&counter));
                responses.send_all(Ok(Response::new(messages)))
            });
        });
        let memory = pair.server().with_transport(|it| it.peer_memory());
        memory.limit_heap(LIMIT);
        Self { pair, memory, made }
    }

    /// A client that reads nothing, of the host to which further clients belong.
    fn raw(&self) -> Raw<'_> {
        let network = self.pair.network();
        network.use_address(SocketAddr::from(([192, 0, 2, 1], 1)));
        let raw = Raw::client(network);
        raw.settle();
        raw
    }

    /// Checks that nothing is left when `clients` have gone.
    fn end(&self, clients: &[Raw<'_>]) {
        for raw in clients {
            assert!(!raw.peer.is_closed());
            raw.peer.close();
            raw.settle();
        }
        self.pair.network().settle();
        assert_eq!(self.memory.heap_in_use(), 0);
        self.pair.assert_nothing_left();
    }
}

fn call(call: u32, method: u16) -> FrameHeader {
    FrameHeader {
        call: CallId(call),
        selector: method,
        ..header(FrameKind::Request)
    }
}

/// Returns the codes of short responses.
fn codes(frames: &[Frame]) -> Vec<u16> {
    let is_short = |(header, _): &&Frame| {
        header.kind == FrameKind::Response && !header.flags.contains(Flags::LONG)
    };
    let short = frames.iter().filter(is_short);
    short.map(|(header, _)| header.selector).collect()
}

/// Sends calls that are answered with long messages, until the host has left much unread.
fn fill(scene: &Scene, raw: &Raw<'_>) {
    for number in 0..10 {
        raw.send(call(number, LARGE_NUMBER), &[]);
    }
    assert_eq!(scene.made.get(), MOST);
    let in_use = scene.memory.heap_in_use() as usize;
    assert!((MOST * LEN..(MOST + 1) * LEN).contains(&in_use), "{in_use}");
}

#[test]
fn calls_with_long_responses_are_held_while_their_host_reads_none() {
    let scene = Scene::new();
    let good = scene.pair.connect();
    let clients = [scene.raw(), scene.raw()];
    fill(&scene, &clients[0]);
    // The other connection of the host, and calls with short responses.
    clients[1].send(call(0, LARGE_NUMBER), &[]);
    assert_eq!(scene.made.get(), MOST);
    for raw in &clients {
        let frames = raw.send(call(20, ECHO_NUMBER), &[]);
        assert_eq!(codes(&frames), [Code::Ok.number()]);
    }
    // Another host.
    for _ in 0..20 {
        let large = good.unary::<Vec<u8>, Vec<u8>>(&LARGE, Request::new(vec![]));
        assert_eq!(scene.pair.run(large).unwrap().into_inner().len(), LEN);
    }
    drop(good);
    // One of the connections ends, and the call of the other one goes on.
    let made = scene.made.get();
    clients[0].peer.close();
    clients[0].settle();
    clients[1].settle();
    assert_eq!(scene.made.get(), made + 1);
    let [_, left] = clients;
    scene.end(&[left]);
}

#[test]
fn calls_that_are_held_in_vain_are_refused() {
    let scene = Scene::new();
    let raw = scene.raw();
    fill(&scene, &raw);
    scene
        .pair
        .network()
        .advance(PATIENCE - Duration::from_secs(1));
    assert_eq!(codes(&raw.settle()), []);
    scene.pair.network().advance(Duration::from_secs(1));
    let held = 10 - MOST;
    let refused = vec![Code::ResourceExhausted.number(); held];
    assert_eq!(codes(&raw.settle()), refused);
    // A later one is held for as long.
    raw.send(call(30, LARGE_NUMBER), &[]);
    scene
        .pair
        .network()
        .advance(PATIENCE - Duration::from_secs(1));
    assert_eq!(codes(&raw.settle()), []);
    assert_eq!(scene.made.get(), MOST);
    scene.end(&[raw]);
}

#[test]
fn calls_that_are_held_can_be_cancelled() {
    let scene = Scene::new();
    let raw = scene.raw();
    fill(&scene, &raw);
    let held = MOST as u32..10;
    let frames = raw.control(held.clone().map(cancel));
    assert_eq!(codes(&frames), vec![Code::Cancelled.number(); held.len()]);
    raw.send(open(40, LARGE_ONES_NUMBER, Flags::LAST), &[]);
    scene.end(&[raw]);
}

#[test]
fn calls_that_are_held_are_refused_when_the_server_shuts_down() {
    let scene = Scene::new();
    let raw = scene.raw();
    fill(&scene, &raw);
    scene.pair.server().shut_down(Shutdown {
        finish: Duration::from_secs(1),
        close: Duration::from_secs(10),
        ..Shutdown::default()
    });
    scene.pair.network().settle();
    assert!(!scene.pair.server().is_shut_down());
    scene.pair.network().advance(Duration::from_secs(1));
    let held = 10 - MOST;
    let refused = vec![Code::Unavailable.number(); held];
    assert_eq!(codes(&raw.settle()), refused);
    scene.end(&[raw]);
}

#[test]
fn streams_of_a_host_that_reads_none_make_one_long_message_each() {
    let scene = Scene::new();
    let clients = [scene.raw(), scene.raw()];
    let open_all = |raw: &Raw<'_>| {
        for call in 0..50 {
            // A credit for the first message.
            let opening = FrameHeader {
                credits: 1,
                ..open(call, LARGE_ONES_NUMBER, Flags::LAST)
            };
            raw.send(opening, &[]);
        }
    };
    open_all(&clients[0]);
    let made = scene.made.get();
    // Of each stream: two under way, one that waits, and one in its handler's hand.
    assert!((MOST..2 * MOST).contains(&made), "{made}");
    open_all(&clients[1]);
    assert_eq!(scene.made.get(), made, "the others are held");
    scene.end(&clients);
}

/// A client that reads its streams one after the other, whatever the order, gets all of them: those that have
/// begun go on as they are read.
#[test]
fn streams_that_are_read_one_after_the_other_all_end() {
    for is_reverse in [false, true] {
        let scene = Scene::new();
        let channel = scene.pair.connect();
        let open =
            || channel.server_streaming::<Vec<u8>, Vec<u8>>(&LARGE_ONES, Request::new(vec![]));
        let mut streams: Vec<Streaming<Vec<u8>>> = (0..MOST - 1)
            .map(|_| scene.pair.run(open()).unwrap().into_inner())
            .collect();
        scene.pair.network().settle();
        let made = scene.made.get();
        // The client has fetched two of each, and two are under way.
        assert!(made <= 4 * MOST, "{made}");
        if is_reverse {
            streams.reverse();
        }
        for mut messages in streams {
            for _ in 0..MESSAGES {
                let message = scene.pair.run(messages.message()).unwrap();
                assert_eq!(message.unwrap().len(), LEN);
            }
            assert_eq!(scene.pair.run(messages.message()).unwrap(), None);
        }
        drop(channel);
        scene.end(&[]);
    }
}

/// Clients that read get everything, however many calls they make at a time.
#[test]
fn many_calls_at_a_time_all_end() {
    let scene = Scene::new();
    let channel = scene.pair.connect();
    let mut calls: Vec<_> = (0..40)
        .map(|_| Box::pin(channel.unary::<Vec<u8>, Vec<u8>>(&LARGE, Request::new(vec![]))))
        .collect();
    let all = poll_fn(|cx| {
        calls.retain_mut(|call| match call.as_mut().poll(cx) {
            Poll::Ready(response) => {
                assert_eq!(response.unwrap().into_inner().len(), LEN);
                false
            }
            Poll::Pending => true,
        });
        match calls.is_empty() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    scene.pair.run(all);
    drop(calls);
    drop(channel);
    scene.end(&[]);
}
