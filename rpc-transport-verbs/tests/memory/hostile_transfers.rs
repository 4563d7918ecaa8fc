//! A hostile client of a real server: it speaks the protocol by hand, and announces memory that may
//! not be read, or that it never sends. Its own connection ends. The calls of a good client go on,
//! and the server gets all of its memory back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use rpc_core::frame::{
    CallId, ControlEntry, ControlRequest, Flags, FrameHeader, FrameKind, HEADER_LEN, LONG_BODY_LEN,
    LongBody, SEGMENTS, Segments, TransferId,
};
use rpc_core::session::{ClientSession, ServerSession};
use rpc_core::transport::{
    Chunks, ConnectionId, ExposeError, Exposed, MessageMemory, RemoteSegment, Transport,
};
use rpc_core::{
    Caller, Idempotency, Intents, LocalChannel, LocalPoller, MethodKind, MethodSpec, Methods,
    Request, Response, Server, ServerHandle, Service, Status,
};

use crate::alone;
use crate::transport_harness::{PATIENCE, Side, device, frame};

const ECHO: MethodSpec = MethodSpec::new(
    "test.Echo/Echo",
    MethodKind::Unary,
    Idempotency::Unknown,
    "bytes",
    "bytes",
);

/// Bytes of a message that the good client sends.
const GOOD_LEN: usize = 1 << 20;

struct Echo;

impl Service for Echo {
    fn name(&self) -> &'static str {
        "test.Echo"
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary(&ECHO, |request: Request<Bytes>| async move {
            Ok::<_, Status>(Response::new(request.into_inner()))
        });
    }
}

/// All servers and clients of this process share the limit of its memory for messages.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A server with a good client and a hostile one.
struct Scene {
    _turn: MutexGuard<'static, ()>,
    server: ServerHandle,
    poller: LocalPoller,
    good: LocalChannel,
    hostile: Side,
    method: u16,
    /// Requests that the hostile client may send on a connection.
    credits: u32,
    /// Numbers that the hostile client has used for calls and for messages.
    used: u32,
}

impl Scene {
    fn new() -> Self {
        // A test that failed has left nothing behind that others need.
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let server = Server::builder(&device())
            .add_service(Echo)
            .bind("127.0.0.1:0")
            .unwrap()
            .spawn();
        let poller = LocalPoller::new(&device()).unwrap();
        let good = poller.connect(&server.local_addr().to_string()).unwrap();
        let intents = Intents {
            connections: 16,
            ..Intents::default()
        };
        let mut scene = Self {
            _turn,
            server,
            poller,
            good,
            hostile: Side::open(&device(), &intents),
            method: 0,
            credits: 0,
            used: 0,
        };
        scene.good_call();
        scene
    }

    /// Makes a call of the good client, whose messages are long.
    fn good_call(&mut self) {
        let message = Bytes::from(frame(7, GOOD_LEN));
        let request = Request::new(message.clone()).with_timeout(PATIENCE);
        let reply = self.good.unary::<Bytes, Bytes>(&ECHO, request);
        let reply = self.poller.block_on(reply).expect("a good client's call");
        assert!(reply.into_inner() == message);
    }

    fn short_call(&mut self) {
        let request = Request::new(Bytes::new()).with_timeout(PATIENCE);
        let reply = self.good.unary::<Bytes, Bytes>(&ECHO, request);
        self.poller.block_on(reply).expect("a good client's call");
    }

    /// Connects the hostile client once more.
    fn connect(&mut self) -> ConnectionId {
        let session = ClientSession::new(16, 1 << 16, 4 << 20).encode_to_vec();
        let address = self.server.local_addr().to_string();
        let connected = self.hostile.transport.connect(&address, &session, PATIENCE);
        let connected = connected.expect("the server lets it in");
        let session = ServerSession::decode(&*connected.session).unwrap();
        self.credits = session.initial_credits;
        let mut methods = session.methods.iter();
        let method = methods.find(|method| method.path == "test.Echo/Echo");
        self.method = method.expect("the server has it").number as u16;
        connected.connection
    }

    /// Exposes the first piece of a message of `len` bytes to the server.
    fn expose(&mut self, connection: ConnectionId, len: usize) -> Exposed {
        self.expose_front(connection, Chunks::from(Bytes::from(frame(3, len))))
    }

