use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::Waker;

use super::*;
use crate::codec::ProstCodec;
use crate::limits::{LengthLimit, MessageLimit};
use crate::method::{Idempotency, MethodKind};
use crate::peer_memory::memory_of_a_host;
use crate::protocol::frame::ResponseHead;
use crate::status::Code;
use crate::stream::batch::MessageForm;
use crate::stream::core::SignalQueue;
use crate::stream::end::ResponseBody;
use crate::stream::outbound::StreamSizes;
use crate::stream::turns::LocalTurns;

static METHOD: MethodSpec = MethodSpec::new(
    "test.Test/Chat",
    MethodKind::Streaming,
    Idempotency::Unknown,
    "bytes",
    "bytes",
);

const SIZES: StreamSizes = StreamSizes {
    frame_room: 64,
    inbound_window: 256,
    outbound_window: 256,
    coalesces: true,
    longest_message: MessageLimit::new(64, LengthLimit::Receiver),
    is_served: false,
};

/// A channel whose streams the test drives by hand.
#[derive(Default)]
struct TestChannel {
    opened: RefCell<Vec<(Arc<StreamCore>, StreamRequest)>>,
    given_up: Cell<u32>,
    pushback: Cell<Duration>,
    turns: Option<LocalTurns>,
}

#[derive(Debug)]
struct NoQueue;

impl SignalQueue for NoQueue {
    fn push_stream(&self, _: u32) {}
}

impl OpenStream for TestChannel {
    fn deadline_after(&self, timeout: Duration) -> Option<Instant> {
        Instant::now().checked_add(timeout)
    }

    fn new_core(&self) -> Arc<StreamCore> {
        StreamCore::of_local_poller(None, self.turns)
    }

    fn open(&self, core: &Arc<StreamCore>, stream: StreamRequest) -> u64 {
        assert!(
            core.attach(Arc::new(NoQueue), 0, SIZES, memory_of_a_host())
                .is_none()
        );
        let mut opened = self.opened.borrow_mut();
        opened.push((Arc::clone(core), stream));
        opened.len() as u64
    }

    fn give_up(&self, number: u64) {
        assert!(self.core().lock().is_cancelled(), "cancelled before");
        assert_eq!(number, self.opened.borrow().len() as u64);
        self.given_up.set(self.given_up.get() + 1);
    }

    fn push_back(&self, pushback: Duration) {
        self.pushback.set(pushback);
    }
}

impl TestChannel {
    fn core(&self) -> Arc<StreamCore> {
        Arc::clone(&self.opened.borrow().last().unwrap().0)
    }

    /// Ends the call with a response that consists of this message.
    fn respond(&self, code: Code, pushback_us: u32, message: &[u8]) {
        let head = ResponseHead {
            code: code.number(),
            metadata_len: 0,
            has_initial: false,
            pushback_us,
        };
        let body = message.to_vec();
        let body = ResponseBody::Short(body);
        self.core().end(StreamEnd::Response { head, body });
    }

    /// Takes what the client has sent: the bodies of its frames, and whether it has half-closed.
    fn sent(&self) -> (Vec<Vec<u8>>, bool) {
        let (mut bodies, mut is_closed) = (Vec::new(), false);
        let core = self.core();
        let mut state = core.lock();
        while let Some(frame) = state.outbound.next_frame() {
            let mut body = vec![0; frame.metadata_len + frame.message_len];
            state.outbound.write_frame(&frame, &mut body);
            is_closed |= frame.is_last;
            if frame.form != MessageForm::None {
                bodies.push(body);
            }
        }
        (bodies, is_closed)
    }
}

/// Encodes a message of bytes, as prost does: field 1.
fn encoded(bytes: &[u8]) -> Vec<u8> {
    prost::Message::encode_to_vec(&bytes.to_vec())
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A stream of these messages.
struct Messages(Vec<Vec<u8>>, bool);

impl Stream for Messages {
    type Item = Vec<u8>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        if !self.0.is_empty() {
            return Poll::Ready(Some(self.0.remove(0)));
        }
        assert!(!self.1, "the stream panics as asked");
        Poll::Ready(None)
    }
}

