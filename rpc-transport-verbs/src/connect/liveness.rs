//! A TCP connection after its handshake: its end says that the peer's process has ended, and a
//! keepalive that it stands still.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::keepalive::{ACK, Beat, ENQ, Pulse};
use crate::transport::mailbox::{LineEnd, LineKey, Mailbox, Notice};

/// How long the kernel waits in silence before it asks whether the peer's host is still there, and
/// between its questions. A process that ends is noticed at once, without any question.
const KERNEL_KEEPALIVE: Duration = Duration::from_secs(1);

/// Questions without an answer until the peer's host counts as gone.
const KERNEL_PROBES: u32 = 3;

/// How long a byte may be on its way until the peer's host counts as gone, in milliseconds: the same
/// time. While one is, the kernel asks no questions and sends it again, by default for a quarter of
/// an hour.
const KERNEL_PATIENCE_MS: u32 = KERNEL_KEEPALIVE.as_millis() as u32 * (1 + KERNEL_PROBES);

/// Bytes that are read at a time: a peer that keeps the rules has two under way at most.
const READ_LEN: usize = 16;

/// A TCP connection after its handshake.
#[derive(Debug)]
pub(crate) struct Line {
    /// Shared with the poller, which ends it by shutting it down.
    pub(crate) stream: Arc<TcpStream>,
    key: LineKey,
    mailbox: Mailbox,
    pulse: Pulse,
}

impl Line {
    /// `key` is its name in notices; `mailbox` is that of who is told of its end.
    pub(crate) fn new(
        stream: Arc<TcpStream>,
        key: LineKey,
        mailbox: Mailbox,
        pulse: Pulse,
    ) -> Self {
        Self {
            stream,
            key,
            mailbox,
            pulse,
        }
    }

    /// It is watched from now on.
    pub(crate) fn begin(&mut self) {
        if self.pulse.begins() {
            self.ask();
        }
    }

    /// The time until its next [`beat`](Self::beat), if there is one.
    pub(crate) fn interval(&self) -> Option<Duration> {
        self.pulse.interval()
    }

    /// Reads what has come; how the line has ended, if it has.
    pub(crate) fn look(&mut self) -> Option<LineEnd> {
        let mut bytes = [0; READ_LEN];
        match (&*self.stream).read(&mut bytes) {
            Ok(0) => Some(LineEnd::Gone),
            Ok(len) => self.hear(&bytes[..len]),
            Err(error) if is_transient(&error) => None,
            // A reset, or the end of the kernel's patience.
            Err(_) => Some(LineEnd::Gone),
        }
    }

    /// Takes bytes that have been read.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Option<LineEnd> {
        match self.pulse.hear(bytes, Instant::now()) {
            Ok(true) => {
                // A peer that asks and does not read has no answer to expect: what it leaves no
                // room for is not kept for it.
                let _ = self.write(ACK);
                None
            }
            Ok(false) => None,
            Err(_) => Some(LineEnd::Bytes),
        }
    }

    /// An interval has passed; how the line has ended, if it has.
    pub(crate) fn beat(&mut self) -> Option<LineEnd> {
        // What came while this thread was busy, or the whole process stood still.
        if let Some(end) = self.look() {
            return Some(end);
        }
        match self.pulse.beat(Instant::now()) {
            Beat::Wait => None,
            Beat::Ask => {
                self.ask();
                None
            }
            Beat::Silent(silence) => Some(LineEnd::Silent(silence)),
        }
    }

    /// Tells the poller that the handshake is complete; `false` if there is no poller any more.
    pub(crate) fn report_ready(&self) -> bool {
        self.mailbox.put(Notice::Ready(self.key)).is_ok()
    }

    /// Tells the poller how it has ended.
    pub(crate) fn report(&self, end: LineEnd) {
        let _ = self.mailbox.put(Notice::Ended(self.key, end));
    }

    fn ask(&mut self) {
        if self.write(ENQ).is_ok() {
            self.pulse.asked();
        }
    }

    /// One byte, now or not at all. An error that is the line's end shows when it is read, too.
    fn write(&self, byte: u8) -> io::Result<()> {
        (&*self.stream).write(&[byte]).map(drop)
    }
}

/// Sends without delay (a handshake is all small messages), never blocks, and notices the end of
/// the peer's host.
pub(super) fn prepare_line(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KERNEL_KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KERNEL_KEEPALIVE)?;
    sockopt::set_tcp_keepcnt(stream, KERNEL_PROBES)?;
    sockopt::set_tcp_user_timeout(stream, KERNEL_PATIENCE_MS)?;
    Ok(())
}

pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::transport::mailbox::mailbox;

    /// However much it asks: nothing blocks, and nothing is kept for it.
    #[test]
    fn a_peer_that_asks_and_never_reads_holds_up_nobody() {
        // Little room, so that it is soon full: each byte is a system call.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, 4096).unwrap();
        let _peer = listener.accept().unwrap();
        prepare_line(&stream).unwrap();
        let pulse = Pulse::of_client(true, None, Instant::now());
        let (mailbox, _inbox) = mailbox(crate::transport::alarm::Alarm::new().unwrap());
        let mut line = Line::new(Arc::new(stream), LineKey::next(), mailbox, pulse);
        // Until the socket takes no more, and well beyond.
        while line.write(ACK).is_ok() {}
        for _ in 0..1000 {
            assert_eq!(line.hear(&[ENQ]), None);
        }
    }
}
