//! Long messages between two transports of one process: memory, exposed pieces, and READs.

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rpc_core::Intents;
use rpc_core::transport::{
    AllocateError, Chunks, CloseReason, ConnectionId, Event, ExposeError, Exposed, FetchKey,
    LongMessages, MemoryByOwner, MessageMemory, RemoteSegment, Transport,
};
use rpc_transport_verbs::{RegisteredBuf, Sizing};

use crate::alone;
use crate::transport_harness::{PATIENCE, Rig, Side, device, device_with, frame};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn intents() -> Intents {
    Intents {
        connections: 4,
        max_in_flight: 32,
        ..Intents::default()
    }
}

/// Returns the sizing with which messages are read. Soft-RoCE does not protect memory by windows, so
/// there the peers have to be trusted.
fn sizing() -> Sizing {
    let by_default = Side::open(&device(), &intents());
    Sizing {
        trusted_peers: by_default.transport.limits().read_depth == 0,
        ..Sizing::default()
    }
}

fn rig() -> Rig {
    Rig::new(&intents(), &sizing())
}

/// Allocates, and waits while memory is being registered.
fn allocate(side: &mut Side, connection: ConnectionId, len: usize) -> RegisteredBuf {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match side.transport.allocate_for(connection, len) {
            Ok(memory) => return memory,
            Err(AllocateError::NotNow | AllocateError::InUse) => {
                assert!(Instant::now() < deadline, "no memory")
            }
            Err(error) => panic!("{error}"),
        }
        side.turn();
        thread::yield_now();
    }
}

/// A message in parts so short that they are copied: also over TCP, where the kernel takes longer ones
/// from where they lie.
fn in_parts(message: &[u8]) -> Chunks {
    let mut parts = Chunks::new();
    for part in message.chunks(16 * KIB) {
        parts.push(Bytes::copy_from_slice(part));
    }
    parts
}

/// Exposes the next piece, and waits while there is no memory or window.
fn expose(side: &mut Side, connection: ConnectionId, message: &mut Chunks) -> Exposed {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = message.len();
        match side.transport.expose(connection, message, false) {
            Ok(exposed) => {
                assert_eq!(message.len(), left - exposed.segment.len as usize);
                return exposed;
            }
            Err(ExposeError::NotNow) => assert!(Instant::now() < deadline, "no window"),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(message.len(), left, "nothing was taken");
        side.turn();
        thread::yield_now();
    }
}

/// Moves a message from the client to the server as the core does: each piece is announced by a
/// frame, fetched, and concealed. Returns what arrived, and how many bytes were copied first.
fn transfer(
    rig: &mut Rig,
    (client, server): (ConnectionId, ConnectionId),
    mut message: Chunks,
) -> (RegisteredBuf, usize) {
    let len = message.len();
    let memory = allocate(&mut rig.server, server, len);
    let fetch = rig.server.transport.begin_fetch(server, memory).unwrap();
    let (mut at, mut copied) = (0, 0);
    while !message.is_empty() {
        let exposed = expose(&mut rig.client, client, &mut message);
        if exposed.was_copied {
            copied += exposed.segment.len as usize;
        }
        fetch_announced(rig, client, fetch, exposed.segment, at);
        rig.client.transport.conceal(exposed.key);
        at += exposed.segment.len as usize;
    }
    assert_eq!(at, len);
    let memory = rig.server.transport.finish_fetch(fetch);
    (memory.expect("all of it has arrived"), copied)
}

/// Announces a segment by a frame of the client, and fetches it.
fn fetch_announced(
    rig: &mut Rig,
    client: ConnectionId,
    fetch: FetchKey,
    segment: RemoteSegment,
    at: usize,
) {
    announce(rig, client, segment);
    rig.server.transport.fetch(fetch, segment, at);
    let before = rig.server.fetched.len();
    rig.step_until("a segment", |server, _| server.fetched.len() > before);
    assert_eq!(rig.server.fetched[before], (fetch, segment.len));
}

