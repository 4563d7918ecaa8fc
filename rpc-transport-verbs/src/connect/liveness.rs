//! A TCP connection after its handshake: the liveness socket.
//!
//! * The end of the peer's process is reported at once, because the kernel closes its sockets.
//! * The end of the peer's host is reported after four seconds, by the kernel's TCP keepalive.
//! * A process that is stopped on a live host loses nothing: its peers wait for it. With the intent
//!   `keepalive`, they probe it over this socket, and close the connection if it does not respond
//!   (`keepalive.rs`).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::keepalive::{ACK, Beat, ENQ, Pulse};
use crate::transport::mailbox::{LineEnd, LineKey, Mailbox, Notice};

/// Time without traffic after which the kernel sends a TCP keepalive probe, and the time between
/// two probes. Probes detect a host that has failed; the end of a process is noticed at once
/// without probes.
const KERNEL_KEEPALIVE: Duration = Duration::from_secs(1);

/// Number of unanswered probes after which the peer's host counts as gone.
const KERNEL_PROBES: u32 = 3;

/// How long data may stay unacknowledged before the peer's host counts as gone, in milliseconds:
/// the same time as with probes. While data is unacknowledged, the kernel sends no probes. It
/// retransmits instead, by default for a quarter of an hour.
const KERNEL_PATIENCE_MS: u32 = KERNEL_KEEPALIVE.as_millis() as u32 * (1 + KERNEL_PROBES);

/// Maximum number of bytes read at a time. A peer that follows the rules has at most two in flight.
const READ_LEN: usize = 16;

/// A TCP connection after its handshake.
#[derive(Debug)]
pub(crate) struct Line {
    /// Shared with the poller, which shuts it down to end the connection.
    pub(crate) stream: Arc<TcpStream>,
    key: LineKey,
    mailbox: Mailbox,
    pulse: Pulse,
}

impl Line {
    /// Creates a line. `key` identifies it in notices. `mailbox` sends the notice of its end.
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

    /// Sends an ENQ if the server waits for one. Called when the control thread starts watching the
    /// line.
    pub(crate) fn begin(&mut self) {
        if self.pulse.begins() {
            self.ask();
        }
    }

    /// Returns the time until the next [`beat`](Self::beat), if there is one.
    pub(crate) fn interval(&self) -> Option<Duration> {
        self.pulse.interval()
    }

    /// Reads from the socket. Returns how the line ended, if it has ended.
    pub(crate) fn look(&mut self) -> Option<LineEnd> {
        let mut bytes = [0; READ_LEN];
        match (&*self.stream).read(&mut bytes) {
            Ok(0) => Some(LineEnd::Gone),
            Ok(len) => self.hear(&bytes[..len]),
            Err(error) if is_transient(&error) => None,
            // The connection was reset, or the kernel gave it up.
            Err(_) => Some(LineEnd::Gone),
        }
    }

    /// Handles bytes that were read from the socket.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Option<LineEnd> {
        match self.pulse.hear(bytes, Instant::now()) {
            Ok(true) => {
                // Ignore a full socket: a peer that sends ENQs without reading cannot expect an
                // ACK, so no ACK is buffered for it.
                let _ = self.write(ACK);
                None
            }
            Ok(false) => None,
            Err(_) => Some(LineEnd::Bytes),
        }
    }

    /// Handles the end of an interval. Returns how the line ended, if it has ended.
    pub(crate) fn beat(&mut self) -> Option<LineEnd> {
        // Read what arrived while this thread was busy or the whole process was stopped.
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

    /// Tells the poller that the handshake is complete. Returns false if the poller is gone.
    pub(crate) fn report_ready(&self) -> bool {
        self.mailbox.put(Notice::Ready(self.key)).is_ok()
    }

    /// Tells the poller how the line ended.
    pub(crate) fn report(&self, end: LineEnd) {
        let _ = self.mailbox.put(Notice::Ended(self.key, end));
    }

    fn ask(&mut self) {
        if self.write(ENQ).is_ok() {
            self.pulse.asked();
        }
    }

    /// Writes one byte if the socket accepts it. If the line has ended, the next read reports the
    /// error.
    fn write(&self, byte: u8) -> io::Result<()> {
        (&*self.stream).write(&[byte]).map(drop)
    }
}

/// Configures a socket: no delay (the handshake consists of small messages), nonblocking, and with
/// TCP keepalive, which detects that the peer's host is gone.
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

    /// However many ENQs a peer sends, nothing blocks and nothing is buffered for it.
    #[test]
    fn a_peer_that_asks_and_never_reads_holds_up_nobody() {
        // Small buffers fill quickly; each byte takes a system call.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, 4096).unwrap();
        let _peer = listener.accept().unwrap();
        prepare_line(&stream).unwrap();
        let pulse = Pulse::of_client(true, None, Instant::now());
        let (mailbox, _inbox) = mailbox(crate::transport::alarm::Alarm::new().unwrap());
        let mut line = Line::new(Arc::new(stream), LineKey::next(), mailbox, pulse);
        // Fill the socket, then send many more ENQs.
        while line.write(ACK).is_ok() {}
        for _ in 0..1000 {
            assert_eq!(line.hear(&[ENQ]), None);
        }
    }
}
