//! The shared channel over the loopback: its poller is stepped by hand, with a simulated clock.

use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::support::{ABSENT, ECHO, FAIL, Gate, HELD, PANIC, method, register};
use rpc_core::{
    CallError, Caller, Cause, Channel, Code, ConnectivityState, Execution, Intents, MethodSpec,
    Request, Response,
};
use rpc_core_testing::{Faults, Network, Random, is_alone};

type CallResult = Result<Response<Vec<u8>>, CallError>;

fn intents(max_in_flight: u32) -> Intents {
    Intents {
        max_message_len: 64,
        max_in_flight,
        connections: 16,
        ..Intents::default()
    }
}

/// Creates a network with a server, and the gate at which its handlers wait.
fn served(faults: Faults, seed: u64, max_in_flight: u32) -> (Network, Gate) {
    let (mut network, gate) = (Network::new(faults, seed), Gate::default());
    network.add("server", &intents(max_in_flight), |methods| {
        register(methods, &gate)
    });
    (network, gate)
}

fn echo(channel: &Channel, text: &str) -> impl Future<Output = CallResult> {
    channel.unary(&ECHO, Request::new(text.as_bytes().to_vec()))
}

fn message(result: CallResult) -> Vec<u8> {
    result.unwrap().into_inner()
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    let mut cx = Context::from_waker(Waker::noop());
    match future.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[test]
fn the_first_call_connects_and_every_kind_of_end_reaches_its_caller() {
    let (mut network, _) = served(Faults::none(), 0, 4);
    let node = network.share("server", &intents(4));
    let channel = node.channel().clone();
    assert_eq!(channel.state(), ConnectivityState::Idle);
    let run = |call| network.try_run(call).unwrap();
    assert_eq!(message(run(Box::pin(echo(&channel, "Ada")))), b"Ada");
    assert_eq!(channel.state(), ConnectivityState::Ready);
    let call = |method, bytes: &[u8]| -> Pin<Box<dyn Future<Output = CallResult> + '_>> {
        Box::pin(channel.unary(method, Request::new(bytes.to_vec())))
    };
    let code = |method, bytes: &[u8]| {
        let error = network.try_run(call(method, bytes)).unwrap().unwrap_err();
        (error.code(), error.execution())
    };
    assert_eq!(code(&FAIL, b"").1, Execution::Answered);
    assert_eq!(code(&PANIC, b""), (Code::Internal, Execution::Answered));
    let absent = (Code::Unimplemented, Execution::NeverSent);
    assert_eq!(code(&ABSENT, b""), absent);
    let too_long = (Code::ResourceExhausted, Execution::NeverSent);
    assert_eq!(code(&ECHO, &[0; 4096]), too_long);
    network.assert_nothing_left();
}

/// Returns the warnings and errors that the work on this thread logs.
fn warned(work: impl FnOnce()) -> Vec<String> {
    let (mut log, writer) = UnixStream::pair().unwrap();
    let lines = tracing_subscriber::fmt().with_ansi(false);
    let lines = lines.with_max_level(tracing::Level::WARN);
    tracing::subscriber::with_default(lines.with_writer(Arc::new(writer)).finish(), work);
    let log = std::io::read_to_string(&mut log).unwrap();
    log.lines().map(str::to_owned).collect()
}

#[test]
fn the_log_names_each_server_that_is_dead_and_each_method_that_panics() {
    if !is_alone("shared::the_log_names_each_server_that_is_dead_and_each_method_that_panics") {
        return;
    }
    static METHODS: [MethodSpec; 2] = [method("test.Panics/One"), method("test.Panics/Two")];
    let log = warned(|| {
        let mut network = Network::new(Faults::none(), 0);
        network.add("server", &intents(4), |methods| {
            for method in &METHODS {
                methods.unary(method, |request: Request<Vec<u8>>| async move {
                    assert!(request.get_ref().len() > 9, "it is too short");
                    Ok(Response::new(request.into_inner()))
                });
            }
        });
        for server in ["a dead server", "another dead server"] {
            let node = network.share(server, &intents(4));
            let call = echo(node.channel(), "Ada");
            network.try_run(Box::pin(call)).unwrap().unwrap_err();
        }
        let node = network.share("server", &intents(4));
        for method in &METHODS {
            let call = node
                .channel()
                .unary::<Vec<u8>, Vec<u8>>(method, Request::new(Vec::new()));
            network.try_run(Box::pin(call)).unwrap().unwrap_err();
        }
    });
    let count = |words: &str| log.iter().filter(|line| line.contains(words)).count();
    for (words, expected) in [
        ("cannot connect to the server; retrying", 2),
        ("a dead server", 1),
        ("another dead server", 1),
        (METHODS[0].path, 1),
        (METHODS[1].path, 1),
    ] {
        assert_eq!(count(words), expected, "{words}: {log:#?}");
    }
}

