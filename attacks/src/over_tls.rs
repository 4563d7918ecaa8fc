//! Attacks on a server with TLS, by whoever can reach its port and has no certificate.

use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use benches::Outcome;
use benches::in_flight::allow_more_files;
use verbline_tls::{ClientTls, Handshake, Progress, Roots};

use super::peer::tcp;
use crate::attack::Target;

/// Connections that are held at a time.
const MOST: usize = 10_000;

/// Returns a hello that a client of TLS says.
fn hello() -> Outcome<Vec<u8>> {
    let authority = tls_testing::Authority::new("nobody's");
    let tls = ClientTls::new(Roots::from_pem(authority.pem().as_bytes())?);
    let mut said = Vec::new();
    match Handshake::of_client(&tls, "127.0.0.1")?.advance(&mut Vec::new(), &mut said)? {
        Progress::Waits(_) => Ok(said),
        Progress::Done(_) => Err("a handshake has ended with its first message".into()),
    }
}

/// Opens connections that stop in the middle of the first message, as many as it may, and again those that
/// the server has closed.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn half_hellos(target: &Target, time: Duration) -> Outcome<String> {
    let hello = hello()?;
    let made = begin(target, time, &hello[..hello.len() / 2], Duration::ZERO)?;
    Ok(format!(
        "{made} connections stopped in the middle of a hello"
    ))
}

/// Says a whole hello on a new connection each millisecond, for which the server signs its answer.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn hellos(target: &Target, time: Duration) -> Outcome<String> {
    let made = begin(target, time, &hello()?, Duration::from_millis(1))?;
    let rate = made as f64 / time.as_secs_f64();
    Ok(format!("{made} hellos without an end, {rate:.0} a second"))
}

/// Opens connections, says `first` on each, and reads nothing. Returns their number.
fn begin(target: &Target, time: Duration, first: &[u8], pause: Duration) -> Outcome<u32> {
    allow_more_files()?;
    let start = Instant::now();
    let (mut held, mut made) = (VecDeque::<TcpStream>::new(), 0);
    while start.elapsed() < time {
        // The attacker is stopped in between, and may make up for it.
        if let Some(early) = (pause * made).checked_sub(start.elapsed()) {
            thread::sleep(early);
        }
        if let Ok(mut stream) = tcp(&target.address) {
            // The server may have closed it.
            let _ = stream.write_all(first);
            held.push_back(stream);
        }
        if held.len() > MOST {
            held.pop_front();
        }
        made += 1;
    }
    Ok(made)
}
