//! Claims: which process may send a number, and when.

use std::sync::mpsc::{Receiver, channel};

use super::super::claims::AwaitedClaim;
use super::super::greeting::GREETING_TIME;
use super::super::links::Access;
use super::*;
use crate::types::QpNum;

/// The queue pair that is offered.
const QP_NUM: QpNum = QpNum(5);

/// Has a node wait for the claim of the process of `gid`.
fn awaited(node: &Accepting, gid: Gid) -> (AwaitedClaim, Receiver<bool>) {
    let (sender, claims) = channel();
    let on_claim = Box::new(move |is_its_own| {
        let _ = sender.send(is_its_own);
    });
    let awaited = node
        .node
        .expect_claim(gid, QP_NUM, on_claim)
        .expect("random bytes");
    (awaited, claims)
}

fn claim(socket: &LinkSocket, nonce: [u8; 16]) {
    claim_for(socket, nonce, QP_NUM);
}

fn claim_for(socket: &LinkSocket, nonce: [u8; 16], QpNum(qp_num): QpNum) {
    socket
        .send(LinkMessage::Claim { nonce, qp_num }, &[])
        .expect("room");
}

#[test]
fn a_claim_from_the_process_of_the_gid_is_its_own_and_counts_once() {
    let mut node = Accepting::new();
    let own = gid();
    let (awaited, claims) = awaited(&node, own);
    assert_eq!(awaited.own_gid(), node.node.gid);
    let socket = node.greeted(own);
    claim(&socket, [7; 16]);
    node.step();
    assert!(claims.try_recv().is_err(), "another number");
    assert!(is_open(&socket), "it may have come too late");
    claim(&socket, awaited.nonce());
    claim(&socket, awaited.nonce());
    node.step();
    assert_eq!(claims.iter().collect::<Vec<_>>(), [true]);
    assert!(is_open(&socket));
}

#[test]
fn a_claim_from_another_process_is_not_its_own() {
    let mut node = Accepting::new();
    let (awaited, claims) = awaited(&node, gid());
    let socket = node.greeted(gid());
    claim(&socket, awaited.nonce());
    node.step();
    assert_eq!(claims.iter().collect::<Vec<_>>(), [false]);
}

/// The process of the GID has offered another queue pair, to a stranger that offered this one.
#[test]
fn a_claim_for_another_queue_pair_is_none_for_the_offered_one() {
    let mut node = Accepting::new();
    let own = gid();
    let (awaited, claims) = awaited(&node, own);
    let socket = node.greeted(own);
    claim_for(&socket, awaited.nonce(), QpNum(QP_NUM.0 + 1));
    node.step();
    assert_eq!(claims.iter().collect::<Vec<_>>(), [false]);
    assert!(is_open(&socket), "its process has done nothing wrong");
}

#[test]
fn a_claim_that_comes_too_late_is_ignored() {
    let mut node = Accepting::new();
    let own = gid();
    let (awaited, claims) = awaited(&node, own);
    let nonce = awaited.nonce();
    drop(awaited);
    let socket = node.greeted(own);
    claim(&socket, nonce);
    node.step();
    assert_eq!(claims.iter().count(), 0);
    assert!(is_open(&socket));
}

/// The number must not arrive before the link is greeted: until then, nobody has checked the GID.
#[test]
fn a_claim_before_the_greeting_closes_the_link() {
    let mut node = Accepting::new();
    let own = gid();
    let (awaited, claims) = awaited(&node, own);
    let socket = node.connect();
    claim(&socket, awaited.nonce());
    hello(&socket, own);
    node.step();
    assert_eq!(received(&socket), None);
    assert!(claims.try_recv().is_err());
}

#[test]
fn a_node_claims_its_gid_over_a_link_that_it_dials() {
    let here = Accepting::new();
    let mut there = Accepting::new();
    let (awaited, claims) = awaited(&there, here.node.gid);
    thread::scope(|scope| {
        let claiming = scope.spawn(|| {
            here.node
                .claim(awaited.own_gid(), awaited.nonce(), QP_NUM, GREETING_TIME)
        });
        wait_until("the claim", || {
            there.step();
            claiming.is_finished()
        });
        claiming.join().expect("no panic").expect("it answers");
    });
    there.step();
    assert_eq!(claims.iter().collect::<Vec<_>>(), [true]);
}

/// A process that offers its GID and accepts no links would make this one wait for it. It need not
/// be dialed: to claim its GID, it has to make a link.
#[test]
fn a_process_that_offers_its_gid_is_not_dialed() {
    let node = Accepting::new();
    let (there, listener) = silent_listener();
    let (awaited, _claims) = awaited(&node, there);
    let error = node.node.connect(there).unwrap_err();
    assert!(error.to_string().contains("has closed its link"), "{error}");
    assert!(listener.accept().expect("a listener").is_none());
    let (again, _claims) = self::awaited(&node, there);
    drop(awaited);
    assert!(node.node.connect(there).is_err(), "it is still offered");
    drop(again);
    assert!(!node.node.claims.is_offered(there));
}

#[test]
fn a_process_that_offers_its_gid_is_reached_over_the_link_that_it_made() {
    let mut node = Accepting::new();
    let own = gid();
    let (_awaited, _claims) = awaited(&node, own);
    let _socket = node.greeted(own);
    let link = node.node.connect(own).expect("it has made one");
    assert!(link.is_incoming);
}

/// Another thread of this process may be dialing the process of an offered GID, in vain.
#[test]
fn a_claim_is_answered_on_its_link_whoever_dials() {
    let mut node = Accepting::new();
    let (there, listener) = silent_listener();
    let (_awaited, _claims) = awaited(&node, there);
    let links = Arc::clone(&node.node);
    let Access::Dial(_dialing) = links.links.access(there) else {
        panic!("nobody dials it");
    };
    let error = node.node.connect(there).unwrap_err();
    assert!(error.to_string().contains("has closed its link"), "{error}");
    let socket = node.greeted(there);
    let link = node.node.connect(there).expect("the link of the claim");
    assert!(link.is_incoming);
    assert!(listener.accept().expect("a listener").is_none());
    assert!(is_open(&socket));
}
