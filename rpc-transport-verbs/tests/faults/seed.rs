//! One seed: a world, the calls in it, and the properties that have to hold for each call.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rpc_core::testing::{Mix, Random};
use rpc_core::{CallError, Cause, Code, Execution, Intents, MethodSpec, Request, Status};
use rpc_transport_verbs::Sizing;
use rpc_transport_verbs::testing::simulation::{
    Fault, FaultCounters, Faults, Pairing, Point, Post, ProcessId, World,
};
use rpc_transport_verbs::verbs::{ReceiveOrder, SoftOptions};

use super::long::{self, LONGEST_WAIT, LongMessages, TRANSFERS};
use super::mixed::MixedCall;
use super::services::{ECHO, FAIL, HELD, Order, Services, send};
use super::topology::Topology;

/// The ways in which calls end, for the summary: by index.
pub(crate) const OUTCOMES: [&str; 20] = [
    "answered",
    "failed as asked",
    "given up by its caller",
    "died with its caller",
    "deadline passed, never sent",
    "deadline passed, may have run",
    "disconnected, never sent",
    "disconnected, may have run",
    "refused, not started",
    "of any kind: succeeded",
    "of any kind: failed as ordered",
    "of any kind: given up by its caller",
    "of any kind: died with its caller",
    "of any kind: deadline passed",
    "of any kind: disconnected",
    "of any kind: refused",
    "request refused, no memory",
    "response refused, no memory",
    "refused in a nested call, no memory",
    "of any kind: refused, no memory",
];

/// The result of a seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) trace: u64,
    pub(crate) fault_counters: FaultCounters,
    pub(crate) outcomes: [u64; OUTCOMES.len()],
    pub(crate) transfers: [u64; TRANSFERS.len()],
}

type Outcome = Result<Bytes, CallError>;

struct Call {
    order: Order,
    method: &'static MethodSpec,
    client: usize,
    route: Vec<usize>,
    /// The connection on which the call was started.
    pairing: Pairing,
    begun: Instant,
    deadline: Option<Instant>,
    future: Pin<Box<dyn Future<Output = Outcome>>>,
}

/// A call whose caller was told that it has not begun. It is checked again at the end.
struct NotBegun {
    id: u64,
    hops: usize,
}

pub(super) struct Campaign {
    pub(super) world: World,
    pub(super) random: Random,
    pub(super) topology: Topology,
    pub(super) services: Services,
    /// Calls of all kinds, and those that have not ended.
    pub(super) mix: Mix,
    pub(super) mixed: Vec<MixedCall>,
    /// For each edge, the pairing of its current channel.
    pub(super) pairings: Vec<Option<Pairing>>,
    /// For each edge, all connections that ever existed.
    history: Vec<Vec<Pairing>>,
    /// True for an edge that had no channel for a while, because an attempt to connect it failed:
    /// its server may have had too many connections that were being closed.
    was_refused: Vec<bool>,
    buried: Vec<bool>,
    calls: Vec<Call>,
    not_begun: Vec<NotBegun>,
    pub(super) outcomes: [u64; OUTCOMES.len()],
    /// No faults are injected in this seed.
    is_fault_free: bool,
    pub(super) load: Load,
    pub(super) long: LongMessages,
}

/// How much the handlers have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Handlers take no time.
    None,
    /// Handlers take some time.
    Bearable(Duration),
    /// More calls than the servers can serve in time, and one client that has most of them.
    Overload(Duration),
}

impl Load {
    fn random(random: &Random) -> Self {
        let each = Duration::from_micros(1 + random.below(3000));
        match random.below(20) {
            0 => Self::Overload(each),
            1 | 2 => Self::Bearable(each),
            _ => Self::None,
        }
    }

    fn work(self) -> Option<Duration> {
        match self {
            Self::None => None,
            Self::Bearable(each) | Self::Overload(each) => Some(each),
        }
    }

    fn is_overload(self) -> bool {
        matches!(self, Self::Overload(_))
    }
}

