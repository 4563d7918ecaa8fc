//! READs from a peer that is stopped, and has to execute them itself because its keys are wrong: READs
//! from others go on.

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rpc_core::Intents;
use rpc_core::transport::{Chunks, ConnectionId, RemoteSegment, Transport};
use rpc_transport_verbs::{RegisteredBuf, Sizing};

use crate::transport_harness::{ChildProcess, Rig, Side, device, write_line};

/// Connections of the stopped peer. With as many READs as each may have outstanding, they would use up
/// the limit that a network card has for those of all connections.
const CONNECTIONS: usize = 6;

const SERVER: &str = "VERBLINE_TEST_SERVER";

/// Time limit of a wait for an event that has to occur. It bounds failing tests only.
const PATIENCE: Duration = Duration::from_secs(30);

fn intents() -> Intents {
    Intents {
        connections: 16,
        ..Intents::default()
    }
}

#[test]
#[ignore = "the other test runs it, as the process of the peer that is stopped"]
fn stopped_process() {
    let address = std::env::var(SERVER).expect("the test sets it");
    let mut side = Side::open(&device(), &intents());
    for _ in 0..CONNECTIONS {
        side.connect(&address);
    }
    write_line("CONNECTED", "");
    loop {
        side.turn();
        thread::yield_now();
    }
}

/// Takes turns of both sides until `attempt` returns a value.
fn until<T>(rig: &mut Rig, what: &str, mut attempt: impl FnMut(&mut Rig) -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = attempt(rig) {
            return value;
        }
        rig.server.turn();
        rig.client.turn();
        thread::yield_now();
        assert!(Instant::now() < deadline, "{what}");
    }
}

fn allocate(rig: &mut Rig, connection: ConnectionId, len: usize) -> RegisteredBuf {
    until(rig, "no memory", |rig| {
        rig.server.transport.allocate_for(connection, len).ok()
    })
}

#[test]
fn a_peer_that_is_stopped_holds_up_reads_from_itself_only() {
    const LEN: usize = 10_000;
    const LONG: usize = 1 << 20;
    let mut rig = Rig::new(&intents(), &Sizing::default());
    let (client, server) = rig.connect(1)[0];
    let mut peer = ChildProcess::start(
        "transport_stopped_peer::stopped_process",
        &[(SERVER, rig.address())].into(),
    );
    until(&mut rig, "not all are accepted", |rig| {
        (rig.server.accepted.len() > CONNECTIONS).then_some(())
    });
    peer.wait_for_line("CONNECTED");
    peer.stop();
    let of_peer: Vec<_> = rig.server.accepted[1..].iter().map(|it| it.0).collect();
    for connection in of_peer {
        let memory = allocate(&mut rig, connection, LONG);
        let fetch = rig.server.transport.begin_fetch(connection, memory);
        let wrong = RemoteSegment {
            address: 4096,
            key: 0x8123_4500,
            len: LONG as u32,
        };
        rig.server.transport.fetch(fetch.unwrap(), wrong, 0);
    }
    // Until all that may be outstanding are posted.
    for _ in 0..2000 {
        rig.server.turn();
    }
    let memory = allocate(&mut rig, server, LEN);
    let fetch = rig.server.transport.begin_fetch(server, memory).unwrap();
    let mut message = Chunks::from(Bytes::from(vec![7; LEN]));
    let exposed = until(&mut rig, "no memory for a piece", |rig| {
        rig.client
            .transport
            .expose(client, &mut message, false)
            .ok()
    });
    rig.server.transport.fetch(fetch, exposed.segment, 0);
    until(&mut rig, "the READ waits for the stopped peer", |rig| {
        (!rig.server.fetched.is_empty()).then_some(())
    });
    let memory = rig.server.transport.finish_fetch(fetch).unwrap();
    assert!(memory.as_ref() == vec![7; LEN]);
}
