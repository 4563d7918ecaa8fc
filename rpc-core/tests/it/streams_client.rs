//! The client's part of streams, through both kinds of channel.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::support::Gate;
use rpc_core::{
    CallError, Caller, Cause, Channel, Code, Execution, Idempotency, Intents, MethodKind,
    MethodSpec, Methods, Request, Response, Shutdown, Stream, Streaming, sender, stream,
};
use rpc_core_testing::{Faults, Network, Pair, Random};

const fn spec(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "u64", "u64")
}

const HELD: MethodSpec = spec("test.Streams/Held", MethodKind::Unary);
const SUM: MethodSpec = spec("test.Streams/Sum", MethodKind::ClientStreaming);
const COUNT: MethodSpec = spec("test.Streams/Count", MethodKind::ServerStreaming);
const DOUBLE: MethodSpec = spec("test.Streams/Double", MethodKind::Streaming);
const ENDLESS: MethodSpec = spec("test.Streams/Endless", MethodKind::ServerStreaming);
const ABSENT: MethodSpec = spec("test.Streams/Absent", MethodKind::ServerStreaming);
/// A unary method of the server.
const OTHER_KIND: MethodSpec = spec("test.Streams/Held", MethodKind::ServerStreaming);

fn register(methods: &mut Methods, gate: &Gate) {
    let held = gate.clone();
    methods.unary(&HELD, move |request: Request<u64>| {
        let held = held.clone();
        async move {
            held.pass().await;
            Ok(Response::new(request.into_inner()))
        }
    });
    methods.client_streaming(&SUM, |request: Request<Streaming<u64>>| async {
        let mut numbers = request.into_inner();
        let mut sum = 0;
        while let Some(number) = numbers.message().await? {
            sum += number;
        }
        Ok(Response::new(sum))
    });
    methods.server_streaming(&COUNT, |request: Request<u64>, responses| async move {
        let count = request.into_inner();
        let numbers = stream(async move |mut responses| {
            for number in 0..count {
                responses.send(number).await?;
            }
            Ok(())
        });
        responses.send_all(Ok(Response::new(numbers))).await
    });
    methods.streaming(
        &DOUBLE,
        |request: Request<Streaming<u64>>, responses| async move {
            let mut numbers = request.into_inner();
            let doubled = stream(async move |mut responses| {
                while let Some(number) = numbers.message().await? {
                    responses.send(2 * number).await?;
                }
                Ok(())
            });
            responses.send_all(Ok(Response::new(doubled))).await
        },
    );
    let gate = gate.clone();
    methods.server_streaming(&ENDLESS, move |_: Request<u64>, responses| {
        let gate = gate.clone();
        async move {
            let numbers = stream(async move |mut responses| {
                responses.send(7u64).await?;
                gate.pass().await;
                Ok(())
            });
            responses.send_all(Ok(Response::new(numbers))).await
        }
    });
}

fn intents() -> Intents {
    Intents {
        max_message_len: 256,
        max_in_flight: 8,
        connections: 4,
        ..Intents::default()
    }
}

fn pair(gate: &Gate) -> Pair {
    Pair::with(&intents(), Faults::none(), 0, |methods| {
        register(methods, gate)
    })
}

/// Creates a network with a server, and the gate at which its handlers wait.
fn served() -> (Network, Gate) {
    let (mut network, gate) = (Network::new(Faults::none(), 0), Gate::default());
    network.add("server", &intents(), |methods| register(methods, &gate));
    (network, gate)
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    let mut cx = Context::from_waker(Waker::noop());
    match future.as_mut().poll(&mut cx) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn watch(channel: &Channel, request: Request<u64>) -> Watching<'_> {
    Box::pin(channel.server_streaming(&ENDLESS, request))
}

type Watching<'a> = Pin<Box<dyn Future<Output = Result<Response<Streaming<u64>>, CallError>> + 'a>>;

async fn collect(mut numbers: Streaming<u64>) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(number) = numbers.message().await.unwrap() {
        all.push(number);
    }
    all
}

