//! Hosts share the registered memory for long messages that arrive: one leaves some to others, connections that
//! wait take turns, and a message that hardly moves ends once others wait.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::raw::{Raw, code_in, entries, fragment, long_request};
use crate::support::{Gate, register};
use rpc_core::Intents;
use rpc_core::frame::{ControlRequest, FRAGMENT, FrameKind};
use rpc_core::transport::{ConnectionId, Transport};
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
fn messages_of_a_connection_that_hardly_moves_end_once_others_wait() {
    for others_wait in [true, false] {
        let pair = pair();
        let clients = greedy(&pair);
        let waiting = client(&pair, 2);
        // The rest, beyond the share of the host.
        let rest = pair.server().with_transport(|transport| {
            let connection = ConnectionId {
                index: 0,
                generation: 0,
            };
            [(); 16 - OF_HOST].map(|()| transport.allocate_for(connection, LONGEST).unwrap())
        });
        if others_wait {
            assert!(!begin(&waiting, 1));
        }
        // Each has four messages, of 4 MiB together.
        let (slow, fast) = (&clients[0], &clients[1]);
        for _ in 0..2 {
            pair.network().advance(LOOK - Duration::from_secs(1));
            for number in 1..=4 {
                let (next, body) = fragment(number, 1);
                slow.send(next, &body);
            }
            for _ in 0..=4 * LONGEST / 20 / 4000 {
                let (next, body) = fragment(1, 4000);
                fast.send(next, &body);
            }
            pair.network().advance(Duration::from_secs(1));
        }
        let frames = slow.settle();
        let stopped = |number| entries(&frames, number).contains(&ControlRequest::Stopped);
        assert_eq!([1, 2, 3, 4].map(stopped), [others_wait; 4]);
        assert_eq!(code_in(&frames), others_wait.then_some(8));
        if others_wait {
            let (_, body) = frames.iter().find(|(_, body)| body.len() > 100).unwrap();
            let text = String::from_utf8_lossy(body);
            assert!(
                text.contains("4 bytes of all messages of the connection"),
                "{text}"
            );
            assert_eq!(accepted(&waiting, [1]), [1]);
        }
        let frames = fast.settle();
        assert!(
            frames
                .iter()
                .all(|(header, _)| header.kind == FrameKind::Control)
        );
        assert!((1..=4).all(|number| entries(&frames, number).is_empty()));
        drop(rest);
        // The others have stopped sending.
        for raw in clients.iter().chain([&waiting]) {
            raw.peer.close();
            raw.settle();
        }
        pair.assert_nothing_left();
    }
}
