//! Dialing processes that do not answer, refuse, or are not what their GID says.

use std::sync::atomic::{AtomicU32, Ordering};

use super::super::dial::dial;
use super::super::greeting::{GREETING_TIME, LinkError, Refusal};
use super::super::link::tests::pair;
use super::super::links::{Access, Links};
use super::super::outbound::Link;
use super::*;
use crate::types::QpNum;

/// Time limit of these dials, instead of the real one.
const SHORT: Duration = Duration::from_millis(100);

fn dial_in_short(to: Gid) -> Result<(), LinkError> {
    let wait = |socket: &LinkSocket, left| socket.wait(left);
    dial(to, gid(), SHORT, &wait).map(drop)
}

/// Dials a listener that answers each link with `answer`, or closes it.
fn dial_one_that_answers(answer: Option<LinkMessage>) -> Result<(), LinkError> {
    let (there, listener) = silent_listener();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut accepted = None;
            wait_until("a link", || {
                accepted = listener.accept().expect("a listener");
                accepted.is_some()
            });
            let socket = accepted.expect("a link");
            if let Some(answer) = answer {
                socket.send(answer, &[]).expect("room");
                socket.wait(Duration::from_secs(20)).expect("a socket");
                wait_until("its end", || socket.has_ended());
            }
        });
        dial_in_short(there)
    })
}

#[test]
fn a_process_that_accepts_and_says_nothing_is_waited_for_and_not_longer() {
    let (there, _listener) = silent_listener();
    let start = Instant::now();
    assert_eq!(dial_in_short(there), Err(LinkError::Silent(SHORT)));
    assert!(start.elapsed() >= SHORT);
}

#[test]
fn a_process_whose_queue_is_full_is_waited_for_and_not_longer() {
    let (there, listener) = silent_listener();
    rustix::net::listen(&listener, 0).expect("a listener");
    let mut filled = Vec::new();
    while let Ok(socket) = LinkSocket::connect(there) {
        filled.push(socket);
        assert!(filled.len() < 10, "the queue has no end");
    }
    let start = Instant::now();
    assert_eq!(dial_in_short(there), Err(LinkError::Busy(SHORT)));
    assert!(start.elapsed() >= SHORT);
}

#[test]
fn a_name_that_another_user_holds_is_not_dialed() {
    let there = gid();
    let listener = as_other_user(|| Listener::bind(there).expect("the name is free"));
    let Some(_listener) = listener else { return };
    assert_eq!(dial_in_short(there), Err(LinkError::OtherProcess));
}

#[test]
fn a_gid_of_another_host_is_not_dialed() {
    assert_eq!(dial_in_short(Gid([7; 16])), Err(LinkError::NotLocal));
}

#[test]
fn a_process_that_closes_the_link_may_have_another_version_and_the_error_names_this_one() {
    let error = dial_one_that_answers(None).unwrap_err();
    assert_eq!(error, LinkError::Closed);
    let sentence = error.to_string();
    assert!(sentence.contains(&Layouts::OWN.to_string()), "{sentence}");
}

#[test]
fn a_refusal_is_the_error() {
    let refusal = Refusal::Layouts(Layouts { min: 8, max: 9 });
    let answered = dial_one_that_answers(Some(LinkMessage::Refused(refusal)));
    assert_eq!(answered, Err(LinkError::Refused(refusal)));
}

#[test]
fn a_layout_that_this_version_does_not_have_is_not_accepted() {
    for chosen in [Layouts::OWN.min - 1, Layouts::OWN.max + 1] {
        let answered = dial_one_that_answers(Some(LinkMessage::Welcome {
            layout: chosen,
            limits: Limits::OWN,
        }));
        assert_eq!(answered, Err(LinkError::Layout { chosen }));
    }
}

#[test]
fn something_else_than_an_answer_is_garbage() {
    let answered = dial_one_that_answers(Some(LinkMessage::Wake));
    assert_eq!(answered, Err(LinkError::Garbage));
}

