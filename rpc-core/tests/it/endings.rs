//! Clients that leave, or cancel, with all the streams that they may have: a turn ends some of them, and
//! the calls of others go on in between.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use rpc_core::frame::{CallId, ControlEntry, FRAGMENT, Flags, FrameHeader, FrameKind};
use rpc_core::{Caller, Intents, Request, Response, Shutdown, Status};
use rpc_core_testing::{Faults, Pair};

use crate::support::raw::{Raw, cancel, header, long_message, open};
use crate::support::streams::{ECHO, IDLE, METHODS, Probe, register_streams};

/// The streams of each client.
const STREAMS: u32 = 200;

/// Calls that a turn ends as they come, and as many of those that wait.
const MOST_PER_TURN: u32 = 2 * 64;

fn pair(probe: &Probe) -> Pair {
    let intents = Intents {
        max_streams: STREAMS,
        connections: 4,
        ..Intents::default()
    };
    Pair::with(&intents, Faults::none(), 0, |methods| {
        register_streams(methods, probe);
    })
}

fn open_all(raw: &Raw<'_>) {
    open_all_within(raw, 0);
}

fn open_all_within(raw: &Raw<'_>, time_us: u32) {
    let idle = METHODS.iter().position(|method| **method == IDLE).unwrap() as u16;
    raw.settle();
    for call in 0..STREAMS {
        let opening = FrameHeader {
            time_us,
            ..open(call, idle, Flags::NONE)
        };
        raw.send(opening, &[]);
    }
    assert!(!raw.peer.is_closed());
}

/// Takes turns until no handler runs. Returns how many each turn has ended.
fn ended_in_turns(pair: &Pair, probe: &Probe) -> Vec<u32> {
    let mut ended = Vec::new();
    for _ in 0..100 {
        let before = probe.running();
        if before == 0 {
            return ended;
        }
        pair.network().step();
        ended.push(before - probe.running());
    }
    panic!("{} handlers still run", probe.running());
}

#[test]
fn connections_that_end_with_many_streams_leave_the_turn_to_others() {
    let probe = Probe::default();
    let pair = pair(&probe);
    let channel = pair.connect();
    let clients = [Raw::client(pair.network()), Raw::client(pair.network())];
    clients.iter().for_each(open_all);
    assert_eq!(probe.running(), 2 * STREAMS);
    for raw in &clients {
        raw.peer.close();
    }
    let mut call = Box::pin(channel.unary::<u64, u64>(&ECHO, Request::new(7)));
    let ended = ended_in_turns(&pair, &probe);
    assert!(ended.iter().all(|each| *each <= MOST_PER_TURN), "{ended:?}");
    assert_eq!(
        pair.network()
            .try_run(&mut call)
            .unwrap()
            .unwrap()
            .into_inner(),
        7
    );
    pair.network().settle();
    let stats = pair.server().poller().stats().total();
    assert_eq!(stats.in_flight(), 0);
    assert_eq!(stats.streams.ended, u64::from(2 * STREAMS));
    drop(call);
    drop(channel);
    pair.assert_nothing_left();
}

#[test]
fn a_client_that_cancels_many_streams_leaves_the_turn_to_others() {
    let probe = Probe::default();
    let pair = pair(&probe);
    let raw = Raw::client(pair.network());
    open_all(&raw);
    let cancels = || (0..STREAMS).map(cancel).flat_map(ControlEntry::encode);
    raw.peer.send(control(), &cancels().collect::<Vec<_>>());
    let ended = ended_in_turns(&pair, &probe);
    assert!(ended.iter().all(|each| *each <= MOST_PER_TURN), "{ended:?}");
    // Those that wait end with the connection too.
    raw.settle();
    assert_eq!(
        pair.server().poller().stats().total().cancels.running,
        u64::from(STREAMS)
    );
    raw.peer.close();
    raw.settle();
    pair.assert_nothing_left();
}

#[test]
fn a_connection_ends_while_its_cancelled_streams_still_end() {
    let probe = Probe::default();
    let pair = pair(&probe);
    let raw = Raw::client(pair.network());
    open_all(&raw);
    let cancels = (0..STREAMS).map(cancel).flat_map(ControlEntry::encode);
    raw.peer.send(control(), &cancels.collect::<Vec<_>>());
    while probe.running() == STREAMS {
        pair.network().step();
    }
    assert!(probe.running() > 0, "some wait");
    raw.peer.close();
    raw.settle();
    assert_eq!(probe.running(), 0);
    pair.assert_nothing_left();
}

