//! A simulation: processes over the software device on one thread, where time and what goes wrong
//! are values. Behind the feature `test-util`.
//!
//! Everything is the real thing but for what would make a run unlike the next one:
//!
//! | in a process | in a simulation |
//! | --- | --- |
//! | its memory, sockets, links, rings, contexts, transports and drivers | the same |
//! | its threads: pollers, engine, async events | steps, which [`World`] takes in an order that the seed says |
//! | its clock | [`World::advance`] moves it |
//! | TCP: the handshake, and the lifeline | the two halves of the handshake meet as values; a [`SimulatedLine`] is cut by hand |
//! | its death | [`Point`]: between any two stores that a peer can see |
//!
//! The simulation of a thread is found through the thread: its hooks lie deep in the device, and are
//! nothing in a build without the feature.

mod faults;
mod line;
mod transport;
mod world;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Instant;

use rpc_core::testing::Random;

pub use faults::Faults;
pub use transport::SimulatedTransport;
pub use world::{Pairing, ProcessId, World};

use crate::hooks::Hooks;
pub use crate::hooks::{Fault, Point, Post};
use crate::provider::Killer;
pub use crate::transport::lifeline::SimulatedLine;

/// What the hooks of one thread's simulation share.
struct Simulation {
    now: Cell<Instant>,
    random: Random,
    faults: Faults,
    /// Nothing goes wrong any more.
    is_calm: Cell<bool>,
    /// How often each fault has struck, each post was cut, and each point was a process's last.
    struck: RefCell<Tally>,
    /// Whose code runs at the moment.
    running: RefCell<Option<Rc<Life>>>,
    trace: Cell<u64>,
}

/// How often each thing has gone wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// By [`Fault`].
    pub faults: [u64; Fault::ALL.len()],
    /// By [`Post`]: refused whole, and taken in part.
    pub posts: [[u64; 2]; Post::ALL.len()],
    /// By [`Point`].
    pub deaths: [u64; Point::ALL.len()],
}

impl Tally {
    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        let add = |sums: &mut [u64], others: &[u64]| {
            sums.iter_mut().zip(others).for_each(|(sum, n)| *sum += n);
        };
        add(&mut self.faults, &other.faults);
        add(self.posts.as_flattened_mut(), other.posts.as_flattened());
        add(&mut self.deaths, &other.deaths);
    }

    /// Each count with its name.
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

/// One process's fate.
struct Life {
    number: usize,
    killer: Killer,
    /// The point that it dies at, and how often it still passes it before.
    dies_at: Cell<Option<(Point, u64)>>,
    /// Looks for a receive that still find none.
    unready_left: Cell<u32>,
    /// Queue pairs that a fault may have ended.
    broken: RefCell<HashSet<u32>>,
    /// A fault may have ended all of them.
    is_broken: Cell<bool>,
}

/// The payload with which a killed process's stack is unwound.
struct Killed;

impl Hooks for Simulation {
    fn now(&self) -> Instant {
        self.now.get()
    }

    fn is_in_process(&self) -> bool {
        self.running.borrow().is_some()
    }

    /// A process that is to die at this point does so: its stack is unwound, and it has no device any
    /// more.
    fn point(&self, point: Point) {
        if let Some(life) = self.running_life()
            && let Some((fatal, left)) = life.dies_at.get()
            && fatal == point
            && !self.is_calm.get()
        {
            if left > 0 {
                return life.dies_at.set(Some((fatal, left - 1)));
            }
            // What unwinds already cannot be unwound from within.
            if std::thread::panicking() || life.killer.has_killed() {
                return;
            }
            life.killer.kill();
            self.struck.borrow_mut().deaths[point as usize] += 1;
            self.note(&[u64::MAX, point as u64]);
            tracing::info!(process = life.number, ?point, "is killed");
            std::panic::resume_unwind(Box::new(Killed));
        }
    }

    /// Whether a fault strikes now.
    fn does_strike(&self, fault: Fault) -> bool {
        let Some(life) = self.running_life() else {
            return false;
        };
        if fault == Fault::ReceiverNotReady {
            return self.is_unready(&life);
        }
        self.strikes(fault)
    }

    /// How many of `count` requests are taken. If that is not all, a queue pair may end for it, or with
    /// `None` everything of the process.
    fn taken(&self, post: Post, count: usize, blamed: Option<u32>) -> usize {
        let Some(life) = self.running_life() else {
            return count;
        };
        if count == 0 || !self.happens(self.faults.posts[post as usize]) {
            return count;
        }
        let taken = match self.random.happens(500) {
            true => 0,
            false => self.random.below(count as u64) as usize,
        };
        self.struck.borrow_mut().posts[post as usize][usize::from(taken > 0)] += 1;
        self.note(&[post as u64, taken as u64]);
        tracing::info!(process = life.number, ?post, count, taken, "is cut");
        match blamed {
            Some(qp_num) => drop(life.broken.borrow_mut().insert(qp_num)),
            None => life.is_broken.set(true),
        }
        taken
    }
}

impl Simulation {
    fn running_life(&self) -> Option<Rc<Life>> {
        self.running.borrow().clone()
    }

    fn happens(&self, thousandths: u16) -> bool {
        !self.is_calm.get() && self.random.happens(thousandths)
    }

    fn strikes(&self, fault: Fault) -> bool {
        let strikes = self.happens(self.faults.rates[fault as usize]);
        if strikes {
            self.struck.borrow_mut().faults[fault as usize] += 1;
            self.note(&[fault as u64]);
        }
        strikes
    }

    /// Receives are out of sight for a while, as a burst.
    fn is_unready(&self, life: &Life) -> bool {
        let left = life.unready_left.get();
        if self.is_calm.get() {
            return false;
        }
        if left > 0 {
            life.unready_left.set(left - 1);
            return true;
        }
        let strikes = self.strikes(Fault::ReceiverNotReady);
        if strikes {
            life.unready_left.set(self.random.below(4) as u32);
        }
        strikes
    }

    /// Adds to the hash of all that has happened (FNV-1a).
    fn note(&self, words: &[u64]) {
        let step = |hash: u64, word: &u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3);
        self.trace.set(words.iter().fold(self.trace.get(), step));
    }
}