/// Rounds in which calls are started.
const BUSY_ROUNDS: u64 = 120;
/// If a world has not come to rest after this many rounds, there is a bug: far more than the
/// longest waits take at `FAULT_FREE_STEP` per round.
const MOST_ROUNDS: u32 = 20_000;
/// Rounds without faults after which the calls that never end are given up.
const ENDLESS_ROUNDS: u32 = 120;
/// How much a round advances the clock while only waiting for calls to end.
const FAULT_FREE_STEP: Duration = Duration::from_millis(5);

/// The time limit is transmitted in whole microseconds, rounded down.
pub(super) const ROUNDED: Duration = Duration::from_micros(1);

/// Returns true if a call was refused because there was no memory for its message.
pub(super) fn is_of_memory(status: &Status) -> bool {
    status.message().contains("no memory for a message")
}

/// Runs a seed. Panics with a message if a property does not hold.
pub(crate) fn run(seed: u64) -> Report {
    let random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5eed);
    let topology = Topology::random(&random);
    let (faults, is_fault_free) = random_faults(&random);
    tracing::info!(seed, ?topology, ?faults, "begins");
    let mut campaign = Campaign::new(random, topology, faults, is_fault_free);
    campaign.be_busy();
    campaign.finish_without_faults();
    campaign.finish()
}

/// Chooses each fault in a third of the seeds, each with its own rate; no faults in one seed of
/// ten.
fn random_faults(random: &Random) -> (Faults, bool) {
    let mut faults = Faults::none();
    if random.happens(100) {
        return (faults, true);
    }
    for fault in Fault::ALL {
        if random.happens(333) {
            let rate = match fault {
                Fault::Stall => [1, 5, 20][random.below(3) as usize],
                // The rate applies to a whole round.
                Fault::QueuePairFails | Fault::LineCut | Fault::Death => {
                    [2, 5, 20][random.below(3) as usize]
                }
                _ => [5, 50, 200, 600][random.below(4) as usize],
            };
            faults.set(*fault, rate);
        }
    }
    for post in Post::ALL {
        if random.happens(150) {
            faults.set_post(*post, [1, 10, 50][random.below(3) as usize]);
        }
    }
    (faults, false)
}

/// Chooses the point at which each process dies, and after how many passes. The number of passes is
/// spread over orders of magnitude, because some points are passed once, and others with every
/// message.
fn deaths(random: &Random, processes: usize, is_fault_free: bool) -> Vec<Option<(Point, u64)>> {
    let is_deadly = !is_fault_free && random.happens(300);
    let death = |_| {
        (is_deadly && random.happens(400)).then(|| {
            let point = Point::ALL[random.below(Point::ALL.len() as u64) as usize];
            let magnitude = 1 << random.below(8);
            (point, random.below(magnitude))
        })
    };
    (0..processes).map(death).collect()
}