#[test]
fn calls_beyond_the_permits_wait_in_order() {
    let (mut network, gate) = served(Faults::none(), 0, 2);
    let node = network.share("server", &intents(2));
    let channel = node.channel().clone();
    let mut calls: Vec<_> = (0..6)
        .map(|_| Box::pin(channel.unary::<Vec<u8>, Vec<u8>>(&HELD, Request::new(vec![]))))
        .collect();
    for _ in 0..20 {
        for call in &mut calls {
            assert!(poll(call).is_none());
        }
        network.settle();
    }
    assert_eq!(gate.entered(), 2);
    gate.open();
    let mut ended = Vec::new();
    while ended.len() < calls.len() {
        network.settle();
        for (index, call) in calls.iter_mut().enumerate() {
            if !ended.contains(&index) && poll(call).is_some() {
                ended.push(index);
            }
        }
    }
    assert_eq!(ended, [0, 1, 2, 3, 4, 5]);
    network.assert_nothing_left();
}

#[test]
fn a_deadline_is_kept_wherever_the_call_is() {
    let (mut network, gate) = served(Faults::none(), 0, 1);
    let node = network.share("server", &intents(1));
    let channel = node.channel().clone();
    let held = |timeout| {
        let request = Request::new(vec![]).with_timeout(Duration::from_millis(timeout));
        Box::pin(channel.unary::<Vec<u8>, Vec<u8>>(&HELD, request))
    };
    // One call in flight, and one that waits for a permit.
    let (mut first, mut second) = (held(10), held(5));
    assert!(poll(&mut first).is_none() && poll(&mut second).is_none());
    network.settle();
    network.advance(Duration::from_millis(6));
    let error = poll(&mut second).unwrap().unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert_eq!(error.execution(), Execution::NeverSent);
    network.settle();
    assert!(poll(&mut first).is_none());
    network.advance(Duration::from_millis(6));
    let error = poll(&mut first).unwrap().unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert_eq!(error.execution(), Execution::MayHaveRun);
    assert_eq!(gate.entered(), 1);
    network.assert_nothing_left();
}

#[test]
fn without_a_server_calls_fail_at_once_unless_they_wait_and_those_find_it_when_it_comes() {
    let mut network = Network::new(Faults::none(), 3);
    let node = network.share("server", &intents(4));
    let channel = node.channel().clone();
    let error = network.try_run(echo(&channel, "Ada")).unwrap().unwrap_err();
    assert!(matches!(
        error.cause(),
        Cause::NotConnected {
            latest: Some(_),
            ..
        }
    ));
    assert_eq!(error.execution(), Execution::NeverSent);
    assert_eq!(channel.state(), ConnectivityState::TransientFailure);
    assert!(channel.latest_error().is_some());

    let patient = |timeout| {
        let request = Request::new(b"Grace".to_vec())
            .wait_for_ready(true)
            .with_timeout(timeout);
        Box::pin(channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, request))
    };
    let (mut waits, mut gives_up) = (
        patient(Duration::from_secs(60)),
        patient(Duration::from_millis(100)),
    );
    assert!(poll(&mut waits).is_none() && poll(&mut gives_up).is_none());
    network.settle();
    network.advance(Duration::from_millis(100));
    network.settle();
    let error = poll(&mut gives_up).unwrap().unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert_eq!(error.execution(), Execution::NeverSent);

    let gate = Gate::default();
    network.add("server", &intents(4), |methods| register(methods, &gate));
    for _ in 0..10 {
        network.advance(Duration::from_secs(1));
        network.settle();
    }
    assert_eq!(message(poll(&mut waits).unwrap()), b"Grace");
    network.assert_nothing_left();
}

#[test]
fn callers_that_have_gone_leave_their_permits_though_somebody_before_them_waits() {
    let mut network = Network::new(Faults::none(), 5);
    let node = network.share("server", &intents(4));
    let channel = node.channel().clone();
    let patient = || {
        let request = Request::new(b"Ada".to_vec()).wait_for_ready(true);
        Box::pin(channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, request))
    };
    let mut first = patient();
    let mut others: Vec<_> = (0..3).map(|_| patient()).collect();
    for call in others.iter_mut().chain([&mut first]) {
        assert!(poll(call).is_none());
    }
    network.settle();
    drop(others);
    network.settle();
    let error = network
        .try_run(echo(&channel, "Grace"))
        .unwrap()
        .unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    drop(first);
    network.settle();
    network.assert_nothing_left();
}

