//! What a greeted peer may send, and a peer that does not receive.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::fs::{fallocate, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::super::inbound::handle;
use super::super::link::Sent;
use super::super::link::tests::pair;
use super::super::node::domain::Domain;
use super::super::outbound::{Link, SendError};
use super::*;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::shared::memory::SharedMemory;
use crate::types::SoftOptions;

/// A greeted link of a node, and the peer's end.
fn linked(limits: Limits) -> (Accepting, Link, LinkSocket) {
    let node = Accepting::new();
    let (here, there) = pair();
    let peer = Arc::new(Peer::new(gid()));
    (node, Link::new(peer, u64::MAX, true, here, limits), there)
}

/// Memory of `len` bytes, sealed as a peer's arena is, of which the first `populated` are there.
fn arena(len: u64, populated: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("test", flags).expect("a file");
    ftruncate(&file, len).expect("any length");
    if populated > 0 {
        fallocate(&file, FallocateFlags::empty(), 0, populated).expect("memory");
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    fcntl_add_seals(&file, seals).expect("seals");
    file
}

fn announce(node: &Node, link: &Link, number: u64, file: OwnedFd) -> Result<(), String> {
    handle(
        node,
        link,
        Packet::Message(LinkMessage::Arena { number }, vec![file.into()]),
    )
}

#[test]
fn a_long_and_empty_arena_is_refused_and_costs_no_memory() {
    let (node, link, _there) = linked(Limits::OWN);
    let file = arena(4 << 30, 0);
    let again = file.try_clone().expect("a descriptor");
    let reason = announce(&node.node, &link, 1, file).unwrap_err();
    assert!(reason.contains("holes"), "{reason}");
    assert_eq!(link.peer.arena_usage(), (0, 0));
    assert_eq!(fstat(&again).expect("a file").st_blocks, 0);
}

#[test]
fn an_arena_counts_until_it_is_gone() {
    let (node, link, _there) = linked(Limits::OWN);
    announce(&node.node, &link, 1, arena(8192, 8192)).expect("it is within the limits");
    assert_eq!(link.peer.arena_usage(), (1, 8192));
    let gone = LinkMessage::ArenaGone { number: 1 };
    handle(&node.node, &link, Packet::Message(gone, Vec::new())).expect("it was there");
    assert_eq!(link.peer.arena_usage(), (0, 0));
}

#[test]
fn a_peer_that_announces_more_than_agreed_loses_its_link() {
    let (node, link, _there) = linked(Limits::OWN);
    let longest = Limits::OWN.max_arena_bytes;
    let file = arena(4096, 4096);
    let file = || file.try_clone().expect("a descriptor");
    announce(&node.node, &link, 1, file()).expect("it is within the limits");
    // The test has not so much memory to populate: the peer's first arena is as long as that.
    let first = SharedMemory::for_writers("test", longest as usize - 4096).expect("any length");
    assert!(link.peer.add_arena(2, first.mapping));
    let reason = announce(&node.node, &link, 3, file()).unwrap_err();
    let both = [longest, longest + 4096].map(|number| number.to_string());
    assert!(
        both.iter().all(|number| reason.contains(number)),
        "{reason}"
    );
    // What was refused takes nothing.
    assert_eq!(link.peer.arena_usage(), (2, longest));
    link.peer.remove_arena(2);
    let reason = announce(&node.node, &link, 1, file()).unwrap_err();
    assert!(reason.contains("twice"), "{reason}");

    let (node, link, _there) = linked(Limits::OWN);
    let limit = u64::from(Limits::OWN.max_arenas);
    for number in 0..limit {
        announce(&node.node, &link, number, file()).expect("it is within the limits");
    }
    let reason = announce(&node.node, &link, limit, file()).unwrap_err();
    assert!(reason.contains(&limit.to_string()), "{reason}");
}

/// All GIDs of the tests are this process's.
#[test]
fn a_process_with_many_gids_has_no_more_than_its_share() {
    let node = Accepting::new();
    let link_of = |peer| {
        let (here, there) = pair();
        (Link::new(peer, u64::MAX, true, here, Limits::OWN), there)
    };
    let most = Limits::OWN.max_arena_bytes;
    // 128 times this are the total, and a process has an eighth.
    let mut links = Vec::new();
    for _ in 0..16 {
        let (link, there) = link_of(node.node.peer(gid()));
        // The test has not so much memory to populate: each peer's first arena is as long as that.
        let first = SharedMemory::for_writers("test", most as usize).expect("any length");
        assert!(link.peer.add_arena(1, first.mapping));
        links.push((link, there));
    }
    let (link, there) = link_of(node.node.peer(gid()));
    announce(&node.node, &link, 1, arena(4096, 4096)).expect("its link stays");
    let refused = Some(LinkMessage::ArenaRefused { number: 1 });
    assert_eq!(received(&there), refused);
    // There is room again when one has ended.
    node.node.end_peer(&links[0].0.peer);
    announce(&node.node, &link, 1, arena(4096, 4096)).expect("its link stays");
    assert!(matches!(there.receive(), Ok(Packet::Empty)), "it is mapped");
}

/// The announcing side checks the limits of the peer before it sends.
#[test]
fn what_a_peer_does_not_map_is_not_announced_to_it() {
    let limits = Limits {
        max_arenas: 2,
        max_contexts: 1,
        max_arena_bytes: 3 << 20,
    };
    let (node, link, there) = linked(limits);
    assert!(link.has_unusual_limits());
    let open = || Domain::open(Arc::clone(&node.node), SoftOptions::default()).expect("a context");
    let (context, other) = (open(), open());
    let (attach, ring) = attach(context.number);
    link.attach(&context, attach, ring.as_fd())
        .expect("within the limits");
    let error = link.attach(&other, attach, ring.as_fd()).unwrap_err();
    assert!(matches!(error, SendError::Limit(_)), "{error}");
    let arena = |len| Arc::new(SharedMemory::arena(len).expect("memory"));
    let announce = |number, len| link.announce_arena(context.number, number, &arena(len));
    announce(1, 1 << 20).expect("within the limits");
    let error = announce(2, 3 << 20).unwrap_err();
    let sentence = error.to_string();
    let both = [3 << 20, 4 << 20].map(|number: u64| number.to_string());
    assert!(
        both.iter().all(|number| sentence.contains(number)),
        "{sentence}"
    );
    assert!(!error.ends_link());
    announce(3, 4096).expect("within the limits");
    assert!(matches!(announce(4, 4096), Err(SendError::Limit(_))));
    link.withdraw_arena(3).expect("it was announced");
    announce(4, 4096).expect("there is room again");
    // The peer has been told of what was announced, and of nothing else.
    let numbers = [
        LinkMessage::Context {
            number: context.number,
        },
        attach,
        LinkMessage::Arena { number: 1 },
        LinkMessage::Arena { number: 3 },
        LinkMessage::ArenaGone { number: 3 },
        LinkMessage::Arena { number: 4 },
    ];
    for message in numbers {
        assert_eq!(received(&there), Some(message));
    }
    assert!(matches!(there.receive(), Ok(Packet::Empty)));
}

fn attach(context: u32) -> (LinkMessage, OwnedFd) {
    let message = LinkMessage::Attach {
        from: 7,
        to: 8,
        context,
        from_index: 0,
    };
    (
        message,
        memfd_create("test", MemfdFlags::CLOEXEC).expect("a file"),
    )
}

/// A thread that registers memory does not wait for a peer that does not receive. The messages keep
/// their order, and the peer gets them all when it receives again.
#[test]
fn what_a_peer_does_not_receive_waits_in_order() {
    let (node, link, there) = linked(Limits::OWN);
    let context = Domain::open(Arc::clone(&node.node), SoftOptions::default()).unwrap();
    let (attach, ring) = attach(context.number);
    link.attach(&context, attach, ring.as_fd()).unwrap();
    let memory = Arc::new(SharedMemory::arena(4096).unwrap());
    for number in 0..1000 {
        link.announce_arena(context.number, number, &memory)
            .unwrap();
    }
    assert!(link.is_waiting() && link.awaits_room());
    let now = Instant::now();
    let mut arenas = Vec::new();
    while link.is_waiting() {
        link.flush(now).unwrap();
        while let Ok(Packet::Message(message, files)) = there.receive() {
            assert_eq!(files.len(), message.file_count());
            if let LinkMessage::Arena { number } = message {
                arenas.push(number);
            }
        }
    }
    assert!(arenas.into_iter().eq(0..1000));
}

#[test]
fn a_peer_that_does_not_receive_for_long_loses_its_link() {
    let (node, link, _there) = linked(Limits::OWN);
    let context = Domain::open(Arc::clone(&node.node), SoftOptions::default()).unwrap();
    let (attach, ring) = attach(context.number);
    link.attach(&context, attach, ring.as_fd()).unwrap();
    let memory = Arc::new(SharedMemory::arena(4096).unwrap());
    let mut number = 0;
    while !link.is_waiting() {
        link.announce_arena(context.number, number, &memory)
            .unwrap();
        number += 1;
    }
    let start = Instant::now();
    link.flush(start).unwrap();
    link.flush(start + Duration::from_secs(4)).unwrap();
    let error = link.flush(start + Duration::from_secs(5)).unwrap_err();
    assert!(matches!(error, SendError::Stuck) && error.ends_link());
    // So does one for which too much waits.
    let error = loop {
        match link.withdraw_arena(number) {
            Err(error) => break error,
            Ok(()) => match number {
                0 => panic!("there is no limit"),
                _ => number -= 1,
            },
        }
        for more in 0..100 {
            if let Err(error) = link.respond(LinkMessage::ArenaGone { number: more }) {
                assert!(matches!(error, SendError::Overflow), "{error}");
                return;
            }
        }
    };
    assert!(matches!(error, SendError::Overflow), "{error}");
}

/// Threads that set up connections serve all clients.
#[test]
fn a_client_that_does_not_receive_holds_up_nobody_for_long() {
    let (node, link, _there) = linked(Limits::OWN);
    let context = Domain::open(Arc::clone(&node.node), SoftOptions::default()).unwrap();
    let (attach, ring) = attach(context.number);
    let (time, error) = loop {
        let start = Instant::now();
        if let Err(error) = link.attach(&context, attach, ring.as_fd()) {
            break (start.elapsed(), error);
        }
    };
    assert!(matches!(error, SendError::Congested(_)), "{error}");
    assert!(time < Duration::from_secs(2), "{time:?}");
}

/// A message whose files did not arrive is refused alone.
#[test]
fn without_file_descriptors_each_message_is_refused_and_the_link_stays() {
    let (node, link, there) = linked(Limits::OWN);
    for (message, answer) in [
        (
            LinkMessage::Arena { number: 5 },
            LinkMessage::ArenaRefused { number: 5 },
        ),
        (
            LinkMessage::Context { number: 6 },
            LinkMessage::ContextRefused { number: 6 },
        ),
        (attach(6).0, LinkMessage::AttachRefused { from: 7, to: 8 }),
    ] {
        handle(&node.node, &link, Packet::WithoutFiles(message)).expect("the link stays");
        assert_eq!(received(&there), Some(answer));
    }
}

#[test]
fn an_arena_that_a_peer_could_not_map_is_announced_again_ever_less_often() {
    let (node, link, there) = linked(Limits::OWN);
    let context = Domain::open(Arc::clone(&node.node), SoftOptions::default()).unwrap();
    let (attach, ring) = attach(context.number);
    link.attach(&context, attach, ring.as_fd()).unwrap();
    let memory = Arc::new(SharedMemory::arena(4096).unwrap());
    link.announce_arena(context.number, 5, &memory).unwrap();
    for _ in 0..2 {
        received(&there);
    }
    let refused = LinkMessage::ArenaRefused { number: 5 };
    let mut now = Instant::now();
    let mut pauses = Vec::new();
    for _ in 0..20 {
        assert_eq!(received(&there), Some(LinkMessage::Arena { number: 5 }));
        let packet = Packet::Message(refused, Vec::new());
        handle(&node.node, &link, packet).expect("the link stays");
        let start = now;
        while !there.wait(Duration::ZERO).unwrap() {
            link.flush(now).unwrap();
            now += Duration::from_millis(50);
        }
        pauses.push((now - start).as_millis());
    }
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert!((100..300).contains(&pauses[0]), "{pauses:?}");
    assert!((6_000..7_000).contains(&pauses[19]), "{pauses:?}");
}

/// No other message and no thread makes the engine send: it does so by itself.
#[test]
fn the_engine_announces_a_refused_arena_again() {
    let mut node = Accepting::new();
    let socket = node.greeted(gid());
    let links = node.node.links.all();
    let link = links.first().expect("it was greeted");
    let context = Domain::open(Arc::clone(&node.node), SoftOptions::default()).unwrap();
    let (attach, ring) = attach(context.number);
    node.node
        .attach(&context, link, attach, ring.as_fd())
        .unwrap();
    let memory = Arc::new(SharedMemory::arena(4096).unwrap());
    node.node
        .announce_arena(&context, 5, &memory)
        .expect("within the limits");
    for _ in 0..2 {
        received(&socket);
    }
    let announced = Some(LinkMessage::Arena { number: 5 });
    assert_eq!(received(&socket), announced);
    let refused = LinkMessage::ArenaRefused { number: 5 };
    socket.send(refused, &[]).unwrap();
    let now = Instant::now();
    node.step_at(now);
    node.step_at(now + Duration::from_millis(50));
    node.step_at(now + Duration::from_millis(250));
    assert_eq!(received(&socket), announced);
}

/// Run by the next test, as a process of another user: the kernel limits each user.
#[test]
#[ignore = "run by another test, as another user"]
fn other_has_too_many_files_in_flight() {
    let (node, link, there) = linked(Limits::OWN);
    let context = Domain::open(Arc::clone(&node.node), SoftOptions::default()).unwrap();
    let (attach, ring) = attach(context.number);
    link.attach(&context, attach, ring.as_fd()).unwrap();
    for _ in 0..2 {
        received(&there);
    }
    // Other sockets of this user hold all files that may be in flight.
    let mut pairs = Vec::new();
    let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    'full: loop {
        let (from, to) = pair();
        loop {
            match from.send(LinkMessage::Arena { number: 1 }, &[file.as_fd()]) {
                Ok(Sent::Whole) => {}
                Ok(Sent::NoRoom) => break,
                Ok(Sent::TooManyFiles) => {
                    pairs.push((from, to));
                    break 'full;
                }
                Err(error) => panic!("{error}"),
            }
        }
        pairs.push((from, to));
    }
    link.attach(&context, attach, ring.as_fd()).unwrap();
    let memory = Arc::new(SharedMemory::arena(4096).unwrap());
    link.announce_arena(context.number, 5, &memory).unwrap();
    link.announce_arena(context.number, 6, &memory).unwrap();
    link.withdraw_arena(5).unwrap();
    // What has no files and needs nothing that waits goes past it.
    let answer = LinkMessage::ArenaRefused { number: 7 };
    link.respond(answer).unwrap();
    assert_eq!(received(&there), Some(answer));
    let start = Instant::now();
    for seconds in 0..5 {
        link.flush(start + Duration::from_secs(seconds)).unwrap();
        assert!(link.take_failed().is_empty());
    }
    link.flush(start + Duration::from_secs(5)).unwrap();
    assert_eq!(link.take_failed(), [(7, 8)]);
    link.flush(start + Duration::from_secs(60)).unwrap();
    assert!(matches!(there.receive(), Ok(Packet::Empty)));
    for (_, to) in &pairs {
        while let Ok(Packet::Message(..)) = to.receive() {}
    }
    link.flush(start + Duration::from_secs(61)).unwrap();
    assert_eq!(received(&there), Some(LinkMessage::Arena { number: 6 }));
    assert!(!link.is_waiting());
}