/// Runs a future on a thread-like executor of its own, which does not run the poller. `between` is
/// called after each poll.
fn run_elsewhere<F: Future>(future: F, mut between: impl FnMut()) -> F::Output {
    #[derive(Default)]
    struct Woken(AtomicU32);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut future = pin!(future);
    for polls in 1..100_000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(woken.0.load(Ordering::Relaxed) >= polls, "it sleeps");
        between();
    }
    panic!("the future does not end");
}

#[test]
fn every_kind_of_stream_works_through_a_shared_channel() {
    let (mut network, _) = served();
    let node = network.share("server", &intents());
    let channel = node.channel().clone();
    let count = async {
        let response = channel.server_streaming(&COUNT, Request::new(3_000)).await;
        collect(response.unwrap().into_inner()).await
    };
    let all = network.try_run(Box::pin(count)).unwrap();
    assert_eq!(all, (0..3_000).collect::<Vec<u64>>());
    let sum = async {
        let (mut numbers, messages) = sender();
        let mut call = pin!(channel.client_streaming::<u64, u64>(&SUM, Request::new(messages)));
        for number in 0..20 {
            numbers.send(number).await.unwrap();
        }
        drop(numbers);
        call.as_mut().await.unwrap().into_inner()
    };
    assert_eq!(network.try_run(Box::pin(sum)).unwrap(), 190);
    let double = async {
        let (mut numbers, messages) = sender();
        let response = channel.streaming(&DOUBLE, Request::new(messages)).await;
        let mut doubled: Streaming<u64> = response.unwrap().into_inner();
        for number in 0..100 {
            numbers.send(number).await.unwrap();
            assert_eq!(doubled.message().await.unwrap(), Some(2 * number));
        }
        drop(numbers);
        assert_eq!(doubled.message().await.unwrap(), None);
    };
    network.try_run(Box::pin(double)).unwrap();
    network.assert_nothing_left();
}

#[test]
fn a_method_that_the_server_lacks_or_has_as_another_kind_is_not_called() {
    let (mut network, gate) = served();
    let node = network.share("server", &intents());
    let channel = node.channel().clone();
    let pair = pair(&gate);
    let local = pair.connect();
    for method in [&ABSENT, &OTHER_KIND] {
        let shared = channel.server_streaming::<u64, u64>(method, Request::new(0));
        let error = network.try_run(Box::pin(shared)).unwrap().unwrap_err();
        assert_eq!(error.code(), Code::Unimplemented);
        assert_eq!(error.execution(), Execution::NeverSent);
        let local = local.server_streaming::<u64, u64>(method, Request::new(0));
        let error = pair.run(local).unwrap_err();
        assert_eq!(error.code(), Code::Unimplemented);
        assert_eq!(error.execution(), Execution::NeverSent);
    }
    network.assert_nothing_left();
    pair.assert_nothing_left();
}

#[test]
fn streams_take_no_permits() {
    let (mut network, gate) = served();
    let node = network.share(
        "server",
        &Intents {
            max_in_flight: 1,
            ..intents()
        },
    );
    let channel = node.channel().clone();
    let mut streams: Vec<_> = (0..5).map(|_| watch(&channel, Request::new(0))).collect();
    for stream in &mut streams {
        assert!(poll(stream).is_none());
    }
    network.settle();
    let begun: Vec<_> = streams
        .iter_mut()
        .map(|stream| poll(stream).unwrap().unwrap())
        .collect();
    gate.open();
    let call = channel.unary::<u64, u64>(&HELD, Request::new(1));
    assert_eq!(
        network
            .try_run(Box::pin(call))
            .unwrap()
            .unwrap()
            .into_inner(),
        1
    );
    drop(begun);
    drop(streams);
    network.settle();
    network.assert_nothing_left();
}

