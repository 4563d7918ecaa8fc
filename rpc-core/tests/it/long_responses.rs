//! Long responses from servers without a driver: those for which the client has no memory, and those
//! that are given up.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::support::raw::{Raw, continuation, header, long};
use rpc_core::frame::{
    ABANDONED, FRAGMENT, Flags, FrameHeader, FrameKind, LONG_BODY_LEN, LongBody, ONE_MESSAGE,
    SEGMENTS, TransferId,
};
use rpc_core::transport::{ConnectionId, Transport};
use rpc_core::{
    CallError, Caller, Code, Idempotency, Intents, MethodKind, MethodSpec, Request, Response,
    Streaming, sender,
};
use rpc_core_testing::{Faults, Network, Node};

const COLLECT: MethodSpec = MethodSpec::new(
    "test.Test/Collect",
    MethodKind::ClientStreaming,
    Idempotency::Unknown,
    "bytes",
    "bytes",
);

const SEND: MethodSpec = MethodSpec::new(
    "test.Test/Send",
    MethodKind::ServerStreaming,
    Idempotency::Unknown,
    "bytes",
    "bytes",
);

/// The longest message. The client has memory for two.
const LONGEST: usize = 100_000;

/// The number of the message.
const TRANSFER: u32 = 9;

type Outcome = Result<Response<Vec<u8>>, CallError>;

/// Lets a client call a server, which does what `serve` does, with the header of its response. Returns
/// the call's outcome if it has ended then. Afterwards the client has nothing left.
fn called(
    reads: bool,
    serve: impl FnOnce(&Raw<'_>, &Network, &Rc<Node>, FrameHeader),
) -> Option<Outcome> {
    let mut network = Network::new(Faults::none(), 0);
    if reads {
        network.use_reads();
    }
    let intents = Intents {
        max_message_len: LONGEST,
        message_memory: 2 * LONGEST as u64,
        ..Intents::default()
    };
    let client = network.add("client", &intents, |_| ());
    let raw = Raw::server(&network, &[&COLLECT]);
    let channel = client.poller().connect("hostile").unwrap();
    let (_requests, messages) = sender::<Vec<u8>>();
    let mut call = Box::pin(channel.client_streaming(&COLLECT, Request::new(messages)));
    assert!(network.try_run(&mut call).is_none());
    let frames = raw.settle();
    let response = FrameHeader {
        call: frames[0].0.call,
        flags: Flags::STREAM | Flags::LONG,
        ..long(FrameKind::Response)
    };
    serve(&raw, &network, &client, response);
    let outcome = network.try_run(&mut call);
    raw.peer.close();
    network.settle();
    drop(call);
    drop(channel);
    network.assert_nothing_left();
    outcome
}

fn body(form: u16, piece: &[u8]) -> Vec<u8> {
    let mut body = vec![0; LONG_BODY_LEN];
    LongBody::encode(TransferId(TRANSFER), LONGEST as u32, form, &mut body);
    body.extend(piece);
    body
}

#[test]
fn a_response_that_gets_no_memory_ends_its_call_and_no_other() {
    for (reads, form) in [(false, FRAGMENT), (true, SEGMENTS)] {
        let outcome = called(reads, |raw, network, client, response| {
            let memory = client.with_transport(|transport| {
                let connection = ConnectionId {
                    index: 0,
                    generation: 0,
                };
                [(); 2].map(|()| transport.allocate_for(connection, LONGEST).unwrap())
            });
            raw.send(response, &body(form, &[]));
            network.advance(Duration::from_secs(14));
            raw.settle();
            network.advance(Duration::from_secs(1));
            raw.settle();
            // The server would close the connection after 30 s.
            assert!(!raw.peer.is_closed());
            drop(memory);
        });
        let error = outcome.expect("the call has ended").unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    }
}

#[test]
fn a_server_that_gives_up_its_response_loses_its_connection() {
    let outcome = called(false, |raw, _, _, response| {
        raw.send(response, &body(FRAGMENT, &[1; 10]));
        assert!(!raw.peer.is_closed());
        let (abandoned, nothing) = continuation(TRANSFER, ABANDONED, &[]);
        raw.send(abandoned, &nothing);
        assert!(raw.peer.is_closed());
    });
    let error = outcome.expect("the call has ended").unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_reader_is_woken_when_the_message_before_the_end_is_given_up() {
    let mut network = Network::new(Faults::none(), 0);
    let intents = Intents {
        max_message_len: LONGEST,
        ..Intents::default()
    };
    let client = network.share("hostile", &intents);
    let raw = Raw::server(&network, &[&SEND]);
    // A reader elsewhere: one beside the poller looks in each turn.
    let channel = client.channel().clone();
    let mut call = Box::pin(channel.server_streaming(&SEND, Request::new(vec![1])));
    assert!(network.try_run(&mut call).is_none());
    let number = raw.settle()[0].0.call;
    let first = FrameHeader {
        call: number,
        selector: ONE_MESSAGE,
        ..long(FrameKind::Message)
    };
    raw.send(first, &body(FRAGMENT, &[1; 10]));
    let begun = network.try_run(&mut call).expect("the server has begun");
    let mut messages: Streaming<Vec<u8>> = begun.unwrap().into_inner();
    // The server fails the call, and says only afterwards that the rest of the message does not come.
    let failed = FrameHeader {
        call: number,
        selector: Code::Aborted as u16,
        flags: Flags::STREAM,
        ..header(FrameKind::Response)
    };
    raw.send(failed, &[]);
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut cx = Context::from_waker(&waker);
    let mut read = Box::pin(messages.message());
    assert!(read.as_mut().poll(&mut cx).is_pending());
    let (abandoned, nothing) = continuation(TRANSFER, ABANDONED, &[]);
    raw.send(abandoned, &nothing);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    let Poll::Ready(Err(error)) = read.as_mut().poll(&mut cx) else {
        panic!("the call has failed");
    };
    assert_eq!(error.code(), Code::Aborted, "{error}");
    drop(read);
    drop((call, messages));
    drop(channel);
    raw.peer.close();
    network.settle();
    network.assert_nothing_left();
}
