//! Peers that use all of the memory that a process sets aside for what waits on their behalf. A program of
//! its own, because the memory is the process's, and one test at a time.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use rpc_core::frame::{
    FRAGMENT, Flags, FrameHeader, FrameKind, LONG_BODY_LEN, LongBody, ONE_MESSAGE, TransferId,
};
use rpc_core::{
    Caller, Code, Idempotency, Intents, MethodKind, MethodSpec, Request, Response, Status, Stream,
    Streaming,
};
use rpc_core_testing::{Faults, Pair, limit_stream_memory, stream_memory_in_use};

use self::raw::{Frame, Raw, message, open};

// Not all of the frames are sent here.
#[allow(dead_code)]
#[path = "it/support/raw.rs"]
mod raw;

const fn method(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "bytes", "bytes")
}

const ECHO: MethodSpec = method("test.Scarce/Echo", MethodKind::Unary);
/// Reads nothing.
const UNREAD: MethodSpec = method("test.Scarce/Unread", MethodKind::ClientStreaming);
/// Sends without end.
const ENDLESS: MethodSpec = method("test.Scarce/Endless", MethodKind::ServerStreaming);

/// Bytes for all streams of the process, in these tests.
const LIMIT: u64 = 1 << 20;

/// Streams of each hostile client.
const STREAMS: u32 = 100;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Scene {
    pair: Pair,
    sent: Rc<Cell<u64>>,
}

/// Messages of 1,000 bytes. Counts them.
struct Endless(Rc<Cell<u64>>);

impl Stream for Endless {
    type Item = Result<Vec<u8>, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.set(self.0.get() + 1000);
        Poll::Ready(Some(Ok(vec![7; 1000])))
    }
}

/// Runs `attack`, beside which a good client's calls and streams go on. Afterwards all memory is free.
fn attacked(attack: impl FnOnce(&Scene, [Raw<'_>; 2])) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    limit_stream_memory(LIMIT);
    let scene = scene();
    let channel = scene.pair.connect();
    let network = scene.pair.network();
    attack(&scene, [Raw::client(network), Raw::client(network)]);
    let echo = channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, Request::new(vec![7; 100]));
    assert_eq!(scene.pair.run(echo).unwrap().into_inner(), [7; 100]);
    // A long one, too.
    let echo = channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, Request::new(vec![7; 20_000]));
    assert_eq!(scene.pair.run(echo).unwrap().into_inner(), [7; 20_000]);
    drop(channel);
    network.settle();
    assert_eq!(stream_memory_in_use(), 0);
    scene.pair.assert_nothing_left();
}

fn scene() -> Scene {
    let intents = Intents {
        connections: 4,
        max_streams: STREAMS,
        ..Intents::default()
    };
    let sent = Rc::<Cell<u64>>::default();
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        methods.unary(&ECHO, |request: Request<Vec<u8>>| async {
            Ok(Response::new(request.into_inner()))
        });
        methods.client_streaming(&UNREAD, |request: Request<Streaming<Vec<u8>>>| async move {
            let _request = request;
            std::future::pending::<Result<Response<Vec<u8>>, _>>().await
        });
        let count = Rc::clone(&sent);
        methods.server_streaming(&ENDLESS, move |_: Request<Vec<u8>>, responses| {
            let endless = Endless(Rc::clone(&count));
            responses.send_all(Ok(Response::new(endless)))
        });
    });
    Scene { pair, sent }
}

/// Answers to calls with this code.
fn answers(frames: &[Frame], code: Code) -> usize {
    let of_code = |(header, _): &&Frame| {
        header.kind == FrameKind::Response && header.selector == code.number()
    };
    frames.iter().filter(of_code).count()
}

#[test]
fn messages_that_nobody_reads_fail_their_streams() {
    attacked(|_, clients| {
        let mut refused = 0;
        for raw in &clients {
            raw.settle();
            for call in 0..STREAMS {
                // A credit for the answer of each.
                let opening = FrameHeader {
                    credits: 1,
                    ..open(call, 1, Flags::NONE)
                };
                let mut frames = raw.send(opening, &[]);
                // Its whole window.
                for _ in 0..8 {
                    frames.extend(raw.send(message(call, ONE_MESSAGE, Flags::NONE), &[7; 4000]));
                }
                refused += answers(&frames, Code::ResourceExhausted);
                assert!(stream_memory_in_use() <= LIMIT);
            }
            assert!(!raw.peer.is_closed());
        }
        // Some 24 KiB of each count, beyond the least.
        assert!((50..200).contains(&refused), "{refused} streams");
        for raw in &clients {
            raw.peer.close();
            raw.settle();
        }
    });
}

#[test]
fn streams_whose_messages_cannot_leave_have_one_frame_each() {
    attacked(|scene, clients| {
        for raw in &clients {
            raw.settle();
            for call in 0..STREAMS {
                // Without a credit for what they send.
                raw.send(open(call, 2, Flags::LAST), &[]);
            }
        }
        // For each stream a frame that waits, as much in its handler's hand, and a message.
        let most = LIMIT + 2 * u64::from(STREAMS) * (4000 + 4000 + 1000);
        let sent = scene.sent.get();
        assert!(
            sent > LIMIT && sent < most,
            "{sent} bytes, of at most {most}"
        );
        assert!(stream_memory_in_use() < LIMIT + 4 * 4352);
        for raw in &clients {
            raw.peer.close();
            raw.settle();
        }
    });
}

#[test]
fn long_messages_that_wait_on_the_heap_are_refused_but_for_a_few_of_each_connection() {
    attacked(|_, clients| {
        let mut refused = 0;
        for raw in &clients {
            raw.settle();
            for call in 0..STREAMS {
                let opening = FrameHeader {
                    credits: 1,
                    ..open(call, 1, Flags::NONE)
                };
                let mut frames = raw.send(opening, &[]);
                // All of it is sent without an answer.
                let (first, body) = long_message(call, 60_000, &[7; 4000]);
                frames.extend(raw.send(first, &body));
                for _ in 1..15 {
                    let (next, body) = raw::fragment(call, 4000);
                    frames.extend(raw.send(next, &body));
                }
                refused += answers(&frames, Code::ResourceExhausted);
            }
            assert!(!raw.peer.is_closed());
        }
        // Seventeen use all memory. The other client has its least: four.
        assert_eq!(refused, 2 * STREAMS as usize - 17 - 4);
        for raw in &clients {
            raw.peer.close();
            raw.settle();
        }
    });
}

/// The first frame of a long message of a stream.
fn long_message(call: u32, len: u32, piece: &[u8]) -> (FrameHeader, Vec<u8>) {
    let header = FrameHeader {
        flags: Flags::LONG,
        ..message(call, ONE_MESSAGE, Flags::NONE)
    };
    let mut body = vec![0; LONG_BODY_LEN];
    LongBody::encode(TransferId(call), len, FRAGMENT, &mut body);
    body.extend(piece);
    (header, body)
}
