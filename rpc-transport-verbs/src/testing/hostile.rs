//! Attacks of a hostile peer on this crate, each as a function of bytes: in the handshake, and on the
//! liveness socket after it. The verbs crate has those on the software device.
//!
//! This module serves the crate's tests and, under `cfg(fuzzing)`, the fuzz targets of `fuzz/`,
//! which call the same functions; see `rpc_core_testing::hostile`. Each function panics if it
//! finds a violation of an invariant that must hold whatever a peer does.

use std::time::{Duration, Instant};

use rpc_core::Keepalive;
use rpc_core::for_testing::Script;

use crate::connect::handshake::choice;
use crate::connect::handshake::client::{ClientHandshake, ServerResponse};
use crate::connect::handshake::server::{Request, ServerHandshake};
use crate::connect::handshake::{
    Challenge, Endpoint, HandshakeError, MAGIC, Offer, VERSIONS, Welcome,
};
use crate::connect::keepalive::{ACK, ENQ, IntervalOutcome, KeepaliveState};
use crate::connect::link::{self, FirstBytes, LINK_HELLO_LEN};
use crate::transport::endpoint::DeviceAddress;

/// Feeds one side of the handshake with bytes in pieces: some raw, some as whole frames.
pub fn handshake(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let is_server = script.byte().is_multiple_of(2);
    let (mut server, mut client) = (ServerHandshake::default(), ClientHandshake::default());
    let (mut fed, mut has_hello, mut is_challenged) = (0, false, false);
    // Lossless: the version of a frame has 16 bits.
    let version = (VERSIONS.newest as u16).to_be_bytes();
    while let Some(step) = script.step() {
        let mut piece = Vec::new();
        match step % 4 {
            0 => piece.extend(script.piece()),
            1 => piece.extend([&MAGIC[..], &version, &[0, 0]].concat()),
            _ => {
                let message = if step % 4 == 2 {
                    script.piece()
                } else {
                    script.rest()
                };
                piece.extend([&MAGIC[..], &version].concat());
                // The cast is lossless: a script is shorter than the limit of a message.
                piece.extend((message.len() as u32).to_be_bytes());
                piece.extend([version, version].concat());
                piece.extend(message);
            }
        }
        // In two pieces, as a socket may deliver it.
        let cut = usize::from(step >> 2).min(piece.len());
        for piece in [&piece[..cut], &piece[cut..]] {
            fed += piece.len();
            let outcome = if is_server {
                server.handle(piece).map(|request| match request {
                    None => false,
                    Some(Request::Hello(offer)) => {
                        assert!(!std::mem::replace(&mut has_hello, true), "one hello");
                        answer(offer);
                        false
                    }
                    Some(Request::Ready) => {
                        assert!(has_hello, "nobody is ready before the hello");
                        true
                    }
                })
            } else {
                client.handle(piece).map(|answer| match answer {
                    None => false,
                    Some(ServerResponse::Welcome(welcome)) => {
                        assert_same(welcome);
                        true
                    }
                    Some(ServerResponse::Challenge(challenge)) => {
                        assert!(
                            !std::mem::replace(&mut is_challenged, true),
                            "one challenge"
                        );
                        assert_same_challenge(&challenge);
                        false
                    }
                    Some(ServerResponse::Refused(_)) => true,
                })
            };
            match outcome {
                Ok(false) => {}
                Ok(true) => {
                    let rest = server.into_rest();
                    assert!(rest.len() <= fed);
                    return;
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    // The error as the client would receive it.
                    assert!(!server.refuse(&error.to_string()).is_empty());
                    return;
                }
            }
        }
    }
}

/// Encodes an accepted challenge again: it has to be the same one.
fn assert_same_challenge(challenge: &Challenge) {
    let frame = ServerHandshake::default().challenge(challenge);
    match ClientHandshake::default().handle(&frame.expect("it is short")) {
        Ok(Some(ServerResponse::Challenge(again))) => assert!(again == *challenge),
        other => panic!("what was taken is not taken again: {other:?}"),
    }
}

/// Processes an accepted hello as a server does.
fn answer(offer: Offer) {
    let hello = ClientHandshake::default().hello(offer.clone());
    match ServerHandshake::default().handle(&hello.unwrap_or_default()) {
        Ok(Some(Request::Hello(again))) => assert_eq!(again, offer),
        // Encoded again after validation, it may be a few bytes longer than the original.
        Err(HandshakeError::TooLong { len, limit }) => assert!(len > limit),
        Ok(None) => {}
        other => panic!("what was taken is not taken again: {other:?}"),
    }
    for gid in [[0; 16], *b"0123456789abcdef"] {
        for kind in ["soft", "tcp", "roce", "infiniband"] {
            let address = DeviceAddress {
                kind,
                device: "here",
                gid,
            };
            match choice::matching_endpoints(address, &offer.endpoints) {
                Ok(fit) => {
                    for index in fit {
                        assert_eq!(offer.endpoints[index].kind, kind);
                    }
                }
                Err(mismatch) => assert!(!mismatch.to_string().is_empty()),
            }
        }
    }
    let _ = choice::list(offer.endpoints.iter().map(Endpoint::device_address));
}

fn assert_same(welcome: Welcome) {
    let frame = ServerHandshake::default().welcome(welcome.clone());
    let frame = frame.unwrap_or_default();
    match ClientHandshake::default().handle(&frame) {
        Ok(Some(ServerResponse::Welcome(again))) => assert_eq!(again, welcome),
        Ok(None) => assert!(frame.is_empty(), "it was too long to be sent"),
        other => panic!("what was taken is not taken again: {other:?}"),
    }
}

