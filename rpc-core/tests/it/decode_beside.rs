//! Messages that take long to decode are decoded beside the poller: on which thread, in which order, and what
//! is left of calls that end meanwhile.

use std::pin::{Pin, pin};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, bytes as encoding};
use prost::{DecodeError, Message};
use rpc_core::for_testing::{DECODING_THREAD, decode_beside};
use rpc_core::{
    CallError, Caller, Code, Idempotency, LocalChannel, MethodKind, MethodSpec, Methods, Request,
    Response, Streaming, stream,
};
use rpc_core_testing::Pair;

const fn spec(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "bytes", "bytes")
}

const ECHO: MethodSpec = spec("test.Beside/Echo", MethodKind::Unary);
const COLLECT: MethodSpec = spec("test.Beside/Collect", MethodKind::ClientStreaming);
const SEND: MethodSpec = spec("test.Beside/Send", MethodKind::ServerStreaming);

/// Longer than a slot.
const LONG: usize = 20_000;

/// The first byte of a message whose decode waits for [`GATE`], and of one whose decode panics.
const HELD: u8 = 0xee;
const PANICS: u8 = 0xef;

/// Whether decodes are held.
static GATE: Gate = Gate(Mutex::new(false), Condvar::new());

struct Gate(Mutex<bool>, Condvar);

impl Gate {
    /// Holds decodes until the guard is dropped. Tests that hold decodes run one after the other.
    fn hold(&self) -> Held {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        *self.0.lock().unwrap() = true;
        Held { _one: one }
    }

    fn pass(&self) {
        let mut holds = self.0.lock().unwrap();
        while *holds {
            holds = self.1.wait(holds).unwrap();
        }
    }

    fn open(&self) {
        *self.0.lock().unwrap() = false;
        self.1.notify_all();
    }
}

struct Held {
    _one: MutexGuard<'static, ()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        GATE.open();
    }
}

/// Bytes that know whether they were decoded beside the poller.
#[derive(Clone, Default, Debug)]
struct Traced {
    bytes: Vec<u8>,
    is_beside: bool,
}

impl Traced {
    fn new(number: u8, len: usize) -> Self {
        Self {
            bytes: vec![number; len],
            is_beside: false,
        }
    }

    /// The number of the message, and whether it was decoded beside the poller.
    fn seen(&self) -> [u8; 2] {
        [self.bytes[0], self.is_beside.into()]
    }
}

impl Message for Traced {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        encoding::encode(1, &self.bytes, buf);
    }

    fn merge_field(
        &mut self,
        _: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        encoding::merge(wire_type, &mut self.bytes, buf, context)?;
        self.is_beside = thread::current().name() == Some(DECODING_THREAD);
        match self.bytes.first() {
            Some(&HELD) => GATE.pass(),
            Some(&PANICS) => panic!("asked to panic"),
            _ => {}
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        encoding::encoded_len(1, &self.bytes)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

fn register(methods: &mut Methods) {
    // The response is as long, and begins with what the server has seen.
    methods.unary(&ECHO, |request: Request<Traced>| async {
        let message = request.into_inner();
        let mut response = Traced::new(0, message.bytes.len());
        response.bytes[..2].copy_from_slice(&message.seen());
        Ok(Response::new(response))
    });
    methods.client_streaming(&COLLECT, |request: Request<Streaming<Traced>>| async {
        let mut messages = request.into_inner();
        let mut seen = Vec::new();
        while let Some(message) = messages.message().await? {
            seen.extend(message.seen());
        }
        seen.resize(LONG, 0);
        Ok(Response::new(Traced {
            bytes: seen,
            is_beside: false,
        }))
    });
    methods.server_streaming(&SEND, |request: Request<Traced>, responses| async move {
        let first = request.into_inner().seen();
        let messages = stream(async move |mut responses| {
            for (number, len) in ORDER {
                responses.send(Traced::new(first[1] + number, len)).await?;
            }
            Ok(())
        });
        responses.send_all(Ok(Response::new(messages))).await
    });
}

/// Messages that are short and long in turn.
const ORDER: [(u8, usize); 7] = [
    (10, 5),
    (20, LONG),
    (30, 5),
    (40, 6),
    (50, LONG),
    (60, LONG),
    (70, 5),
];

/// Returns a pair of nodes whose thread passes all decodes of long messages on.
fn pair() -> Pair {
    decode_beside(0);
    Pair::new(register)
}

/// Takes turns until `done` returns something. The other thread takes its time.
fn until<R>(pair: &Pair, mut done: impl FnMut() -> Option<R>) -> R {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(done) = done() {
            return done;
        }
        assert!(Instant::now() < patience, "nothing happens any more");
        if !pair.network().step() {
            thread::yield_now();
        }
    }
}

fn run<F: Future>(pair: &Pair, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    until(pair, || match future.as_mut().poll(&mut cx) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    })
}

async fn echo(channel: &LocalChannel, request: Request<Traced>) -> Result<Traced, CallError> {
    let response = channel.unary(&ECHO, request).await?;
    Ok(response.into_inner())
}

/// Waits until the decoding thread has dropped all messages.
fn assert_nothing_left(pair: &Pair) {
    until(pair, || {
        let nodes = [pair.client(), pair.server()];
        let is_empty = nodes.iter().all(|node| node.leftovers().is_empty());
        is_empty.then_some(())
    });
    pair.assert_nothing_left();
}

#[test]
fn requests_and_responses_are_decoded_beside_the_poller_if_they_have_their_own_memory() {
    let pair = pair();
    let channel = pair.connect();
    for (len, is_beside) in [(5, false), (LONG, true)] {
        let response = run(&pair, echo(&channel, Request::new(Traced::new(7, len)))).unwrap();
        assert_eq!(response.bytes[..2], [7, is_beside.into()]);
        assert_eq!(response.is_beside, is_beside);
        assert_eq!(response.bytes.len(), len);
    }
    assert_nothing_left(&pair);
}