impl Campaign {
    fn new(random: Random, topology: Topology, mut faults: Faults, is_fault_free: bool) -> Self {
        let deaths = deaths(&random, topology.processes, is_fault_free);
        let is_of_rnr =
            |death: &Option<(Point, u64)>| matches!(death, Some((Point::Nak | Point::Retry, _)));
        if deaths.iter().any(is_of_rnr) {
            // Otherwise these points are hardly ever passed.
            faults.set(Fault::ReceiverNotReady, 200);
        }
        let mut world = World::new(random.next_u64(), faults);
        // Half of the seeds: every process on a host of its own.
        if random.happens(500) {
            world.set_clocks_apart();
        }
        let load = Load::random(&random);
        let long = LongMessages::random(&random);
        // Half of the seeds: the order of network devices.
        let is_oldest_first = random.happens(500);
        world.set_soft_options(SoftOptions {
            shared_receive_order: if is_oldest_first {
                ReceiveOrder::OldestFirst
            } else {
                ReceiveOrder::NewestFirst
            },
            read_execution: long.read_execution,
            ..SoftOptions::default()
        });
        let services = Services::with_edges(topology.edges.len());
        let mix = Mix::default();
        if let Some(each) = load.work() {
            services.work(world.clock(), each);
        }
        let most_in_flight = if load.is_overload() { 48 } else { 12 };
        let may_be_scarce = topology.scarce();
        let max_in_flight = 1 + random.below(most_in_flight) as u32;
        let signal_interval = 1 + random.below(6) as u32;
        let sizing = Sizing {
            signal_interval: Some(signal_interval),
            max_inline_len: [None, Some(0), Some(64)][random.below(3) as usize],
            ..Sizing::default()
        };
        for (process, dies_at) in deaths.into_iter().enumerate() {
            let mut intents = Intents {
                max_in_flight,
                max_streams: 1 + random.below(12) as u32,
                // Connections that are still closing exist next to the ones that replace them.
                connections: 2 * topology.degree(process) as u32 + 4,
                ..Intents::default()
            };
            let mut sizing = sizing.clone();
            long.set_up(&random, may_be_scarce[process], &mut intents, &mut sizing);
            world.add(
                &process.to_string(),
                &intents,
                &sizing,
                dies_at,
                |methods| {
                    services.register(methods);
                    mix.register(methods);
                },
            );
        }
        let edges = topology.edges.len();
        let processes = topology.processes;
        let mut campaign = Self {
            world,
            random,
            topology,
            services,
            mix,
            mixed: Vec::new(),
            pairings: vec![None; edges],
            history: vec![Vec::new(); edges],
            was_refused: vec![false; edges],
            buried: vec![false; processes],
            calls: Vec::new(),
            not_begun: Vec::new(),
            outcomes: Default::default(),
            is_fault_free,
            load,
            long,
        };
        for edge in 0..edges {
            campaign.connect(edge);
        }
        campaign
    }

    /// Connects an edge, replacing its previous connection.
    fn connect(&mut self, edge: usize) {
        let (client, server) = self.topology.edges[edge];
        let before = self.world.pairings().len();
        let connected = self
            .world
            .connect(ProcessId::new(client), &server.to_string());
        let pairing = self.world.pairings().get(before).copied();
        self.history[edge].extend(pairing);
        let channel = match connected {
            Some(Ok(channel)) => {
                self.pairings[edge] = pairing;
                Some(channel)
            }
            Some(Err(error)) => {
                assert!(
                    !self.is_fault_free,
                    "without faults a connection is refused: {error}"
                );
                tracing::info!(client, server, %error, "no connection");
                self.was_refused[edge] = true;
                None
            }
            None => None,
        };
        let previous = self.services.set_channel(edge, channel);
        self.world.drop_of(ProcessId::new(client), previous);
    }

    fn be_busy(&mut self) {
        let is_overload = self.load.is_overload();
        let calls = 1 + self.random.below(if is_overload { 400 } else { 120 });
        let burst = self.random.below(if is_overload { 60 } else { 12 }) + 1;
        for id in 0..calls {
            self.begin(id);
            if !id.is_multiple_of(burst) {
                continue;
            }
            for _ in 0..=self.random.below(1 + 2 * burst * BUSY_ROUNDS / calls) {
                self.round();
            }
        }
    }

    fn round(&mut self) {
        self.world.step();
        self.world.inject_faults();
        self.world
            .advance(Duration::from_nanos(self.random.below(20_000)));
        self.remove_killed();
        if self.random.happens(100) {
            self.services.wake_held();
            self.mix.wake_waiting();
        }
        if self.random.happens(10) {
            let edge = self.random.below(self.topology.edges.len() as u64) as usize;
            if self
                .world
                .is_alive(ProcessId::new(self.topology.edges[edge].0))
            {
                self.connect(edge);
            }
        }
        let random = self.random.clone();
        self.poll_calls(|| random.happens(400));
        self.poll_mixed(|| random.happens(400));
        self.give_one_mixed_up();
        if self.random.happens(30) && !self.calls.is_empty() {
            let index = self.random.below(self.calls.len() as u64) as usize;
            let call = self.calls.swap_remove(index);
            self.world.drop_of(ProcessId::new(call.client), call.future);
            self.outcomes[2] += 1;
        }
    }

