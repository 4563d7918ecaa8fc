//! A deterministic simulation: processes over the software device on one thread, where time and
//! faults are values. Requires the feature `test-util`.
//!
//! A simulation uses the real code, except where it would make two runs differ:
//!
//! | in a process | in a simulation |
//! | --- | --- |
//! | its memory, sockets, links, rings, contexts, transports and drivers | the same |
//! | its threads: pollers, engine, async events | steps, which [`World`] takes in an order that the seed determines |
//! | its clock | [`World::advance`] moves it; [`World::set_clocks_apart`] gives each process another one |
//! | TCP: the handshake, and the liveness socket | the two halves of the handshake exchange values; a [`SimulatedSocket`] is closed by hand |
//! | its death | [`Point`]: between any two stores that a peer can see |
//!
//! A thread-local variable holds the simulation: its hooks are deep in the device, and a build
//! without the feature contains none of them.

mod clocks;
mod faults;
mod process_id;
mod transport;
mod watched_socket;
mod world;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Instant;

use rpc_core::for_testing::Random;
use rpc_core::transport::PeerMemory;
pub use verbline_verbs::for_transport::hooks::{Fault, Point, Post};
use verbline_verbs::for_transport::hooks::{Hooks, Killer};

pub use faults::Faults;
pub use process_id::{Pairing, ProcessId};
pub use transport::SimulatedTransport;
pub use world::World;

pub use crate::transport::liveness_socket::SimulatedSocket;

/// State shared by the hooks of one thread's simulation.
struct Simulation {
    now: Cell<Instant>,
    random: Random,
    faults: Faults,
    /// True once no more faults are injected.
    are_faults_stopped: Cell<bool>,
    /// How often each fault was injected, each post was cut, and each point killed a process.
    injected: RefCell<FaultCounters>,
    /// The process whose code is running, if any.
    running: RefCell<Option<Rc<ProcessState>>>,
    trace: Cell<u64>,
}

/// Counters of injected faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Counts by [`Fault`].
    pub faults: [u64; Fault::ALL.len()],
    /// Counts by [`Post`]: rejected completely, and accepted in part.
    pub posts: [[u64; 2]; Post::ALL.len()],
    /// Counts of kills by [`Point`].
    pub deaths: [u64; Point::ALL.len()],
}

impl FaultCounters {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        let add = |sums: &mut [u64], others: &[u64]| {
            sums.iter_mut().zip(others).for_each(|(sum, n)| *sum += n);
        };
        add(&mut self.faults, &other.faults);
        add(self.posts.as_flattened_mut(), other.posts.as_flattened());
        add(&mut self.deaths, &other.deaths);
    }

    /// Returns each count with its name.
    pub fn entries(&self) -> impl Iterator<Item = (String, u64)> {
        let faults = Fault::ALL.iter().zip(self.faults);
        let posts = Post::ALL.iter().zip(self.posts);
        let deaths = Point::ALL.iter().zip(self.deaths);
        faults
            .map(|(fault, count)| (format!("{fault:?}"), count))
            .chain(posts.flat_map(|(post, [refused, cut])| {
                [
                    (format!("{post:?} refused"), refused),
                    (format!("{post:?} in part"), cut),
                ]
            }))
            .chain(deaths.map(|(point, count)| (format!("death {point:?}"), count)))
    }
}

/// The state of one simulated process that faults read or change.
struct ProcessState {
    number: usize,
    killer: Killer,
    /// The point at which the process is to be killed, and how many more times it passes that point
    /// before that.
    dies_at: Cell<Option<(Point, u64)>>,
    /// Number of further checks for a receive that will find none.
    unready_left: Cell<u32>,
    /// Queue pairs that a fault may have ended.
    broken: RefCell<HashSet<u32>>,
    /// True if a fault may have ended all of its queue pairs.
    is_broken: Cell<bool>,
    peer_memory: PeerMemory,
}

/// Payload of the panic that unwinds the stack of a killed process.
struct ProcessKilled;

