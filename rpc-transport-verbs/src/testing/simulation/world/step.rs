//! Steps the processes of a world, in an order that the seed determines.

use std::time::Duration;

use rpc_core::for_testing::Node;
use rpc_core::transport::Transport;
use verbline_verbs::for_transport::hooks::SimulatedProcess;

use super::super::Fault;
use super::super::transport::SimulatedTransport;
use super::{Process, World};

/// Maximum sleep of a poller: far shorter than in a real process, where deadlines end a sleep in
/// time.
const LONGEST_SLEEP: Duration = Duration::from_micros(300);

/// How often a poller that has found no work goes to sleep, in thousandths.
const SLEEPS: u16 = 50;

impl World {
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
            if process.state.killer.has_killed() {
                continue;
            }
            found_any |= self.step_process(number, process);
        }
        self.step_sockets();
        found_any
    }

    fn step_process(&self, number: usize, process: &Process) -> bool {
        let (Some(node), Some(device)) = (&process.node, &process.device) else {
            return false;
        };
        let (simulation, random) = (&self.simulation, &self.simulation.random);
        let are_faults_stopped = simulation.are_faults_stopped.get();
        // Pollers take most of the steps; the engine and the event thread step now and then.
        let takes = |thread: usize, thousandths: u16| {
            let stalled = &process.stalled[thread];
            if stalled.get() > 0 {
                stalled.set(stalled.get() - 1);
                return false;
            }
            if simulation.injects(Fault::Stall) {
                stalled.set(random.below(200) as u32);
                return false;
            }
            are_faults_stopped || random.happens(thousandths)
        };
        let (polls, ticks, hears) = (takes(0, 800), takes(1, 150), takes(2, 200));
        let found = simulation.run_in(&process.state, || {
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
                is_overdue = device.is_idle();
            }
            process.asleep.set(None);
        }
        let mut found = node.step();
        if found && is_overdue {
            tracing::info!(process = process.state.number, "slept through");
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

    fn step_sockets(&self) {
        let simulation = &self.simulation;
        let is_alive = |process: usize| !self.processes[process].state.killer.has_killed();
        let is_late = |is_ready: bool| {
            simulation.injects(match is_ready {
                true => Fault::LateReady,
                false => Fault::LateLine,
            })
        };
        self.directory.sockets.borrow_mut().retain_mut(|watched| {
            watched.step(is_alive, is_late);
            !watched.is_done()
        });
    }
}
