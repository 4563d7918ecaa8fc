//! A TCP connection after its handshake: the liveness socket.
//!
//! * The end of the peer's process is reported at once, because the kernel closes its sockets.
//! * The end of the peer's host is reported after four seconds, by the kernel's TCP keepalive.
//! * A process that is stopped on a live host loses nothing: its peers wait for it. With the intent
//!   `keepalive`, they probe it over this socket, and close the connection if it does not respond
//!   (`keepalive.rs`).
//! * A server that ends the handshake while its client's last message is on the way says so here, in
//!   place of its first byte.
//! * A client asks a server on another host for its clock over this socket (`clock_exchange.rs`).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbline_verbs::for_transport::keep_from_children;

use super::clock_exchange::{
    CLOCK_ANSWER_LEN, CLOCK_INTERVAL, CLOCK_QUESTION, ClockByte, ClockExchange, clock_answer,
};
use super::handshake::MAGIC;
use super::handshake::client::{ClientHandshake, ServerResponse};
use super::keepalive::{ACK, ENQ, IntervalOutcome, KeepaliveState, UnexpectedByte};
use crate::transport::notices::{LivenessEnd, LivenessKey, Notice, NoticeSender};
use crate::transport::peer_clock::{PeerClockCell, monotonic_us};

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

/// Maximum number of bytes read at a time. A peer that follows the rules has fewer in flight: an ENQ,
/// an ACK, and a question or an answer about the clock.
const READ_LEN: usize = 16;
const _: () = assert!(2 + CLOCK_ANSWER_LEN < READ_LEN);

/// This side's part in measuring the server's clock.
#[derive(Debug)]
pub(crate) enum ClockRole {
    /// This side is a server and answers.
    Answers,
    /// This side is a client and asks, in series. The estimates go to its poller.
    Asks {
        /// Boxed: few connections have one.
        exchange: Box<ClockExchange>,
        estimate: Arc<PeerClockCell>,
    },
    /// This side is a client on the server's host, which has the same clock.
    Silent,
}

/// A TCP connection after its handshake.
#[derive(Debug)]
pub(crate) struct LivenessConnection {
    /// Shared with the poller, which shuts it down to end the connection.
    pub(crate) stream: Arc<TcpStream>,
    key: LivenessKey,
    notice_sender: NoticeSender,
    keepalive_state: KeepaliveState,
    clock_role: ClockRole,
    /// Reads what the server sends first, if that is a refusal. `None`: it has sent something else, or
    /// this side is the server.
    refusal: Option<Box<ClientHandshake>>,
    /// The end of the current keepalive interval, if there is one.
    interval_end: Option<Instant>,
    /// When the next series of questions about the server's clock begins, if this side asks.
    next_series: Option<Instant>,
}

impl LivenessConnection {
    /// Creates the state of a connection. `key` identifies it in notices, and `notice_sender`
    /// reports its end.
    pub(crate) fn new(
        stream: Arc<TcpStream>,
        key: LivenessKey,
        notice_sender: NoticeSender,
        keepalive_state: KeepaliveState,
        clock_role: ClockRole,
    ) -> Self {
        let is_client = keepalive_state.sends_first_enq();
        Self {
            stream,
            key,
            notice_sender,
            keepalive_state,
            clock_role,
            refusal: is_client.then(Box::default),
            interval_end: None,
            next_series: None,
        }
    }

    /// Sends an ENQ if the server waits for one, and the first question about its clock if this side
    /// asks. Called when the control thread starts watching the socket.
    pub(crate) fn start(&mut self, now: Instant) {
        if self.keepalive_state.sends_first_enq() {
            self.send_enq();
        }
        self.begin_interval(now);
        self.begin_series(now);
    }