fn announce(rig: &mut Rig, client: ConnectionId, segment: RemoteSegment) {
    rig.client.send(client, &segment.encode()).unwrap();
    rig.client.transport.flush();
    let before = rig.server.received.len();
    rig.step_until("the frame that announces a segment", |server, _| {
        server.received.len() > before
    });
    assert_eq!(rig.server.received[before].1, segment.encode());
}

fn message(len: usize) -> Vec<u8> {
    frame(len, len)
}

/// Checks that no memory is in use any more, once all invalidations have completed.
fn assert_all_back(rig: &mut Rig) {
    let unused = |side: &Side| {
        let memory = side.transport.memory_by_owner();
        let registered = memory.registered;
        memory
            == MemoryByOwner {
                registered,
                ..MemoryByOwner::default()
            }
    };
    rig.step_until("all memory is back", |server, client| {
        unused(server) && unused(client)
    });
}

#[test]
fn messages_of_every_length_are_read_and_their_memory_comes_back() {
    let _alone = alone();
    let mut rig = rig();
    let pair = rig.connect(1)[0];
    assert_eq!(
        rig.client.transport.long_messages(pair.0),
        LongMessages::Read
    );
    let lens = [
        1,
        4096,
        64 * KIB - 1,
        64 * KIB,
        64 * KIB + 1,
        MIB + 3,
        9 * MIB,
    ];
    for len in lens {
        let sent = message(len);
        let (mut arrived, copied) = transfer(&mut rig, pair, in_parts(&sent));
        assert!(arrived.as_mut() == sent, "{len} bytes");
        assert_eq!(copied, len);
    }
    assert_all_back(&mut rig);
}

#[test]
fn what_lies_in_registered_memory_is_not_copied() {
    let _alone = alone();
    let mut rig = rig();
    let pair = rig.connect(1)[0];
    let sent = message(3 * MIB);
    let mut memory = allocate(&mut rig.client, pair.0, sent.len());
    memory.write(0, &sent);
    let shared = Box::new(memory).freeze(sent.len());
    let (mut arrived, copied) = transfer(&mut rig, pair, shared.clone().into());
    assert!(arrived.as_mut() == sent);
    assert_eq!(copied, 0);
    drop(arrived);
    // The server's last word on the message may still be on its way.
    rig.step_until("the client holds it alone", |_, client| {
        client.transport.memory_by_owner().held >= 3 * MIB as u64
    });

    // Between others: only those are copied.
    let mut parts = Chunks::new();
    parts.push(Bytes::from_static(b"before"));
    parts.push(shared.slice(5..MIB));
    parts.push(Bytes::from_static(b"after"));
    let expected = [b"before", &sent[5..MIB], b"after"].concat();
    let (mut arrived, copied) = transfer(&mut rig, pair, parts);
    assert!(arrived.as_mut() == expected);
    assert_eq!(copied, 11);
    drop((arrived, shared));
    assert_all_back(&mut rig);
}

#[test]
fn a_message_that_was_received_goes_on_without_a_copy() {
    let _alone = alone();
    let mut rig = rig();
    let (client, server) = rig.connect(1)[0];
    let sent = message(300 * KIB);
    let (arrived, _) = transfer(&mut rig, (client, server), Bytes::from(sent.clone()).into());
    let mut back = Chunks::from(Box::new(arrived).freeze(sent.len()));
    let exposed = expose(&mut rig.server, server, &mut back);
    assert!(!exposed.was_copied && back.is_empty());
    let memory = allocate(&mut rig.client, client, sent.len());
    let fetch = rig.client.transport.begin_fetch(client, memory).unwrap();
    rig.server.send(server, b"the announcement").unwrap();
    rig.server.transport.flush();
    rig.step_until("the announcement", |_, client| !client.received.is_empty());
    rig.client.transport.fetch(fetch, exposed.segment, 0);
    rig.step_until("the segment", |_, client| !client.fetched.is_empty());
    let mut memory = rig.client.transport.finish_fetch(fetch).unwrap();
    assert!(memory.as_mut() == sent);
    drop(memory);
    rig.server.transport.conceal(exposed.key);
    assert_all_back(&mut rig);
}