type Called<'a> = OpenCall<'a, TestChannel, Vec<u8>>;

fn open<'a>(channel: &'a TestChannel, request: &Request<Vec<u8>>) -> Called<'a> {
    OpenCall::open::<ProstCodec, ProstCodec, _>(channel, &METHOD, request, None)
}

fn open_sending(channel: &TestChannel, messages: Messages) -> Called<'_> {
    let request = Request::new(messages);
    OpenCall::open_sending::<ProstCodec, ProstCodec, _, _>(channel, &METHOD, request, None)
}

#[test]
fn a_stream_of_responses_begins_with_metadata_and_continues_with_messages() {
    let channel = TestChannel::default();
    let mut request = Request::new(b"watch".to_vec()).with_timeout(Duration::from_secs(1));
    request.metadata_mut().insert("key", "value").unwrap();
    let mut call = pin!(open(&channel, &request).begun());
    assert!(poll(call.as_mut()).is_pending());
    {
        let opened = &channel.opened.borrow()[0].1;
        let message = &opened.frame[HEADER_LEN + opened.metadata_len..];
        assert_eq!(message, encoded(b"watch"));
        assert_eq!(opened.metadata_len, request.metadata().encoded_len());
        assert!(!opened.sends_messages && opened.deadline.is_some());
    }
    let mut initial = vec![0; request.metadata().encoded_len()];
    request.metadata().encode(&mut initial);
    let core = channel.core();
    core.lock().inbound.begin(&initial);
    let Poll::Ready(Ok(response)) = poll(call.as_mut()) else {
        panic!("the server has begun");
    };
    assert_eq!(response.metadata().get("key"), Some("value"));
    let mut messages = response.into_inner();
    let body = encoded(b"event");
    core.lock()
        .inbound
        .receive(MessageForm::One, &body)
        .unwrap();
    let event = poll(pin!(messages.message()));
    assert!(matches!(event, Poll::Ready(Ok(Some(event))) if event == b"event"));
    assert!(!core.lock().is_cancelled());
    drop(messages);
    assert!(core.lock().is_cancelled());
    assert_eq!(channel.given_up.get(), 0);
}

#[test]
fn a_call_that_ends_before_its_first_message_fails_or_is_an_empty_stream() {
    let channel = TestChannel::default();
    let request = Request::new(Vec::new());
    let mut call = pin!(open(&channel, &request).begun());
    assert!(poll(call.as_mut()).is_pending());
    // One more than the microseconds.
    channel.respond(Code::ResourceExhausted, 2001, &[]);
    let Poll::Ready(Err(error)) = poll(call) else {
        panic!("the server has refused the call");
    };
    assert_eq!(error.execution(), Execution::NotStarted);
    assert_eq!(channel.pushback.get(), Duration::from_millis(2));

    let mut call = pin!(open(&channel, &request).begun());
    assert!(poll(call.as_mut()).is_pending());
    channel.respond(Code::Ok, 0, &[]);
    let Poll::Ready(Ok(response)) = poll(call) else {
        panic!("the call has succeeded");
    };
    let mut messages = response.into_inner();
    assert!(matches!(
        poll(pin!(messages.message())),
        Poll::Ready(Ok(None))
    ));
    drop(messages);
    assert!(!channel.core().lock().is_cancelled(), "it has ended");
    assert_eq!(channel.given_up.get(), 0);
}

#[test]
fn a_stream_of_requests_is_sent_and_half_closed_and_then_answered() {
    let channel = TestChannel::default();
    let messages = Messages(vec![b"a".to_vec(), b"b".to_vec()], false);
    let mut call = pin!(open_sending(&channel, messages).response());
    assert!(poll(call.as_mut()).is_pending());
    let opened = &channel.opened.borrow()[0].1;
    assert!(opened.sends_messages && opened.frame.len() == HEADER_LEN);
    let batch = [[3, 0, 0, 0, 10, 1, b'a'], [3, 0, 0, 0, 10, 1, b'b']].concat();
    assert_eq!(channel.sent(), (vec![batch], true));
    channel.respond(Code::Ok, 0, &encoded(b"both"));
    let Poll::Ready(Ok(response)) = poll(call) else {
        panic!("the server has responded");
    };
    assert_eq!(response.into_inner(), b"both");
    assert!(!channel.core().lock().is_cancelled());
}