#[test]
fn a_dropped_call_or_stream_drops_its_handler() {
    let (mut network, gate) = served();
    let node = network.share("server", &intents());
    let channel = node.channel().clone();
    // A unary call in flight: its permit comes back, and its handler is dropped.
    let mut call = Box::pin(channel.unary::<u64, u64>(&HELD, Request::new(1)));
    assert!(poll(&mut call).is_none());
    network.settle();
    assert_eq!((gate.entered(), gate.dropped()), (1, 0));
    drop(call);
    network.settle();
    assert_eq!(gate.dropped(), 1);
    // A stream that has begun.
    let mut call = watch(&channel, Request::new(0));
    assert!(poll(&mut call).is_none());
    network.settle();
    let numbers = poll(&mut call).unwrap().unwrap().into_inner();
    drop(call);
    network.settle();
    assert_eq!((gate.entered(), gate.dropped()), (2, 1));
    drop(numbers);
    network.settle();
    assert_eq!(gate.dropped(), 2);
    network.assert_nothing_left();
}

#[test]
fn what_is_dropped_before_it_was_sent_is_never_sent() {
    let (mut network, gate) = served();
    let node = network.share("server", &intents());
    let channel = node.channel().clone();
    let hold = || Box::pin(channel.unary::<u64, u64>(&HELD, Request::new(1)));
    // In the queue between the caller and the poller.
    let (mut call, mut stream) = (hold(), watch(&channel, Request::new(0)));
    assert!(poll(&mut call).is_none() && poll(&mut stream).is_none());
    drop((call, stream));
    network.settle();
    assert_eq!(gate.entered(), 0);
    // With the poller, which waits for the server.
    let mut network = Network::new(Faults::none(), 3);
    let node = network.share("server", &intents());
    let channel = node.channel().clone();
    let mut call = Box::pin(channel.unary::<u64, u64>(&HELD, Request::new(1).wait_for_ready(true)));
    let mut stream = watch(&channel, Request::new(0).wait_for_ready(true));
    let mut kept = watch(&channel, Request::new(0).wait_for_ready(true));
    assert!(poll(&mut call).is_none() && poll(&mut stream).is_none());
    assert!(poll(&mut kept).is_none());
    network.settle();
    drop((call, stream));
    let gate = Gate::default();
    network.add("server", &intents(), |methods| register(methods, &gate));
    for _ in 0..10 {
        network.advance(Duration::from_secs(1));
        network.settle();
    }
    assert_eq!(gate.entered(), 1, "only the call that was kept");
    drop(poll(&mut kept).unwrap().unwrap());
    network.settle();
    network.assert_nothing_left();
}

#[test]
fn streams_wait_for_the_server_as_calls_do() {
    let mut network = Network::new(Faults::none(), 3);
    let node = network.share("server", &intents());
    let channel = node.channel().clone();
    let error = network
        .try_run(watch(&channel, Request::new(0)))
        .unwrap()
        .unwrap_err();
    assert!(matches!(
        error.cause(),
        Cause::NotConnected {
            latest: Some(_),
            ..
        }
    ));
    assert_eq!(error.execution(), Execution::NeverSent);
    let patient = |timeout| {
        let request = Request::new(0).wait_for_ready(true);
        watch(&channel, request.with_timeout(timeout))
    };
    let mut waits = patient(Duration::from_secs(60));
    let mut gives_up = patient(Duration::from_millis(100));
    assert!(poll(&mut waits).is_none() && poll(&mut gives_up).is_none());
    network.settle();
    network.advance(Duration::from_millis(100));
    network.settle();
    let error = poll(&mut gives_up).unwrap().unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert_eq!(error.execution(), Execution::NeverSent);
    let gate = Gate::default();
    network.add("server", &intents(), |methods| register(methods, &gate));
    for _ in 0..10 {
        network.advance(Duration::from_secs(1));
        network.settle();
    }
    let numbers = poll(&mut waits).unwrap().unwrap();
    drop(numbers);
    network.settle();
    network.assert_nothing_left();
}

