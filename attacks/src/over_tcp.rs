//! Attacks on a server that accepts calls over TCP, by whoever can reach its port.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use super::formats::tcp::{self, Header, OPCODES};
use super::peer::tcp as dial;
use super::tcp_peer::{TcpPeer, offer};
use crate::attack::Target;
use benches::Outcome;
use benches::in_flight::allow_more_files;

/// Pause between two rounds of an attack.
const PAUSE: Duration = Duration::from_millis(20);

/// Begins handshakes, and never dials the link that the server waits for; dials links with secrets
/// that the server has not given to anybody.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn unclaimed(target: &Target, time: Duration) -> Outcome<String> {
    /// Connections that are held at a time.
    const MOST: usize = 2000;
    allow_more_files()?;
    let end = Instant::now() + time;
    let (mut held, mut welcomes, mut guesses) = (Vec::new(), 0, 0_u64);
    let mut reason = "none".to_owned();
    while Instant::now() < end {
        let Ok(stream) = dial(&target.address) else {
            thread::sleep(PAUSE);
            continue;
        };
        match offer(&stream) {
            Ok(_) => welcomes += 1,
            Err(error) => reason = error.to_string(),
        }
        held.push(stream);
        if let Ok(mut guess) = dial(&target.address) {
            let mut secret = [0xa5; 16];
            secret[..8].copy_from_slice(&guesses.to_le_bytes());
            // The server may have closed it.
            let _ = guess.write_all(&tcp::hello(&secret));
            held.push(guess);
            guesses += 1;
        }
        if held.len() > MOST {
            held.drain(..MOST / 2);
        }
    }
    Ok(format!(
        "{welcomes} queue pairs prepared for nobody, {guesses} guessed secrets; last refusal: {reason}"
    ))
}

/// The lies of [`lies`].
const LIES: [&str; 9] = [
    "an unknown opcode",
    "a gap in the sequence",
    "a length beyond every limit",
    "a WRITE without a key",
    "a READ without a key",
    "an atomic without a key",
    "a response that nobody waits for",
    "an acknowledgement of requests to come",
    "garbage",
];

/// Returns a message that no honest peer sends.
fn lie(number: usize, peer: &TcpPeer) -> Vec<u8> {
    let (sequence, acked) = (peer.next_request, peer.next_message);
    let honest = Header::send(0, sequence, acked);
    let made_up = |opcode, len| Header {
        opcode,
        len,
        address: 0x7f00_0000_1000,
        key: 0x1234_5678,
        ..honest
    };
    match number {
        0 => [200; 48].to_vec(),
        1 => Header::send(0, sequence.wrapping_add(7), acked).encode(),
        2 => Header::send(usize::MAX, sequence, acked).encode(),
        3 => [made_up(3, 64).encode(), vec![0xee; 64]].concat(),
        4 => made_up(5, 1 << 20).encode(),
        5 => made_up(7, 0).encode(),
        6 => [made_up(8, 64).encode(), vec![0xee; 64]].concat(),
        7 => Header {
            opcode: 9,
            acked: acked.wrapping_add(1000),
            ..honest
        }
        .encode(),
        _ => (0..512_u32).map(|byte| (byte * 31 % 251) as u8).collect(),
    }
}

/// Connects by the rules, tells one lie, and connects again for the next one.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn lies(target: &Target, time: Duration) -> Outcome<String> {
    let end = Instant::now() + time;
    let (mut told, mut believed) = (0, Vec::new());
    while Instant::now() < end {
        let number = told % LIES.len();
        let mut peer = TcpPeer::connect(target, dial)?;
        let message = lie(number, &peer);
        // The server may close the link in the middle.
        let _ = peer.send(&message);
        if peer.wait_for_end().is_err() && !believed.contains(&LIES[number]) {
            believed.push(LIES[number]);
        }
        told += 1;
    }
    let believed = match believed.is_empty() {
        true => "each of them ended its connection".to_owned(),
        false => format!("BELIEVED: {}", believed.join(", ")),
    };
    Ok(format!("{told} lies, {believed}"))
}

/// Connects by the rules, and stops in the middle of a message of each kind.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn halves(target: &Target, time: Duration) -> Outcome<String> {
    /// Connections that are held at a time.
    const MOST: usize = 200;
    let end = Instant::now() + time;
    let (mut held, mut made) = (Vec::new(), 0);
    while Instant::now() < end {
        if held.len() == MOST {
            thread::sleep(PAUSE);
            continue;
        }
        let Ok(mut peer) = TcpPeer::connect(target, dial) else {
            // The server has as many connections as it takes.
            thread::sleep(PAUSE);
            continue;
        };
        let header = Header {
            opcode: made as u8 % OPCODES,
            address: 0x1000,
            ..Header::send(4096, peer.next_request, peer.next_message)
        };
        let mut message = header.encode();
        message.extend([0xee; 4096]);
        // In the header, and behind it.
        let cut = if made / usize::from(OPCODES) % 2 == 0 {
            13
        } else {
            60
        };
        // The server ends the link if the header alone is a lie.
        let _ = peer.send(&message[..cut]);
        held.push(peer);
        made += 1;
    }
    Ok(format!("{made} peers stopped in the middle of a message"))
}

/// Connects by the rules, sends requests, and reads no response.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn deaf(target: &Target, time: Duration) -> Outcome<String> {
    /// Connections that are held at a time.
    const MOST: usize = 64;
    let end = Instant::now() + time;
    let (mut held, mut requests): (Vec<TcpPeer>, u64) = (Vec::new(), 0);
    while Instant::now() < end {
        if held.len() < MOST {
            // Fails if the server has as many connections as it takes.
            held.extend(TcpPeer::connect(target, dial).ok());
        }
        for peer in &mut held {
            // One whose link is full or closed is left alone.
            requests += u64::from(peer.request().is_ok());
        }
        thread::sleep(PAUSE);
    }
    Ok(format!(
        "{} peers sent {requests} requests and read nothing",
        held.len()
    ))
}

/// Connects by the rules, again and again, and does nothing more. Returns the number of connections.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn crowd(time: Duration, connect: impl Fn() -> Outcome<TcpPeer>) -> Outcome<u64> {
    /// Connections that are held at a time.
    const MOST: usize = 200;
    let end = Instant::now() + time;
    let (mut held, mut made) = (Vec::new(), 0);
    while Instant::now() < end {
        match connect() {
            Ok(peer) => {
                held.push(peer);
                made += 1;
            }
            // The server has as many connections as it takes.
            Err(_) => thread::sleep(PAUSE),
        }
        if held.len() > MOST {
            held.drain(..MOST / 2);
        }
    }
    Ok(made)
}