#[test]
fn files_in_flight_to_other_processes_do_not_end_a_link() {
    let name = "provider::soft::process::tests::messages::other_has_too_many_files_in_flight";
    let run = move || {
        // Of the whole process that is started, and of no other.
        std::process::Command::new("/proc/self/exe")
            .args(["--ignored", "--exact", name])
            .output()
    };
    let Some(other) = as_other_user(run) else {
        return;
    };
    let other = other.expect("a process");
    let output = String::from_utf8_lossy(&other.stdout);
    assert!(other.status.success(), "{output}");
    assert!(output.contains("1 passed"), "{output}");
}

/// Run by the next test, as another process: its limit is everybody's in a process.
#[test]
#[ignore = "run by another test, as another process"]
fn other_receives_without_descriptors() {
    let (here, there) = pair();
    let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    let arena = LinkMessage::Arena { number: 1 };
    for count in [1, 3, 1] {
        here.send(arena, &vec![file.as_fd(); count]).unwrap();
    }
    let old = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        maximum: old.maximum,
    };
    setrlimit(Resource::Nofile, none).unwrap();
    for _ in 0..2 {
        let packet = there.receive();
        assert!(matches!(packet, Ok(Packet::WithoutFiles(_))), "{packet:?}");
    }
    setrlimit(Resource::Nofile, old).unwrap();
    assert!(matches!(there.receive(), Ok(Packet::Message(..))));
}

#[test]
fn files_that_this_process_has_no_descriptor_for_are_no_fault_of_the_peer() {
    let name = "provider::soft::process::tests::messages::other_receives_without_descriptors";
    let other = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", name])
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&other.stdout);
    assert!(other.status.success(), "{output}");
    assert!(output.contains("1 passed"), "{output}");
}
