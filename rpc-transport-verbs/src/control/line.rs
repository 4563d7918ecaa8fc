//! A TCP connection after its handshake. Its end means that the peer's process has ended; an
//! unanswered keepalive means that the process is stopped.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::is_transient;
use super::pulse::{ACK, Beat, ENQ, Pulse};
use crate::mailbox::{LineEnd, LineKey, Mailbox, Notice};

/// Maximum number of bytes read at a time. A peer that follows the rules has at most two in flight.
const READ_LEN: usize = 16;

/// A TCP connection after its handshake.
#[derive(Debug)]
pub(crate) struct Line {
    /// Shared with the poller, which shuts it down to end the connection.
    pub(super) stream: Arc<TcpStream>,
    key: LineKey,
    mailbox: Mailbox,
    pulse: Pulse,
}

impl Line {
    /// Creates a line. `key` identifies it in notices. `mailbox` is the mailbox to notify of its
    /// end.
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

    /// Called when the control thread starts watching the line.
    pub(super) fn begin(&mut self) {
        if self.pulse.begins() {
            self.ask();
        }
    }

    /// Returns the time until the next [`beat`](Self::beat), if there is one.
    pub(super) fn interval(&self) -> Option<Duration> {
        self.pulse.interval()
    }

    /// Reads from the socket. Returns how the line ended, if it has ended.
    pub(super) fn look(&mut self) -> Option<LineEnd> {
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
    pub(super) fn hear(&mut self, bytes: &[u8]) -> Option<LineEnd> {
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
    pub(super) fn beat(&mut self) -> Option<LineEnd> {
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
    pub(super) fn report_ready(&self) -> bool {
        self.mailbox.put(Notice::Ready(self.key)).is_ok()
    }

    /// Tells the poller how the line ended.
    pub(super) fn report(&self, end: LineEnd) {
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::mailbox::mailbox;

    /// However many ENQs a peer sends, nothing blocks and nothing is buffered for it.
    #[test]
    fn a_peer_that_asks_and_never_reads_holds_up_nobody() {
        // Small buffers fill quickly; each byte takes a system call.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, 4096).unwrap();
        let _peer = listener.accept().unwrap();
        super::super::prepare_line(&stream).unwrap();
        let pulse = Pulse::of_client(true, None, Instant::now());
        let (mailbox, _inbox) = mailbox(crate::alarm::Alarm::new().unwrap());
        let mut line = Line::new(Arc::new(stream), LineKey::next(), mailbox, pulse);
        // Fill the socket, then send many more ENQs.
        while line.write(ACK).is_ok() {}
        for _ in 0..1000 {
            assert_eq!(line.hear(&[ENQ]), None);
        }
    }
}