#[test]
fn a_poller_that_ends_ends_its_streams() {
    let (mut network, _) = served();
    let node = network.share("server", &intents());
    let channel = node.channel().clone();
    let mut call = watch(&channel, Request::new(0));
    assert!(poll(&mut call).is_none());
    network.settle();
    let mut numbers = poll(&mut call).unwrap().unwrap().into_inner();
    let mut waiting = watch(&channel, Request::new(0));
    assert!(poll(&mut waiting).is_none());
    drop(network);
    drop(node);
    let error = poll(&mut waiting).unwrap().unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(error.execution(), Execution::NeverSent);
    let number = poll(&mut Box::pin(numbers.message())).unwrap();
    assert_eq!(number.unwrap(), Some(7));
    let error = poll(&mut Box::pin(numbers.message())).unwrap().unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(error.execution(), Execution::MayHaveRun);
    let error = poll(&mut watch(&channel, Request::new(0)))
        .unwrap()
        .unwrap_err();
    assert_eq!(error.execution(), Execution::NeverSent);
}

#[test]
fn a_server_that_shuts_down_keeps_its_streams_and_new_ones_go_to_the_next_server() {
    let (mut network, gate) = (Network::new(Faults::none(), 0), Gate::default());
    let server = network.add("server", &intents(), |methods| register(methods, &gate));
    let node = network.share("server", &intents());
    let channel = node.channel().clone();
    let mut call = watch(&channel, Request::new(0));
    assert!(poll(&mut call).is_none());
    network.settle();
    let mut numbers = poll(&mut call).unwrap().unwrap().into_inner();
    let minute = Duration::from_secs(60);
    server.shut_down(Shutdown {
        finish: minute,
        close: minute,
        ..Shutdown::default()
    });
    network.settle();
    let next_gate = Gate::default();
    network.add("server", &intents(), |methods| {
        register(methods, &next_gate)
    });
    let mut next = watch(&channel, Request::new(0).wait_for_ready(true));
    assert!(poll(&mut next).is_none());
    for _ in 0..10 {
        network.advance(Duration::from_secs(1));
        network.settle();
    }
    assert_eq!((gate.entered(), next_gate.entered()), (1, 1));
    gate.open();
    network.settle();
    let rest = poll(&mut Box::pin(async {
        let first = numbers.message().await.unwrap();
        (first, numbers.message().await.unwrap())
    }));
    assert_eq!(rest.unwrap(), (Some(7), None));
    drop(poll(&mut next).unwrap().unwrap());
    network.settle();
    assert_eq!(next_gate.dropped(), 1);
}

#[test]
fn a_stream_outside_block_on_takes_its_pollers_turns() {
    let gate = Gate::default();
    let pair = pair(&gate);
    let channel = pair.connect();
    let all = run_elsewhere(
        async {
            let response = channel.server_streaming(&COUNT, Request::new(2_000)).await;
            collect(response.unwrap().into_inner()).await
        },
        || {
            pair.server().step();
        },
    );
    assert_eq!(all, (0..2_000).collect::<Vec<u64>>());
    let sum = run_elsewhere(
        async {
            let (mut numbers, messages) = sender();
            let send = async {
                for number in 0..2_000 {
                    numbers.send(number).await.unwrap();
                }
                drop(numbers);
            };
            let call = channel.client_streaming::<u64, u64>(&SUM, Request::new(messages));
            join(call, send).await.unwrap().into_inner()
        },
        || {
            pair.server().step();
        },
    );
    assert_eq!(sum, (0..2_000).sum::<u64>());
    pair.assert_nothing_left();
}

/// Runs two futures to their ends.
async fn join<A: Future>(a: A, b: impl Future<Output = ()>) -> A::Output {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut output, mut is_done) = (None, false);
    poll_fn(move |cx| {
        if output.is_none()
            && let Poll::Ready(from_a) = a.as_mut().poll(cx)
        {
            output = Some(from_a);
        }
        is_done = is_done || b.as_mut().poll(cx).is_ready();
        match output.take() {
            Some(from_a) if is_done => Poll::Ready(from_a),
            other => {
                output = other;
                Poll::Pending
            }
        }
    })
    .await
}