#[test]
fn what_takes_little_is_decoded_at_once() {
    let pair = pair();
    decode_beside(u64::MAX);
    let channel = pair.connect();
    let response = pair.run(echo(&channel, Request::new(Traced::new(7, LONG))));
    let response = response.unwrap();
    assert_eq!((response.seen(), response.bytes[1]), ([7, 0], 0));
    pair.assert_nothing_left();
}

#[test]
fn the_messages_of_a_stream_keep_their_order() {
    let pair = pair();
    let channel = pair.connect();
    let expected: Vec<u8> = ORDER
        .iter()
        .flat_map(|(number, len)| [*number, (*len == LONG).into()])
        .collect();
    let sent = futures::messages(&ORDER);
    let response = run(
        &pair,
        channel.client_streaming(&COLLECT, Request::new(sent)),
    );
    let response: Traced = response.unwrap().into_inner();
    assert_eq!(response.bytes[..expected.len()], expected);
    assert!(response.is_beside);

    let received = run(&pair, async {
        let request = Request::new(Traced::new(0, LONG));
        let response = channel.server_streaming(&SEND, request).await?;
        let mut messages: Streaming<Traced> = response.into_inner();
        let mut seen = Vec::new();
        while let Some(message) = messages.message().await? {
            // The server has added one, because it has decoded the request beside its poller.
            seen.extend([message.bytes[0] - 1, message.is_beside.into()]);
        }
        Ok::<_, CallError>(seen)
    });
    assert_eq!(received.unwrap(), expected);
    assert_nothing_left(&pair);
}

mod futures {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use rpc_core::codegen::v1::Stream;

    use super::Traced;

    /// A stream of messages with these numbers and lengths.
    pub(super) struct Messages(&'static [(u8, usize)]);

    pub(super) fn messages(order: &'static [(u8, usize)]) -> Messages {
        Messages(order)
    }

    impl Stream for Messages {
        type Item = Traced;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Traced>> {
            let Some(((number, len), rest)) = self.0.split_first() else {
                return Poll::Ready(None);
            };
            let message = Traced::new(*number, *len);
            self.0 = rest;
            Poll::Ready(Some(message))
        }
    }
}

#[test]
fn a_decode_that_panics_fails_its_call_alone() {
    let pair = pair();
    let channel = pair.connect();
    let failed = run(
        &pair,
        echo(&channel, Request::new(Traced::new(PANICS, LONG))),
    );
    assert_eq!(failed.unwrap_err().code(), Code::Internal);
    run(&pair, echo(&channel, Request::new(Traced::new(7, LONG)))).unwrap();
    assert_nothing_left(&pair);
}

type Call<'a> = Pin<Box<dyn Future<Output = Result<Traced, CallError>> + 'a>>;

/// Begins calls of which the first is being decoded, and the second waits for it.
fn begin<'a>(pair: &Pair, channel: &'a LocalChannel, timeout: Option<Duration>) -> [Call<'a>; 2] {
    let mut calls = [HELD, 7].map(|number| {
        let mut request = Request::new(Traced::new(number, LONG));
        if let Some(timeout) = timeout {
            request = request.with_timeout(timeout);
        }
        Box::pin(echo(channel, request)) as Call<'_>
    });
    let mut cx = Context::from_waker(Waker::noop());
    until(pair, || {
        for call in &mut calls {
            assert!(call.as_mut().poll(&mut cx).is_pending());
        }
        let stats = pair.server().poller().stats().total();
        let awaited: u64 = stats.handlers.awaited;
        (awaited >= 2).then_some(())
    });
    calls
}

#[test]
fn calls_that_end_while_their_requests_are_decoded_leave_nothing_behind() {
    // The clients give up.
    let held = GATE.hold();
    let pair = pair();
    let channel = pair.connect();
    drop(begin(&pair, &channel, None));
    pair.network().settle();
    drop(held);
    assert_nothing_left(&pair);

    // The deadlines pass.
    let held = GATE.hold();
    let calls = begin(&pair, &channel, Some(Duration::from_secs(1)));
    pair.network().advance(Duration::from_secs(2));
    for call in calls {
        assert_eq!(run(&pair, call).unwrap_err().code(), Code::DeadlineExceeded);
    }
    drop(held);
    assert_nothing_left(&pair);

    // The connection ends.
    let held = GATE.hold();
    let calls = begin(&pair, &channel, None);
    let ended = pair.connect();
    drop(calls);
    drop(channel);
    drop(held);
    run(&pair, echo(&ended, Request::new(Traced::new(7, LONG)))).unwrap();
    assert_nothing_left(&pair);
}

/// A call whose response is being decoded does not wait for the thread if it is dropped.
#[test]
fn a_call_that_is_dropped_while_its_response_is_decoded_leaves_nothing_behind() {
    let pair = pair();
    let channel = pair.connect();
    let mut call = Box::pin(echo(&channel, Request::new(Traced::new(HELD, LONG))));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
    until(&pair, || {
        let stats = pair.server().poller().stats().total();
        let sent = stats.transfers.bytes_sent as usize;
        (sent >= LONG).then_some(())
    });
    // The response begins with the number of the request: its decode waits.
    let held = GATE.hold();
    until(&pair, || {
        assert!(call.as_mut().poll(&mut cx).is_pending());
        // All that is left of the call is the message.
        let left = pair.client().leftovers();
        let mut left = left.iter();
        let is_decoding = left.all(|left| left.ends_with("bytes of long messages"));
        is_decoding.then_some(())
    });
    drop(call);
    drop(held);
    assert_nothing_left(&pair);
}
