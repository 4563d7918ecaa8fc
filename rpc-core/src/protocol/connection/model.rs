//! A model of both sides of a connection, which visits every reachable state.
//!
//! A state is two connections, the frames in flight between them, and what each side has still
//! to send. Each step of a side or of the wire leads to another state. In every state:
//!
//! * no frame violates a rule,
//! * frames without a credit never outnumber the receives that are kept for them,
//! * frames with a credit never outnumber the window.
//!
//! Neither side stops: no state has anything left to send and no step that would send it. The steps
//! of handlers, of idle time and of a shutdown do not count, because they need not happen. Without
//! them, every sequence of steps ends, so each ends with everything sent, in whatever order the
//! steps are taken.
//!
//! The model compares states by the private fields of a [`Connection`](super::Connection) and asks what it
//! has still to send, so it is a part of its module. The tests are in `rpc-core/tests/models.rs`.

mod state;

use std::collections::HashMap;
use std::rc::Rc;

pub use state::Plan;
use state::{CERTAIN, POSSIBLE, State, Step};

/// The states of both sides that can be reached with a [`Plan`].
#[derive(Default)]
#[allow(missing_debug_implementations, reason = "it has millions of states")]
pub struct Reached {
    states: Vec<Rc<State>>,
    /// The first way to each state.
    from: Vec<Option<(usize, Step)>>,
    /// The certain steps: from and to which state.
    certain: Vec<(usize, usize)>,
    /// States in which something is left to send, and no certain step can be taken.
    stopped: Vec<(usize, &'static str)>,
}

impl Reached {
    /// Visits all states.
    #[must_use]
    pub fn all(plan: &Plan) -> Self {
        let mut reached = Self::default();
        let mut indices = HashMap::new();
        let first = Rc::new(State::new(plan));
        indices.insert(Rc::clone(&first), 0);
        reached.states.push(first);
        reached.from.push(None);
        let mut at = 0;
        while at < reached.states.len() {
            let mut may_rest = true;
            for &step in CERTAIN.iter().chain(&POSSIBLE) {
                let Some(next) = reached.states[at].after(step, plan) else {
                    continue;
                };
                let index = *indices.entry(Rc::new(next)).or_insert_with_key(|next| {
                    reached.states.push(Rc::clone(next));
                    reached.from.push(Some((at, step)));
                    reached.states.len() - 1
                });
                if CERTAIN.contains(&step) {
                    may_rest = false;
                    reached.certain.push((at, index));
                }
            }
            if may_rest && let Some(unsent) = reached.states[at].unsent() {
                reached.stopped.push((at, unsent));
            }
            at += 1;
        }
        reached
    }

    /// Returns the steps that lead to a state.
    fn way_to(&self, mut at: usize) -> Vec<Step> {
        let mut way = Vec::new();
        while let Some((before, step)) = self.from[at] {
            way.push(step);
            at = before;
        }
        way.reverse();
        way
    }

    /// Returns true if every sequence of certain steps ends: if there is no cycle of them.
    fn steps_end(&self) -> bool {
        let mut arrows_to = vec![0_u32; self.states.len()];
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); self.states.len()];
        for &(from, to) in &self.certain {
            arrows_to[to] += 1;
            next[from].push(to);
        }
        let mut sources: Vec<usize> = (0..self.states.len())
            .filter(|&state| arrows_to[state] == 0)
            .collect();
        let mut sorted = 0;
        while let Some(state) = sources.pop() {
            sorted += 1;
            for &to in &next[state] {
                arrows_to[to] -= 1;
                if arrows_to[to] == 0 {
                    sources.push(to);
                }
            }
        }
        sorted == self.states.len()
    }

    /// Checks that neither side stops.
    ///
    /// # Panics
    ///
    /// If one does. The message has the steps that lead there.
    #[track_caller]
    pub fn assert_neither_stops(&self) {
        if let Some(&(state, unsent)) = self.stopped.first() {
            panic!("{unsent} left unsent after {:?}", self.way_to(state));
        }
        assert!(self.steps_end(), "a cycle of steps never ends");
    }

    /// Returns true if there is a state in which both sides have stopped with this left to send: "messages" or
    /// "pieces".
    #[must_use]
    pub fn stop_with(&self, left: &str) -> bool {
        self.stopped.iter().any(|&(_, unsent)| unsent == left)
    }

    /// Returns true if there is a state in which both sides have stopped and wait for acknowledgements, with
    /// this left to send.
    #[must_use]
    pub fn both_wait_for_acks_with(&self, left: &str) -> bool {
        let mut stopped = self.stopped.iter();
        stopped.any(|&(state, unsent)| unsent == left && self.states[state].both_wait_for_acks())
    }
}
