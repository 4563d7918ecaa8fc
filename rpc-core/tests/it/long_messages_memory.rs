//! Memory for long messages is short: messages wait for it, are refused, or give up; and two sides
//! that send each other long messages never wait in a circle.

#![allow(
    clippy::print_stderr,
    reason = "prints a failing seed for the person who runs the test"
)]

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support::raw::{
    Frame, Raw, all_memory, continuation, entries, header, long, long_request, open,
};
use crate::support::{ECHO, Gate, method, register};
use bytes::Bytes;
use proto::bulk::PutRequest;
use rpc_core::codegen::v1::GeneratedCodec;
use rpc_core::frame::{
    ABANDONED, CallId, ControlRequest, FRAGMENT, Flags, FrameHeader, FrameKind, LONG_BODY_LEN,
    LongBody, ONE_MESSAGE, SEGMENTS, TransferId,
};
use rpc_core::transport::Transport;
use rpc_core::{
    CallError, Caller, Code, Idempotency, Intents, LocalChannel, MethodKind, MethodSpec, Request,
    Response, Streaming,
};
use rpc_core_testing::{Faults, LoopbackNode, Network, Pair, Random};

const KEEP: MethodSpec = method("test.Memory/Keep");

const COLLECT: MethodSpec = MethodSpec::new(
    "test.Memory/Collect",
    MethodKind::ClientStreaming,
    Idempotency::Unknown,
    "bytes",
    "bytes",
);

const LONGEST: usize = 40_000;

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

async fn echo(channel: &LocalChannel, message: Vec<u8>) -> Result<Vec<u8>, CallError> {
    let response = channel.unary(&ECHO, Request::new(message)).await?;
    Ok(response.into_inner())
}

type Call<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, CallError>> + 'a>>;

fn poll_once(call: &mut Call<'_>) -> Poll<Result<Vec<u8>, CallError>> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Two sides call each other, and each has memory for a few messages at most, both for those it sends
/// and for those it receives.
fn calls_both_ways(seed: u64) {
    let random = Random::new(seed);
    let intents = Intents {
        max_message_len: LONGEST,
        // Sometimes for only one.
        message_memory: LONGEST as u64 + random.below(5 * LONGEST as u64),
        ..Intents::default()
    };
    let faults = match random.happens(500) {
        true => Faults::none(),
        false => Faults::rough(),
    };
    let mut network = Network::new(faults, random.next_u64());
    network.use_reads();
    let gate = Gate::default();
    gate.open();
    let nodes = ["one", "other"]
        .map(|name| network.add(name, &intents, |methods| register(methods, &gate)));
    let channels = [(0, "other"), (1, "one")]
        .map(|(node, peer): (usize, _)| nodes[node].poller().connect(peer).expect("there is room"));
    let mut calls: Vec<(usize, Call<'_>)> = Vec::new();
    for _ in 0..40 {
        let len = 5000 + random.below((LONGEST - 5010) as u64) as usize;
        let channel = &channels[random.below(2) as usize];
        calls.push((len, Box::pin(echo(channel, message(len)))));
    }
    for _ in 0..60_000 {
        calls.retain_mut(|(len, call)| match poll_once(call) {
            Poll::Pending => true,
            Poll::Ready(outcome) => {
                assert!(outcome.expect("it waits for memory") == message(*len));
                false
            }
        });
        if calls.is_empty() {
            break;
        }
        network.step();
    }
    assert_eq!(calls.len(), 0, "calls wait for each other's memory");
    drop(calls);
    network.assert_nothing_left();
}

#[test]
fn two_sides_that_call_each_other_never_wait_in_a_circle() {
    /// Prints the seed if the test fails.
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed with VERBLINE_SEED={}", self.0);
            }
        }
    }
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    if let Some(seed) = number("VERBLINE_SEED") {
        return calls_both_ways(seed);
    }
    for seed in 0..number("VERBLINE_SEEDS").unwrap_or(60) {
        let _seed = Seed(seed);
        calls_both_ways(seed);
    }
}

/// A server with memory for two messages, of which the test uses some.
fn short_of_memory(waits_for_memory: bool) -> Pair {
    let intents = Intents {
        max_message_len: LONGEST,
        message_memory: 2 * LONGEST as u64,
        waits_for_memory,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        let gate = Gate::default();
        gate.open();
        register(methods, &gate);
    });
    pair.network().use_reads();
    pair
}

/// Uses all of a server's memory for messages that arrive.
fn use_memory(pair: &Pair) -> impl Sized + use<> {
    pair.server().with_transport(|transport| {
        let connection = rpc_core::transport::ConnectionId {
            index: 0,
            generation: 0,
        };
        [(); 2].map(|()| {
            transport
                .allocate_for(connection, LONGEST)
                .expect("it is free")
        })
    })
}

