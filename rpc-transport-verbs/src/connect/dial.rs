//! Dials a server: looks its name up, and connects to the first of its addresses that answers.
//!
//! All addresses of a name share one time limit, as RFC 8305 has it. The attempts begin one after the
//! other, a stagger apart, with the two families in turn, and go on side by side. The first connection
//! that is established is used, and the others are closed. So an address that leads nowhere costs the
//! stagger instead of the whole time.

use std::fmt::Write;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rpc_core::transport::ConnectError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use verbline_verbs::for_transport::keep_from_children;

use super::address;
use super::exchange::Deadline;

/// Time between the beginnings of two attempts, if there is time for all: RFC 8305's recommended
/// "Connection Attempt Delay".
const STAGGER: Duration = Duration::from_millis(250);

/// Maximum of one wait: an attempt that may take for ever is waited for again and again.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Opens a TCP connection to the first address of `host:port` that answers.
pub(super) fn dial(
    address: &str,
    (timeout, deadline): (Duration, &Deadline),
) -> Result<(TcpStream, SocketAddr), ConnectError> {
    let wrong = |source: io::Error| {
        let address = address.to_owned();
        match source.kind() {
            // It was not looked up.
            io::ErrorKind::InvalidInput => ConnectError::Address { address, source },
            _ => ConnectError::Unresolved { address, source },
        }
    };
    let left = deadline.left().unwrap_or(Duration::ZERO);
    let addresses = address::resolve_within(address, left).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => wrong(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("the name service did not answer within {timeout:?}, the `connect_timeout`"),
        )),
        _ => wrong(error),
    })?;
    if addresses.is_empty() {
        return Err(wrong(io::Error::other("the name resolves to no address")));
    }
    Race::new(interleaved(&addresses), deadline)
        .run()
        .map_err(|lost| ConnectError::Unreachable {
            address: address.to_owned(),
            source: lost.into_error(addresses.len(), timeout),
        })
}

/// Returns the addresses with the two families in turn. Their order is the resolver's otherwise, which
/// knows the routes.
fn interleaved(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_of_first = |address: &SocketAddr| address.is_ipv6() == addresses[0].is_ipv6();
    let (first, other): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(is_of_first);
    let (mut first, mut other) = (first.into_iter(), other.into_iter());
    let mut all = Vec::with_capacity(addresses.len());
    while all.len() < addresses.len() {
        all.extend(first.next().into_iter().chain(other.next()));
    }
    all
}

/// Opens another connection to the address of an established one.
pub(super) fn dial_again(
    remote: SocketAddr,
    (timeout, deadline): (Duration, &Deadline),
) -> io::Result<TcpStream> {
    let winner = Race::new(vec![remote], deadline).run();
    let (stream, _) = winner.map_err(|lost| lost.into_error(1, timeout))?;
    Ok(stream)
}

/// The attempts to connect to the addresses of one name.
struct Race<'a> {
    deadline: &'a Deadline,
    /// The addresses that were not tried, the next one last.
    untried: Vec<SocketAddr>,
    stagger: Duration,
    /// When the next attempt begins.
    next: Instant,
    attempts: Vec<(TcpStream, SocketAddr)>,
    lost: Lost,
}

/// Why no address was reached.
#[derive(Default)]
struct Lost {
    /// The error of each attempt that has failed.
    failed: Vec<(SocketAddr, io::Error)>,
    /// The addresses that have not answered in time.
    silent: Vec<SocketAddr>,
    /// This process could not begin an attempt, whatever the address.
    own: Option<io::Error>,
}