/// What a peer asks for that it may not have.
type Forgery = fn(RemoteSegment) -> RemoteSegment;

#[test]
fn what_was_not_exposed_cannot_be_read_and_ends_the_readers_connection_only() {
    let _alone = alone();
    let forgeries: [(&str, Forgery); 5] = [
        ("a byte before", |it| RemoteSegment {
            address: it.address - 1,
            ..it
        }),
        ("a byte too many", |it| RemoteSegment {
            len: it.len + 1,
            ..it
        }),
        ("elsewhere", |it| RemoteSegment {
            address: 4096,
            ..it
        }),
        ("the key before", |it| RemoteSegment {
            key: it.key & !0xff | it.key.wrapping_sub(1) & 0xff,
            ..it
        }),
        ("another window", |it| RemoteSegment {
            key: it.key ^ 0x0010_0000,
            ..it
        }),
    ];
    let mut rig = rig();
    let bystander = rig.connect(1)[0];
    for (name, forge) in forgeries {
        let pair = rig.connect(1)[0];
        let mut sent = Chunks::from(Bytes::from(message(8 * KIB)));
        let exposed = expose(&mut rig.client, pair.0, &mut sent);
        announce(&mut rig, pair.0, exposed.segment);
        read_in_vain(&mut rig, pair, forge(exposed.segment), name);
    }
    let (mut arrived, _) = transfer(&mut rig, bystander, Bytes::from(message(MIB)).into());
    assert!(arrived.as_mut() == message(MIB), "others go on");
    drop(arrived);
    assert_all_back(&mut rig);
}

/// Reads what must not be readable: the connection ends on both sides.
fn read_in_vain(
    rig: &mut Rig,
    (client, server): (ConnectionId, ConnectionId),
    segment: RemoteSegment,
    name: &str,
) {
    let memory = allocate(&mut rig.server, server, 64 * KIB);
    let fetch = rig.server.transport.begin_fetch(server, memory).unwrap();
    rig.server.transport.fetch(fetch, segment, 0);
    let before = rig.server.fetched.len();
    let closed = |side: &Side, id| side.closed.iter().any(|(closed, _)| *closed == id);
    rig.step_until(name, |ours, theirs| {
        closed(ours, server) && closed(theirs, client)
    });
    assert_eq!(rig.server.fetched.len(), before, "{name}");
    let (_, reason) = rig.server.closed.last().unwrap();
    let CloseReason::Failed(error) = reason else {
        panic!("{name}: {reason:?}");
    };
    assert!(error.to_string().contains("READ"), "{name}: {error}");
    assert!(rig.server.transport.finish_fetch(fetch).is_none());
}

#[test]
fn a_key_that_is_kept_is_useless_after_its_transfer() {
    let _alone = alone();
    let mut rig = rig();
    let pair = rig.connect(1)[0];
    let mut sent = Chunks::from(Bytes::from(message(8 * KIB)));
    let exposed = expose(&mut rig.client, pair.0, &mut sent);
    announce(&mut rig, pair.0, exposed.segment);
    rig.client.transport.conceal(exposed.key);
    // Twice is once.
    rig.client.transport.conceal(exposed.key);
    rig.step_until("it is concealed", |_, client| {
        client.transport.memory_by_owner().exposed == 0
    });
    read_in_vain(&mut rig, pair, exposed.segment, "a key used later");
    assert_all_back(&mut rig);
}

#[test]
fn a_key_is_for_one_connection() {
    let _alone = alone();
    let mut rig = rig();
    let pairs = rig.connect(2);
    let mut sent = Chunks::from(Bytes::from(message(8 * KIB)));
    let exposed = expose(&mut rig.client, pairs[0].0, &mut sent);
    announce(&mut rig, pairs[0].0, exposed.segment);
    read_in_vain(
        &mut rig,
        pairs[1],
        exposed.segment,
        "another connection's key",
    );
    // The one that it is for can still use it.
    let memory = allocate(&mut rig.server, pairs[0].1, 8 * KIB);
    let fetch = rig.server.transport.begin_fetch(pairs[0].1, memory);
    fetch_announced(&mut rig, pairs[0].0, fetch.unwrap(), exposed.segment, 0);
    rig.client.transport.close(pairs[0].0);
    rig.step_until("it is closed", |server, _| server.closed.len() == 2);
    assert_all_back(&mut rig);
}

