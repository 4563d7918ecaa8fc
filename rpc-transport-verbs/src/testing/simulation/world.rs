//! [`World`]: simulated processes, stepped in an order that the seed determines.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rpc_core::clock::Clock;
use rpc_core::limits::Intents;
use rpc_core::testing::{Node, Random};
use rpc_core::transport::{ConnectError, Transport};
use rpc_core::{LocalChannel, Methods};

use super::transport::{Server, SimulatedTransport, Town};
use super::{Fault, Faults, Killed, Life, Point, Simulation, Tally};
use crate::device::setup::{self, Opened};
use crate::device::sizing::Sizing;
use crate::hooks;
use crate::provider::SimulatedProcess;
use crate::transport::mailbox::{LineEnd, Notice};
use crate::verbs::{AsyncEvent, CompletionStatus, Context, QpNum};

/// Simulated processes on one thread, with faults between them.
///
/// A thread has one world at a time.
pub struct World {
    clock: Clock,
    simulation: Rc<Simulation>,
    town: Rc<Town>,
    processes: Vec<Process>,
}

/// Identifies a process of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(pub(super) usize);

impl ProcessId {
    /// Returns the id of the process that was added as number `number`, counted from 0.
    #[must_use]
    pub const fn of(number: usize) -> Self {
        Self(number)
    }
}

/// The two ends of a connection that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// The client, and the number of its queue pair.
    pub client: (ProcessId, u32),
    /// The server, and the number of its queue pair.
    pub server: (ProcessId, u32),
}

struct Process {
    /// `None` once the process was killed and removed.
    node: Option<Rc<Node<SimulatedTransport>>>,
    device: Option<SimulatedProcess>,
    life: Rc<Life>,
    /// Rounds for which its poller, its engine and its event thread do nothing.
    stalled: [Cell<u32>; 3],
    /// Start of its poller's current sleep.
    asleep: Cell<Option<Instant>>,
    /// Number of times that work should have ended a sleep of the poller, but did not.
    slept_through: Cell<u64>,
}

/// Maximum sleep of a poller: far shorter than in a real process, where deadlines end a sleep in
/// time.
const LONGEST_SLEEP: Duration = Duration::from_micros(300);
/// How often a poller that has found no work goes to sleep, in thousandths.
const SLEEPS: u16 = 50;