#[test]
fn a_message_is_refused_at_once_if_it_may_not_wait() {
    let pair = short_of_memory(false);
    let channel = pair.connect();
    let used = use_memory(&pair);
    let error = pair.run(echo(&channel, message(20_000))).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    let text = error.to_string();
    assert!(text.contains("no memory for a message of 2000"), "{text}");
    // Seven eighths of 80,000.
    let limit = "70000 for messages that arrive at all pollers";
    assert!(text.contains(limit), "{text}");
    drop(used);
    pair.run(echo(&channel, message(20_000))).unwrap();
    pair.assert_nothing_left();
}

#[test]
fn a_message_that_waits_gives_up_at_its_deadline() {
    let pair = short_of_memory(true);
    let channel = pair.connect();
    let used = use_memory(&pair);
    let request = Request::new(message(20_000)).with_timeout(Duration::from_secs(5));
    let mut call: Call<'_> = Box::pin(async {
        let response = channel.unary(&ECHO, request).await?;
        Ok(response.into_inner())
    });
    for _ in 0..200 {
        assert!(poll_once(&mut call).is_pending());
        pair.network().step();
    }
    pair.network().advance(Duration::from_secs(6));
    let error = pair.run(call).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    drop(used);
    pair.assert_nothing_left();
}

#[test]
fn messages_of_a_class_get_memory_in_their_order() {
    let pair = short_of_memory(true);
    let channel = pair.connect();
    let used = use_memory(&pair);
    let mut calls: Vec<(usize, Call<'_>)> = (0..6)
        .map(|number| {
            (
                number,
                Box::pin(echo(&channel, message(20_000 + number))) as Call<'_>,
            )
        })
        .collect();
    for (_, call) in &mut calls {
        for _ in 0..50 {
            assert!(poll_once(call).is_pending());
            pair.network().step();
        }
    }
    drop(used);
    let mut order = Vec::new();
    for _ in 0..10_000 {
        calls.retain_mut(|(number, call)| match poll_once(call) {
            Poll::Pending => true,
            Poll::Ready(outcome) => {
                outcome.unwrap();
                order.push(*number);
                false
            }
        });
        pair.network().step();
    }
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
    drop(calls);
    pair.assert_nothing_left();
}

/// A message of a stream waits, and those behind it, which nobody can read yet, never do.
#[test]
fn a_short_message_takes_no_memory_for_which_others_wait() {
    let pair = short_of_memory(true);
    let allocate = |len| {
        pair.server().with_transport(|transport| {
            let connection = rpc_core::transport::ConnectionId {
                index: 0,
                generation: 0,
            };
            transport.allocate_for(connection, len)
        })
    };
    let clients = [(); 2].map(|()| Raw::client(pair.network()));
    let _used = allocate(LONGEST).expect("it is free");
    let used = allocate(20_000).expect("it is free");
    let posted = || pair.server().poller().stats().total().memory.posted;
    let before = posted();
    for (raw, (len, form)) in clients.iter().zip([(36_000, SEGMENTS), (10_000, FRAGMENT)]) {
        let (first, body) = long_request(1, 9, len, form, &[]);
        raw.send(first, &body);
    }
    drop(used);
    for raw in &clients {
        raw.settle();
    }
    assert_eq!(posted() - before, 46_000, "one has memory of the heap");
    for raw in &clients {
        raw.peer.close();
        raw.settle();
    }
}

#[test]
fn a_connection_that_ends_ends_the_messages_that_wait() {
    let pair = short_of_memory(true);
    let channel = pair.connect();
    let used = use_memory(&pair);
    let mut calls: Vec<Call<'_>> = [20_000, 30_000]
        .map(|len| Box::pin(echo(&channel, message(len))) as Call<'_>)
        .into();
    for _ in 0..50 {
        for call in &mut calls {
            assert!(poll_once(call).is_pending());
        }
        pair.network().step();
    }
    let connection = pair.server().connections()[0];
    pair.server().with_transport(|transport| {
        transport.close(connection);
    });
    for call in calls {
        let error = pair.run(call).unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
    }
    drop(used);
    pair.assert_nothing_left();
}

#[test]
fn a_message_for_whose_fetch_there_is_no_room_is_refused() {
    // At once, and after it has waited for memory.
    for waits in [false, true] {
        let intents = Intents {
            max_message_len: LONGEST,
            message_memory: 4 * LONGEST as u64,
            ..Intents::default()
        };
        let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
            register(methods, &Gate::default());
        });
        pair.network().use_reads();
        let channel = pair.connect();
        let memory = pair.server().with_transport(|transport| {
            let all = 4 * usize::from(waits);
            let connection = rpc_core::transport::ConnectionId {
                index: 0,
                generation: 0,
            };
            let allocate = |_| {
                transport
                    .allocate_for(connection, LONGEST)
                    .expect("it is free")
            };
            (0..all).map(allocate).collect::<Vec<_>>()
        });
        pair.network().refuse_fetches(true);
        let mut refused: Call<'_> = Box::pin(echo(&channel, message(20_000)));
        if waits {
            assert!(pair.network().try_run(&mut refused).is_none());
        }
        drop(memory);
        let error = pair.network().try_run(refused).expect("it does not wait");
        let error = error.expect_err("it cannot be fetched");
        assert_eq!(error.code(), Code::ResourceExhausted);
        let text = error.to_string();
        assert!(text.contains("did not begin to read a message"), "{text}");
        assert!(!text.contains("no memory"), "{text}");
        pair.network().refuse_fetches(false);
        let echoed = pair.run(echo(&channel, message(20_000))).unwrap();
        assert!(echoed == message(20_000));
        drop(channel);
        pair.assert_nothing_left();
    }
}

