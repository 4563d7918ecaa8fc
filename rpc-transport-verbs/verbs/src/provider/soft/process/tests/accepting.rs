//! Links from processes that do not greet, greet wrongly, or are another user's.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::super::greeting::{GREETING_TIME, Refusal};
use super::super::link::Sent;
use super::super::unix_accept::MAX_NEWCOMERS;
use super::*;
use crate::provider::soft::shared::peer_file::set_takes_files;
use crate::provider::soft::shared::peer_file::tests::lingering;

#[test]
fn a_dialer_that_greets_is_welcomed_with_the_limits() {
    let mut node = Accepting::new();
    let socket = node.connect();
    hello(&socket, gid());
    node.step();
    let welcome = LinkMessage::Welcome {
        layout: Layouts::OWN.max,
        limits: Limits::OWN,
    };
    assert_eq!(received(&socket), Some(welcome));
    assert!(is_open(&socket));
}

#[test]
fn another_user_is_turned_away_at_once_and_others_are_not() {
    let mut node = Accepting::new();
    let to = node.node.gid;
    let strangers = as_other_user(move || {
        let connect = |_| LinkSocket::connect(to).expect("the name is known to all");
        (0..200).map(connect).collect::<Vec<_>>()
    });
    let Some(strangers) = strangers else { return };
    for stranger in &strangers {
        // As the attacker would, with the GID of a process of the right user.
        hello(stranger, gid());
    }
    // The engine accepts a limited number in a row.
    for _ in 0..10 {
        node.step();
    }
    assert!(strangers.iter().all(LinkSocket::has_ended));
    let socket = node.greeted(gid());
    assert!(is_open(&socket));
}

#[test]
fn a_gid_of_another_process_is_refused() {
    let mut node = Accepting::new();
    let mut other = gid();
    // The process id in the GID.
    other.0[9] ^= 1;
    let socket = node.connect();
    hello(&socket, other);
    node.step();
    let refused = LinkMessage::Refused(Refusal::OtherProcess);
    assert_eq!(received(&socket), Some(refused));
    assert!(!is_open(&socket));
}

#[test]
fn a_version_without_this_layout_is_told_this_version() {
    let mut node = Accepting::new();
    let Layouts { min, max } = Layouts::OWN;
    for (min, max) in [(max + 1, max + 3), (min - 1, min - 1)] {
        let socket = node.connect();
        let hello = hello_of(Layouts { min, max }, gid());
        socket.send(hello, &[]).unwrap();
        node.step();
        let refused = LinkMessage::Refused(Refusal::Layouts(Layouts::OWN));
        assert_eq!(received(&socket), Some(refused));
        assert!(!is_open(&socket));
    }
}

#[test]
fn a_later_version_that_has_this_layout_too_is_welcomed_with_it() {
    let mut node = Accepting::new();
    let socket = node.connect();
    let layout = Layouts::OWN.max;
    let layouts = Layouts {
        min: layout,
        max: layout + 3,
    };
    socket.send(hello_of(layouts, gid()), &[]).unwrap();
    node.step();
    let limits = Limits::OWN;
    assert_eq!(
        received(&socket),
        Some(LinkMessage::Welcome { layout, limits })
    );
}

#[test]
fn what_does_not_greet_is_closed() {
    for message in [
        LinkMessage::Wake,
        LinkMessage::ArenaGone { number: 1 },
        LinkMessage::Welcome {
            layout: Layouts::OWN.max,
            limits: Limits::OWN,
        },
    ] {
        let mut node = Accepting::new();
        let socket = node.connect();
        socket.send(message, &[]).unwrap();
        node.step();
        assert_eq!(received(&socket), None, "{message:?}");
    }
}

#[test]
fn links_that_say_nothing_are_few_and_end_in_time() {
    let mut node = Accepting::new();
    let mut silent = Vec::new();
    for _ in 0..3 * MAX_NEWCOMERS {
        silent.push(node.connect());
        node.step();
    }
    let open = silent.iter().filter(|socket| is_open(socket)).count();
    assert_eq!(open, MAX_NEWCOMERS);
    // One that greets is not held up, although the table is full.
    let socket = node.greeted(gid());
    node.step_for(GREETING_TIME);
    assert!(silent.iter().all(LinkSocket::has_ended));
    assert!(is_open(&socket), "it has been greeted");
}

#[test]
fn a_process_that_was_stopped_gives_its_dialers_their_time() {
    let mut node = Accepting::new();
    let socket = node.connect();
    node.step();
    node.step_at(Instant::now() + 2 * GREETING_TIME);
    assert!(is_open(&socket));
    node.step_for(GREETING_TIME);
    assert!(!is_open(&socket));
}