/// The connection ends with long messages under way on each of its streams. Before those have ended, their
/// deadlines pass, or the server's time to stop.
#[test]
fn streams_that_wait_for_their_end_have_forgotten_their_long_messages() {
    for stops in [false, true] {
        let probe = Probe::default();
        let pair = pair(&probe);
        let raw = Raw::client(pair.network());
        open_all_within(&raw, 1_000_000);
        for call in 0..STREAMS {
            let (first, body) = long_message(call, 100_000, FRAGMENT, &[7; 100]);
            raw.send(first, &body);
        }
        assert_eq!(probe.running(), STREAMS);
        if stops {
            pair.server().shut_down(Shutdown::default());
        }
        raw.peer.close();
        while probe.running() == STREAMS {
            pair.network().step();
        }
        assert!(probe.running() > 0, "some wait");
        pair.network().advance(Duration::from_secs(2));
        pair.network().settle();
        assert_eq!(probe.running(), 0);
        pair.assert_nothing_left();
    }
}

/// A client chooses the deadlines of its calls, and may choose the same for all.
#[test]
fn deadlines_that_pass_at_once_leave_the_turn_to_others() {
    let probe = Probe::default();
    let pair = pair(&probe);
    let raw = Raw::client(pair.network());
    open_all_within(&raw, 1_000_000);
    pair.network().advance(Duration::from_secs(2));
    assert_eq!(probe.running(), STREAMS - MOST_PER_TURN);
    let ended = ended_in_turns(&pair, &probe);
    assert!(ended.iter().all(|each| *each <= MOST_PER_TURN), "{ended:?}");
    raw.peer.close();
    raw.settle();
    pair.assert_nothing_left();
}

/// A client that cancels the same call again and again, and calls that it never made.
#[test]
fn cancels_without_end_wait_in_no_list_without_end() {
    let probe = Probe::default();
    let pair = pair(&probe);
    let raw = Raw::client(pair.network());
    open_all(&raw);
    for _ in 0..20 {
        let cancels = (0..1000)
            .map(|call| cancel(call % (2 * STREAMS)))
            .flat_map(ControlEntry::encode);
        raw.peer.send(control(), &cancels.collect::<Vec<_>>());
        raw.settle();
    }
    assert_eq!(probe.running(), 0);
    raw.peer.close();
    raw.settle();
    pair.assert_nothing_left();
}

/// Cancels of calls that the client never made do not make the others end at once.
#[test]
fn cancels_of_calls_that_were_never_made_do_not_hurry_the_others() {
    let probe = Probe::default();
    let pair = pair(&probe);
    let raw = Raw::client(pair.network());
    open_all(&raw);
    let calls = (0..STREAMS).chain(1000..1340);
    let cancels = calls.map(cancel).flat_map(ControlEntry::encode);
    raw.peer.send(control(), &cancels.collect::<Vec<_>>());
    let ended = ended_in_turns(&pair, &probe);
    assert!(ended.iter().all(|each| *each <= MOST_PER_TURN), "{ended:?}");
    raw.peer.close();
    raw.settle();
    pair.assert_nothing_left();
}

/// Wakes all handlers when it is dropped.
struct WakesAll(Rc<RefCell<Vec<Waker>>>);

impl Drop for WakesAll {
    fn drop(&mut self) {
        for waker in &*self.0.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// The handlers that are dropped wake those that still wait for their end.
#[test]
fn handlers_that_wake_each_other_end_with_their_connection() {
    let wakers: Rc<RefCell<Vec<Waker>>> = Rc::default();
    let intents = Intents {
        connections: 4,
        ..Intents::default()
    };
    let all = Rc::clone(&wakers);
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        methods.unary(&ECHO, move |_: Request<u64>| {
            let wakes = WakesAll(Rc::clone(&all));
            poll_fn(move |cx| {
                wakes.0.borrow_mut().push(cx.waker().clone());
                Poll::<Result<Response<u64>, Status>>::Pending
            })
        });
    });
    for calls in [65, 90, 128] {
        wakers.borrow_mut().clear();
        let raw = Raw::client(pair.network());
        raw.settle();
        for call in 0..calls {
            let request = FrameHeader {
                call: CallId(call),
                ..header(FrameKind::Request)
            };
            raw.send(request, &[]);
        }
        assert_eq!(
            pair.server().poller().stats().total().in_flight(),
            u64::from(calls)
        );
        raw.peer.close();
        raw.settle();
        assert_eq!(pair.server().poller().stats().total().in_flight(), 0);
    }
    pair.assert_nothing_left();
}

/// The header of the control frame that cancels calls.
fn control() -> FrameHeader {
    header(FrameKind::Control)
}