#[test]
fn a_stream_outlives_the_channels_of_its_connection() {
    let gate = Gate::default();
    let pair = pair(&gate);
    let channel = pair.connect();
    let response = pair.run(channel.server_streaming(&COUNT, Request::new(500)));
    let numbers: Streaming<u64> = response.unwrap().into_inner();
    drop(channel);
    let all = pair.run(collect(numbers));
    assert_eq!(all, (0..500).collect::<Vec<u64>>());
    pair.assert_nothing_left();

    let (mut network, _) = served();
    let node = network.share("server", &intents());
    let channel = node.channel().clone();
    let call = Box::pin(channel.server_streaming(&COUNT, Request::new(500)));
    let numbers: Streaming<u64> = network.try_run(call).unwrap().unwrap().into_inner();
    drop(channel);
    let all = network.try_run(Box::pin(collect(numbers))).unwrap();
    assert_eq!(all, (0..500).collect::<Vec<u64>>());
}

/// A stream that stays on its thread's executor may move to another, and so may the calls of a shared
/// channel.
#[test]
fn calls_of_a_shared_channel_and_all_streams_are_send() {
    fn is_send<T: Send>(_: &T) {}
    let (mut network, _) = served();
    let node = network.share("server", &intents());
    let channel = node.channel().clone();
    let (_sender, messages) = sender::<u64>();
    is_send(&channel.server_streaming::<u64, u64>(&COUNT, Request::new(1)));
    is_send(&channel.client_streaming::<u64, u64>(&SUM, Request::new(messages)));
    let (sender, messages) = sender::<u64>();
    is_send(&channel.streaming::<u64, u64>(&DOUBLE, Request::new(messages)));
    is_send(&sender);
}

#[test]
fn a_local_stream_on_another_thread_waits_for_its_poller() {
    let gate = Gate::default();
    let pair = pair(&gate);
    let channel = pair.connect();
    let response = pair.run(channel.server_streaming(&COUNT, Request::new(2_000)));
    let numbers: Streaming<u64> = response.unwrap().into_inner();
    let reader = std::thread::spawn(move || rpc_core::block_on(collect(numbers)));
    while !reader.is_finished() {
        pair.network().step();
    }
    let all = reader.join().unwrap();
    assert_eq!(all, (0..2_000).collect::<Vec<u64>>());
    pair.assert_nothing_left();
}

#[test]
fn a_local_poller_that_is_dropped_ends_its_streams() {
    let gate = Gate::default();
    let pair = pair(&gate);
    let channel = pair.connect();
    let response = pair.run(channel.server_streaming(&ENDLESS, Request::new(0)));
    let mut numbers: Streaming<u64> = response.unwrap().into_inner();
    let number = pair.run(numbers.message());
    assert_eq!(number.unwrap(), Some(7));
    assert!(poll(&mut Box::pin(numbers.message())).is_none());
    drop((channel, pair));
    let error = poll(&mut Box::pin(numbers.message())).unwrap().unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(error.execution(), Execution::MayHaveRun);
}

/// Numbers that are sent one after the other, sometimes late.
struct Numbers {
    next: u64,
    end: u64,
    /// A bit for each poll: whether there is no message yet.
    late: u64,
}

impl Stream for Numbers {
    type Item = u64;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u64>> {
        if self.next == self.end {
            return Poll::Ready(None);
        }
        self.late = self.late.rotate_right(1);
        if self.late & 1 == 1 {
            // The test polls each future in each step.
            return Poll::Pending;
        }
        self.next += 1;
        Poll::Ready(Some(self.next - 1))
    }
}

type Call = Pin<Box<dyn Future<Output = Result<(), CallError>>>>;

