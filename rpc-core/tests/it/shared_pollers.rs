//! Channels that share a poller, over the loopback: the poller is stepped by hand, with a simulated
//! clock.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::support::streams::{IDLE, Probe, register_streams};
use crate::support::{ECHO, Gate, HELD, register};
use rpc_core::{
    CallError, Caller, Cause, Channel, Code, ConnectivityState, Intents, Request, Response, sender,
};
use rpc_core_testing::{Faults, Network, Random};

type CallResult = Result<Response<Vec<u8>>, CallError>;
type Call = Pin<Box<dyn Future<Output = CallResult>>>;

/// Permits of each channel.
const PERMITS: u32 = 8;

fn intents(connections: u32) -> Intents {
    Intents {
        max_message_len: 64,
        max_in_flight: PERMITS,
        connections,
        ..Intents::default()
    }
}

fn call(
    channel: &Channel,
    method: &'static rpc_core::MethodSpec,
    request: Request<Vec<u8>>,
) -> Call {
    let channel = channel.clone();
    Box::pin(async move { channel.unary(method, request).await })
}

fn echo(channel: &Channel, text: &str) -> Call {
    call(channel, &ECHO, Request::new(text.as_bytes().to_vec()))
}

fn held(channel: &Channel) -> Call {
    call(channel, &HELD, Request::new(vec![]))
}