#[test]
fn a_fetch_that_is_cancelled_gives_its_memory_back_when_nothing_is_read() {
    let _alone = alone();
    let mut rig = rig();
    let (client, server) = rig.connect(1)[0];
    let mut sent = in_parts(&message(MIB));
    let memory = allocate(&mut rig.server, server, MIB);
    let fetch = rig.server.transport.begin_fetch(server, memory).unwrap();
    assert!(rig.server.transport.memory_by_owner().fetching >= MIB as u64);
    let mut at = 0;
    for _ in 0..4 {
        let exposed = expose(&mut rig.client, client, &mut sent);
        announce(&mut rig, client, exposed.segment);
        rig.server.transport.fetch(fetch, exposed.segment, at);
        at += exposed.segment.len as usize;
    }
    rig.server.transport.cancel_fetch(fetch);
    rig.server.transport.cancel_fetch(fetch);
    assert!(rig.server.transport.finish_fetch(fetch).is_none());
    rig.step_until("it has ended", |server, _| !server.cancelled.is_empty());
    assert_eq!(rig.server.cancelled, [fetch]);
    assert_eq!(rig.server.transport.memory_by_owner().fetching, 0);
    rig.client.transport.close(client);
    rig.step_until("it is closed", |server, _| !server.closed.is_empty());
    assert_all_back(&mut rig);
}

#[test]
fn a_connection_that_ends_in_the_middle_gives_all_memory_back() {
    let _alone = alone();
    for server_ends in [false, true] {
        let mut rig = rig();
        let pairs = rig.connect(2);
        let (client, server) = pairs[0];
        let mut sent = Chunks::from(Bytes::from(message(MIB)));
        let memory = allocate(&mut rig.server, server, MIB);
        let fetch = rig.server.transport.begin_fetch(server, memory).unwrap();
        let exposed = expose(&mut rig.client, client, &mut sent);
        announce(&mut rig, client, exposed.segment);
        let other = expose(&mut rig.client, client, &mut sent);
        rig.server.transport.fetch(fetch, exposed.segment, 0);
        match server_ends {
            true => rig.server.transport.close(server),
            false => rig.client.transport.close(client),
        }
        rig.step_until("it is closed", |server, client| {
            !server.closed.is_empty() && !client.closed.is_empty()
        });
        // Names that outlive the connection name nothing.
        rig.client.transport.conceal(exposed.key);
        rig.client.transport.conceal(other.key);
        rig.server.transport.fetch(fetch, exposed.segment, 0);
        rig.server.transport.cancel_fetch(fetch);
        assert_all_back(&mut rig);
        assert!(rig.server.cancelled.is_empty());
        let (mut arrived, _) = transfer(&mut rig, pairs[1], Bytes::from(message(MIB)).into());
        assert!(arrived.as_mut() == message(MIB), "others go on");
    }
}