    fn begin(&mut self, id: u64) {
        if self.random.happens(250) {
            return self.begin_mixed(id);
        }
        let random = &self.random;
        let route = match self.load {
            // The unfair client: the one of the first edge.
            Load::Overload(_) if random.happens(800) => vec![0],
            _ => self.topology.route(random),
        };
        let client = self.topology.edges[route[0]].0;
        let (Some(channel), Some(pairing)) =
            (self.services.channel(route[0]), self.pairings[route[0]])
        else {
            return;
        };
        let len = || {
            let short = match random.below(3) {
                0 => random.below(40),
                1 => random.below(600),
                // Messages of equal length that do not fit in the ring: if one overwrote another, it
                // would look right at first.
                _ => 400,
            };
            self.long.len(random).unwrap_or(short as u32)
        };
        let order = Order {
            id,
            response_len: len(),
            hops: route[1..].iter().map(|edge| *edge as u8).collect(),
            padding: len(),
        };
        let method = [&ECHO, &ECHO, &HELD, &FAIL][random.below(4) as usize];
        let mut request = Request::new(order.encode());
        let mut deadline = None;
        let needs_deadline = route.len() > 1 && self.topology.is_cyclic();
        let limited = match self.load {
            Load::None => 250,
            // Calls without deadlines are never refused.
            Load::Bearable(_) | Load::Overload(_) => 900,
        };
        if needs_deadline || random.happens(limited) {
            let most_us = if self.load == Load::None {
                2000
            } else {
                200_000
            };
            let timeout = Duration::from_micros(random.below(most_us));
            let at = self.world.clock().now() + timeout;
            request = request.with_deadline(at);
            deadline = Some(at);
            self.services.set_deadline(id, at);
        }
        let future = Box::pin(async move { send(&channel, method, request).await });
        self.calls.push(Call {
            order,
            method,
            client,
            route,
            pairing,
            begun: self.world.clock().now(),
            deadline,
            future,
        });
    }

    /// Polls each call, or the calls that `is_polled` picks, and judges the ones that end.
    fn poll_calls(&mut self, is_polled: impl Fn() -> bool) {
        let mut index = 0;
        while let Some(call) = self.calls.get_mut(index) {
            if !is_polled() {
                index += 1;
                continue;
            }
            let mut cx = Context::from_waker(Waker::noop());
            let client = ProcessId::new(call.client);
            match self
                .world
                .run(client, |_| call.future.as_mut().poll(&mut cx))
            {
                Some(Poll::Ready(outcome)) => {
                    let call = self.calls.swap_remove(index);
                    self.judge(&call, outcome);
                    self.world.drop_of(client, call.future);
                }
                // If the process died in this poll, it is removed in the next round.
                Some(Poll::Pending) | None => index += 1,
            }
        }
    }

    /// Checks that a call ended correctly.
    fn judge(&mut self, call: &Call, outcome: Outcome) {
        let id = call.order.id;
        let runs = self.services.runs(id, call.order.hops.len());
        let index = match &outcome {
            Ok(response) => {
                assert!(*call.method != FAIL, "call {id} was to fail");
                assert!(
                    *response == call.order.response(),
                    "call {id} got a wrong answer of {} bytes: {:?}",
                    response.len(),
                    &response[..response.len().min(20)]
                );
                assert_eq!(
                    runs, 1,
                    "call {id} was answered, and its handler ran {runs} times"
                );
                0
            }
            Err(error) => self.judge_error(call, error, runs),
        };
        tracing::debug!(id, outcome = OUTCOMES[index], ?outcome, "ends");
        self.world.note(&[id, index as u64]);
        self.outcomes[index] += 1;
    }

