//! Long messages of streams: their order among short ones, slow readers, and every way to end.
//!
//! `VERBLINE_SEED=<seed> cargo test -p rpc-core --test it streams_long::` replays a seed of the random
//! test; `VERBLINE_SEEDS=<count>` sets the number of seeds to try.
#![allow(
    clippy::print_stderr,
    reason = "prints a failing seed for the person who runs the test"
)]

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rpc_core::{
    CallError, Caller, Code, Execution, Idempotency, Intents, LocalChannel, MethodKind, MethodSpec,
    Methods, Request, Response, SendError, Status, Streaming, sender, stream,
};
use rpc_core_testing::{Ending, Faults, Mix, MixCall, Network, Order, Pair, Random};

const fn spec(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "bytes", "bytes")
}

const COLLECT: MethodSpec = spec("test.Long/Collect", MethodKind::ClientStreaming);
const SEND: MethodSpec = spec("test.Long/Send", MethodKind::ServerStreaming);
const ECHO: MethodSpec = spec("test.Long/Echo", MethodKind::Streaming);
/// Reads nothing, and never ends.
const IDLE: MethodSpec = spec("test.Long/Idle", MethodKind::Streaming);

/// Longer than a slot, and than what is sent before the receiver has accepted it.
const LONG: usize = 200_000;

fn register(methods: &mut Methods) {
    // Returns all messages as one.
    methods.client_streaming(&COLLECT, |request: Request<Streaming<Vec<u8>>>| async {
        let mut messages = request.into_inner();
        let mut all = Vec::new();
        while let Some(message) = messages.message().await? {
            all.extend(message);
        }
        Ok(Response::new(all))
    });
    // Sends the request three times, with a short message behind each; then fails if it begins with 1.
    methods.server_streaming(&SEND, |request: Request<Vec<u8>>, responses| async move {
        let message = request.into_inner();
        let copies = stream(async move |mut responses| {
            for number in 0..3 {
                responses.send(message.clone()).await?;
                responses.send(vec![number]).await?;
            }
            match message.first() {
                Some(1) => Err(Status::aborted("it begins with 1")),
                _ => Ok(()),
            }
        });
        let mut response = Response::new(copies);
        response
            .trailing_metadata_mut()
            .insert("trailing", "1")
            .unwrap();
        responses.send_all(Ok(response)).await
    });
    register_echo(methods, &ECHO);
    methods.streaming(
        &IDLE,
        |request: Request<Streaming<Vec<u8>>>, responses| async move {
            let _messages = request.into_inner();
            let never = stream(async move |_responses: rpc_core::ResponseSender<Vec<u8>>| {
                std::future::pending().await
            });
            responses.send_all(Ok(Response::new(never))).await
        },
    );
}

fn register_echo(methods: &mut Methods, method: &'static MethodSpec) {
    methods.streaming(
        method,
        |request: Request<Streaming<Vec<u8>>>, responses| async move {
            let mut messages = request.into_inner();
            let echoes = stream(async move |mut responses| {
                while let Some(message) = messages.message().await? {
                    responses.send(message).await?;
                }
                Ok(())
            });
            responses.send_all(Ok(Response::new(echoes))).await
        },
    );
}

/// Runs a test with long messages in both forms.
fn in_both_forms(test: impl Fn(&Pair)) {
    for reads in [false, true] {
        let pair = Pair::new(register);
        if reads {
            pair.network().use_reads();
        }
        test(&pair);
        pair.assert_nothing_left();
    }
}

