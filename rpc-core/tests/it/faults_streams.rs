//! Random calls of all four kinds over a network with injected faults, through both kinds of channel.
//! Failing seeds are printed.
//!
//! `VERBLINE_SEED=<seed> cargo test -p rpc-core --test it faults_streams::` replays a seed;
//! `VERBLINE_SEEDS=<count>` sets the number of seeds to try.

#![allow(
    clippy::print_stderr,
    reason = "prints a failing seed for the person who runs the test"
)]

use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rpc_core::{CallError, Cause, Code, Execution, Intents, LocalChannel, Shutdown};
use rpc_core_testing::{
    Ending, Faults, Loopback, Mix, MixCall, Network, Node, Order, Random, SharedNode,
};

struct Call {
    order: Order,
    deadline: Option<Instant>,
    future: MixCall,
}

/// A world: a server, clients of both flavors, and their calls.
struct World {
    seed: u64,
    faults: Faults,
    random: Random,
    mix: Mix,
    network: Network,
    server: Rc<Node>,
    channels: Vec<LocalChannel>,
    shared: Vec<Rc<SharedNode<Loopback>>>,
    calls: Vec<Call>,
    /// The server shuts down.
    goes_away: bool,
}

const CALLS: u64 = 60;

/// The longest message.
const LONGEST: u32 = 100_000;

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let random = Random::new(seed ^ 0x57e4);
        let intents = Intents {
            max_in_flight: 1 + random.below(12) as u32,
            max_streams: 1 + random.below(12) as u32,
            max_message_len: LONGEST as usize,
            // Enough for a few long messages: others wait.
            message_memory: u64::from(LONGEST) * (2 + random.below(8)),
            connections: 8,
            ..Intents::default()
        };
        let mix = Mix::default();
        let mut network = Network::new(faults, random.next_u64());
        network.use_slots([200, 700, 4096][random.below(3) as usize]);
        if random.happens(500) {
            network.use_reads();
        }
        let server = network.add("server", &intents, |methods| mix.register(methods));
        let locals = 1 + random.below(2);
        let channels = (0..locals).map(|n| {
            let node = network.add(&format!("client {n}"), &intents, |_| ());
            let channel = node.poller().connect("server").expect("there is room");
            let interceptors = mix.interceptors().into_iter();
            interceptors.fold(channel, |channel, each| channel.with_interceptor(each))
        });
        let channels = channels.collect();
        let shared = (0..1 + random.below(2)).map(|_| network.share("server", &intents));
        let shared = shared.collect();
        Self {
            seed,
            faults,
            mix,
            network,
            server,
            channels,
            shared,
            calls: Vec::new(),
            goes_away: random.happens(150),
            random,
        }
    }

    fn begin(&mut self, id: u64) {
        let random = &self.random;
        // A response has some bytes of metadata beside its message.
        let mut order = Order::random(random, id, 190);
        order.lengthen(random, LONGEST);
        let timeout = Duration::from_micros(random.below(3000));
        let deadline = random
            .happens(200)
            .then(|| self.network.clock().now() + timeout);
        let index = random.below((self.channels.len() + self.shared.len()) as u64) as usize;
        let future = match self.channels.get(index) {
            Some(channel) => self.mix.call(channel.clone(), order.clone(), deadline),
            None => {
                let node = &self.shared[index - self.channels.len()];
                let interceptors = self.mix.interceptors().into_iter();
                let channel = interceptors.fold(node.channel().clone(), |channel, each| {
                    channel.with_interceptor(each)
                });
                self.mix.call(channel, order.clone(), deadline)
            }
        };
        self.calls.push(Call {
            order,
            deadline,
            future,
        });
    }

    fn poll_calls(&mut self, is_polled: impl Fn() -> bool) {
        let mut index = 0;
        while let Some(call) = self.calls.get_mut(index) {
            let mut cx = Context::from_waker(Waker::noop());
            if is_polled()
                && let Poll::Ready(outcome) = call.future.as_mut().poll(&mut cx)
            {
                let call = self.calls.swap_remove(index);
                self.judge(&call, &outcome);
            } else {
                index += 1;
            }
        }
    }

    fn judge(&self, call: &Call, outcome: &Result<(), CallError>) {
        let id = call.order.id;
        let Some(error) = self.mix.judge(&call.order, outcome) else {
            return;
        };
        let now = self.network.clock().now();
        let is_expected = match error.code() {
            Code::DeadlineExceeded => call.deadline.is_some_and(|at| at <= now),
            Code::Unavailable => self.faults.disconnect > 0 || self.goes_away,
            // The poller of a server that has shut down takes no turn.
            Code::Unimplemented => self.server.is_shut_down(),
            _ => false,
        };
        assert!(is_expected, "call {id}: {error:?}, {:?}", call.order);
        if let Cause::Remote(status) = error.cause() {
            assert_ne!(error.execution(), Execution::NeverSent, "{status}");
        }
    }

    fn be_busy(&mut self) {
        let shutdown_at = self.random.below(CALLS);
        for id in 0..CALLS {
            self.begin(id);
            if self.goes_away && id == shutdown_at {
                self.server.shut_down(Shutdown::default());
            }
            let random = self.random.clone();
            for _ in 0..random.below(12) {
                self.network.step();
                self.poll_calls(|| random.happens(400));
            }
            if random.happens(200) {
                self.network
                    .advance(Duration::from_micros(random.below(200)));
            }
            if random.happens(10) {
                self.network.advance(Duration::from_secs(1));
            }
            if random.happens(100) {
                self.mix.wake_waiting();
            }
            if random.happens(150) && !self.calls.is_empty() {
                let index = random.below(self.calls.len() as u64) as usize;
                drop(self.calls.swap_remove(index));
            }
        }
    }

    fn finish(mut self) {
        self.mix.open();
        let ends = |call: &Call| call.order.ending != Ending::Never || call.deadline.is_some();
        for round in 0..20_000 {
            self.poll_calls(|| true);
            if self.calls.is_empty() {
                break;
            }
            // Calls that never end keep others from their places.
            if round == 500 {
                self.calls.retain(ends);
            }
            self.network.step();
            // Slowly at first: most calls end in time.
            let us = if round < 3000 { 1 } else { 1000 };
            self.network.advance(Duration::from_micros(us));
        }
        let left = self.calls.drain(..);
        let left: Vec<_> = left.map(|call| call.order).collect();
        let leftovers: Vec<_> = self.shared.iter().map(|node| node.leftovers()).collect();
        assert!(
            left.is_empty(),
            "never end: {left:?}, {:?}, {leftovers:?}, {}",
            self.server.leftovers(),
            self.goes_away
        );
        self.channels.clear();
        if self.faults.disconnect == 0 {
            self.network.assert_nothing_left();
            self.mix.finish();
        }
        let _ = self.seed;
    }
}

fn run(seed: u64, faults: Faults) {
    let mut world = World::new(seed, faults);
    world.be_busy();
    world.finish();
}

fn run_seeds(faults: Faults) {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok())
    };
    if let Some(seed) = number("VERBLINE_SEED") {
        return run(seed, faults);
    }
    for seed in 0..number("VERBLINE_SEEDS").unwrap_or(200) {
        // Reports the seed, because the panic itself does not.
        let outcome = std::panic::catch_unwind(|| run(seed, faults));
        if let Err(panic) = outcome {
            eprintln!("VERBLINE_SEED={seed} replays this failure, with {faults:?}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn without_faults() {
    run_seeds(Faults::none());
}

#[test]
fn with_faults_that_pass() {
    run_seeds(Faults::rough());
}

#[test]
fn with_connections_that_fail() {
    run_seeds(Faults {
        disconnect: 2,
        ..Faults::rough()
    });
}