/// The threads that need one process wait for one of them; a thread that needs another process does
/// not wait at all.
#[test]
fn threads_share_one_attempt_and_hold_nobody_up() {
    let links = Links::default();
    let there = gid();
    let Access::Dial(dialing) = links.access(there) else {
        panic!("nobody else dials");
    };
    let waiting = AtomicU32::new(0);
    thread::scope(|scope| {
        let others: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| match links.access(there) {
                    Access::Wait(attempt) => {
                        waiting.fetch_add(1, Ordering::SeqCst);
                        attempt.wait(GREETING_TIME).and_then(Result::err)
                    }
                    _ => panic!("there is an attempt"),
                })
            })
            .collect();
        wait_until("all wait", || waiting.load(Ordering::SeqCst) == 4);
        let Access::Dial(other) = links.access(gid()) else {
            panic!("nobody dials another process");
        };
        drop(other);
        let result = dialing.finish(Err(LinkError::Closed));
        assert_eq!(result.err(), Some(LinkError::Closed));
        for other in others {
            assert_eq!(other.join().expect("no panic"), Some(LinkError::Closed));
        }
    });
    assert!(matches!(links.access(there), Access::Dial(_)), "next time");
}

#[test]
fn an_attempt_whose_thread_has_panicked_ends_for_all() {
    let links = Links::default();
    let there = gid();
    let dialing = links.access(there);
    let Access::Wait(attempt) = links.access(there) else {
        panic!("there is an attempt");
    };
    drop(dialing);
    let result = attempt.wait(SHORT).expect("a result");
    assert_eq!(result.err(), Some(LinkError::Abandoned));
}

#[test]
fn a_thread_waits_for_the_attempt_of_another_one_and_not_longer_than_its_time() {
    let links = Links::default();
    let there = gid();
    let _dialing = links.access(there);
    let Access::Wait(attempt) = links.access(there) else {
        panic!("there is an attempt");
    };
    assert!(attempt.wait(SHORT).is_none());
}

/// The attempt of a thread with little time does not end the one of a thread that has more.
#[test]
fn a_thread_with_more_time_dials_again() {
    let node = Accepting::new().node;
    let (there, _listener) = silent_listener();
    let Access::Dial(dialing) = node.links.access(there) else {
        panic!("nobody else dials");
    };
    thread::scope(|scope| {
        let claiming = scope.spawn(|| {
            let start = Instant::now();
            let error = node.claim(there, [7; 16], QpNum(5), 3 * SHORT).unwrap_err();
            (start.elapsed(), error)
        });
        thread::sleep(SHORT);
        assert!(dialing.finish(Err(LinkError::Silent(SHORT))).is_err());
        let (took, error) = claiming.join().expect("no panic");
        assert!(took >= 3 * SHORT && took < GREETING_TIME, "{took:?}");
        assert!(error.to_string().contains("has not answered"), "{error}");
    });
}

#[test]
fn a_node_dials_another_one_and_itself_over_one_link_each() {
    let mut here = Accepting::new();
    let mut there = Accepting::new();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (own, other) = (here.node.gid, there.node.gid);
    let node = Arc::clone(&here.node);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                here.step();
                there.step();
                thread::yield_now();
            }
        });
        let first = node.connect(other).expect("it answers");
        let again = node.connect(other).expect("it is there");
        assert!(Arc::ptr_eq(&first, &again));
        let to_itself = node.connect(own).expect("it answers");
        assert_eq!(to_itself.peer.gid, own);
        stop.store(true, Ordering::SeqCst);
    });
    // The other side uses the same link.
    let back = there.node.connect(own).expect("it is there");
    assert!(back.is_incoming);
    assert_eq!(back.peer.gid, own);
}

#[test]
fn a_link_of_a_peer_that_has_ended_meanwhile_is_not_kept() {
    let node = Accepting::new();
    let links = &node.node.links;
    for is_incoming in [true, false] {
        let gid = gid();
        let peer = node.node.peer(gid);
        let (here, there) = pair();
        let Access::Dial(dialing) = links.access(gid) else {
            panic!("nobody dials it");
        };
        node.node.end_peer(&peer);
        let link = Link::new(peer, u64::MAX, is_incoming, here, Limits::OWN);
        let link = Arc::new(link);
        if is_incoming {
            assert!(!links.add_incoming(&link));
            assert!(dialing.finish(Err(LinkError::Gone)).is_err());
        } else {
            let result = dialing.finish(Ok(Arc::clone(&link)));
            assert_eq!(result.err(), Some(LinkError::Gone));
        }
        assert!(links.all().is_empty());
        assert!(matches!(links.access(gid), Access::Dial(_)));
        drop(link);
        assert!(!is_open(&there));
    }
}
