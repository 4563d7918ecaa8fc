//! [`World`]: simulated processes, stepped in an order that the seed determines.

mod checks;
mod step;
mod strike;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Once;
use std::time::{Duration, Instant};

use rpc_core::for_testing::{Clock, Node, Random};
use rpc_core::transport::{ConnectError, PeerMemory};
use rpc_core::{Intents, LocalChannel, Methods};
use verbline_verbs::for_transport::hooks::{self, SimulatedProcess};
use verbline_verbs::{Context, SoftOptions};

use super::clocks;
use super::process_id::{Pairing, ProcessId};
use super::transport::{Directory, Server, SimulatedTransport};
use super::{FaultCounters, Faults, Point, ProcessKilled, ProcessState, Simulation};
use crate::device::opened::Opened;
use crate::device::setup;
use crate::device::sizing::Sizing;

/// Simulated processes on one thread, with faults between them.
///
/// A thread has one world at a time.
pub struct World {
    clock: Clock,
    simulation: Rc<Simulation>,
    directory: Rc<Directory>,
    processes: Vec<Process>,
    options: SoftOptions,
    clocks_are_apart: bool,
}

struct Process {
    /// `None` once the process was killed and removed.
    node: Option<Rc<Node<SimulatedTransport>>>,
    device: Option<SimulatedProcess>,
    state: Rc<ProcessState>,
    /// Rounds for which its poller, its engine and its event thread do nothing.
    stalled: [Cell<u32>; 3],
    /// Start of its poller's current sleep.
    asleep: Cell<Option<Instant>>,
    /// Number of times that work should have ended a sleep of the poller, but did not.
    slept_through: Cell<u64>,
}