    fn judge_error(&mut self, call: &Call, error: &CallError, runs: u32) -> usize {
        let id = call.order.id;
        let is_late = call
            .deadline
            .is_some_and(|at| at <= self.world.clock().now());
        let never_sent = error.execution() == Execution::NeverSent;
        if never_sent || error.execution() == Execution::NotStarted {
            assert_eq!(
                runs, 0,
                "call {id} ran, and is said not to have begun: {error}"
            );
            let hops = call.order.hops.len();
            self.not_begun.push(NotBegun { id, hops });
        }
        match error.cause() {
            Cause::DeadlineExceeded => {
                assert!(is_late, "call {id} has time left: {error}");
                if never_sent { 4 } else { 5 }
            }
            Cause::Disconnected(_) => {
                let why = self.world.may_have_ended(&call.pairing);
                assert!(why, "call {id}: nothing has ended its connection: {error}");
                if never_sent { 6 } else { 7 }
            }
            Cause::Remote(status) => match status.code() {
                Code::Aborted => {
                    assert!(*call.method == FAIL, "call {id} was not to fail: {error}");
                    assert_eq!(runs, 1, "call {id}: {error}");
                    1
                }
                Code::DeadlineExceeded => {
                    let hops = call.route.len() as u32;
                    let at = call.deadline.map(|at| at - hops * ROUNDED);
                    let is_late = at.is_some_and(|at| at <= self.world.clock().now());
                    assert!(is_late, "call {id} has time left: {error}");
                    5
                }
                Code::Unavailable => {
                    let later_edges = &call.route[1..];
                    let why = later_edges
                        .iter()
                        .any(|edge| self.was_refused[*edge] || self.may_have_ended(*edge));
                    assert!(why, "call {id}: no connection onwards has ended: {error}");
                    7
                }
                Code::ResourceExhausted => {
                    let is_nested = call.route.len() > 1;
                    let is_refused = error.execution() == Execution::NotStarted;
                    assert!(is_refused || is_nested, "call {id}: {error}");
                    let is_of_load = call.deadline.is_some() && self.load != Load::None;
                    if is_refused && is_of_memory(status) {
                        self.check_refusal(id, None, error);
                        return 16;
                    }
                    if !is_refused && !is_of_load {
                        self.check_refusal(id, Some(call.begun), error);
                        return 18;
                    }
                    assert!(
                        is_of_load,
                        "call {id}: refused without a deadline or a load: {error}"
                    );
                    8
                }
                _ => panic!("call {id}: {error}"),
            },
            Cause::NotReceived(status) if is_of_memory(status) => {
                assert_eq!(runs, 1, "call {id}: {error}");
                self.check_refusal(id, Some(call.begun), error);
                17
            }
            _ => panic!("call {id}: {error}"),
        }
    }

    /// Checks that a message may have been refused because its receiver had no memory: at once, or, if
    /// the call began then, after it has waited.
    pub(super) fn check_refusal(&self, id: u64, begun: Option<Instant>, error: &CallError) {
        let may_be_short = self.long.may_be_refused();
        assert!(may_be_short, "call {id}: memory is not short: {error}");
        if self.long.waits_for_memory() {
            let waited = begun.map(|begun| self.world.clock().now() - begun);
            let has_waited = waited.is_some_and(|waited| waited >= LONGEST_WAIT);
            assert!(has_waited, "call {id} was refused at once: {error}");
        }
    }

    fn may_have_ended(&self, edge: usize) -> bool {
        let (client, server) = self.topology.edges[edge];
        self.history[edge]
            .iter()
            .any(|pairing| self.world.may_have_ended(pairing))
            || self.world.may_be_broken(ProcessId::new(client))
            || self.world.may_be_broken(ProcessId::new(server))
    }