    fn expose_front(&mut self, connection: ConnectionId, mut message: Chunks) -> Exposed {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self
                .hostile
                .transport
                .expose(connection, &mut message, true)
            {
                Ok(exposed) => return exposed,
                Err(ExposeError::NotNow) => assert!(Instant::now() < deadline, "no memory"),
                Err(error) => panic!("{error}"),
            }
            self.hostile.turn();
            std::thread::yield_now();
        }
    }

    /// Begins a request of `len` bytes, and announces these segments of it.
    fn request(&mut self, connection: ConnectionId, len: usize, segments: &[RemoteSegment]) {
        self.used += 1;
        let header = FrameHeader {
            kind: FrameKind::Request,
            flags: Flags::LONG,
            credits: 0,
            call: CallId(self.used),
            selector: self.method,
            metadata_len: 0,
            time_us: 0,
        };
        let mut bytes = vec![0; HEADER_LEN + LONG_BODY_LEN];
        header.encode(&mut bytes);
        let transfer = TransferId(self.used);
        LongBody::encode(transfer, len as u32, SEGMENTS, &mut bytes[HEADER_LEN..]);
        bytes.extend(segments.iter().flat_map(|segment| segment.encode()));
        self.hostile.send(connection, &bytes).unwrap();
        self.hostile.transport.flush();
    }

    /// Sends a control frame with these entries about a message of the server.
    fn control(&mut self, connection: ConnectionId, id: TransferId, entries: &[ControlRequest]) {
        let header = FrameHeader {
            kind: FrameKind::Control,
            flags: Flags::default(),
            credits: 0,
            call: CallId(0),
            selector: 0,
            metadata_len: 0,
            time_us: 0,
        };
        let mut bytes = vec![0; HEADER_LEN];
        header.encode(&mut bytes);
        for &request in entries {
            bytes.extend(ControlEntry::of_transfer(id, request).encode());
        }
        self.hostile.send(connection, &bytes).unwrap();
        self.hostile.transport.flush();
    }

    /// Sends an echo of 1 MiB, which the server answers with a long response. Returns the response's
    /// number, and how many segments its first frame announces.
    fn get_long_response(&mut self, connection: ConnectionId) -> (TransferId, u32) {
        let field = Bytes::from(frame(5, (1 << 20) - 5)).encode_to_vec();
        let mut message = self.hostile.transport.allocate_for(connection, field.len());
        let deadline = Instant::now() + PATIENCE;
        while message.is_err() && Instant::now() < deadline {
            self.hostile.turn();
            message = self.hostile.transport.allocate_for(connection, field.len());
        }
        let mut memory = message.expect("there is memory");
        // A field of all bytes but those of its tag and length.
        memory.write(0, &field);
        let message = Chunks::from(Box::new(memory).freeze(field.len()));
        let exposed = self.expose_front(connection, message);
        assert!(!exposed.was_copied, "registered memory needs no copy");
        self.request(connection, field.len(), &[exposed.segment]);
        // The server answers, exposes its response, and nobody reads it.
        let mut begun = None;
        self.turn_until("the response begins", |scene| {
            let mut frames = scene.hostile.received.iter();
            begun = frames.find_map(|(_, frame)| {
                let (header, _, body) = FrameHeader::parse(frame).ok()?;
                let is_long = header.flags.contains(Flags::LONG);
                let body = is_long.then(|| LongBody::parse(header.kind, body).unwrap())?;
                Some((body.transfer, Segments::of(body.piece).count() as u32))
            });
            begun.is_some()
        });
        begun.expect("a response")
    }

    /// Waits until the server has closed a connection of the hostile client.
    fn wait_until_closed(&mut self, connection: ConnectionId) {
        let is_closed = |side: &Side| side.closed.iter().any(|(id, _)| *id == connection);
        self.turn_until("the server closes the connection", |scene| {
            is_closed(&scene.hostile)
        });
    }

    fn turn_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            self.hostile.turn();
            assert!(
                Instant::now() < deadline,
                "{what}: {} bytes",
                self.server_bytes()
            );
            // The server's poller updates its gauges when it has something to do.
            self.short_call();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the bytes of the server's messages that are not free: those that it receives, that
    /// peers may read, and that its handlers have.
    fn server_bytes(&self) -> u64 {
        let stats = self.server.stats();
        let memory = stats.pollers.iter().map(|poller| &poller.memory);
        memory.map(|it| it.posted + it.in_flight + it.held).sum()
    }

    /// Checks that the good client's calls go on, and that the server has all of its memory.
    fn finish(mut self) {
        self.good_call();
        self.turn_until("the server's memory is back", |scene| {
            scene.server_bytes() == 0
        });
    }
}

/// Announces `segment` on a new connection, which has to end with it.
fn assert_ends_own_connection(segment_of: impl FnOnce(&mut Scene, ConnectionId) -> RemoteSegment) {
    let mut scene = Scene::new();
    let bystander = scene.connect();
    let connection = scene.connect();
    let segment = segment_of(&mut scene, connection);
    scene.request(connection, segment.len as usize, &[segment]);
    scene.wait_until_closed(connection);
    let others = scene.hostile.closed.iter();
    assert_eq!(others.filter(|(id, _)| *id == bystander).count(), 0);
    scene.finish();
}