/// A message that tells its number at both ends.
fn message(number: u8, len: usize) -> Vec<u8> {
    let mut message: Vec<u8> = (0..len).map(|at| (at / 251) as u8 ^ number).collect();
    message[0] = number;
    message
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Begins a stream in both directions.
fn open(
    pair: &Pair,
    channel: &LocalChannel,
    method: &'static MethodSpec,
    timeout: Option<Duration>,
) -> (rpc_core::Sender<Vec<u8>>, Streaming<Vec<u8>>) {
    let (sender, messages) = sender();
    let mut request = Request::new(messages);
    if let Some(timeout) = timeout {
        request = request.with_timeout(timeout);
    }
    let response = pair.run(channel.streaming(method, request));
    (sender, response.unwrap().into_inner())
}

#[test]
fn a_client_streams_long_and_short_messages_and_gets_a_long_response() {
    in_both_forms(|pair| {
        let channel = pair.connect();
        let lens = [1, LONG, 30, 5000, 5000, 2, 70_000];
        let messages: Vec<_> = (0..).zip(lens).map(|(n, len)| message(n, len)).collect();
        let expected = messages.concat();
        let response = pair.run(async {
            let (mut sender, requests) = sender();
            let mut call = Box::pin(channel.client_streaming(&COLLECT, Request::new(requests)));
            assert!(poll(&mut call).is_none());
            for message in messages {
                let mut sent = Box::pin(sender.send(message));
                std::future::poll_fn(|cx| {
                    assert!(call.as_mut().poll(cx).is_pending());
                    sent.as_mut().poll(cx)
                })
                .await
                .unwrap();
            }
            drop(sender);
            call.await
        });
        let response: Vec<u8> = response.unwrap().into_inner();
        assert!(response == expected);
        drop(channel);
        pair.assert_nothing_left();
    });
}

#[test]
fn a_long_request_gets_a_stream_whose_status_is_behind_its_messages() {
    in_both_forms(|pair| {
        for begins_with in [0, 1] {
            let channel = pair.connect();
            let sent = message(begins_with, LONG);
            pair.run(async {
                let call = channel.server_streaming(&SEND, Request::new(sent.clone()));
                let mut messages: Streaming<Vec<u8>> = call.await.unwrap().into_inner();
                for number in 0..3 {
                    assert!(messages.message().await.unwrap() == Some(sent.clone()));
                    assert_eq!(messages.message().await.unwrap(), Some(vec![number]));
                }
                match begins_with {
                    0 => {
                        assert_eq!(messages.message().await.unwrap(), None);
                        let trailers = messages.trailers().await.unwrap();
                        assert_eq!(trailers.get("trailing"), Some("1"));
                    }
                    _ => {
                        let error = messages.message().await.unwrap_err();
                        assert_eq!(error.code(), Code::Aborted);
                    }
                }
            });
            drop(channel);
            pair.assert_nothing_left();
        }
    });
}

#[test]
fn long_messages_go_back_and_forth() {
    in_both_forms(|pair| {
        let channel = pair.connect();
        let (mut sender, mut echoes) = open(pair, &channel, &ECHO, None);
        pair.run(async {
            for number in 0..20 {
                let sent = message(number, 1 + usize::from(number) * 9_000);
                sender.send(sent.clone()).await.unwrap();
                assert!(echoes.message().await.unwrap() == Some(sent));
            }
            drop(sender);
            assert_eq!(echoes.message().await.unwrap(), None);
        });
        drop((echoes, channel));
        pair.assert_nothing_left();
    });
}

/// Sends messages until `send` waits. Returns how many were accepted.
fn fill(pair: &Pair, sender: &mut rpc_core::Sender<Vec<u8>>, len: usize) -> usize {
    for count in 0..100 {
        let mut sent = Box::pin(sender.send(message(count as u8, len)));
        if poll(&mut sent).is_none() {
            return count;
        }
        drop(sent);
        pair.network().settle();
    }
    100
}

#[test]
fn a_reader_that_does_not_read_holds_little_and_stops_no_other_stream() {
    in_both_forms(|pair| {
        let channel = pair.connect();
        let (mut sender, messages) = sender();
        let call = channel.clone();
        let mut idle = Box::pin(async move {
            let request = Request::new(messages);
            call.streaming::<_, Vec<u8>>(&IDLE, request).await
        });
        assert!(poll(&mut idle).is_none());
        pair.network().settle();
        let accepted = fill(pair, &mut sender, LONG);
        assert!(
            (2..=6).contains(&accepted),
            "{accepted} messages were accepted"
        );
        let stats = pair.server().poller().stats().total();
        let most = 2 * LONG as u64 + 3 * 64 * 1024;
        assert!(
            stats.transfers.bytes_received <= most,
            "{} bytes of messages that are not read",
            stats.transfers.bytes_received
        );
        let (mut other, mut echoes) = open(pair, &channel, &ECHO, None);
        pair.run(async {
            for number in 0..5 {
                other.send(message(number, LONG)).await.unwrap();
                assert!(echoes.message().await.unwrap() == Some(message(number, LONG)));
            }
        });
        drop((other, echoes, idle));
        assert_eq!(pair.run(sender.send(vec![1])), Err(SendError::Ended));
        drop((sender, channel));
        pair.assert_nothing_left();
    });
}

#[test]
fn a_call_that_is_dropped_in_the_middle_of_a_message_leaves_nothing() {
    for steps in 0..60 {
        in_both_forms(|pair| {
            let channel = pair.connect();
            let (mut sender, echoes) = open(pair, &channel, &ECHO, None);
            for number in 0..2 {
                let _ = poll(&mut Box::pin(sender.send(message(number, LONG))));
            }
            for _ in 0..steps {
                pair.network().step();
            }
            drop(echoes);
            pair.network().settle();
            drop((sender, channel));
            pair.assert_nothing_left();
        });
    }
}

#[test]
fn a_deadline_in_the_middle_of_a_message_ends_the_call() {
    for steps in 0..60 {
        in_both_forms(|pair| {
            let channel = pair.connect();
            let timeout = Duration::from_secs(1);
            let (mut sender, mut echoes) = open(pair, &channel, &ECHO, Some(timeout));
            for number in 0..2 {
                let _ = poll(&mut Box::pin(sender.send(message(number, LONG))));
            }
            for _ in 0..steps {
                pair.network().step();
            }
            pair.network().advance(2 * timeout);
            let error = pair.run(async {
                loop {
                    match echoes.message().await {
                        Ok(Some(message)) => assert_eq!(message.len(), LONG),
                        Ok(None) => panic!("the call has not ended by itself"),
                        Err(error) => return error,
                    }
                }
            });
            assert_eq!(error.code(), Code::DeadlineExceeded, "after {steps} steps");
            drop((sender, echoes, channel));
            pair.assert_nothing_left();
        });
    }
}

#[test]
fn a_message_beyond_the_limit_of_the_receiver_is_not_sent() {
    let intents = Intents {
        max_message_len: 10_000,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, register);
    let channel = pair.connect();
    let (mut sender, mut echoes) = open(&pair, &channel, &ECHO, None);
    // An encoded message has a few bytes more.
    let sent = pair.run(sender.send(message(0, 10_001)));
    let Err(SendError::TooLong {
        message_len, limit, ..
    }) = sent
    else {
        panic!("{sent:?}");
    };
    assert!(message_len > 10_000 && limit == 10_000, "{sent:?}");
    let error = pair.run(echoes.message()).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(
        error
            .to_string()
            .contains("the server's limit of 10000 bytes"),
        "{error}"
    );
    let request = Request::new(message(0, 20_000));
    let response = pair.run(channel.server_streaming::<_, Vec<u8>>(&SEND, request));
    let error = response.unwrap_err();
    assert_eq!(error.execution(), Execution::NeverSent);
    assert_eq!(error.code(), Code::ResourceExhausted);
    drop((sender, echoes, channel));
    pair.assert_nothing_left();
}

#[test]
fn messages_beyond_the_limit_of_their_method_are_not_sent() {
    // The encoded messages have 3 or 4 bytes more, for the tag and the length.
    const LIMITED: MethodSpec = spec("test.Long/Echo", MethodKind::Streaming)
        .with_max_request_len(3000)
        .with_max_response_len(3000);
    const LONGER: MethodSpec = spec("test.Long/Echo", MethodKind::Streaming)
        .with_max_request_len(50_005)
        .with_max_response_len(50_004);
    for (method, allowed) in [(&LIMITED, 2997), (&LONGER, 50_000)] {
        in_both_forms(|pair| {
            let channel = pair.connect();
            let (mut sender, mut echoes) = open(pair, &channel, method, None);
            pair.run(sender.send(message(1, allowed))).unwrap();
            let echo = pair.run(echoes.message()).unwrap().unwrap();
            assert_eq!(echo.len(), allowed);
            drop((sender, echoes));
            let (mut sender, mut echoes) = open(pair, &channel, method, None);
            let sent = pair.run(sender.send(message(1, allowed + 1)));
            if method.max_request_len == Some(3000) {
                assert!(
                    matches!(sent, Err(SendError::TooLong { limit: 3000, .. })),
                    "{sent:?}"
                );
            } else {
                sent.unwrap();
            }
            // The request of the second method is within its limit, and the echo is not.
            let error = pair.run(echoes.message()).unwrap_err();
            assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
            drop((sender, echoes, channel));
        });
    }
}

#[test]
fn a_server_refuses_messages_beyond_the_limit_of_its_method() {
    // The encoded messages have 4 bytes more.
    const OF_REQUESTS: MethodSpec =
        spec("test.Long/Echo", MethodKind::Streaming).with_max_request_len(50_004);
    const OF_RESPONSES: MethodSpec =
        spec("test.Long/Echo", MethodKind::Streaming).with_max_response_len(50_004);
    for method in [&OF_REQUESTS, &OF_RESPONSES] {
        for reads in [false, true] {
            let pair = Pair::new(|methods| register_echo(methods, method));
            if reads {
                pair.network().use_reads();
            }
            let channel = pair.connect();
            let (mut sender, mut echoes) = open(&pair, &channel, &ECHO, None);
            pair.run(sender.send(message(1, 50_000))).unwrap();
            assert_eq!(pair.run(echoes.message()).unwrap().unwrap().len(), 50_000);
            pair.run(sender.send(message(1, 50_001))).unwrap();
            let error = pair.run(echoes.message()).unwrap_err();
            assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
            assert!(error.to_string().contains("50004"), "{error}");
            drop((sender, echoes, channel));
            pair.assert_nothing_left();
        }
    }
}

/// Random calls of all kinds, whose messages are short, fit a slot, or do not.
struct World {
    random: Random,
    mix: Mix,
    network: Network,
    channels: Vec<LocalChannel>,
    calls: Vec<(Order, MixCall)>,
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let random = Random::new(seed ^ 0x10c6);
        let intents = Intents {
            max_in_flight: 1 + random.below(12) as u32,
            max_streams: 1 + random.below(12) as u32,
            message_memory: [1 << 20, 64 << 20][random.below(2) as usize],
            connections: 8,
            ..Intents::default()
        };
        let mix = Mix::default();
        let mut network = Network::new(faults, random.next_u64());
        if random.happens(500) {
            network.use_reads();
        }
        let _server = network.add("server", &intents, |methods| mix.register(methods));
        let clients = 1 + random.below(2);
        let channels = (0..clients).map(|n| {
            let node = network.add(&format!("client {n}"), &intents, |_| ());
            node.poller().connect("server").expect("there is room")
        });
        let channels = channels.collect();
        Self {
            random,
            mix,
            network,
            channels,
            calls: Vec::new(),
        }
    }

    fn poll_calls(&mut self, is_polled: impl Fn() -> bool) {
        let mix = self.mix.clone();
        self.calls.retain_mut(|(order, call)| {
            let mut cx = Context::from_waker(Waker::noop());
            let polled = match is_polled() {
                true => call.as_mut().poll(&mut cx),
                false => Poll::Pending,
            };
            if let Poll::Ready(outcome) = &polled {
                judge(&mix, order, outcome);
            }
            polled.is_pending()
        });
    }

    fn run(mut self) {
        for id in 0..25 {
            let longest = [200, 6_000, 90_000][self.random.below(3) as usize];
            let mut order = Order::random(&self.random, id, longest);
            if longest == 90_000 {
                order.requests = order.requests.min(6);
                order.responses = order.responses.min(6);
            }
            let index = self.random.below(self.channels.len() as u64) as usize;
            let channel = self.channels[index].clone();
            let call = self.mix.call(channel, order.clone(), None);
            self.calls.push((order, call));
            let random = self.random.clone();
            for _ in 0..random.below(30) {
                self.network.step();
                self.poll_calls(|| random.happens(400));
            }
            if random.happens(200) {
                self.mix.wake_waiting();
            }
            if random.happens(250) && !self.calls.is_empty() {
                let index = random.below(self.calls.len() as u64) as usize;
                drop(self.calls.swap_remove(index));
            }
        }
        self.mix.open();
        for round in 0..50_000 {
            self.poll_calls(|| true);
            if self.calls.is_empty() {
                break;
            }
            if round == 5_000 {
                self.calls
                    .retain(|(order, _)| order.ending != Ending::Never);
            }
            self.network.step();
            self.network.advance(Duration::from_micros(1));
        }
        let left: Vec<_> = self.calls.drain(..).map(|(order, _)| order).collect();
        assert!(left.is_empty(), "never end: {left:?}");
        self.channels.clear();
        self.network.assert_nothing_left();
        self.mix.finish();
    }
}