fn poll(call: &mut Call) -> Option<CallResult> {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// A network with so many servers, `server0` and so on, whose handlers share a gate.
fn servers(count: usize) -> (Network, Gate) {
    servers_with(count, &intents(256))
}

fn servers_with(count: usize, intents: &Intents) -> (Network, Gate) {
    let (mut network, gate) = (Network::new(Faults::none(), 0), Gate::default());
    for number in 0..count {
        network.add(&format!("server{number}"), intents, |methods| {
            register(methods, &gate);
            register_streams(methods, &Probe::default());
        });
    }
    (network, gate)
}

fn assert_echo(network: &Network, channel: &Channel, text: &str) {
    let response = network.try_run(echo(channel, text));
    let response = response.expect("the call ends").unwrap();
    assert_eq!(response.into_inner(), text.as_bytes());
}

#[test]
fn a_hundred_channels_share_a_poller_and_each_reaches_its_own_server() {
    for count in [1, 5] {
        let (mut network, _) = servers(count);
        let node = network.share("server0", &intents(256));
        let channels: Vec<Channel> = (0..100)
            .map(|index| node.add_channel(&format!("server{}", index % count), index as u64))
            .collect();
        // All at once, and then one after the other, last first.
        let mut calls: Vec<_> = channels
            .iter()
            .map(|channel| echo(channel, "all"))
            .collect();
        network.settle();
        for call in &mut calls {
            assert!(poll(call).is_none(), "a future submits when it is polled");
        }
        network.settle();
        for call in &mut calls {
            assert_eq!(poll(call).unwrap().unwrap().into_inner(), b"all");
        }
        drop(calls);
        for (index, channel) in channels.iter().enumerate().rev() {
            assert_eq!(channel.state(), ConnectivityState::Ready);
            assert_echo(&network, channel, &index.to_string());
        }
        assert_eq!(node.channels(), 101);
        drop(channels);
        network.settle();
        assert_eq!(node.channels(), 1);
        network.assert_nothing_left();
    }
}

#[test]
fn a_connection_that_ends_ends_the_calls_of_its_channel_alone() {
    let (mut network, gate) = servers(2);
    let node = network.share("server0", &intents(16));
    let other = node.add_channel("server1", 1);
    assert_echo(&network, node.channel(), "Ada");
    let mut first = held(node.channel());
    assert!(poll(&mut first).is_none());
    network.settle();
    // The first channel has the only connection.
    node.inject(&[0xff; 64]);
    let mut second = held(&other);
    assert!(poll(&mut second).is_none());
    network.settle();
    let error = poll(&mut first).expect("it has ended").unwrap_err();
    assert!(matches!(error.cause(), Cause::Disconnected(_)), "{error}");
    assert!(poll(&mut second).is_none());
    assert_eq!(other.state(), ConnectivityState::Ready);
    network.advance(Duration::from_secs(1));
    network.settle();
    assert_eq!(node.channel().state(), ConnectivityState::Ready);
    assert_echo(&network, node.channel(), "Grace");
    gate.open();
    network.settle();
    poll(&mut second).expect("it has ended").unwrap();
    drop((first, second, other));
    network.assert_nothing_left();
}

#[test]
fn a_server_that_takes_nothing_delays_no_other_channel() {
    let (mut network, gate) = servers(2);
    let node = network.share("server0", &intents(64));
    let absent: Vec<Channel> = (0..20)
        .map(|index| node.add_channel("absent", index))
        .collect();
    let slow: Vec<Channel> = (20..40)
        .map(|index| node.add_channel("server0", index))
        .collect();
    let quick = node.add_channel("server1", 40);
    assert_echo(&network, &quick, "Ada");
    // More calls than permits and credits, at servers that do not answer or do not exist.
    let mut waiting: Vec<Call> = Vec::new();
    for channel in slow.iter().chain(&absent) {
        for _ in 0..3 * PERMITS {
            let request = Request::new(vec![]).wait_for_ready(true);
            let mut call = call(channel, &HELD, request);
            assert!(poll(&mut call).is_none());
            waiting.push(call);
        }
    }
    network.settle();
    for round in 0..100 {
        let mut call = echo(&quick, "Grace");
        assert!(poll(&mut call).is_none());
        // To the server and back.
        let mut steps = 0;
        let response = loop {
            network.step();
            steps += 1;
            if let Some(response) = poll(&mut call) {
                break response;
            }
        };
        assert_eq!(response.unwrap().into_inner(), b"Grace");
        assert!(steps <= 4, "round {round}: {steps} steps");
    }
    // All calls of the slow server end once it answers.
    gate.open();
    drop(absent);
    let mut answered = 0;
    for _ in 0..3 * PERMITS {
        network.settle();
        waiting.retain_mut(|call| match poll(call) {
            Some(result) => {
                result.unwrap();
                answered += 1;
                false
            }
            None => true,
        });
    }
    assert_eq!(answered, slow.len() * 3 * PERMITS as usize);
    drop((waiting, slow, quick));
    network.settle();
    assert_eq!(node.channels(), 1);
    network.assert_nothing_left();
}

/// The receives of a poller are shared too: servers that answer nothing may hold half of them.
#[test]
fn servers_that_answer_nothing_leave_receives_to_the_other_channels() {
    let intents = Intents {
        max_in_flight: 32,
        ..intents(20)
    };
    let (mut network, gate) = servers_with(5, &intents);
    let node = network.share("server0", &intents);
    let quick = node.add_channel("server4", 1);
    // A stream takes receives for its window, and no share of those for unary calls.
    let (_numbers, messages) = sender::<u64>();
    let mut stream = Box::pin({
        let quick = quick.clone();
        async move {
            let request = Request::new(messages);
            quick.streaming::<u64, u64>(&IDLE, request).await.map(drop)
        }
    });
    let mut cx = Context::from_waker(Waker::noop());
    assert!(stream.as_mut().poll(&mut cx).is_pending());
    network.settle();
    let hanging: Vec<Channel> = (0..16)
        .map(|index| node.add_channel(&format!("server{}", index % 4), index))
        .collect();
    let mut calls: Vec<Call> = Vec::new();
    for channel in hanging.iter().chain([node.channel()]) {
        for _ in 0..intents.max_in_flight {
            let mut call = held(channel);
            assert!(poll(&mut call).is_none());
            calls.push(call);
        }
    }
    network.settle();
    // More calls than the poller has receives. Half of these are kept for connections with few calls.
    let receives = node.channel().limits().unwrap().promisable_receives();
    assert!(calls.len() as u32 > receives);
    let hang = gate.entered();
    assert!(
        hang > receives / 3 && hang < receives,
        "{hang} of {receives}"
    );
    assert_echo(&network, &quick, "Ada");
    let mut two = [echo(&quick, "Grace"), held(&quick)];
    assert!(two.iter_mut().all(|call| poll(call).is_none()));
    network.settle();
    poll(&mut two[0]).expect("it is answered").unwrap();
    gate.open();
    network.settle();
    for mut call in calls.into_iter().chain(two.into_iter().skip(1)) {
        poll(&mut call).expect("it is answered").unwrap();
    }
    drop((stream, hanging, quick));
    network.assert_nothing_left();
}

/// A channel is dropped in every state, and the next one gets its number.
#[test]
fn nothing_is_left_of_a_channel_that_is_dropped_in_whatever_state() {
    for seed in 0..20 {
        drop_channels(&Random::new(seed));
    }
}

fn drop_channels(random: &Random) {
    let (mut network, gate) = servers(1);
    let node = network.share("server0", &intents(64));
    for round in 0..50 {
        let address = if round % 3 == 0 { "absent" } else { "server0" };
        let channel = node.add_channel(address, round);
        let mut calls: Vec<Call> = Vec::new();
        for _ in 0..random.below(2 * u64::from(PERMITS)) {
            let mut request = Request::new(vec![7]).wait_for_ready(random.happens(500));
            if random.happens(300) {
                request = request.with_timeout(Duration::from_millis(random.below(50)));
            }
            let method = if random.happens(500) { &ECHO } else { &HELD };
            let mut call = call(&channel, method, request);
            let _ = poll(&mut call);
            calls.push(call);
            for _ in 0..random.below(4) {
                network.step();
            }
        }
        if random.happens(300) {
            network.settle();
        }
        if random.happens(200) {
            network.advance(Duration::from_millis(random.below(100)));
        }
        drop(channel);
        drop(calls);
        // The next channel takes the number, sometimes before the poller has seen the drop.
        if random.happens(700) {
            network.step();
        }
    }
    assert_echo(&network, node.channel(), "Ada");
    gate.open();
    network.settle();
    assert_eq!(node.channels(), 1);
    network.assert_nothing_left();
}

/// Drops a channel when it is woken.
struct DropsChannel(Mutex<Option<Channel>>, AtomicBool);

impl Wake for DropsChannel {
    fn wake(self: Arc<Self>) {
        let dropped = self.0.lock().unwrap().take();
        self.1.store(dropped.is_some(), Ordering::Relaxed);
    }
}

#[test]
fn a_waker_may_drop_a_channel_of_the_poller_that_calls_it() {
    let (mut network, _) = servers(1);
    let node = network.share("server0", &intents(16));
    let other = node.add_channel("server0", 1);
    let mut pending = held(&other);
    assert!(poll(&mut pending).is_none());
    network.settle();
    drop(pending);
    let waker = Arc::new(DropsChannel(Some(other).into(), AtomicBool::new(false)));
    let mut first = echo(node.channel(), "Ada");
    let polled = first
        .as_mut()
        .poll(&mut Context::from_waker(&Waker::from(Arc::clone(&waker))));
    assert!(polled.is_pending());
    network.settle();
    assert!(waker.1.load(Ordering::Relaxed), "it was woken");
    assert!(poll(&mut first).is_some());
    assert_eq!(node.channels(), 1);
    drop(first);
    network.assert_nothing_left();
}

/// Polls a call when it is woken, as an executor may.
struct PollsAtOnce(
    Mutex<Option<Pin<Box<dyn Future<Output = CallResult> + Send>>>>,
    AtomicBool,
);

impl Wake for PollsAtOnce {
    fn wake(self: Arc<Self>) {
        let mut call = self.0.lock().unwrap();
        let call = call.as_mut().expect("a call that waits");
        let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.1.store(polled.is_pending(), Ordering::Relaxed);
    }
}

#[test]
fn a_deadline_does_not_end_the_next_call_with_the_same_permit() {
    let (mut network, gate) = servers(1);
    let node = network.share("server0", &intents(4));
    let waiting = || Request::new(vec![]).wait_for_ready(true);
    let channel = node.add_channel("absent", 1);
    let short = waiting().with_timeout(Duration::from_millis(10));
    let mut expires = call(&channel, &ECHO, short);
    assert!(poll(&mut expires).is_none());
    let mut others: Vec<Call> = (1..PERMITS)
        .map(|_| call(&channel, &HELD, waiting()))
        .collect();
    assert!(others.iter_mut().all(|call| poll(call).is_none()));
    let next = Arc::new(PollsAtOnce(Mutex::default(), AtomicBool::new(false)));
    let mut future = Box::pin({
        let channel = channel.clone();
        async move { channel.unary(&ECHO, waiting()).await }
    });
    let waker = Waker::from(Arc::clone(&next));
    let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    *next.0.lock().unwrap() = Some(future);
    network.settle();
    assert!(!next.1.load(Ordering::Relaxed), "there is no permit");
    // The deadline passes while the poller sleeps. Before its next turn, the caller drops the call.
    network.clock().advance(Duration::from_millis(20));
    node.expire_deadlines();
    drop(expires);
    network.step();
    assert!(next.1.load(Ordering::Relaxed), "it has submitted");
    network.settle();
    let mut next = next.0.lock().unwrap().take().unwrap();
    let polled = next.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "{polled:?}");
    drop((next, others, channel, gate));
    network.assert_nothing_left();
}