#[test]
fn a_second_link_of_a_process_replaces_its_first_and_no_others() {
    let mut node = Accepting::new();
    let (one, other) = (gid(), gid());
    let other_socket = node.greeted(other);
    let first = node.greeted(one);
    let peer = node.node.peer(one);
    let second = node.greeted(one);
    assert!(!is_open(&first));
    assert!(peer.is_gone(), "its connections end");
    assert!(!node.node.peer(one).is_gone());
    assert!(is_open(&second) && is_open(&other_socket));
    assert!(!node.node.peer(other).is_gone());
}

#[test]
fn one_process_has_a_limited_number_of_links() {
    let mut node = Accepting::new();
    let mut sockets = Vec::new();
    let refused = loop {
        let socket = node.connect();
        hello(&socket, gid());
        node.step();
        match received(&socket) {
            Some(LinkMessage::Welcome { .. }) => sockets.push(socket),
            other => break other,
        }
        assert!(sockets.len() < 1000, "there is no limit");
    };
    let limit = sockets.len() as u64;
    let refusal = Refusal::TooManyLinksOfProcess { limit };
    assert_eq!(refused, Some(LinkMessage::Refused(refusal)));
    // When one has ended, there is room again.
    sockets.pop();
    node.step();
    node.greeted(gid());
}

/// Sends a message with as many files as the kernel passes; `last` is the last one.
fn send_with_files(socket: &LinkSocket, message: LinkMessage, last: &OwnedFd) {
    let other = memfd_create("test", MemfdFlags::CLOEXEC).expect("a file");
    let mut files = vec![other.as_fd(); 252];
    files.push(last.as_fd());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
    let bytes = message.encode();
    let bytes = [IoSlice::new(&bytes)];
    sendmsg(socket, &bytes, &mut ancillary, SendFlags::DONTWAIT).expect("room");
}

/// Sends a greeting with a file whose close blocks for 20 seconds, or until what is returned is
/// dropped.
fn hello_with_lingering_file(socket: &LinkSocket) -> (rustix::io::Result<Sent>, Option<TcpStream>) {
    let (file, other) = lingering(Duration::from_secs(20));
    let hello = hello_of(Layouts::OWN, gid());
    let sent = socket.send(hello, &[file.as_fd()]);
    // If nothing was sent, the file is closed here, and must not block.
    let other = sent.is_ok().then_some(other);
    (sent, other)
}

fn assert_steps_at_once(node: &mut Accepting) {
    let start = Instant::now();
    node.step();
    let time = start.elapsed();
    assert!(
        time < Duration::from_secs(5),
        "the engine waited for {time:?}"
    );
}

#[test]
fn files_of_another_user_do_not_block_the_engine() {
    for kernel_refuses_files in [true, false] {
        let mut node = Accepting::new();
        if !kernel_refuses_files {
            // As before Linux 6.16.
            set_takes_files(&node.node.listener, true).expect("a Unix socket");
        }
        let to = node.node.gid;
        let stranger = as_other_user(move || {
            let socket = LinkSocket::connect(to).expect("the name is known to all");
            let sent = hello_with_lingering_file(&socket);
            (socket, sent)
        });
        let Some((stranger, (sent, _other))) = stranger else {
            return;
        };
        let is_refused = sent == Err(Errno::PERM);
        assert!(is_refused || sent == Ok(Sent::Whole), "{sent:?}");
        assert!(kernel_refuses_files || !is_refused);
        assert_steps_at_once(&mut node);
        assert!(!is_open(&stranger));
        node.greeted(gid());
    }
}

#[test]
fn files_beside_a_greeting_and_files_without_purpose_do_not_block_the_engine() {
    let mut node = Accepting::new();
    set_takes_files(&node.node.listener, true).expect("a Unix socket");
    let socket = node.connect();
    let (sent, _other) = hello_with_lingering_file(&socket);
    assert_eq!(sent, Ok(Sent::Whole));
    assert_steps_at_once(&mut node);
    assert!(!is_open(&socket));

    let socket = node.greeted(gid());
    let (file, _other) = lingering(Duration::from_secs(20));
    let arena = LinkMessage::Arena { number: 1 };
    // More files than any message has; the kernel may pass so many.
    send_with_files(&socket, arena, &file);
    drop(file);
    assert_steps_at_once(&mut node);
    assert!(!is_open(&socket));
}
