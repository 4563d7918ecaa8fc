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

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use verbline_verbs::for_transport::keep_from_children;

use super::clock_exchange::{
    CLOCK_ANSWER_LEN, CLOCK_INTERVAL, CLOCK_QUESTION, ClockByte, ClockExchange, clock_answer,
};
use super::control_stream::{Arrived, ControlStream, StreamError};
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
    pub(crate) stream: ControlStream,
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
    /// The control thread watches the socket for when it can be written to.
    is_watched_to_write: bool,
}

impl LivenessConnection {
    /// Creates the state of a connection. `key` identifies it in notices, and `notice_sender`
    /// reports its end.
    pub(crate) fn new(
        stream: ControlStream,
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
            is_watched_to_write: false,
        }
    }

    /// Returns what the socket has to be watched for, if that has changed.
    pub(crate) fn change_of_watch(&mut self) -> Option<EventFlags> {
        let is_writing = self.stream.is_writing();
        let was_watched = std::mem::replace(&mut self.is_watched_to_write, is_writing);
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, is_writing);
        (is_writing != was_watched).then_some(flags)
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
        if !self.write(&[CLOCK_QUESTION])
            && let ClockRole::Asks { exchange, .. } = &mut self.clock_role
        {
            exchange.could_not_ask();
        }
    }

    /// Writes what the socket did not take before, and reads from it. Returns how the connection ended,
    /// if it has ended.
    pub(crate) fn poll(&mut self) -> Option<LivenessEnd> {
        let mut bytes = Vec::new();
        // If the peer has closed the connection, it may have said why before.
        let _ = self.stream.flush();
        match self.stream.read(READ_LEN, &mut bytes) {
            Ok(Arrived::End) => Some(LivenessEnd::Gone),
            Ok(Arrived::Bytes) => self.handle_bytes(&bytes),
            Err(error) if error.is_transient() => None,
            Err(StreamError::Record(error)) => Some(LivenessEnd::Record(error)),
            // The connection was reset, or the kernel gave it up.
            Err(StreamError::Socket(_)) => Some(LivenessEnd::Gone),
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
                    // Ignored if it cannot be written, as an ACK is.
                    self.write(&clock_answer(monotonic_us()));
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
            // A peer that sends ENQs without reading cannot expect an ACK for each.
            self.write(&[ACK]);
        }
        Ok(())
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
        if self.write(&[ENQ]) {
            self.keepalive_state.enq_sent();
        }
    }

    /// Writes a message, unless the socket has not taken the one before. Returns true if it is or will
    /// be sent. If the connection has ended, the next read reports the error.
    fn write(&mut self, message: &[u8]) -> bool {
        !self.stream.is_writing() && self.stream.write(message).is_ok()
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use rpc_core::transport::PeerSentence;
    use verbline_verbs::for_transport::BadRecord;

    use super::super::control_stream::tests::{Framed, record};
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
        LivenessConnection::new(
            ControlStream::plain(stream),
            key,
            notice_sender,
            state,
            role,
        )
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
        assert_eq!(
            there.read(&mut [0]).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        assert_eq!(liveness.deadline(), Some(now + CLOCK_INTERVAL));
        assert_eq!(liveness.handle_deadline(now + CLOCK_INTERVAL), None);
        let mut questions = [0; 9];
        assert_eq!(there.read(&mut questions).unwrap(), 1);
        assert_eq!(liveness.deadline(), Some(now + 2 * CLOCK_INTERVAL));
    }

    /// A client that asks and reads nothing: what the socket does not take of one answer is kept, and no
    /// further answer is written.
    #[test]
    fn a_client_that_asks_for_the_clock_and_never_reads_holds_up_nobody() {
        let (here, mut there) = pair();
        rustix::net::sockopt::set_socket_send_buffer_size(&here, 4096).unwrap();
        here.set_nonblocking(true).unwrap();
        let state = KeepaliveState::with_client(None, Instant::now());
        let mut liveness = watched(here, state, ClockRole::Answers);
        let is_held_up = (0..10_000_000).any(|_| {
            assert_eq!(liveness.handle_bytes(&[CLOCK_QUESTION]), None);
            !liveness.write(&[ACK])
        });
        assert!(is_held_up, "the socket took ten million answers");
        let out = EventFlags::IN | EventFlags::OUT;
        assert_eq!(liveness.change_of_watch(), Some(out));
        for _ in 0..1000 {
            assert_eq!(liveness.handle_bytes(&[CLOCK_QUESTION]), None);
        }
        assert_eq!(liveness.change_of_watch(), None);
        let mut answers = vec![0; 1 << 20];
        while liveness.stream.is_writing() {
            assert!(there.read(&mut answers).unwrap() > 0);
            assert_eq!(liveness.poll(), None);
        }
        assert_eq!(liveness.change_of_watch(), Some(EventFlags::IN));
        assert!(liveness.write(&[ACK]));
    }

    /// The user reads what was wrong with the records, not that they were no keepalives.
    #[test]
    fn a_record_that_cannot_be_read_is_told_as_that() {
        let (here, mut there) = pair();
        here.set_nonblocking(true).unwrap();
        let state = KeepaliveState::with_client(None, Instant::now());
        let mut liveness = watched(here, state, ClockRole::Answers);
        liveness.stream.secure(Box::new(Framed), Vec::new());
        there.write_all(&record(&[0; 30_000])).unwrap();
        let end = std::iter::from_fn(|| Some(liveness.poll())).find_map(|end| end);
        let too_long = BadRecord("a record is longer than it may be");
        assert_eq!(end, Some(LivenessEnd::Record(too_long)));
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

    /// However many ENQs a peer sends, nothing blocks and one answer at most is kept for it.
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
            ControlStream::plain(stream),
            LivenessKey::next(),
            notice_sender,
            keepalive_state,
            ClockRole::Answers,
        );
        // Fill the socket, then send many more ENQs.
        while liveness.write(&[ACK]) {}
        for _ in 0..1000 {
            assert_eq!(liveness.handle_bytes(&[ENQ]), None);
        }
    }
}