impl Hooks for Simulation {
    fn now(&self) -> Instant {
        self.now.get()
    }

    fn is_in_process(&self) -> bool {
        self.running.borrow().is_some()
    }

    fn is_in_killed_process(&self) -> bool {
        // The panic hook calls this, maybe while the cell is borrowed.
        let running = self.running.try_borrow();
        running.is_ok_and(|running| {
            running
                .as_ref()
                .is_some_and(|state| state.killer.has_killed())
        })
    }

    /// Kills the running process if it is to be killed at this point: unwinds its stack and
    /// disables its device.
    fn point(&self, point: Point) {
        if let Some(state) = self.running_state()
            && let Some((fatal, left)) = state.dies_at.get()
            && fatal == point
            && !self.are_faults_stopped.get()
        {
            if left > 0 {
                return state.dies_at.set(Some((fatal, left - 1)));
            }
            // A stack that is already unwinding cannot be unwound again.
            if std::thread::panicking() || state.killer.has_killed() {
                return;
            }
            state.killer.kill();
            self.injected.borrow_mut().deaths[point as usize] += 1;
            self.note(&[u64::MAX, point as u64]);
            tracing::info!(process = state.number, ?point, "is killed");
            std::panic::resume_unwind(Box::new(ProcessKilled));
        }
    }

    /// Returns true if the fault is injected now.
    fn is_injected(&self, fault: Fault) -> bool {
        let Some(state) = self.running_state() else {
            return false;
        };
        if fault == Fault::ReceiverNotReady {
            return self.is_unready(&state);
        }
        self.injects(fault)
    }

    /// Returns how many of `count` requests are accepted. If not all are, the fault may end the
    /// queue pair `blamed`, or with `None` all queue pairs of the process.
    fn accepted(&self, post: Post, count: usize, blamed: Option<u32>) -> usize {
        let Some(state) = self.running_state() else {
            return count;
        };
        if count == 0 || !self.happens(self.faults.posts[post as usize]) {
            return count;
        }
        let taken = match self.random.happens(500) {
            true => 0,
            false => self.random.below(count as u64) as usize,
        };
        self.injected.borrow_mut().posts[post as usize][usize::from(taken > 0)] += 1;
        self.note(&[post as u64, taken as u64]);
        tracing::info!(process = state.number, ?post, count, taken, "is cut");
        match blamed {
            Some(qp_num) => drop(state.broken.borrow_mut().insert(qp_num)),
            None => state.is_broken.set(true),
        }
        taken
    }

    fn note_unbindable(&self) {
        if let Some(state) = self.running_state() {
            state.is_broken.set(true);
        }
    }
}

impl Simulation {
    fn running_state(&self) -> Option<Rc<ProcessState>> {
        self.running.borrow().clone()
    }

    fn happens(&self, thousandths: u16) -> bool {
        !self.are_faults_stopped.get() && self.random.happens(thousandths)
    }

    fn injects(&self, fault: Fault) -> bool {
        let is_injected = self.happens(self.faults.rates[fault as usize]);
        if is_injected {
            self.injected.borrow_mut().faults[fault as usize] += 1;
            self.note(&[fault as u64]);
        }
        is_injected
    }

    /// Returns true if receives are hidden now; they are hidden in bursts.
    fn is_unready(&self, state: &ProcessState) -> bool {
        let left = state.unready_left.get();
        if self.are_faults_stopped.get() {
            return false;
        }
        if left > 0 {
            state.unready_left.set(left - 1);
            return true;
        }
        let is_injected = self.injects(Fault::ReceiverNotReady);
        if is_injected {
            state.unready_left.set(self.random.below(4) as u32);
        }
        is_injected
    }

    /// Adds to the hash of everything that has happened (FNV-1a).
    fn note(&self, words: &[u64]) {
        let step = |hash: u64, word: &u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3);
        self.trace.set(words.iter().fold(self.trace.get(), step));
    }
}