/// Examines the first bytes of a TCP connection, as many as have arrived each time: what a server does
/// before it knows whether the connection is for calls.
pub fn first_bytes(bytes: &[u8]) {
    let mut is_other = false;
    for len in 0..=bytes.len().min(2 * LINK_HELLO_LEN) {
        let first = &bytes[..len];
        let examined = link::examine(first);
        // More bytes turn no other connection into one for calls.
        assert!(!is_other || examined == FirstBytes::Other);
        match examined {
            FirstBytes::Other => is_other = true,
            FirstBytes::Incomplete => assert!(len < LINK_HELLO_LEN),
            FirstBytes::OtherVersion(_) => assert_eq!(len, LINK_HELLO_LEN),
            FirstBytes::Link(secret) => {
                assert_eq!(link::examine(&secret.hello()), FirstBytes::Link(secret));
                assert_eq!(secret.0, first[LINK_HELLO_LEN - 16..]);
            }
        }
    }
}

/// Feeds the liveness socket after the handshake: bytes, and intervals that expire. Checks the
/// outcome against the rules in `proto/handshake.proto`.
pub fn keepalive(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let shape = script.byte();
    let is_server = shape & 2 != 0;
    let intervals = u32::from(script.byte() % 8).max(2);
    let keepalive = (shape & 4 != 0).then_some(Keepalive {
        every: Duration::from_secs(1),
        gone_after: Duration::from_secs(1) * intervals,
    });
    let mut now = Instant::now();
    let mut keepalive_state = match is_server {
        true => KeepaliveState::with_server(keepalive, now),
        false => KeepaliveState::with_client(keepalive, now),
    };
    // The model: whether a response is due, whether anything was received, and the number of
    // intervals since the ENQ.
    let (mut is_enq_in_flight, mut is_heard, mut missed) = (false, is_server, 0);
    if keepalive_state.sends_first_enq() {
        assert!(is_server);
        keepalive_state.enq_sent();
        is_enq_in_flight = true;
    }
    while let Some(step) = script.step() {
        if step.is_multiple_of(4) {
            now += Duration::from_millis(u64::from(step) * 10);
            match keepalive_state.end_interval(now) {
                IntervalOutcome::Wait => missed += u32::from(is_enq_in_flight),
                IntervalOutcome::SendEnq => {
                    assert!(is_heard && !is_enq_in_flight && keepalive.is_some());
                    // The script decides whether the socket accepted the byte.
                    if step & 4 == 0 {
                        keepalive_state.enq_sent();
                        is_enq_in_flight = true;
                    }
                }
                IntervalOutcome::Silent(silence) => {
                    assert!(is_enq_in_flight && missed + 1 >= intervals && keepalive.is_some());
                    assert!(silence <= now.elapsed() + Duration::from_secs(3600));
                    return;
                }
            }
            continue;
        }
        let received = match step % 4 {
            1 => &[ENQ][..],
            2 => &[ACK],
            _ => script.piece(),
        };
        let questions = received.iter().filter(|byte| **byte == ENQ).count();
        let answers = received.iter().filter(|byte| **byte == ACK).count();
        let may_come = questions + answers == received.len()
            && questions <= 1
            && answers <= usize::from(is_enq_in_flight);
        match keepalive_state.handle_bytes(received, now) {
            Ok(answer) => {
                assert!(may_come || received.is_empty());
                assert_eq!(answer, questions == 1);
            }
            Err(_) => return assert!(!may_come),
        }
        if !received.is_empty() {
            is_heard = true;
            missed = 0;
        }
        is_enq_in_flight &= answers == 0;
    }
}

#[cfg(test)]
mod tests {
    //! Run the functions of the fuzz targets on random bytes and on everything that the fuzzers
    //! have found worth keeping.

    use std::path::Path;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Runs every file of a target's corpus.
    fn replay(target: &str, run: fn(&[u8])) {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../fuzz/corpus")
            .join(target);
        let mut count = 0;
        for entry in directory.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            // The panic's own message says what is wrong; this assertion adds the file.
            let outcome = std::panic::catch_unwind(|| run(&bytes));
            assert!(outcome.is_ok(), "{} fails", path.display());
            count += 1;
        }
        assert!(count > 0, "{} is empty", directory.display());
    }

    #[test]
    fn corpus_of_handshakes() {
        replay("handshake", handshake);
    }

    #[test]
    fn corpus_of_first_bytes() {
        replay("first_bytes", first_bytes);
    }

    #[test]
    fn corpus_of_keepalives() {
        replay("keepalive", keepalive);
    }

    proptest! {
        #[test]
        fn any_script_of_a_handshake(bytes in vec(any::<u8>(), 0..300)) {
            handshake(&bytes);
        }

        #[test]
        fn any_first_bytes(
            beginning in proptest::sample::select(vec![&b""[..], b"VBLK", b"VBLK\0\x01", b"VBLT\x01\0"]),
            rest in vec(any::<u8>(), 0..80),
        ) {
            first_bytes(&[beginning, &rest].concat());
        }

        #[test]
        fn any_script_of_a_keepalive(bytes in vec(any::<u8>(), 0..100)) {
            keepalive(&bytes);
        }
    }
}
