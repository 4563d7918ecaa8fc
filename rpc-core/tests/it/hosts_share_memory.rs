//! Hosts share the registered memory for long messages that arrive: one leaves some to others, connections that
//! wait take turns, and a message that hardly moves ends once others wait.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::raw::{Raw, code_in, entries, fragment, long_request};
use crate::support::{Gate, register};
use rpc_core::Intents;
use rpc_core::frame::{ControlRequest, FRAGMENT};
use rpc_core_testing::{Faults, Pair};

/// The longest message.
const LONGEST: usize = 1 << 20;

/// The longest messages that fit into the memory for those that arrive.
const ALL: usize = 14;

/// Those of them that one host may have.
const OF_HOST: usize = 10;

/// The receiver looks at a message every 15 seconds.
const LOOK: Duration = Duration::from_secs(15);

fn pair() -> Pair {
    let intents = Intents {
        max_message_len: LONGEST,
        message_memory: 16 * LONGEST as u64,
        ..Intents::default()
    };
    Pair::with(&intents, Faults::none(), 0, |methods| {
        register(methods, &Gate::default());
    })
}

fn client(pair: &Pair, host: u8) -> Raw<'_> {
    let address = SocketAddr::from(([192, 0, 2, host], 1));
    pair.network().use_address(address);
    let raw = Raw::client(pair.network());
    raw.settle();
    raw
}

/// Begins a message. Returns true if it gets memory at once.
fn begin(raw: &Raw<'_>, number: u32) -> bool {
    let (first, body) = long_request(number, number, LONGEST, FRAGMENT, &[1]);
    let frames = raw.send(first, &body);
    entries(&frames, number).contains(&ControlRequest::Accepted)
}

/// Returns those of the messages that have got memory since.
fn accepted(raw: &Raw<'_>, numbers: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let frames = raw.settle();
    let is_accepted = |number: &u32| entries(&frames, *number).contains(&ControlRequest::Accepted);
    numbers.into_iter().filter(is_accepted).collect()
}

fn end(pair: &Pair, clients: &[Raw<'_>]) {
    for raw in clients {
        assert!(!raw.peer.is_closed());
        raw.peer.close();
        raw.settle();
    }
    pair.assert_nothing_left();
}

/// The clients of one host begin as many messages as get memory.
fn greedy(pair: &Pair) -> Vec<Raw<'_>> {
    let clients: Vec<Raw<'_>> = (0..4).map(|_| client(pair, 1)).collect();
    let mut count = 0;
    for raw in &clients {
        let first = count;
        // A quarter of the memory is the most of a connection.
        count += (1..=5).filter(|number| begin(raw, *number)).count();
        assert!(count - first <= 4);
    }
    assert_eq!(count, OF_HOST);
    clients
}

#[test]
fn a_host_that_uses_all_that_it_can_leaves_memory_to_others() {
    let pair = pair();
    let mut clients = greedy(&pair);
    let others: Vec<_> = (2..5).map(|host| client(&pair, host)).collect();
    assert!(others.iter().all(|raw| begin(raw, 1)));
    // Nothing is left for a second one of each: what is left, others may still want.
    assert!(others.iter().filter(|raw| begin(raw, 2)).count() < ALL - OF_HOST - 2);
    clients.extend(others);
    end(&pair, &clients);
}

#[test]
fn connections_whose_messages_wait_take_turns() {
    let pair = pair();
    let mut clients = greedy(&pair);
    let late = client(&pair, 1);
    assert!(!begin(&late, 1));
    // Two of its messages wait in front of that, and another one of the next connection.
    clients.remove(0).peer.close();
    let got = accepted(&late, [1]);
    assert_eq!(got, [1]);
    clients.push(late);
    end(&pair, &clients);
}

#[test]
fn a_message_that_hardly_moves_ends_once_others_wait() {
    let pair = pair();
    let clients = greedy(&pair);
    // The last connection has no memory for more of its own, and waits.
    let (slow, waiting) = (&clients[0], &clients[3]);
    let send = |number, len| {
        let (next, body) = fragment(number, len);
        slow.send(next, &body)
    };
    // The first one has four messages. One moves enough.
    for _ in 0..2 {
        pair.network().advance(LOOK - Duration::from_secs(1));
        let parts = LONGEST / 20;
        for _ in 0..=parts / 4000 {
            send(1, 4000);
        }
        for number in 2..=4 {
            send(number, 1);
        }
        pair.network().advance(Duration::from_secs(1));
    }
    let frames = slow.settle();
    assert_eq!(code_in(&frames), Some(8));
    let (_, body) = frames.iter().find(|(_, body)| body.len() > 100).unwrap();
    let text = String::from_utf8_lossy(body);
    assert!(
        text.contains("1 bytes of a message of 1048576 have arrived in 15 s"),
        "{text}"
    );
    let stopped = |number| entries(&frames, number).contains(&ControlRequest::Stopped);
    assert_eq!([1, 2, 3, 4].map(stopped), [false, true, true, true]);
    assert!(!accepted(waiting, 1..=5).is_empty());
    for raw in &clients {
        raw.peer.close();
        raw.settle();
    }
    pair.assert_nothing_left();
}