impl<'a> Race<'a> {
    fn new(mut addresses: Vec<SocketAddr>, deadline: &'a Deadline) -> Self {
        let left = deadline.left().unwrap_or(Duration::ZERO);
        // Half of the time is for the last one.
        let share = left / (2 * u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1));
        addresses.reverse();
        Self {
            deadline,
            untried: addresses,
            stagger: STAGGER.min(share),
            next: Instant::now(),
            attempts: Vec::new(),
            lost: Lost::default(),
        }
    }

    fn run(mut self) -> Result<(TcpStream, SocketAddr), Lost> {
        loop {
            self.begin_what_is_due();
            if self.attempts.is_empty() {
                return Err(self.lost);
            }
            let Ok(left) = self.deadline.left() else {
                let silent = self.attempts.iter().map(|(_, remote)| *remote);
                self.lost.silent.extend(silent.chain(self.untried));
                return Err(self.lost);
            };
            if let Some(winner) = self.wait(left) {
                return Ok(winner);
            }
        }
    }

    /// Begins the next attempt if it is time, or if no other one is in progress.
    fn begin_what_is_due(&mut self) {
        while self.attempts.is_empty() || self.next <= Instant::now() {
            let Some(remote) = self.untried.pop() else {
                return;
            };
            match begin(remote) {
                Ok(stream) => {
                    self.attempts.push((stream, remote));
                    self.next = Instant::now() + self.stagger;
                }
                Err(Begin::Address(error)) => self.lost.failed.push((remote, error)),
                Err(Begin::Process(error)) => {
                    self.lost.own = Some(error);
                    self.untried.clear();
                }
            }
        }
    }

    /// Waits until an attempt has ended, the next one begins or the time is up. Returns the connection
    /// of an attempt that has succeeded.
    fn wait(&mut self, left: Duration) -> Option<(TcpStream, SocketAddr)> {
        let until_next = self.next.saturating_duration_since(Instant::now());
        let wait = match self.untried.is_empty() {
            true => left,
            false => left.min(until_next),
        };
        let timeout = Timespec::try_from(wait.min(LONGEST_WAIT)).ok();
        let streams = self.attempts.iter().map(|(stream, _)| stream);
        let mut files: Vec<_> = streams
            .map(|stream| PollFd::new(stream, PollFlags::OUT))
            .collect();
        // An error of the wait is one of the process, and ends no attempt: each is looked at.
        let _ = poll(&mut files, timeout.as_ref());
        let has_ended: Vec<_> = files
            .iter()
            .map(|file| !file.revents().is_empty())
            .collect();
        let mut has_ended = has_ended.into_iter();
        let mut winner = None;
        let mut in_progress = Vec::new();
        for (stream, remote) in self.attempts.drain(..) {
            if !has_ended.next().unwrap_or(false) {
                in_progress.push((stream, remote));
                continue;
            }
            match finish(&stream) {
                Ok(()) if winner.is_none() => winner = Some((stream, remote)),
                Ok(()) => {}
                Err(error) => {
                    self.lost.failed.push((remote, error));
                    // The next one need not wait for its turn.
                    self.next = Instant::now();
                }
            }
        }
        self.attempts = in_progress;
        winner
    }
}

/// Why an attempt could not begin.
enum Begin {
    /// The address cannot be reached from here.
    Address(io::Error),
    /// This process or its machine lacks something, whatever the address.
    Process(io::Error),
}

/// Begins to connect.
fn begin(remote: SocketAddr) -> Result<TcpStream, Begin> {
    let family = match remote {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None);
    let socket = socket.map_err(|error| match error {
        // A machine without the family may have the other one.
        Errno::AFNOSUPPORT => Begin::Address(error.into()),
        _ => Begin::Process(error.into()),
    })?;
    keep_from_children(&socket).map_err(|error| Begin::Process(error.into()))?;
    match connect(&socket, &remote) {
        // An interrupted attempt goes on, too.
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket.into()),
        Err(error) => Err(Begin::Address(error.into())),
    }
}

/// Ends an attempt that the system has decided, and prepares the socket for a handshake, which blocks.
fn finish(stream: &TcpStream) -> io::Result<()> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    // Linux may report a socket as writable that is not connected.
    stream.peer_addr()?;
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)
}

/// What each address of a name did.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct OfAddresses {
    text: String,
    /// The system's error for the last one, which says what to do about it, if all have failed.
    source: Option<io::Error>,
}

