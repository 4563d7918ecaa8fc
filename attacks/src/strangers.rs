//! Attacks by processes without any right on the server: another user of the host.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, connect, recv};

use super::formats;
use super::formats::handshake::{self, Body};
use super::peer::{link_socket, listen_as, offer, tcp, tcp_from_another_host};
use crate::attack::Target;
use benches::Outcome;
use benches::in_flight::allow_more_files;

/// Pause between two rounds of an attack.
const PAUSE: Duration = Duration::from_millis(20);

/// Connections to the server that wait for something.
#[derive(Debug, Default)]
struct Waiting(VecDeque<TcpStream>);

impl Waiting {
    fn add(&mut self, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        self.0.push_back(stream);
        Ok(())
    }

    /// Drops the connections that the server has closed or answered, and returns their number.
    fn drop_answered(&mut self) -> usize {
        let before = self.0.len();
        self.0.retain(|mut stream| {
            matches!(stream.read(&mut [0; 256]), Err(error)
                if error.kind() == io::ErrorKind::WouldBlock)
        });
        before - self.0.len()
    }
}

/// Listens under names of its own with full backlogs, and offers these names to the server.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn block(target: &Target, time: Duration) -> Outcome<String> {
    const NAMES: u32 = 8;
    let end = Instant::now() + time;
    let mut held: Vec<OwnedFd> = Vec::new();
    let mut gids = Vec::new();
    let server = formats::gids_of(target.pid)?[0];
    for number in 0..NAMES {
        let gid = formats::own_gid(&server, number);
        held.push(listen_as(&gid, 0)?);
        // Fill the backlog.
        loop {
            let socket = link_socket(SocketFlags::NONBLOCK)?;
            match connect(&socket, &formats::socket_of(&gid)?) {
                Ok(()) => held.push(socket),
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        gids.push(gid);
    }
    let (mut waiting, mut offers, mut answers) = (Waiting::default(), 0, 0);
    while Instant::now() < end {
        answers += waiting.drop_answered();
        while waiting.0.len() < 16 {
            let Ok(stream) = tcp(&target.address) else {
                break;
            };
            let gid = &gids[offers % gids.len()];
            if handshake::send_frame(&stream, handshake::client_hello("soft", gid, 100, 5)).is_err()
            {
                break;
            }
            waiting.add(stream)?;
            offers += 1;
        }
        thread::sleep(PAUSE);
    }
    Ok(format!("{offers} offers, {answers} answered"))
}

/// Offers the server's own GID, and holds every connection that it gets.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn slots(target: &Target, time: Duration) -> Outcome<String> {
    let end = Instant::now() + time;
    let gid = formats::gids_of(target.pid)?[0];
    let (mut held, mut waiting, mut reason) = (Vec::new(), Waiting::default(), String::new());
    let mut number = 100;
    while Instant::now() < end {
        waiting.drop_answered();
        number += 1;
        let Ok(stream) = tcp(&target.address) else {
            thread::sleep(PAUSE);
            continue;
        };
        handshake::send_frame(&stream, handshake::client_hello("soft", &gid, number, 5))?;
        reason = match handshake::receive_frame(&stream) {
            Ok(Body::ServerHello(_)) => {
                handshake::send_frame(&stream, Body::Ready(handshake::Ready {}))?;
                held.push(stream);
                continue;
            }
            // There is no proof that the GID is this process's.
            Ok(Body::Challenge(_)) => {
                waiting.add(stream)?;
                "the server wants a proof".to_owned()
            }
            Ok(Body::Refusal(refusal)) => refusal.reason,
            Ok(other) => format!("{other:?}"),
            Err(error) => error.to_string(),
        };
        thread::sleep(PAUSE);
    }
    Ok(format!(
        "{} connections held, {} wait; then: {reason}",
        held.len(),
        waiting.0.len()
    ))
}