#[test]
fn no_deadline_is_left_of_a_channel_with_calls_that_were_leaked() {
    let (mut network, _) = servers(1);
    let node = network.share("server0", &intents(4));
    let channel = node.add_channel("absent", 1);
    let request = Request::new(vec![])
        .wait_for_ready(true)
        .with_timeout(Duration::from_secs(60));
    let mut leaked = Box::pin(channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, request));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(leaked.as_mut().poll(&mut cx).is_pending());
    network.settle();
    std::mem::forget(leaked);
    drop(channel);
    network.assert_nothing_left();
}

struct Panics(AtomicU32);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("this waker has a bug");
    }
}

#[test]
fn a_waker_that_panics_ends_no_other_call_of_the_poller() {
    let (mut network, gate) = servers(1);
    let node = network.share("server0", &intents(4));
    let panics = Arc::new(Panics(AtomicU32::new(0)));
    let waker = Waker::from(Arc::clone(&panics));
    let mut cx = Context::from_waker(&waker);
    let mut watch = node.channel().watch();
    let mut changed = Box::pin(watch.changed());
    assert!(changed.as_mut().poll(&mut cx).is_pending());
    let mut running: Vec<Call> = (0..PERMITS).map(|_| held(node.channel())).collect();
    assert!(running.iter_mut().all(|call| poll(call).is_none()));
    network.settle();
    let by_connecting = panics.0.load(Ordering::Relaxed);
    assert!(by_connecting > 0);
    // One that waits for a permit until its deadline, and one that gets its turn.
    let short = Request::new(vec![]).with_timeout(Duration::from_millis(10));
    let mut waiting = [call(node.channel(), &ECHO, short), echo(node.channel(), "")];
    for call in &mut waiting {
        assert!(call.as_mut().poll(&mut cx).is_pending());
    }
    network.advance(Duration::from_millis(20));
    assert_eq!(panics.0.load(Ordering::Relaxed), by_connecting + 1);
    assert!(poll(&mut waiting[0]).expect("its time has passed").is_err());
    drop(running.pop());
    gate.open();
    network.settle();
    assert_eq!(panics.0.load(Ordering::Relaxed), by_connecting + 2);
    for call in &mut running {
        poll(call).expect("it is answered").unwrap();
    }
    drop((running, waiting, changed));
    assert_echo(&network, node.channel(), "Ada");
    network.assert_nothing_left();
}

#[test]
fn a_call_that_waits_in_vain_for_a_connection_says_why_there_was_none() {
    let mut network = Network::new(Faults::none(), 0);
    let node = network.share("absent", &intents(4));
    let request = || {
        Request::new(vec![])
            .wait_for_ready(true)
            .with_timeout(Duration::from_millis(100))
    };
    let mut calls = [
        call(node.channel(), &ECHO, request()),
        call(node.channel(), &HELD, request()),
    ];
    for call in &mut calls {
        assert!(poll(call).is_none());
    }
    network.settle();
    network.advance(Duration::from_millis(150));
    network.settle();
    for call in &mut calls {
        let error = poll(call).expect("its time has passed").unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        let Cause::DeadlineExceeded {
            latest: Some(latest),
        } = error.cause()
        else {
            panic!("{error}");
        };
        assert!(error.to_string().contains(&latest.to_string()), "{error}");
        assert!(error.to_string().contains("never sent"), "{error}");
    }
    drop(calls);
    network.assert_nothing_left();
}
