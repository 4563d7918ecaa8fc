//! Long messages that a server's handlers have made and its clients do not read: while a host leaves much
//! unread, each of its streams makes one at a time.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use rpc_core::frame::{Flags, FrameHeader};
use rpc_core::transport::{PeerMemory, Transport};
use rpc_core::{
    Caller, Idempotency, Intents, MethodKind, MethodSpec, Request, Response, Streaming,
};
use rpc_core_testing::{Faults, Pair};

use crate::support::made::Made;
use crate::support::raw::{Raw, open};

/// Sends ten long messages.
const LARGE_ONES: MethodSpec = MethodSpec::new(
    "test.Unread/LargeOnes",
    MethodKind::ServerStreaming,
    Idempotency::Unknown,
    "bytes",
    "bytes",
);

/// Bytes of a long message.
const LEN: usize = 100_000;

const MESSAGES: usize = 10;

/// Bytes that hosts may leave unread.
const LIMIT: u64 = 1 << 20;

/// Long messages of a host from which on its streams make one at a time: a quarter of what it leaves to others.
const MANY: usize = (LIMIT / 5) as usize / LEN + 1;

/// The most messages that a stream makes before: two are under way, one waits, and one is in its handler's hand.
const MOST_OF_STREAM: usize = 4;

struct Scene {
    pair: Pair,
    memory: PeerMemory,
    /// Long messages that handlers have made.
    made: Rc<Cell<usize>>,
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
            let made = Rc::clone(&made);
            methods.server_streaming(&LARGE_ONES, move |_: Request<Vec<u8>>, responses| {
                let messages = Made {
                    left: MESSAGES,
                    len: LEN,
                    made: Rc::clone(&made),
                };
                responses.send_all(Ok(Response::new(messages)))
            });
        });
        let memory = pair.server().with_transport(|it| it.peer_memory());
        memory.limit_heap(LIMIT);
        Self { pair, memory, made }
    }

    fn open(&self, channel: &impl Caller) -> Streaming<Vec<u8>> {
        let request = Request::new(vec![]);
        let stream = channel.server_streaming::<Vec<u8>, Vec<u8>>(&LARGE_ONES, request);
        self.pair.run(stream).unwrap().into_inner()
    }

    /// Reads a stream to its end.
    fn read_all(&self, mut messages: Streaming<Vec<u8>>) {
        for _ in 0..MESSAGES {
            let message = self.pair.run(messages.message()).unwrap();
            assert_eq!(message.unwrap().len(), LEN);
        }
        assert_eq!(self.pair.run(messages.message()).unwrap(), None);
    }

    fn assert_nothing_left(&self) {
        self.pair.network().settle();
        assert_eq!(self.memory.unread(), 0);
        assert_eq!(self.memory.heap_in_use(), 0);
        self.pair.assert_nothing_left();
    }
}

#[test]
fn streams_of_a_host_that_reads_none_make_one_long_message_each() {
    const STREAMS: u32 = 12;
    let scene = Scene::new();
    let good = scene.pair.connect();
    let network = scene.pair.network();
    network.use_address(SocketAddr::from(([192, 0, 2, 1], 1)));
    let clients = [Raw::client(network), Raw::client(network)];
    for raw in &clients {
        raw.settle();
        for call in 0..STREAMS {
            // A credit for the first message. Further ones wait for theirs.
            let opening = FrameHeader {
                credits: 1,
                ..open(call, 0, Flags::LAST)
            };
            raw.send(opening, &[]);
            assert!(!raw.peer.is_closed(), "{call}");
        }
    }
    // All have begun. Only the first have made more than one.
    let (made, streams) = (scene.made.get(), 2 * STREAMS as usize);
    let first = MANY * MOST_OF_STREAM;
    assert!((streams..streams + first).contains(&made), "{made}");
    let unread = scene.memory.unread() as usize;
    assert!((streams * LEN..=made * (LEN + 10)).contains(&unread));
    // The client of another host gets its messages, one at a time.
    scene.read_all(scene.open(&good));
    for raw in &clients {
        raw.peer.close();
        raw.settle();
    }
    drop(good);
    scene.assert_nothing_left();
}

/// Streams go on as they are read, whatever the order.
#[test]
fn streams_that_are_read_one_after_the_other_all_end() {
    for is_reverse in [false, true] {
        let scene = Scene::new();
        let channel = scene.pair.connect();
        let mut streams: Vec<_> = (0..20).map(|_| scene.open(&channel)).collect();
        scene.pair.network().settle();
        if is_reverse {
            streams.reverse();
        }
        for messages in streams {
            scene.read_all(messages);
        }
        drop(channel);
        scene.assert_nothing_left();
    }
}

/// Streams that wait for others of their host go on when these end unread.
#[test]
fn streams_go_on_when_others_of_their_host_have_left() {
    let scene = Scene::new();
    let channel = scene.pair.connect();
    let unread: Vec<_> = (0..10).map(|_| scene.open(&channel)).collect();
    let waiting = scene.open(&channel);
    scene.pair.network().settle();
    let before = scene.made.get();
    drop(unread);
    scene.pair.network().settle();
    assert!(scene.made.get() > before, "of {before}");
    scene.read_all(waiting);
    drop(channel);
    scene.assert_nothing_left();
}