#[test]
fn a_call_that_was_sent_to_a_server_that_breaks_the_rules_may_have_run() {
    let (mut network, gate) = served(Faults::none(), 0, 4);
    let node = network.share("server", &intents(4));
    let channel = node.channel().clone();
    let mut call = Box::pin(channel.unary::<Vec<u8>, Vec<u8>>(&HELD, Request::new(vec![])));
    assert!(poll(&mut call).is_none());
    network.settle();
    assert_eq!(gate.entered(), 1);
    node.inject(&[0xff; 64]);
    network.settle();
    let error = poll(&mut call).unwrap().unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(error.execution(), Execution::MayHaveRun, "{error}");
}

/// A call in flight, with its expected result.
struct Call {
    tag: u64,
    is_timed: bool,
    future: Pin<Box<dyn Future<Output = CallResult>>>,
}

impl Call {
    /// Returns true if the call has ended. Panics if its outcome is not permitted.
    fn has_ended(&mut self, faults: Faults, seed: u64) -> bool {
        let Some(result) = poll(&mut self.future) else {
            return false;
        };
        match result {
            Ok(response) => {
                assert_eq!(response.into_inner(), self.tag.to_le_bytes(), "seed {seed}")
            }
            Err(error) => match error.code() {
                Code::DeadlineExceeded => assert!(self.is_timed, "seed {seed}: {error}"),
                Code::Unavailable => assert!(faults.disconnect > 0, "seed {seed}: {error}"),
                _ => panic!("seed {seed}: {error}"),
            },
        }
        true
    }
}

/// Calls of every kind: dropped, late, disconnected and answered. Each ends once with a permitted
/// outcome, and no permit, slot or timer is left. In every other seed, further channels share the
/// pollers, and come and go.
fn mix(faults: Faults, seed: u64) {
    let (mut network, gate) = served(faults, seed, 8);
    gate.open();
    let random = Random::new(seed ^ 0x5eed);
    let nodes: Vec<_> = (0..3)
        .map(|_| network.share("server", &intents(8)))
        .collect();
    let mut channels: Vec<Channel> = nodes.iter().map(|node| node.channel().clone()).collect();
    if seed.is_multiple_of(2) {
        channels.extend(nodes.iter().map(|node| node.add_channel("server", seed)));
    }
    let mut calls: Vec<Call> = Vec::new();
    for step in 0..400 {
        if channels.len() > nodes.len() && random.happens(20) {
            // The calls that use it keep it for a while.
            let index = random.below(3) as usize;
            channels[nodes.len() + index] = nodes[index].add_channel("server", step);
        }
        match random.below(8) {
            0..=2 if step < 300 => {
                let channel = channels[random.below(channels.len() as u64) as usize].clone();
                let is_timed = random.happens(200);
                let mut request = Request::new(u64::to_le_bytes(step).to_vec())
                    .wait_for_ready(random.happens(500));
                if is_timed {
                    request = request.with_timeout(Duration::from_micros(random.below(3000)));
                }
                calls.push(Call {
                    tag: step,
                    is_timed,
                    future: Box::pin(async move { channel.unary(&ECHO, request).await }),
                });
            }
            3 if !calls.is_empty() && random.happens(300) => {
                drop(calls.swap_remove(random.below(calls.len() as u64) as usize));
            }
            4 => network.advance(Duration::from_micros(random.below(20_000))),
            _ => {
                network.step();
            }
        }
        calls.retain_mut(|call| !call.has_ended(faults, seed));
    }
    for _ in 0..2_000 {
        if calls.is_empty() {
            break;
        }
        network.step();
        network.advance(Duration::from_millis(100));
        calls.retain_mut(|call| !call.has_ended(faults, seed));
    }
    assert!(calls.is_empty(), "seed {seed}: {} never ended", calls.len());
    drop(channels);
    for _ in 0..10 {
        network.step();
    }
    let left: usize = nodes.iter().map(|node| node.channels()).sum();
    assert_eq!(left, nodes.len(), "seed {seed}: channels are left");
    // If connections keep failing, the network never becomes quiet.
    if faults.disconnect == 0 {
        network.assert_nothing_left();
    }
}

#[test]
fn whatever_goes_wrong_every_call_ends_once_and_nothing_is_left() {
    for seed in 0..150 {
        mix(Faults::none(), seed);
        mix(Faults::rough(), seed);
        let cut = Faults {
            disconnect: 5,
            ..Faults::rough()
        };
        mix(cut, seed);
    }
}