/// While a piece is copied, the lane looks for calls. What it finds keeps its order: a connection is
/// accepted before its first frame arrives, and the frames arrive as they were sent.
#[test]
fn what_arrives_while_a_piece_is_copied_keeps_its_order() {
    let _alone = alone();
    let mut rig = rig();
    let server = rig.connect(1)[0].1;
    let address = rig.address();
    // Until there is memory for pieces.
    let mut piece = Chunks::from(Bytes::from(message(64 * KIB)));
    let mut exposures = vec![expose(&mut rig.server, server, &mut piece).key];
    for _ in 0..3 {
        let client = rig.client.connect(&address).connection;
        for number in 0..4 {
            rig.client.send(client, &frame(number, 100)).unwrap();
        }
        rig.client.transport.flush();
        rig.client.turn();
        let mut piece = Chunks::from(Bytes::from(message(64 * KIB)));
        let exposed = rig.server.transport.expose(server, &mut piece, false);
        exposures.push(exposed.unwrap().key);
        let (mut accepted, mut next) = (None, 0);
        let deadline = Instant::now() + PATIENCE;
        while next < 4 {
            assert!(Instant::now() < deadline, "{next} frames have arrived");
            match rig.server.transport.poll() {
                Some(Event::Accepted { connection, .. }) => accepted = Some(connection),
                Some(Event::Received { connection, buf }) => {
                    assert_eq!(accepted, Some(connection), "it was not accepted before");
                    assert!(buf.as_ref() == frame(next, 100), "not frame {next}");
                    rig.server.transport.release(buf);
                    next += 1;
                }
                Some(event) => panic!("{event:?}"),
                None => thread::yield_now(),
            }
        }
    }
    for key in exposures {
        rig.server.transport.conceal(key);
    }
    assert_all_back(&mut rig);
}

/// A call that a copy has found waits until polls return it. Copies before that end early too.
#[test]
fn copies_end_early_while_a_call_waits() {
    let _alone = alone();
    let mut rig = rig();
    let [(_, server), (client, _)] = rig.connect(2)[..] else {
        panic!("there are two connections");
    };
    let whole = || in_parts(&message(64 * KIB));
    let mut piece = whole();
    // Until there is memory for pieces.
    let mut exposures = vec![expose(&mut rig.server, server, &mut piece).key];
    assert!(piece.is_empty(), "nobody calls");
    rig.client.send(client, &frame(0, 100)).unwrap();
    rig.client.transport.flush();
    // The call has to arrive before the copy, which looks for it a few times only.
    thread::sleep(Duration::from_millis(50));
    for _ in 0..2 {
        let mut piece = whole();
        exposures.push(expose(&mut rig.server, server, &mut piece).key);
        assert!(!piece.is_empty(), "a call waits");
    }
    match rig.server.transport.poll() {
        Some(Event::Received { buf, .. }) => rig.server.transport.release(buf),
        event => panic!("{event:?}"),
    }
    let mut piece = whole();
    exposures.push(expose(&mut rig.server, server, &mut piece).key);
    assert!(piece.is_empty(), "no call waits any more");
    for key in exposures {
        rig.server.transport.conceal(key);
    }
    assert_all_back(&mut rig);
}

/// The next poll returns a call that a copy has found. The bulk connection's own frames, which came
/// before it, follow.
#[test]
fn a_call_that_a_copy_has_found_is_the_next_event() {
    let _alone = alone();
    let mut rig = rig();
    let [(bulk_client, bulk), (client, caller)] = rig.connect(2)[..] else {
        panic!("there are two connections");
    };
    let mut piece = in_parts(&message(64 * KIB));
    // Until there is memory for pieces.
    let mut exposures = vec![expose(&mut rig.server, bulk, &mut piece).key];
    for (from, number) in [(bulk_client, 0), (client, 1)] {
        rig.client.send(from, &frame(number, 100)).unwrap();
        rig.client.transport.flush();
    }
    // Both have to arrive before the copy, which looks for them a few times only.
    thread::sleep(Duration::from_millis(50));
    let mut piece = in_parts(&message(64 * KIB));
    exposures.push(expose(&mut rig.server, bulk, &mut piece).key);
    assert!(!piece.is_empty(), "a call waits");
    for (from, number) in [(caller, 1), (bulk, 0)] {
        match rig.server.transport.poll() {
            Some(Event::Received { connection, buf }) => {
                assert_eq!(connection, from);
                assert!(buf.as_ref() == frame(number, 100));
                rig.server.transport.release(buf);
            }
            event => panic!("{event:?}"),
        }
    }
    for key in exposures {
        rig.server.transport.conceal(key);
    }
    assert_all_back(&mut rig);
}