#[test]
fn a_call_that_is_dropped_before_its_end_is_cancelled() {
    let channel = TestChannel::default();
    let endless = || Messages(vec![vec![7; 20]; 100], false);
    for count in 1..=2 {
        let mut call = Box::pin(open_sending(&channel, endless()).response());
        for _ in 1..count {
            assert!(poll(call.as_mut()).is_pending());
        }
        drop(call);
        assert!(channel.core().lock().is_cancelled());
        assert_eq!(channel.given_up.get(), count);
    }
}

#[test]
fn a_message_that_is_too_long_fails_the_call_with_its_cause() {
    let channel = TestChannel::default();
    let messages = Messages(vec![vec![7; 100]], false);
    let call = pin!(open_sending(&channel, messages).begun());
    let Poll::Ready(Err(error)) = poll(call) else {
        panic!("the message does not fit");
    };
    let limit = SIZES.frame_room;
    let is_limit =
        |cause: &Cause| matches!(cause, Cause::RequestTooLong { limit: l, .. } if *l == limit);
    assert!(is_limit(error.cause()), "{error}");
    assert!(channel.core().lock().is_cancelled());
}

#[test]
fn a_stream_of_requests_that_panics_cancels_the_call() {
    let channel = TestChannel::default();
    let mut call = Box::pin(open_sending(&channel, Messages(Vec::new(), true)).response());
    catch_unwind(AssertUnwindSafe(|| poll(call.as_mut()))).unwrap_err();
    assert!(channel.core().lock().is_cancelled());
    assert_eq!(channel.given_up.get(), 1);

    // The call has begun, so its messages are with the application.
    let mut call = pin!(open_sending(&channel, Messages(vec![vec![7; 60]; 9], true)).begun());
    assert!(poll(call.as_mut()).is_pending());
    channel.core().lock().inbound.begin(&[]);
    let Poll::Ready(Ok(response)) = poll(call) else {
        panic!("the server has begun");
    };
    let mut messages = response.into_inner();
    let core = channel.core();
    for _ in 0..3 {
        channel.sent();
        assert!(core.lock().outbound.grant(256));
        let polled = catch_unwind(AssertUnwindSafe(|| poll(pin!(messages.message()))));
        if polled.is_err() {
            assert!(core.lock().is_cancelled());
            return;
        }
    }
    panic!("the stream of requests has not been polled to its end");
}

#[test]
fn a_call_outside_its_pollers_turns_takes_one_and_wakes_itself() {
    thread_local! {
        static TAKEN: Cell<u32> = const { Cell::new(0) };
    }
    let take = |poller| {
        assert_eq!(poller, 7);
        TAKEN.set(TAKEN.get() + 1);
        // The second turn is not taken: the thread is inside one.
        TAKEN.get() != 2
    };
    let channel = TestChannel {
        turns: Some(LocalTurns {
            poller: 7,
            take,
            send: |_, _| false,
        }),
        ..TestChannel::default()
    };
    let request = Request::new(Vec::new());
    let mut call = pin!(open(&channel, &request).begun());
    let woken = Arc::new(CountWakes::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    for (taken, wakes) in [(1, 1), (2, 1), (3, 2)] {
        assert!(call.as_mut().poll(&mut cx).is_pending());
        assert_eq!(TAKEN.get(), taken);
        assert_eq!(woken.0.load(std::sync::atomic::Ordering::Relaxed), wakes);
    }
    channel.respond(Code::Ok, 0, &[]);
    assert!(call.as_mut().poll(&mut cx).is_ready());
    assert_eq!(TAKEN.get(), 3, "only a call that has to wait takes a turn");
}

#[derive(Default)]
struct CountWakes(std::sync::atomic::AtomicU32);

impl std::task::Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}