    fn remove_killed(&mut self) {
        for process in 0..self.topology.processes {
            let id = ProcessId::new(process);
            if self.buried[process] || self.world.is_alive(id) {
                continue;
            }
            self.buried[process] = true;
            let died = self
                .calls
                .extract_if(.., |call| call.client == process)
                .collect::<Vec<_>>();
            self.outcomes[3] += died.len() as u64;
            self.world.drop_of(id, died);
            self.remove_mixed_of(process);
            for edge in 0..self.topology.edges.len() {
                if self.topology.edges[edge].0 == process {
                    let channel = self.services.set_channel(edge, None);
                    self.world.drop_of(id, channel);
                }
            }
        }
        self.world.remove_killed();
    }

    /// Stops injecting faults: every call has to end, and all resources have to be returned.
    fn finish_without_faults(&mut self) {
        self.world.stop_faults();
        self.services.open();
        self.mix.open();
        for round in 0.. {
            self.step_without_faults(round);
            self.poll_calls(|| true);
            self.poll_mixed(|| true);
            if round >= ENDLESS_ROUNDS {
                self.give_endless_up();
            }
            if self.calls.is_empty() && self.mixed.is_empty() {
                break;
            }
            assert!(
                round < MOST_ROUNDS,
                "{} and {} calls never end: {}",
                self.calls.len(),
                self.mixed.len(),
                self.summary()
            );
        }
        for edge in 0..self.topology.edges.len() {
            let client = ProcessId::new(self.topology.edges[edge].0);
            let channel = self.services.set_channel(edge, None);
            self.world.drop_of(client, channel);
        }
        for round in 0.. {
            self.step_without_faults(1000);
            let left = self.leftovers();
            if left.is_empty() {
                break;
            }
            assert!(round < MOST_ROUNDS, "left over: {left:#?}");
        }
    }

    /// The clock advances slowly at first, so calls can still be answered in time.
    fn step_without_faults(&mut self, round: u32) {
        self.world.step();
        let step = if round < 100 {
            Duration::from_micros(10)
        } else {
            FAULT_FREE_STEP
        };
        self.world.advance(step);
        self.remove_killed();
        self.services.open();
        self.mix.wake_waiting();
    }

    fn leftovers(&self) -> Vec<String> {
        let of = |process: ProcessId| {
            let left = self.world.leftovers(process);
            left.into_iter()
                .map(move |what| format!("{process:?}: {what}"))
        };
        self.world.processes().flat_map(of).collect()
    }

    fn summary(&self) -> String {
        let mut ids: Vec<_> = self.calls.iter().map(|call| call.order.id).collect();
        ids.extend(self.mixed.iter().map(|call| call.order.id));
        format!("{ids:?}, with {:#?}", self.leftovers())
    }

    fn finish(self) -> Report {
        if let Some(mixed_up) = self.services.mixed_up() {
            panic!("{mixed_up}");
        }
        if let Some((id, runs)) = self.services.repeated() {
            panic!("call {id}: its handler ran {runs} times");
        }
        for NotBegun { id, hops } in &self.not_begun {
            let runs = self.services.runs(*id, *hops);
            assert_eq!(runs, 0, "call {id} ran after it was said not to have begun");
        }
        self.mix.finish();
        let fault_counters = self.world.fault_counters();
        let not_ready = self.world.not_ready_without_cause();
        assert!(
            not_ready.is_empty(),
            "frames found no receive: {not_ready:?}"
        );
        let slept = self.world.slept_through_without_cause();
        assert_eq!(slept, 0, "pollers slept on although something had come");
        let mut transfers = [0; TRANSFERS.len()];
        let nodes = self.world.processes().filter_map(|it| self.world.node(it));
        for node in nodes {
            let counts = long::counts(&node.poller().stats().pollers[0]);
            transfers
                .iter_mut()
                .zip(counts)
                .for_each(|(sum, n)| *sum += n);
        }
        Report {
            transfers,
            trace: self.world.trace(),
            fault_counters,
            outcomes: self.outcomes,
        }
    }
}
