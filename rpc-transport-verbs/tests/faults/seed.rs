//! One seed: a world, its rounds, and the properties that have to hold when it has come to rest.

use std::time::Duration;

use rpc_core::Intents;
use rpc_core_testing::{Mix, Random};
use rpc_transport_verbs::Sizing;
use rpc_transport_verbs::testing::simulation::{
    Fault, FaultCounters, Faults, Pairing, Point, ProcessId, World,
};
use rpc_transport_verbs::verbs::for_transport::WindowFault;
use rpc_transport_verbs::verbs::{ReceiveOrder, SoftOptions};

use super::calls::{Call, NotBegun};
use super::conditions::{Load, deaths, random_faults, window_fault};
use super::long::{self, LongMessages, TRANSFERS};
use super::mixed::MixedCall;
use super::outcomes::{BEGINS, OUTCOMES};
use super::services::Services;
use super::topology::Topology;

/// The result of a seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) trace: u64,
    pub(crate) fault_counters: FaultCounters,
    pub(crate) outcomes: [u64; OUTCOMES.len()],
    pub(crate) transfers: [u64; TRANSFERS.len()],
    /// Calls that were given up because they may have waited for memory in a circle.
    pub(crate) in_circles: usize,
}

/// The world of a seed, and what happens in it.
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
    pub(super) history: Vec<Vec<Pairing>>,
    /// True for an edge that had no channel for a while, because an attempt to connect it failed:
    /// its server may have had too many connections that were being closed.
    pub(super) was_refused: Vec<bool>,
    buried: Vec<bool>,
    pub(super) calls: Vec<Call>,
    pub(super) not_begun: Vec<NotBegun>,
    pub(super) outcomes: [u64; OUTCOMES.len()],
    in_circles: usize,
    /// No faults are injected in this seed.
    is_fault_free: bool,
    pub(super) load: Load,
    pub(super) long: LongMessages,
}

/// Rounds in which calls are started.
const BUSY_ROUNDS: u64 = 120;
/// If a world has not come to rest after this many rounds, there is a bug: far more than the
/// longest waits take at `FAULT_FREE_STEP` per round.
const MOST_ROUNDS: u32 = 20_000;
/// Rounds without faults after which the calls that never end are given up.
const ENDLESS_ROUNDS: u32 = 120;
/// Rounds without faults after which calls are given up that may wait for memory in a circle: several
/// times the longest wait for memory.
const CIRCLE_ROUNDS: u32 = 15_000;
/// How much a round advances the clock while only waiting for calls to end.
const FAULT_FREE_STEP: Duration = Duration::from_millis(5);

/// Runs a seed. Panics with a message if a property does not hold.
pub(crate) fn run(seed: u64) -> Report {
    let random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5eed);
    let topology = Topology::random(&random);
    let (faults, is_fault_free) = random_faults(&random);
    tracing::info!(seed, ?topology, ?faults, "begins");
    let window_fault = window_fault(seed, is_fault_free);
    let mut campaign = Campaign::new(random, topology, faults, is_fault_free, window_fault);
    campaign.be_busy();
    campaign.finish_without_faults();
    campaign.finish()
}

impl Campaign {
    fn new(
        random: Random,
        topology: Topology,
        mut faults: Faults,
        is_fault_free: bool,
        window_fault: WindowFault,
    ) -> Self {
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
            window_fault,
            ..SoftOptions::default()
        });
        let services = Services::with_edges(topology.edges.len());
        let mix = Mix::default();
        if let Some(each) = load.work() {
            services.work(world.clock(), each);
        }
        let most_in_flight = if load.is_overload() { 48 } else { 12 };
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
            long.set_up(&random, &mut intents, &mut sizing);
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
            in_circles: 0,
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

    /// Gives up calls without a deadline that can wait for memory in a circle: the handler of a
    /// forwarded call keeps its request while it waits for the next server, and that of a
    /// bidirectional stream, which waits for its client, keeps the next message.
    fn give_circles_up(&mut self) {
        let is_forwarded = |call: &mut Call| call.route.len() > 1 && call.deadline.is_none();
        let calls: Vec<_> = self.calls.extract_if(.., is_forwarded).collect();
        self.in_circles += calls.len();
        self.outcomes[2] += calls.len() as u64;
        for call in calls {
            self.world.drop_of(ProcessId::new(call.client), call.future);
        }
        if self.topology.is_cyclic() {
            self.in_circles += self.give_streams_up();
        }
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
            if round == CIRCLE_ROUNDS && self.long.memory_is_scarce() {
                self.give_circles_up();
            }
            if self.calls.is_empty() && self.mixed.is_empty() {
                break;
            }
            assert!(
                round < MOST_ROUNDS,
                "calls never end: {:?} and {:?}: {}",
                self.calls
                    .iter()
                    .map(|call| &call.order)
                    .collect::<Vec<_>>(),
                self.mixed
                    .iter()
                    .map(|call| &call.order)
                    .collect::<Vec<_>>(),
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
        let mut outcomes = self.outcomes;
        outcomes[BEGINS] = self.mix.check_interceptors();
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
            outcomes,
            in_circles: self.in_circles,
        }
    }
}