impl World {
    /// Creates a world without processes. `seed` determines the run, and `faults` the fault rates.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        keep_killed_processes_silent();
        let clock = Clock::manual();
        let simulation = Rc::new(Simulation {
            now: Cell::new(clock.now()),
            random: Random::new(seed),
            faults,
            are_faults_stopped: Cell::new(false),
            injected: RefCell::default(),
            running: RefCell::new(None),
            // The offset basis of FNV-1a.
            trace: Cell::new(0xcbf2_9ce4_8422_2325),
        });
        hooks::install(Some(simulation.clone()));
        let directory = Rc::new(Directory {
            simulation: Rc::clone(&simulation),
            servers: RefCell::default(),
            sockets: RefCell::default(),
            pairings: RefCell::default(),
        });
        Self {
            clock,
            simulation,
            directory,
            processes: Vec::new(),
            options: SoftOptions::default(),
            clocks_are_apart: false,
        }
    }

    /// Sets the options of the devices of the processes that are added from now on.
    pub fn set_soft_options(&mut self, options: SoftOptions) {
        self.options = options;
    }

    /// Gives each process that is added from now on the clock of a host of its own, which may show
    /// another time, and drift.
    pub fn set_clocks_apart(&mut self) {
        self.clocks_are_apart = true;
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
        let state = Rc::new(ProcessState {
            number: self.processes.len(),
            killer: device.killer(),
            dies_at: Cell::new(None),
            unready_left: Cell::default(),
            broken: RefCell::default(),
            is_broken: Cell::default(),
            peer_memory: PeerMemory::default(),
        });
        // No faults during set-up: a process that cannot be set up is of no use.
        let were_stopped = self.simulation.are_faults_stopped.replace(true);
        let transport = self.simulation.run_in(&state, || {
            let context = Context::simulated(&device, self.options);
            let context = context.expect("a context is opened");
            let opened = Opened::simulated(context);
            let opened = opened.expect("the software device has an address");
            setup::open_lanes(opened, Vec::new(), intents, sizing)
                .unwrap_or_else(|error| panic!("the transport cannot be opened: {error}"))
        });
        self.simulation.are_faults_stopped.set(were_stopped);
        let verbs = transport.expect("nobody dies before it is there");
        let port = verbs.port();
        let random = &self.simulation.random;
        let clock = self
            .clocks_are_apart
            .then(|| clocks::host_clock(&self.clock, random));
        let transport = SimulatedTransport {
            verbs,
            state: Rc::clone(&state),
            directory: Rc::downgrade(&self.directory),
            clock: clock.clone(),
            peer_clocks: HashMap::new(),
        };
        let host_clock = clock.as_ref().unwrap_or(&self.clock);
        let node = Rc::new(Node::over(transport, host_clock, register));
        state.dies_at.set(dies_at);
        let server = Server {
            state: Rc::clone(&state),
            port,
            admission: node.admission().clone(),
            clock,
        };
        self.directory
            .servers
            .borrow_mut()
            .insert(name.to_owned(), server);
        self.processes.push(Process {
            node: Some(node),
            device: Some(device),
            state,
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
    pub fn stop_faults(&self) {
        self.simulation.are_faults_stopped.set(true);
        for process in &self.processes {
            process.stalled.iter().for_each(|stalled| stalled.set(0));
        }
    }

    /// Returns the counters of injected faults.
    #[must_use]
    pub fn fault_counters(&self) -> FaultCounters {
        self.simulation.injected.borrow().clone()
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
        !self.processes[process.0].state.killer.has_killed()
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
            node,
            state,
            asleep,
            ..
        } = &self.processes[process.0];
        // A poller thread that runs other code is not asleep.
        asleep.set(None);
        let node = node.as_deref().filter(|_| !state.killer.has_killed())?;
        self.simulation.run_in(state, || work(node))
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
        self.directory.pairings.borrow().clone()
    }

    /// Returns true if a fault may have ended the connection: the death of a side, or a fault
    /// attributed to one of its queue pairs.
    #[must_use]
    pub fn may_have_ended(&self, pairing: &Pairing) -> bool {
        [pairing.client, pairing.server]
            .iter()
            .any(|(process, qp_num)| {
                let state = &self.processes[process.0].state;
                state.killer.has_killed()
                    || state.is_broken.get()
                    || state.broken.borrow().contains(qp_num)
            })
    }

    /// Drops a value that belonged to a process. If the process was killed, this stands for the
    /// cleanup by its kernel.
    pub fn drop_of<T>(&self, process: ProcessId, value: T) {
        let state = &self.processes[process.0].state;
        self.simulation.run_in(state, || drop(value));
    }

    /// Returns true if a fault may have ended all connections of a process.
    #[must_use]
    pub fn may_be_broken(&self, process: ProcessId) -> bool {
        let state = &self.processes[process.0].state;
        state.killer.has_killed() || state.is_broken.get()
    }

    /// Removes killed processes from the world and releases their memory and files, as a kernel
    /// does.
    pub fn remove_killed(&mut self) {
        let simulation = &self.simulation;
        for process in &mut self.processes {
            if process.state.killer.has_killed() && process.device.is_some() {
                self.directory
                    .servers
                    .borrow_mut()
                    .retain(|_, server| !server.state.killer.has_killed());
                let (node, device) = (process.node.take(), process.device.take());
                simulation.drop_killed(&process.state, node, device);
            }
        }
    }
}

/// Keeps the panics of killed processes from being printed: what a dead process would do next, with a
/// device that is disabled, is no failure of a run.
fn keep_killed_processes_silent() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !hooks::is_in_killed_process() {
                print(info);
            }
        }));
    });
}

impl Drop for World {
    fn drop(&mut self) {
        self.directory.servers.borrow_mut().clear();
        self.directory.sockets.borrow_mut().clear();
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
    pub(super) fn run_in<R>(
        &self,
        state: &Rc<ProcessState>,
        work: impl FnOnce() -> R,
    ) -> Option<R> {
        let before = self.running.replace(Some(Rc::clone(state)));
        let result = catch_unwind(AssertUnwindSafe(work));
        self.running.replace(before);
        match result {
            // The process may have been killed although the result is `Ok`: a kill inside a handler
            // unwinds only to the handler's turn, which catches panics.
            Ok(_) if state.killer.has_killed() => None,
            Ok(result) => Some(result),
            Err(payload) if payload.is::<ProcessKilled>() => None,
            // A panic after a process's death is a consequence of the death, so it is ignored.
            Err(_) if state.killer.has_killed() => None,
            Err(payload) => resume_unwind(payload),
        }
    }

    fn drop_killed(
        &self,
        state: &Rc<ProcessState>,
        node: Option<Rc<Node<SimulatedTransport>>>,
        device: Option<SimulatedProcess>,
    ) {
        self.run_in(state, || {
            if let Some(node) = &node {
                node.discard_services();
            }
            drop(node);
            drop(device);
        });
    }
}