/// A call that has arrived does not wait for the invalidations of pieces.
#[test]
fn a_poll_that_finds_a_call_invalidates_nothing() {
    let _alone = alone();
    let mut rig = rig();
    let [(_, bulk), (client, caller)] = rig.connect(2)[..] else {
        panic!("there are two connections");
    };
    let mut exposures = Vec::new();
    for _ in 0..16 {
        let mut piece = Chunks::from(Bytes::from(message(8 * KIB)));
        exposures.push(expose(&mut rig.server, bulk, &mut piece).key);
    }
    while rig.server.transport.poll().is_some() {}
    for key in exposures {
        rig.server.transport.conceal(key);
    }
    rig.client.send(client, &frame(0, 100)).unwrap();
    rig.client.transport.flush();
    thread::sleep(Duration::from_millis(50));
    let sent = |rig: &Rig| rig.server.transport.counters().doorbells;
    let before = sent(&rig);
    match rig.server.transport.poll() {
        Some(Event::Received { connection, buf }) => {
            assert_eq!(connection, caller);
            rig.server.transport.release(buf);
        }
        event => panic!("{event:?}"),
    }
    assert_eq!(sent(&rig), before, "the call is served first");
    assert!(rig.server.transport.poll().is_none());
    assert_eq!(sent(&rig), before + u64::from(!sizing().trusted_peers));
    assert_all_back(&mut rig);
}

/// Many pieces of many connections are exposed and concealed beside frames: an entry of a send
/// queue is always there for each of them, or the transport says that there is none.
#[test]
fn pieces_and_frames_share_the_send_queue() {
    let _alone = alone();
    let mut rig = rig();
    let pairs = rig.connect(3);
    let mut exposures = Vec::new();
    let mut frames = 0;
    for round in 0..400 {
        let (client, _) = pairs[round % 3];
        let mut piece = Chunks::from(Bytes::from(message(100)));
        exposures.push(expose(&mut rig.client, client, &mut piece));
        if round % 2 == 0 && rig.client.send(client, &message(1000)).is_ok() {
            frames += 1;
        }
        if round % 7 == 0 {
            rig.client.transport.flush();
            for exposed in exposures.drain(..exposures.len() / 2) {
                rig.client.transport.conceal(exposed.key);
            }
            rig.client.turn();
            rig.server.turn();
        }
    }
    rig.client.transport.flush();
    for exposed in exposures {
        rig.client.transport.conceal(exposed.key);
    }
    rig.step_until("all frames", |server, _| server.received.len() == frames);
    assert!(frames > 100, "{frames}");
    assert_all_back(&mut rig);
    rig.client.assert_quiet_pool();
}

#[test]
fn fetches_of_connections_take_turns() {
    let _alone = alone();
    // More segments than a connection may read at a time.
    let sizing = Sizing {
        read_depth: Some(2),
        ..sizing()
    };
    let mut rig = Rig::new(&intents(), &sizing);
    let pairs = rig.connect(2);
    let mut long = Chunks::from(Bytes::from(message(2 * MIB)));
    let mut pieces = Vec::new();
    while !long.is_empty() {
        let exposed = expose(&mut rig.client, pairs[0].0, &mut long);
        announce(&mut rig, pairs[0].0, exposed.segment);
        pieces.push(exposed);
    }
    let mut short = Chunks::from(Bytes::from(message(KIB)));
    let exposed = expose(&mut rig.client, pairs[1].0, &mut short);
    announce(&mut rig, pairs[1].0, exposed.segment);

    let memory = allocate(&mut rig.server, pairs[0].1, 2 * MIB);
    let long = rig.server.transport.begin_fetch(pairs[0].1, memory);
    let memory = allocate(&mut rig.server, pairs[1].1, KIB);
    let short = rig.server.transport.begin_fetch(pairs[1].1, memory);
    let (long, short) = (long.unwrap(), short.unwrap());
    let mut at = 0;
    for piece in &pieces {
        rig.server.transport.fetch(long, piece.segment, at);
        at += piece.segment.len as usize;
    }
    rig.server.transport.fetch(short, exposed.segment, 0);
    let expected = pieces.len() + 1;
    rig.step_until("both", |server, _| server.fetched.len() == expected);
    let position = rig.server.fetched.iter().position(|(key, _)| *key == short);
    assert!(
        position.unwrap() < expected / 2,
        "{position:?} of {expected}"
    );
    let of_long = rig.server.fetched.iter().filter(|(key, _)| *key == long);
    let lens: Vec<_> = of_long.map(|(_, len)| *len).collect();
    let announced: Vec<_> = pieces.iter().map(|piece| piece.segment.len).collect();
    assert_eq!(lens, announced);
}