/// Returns the piece of the first frame of a long request, whose caller has tried to send it without a
/// free slot so many times.
fn first_piece_after(attempts: u32) -> Vec<u8> {
    let mut network = Network::new(Faults::none(), 0);
    network.use_reads();
    let client = network.add("client", &Intents::default(), |_| ());
    let raw = Raw::server(&network, &[&ECHO]);
    let channel = client.poller().connect("hostile").unwrap();
    network.settle();
    let connection = client.connections()[0];
    let slots = client.with_transport(|transport| {
        let reserve = |_| transport.reserve(connection, 100).ok();
        (0..).map_while(reserve).collect::<Vec<_>>()
    });
    let mut call: Call<'_> = Box::pin(echo(&channel, message(20_000)));
    for _ in 0..attempts {
        assert!(poll_once(&mut call).is_pending());
        assert!(raw.settle().is_empty());
    }
    client.with_transport(|transport| {
        for slot in slots {
            transport.cancel(slot);
        }
    });
    assert!(network.try_run(&mut call).is_none());
    let (first, body) = raw.settle().swap_remove(0);
    let body = LongBody::parse(first.kind, &body[first.metadata_len.into()..]).unwrap();
    let piece = body.piece.to_vec();
    raw.peer.close();
    assert!(network.try_run(call).expect("it ends").is_err());
    drop(channel);
    network.assert_nothing_left();
    piece
}

#[test]
fn nothing_is_exposed_while_there_is_no_slot_for_the_first_frame() {
    // Each key is used once, so the segments tell how often something was exposed before.
    let piece = first_piece_after(0);
    assert!(!piece.is_empty());
    assert_eq!(first_piece_after(5), piece);
}

/// A server with memory for four messages, whose application keeps the fields of all requests, and
/// the fields. Messages do not wait for memory.
fn keeps_all() -> (Pair, Rc<RefCell<Vec<Bytes>>>) {
    let intents = Intents {
        max_message_len: LONGEST,
        message_memory: 4 * LONGEST as u64,
        waits_for_memory: false,
        ..Intents::default()
    };
    let all_kept = Rc::<RefCell<Vec<Bytes>>>::default();
    let kept = Rc::clone(&all_kept);
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        methods.unary_with(&KEEP, GeneratedCodec, GeneratedCodec, move |request| {
            let message: PutRequest = Request::into_inner(request);
            kept.borrow_mut().push(message.data);
            async { Ok(Response::new(PutRequest::default())) }
        });
    });
    pair.network().use_reads();
    (pair, all_kept)
}

/// Calls the method that keeps the field of its request.
async fn keep(channel: &LocalChannel, len: usize) -> Result<(), CallError> {
    let data = message(len).into();
    let call = channel.unary_with(
        &KEEP,
        Request::new(PutRequest { data }),
        GeneratedCodec,
        GeneratedCodec,
    );
    let _: Response<PutRequest> = call.await?;
    Ok(())
}

/// A connection may use a quarter of the memory, which is that for one of the longest messages.
#[test]
fn a_connection_receives_a_message_whatever_its_application_keeps() {
    let (pair, kept) = keeps_all();
    let channel = pair.connect();
    pair.run(keep(&channel, 12_000)).unwrap();
    pair.run(keep(&channel, LONGEST - 100)).unwrap();
    assert_eq!(kept.borrow().len(), 2);
    // What was fetched of them in segments uses nothing else.
    let memory = pair.server().with_transport(|it| it.peer_memory());
    assert_eq!(memory.heap_in_use(), 0);
    kept.borrow_mut().clear();
    pair.assert_nothing_left();
}