/// Creates a call of any kind, whose future checks that each message arrives once and in order.
fn call(channel: Channel, random: &Random) -> (bool, Call) {
    let count = random.below(200);
    let is_timed = random.happens(100);
    let timeout = Duration::from_micros(random.below(3000));
    let (kind, waits) = (random.below(4), random.happens(500));
    let numbers = Numbers {
        next: 0,
        end: count,
        late: random.next_u64() & random.next_u64() & random.next_u64(),
    };
    fn with<T>(message: T, waits: bool, timeout: Option<Duration>) -> Request<T> {
        let request = Request::new(message).wait_for_ready(waits);
        match timeout {
            Some(timeout) => request.with_timeout(timeout),
            None => request,
        }
    }
    let timeout = is_timed.then_some(timeout);
    let call = async move {
        match kind {
            0 => {
                let call = channel.unary::<u64, u64>(&HELD, with(count, waits, timeout));
                assert_eq!(call.await?.into_inner(), count);
            }
            1 => {
                let request = with(numbers, waits, timeout);
                let sum = channel.client_streaming::<u64, u64>(&SUM, request).await?;
                assert_eq!(sum.into_inner(), (0..count).sum::<u64>());
            }
            _ => {
                let factor = kind - 1;
                let mut received: Streaming<u64> = match kind {
                    2 => {
                        channel
                            .server_streaming(&COUNT, with(count, waits, timeout))
                            .await
                    }
                    _ => {
                        channel
                            .streaming(&DOUBLE, with(numbers, waits, timeout))
                            .await
                    }
                }?
                .into_inner();
                let mut expected = 0;
                while let Some(number) = received.message().await? {
                    assert_eq!(number, factor * expected);
                    expected += 1;
                }
                assert_eq!(expected, count);
            }
        }
        Ok(())
    };
    (is_timed, Box::pin(call))
}

/// Calls of every kind: dropped, late, disconnected and answered. Each ends once with a permitted
/// outcome, and no permit, slot, stream or timer is left.
fn mix(faults: Faults, seed: u64) {
    let (mut network, gate) = (Network::new(faults, seed), Gate::default());
    network.add("server", &intents(), |methods| register(methods, &gate));
    gate.open();
    let random = Random::new(seed ^ 0x5eed);
    let nodes: Vec<_> = (0..2)
        .map(|_| network.share("server", &intents()))
        .collect();
    let mut calls: Vec<(bool, Call)> = Vec::new();
    let poll_all = |calls: &mut Vec<(bool, Call)>| {
        calls.retain_mut(|(is_timed, call)| {
            match poll(call) {
                None => return true,
                Some(Ok(())) => {}
                Some(Err(error)) => match error.code() {
                    Code::DeadlineExceeded => assert!(*is_timed, "seed {seed}: {error}"),
                    Code::Unavailable => assert!(faults.disconnect > 0, "seed {seed}: {error}"),
                    _ => panic!("seed {seed}: {error}"),
                },
            }
            false
        });
    };
    for step in 0..300 {
        match random.below(8) {
            0 | 1 if step < 200 => {
                let node = &nodes[random.below(2) as usize];
                calls.push(call(node.channel().clone(), &random));
            }
            2 if !calls.is_empty() && random.happens(300) => {
                drop(calls.swap_remove(random.below(calls.len() as u64) as usize));
            }
            3 => network.advance(Duration::from_micros(random.below(20_000))),
            _ => {
                network.step();
            }
        }
        poll_all(&mut calls);
    }
    for _ in 0..4_000 {
        if calls.is_empty() {
            break;
        }
        network.step();
        network.advance(Duration::from_millis(100));
        poll_all(&mut calls);
    }
    assert!(calls.is_empty(), "seed {seed}: {} never ended", calls.len());
    // If connections keep failing, the network never becomes quiet.
    if faults.disconnect == 0 {
        network.assert_nothing_left();
    }
}

#[test]
fn whatever_goes_wrong_every_call_ends_once_and_nothing_is_left() {
    for seed in 0..60 {
        mix(Faults::none(), seed);
        mix(Faults::rough(), seed);
        let cut = Faults {
            disconnect: 5,
            ..Faults::rough()
        };
        mix(cut, seed);
    }
}