#[test]
fn a_message_that_can_never_get_memory_is_refused_at_once() {
    let _alone = alone();
    let intents = Intents {
        message_memory: 4 * MIB as u64,
        max_message_len: 4 * MIB,
        ..intents()
    };
    let mut side = Side::open(&device(), &intents);
    let connection = ConnectionId {
        index: 0,
        generation: 0,
    };
    let too_long = side.transport.allocate_for(connection, 4 * MIB + 1);
    let too_long = too_long.unwrap_err();
    assert!(
        matches!(too_long, AllocateError::TooLong { limit, .. } if limit == 4 * MIB),
        "{too_long}"
    );
}

#[test]
fn an_idle_transport_has_registered_nothing() {
    let _alone = alone();
    let mut rig = rig();
    rig.connect(2);
    rig.step_until("quiet", |_, _| true);
    for side in [&rig.server, &rig.client] {
        assert_eq!(side.transport.memory_by_owner(), MemoryByOwner::default());
    }
}

#[test]
fn one_side_without_reads_is_enough_for_fragments() {
    let _alone = alone();
    let with = device_with(sizing());
    let without = device_with(Sizing {
        read_depth: Some(0),
        ..Sizing::default()
    });
    for (server, client) in [(&with, &without), (&without, &with)] {
        let mut rig = Rig::with(server, client, &intents());
        let (client, server) = rig.connect(1)[0];
        for (side, id) in [(&mut rig.client, client), (&mut rig.server, server)] {
            assert_eq!(side.transport.long_messages(id), LongMessages::Fragments);
            let mut message = Chunks::from(Bytes::from_static(b"bytes"));
            let refused = side.transport.expose(id, &mut message, false);
            assert_eq!(refused.unwrap_err(), ExposeError::Closed);
            let memory = allocate(side, id, 9000);
            assert!(side.transport.begin_fetch(id, memory).is_err());
        }
    }
}

#[test]
fn trusted_peers_read_without_windows() {
    let _alone = alone();
    let mut rig = Rig::new(
        &intents(),
        &Sizing {
            trusted_peers: true,
            ..Sizing::default()
        },
    );
    let pair = rig.connect(1)[0];
    let (mut arrived, _) = transfer(&mut rig, pair, Bytes::from(message(MIB)).into());
    assert!(arrived.as_mut() == message(MIB));
    drop(arrived);
    assert_all_back(&mut rig);
    assert!(
        rig.client
            .transport
            .limits()
            .to_string()
            .contains("trusted")
    );
}

#[test]
fn a_segment_of_more_reads_than_may_be_outstanding_arrives() {
    let _alone = alone();
    let sizing = Sizing {
        read_depth: Some(1),
        ..sizing()
    };
    let mut rig = Rig::new(&intents(), &sizing);
    let pair = rig.connect(1)[0];
    // Exposed where it lies, as one segment.
    let mut memory = allocate(&mut rig.client, pair.0, 300 * KIB);
    memory.write(0, &message(300 * KIB));
    let chunks = Chunks::from(Box::new(memory).freeze(300 * KIB));
    let (mut received, copied) = transfer(&mut rig, pair, chunks);
    assert_eq!(copied, 0);
    assert!(received.as_mut() == message(300 * KIB));
    drop(received);
    assert_all_back(&mut rig);
}
