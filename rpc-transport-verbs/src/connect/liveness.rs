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

use super::keepalive::{ACK, ENQ, IntervalOutcome, KeepaliveState};
use crate::transport::notices::{LivenessEnd, LivenessKey, Notice, NoticeSender};

/// Time without traffic after which the kernel sends a TCP keepalive probe, and the time between
/// two probes. Probes detect a host that has failed; the end of a process is noticed at once
/// without probes.
const KERNEL_KEEPALIVE: Duration = Duration::from_secs(1);

/// Number of unanswered probes after which the peer's host counts as gone.
const KERNEL_PROBES: u32 = 3;

/// How long data may stay unacknowledged before the peer's host counts as gone, in milliseconds:
/// the same time as with probes. While data is unacknowledged, the kernel sends no probes. It
/// retransmits instead, by default for a quarter of an hour.
const KERNEL_TIMEOUT_MS: u32 = KERNEL_KEEPALIVE.as_millis() as u32 * (1 + KERNEL_PROBES);

/// Maximum number of bytes read at a time. A peer that follows the rules has at most two in flight.
const READ_LEN: usize = 16;

/// A TCP connection after its handshake.
#[derive(Debug)]
pub(crate) struct LivenessConnection {
    /// Shared with the poller, which shuts it down to end the connection.
    pub(crate) stream: Arc<TcpStream>,
    key: LivenessKey,
    notice_sender: NoticeSender,
    keepalive_state: KeepaliveState,
}

impl LivenessConnection {
    /// Creates the state of a connection. `key` identifies it in notices, and `notice_sender`
    /// reports its end.
    pub(crate) fn new(
        stream: Arc<TcpStream>,
        key: LivenessKey,
        notice_sender: NoticeSender,
        keepalive_state: KeepaliveState,
    ) -> Self {
        Self {
            stream,
            key,
            notice_sender,
            keepalive_state,
        }
    }

    /// Sends an ENQ if the server waits for one. Called when the control thread starts watching the
    /// socket.
    pub(crate) fn start(&mut self) {
        if self.keepalive_state.sends_first_enq() {
            self.send_enq();
        }
    }

    /// Returns the time until the next [`end_interval`](Self::end_interval), if there is one.
    pub(crate) fn interval(&self) -> Option<Duration> {
        self.keepalive_state.interval()
    }

    /// Reads from the socket. Returns how the connection ended, if it has ended.
    pub(crate) fn poll(&mut self) -> Option<LivenessEnd> {
        let mut bytes = [0; READ_LEN];
        match (&*self.stream).read(&mut bytes) {
            Ok(0) => Some(LivenessEnd::Gone),
            Ok(len) => self.handle_bytes(&bytes[..len]),
            Err(error) if is_transient(&error) => None,
            // The connection was reset, or the kernel gave it up.
            Err(_) => Some(LivenessEnd::Gone),
        }
    }

    /// Handles bytes that were read from the socket.
    pub(crate) fn handle_bytes(&mut self, bytes: &[u8]) -> Option<LivenessEnd> {
        match self.keepalive_state.handle_bytes(bytes, Instant::now()) {
            Ok(true) => {
                // Ignore a full socket: a peer that sends ENQs without reading cannot expect an
                // ACK, so no ACK is buffered for it.
                let _ = self.write(ACK);
                None
            }
            Ok(false) => None,
            Err(_) => Some(LivenessEnd::Bytes),
        }
    }

    /// Handles the end of an interval. Returns how the connection ended, if it has ended.
    pub(crate) fn end_interval(&mut self) -> Option<LivenessEnd> {
        // Read what arrived while this thread was busy or the whole process was stopped.
        if let Some(end) = self.poll() {
            return Some(end);
        }
        match self.keepalive_state.end_interval(Instant::now()) {
            IntervalOutcome::Wait => None,
            IntervalOutcome::SendEnq => {
                self.send_enq();
                None
            }
            IntervalOutcome::Silent(silence) => Some(LivenessEnd::Silent(silence)),
        }
    }

    /// Tells the poller that the handshake is complete. Returns false if the poller is gone.
    pub(crate) fn report_open(&self) -> bool {
        self.notice_sender.send(Notice::Open(self.key)).is_ok()
    }

    /// Tells the poller how the connection ended.
    pub(crate) fn report(&self, end: LivenessEnd) {
        let _ = self.notice_sender.send(Notice::Ended(self.key, end));
    }

    fn send_enq(&mut self) {
        if self.write(ENQ).is_ok() {
            self.keepalive_state.enq_sent();
        }
    }

    /// Writes one byte if the socket accepts it. If the connection has ended, the next read reports
    /// the error.
    fn write(&self, byte: u8) -> io::Result<()> {
        (&*self.stream).write(&[byte]).map(drop)
    }
}

/// Configures a socket: no delay (the handshake consists of small messages), nonblocking, and with
/// TCP keepalive, which detects that the peer's host is gone.
pub(super) fn configure_socket(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KERNEL_KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KERNEL_KEEPALIVE)?;
    sockopt::set_tcp_keepcnt(stream, KERNEL_PROBES)?;
    sockopt::set_tcp_user_timeout(stream, KERNEL_TIMEOUT_MS)?;
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
    use crate::transport::notices::notice_queue;

    /// However many ENQs a peer sends, nothing blocks and nothing is buffered for it.
    #[test]
    fn a_peer_that_asks_and_never_reads_holds_up_nobody() {
        // Small buffers fill quickly; each byte takes a system call.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, 4096).unwrap();
        let _peer = listener.accept().unwrap();
        configure_socket(&stream).unwrap();
        let keepalive_state = KeepaliveState::with_client(true, None, Instant::now());
        let (notice_sender, _notice_receiver) = notice_queue(
            crate::transport::wakeup::Wakeup::new().unwrap(),
            Arc::default(),
        );
        let mut liveness = LivenessConnection::new(
            Arc::new(stream),
            LivenessKey::next(),
            notice_sender,
            keepalive_state,
        );
        // Fill the socket, then send many more ENQs.
        while liveness.write(ACK).is_ok() {}
        for _ in 0..1000 {
            assert_eq!(liveness.handle_bytes(&[ENQ]), None);
        }
    }
}