impl World {
    /// Creates a world without processes. `seed` determines the run, and `faults` the fault rates.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        let clock = Clock::manual();
        let simulation = Rc::new(Simulation {
            now: Cell::new(clock.now()),
            random: Random::new(seed),
            faults,
            is_calm: Cell::new(false),
            struck: RefCell::default(),
            running: RefCell::new(None),
            // The offset basis of FNV-1a.
            trace: Cell::new(0xcbf2_9ce4_8422_2325),
        });
        hooks::install(Some(simulation.clone()));
        let town = Rc::new(Town {
            simulation: Rc::clone(&simulation),
            servers: RefCell::default(),
            lines: RefCell::default(),
            pairings: RefCell::default(),
        });
        Self {
            clock,
            simulation,
            town,
            processes: Vec::new(),
        }
    }

    /// Adds a process that serves the methods that `register` adds, at the address `name`. If
    /// `dies_at` is given, the process is killed at that point, after passing it that many times.
    ///
    /// # Panics
    ///
    /// Panics if the process cannot be set up because the machine lacks memory or file descriptors.
    pub fn add(
        &mut self,
        name: &str,
        intents: &Intents,
        sizing: &Sizing,
        dies_at: Option<(Point, u64)>,
        register: impl FnOnce(&mut Methods),
    ) -> ProcessId {
        let device = SimulatedProcess::new().expect("a process can be simulated");
        let life = Rc::new(Life {
            number: self.processes.len(),
            killer: device.killer(),
            dies_at: Cell::new(None),
            unready_left: Cell::default(),
            broken: RefCell::default(),
            is_broken: Cell::default(),
        });
        // No faults during set-up: a process that cannot be set up is of no use.
        let was_calm = self.simulation.is_calm.replace(true);
        let transport = self.simulation.as_life(&life, || {
            let context = Context::simulated(&device).expect("a context is opened");
            let opened = Opened::simulated(context);
            let opened = opened.expect("the software device has an address");
            setup::open_lanes(opened, Vec::new(), intents, sizing)
                .unwrap_or_else(|error| panic!("the transport cannot be opened: {error}"))
        });
        self.simulation.is_calm.set(was_calm);
        let verbs = transport.expect("nobody dies before it is there");
        let port = verbs.port();
        let transport = SimulatedTransport {
            verbs,
            life: Rc::clone(&life),
            town: Rc::downgrade(&self.town),
        };
        let node = Rc::new(Node::over(transport, &self.clock, register));
        life.dies_at.set(dies_at);
        let server = Server {
            life: Rc::clone(&life),
            port,
            admission: node.admission().clone(),
        };
        self.town
            .servers
            .borrow_mut()
            .insert(name.to_owned(), server);
        self.processes.push(Process {
            node: Some(node),
            device: Some(device),
            life,
            stalled: Default::default(),
            asleep: Cell::default(),
            slept_through: Cell::default(),
        });
        ProcessId(self.processes.len() - 1)
    }

    /// Returns all processes, dead or alive.
    pub fn processes(&self) -> impl Iterator<Item = ProcessId> + use<> {
        (0..self.processes.len()).map(ProcessId)
    }

    /// Returns the source of all random decisions.
    #[must_use]
    pub fn random(&self) -> &Random {
        &self.simulation.random
    }

    /// Returns the clock of all processes.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Advances the clock.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.simulation.now.set(self.clock.now());
    }

    /// Stops injecting faults.
    pub fn calm_down(&self) {
        self.simulation.is_calm.set(true);
        for process in &self.processes {
            process.stalled.iter().for_each(|stalled| stalled.set(0));
        }
    }

    /// Returns the counters of injected faults.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.simulation.struck.borrow().clone()
    }

    /// Returns the hash of everything that has happened.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.simulation.trace.get()
    }

    /// Adds `words` to the hash of everything that has happened.
    pub fn note(&self, words: &[u64]) {
        self.simulation.note(words);
    }

    /// Returns true if the process has not been killed.
    #[must_use]
    pub fn is_alive(&self, process: ProcessId) -> bool {
        !self.processes[process.0].life.killer.has_killed()
    }

    /// Returns the node of a process; `None` once it was killed and removed.
    #[must_use]
    pub fn node(&self, process: ProcessId) -> Option<&Rc<Node<SimulatedTransport>>> {
        self.processes[process.0].node.as_ref()
    }

    /// Runs code of a process. Returns `None` if the process has been killed, or is killed while it
    /// runs this code.
    pub fn run<R>(
        &self,
        process: ProcessId,
        work: impl FnOnce(&Node<SimulatedTransport>) -> R,
    ) -> Option<R> {
        let Process {
            node, life, asleep, ..
        } = &self.processes[process.0];
        // A poller thread that runs other code is not asleep.
        asleep.set(None);
        let node = node.as_deref().filter(|_| !life.killer.has_killed())?;
        self.simulation.as_life(life, || work(node))
    }

    /// Connects a process to another one, by name. Returns `None` if the client is killed
    /// meanwhile.
    pub fn connect(
        &self,
        client: ProcessId,
        server: &str,
    ) -> Option<Result<LocalChannel, ConnectError>> {
        self.run(client, |node| node.poller().connect(server))
    }

    /// Returns every connection ever begun, in order.
    #[must_use]
    pub fn pairings(&self) -> Vec<Pairing> {
        self.town.pairings.borrow().clone()
    }

    /// Returns true if a fault may have ended the connection: the death of a side, or a fault
    /// attributed to one of its queue pairs.
    #[must_use]
    pub fn may_have_ended(&self, pairing: &Pairing) -> bool {
        [pairing.client, pairing.server]
            .iter()
            .any(|(process, qp_num)| {
                let life = &self.processes[process.0].life;
                life.killer.has_killed()
                    || life.is_broken.get()
                    || life.broken.borrow().contains(qp_num)
            })
    }

    /// Takes one round: most threads of most processes take a step, in any order. Returns true if
    /// any poller found work.
    pub fn step(&self) -> bool {
        let random = &self.simulation.random;
        let count = self.processes.len() as u64;
        if count == 0 {
            return false;
        }
        let mut found_any = false;
        let first = random.below(count) as usize;
        for offset in 0..self.processes.len() {
            let number = (first + offset) % self.processes.len();
            let process = &self.processes[number];
            if process.life.killer.has_killed() {
                continue;
            }
            found_any |= self.step_process(number, process);
        }
        self.step_lines();
        found_any
    }

    fn step_process(&self, number: usize, process: &Process) -> bool {
        let (Some(node), Some(device)) = (&process.node, &process.device) else {
            return false;
        };
        let (simulation, random) = (&self.simulation, &self.simulation.random);
        let is_calm = simulation.is_calm.get();
        // Pollers take most of the steps; the engine and the event thread step now and then.
        let takes = |thread: usize, thousandths: u16| {
            let stalled = &process.stalled[thread];
            if stalled.get() > 0 {
                stalled.set(stalled.get() - 1);
                return false;
            }
            if simulation.strikes(Fault::Stall) {
                stalled.set(random.below(200) as u32);
                return false;
            }
            is_calm || random.happens(thousandths)
        };
        let (polls, ticks, hears) = (takes(0, 800), takes(1, 150), takes(2, 200));
        let found = simulation.as_life(&process.life, || {
            let found = polls && self.step_poller(process, node, device);
            if ticks {
                device.step_engine(simulation.now.get());
            }
            if hears {
                node.with_transport(|transport| {
                    if let Some(lane) = transport.verbs.lane(0) {
                        lane.events.step();
                    }
                });
            }
            found
        });
        let found = found.unwrap_or(false);
        if found {
            simulation.note(&[number as u64]);
        }
        found
    }

    /// Takes a poller's turn unless the poller sleeps. A poller without work may go to sleep: it
    /// arms, polls once more, and waits.
    fn step_poller(
        &self,
        process: &Process,
        node: &Node<SimulatedTransport>,
        device: &SimulatedProcess,
    ) -> bool {
        let now = self.simulation.now.get();
        let mut is_overdue = false;
        if let Some(since) = process.asleep.get() {
            let is_woken = || node.with_transport(|transport| transport.verbs.is_woken());
            if !is_woken() {
                if now < since + LONGEST_SLEEP {
                    return false;
                }
                // A late wakeup is excused if the sleeper depends on work that the engine may not
                // have done yet. A process at rest does not depend on the engine.
                is_overdue = device.is_at_rest();
            }
            process.asleep.set(None);
        }
        let mut found = node.step();
        if found && is_overdue {
            tracing::info!(process = process.life.number, "slept through");
            process.slept_through.set(process.slept_through.get() + 1);
        }
        if !found && self.simulation.random.happens(SLEEPS) {
            node.with_transport(|transport| transport.arm());
            found = node.step();
            if !found {
                process.asleep.set(Some(now));
            }
        }
        found
    }

    fn step_lines(&self) {
        let simulation = &self.simulation;
        let is_alive = |process: usize| !self.processes[process].life.killer.has_killed();
        let is_late = |is_ready: bool| {
            simulation.strikes(match is_ready {
                true => Fault::LateReady,
                false => Fault::LateLine,
            })
        };
        self.town.lines.borrow_mut().retain_mut(|line| {
            line.step(is_alive, is_late);
            !line.is_over()
        });
    }

    /// Injects the faults that affect connections and processes, at their rates.
    pub fn strike(&self) {
        let (simulation, random) = (&self.simulation, &self.simulation.random);
        if simulation.strikes(Fault::Death) {
            let unlucky = random.below(self.processes.len() as u64) as usize;
            tracing::info!(process = unlucky, "is killed between two steps");
            self.processes[unlucky].life.killer.kill();
        }
        let pairings = self.town.pairings.borrow();
        if pairings.is_empty() {
            return;
        }
        let any = |pairings: &[Pairing]| pairings[random.below(pairings.len() as u64) as usize];
        if simulation.strikes(Fault::QueuePairFails) {
            let unlucky = any(&pairings);
            let ((process, qp_num), (peer, _)) = match random.happens(500) {
                true => (unlucky.client, unlucky.server),
                false => (unlucky.server, unlucky.client),
            };
            self.fail_queue_pair(process, qp_num);
            if random.happens(500) {
                // While the peer is slow to notice, the failed side reuses the memory of the
                // messages it sent.
                self.processes[peer.0].stalled[0].set(random.below(60) as u32);
            }
        }
        let mut lines = self.town.lines.borrow_mut();
        if !lines.is_empty() && simulation.strikes(Fault::LineCut) {
            let index = random.below(lines.len() as u64) as usize;
            let line = &mut lines[index];
            for end in &line.ends {
                // Both processes are affected, because the socket connects them.
                self.processes[end.process].life.is_broken.set(true);
            }
            tracing::info!(index, "a lifeline is cut");
            if random.happens(700) {
                line.line.hang_up();
            } else {
                let end = &line.ends[random.below(2) as usize];
                let _ = end.mailbox.put(Notice::Ended(end.key, LineEnd::Bytes));
            }
        }
    }

    fn fail_queue_pair(&self, process: ProcessId, qp_num: u32) {
        let random = &self.simulation.random;
        let Process { device, life, .. } = &self.processes[process.0];
        let Some(device) = device.as_ref().filter(|_| !life.killer.has_killed()) else {
            return;
        };
        let qp = QpNum(qp_num);
        let (status, event) = match random.below(4) {
            0 => (Some(CompletionStatus::RetryExceeded), None),
            1 => (None, Some(AsyncEvent::QpFatal { qp_num: qp })),
            2 => (None, Some(AsyncEvent::QpAccessError { qp_num: qp })),
            _ => (None, None),
        };
        tracing::info!(
            process = process.0,
            qp_num,
            ?status,
            ?event,
            "a queue pair fails"
        );
        let failed = self
            .simulation
            .as_life(life, || device.fail_queue_pair(qp, status, event));
        if failed == Some(true) {
            life.broken.borrow_mut().insert(qp_num);
        }
    }

    /// Describes the parts of a process that are still in use. Empty once all calls and connections
    /// have ended.
    #[must_use]
    pub fn leftovers(&self, process: ProcessId) -> Vec<String> {
        let Process { node, device, .. } = &self.processes[process.0];
        let (Some(node), Some(device)) = (node, device) else {
            return Vec::new();
        };
        let mut left = node.leftovers();
        left.extend(device.leftovers());
        node.with_transport(|transport| {
            let limits = transport.verbs.limits().clone();
            let places = transport.verbs.slots_by_state();
            let are_back = places.total() == limits.slots()
                && places.sends_free == limits.send_slots
                && places.receives_held == 0;
            if !are_back {
                left.push(format!("not all slots are back: {places}"));
            }
            if let Some(lane) = transport.verbs.lane(0) {
                for (count, what) in [
                    (lane.connections.indexes().len(), "connections"),
                    (lane.lines.len(), "lifelines"),
                    (lane.closing.len(), "ending connections"),
                    (lane.queue_pairs.count() as usize, "places of queue pairs"),
                ] {
                    if count > 0 {
                        left.push(format!("{count} {what} of the lane"));
                    }
                }
            }
        });
        left
    }

    /// Returns the processes whose frames found no receive although no injected fault explains it,
    /// with counts.
    #[must_use]
    pub fn not_ready_without_cause(&self) -> Vec<(ProcessId, u64)> {
        let tally = self.tally();
        let [_, receives] = tally.posts.map(|[refused, cut]| refused + cut);
        if tally.faults[Fault::ReceiverNotReady as usize] + receives > 0 {
            return Vec::new();
        }
        let of = |process: ProcessId| Some((process, self.node(process)?.poller().counters().rnr));
        let processes = self.processes().filter_map(of);
        processes.filter(|(_, not_ready)| *not_ready > 0).collect()
    }

    /// Returns how often a poller kept sleeping although work had arrived, if no injected fault
    /// explains it.
    #[must_use]
    pub fn slept_through_without_cause(&self) -> u64 {
        let tally = self.tally();
        let is_late = [
            Fault::LateMessage,
            Fault::LateBell,
            Fault::LateCompletion,
            Fault::ShortPoll,
        ]
        .iter()
        .any(|fault| tally.faults[*fault as usize] > 0);
        // A process killed between the commit word and the wakeup wakes no peer.
        if is_late || tally.deaths.iter().any(|count| *count > 0) {
            return 0;
        }
        let of = |process: &Process| process.slept_through.get();
        self.processes.iter().map(of).sum()
    }

    /// Drops a value that belonged to a process. If the process was killed, this stands for the
    /// cleanup by its kernel.
    pub fn drop_of<T>(&self, process: ProcessId, value: T) {
        let life = &self.processes[process.0].life;
        self.simulation.as_life(life, || drop(value));
    }

    /// Returns true if a fault may have ended all connections of a process.
    #[must_use]
    pub fn may_be_broken(&self, process: ProcessId) -> bool {
        let life = &self.processes[process.0].life;
        life.killer.has_killed() || life.is_broken.get()
    }

    /// Removes killed processes from the world and releases their memory and files, as a kernel
    /// does.
    pub fn bury_the_dead(&mut self) {
        let simulation = &self.simulation;
        for process in &mut self.processes {
            if process.life.killer.has_killed() && process.device.is_some() {
                self.town
                    .servers
                    .borrow_mut()
                    .retain(|_, server| !server.life.killer.has_killed());
                let (node, device) = (process.node.take(), process.device.take());
                simulation.bury(&process.life, node, device);
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.town.servers.borrow_mut().clear();
        self.town.lines.borrow_mut().clear();
        for mut process in self.processes.drain(..) {
            let node = process.node.take();
            if let Some(node) = &node {
                node.discard_services();
            }
            drop(node);
            drop(process.device.take());
        }
        hooks::install(None);
    }
}

impl Simulation {
    /// Runs code of a process. Returns `None` if the process is killed in it.
    pub(super) fn as_life<R>(&self, life: &Rc<Life>, work: impl FnOnce() -> R) -> Option<R> {
        let before = self.running.replace(Some(Rc::clone(life)));
        let result = catch_unwind(AssertUnwindSafe(work));
        self.running.replace(before);
        match result {
            // The process may have been killed although the result is `Ok`: a kill inside a handler
            // unwinds only to the handler's turn, which catches panics.
            Ok(_) if life.killer.has_killed() => None,
            Ok(result) => Some(result),
            Err(payload) if payload.is::<Killed>() => None,
            // A panic after a process's death is a consequence of the death, so it is ignored.
            Err(_) if life.killer.has_killed() => None,
            Err(payload) => resume_unwind(payload),
        }
    }

    fn bury(
        &self,
        life: &Rc<Life>,
        node: Option<Rc<Node<SimulatedTransport>>>,
        device: Option<SimulatedProcess>,
    ) {
        self.as_life(life, || {
            if let Some(node) = &node {
                node.discard_services();
            }
            drop(node);
            drop(device);
        });
    }
}
