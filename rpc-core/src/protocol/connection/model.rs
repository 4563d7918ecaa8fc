//! A model of both sides of a connection, which visits every reachable state.
//!
//! A state is two [`Connection`]s, the frames in flight between them, and what each side has still
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

mod state;

use std::collections::HashMap;
use std::rc::Rc;

use state::{CERTAIN, POSSIBLE, Plan, State, Step};

/// The states that a model has reached.
#[derive(Default)]
struct Reached {
    states: Vec<Rc<State>>,
    /// The first way to each state.
    from: Vec<Option<(usize, Step)>>,
    /// The certain steps: from and to which state.
    certain: Vec<(usize, usize)>,
    /// States in which something is left to send, and no certain step can be taken.
    stopped: Vec<(usize, &'static str)>,
}

impl Reached {
    fn all(plan: &Plan) -> Self {
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
}

/// Visits all states, and checks that neither side stops.
#[track_caller]
fn assert_neither_stops(plan: &Plan) {
    let reached = Reached::all(plan);
    if let Some(&(state, unsent)) = reached.stopped.first() {
        panic!("{unsent} left unsent after {:?}", reached.way_to(state));
    }
    assert!(reached.steps_end());
}

const STREAMS: Plan = Plan {
    initial_credits: 1,
    max_in_flight: 1,
    client_window: 1,
    calls: 0,
    streams: 2,
    client_messages: 2,
    server_messages: 2,
    request_pieces: 0,
    response_pieces: 0,
    releases: false,
    cancels: 1,
    goes_away: false,
    idles: false,
    ack_frames: true,
};

#[test]
fn streams_with_one_credit_each_way() {
    assert_neither_stops(&STREAMS);
}

#[test]
fn streams_with_windows_that_grow() {
    assert_neither_stops(&Plan {
        max_in_flight: 2,
        client_window: 2,
        streams: 1,
        ..STREAMS
    });
}

#[test]
fn streams_and_calls_through_a_shutdown() {
    assert_neither_stops(&Plan {
        calls: 1,
        streams: 1,
        client_messages: 1,
        server_messages: 1,
        cancels: 0,
        goes_away: true,
        ..STREAMS
    });
}

#[test]
fn streams_of_sides_that_become_idle() {
    assert_neither_stops(&Plan {
        max_in_flight: 2,
        client_messages: 1,
        server_messages: 0,
        cancels: 0,
        idles: true,
        ..STREAMS
    });
}

const LONG_CALLS: Plan = Plan {
    calls: 2,
    streams: 0,
    client_messages: 0,
    server_messages: 0,
    request_pieces: 2,
    response_pieces: 2,
    cancels: 0,
    ..STREAMS
};

#[test]
fn long_calls_with_one_credit_each_way() {
    assert_neither_stops(&LONG_CALLS);
}

/// Each side sends a piece only when the other has released the one before, in a control frame.
#[test]
fn long_calls_whose_pieces_wait_for_releases() {
    assert_neither_stops(&Plan {
        max_in_flight: 2,
        client_window: 2,
        releases: true,
        ..LONG_CALLS
    });
}

#[test]
fn long_calls_beside_a_stream() {
    assert_neither_stops(&Plan {
        calls: 1,
        streams: 1,
        client_messages: 1,
        server_messages: 1,
        releases: true,
        ..LONG_CALLS
    });
}

#[test]
fn long_calls_through_a_shutdown() {
    assert_neither_stops(&Plan {
        releases: true,
        goes_away: true,
        ..LONG_CALLS
    });
}

#[test]
fn long_calls_of_sides_that_become_idle() {
    assert_neither_stops(&Plan {
        max_in_flight: 2,
        request_pieces: 1,
        releases: true,
        idles: true,
        ..LONG_CALLS
    });
}

/// Without acknowledgement frames, the releases of long messages also stop both sides.
#[test]
fn without_acknowledgement_frames_releases_stop_both_sides() {
    let reached = Reached::all(&Plan {
        ack_frames: false,
        releases: true,
        ..LONG_CALLS
    });
    let mut stopped = reached.stopped.iter();
    assert!(stopped.any(|&(_, unsent)| unsent == "pieces"));
}

/// Without acknowledgement frames, two control frames that cross stop both sides: neither may send
/// another one, and neither has a credit for a frame that would carry the acknowledgement.
#[test]
fn without_acknowledgement_frames_crossing_control_frames_stop_both_sides() {
    let reached = Reached::all(&Plan {
        ack_frames: false,
        ..STREAMS
    });
    let mut stopped = reached.stopped.iter();
    let found = stopped.find(|&&(state, unsent)| {
        unsent == "messages" && reached.states[state].both_wait_for_acks()
    });
    assert!(found.is_some());
}