fn judge(mix: &Mix, order: &Order, outcome: &Result<(), CallError>) {
    if let Some(error) = mix.judge(order, outcome) {
        panic!("call {}: {error:?}, {order:?}", order.id);
    }
}

fn run_seeds(faults: Faults) {
    let number = |name| {
        let value = std::env::var(name).ok();
        value.and_then(|value| value.parse().ok())
    };
    if let Some(seed) = number("VERBLINE_SEED") {
        return World::new(seed, faults).run();
    }
    for seed in 0..number("VERBLINE_SEEDS").unwrap_or(60) {
        let outcome = std::panic::catch_unwind(|| World::new(seed, faults).run());
        if let Err(panic) = outcome {
            eprintln!("VERBLINE_SEED={seed} replays this failure, with {faults:?}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn any_mix_of_lengths_arrives_in_order() {
    run_seeds(Faults::none());
}

#[test]
fn any_mix_of_lengths_arrives_in_order_over_a_rough_network() {
    run_seeds(Faults::rough());
}

#[test]
fn allocated_memory_is_frozen_and_sent() {
    in_both_forms(|pair| {
        let channel = pair.connect();
        let mut buf = channel.allocate(LONG);
        assert!(buf.is_registered());
        buf.put_slice(&message(7, LONG));
        let sent = buf.freeze();
        pair.run(async {
            let request = Request::new(sent.clone());
            let call = channel.server_streaming::<bytes::Bytes, bytes::Bytes>(&SEND, request);
            let mut messages = call.await.unwrap().into_inner();
            assert!(messages.message().await.unwrap() == Some(sent));
        });
        drop(channel);
        pair.assert_nothing_left();
    });
}