/// Slots longer than the bytes that a sender may send before the receiver has memory.
#[test]
fn long_slots_carry_no_more_than_the_free_bytes_of_a_message() {
    const LONG: usize = 1 << 20;
    let intents = Intents {
        max_message_len: LONG,
        message_memory: 4 * LONG as u64,
        ..Intents::default()
    };
    let mut network = Network::new(Faults::none(), 0);
    network.use_slots(256 * 1024);
    let gate = Gate::default();
    gate.open();
    let server = network.add("server", &intents, |methods| register(methods, &gate));
    let client = network.add("client", &intents, |_| ());
    let channel = client.poller().connect("server").unwrap();
    let memory = server.with_transport(|transport| {
        let connection = rpc_core::transport::ConnectionId {
            index: 0,
            generation: 0,
        };
        [(); 4].map(|()| transport.allocate_for(connection, LONG).unwrap())
    });
    let mut call: Call<'_> = Box::pin(echo(&channel, message(LONG - 100)));
    assert!(network.try_run(&mut call).is_none());
    drop(memory);
    let echoed = network.try_run(call).expect("it has memory").unwrap();
    assert!(echoed == message(LONG - 100));
    drop(channel);
    network.assert_nothing_left();
}

/// Messages to a server that reads none of them: their pieces use few bytes, and a window each.
#[test]
fn a_server_that_reads_nothing_leaves_windows_to_others() {
    /// Each message has several pieces.
    const LEN: usize = 200_000;
    const CALLS: usize = 100;
    let mut network = Network::new(Faults::none(), 0);
    network.use_reads();
    let gate = Gate::default();
    gate.open();
    network.add("server", &Intents::default(), |methods| {
        register(methods, &gate);
    });
    let client = network.add("client", &Intents::default(), |_| ());
    let raw = Raw::server(&network, &[&ECHO]);
    let hostile = client.poller().connect("hostile").unwrap();
    let channel = client.poller().connect("server").unwrap();
    let mut calls: Vec<Call<'_>> = (0..CALLS)
        .map(|_| Box::pin(echo(&hostile, message(LEN))) as Call<'_>)
        .collect();
    let mut announced = 0;
    // The peer lets this side send one call at a time.
    for _ in 0..2 * CALLS {
        for call in &mut calls {
            assert!(poll_once(call).is_pending());
        }
        let is_request = |frame: &FrameHeader| frame.flags.contains(Flags::LONG);
        let arrived = raw.settle();
        announced += arrived.iter().filter(|(it, _)| is_request(it)).count();
    }
    assert_eq!(announced, CALLS, "messages wait for windows, not to begin");
    assert_eq!(client.slot_counts().exposed, 128);
    let echoed = network.try_run(echo(&channel, message(LEN)));
    assert!(echoed.expect("it has windows").unwrap() == message(LEN));
    raw.peer.close();
    for call in calls {
        assert!(network.try_run(call).expect("it ends").is_err());
    }
    drop((channel, hostile));
    network.assert_nothing_left();
}

#[test]
fn the_answer_of_a_handler_arrives_though_a_later_message_to_it_gets_no_memory() {
    let intents = Intents {
        max_message_len: LONGEST,
        message_memory: 4 * LONGEST as u64,
        waits_for_memory: false,
        ..Intents::default()
    };
    let kept = Rc::<RefCell<Option<Streaming<Vec<u8>>>>>::default();
    let requests = Rc::clone(&kept);
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        methods.client_streaming(&COLLECT, move |request: Request<Streaming<Vec<u8>>>| {
            *requests.borrow_mut() = Some(request.into_inner());
            std::future::ready(Ok(Response::new(Vec::<u8>::new())))
        });
    });
    pair.network().use_reads();
    let raw = Raw::client(pair.network());
    // Without a credit for the response, which waits.
    raw.send(open(1, 0, Flags::NONE), &[]);
    assert!(kept.borrow().is_some(), "the handler has run");
    let used = all_memory(&pair, LONGEST);
    // Also a second one, which gets the place of the first among the messages that arrive.
    for transfer in [9, 10] {
        let long = FrameHeader {
            call: CallId(1),
            selector: ONE_MESSAGE,
            ..long(FrameKind::Message)
        };
        let mut body = vec![0; LONG_BODY_LEN];
        LongBody::encode(
            TransferId(transfer),
            LONGEST as u32 / 2,
            SEGMENTS,
            &mut body,
        );
        let frames = raw.send(long, &body);
        assert_eq!(entries(&frames, transfer), [ControlRequest::Stopped]);
        let (abandoned, nothing) = continuation(transfer, ABANDONED, &[]);
        raw.send(abandoned, &nothing);
    }
    let credits = FrameHeader {
        credits: 2,
        ..header(FrameKind::Control)
    };
    let frames = raw.send(credits, &[]);
    let of_response = |(header, _): &&Frame| header.kind == FrameKind::Response;
    let (response, _) = frames.iter().find(of_response).expect("a response");
    assert_eq!(response.selector, Code::Ok as u16);
    drop((kept.take(), used));
    raw.peer.close();
    raw.settle();
    pair.assert_nothing_left();
}