#[test]
fn a_key_that_does_not_exist_ends_its_own_connection() {
    let _alone = alone();
    assert_ends_own_connection(|scene, connection| {
        let exposed = scene.expose(connection, 10_000);
        RemoteSegment {
            key: exposed.segment.key ^ 0x5a5a_5a5a,
            ..exposed.segment
        }
    });
}

#[test]
fn an_address_outside_of_the_window_ends_its_own_connection() {
    let _alone = alone();
    assert_ends_own_connection(|scene, connection| {
        let exposed = scene.expose(connection, 10_000);
        RemoteSegment {
            address: exposed.segment.address + 1,
            ..exposed.segment
        }
    });
}

#[test]
fn a_segment_that_is_longer_than_its_window_ends_its_own_connection() {
    let _alone = alone();
    assert_ends_own_connection(|scene, connection| {
        let exposed = scene.expose(connection, 10_000);
        RemoteSegment {
            len: exposed.segment.len + 1,
            ..exposed.segment
        }
    });
}

#[test]
fn a_key_of_another_connection_ends_its_own_connection() {
    let _alone = alone();
    assert_ends_own_connection(|scene, _| {
        let other = scene.connect();
        scene.expose(other, 10_000).segment
    });
}

#[test]
fn a_key_that_was_revoked_before_the_server_reads_ends_its_own_connection() {
    let _alone = alone();
    assert_ends_own_connection(|scene, connection| {
        let exposed = scene.expose(connection, 10_000);
        scene.hostile.transport.conceal(exposed.key);
        scene.turn_until("the key is revoked", |scene| {
            scene.hostile.transport.memory_by_owner().exposed == 0
        });
        exposed.segment
    });
}

/// Half-assembled messages of many connections at once, up to the limit of each: they take memory
/// that is bounded, and give it back when their connections end.
#[test]
fn messages_that_are_never_completed_take_bounded_memory_and_give_it_back() {
    let _alone = alone();
    let mut scene = Scene::new();
    let len = 4 << 20;
    let connections: Vec<_> = (0..3).map(|_| scene.connect()).collect();
    let count = scene.credits.min(15);
    for &connection in &connections {
        // Of each, one segment arrives, and the rest never does.
        for _ in 0..count {
            let exposed = scene.expose(connection, 10_000);
            scene.request(connection, len, &[exposed.segment]);
        }
    }
    let taken = u64::from(3 * count) * len as u64;
    scene.turn_until("the connections take what they may", |scene| {
        scene.server_bytes() >= taken
    });
    for _ in 0..10 {
        scene.good_call();
    }
    assert!(scene.server_bytes() <= taken + 4 * GOOD_LEN as u64);
    for connection in connections {
        scene.hostile.transport.close(connection);
    }
    scene.finish();
}

/// A response that its client never releases does not hold up the calls of others.
#[test]
fn a_response_that_is_never_released_holds_up_nobody_else() {
    let _alone = alone();
    let mut scene = Scene::new();
    let connection = scene.connect();
    scene.get_long_response(connection);
    scene.turn_until("the server keeps its response", |scene| {
        scene.server_bytes() > 0
    });
    for _ in 0..10 {
        scene.good_call();
    }
    scene.hostile.transport.close(connection);
    scene.finish();
}

#[test]
fn a_release_of_a_message_that_was_never_begun_ends_its_own_connection() {
    let _alone = alone();
    let requests = [
        ControlRequest::Fetched(1),
        ControlRequest::Accepted,
        ControlRequest::Stopped,
    ];
    let mut scene = Scene::new();
    for request in requests {
        let connection = scene.connect();
        scene.control(connection, TransferId(7), &[request]);
        scene.wait_until_closed(connection);
    }
    scene.finish();
}

#[test]
fn a_release_of_more_than_is_exposed_ends_its_own_connection() {
    let _alone = alone();
    let mut scene = Scene::new();
    let connection = scene.connect();
    let (response, segments) = scene.get_long_response(connection);
    // More than the server has exposed until it knows that some were fetched.
    let more = ControlRequest::Fetched(segments + 10_000);
    scene.control(connection, response, &[more]);
    scene.wait_until_closed(connection);
    scene.finish();
}

/// A stopped message is released in full, and then unknown.
#[test]
fn a_message_that_is_released_after_it_was_stopped_ends_its_own_connection() {
    let _alone = alone();
    let mut scene = Scene::new();
    let connection = scene.connect();
    let (response, _) = scene.get_long_response(connection);
    let fetched = ControlRequest::Fetched(1);
    scene.control(connection, response, &[ControlRequest::Stopped, fetched]);
    scene.wait_until_closed(connection);
    scene.finish();
}