impl Lost {
    /// Returns one error for all `count` addresses. If there is one error, it is that.
    fn into_error(self, count: usize, timeout: Duration) -> io::Error {
        let Self {
            mut failed,
            silent,
            own,
        } = self;
        if let Some(error) = own {
            return error;
        }
        if count == 1
            && let Some((_, error)) = failed.pop()
        {
            return error;
        }
        let kind = failed
            .last()
            .map_or(io::ErrorKind::TimedOut, |(_, error)| error.kind());
        let mut text = String::new();
        for (remote, error) in &failed {
            // Writing to a string does not fail.
            let _ = write!(text, "{remote}: {error}; ");
        }
        let who = match &silent[..] {
            [] => None,
            [_] if count == 1 => Some(String::new()),
            some => {
                let some: Vec<_> = some.iter().map(SocketAddr::to_string).collect();
                Some(format!(" from {}", some.join(" and ")))
            }
        };
        match who {
            Some(who) => {
                let _ = write!(
                    text,
                    "no answer{who} within {timeout:?}, the `connect_timeout`"
                );
            }
            None => text.truncate(text.len().saturating_sub(2)),
        }
        // If some did not answer, that is what to see to.
        let latest = failed.pop().filter(|_| silent.is_empty());
        let source = latest.map(|(_, error)| error);
        io::Error::new(kind, OfAddresses { text, source })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A port of `127.0.0.<host>` that answers nobody: its queue of connections is full, so the system
    /// drops the packets of further ones.
    struct Silent {
        address: SocketAddr,
        _queued: (TcpListener, Vec<TcpStream>),
    }

    impl Silent {
        fn new(host: u8) -> Self {
            let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
            rustix::net::listen(&listener, 0).unwrap();
            let address = listener.local_addr().unwrap();
            let queued = (0..3).map(|_| match begin(address) {
                Ok(stream) => stream,
                Err(_) => panic!("the queue is full"),
            });
            let queued = queued.collect();
            std::thread::sleep(Duration::from_millis(50));
            Self {
                address,
                _queued: (listener, queued),
            }
        }
    }

    fn race(addresses: &[SocketAddr], time: Duration) -> Result<SocketAddr, io::Error> {
        let deadline = Deadline::after(time);
        let race = Race::new(interleaved(addresses), &deadline);
        let run = race.run();
        run.map(|(_, remote)| remote)
            .map_err(|lost| lost.into_error(addresses.len(), time))
    }

    #[test]
    fn families_take_turns_and_keep_their_order() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let [a, b, c, d] = ["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"].map(address);
        assert_eq!(interleaved(&[a, b, c, d]), [a, d, b, c]);
        assert_eq!(interleaved(&[d, a, b]), [d, a, b]);
        assert_eq!(interleaved(&[a]), [a]);
    }

    /// An address that leads nowhere cost all of the time before, and the next one was never tried.
    #[test]
    fn addresses_that_answer_nobody_leave_time_for_the_good_one() {
        let silent = [Silent::new(1), Silent::new(2), Silent::new(3)];
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = good.local_addr().unwrap();
        let mut addresses: Vec<_> = silent.iter().map(|silent| silent.address).collect();
        addresses.push(good);
        for time in [Duration::from_secs(10), Duration::MAX] {
            let start = Instant::now();
            assert_eq!(race(&addresses, time).unwrap(), good);
            let stagger = STAGGER.min(time / 8);
            assert!(start.elapsed() >= 3 * stagger, "they begin in turn");
        }
    }

    #[test]
    fn an_address_that_refuses_gives_the_next_one_its_turn_at_once() {
        let refusing = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = refusing.local_addr().unwrap();
        drop(refusing);
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = good.local_addr().unwrap();
        assert_eq!(
            race(&[closed, good], Duration::from_secs(10)).unwrap(),
            good
        );
        let error = race(&[closed], Duration::from_secs(10)).unwrap_err();
        assert_eq!(
            error.raw_os_error(),
            Some(Errno::CONNREFUSED.raw_os_error())
        );
    }

    #[test]
    fn the_error_says_what_each_address_did_and_names_the_limit() {
        let silent = Silent::new(1);
        let refusing = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = refusing.local_addr().unwrap();
        drop(refusing);
        let time = Duration::from_millis(100);
        let error = race(&[closed, silent.address], time).unwrap_err();
        let text = error.to_string();
        let wanted = format!("{closed}: Connection refused");
        assert!(text.contains(&wanted), "{text}");
        let wanted = format!(
            "no answer from {} within 100ms, the `connect_timeout`",
            silent.address
        );
        assert!(text.ends_with(&wanted), "{text}");
        let both = race(&[closed, closed], time).unwrap_err();
        let source = std::error::Error::source(&both).and_then(|e| e.downcast_ref::<io::Error>());
        let errno = source.and_then(io::Error::raw_os_error);
        assert_eq!(errno, Some(Errno::CONNREFUSED.raw_os_error()), "{both:?}");
        let error = race(&[silent.address], time).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(
            error.to_string(),
            "no answer within 100ms, the `connect_timeout`"
        );
    }
}