/// Opens links to the server and says nothing.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn files(target: &Target, time: Duration) -> Outcome<String> {
    allow_more_files()?;
    let end = Instant::now() + time;
    let address = formats::socket_of(&formats::gids_of(target.pid)?[0])?;
    let (mut links, mut made, mut most): (Vec<OwnedFd>, u64, usize) = (Vec::new(), 0, 0);
    while Instant::now() < end {
        for _ in 0..64 {
            let connected = link_socket(SocketFlags::NONBLOCK).ok().filter(|link| {
                let outcome = connect(link, &address);
                outcome.is_ok()
            });
            match connected {
                Some(link) => links.push(link),
                None => break,
            }
            made += 1;
        }
        thread::sleep(Duration::from_millis(1));
        if made % 1024 < 64 {
            links.retain(|link| !is_closed(link));
        }
        most = most.max(links.len());
    }
    Ok(format!("{made} links made, {most} held at most"))
}

fn is_closed(link: impl AsFd) -> bool {
    !matches!(
        recv(link, &mut [0; 64][..], RecvFlags::DONTWAIT),
        Err(Errno::AGAIN)
    )
}

/// Pretends to be many peers, none of which ever reads its link.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn refs(target: &Target, time: Duration) -> Outcome<String> {
    const PEERS: u32 = 66;
    const PATIENCE: Duration = Duration::from_secs(1);
    let server = formats::gids_of(target.pid)?[0];
    let end = Instant::now() + time;
    let (mut held, mut waiting) = (Vec::new(), Waiting::default());
    let (mut accepted, mut refused) = (0, 0);
    for number in 0.. {
        if Instant::now() >= end {
            break;
        }
        if number >= PEERS {
            thread::sleep(PAUSE);
            continue;
        }
        let gid = formats::own_gid(&server, number);
        let stream = tcp(&target.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // The link is never read after its greeting.
        let link = offer(&stream, &gid);
        match (link, handshake::receive_frame(&stream)) {
            (Ok(link), Ok(Body::ServerHello(_))) => {
                held.push(link);
                accepted += 1;
            }
            _ => refused += 1,
        }
        waiting.add(stream)?;
    }
    Ok(format!("{accepted} peers accepted, {refused} not"))
}

/// Opens TCP connections that never send a byte, or that stop in the middle of the secret of a connection
/// for calls, in turn: more than a server accepts.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn half_open(target: &Target, time: Duration) -> Outcome<String> {
    const MOST: usize = 10_000;
    allow_more_files()?;
    let end = Instant::now() + time;
    let (mut waiting, mut made, mut closed) = (Waiting::default(), 0, 0);
    while Instant::now() < end {
        match tcp(&target.address) {
            Ok(mut stream) => {
                if made % 2 == 1 {
                    let hello = formats::tcp::hello(&[0xa5; 16]);
                    // The server may have closed it.
                    let _ = stream.write_all(&hello[..hello.len() / 2]);
                }
                waiting.add(stream)?;
            }
            Err(_) => thread::sleep(PAUSE),
        }
        made += 1;
        // Rarely, because this costs a system call for each connection.
        if waiting.0.len() == MOST {
            closed += waiting.drop_answered();
            thread::sleep(PAUSE);
        }
    }
    closed += waiting.drop_answered();
    Ok(format!(
        "{made} connections, of which the server closed {closed}"
    ))
}

/// Keeps different numbers of such connections open in turn, so that the server has every small
/// number of files left at some time. They come from another address than the clients: with few files,
/// a host has few handshakes, and its newest may take the places of its others.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn few_files(target: &Target, time: Duration) -> Outcome<String> {
    const MOST: usize = 40;
    let end = Instant::now() + time;
    let (mut waiting, mut made) = (Waiting::default(), 0);
    for count in (0..MOST).cycle() {
        if Instant::now() >= end {
            break;
        }
        waiting.drop_answered();
        waiting.0.truncate(count);
        while waiting.0.len() < count {
            waiting.add(tcp_from_another_host(&target.address)?)?;
            made += 1;
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(format!("{made} connections made"))
}