    /// Returns when [`handle_deadline`](Self::handle_deadline) is to be called, if it is.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match (self.interval_end, self.next_series) {
            (Some(end), Some(series)) => Some(end.min(series)),
            (one, other) => one.or(other),
        }
    }

    /// Ends the keepalive interval, or begins a series of questions, if it is time. Returns how the
    /// connection ended, if it has ended.
    pub(crate) fn handle_deadline(&mut self, now: Instant) -> Option<LivenessEnd> {
        if self.next_series.is_some_and(|next| next <= now) {
            self.begin_series(now);
        }
        if self.interval_end.is_some_and(|end| end <= now) {
            self.begin_interval(now);
            return self.end_interval();
        }
        None
    }

    fn begin_interval(&mut self, now: Instant) {
        let interval = self.keepalive_state.interval();
        self.interval_end = interval.and_then(|interval| now.checked_add(interval));
    }

    /// Begins a series of questions about the server's clock, if this side asks.
    pub(crate) fn begin_series(&mut self, now: Instant) {
        if let ClockRole::Asks { exchange, .. } = &mut self.clock_role {
            let asks = exchange.begin_series(monotonic_us());
            self.next_series = now.checked_add(CLOCK_INTERVAL);
            if asks {
                self.ask_for_clock();
            }
        }
    }

    fn ask_for_clock(&mut self) {
        if self.write(CLOCK_QUESTION).is_err()
            && let ClockRole::Asks { exchange, .. } = &mut self.clock_role
        {
            exchange.could_not_ask();
        }
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
        let first = *bytes.first()?;
        if let Some(handshake) = &mut self.refusal {
            if !handshake.received().is_nothing() || first == MAGIC[0] {
                return match handshake.handle(bytes) {
                    Ok(None) => None,
                    Ok(Some(ServerResponse::Refused(reason))) => Some(LivenessEnd::Refused(reason)),
                    Ok(Some(_)) | Err(_) => Some(LivenessEnd::Bytes),
                };
            }
            self.refusal = None;
        }
        for piece in bytes.chunks(READ_LEN) {
            if self.handle_piece(piece).is_err() {
                return Some(LivenessEnd::Bytes);
            }
        }
        None
    }

    /// Handles bytes that were read together. A peer that follows the rules sends at most one ENQ
    /// and one question before it is answered.
    fn handle_piece(&mut self, piece: &[u8]) -> Result<(), UnexpectedByte> {
        let (mut keepalives, mut len) = ([0; READ_LEN], 0);
        let mut is_asked = false;
        for &byte in piece {
            match &mut self.clock_role {
                ClockRole::Answers if byte == CLOCK_QUESTION => {
                    if std::mem::replace(&mut is_asked, true) {
                        return Err(UnexpectedByte);
                    }
                    self.answer_with_clock()?;
                    continue;
                }
                ClockRole::Asks { exchange, estimate } => {
                    match exchange.handle_byte(byte, monotonic_us())? {
                        ClockByte::Other => {}
                        ClockByte::Taken => continue,
                        ClockByte::Measured {
                            estimate: best,
                            asks_again,
                        } => {
                            estimate.store(best);
                            if asks_again {
                                self.ask_for_clock();
                            }
                            continue;
                        }
                    }
                }
                ClockRole::Answers | ClockRole::Silent => {}
            }
            keepalives[len] = byte;
            len += 1;
        }
        let sends_ack = self
            .keepalive_state
            .handle_bytes(&keepalives[..len], Instant::now())?;
        if sends_ack {
            // Ignore a full socket: a peer that sends ENQs without reading cannot expect an ACK, so
            // no ACK is buffered for it.
            let _ = self.write(ACK);
        }
        Ok(())
    }

    /// Answers a question about this host's clock. Ignores a full socket, as for an ACK. A socket
    /// that takes only part of the answer ends the connection: its client has asked again and again
    /// and read no answer.
    fn answer_with_clock(&self) -> Result<(), UnexpectedByte> {
        match (&*self.stream).write(&clock_answer(monotonic_us())) {
            Ok(len) if len < CLOCK_ANSWER_LEN => Err(UnexpectedByte),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Handles the end of an interval. Returns how the connection ended, if it has ended.
    fn end_interval(&mut self) -> Option<LivenessEnd> {
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
    keep_from_children(stream)?;
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

    use rpc_core::transport::PeerSentence;

    use super::super::handshake::server::ServerHandshake;
    use super::*;
    use crate::transport::notices::notice_queue;
    use crate::transport::peer_clock::ClockEstimate;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (here, listener.accept().unwrap().0)
    }

    fn watched(stream: TcpStream, state: KeepaliveState, role: ClockRole) -> LivenessConnection {
        let (notice_sender, _notice_receiver) = notice_queue(
            crate::transport::wakeup::Wakeup::new().unwrap(),
            Arc::default(),
        );
        let key = LivenessKey::next();
        LivenessConnection::new(Arc::new(stream), key, notice_sender, state, role)
    }

    /// A client whose keepalive is off, and a server whose clock is an hour ahead and which sends
    /// its answer byte by byte: the estimate of the handshake is replaced by a better one, the
    /// client asks three times at once and then not before the next series.
    #[test]
    fn a_client_measures_the_clock_of_its_server() {
        const HOUR_US: i64 = 3_600_000_000;
        let (here, mut there) = pair();
        let now_us = monotonic_us();
        let rough = ClockEstimate::new(now_us - 1_000_000, now_us + HOUR_US, now_us);
        let estimate = Arc::new(PeerClockCell::new(rough));
        let role = ClockRole::Asks {
            exchange: Box::new(ClockExchange::new(rough)),
            estimate: Arc::clone(&estimate),
        };
        let now = Instant::now();
        let mut liveness = watched(here, KeepaliveState::with_server(None, now), role);
        liveness.start(now);
        let mut first = [0];
        there.read_exact(&mut first).unwrap();
        assert_eq!(first, [ENQ]);
        for _ in 0..3 {
            let mut question = [0];
            there.read_exact(&mut question).unwrap();
            assert_eq!(question, [CLOCK_QUESTION]);
            for byte in clock_answer(monotonic_us() + HOUR_US) {
                there.write_all(&[byte]).unwrap();
                assert_eq!(liveness.poll(), None);
            }
        }
        let clock = estimate.load().peer_clock(monotonic_us()).unwrap();
        let off_us = (HOUR_US - clock.ahead_us).unsigned_abs();
        assert!(off_us <= u64::from(clock.error_us), "{clock:?}");
        assert!(clock.error_us < 500_000, "{clock:?}");

        there.set_nonblocking(true).unwrap();
        assert!(is_transient(&there.read(&mut [0]).unwrap_err()));
        assert_eq!(liveness.deadline(), Some(now + CLOCK_INTERVAL));
        assert_eq!(liveness.handle_deadline(now + CLOCK_INTERVAL), None);
        let mut questions = [0; 9];
        assert_eq!(there.read(&mut questions).unwrap(), 1);
        assert_eq!(liveness.deadline(), Some(now + 2 * CLOCK_INTERVAL));
    }

    /// A client that asks and reads nothing: the server buffers nothing for it, and ends the
    /// connection when the socket has taken part of an answer.
    #[test]
    fn a_client_that_asks_for_the_clock_and_never_reads_holds_up_nobody() {
        let (here, _there) = pair();
        rustix::net::sockopt::set_socket_send_buffer_size(&here, 4096).unwrap();
        here.set_nonblocking(true).unwrap();
        let state = KeepaliveState::with_client(None, Instant::now());
        let mut liveness = watched(here, state, ClockRole::Answers);
        let is_held_up = (0..10_000_000).any(|_| {
            let has_ended = liveness.handle_bytes(&[CLOCK_QUESTION]).is_some();
            has_ended || liveness.write(ACK).is_err()
        });
        assert!(is_held_up, "the socket took ten million answers");
    }

    /// A server that has ended the handshake while `Ready` was on its way says why, in as many reads as it
    /// takes. A server that has sent a byte can refuse no more.
    #[test]
    fn a_refusal_in_place_of_the_first_byte_is_the_reason_of_the_end() {
        let refusal = ServerHandshake::default().refuse("no room; try again");
        let client = || {
            let (here, there) = pair();
            let state = KeepaliveState::with_server(None, Instant::now());
            let mut liveness = watched(here, state, ClockRole::Silent);
            liveness.start(Instant::now());
            (liveness, there)
        };
        let (mut liveness, mut there) = client();
        assert_eq!(liveness.handle_bytes(&[]), None);
        there.write_all(&refusal).unwrap();
        let end = loop {
            if let Some(end) = liveness.poll() {
                break end;
            }
        };
        let reason = PeerSentence::new("no room; try again");
        assert_eq!(end, LivenessEnd::Refused(reason));

        let (mut liveness, _there) = client();
        assert_eq!(liveness.handle_bytes(&[ACK]), None);
        assert_eq!(liveness.handle_bytes(&refusal), Some(LivenessEnd::Bytes));
    }

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
        let keepalive_state = KeepaliveState::with_client(None, Instant::now());
        let (notice_sender, _notice_receiver) = notice_queue(
            crate::transport::wakeup::Wakeup::new().unwrap(),
            Arc::default(),
        );
        let mut liveness = LivenessConnection::new(
            Arc::new(stream),
            LivenessKey::next(),
            notice_sender,
            keepalive_state,
            ClockRole::Answers,
        );
        // Fill the socket, then send many more ENQs.
        while liveness.write(ACK).is_ok() {}
        for _ in 0..1000 {
            assert_eq!(liveness.handle_bytes(&[ENQ]), None);
        }
    }
}
