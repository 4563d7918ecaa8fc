//! A client's handshake: one socket from its first byte until it is a connection or has been sent
//! the reason why it was rejected.

mod beginning;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rpc_core::PeerCertificate;
use rpc_core::transport::Admitted;
use rustix::event::epoll::EventFlags;
use verbline_verbs::for_transport::LinkBytes;
use verbline_verbs::log_limited;

use self::beginning::Beginning;
use super::handshakes::{READ_LEN, Stage};
use super::preparer::Prepared;
use super::{ListenerConfig, Token};
use crate::connect::control_stream::{Arrived, ControlStream, StreamError};
use crate::connect::handshake::server::{Request, ServerHandshake};
use crate::connect::handshake::{Offer, Received};
use crate::connect::keepalive::KeepaliveState;
use crate::connect::link::{self, FirstBytes, LINK_HELLO_LEN, LinkSecret};
use crate::connect::liveness::{ClockRole, LivenessConnection};
use crate::connect::server::{self as connect_server, ClientInRts, Origin, Port};
use crate::transport::notices::{LivenessEnd, LivenessKey, Notice, NoticeSender};
use crate::transport::queue_pairs::AwaitedClaim;
use crate::transport::security::SecurityHandshake;

/// A client in its handshake.
pub(super) struct IncomingClient {
    stream: ControlStream,
    beginning: Beginning,
    /// What the client has proved to be.
    certificate: Option<Arc<PeerCertificate>>,
    peer: SocketAddr,
    pub(super) listener: Token,
    config: Arc<ListenerConfig>,
    handshake: ServerHandshake,
    /// The first bytes of the connection, while they may be those of a link.
    first_bytes: Vec<u8>,
    /// The secret that was given to the client for the connection of its calls, until it comes.
    pub(super) link_secret: Option<LinkSecret>,
    state: State,
}

enum State {
    /// The client has connected, and its hello has not arrived completely.
    Incoming,
    /// The client's hello has arrived, and nothing was decided.
    Offered(Offer),
    /// The client has to prove that the GID that it offers is its own. The wait for the proof ends
    /// with this state.
    Challenged(Offer, AwaitedClaim),
    /// The client can be admitted, once the server has a connection left for it.
    Waiting(Offer, Option<AwaitedClaim>),
    /// The client is admitted; another thread creates its queue pair.
    Admitted,
    /// The queue pair is connected, and the poller knows the connection.
    QpRts(LivenessKey, NoticeSender, Box<KeepaliveState>),
    /// The client was rejected. The socket stays open until the client has read the reason.
    Rejected,
}

/// What to do with a client after handling an event.
pub(super) enum NextAction {
    Wait,
    Close,
    /// Have another thread make a step of the handshake that secures the connection, for which these
    /// bytes have arrived. [`secured`](IncomingClient::secured) gets the result.
    Secure {
        handshake: Box<dyn SecurityHandshake>,
        arrived: Vec<u8>,
        has_begun: bool,
    },
    /// Call [`challenge`](IncomingClient::challenge).
    Challenge,
    /// Call [`admit`](IncomingClient::admit), if the server has a connection left.
    Admit,
    /// Create the queue pair: through this port, for the endpoints that the client offers. The
    /// claim lives until it exists.
    CreateQueuePair(Port, Offer, Origin, Admitted, Option<AwaitedClaim>),
    /// The connection is for the calls of a client that was given this secret: hand it to the queue
    /// pair that waits for it.
    Link(LinkSecret),
    /// The handshake is complete. The bytes that the client sent after it are keepalives.
    Open(LivenessConnection, Vec<u8>),
}

impl IncomingClient {
    pub(super) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        listener: Token,
        config: Arc<ListenerConfig>,
    ) -> Self {
        Self {
            stream: ControlStream::plain(stream),
            beginning: Beginning::Nothing,
            certificate: None,
            peer,
            listener,
            config,
            handshake: ServerHandshake::default(),
            first_bytes: Vec::new(),
            link_secret: None,
            state: State::Incoming,
        }
    }

    /// A client that was welcomed. Its poller has `key`.
    #[cfg(test)]
    pub(super) fn welcomed(
        stream: TcpStream,
        config: Arc<ListenerConfig>,
        (key, notice_sender): (LivenessKey, NoticeSender),
    ) -> Self {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let keepalive = KeepaliveState::with_client(None, std::time::Instant::now());
        let mut client = Self::new(stream, peer, 1, config);
        client.beginning = Beginning::Done;
        client.state = State::QpRts(key, notice_sender, Box::new(keepalive));
        client
    }

    pub(super) fn stream(&self) -> &Arc<TcpStream> {
        self.stream.socket()
    }

    pub(super) fn is_secured(&self) -> bool {
        self.stream.is_secured()
    }

    /// Returns what the socket has to be watched for.
    pub(super) fn watched(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !self.is_being_secured());
        flags.set(EventFlags::OUT, self.stream.is_writing());
        flags
    }

    /// Returns the stage of the handshake.
    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::Incoming | State::Offered(_) => Stage::Incoming,
            State::Challenged(..) => Stage::Challenged,
            State::Waiting(..) => Stage::Waiting,
            State::Admitted => Stage::Admitted,
            State::QpRts(..) => Stage::Welcomed,
            State::Rejected => Stage::Rejected,
        }
    }

    /// Returns how far the client has come, as part of a sentence.
    fn reached(&self) -> String {
        match self.state {
            State::Incoming if self.is_being_secured() => {
                "the server's threads for TLS had not made the next step of the client's handshake"
                    .to_owned()
            }
            State::Incoming if !matches!(self.beginning, Beginning::Nothing | Beginning::Done) => {
                "the client's handshake of TLS was not complete".to_owned()
            }
            State::Incoming => {
                let bytes = match self.first_bytes.len() {
                    0 => self.handshake.received(),
                    len => Received::beginning(len),
                };
                format!("the client connected and sent {bytes} of its hello")
            }
            State::Offered(_) => "the client's hello had arrived".to_owned(),
            State::Challenged(..) => {
                "the client had to prove that the GID that it offers is its process's".to_owned()
            }
            State::Waiting(..) => {
                "the client waited for one of the server's connections".to_owned()
            }
            State::Admitted => "the client's queue pair was being created".to_owned(),
            State::QpRts(..) if self.stream.is_writing() => {
                "the client was welcomed, but did not read it".to_owned()
            }
            State::QpRts(..) => "the client was welcomed, but its Ready did not come".to_owned(),
            State::Rejected => "the client had been rejected".to_owned(),
        }
    }

    pub(super) fn handle_event(&mut self, flags: EventFlags) -> NextAction {
        if flags.contains(EventFlags::OUT) && self.flush().is_err() {
            self.give_up("the socket ended");
            return NextAction::Close;
        }
        if self.is_being_secured() {
            // The system reports the end of a socket again and again.
            return match flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                true => NextAction::Close,
                false => NextAction::Wait,
            };
        }
        self.receive()
    }

    /// Reads what has arrived, and handles it.
    fn receive(&mut self) -> NextAction {
        let mut bytes = Vec::new();
        let is_rejected = matches!(self.state, State::Rejected);
        match self.stream.read(READ_LEN, &mut bytes) {
            Ok(Arrived::End) if is_rejected => NextAction::Close,
            Ok(Arrived::End) => {
                self.give_up("the client closed its socket");
                NextAction::Close
            }
            // Continue to read: if bytes were left unread, closing the socket would send a reset,
            // and the client would lose the reason.
            Ok(Arrived::Bytes) if is_rejected => NextAction::Wait,
            Ok(Arrived::Bytes) => self.handle_bytes(bytes),
            Err(error) if error.is_transient() => NextAction::Wait,
            Err(error) => {
                if !is_rejected {
                    self.give_up(&error.to_string());
                }
                NextAction::Close
            }
        }
    }

    /// Handles bytes of the client's handshake, or the first ones of a connection for calls.
    fn handle_client_bytes(&mut self, bytes: &[u8]) -> NextAction {
        let is_first =
            matches!(self.state, State::Incoming) && self.handshake.received().is_nothing();
        if is_first {
            self.first_bytes.extend_from_slice(bytes);
            match link::examine(&self.first_bytes) {
                FirstBytes::Incomplete => return NextAction::Wait,
                FirstBytes::Link(secret) => return NextAction::Link(secret),
                FirstBytes::OtherVersion(version) => {
                    return self.refuse(&format!(
                        "the connection for calls speaks version {version}, the server speaks version {}: upgrade the older side",
                        link::VERSION
                    ));
                }
                FirstBytes::Other => {
                    let first = std::mem::take(&mut self.first_bytes);
                    return self.handle_handshake(&first);
                }
            }
        }
        self.handle_handshake(bytes)
    }

    fn handle_handshake(&mut self, bytes: &[u8]) -> NextAction {
        match self.handshake.handle(bytes) {
            Ok(None) => NextAction::Wait,
            Ok(Some(Request::Hello(offer))) => {
                if let Err(refusal) = self.config.admission.permits(&self.origin().peer()) {
                    return self.refuse(&refusal.reason);
                }
                self.state = State::Offered(offer);
                NextAction::Challenge
            }
            Ok(Some(Request::Ready)) => self.complete(),
            Err(error) => self.refuse(&error.to_string()),
        }
    }

    /// Returns the secret of a connection for calls, if all of its first bytes are there to be read, and
    /// it need not be secured.
    pub(super) fn link_secret_that_has_arrived(&mut self) -> Option<LinkSecret> {
        if !self.config.takes_plain {
            return None;
        }
        // One more, which a client does not send.
        let mut bytes = [0; LINK_HELLO_LEN + 1];
        let len = self.stream.peek(&mut bytes).ok()??;
        let FirstBytes::Link(secret) = link::examine(&bytes[..len]) else {
            return None;
        };
        self.stream.read(len, &mut Vec::new()).ok()?;
        Some(secret)
    }

    /// Returns the connection whose first bytes were those of a link.
    pub(super) fn into_link(self) -> Option<LinkBytes> {
        self.stream.into_link()
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Asks the client to prove that the GID that it offers is its own, unless there is nothing to
    /// prove. `on_claim` leads to [`claimed`](Self::claimed).
    pub(super) fn challenge(&mut self, on_claim: impl FnOnce(bool) + Send + 'static) -> NextAction {
        let State::Offered(offer) = std::mem::replace(&mut self.state, State::Incoming) else {
            return self.refuse("it sent more than its hello");
        };
        let demand = match connect_server::challenge(&self.config.ports, &offer, on_claim) {
            Ok(Some(demand)) => demand,
            Ok(None) => {
                self.state = State::Waiting(offer, None);
                return NextAction::Admit;
            }
            Err(error) => return self.refuse(&error.to_string()),
        };
        let (challenge, awaited) = demand;
        match self.handshake.challenge(&challenge) {
            Ok(frame) => {
                self.state = State::Challenged(offer, awaited);
                self.write_or_close(&frame)
            }
            Err(error) => self.refuse(&error.to_string()),
        }
    }

    /// Handles a claim of the GID that the client offers. `is_its_own` tells whether it came from
    /// the process of that GID, for the queue pair that the client offers.
    pub(super) fn claimed(&mut self, is_its_own: bool) -> NextAction {
        match std::mem::replace(&mut self.state, State::Rejected) {
            State::Challenged(offer, claim) if is_its_own => {
                self.state = State::Waiting(offer, Some(claim));
                NextAction::Admit
            }
            State::Challenged(..) => {
                self.state = State::Incoming;
                self.refuse(
                    "the client offers another process's GID, or another queue pair, than was claimed",
                )
            }
            // The client was rejected in the meantime.
            other => {
                self.state = other;
                NextAction::Wait
            }
        }
    }

    /// Returns true if the server has a connection left for a client.
    pub(super) fn server_has_room(&self) -> bool {
        self.config.admission.has_room()
    }

    /// Has the core decide about a client that waits for it.
    pub(super) fn admit(&mut self) -> NextAction {
        let (offer, claim) = match std::mem::replace(&mut self.state, State::Incoming) {
            State::Waiting(offer, claim) => (offer, claim),
            other => {
                self.state = other;
                return NextAction::Wait;
            }
        };
        let admitted = match self.config.admission.admit(&offer.session) {
            Ok(admitted) => admitted,
            Err(refusal) => return self.refuse(&refusal.reason),
        };
        let Some(port) = self.config.ports.get(admitted.poller) else {
            let reason = format!("the server has no poller {}", admitted.poller);
            return self.refuse(&reason);
        };
        self.state = State::Admitted;
        let origin = self.origin();
        NextAction::CreateQueuePair(port.clone(), offer, origin, admitted, claim)
    }

    /// Returns what is known of the client besides what it offers.
    fn origin(&self) -> Origin {
        Origin {
            address: self.peer,
            is_secured: self.stream.is_secured(),
            certificate: self.certificate.clone(),
        }
    }

    /// Handles the result of creating the queue pair.
    pub(super) fn prepared(&mut self, result: Prepared) -> NextAction {
        if !matches!(self.state, State::Admitted) {
            // The client was rejected in the meantime.
            result.discard();
            return NextAction::Wait;
        }
        let Prepared { key, outcome } = result;
        let client_in_rts = match outcome {
            Ok(client_in_rts) => client_in_rts,
            Err(reason) => return self.refuse(&reason),
        };
        let ClientInRts {
            welcome,
            notice_sender,
            keepalive_state,
            awaited_link: _,
        } = client_in_rts;
        match self.handshake.welcome(welcome) {
            Ok(frame) => {
                self.state = State::QpRts(key, notice_sender, Box::new(keepalive_state));
                self.write_or_close(&frame)
            }
            Err(error) => {
                let action = self.refuse(&format!("the server's welcome: {error}"));
                // The poller already knows the connection.
                let _ = notice_sender.send(Notice::Ended(key, LivenessEnd::Gone));
                action
            }
        }
    }

    fn write_or_close(&mut self, frame: &[u8]) -> NextAction {
        match self.stream.write(frame) {
            Ok(()) => NextAction::Wait,
            Err(_) => {
                self.give_up("the socket ended");
                NextAction::Close
            }
        }
    }

    fn complete(&mut self) -> NextAction {
        if self.link_secret.is_some() {
            return self.refuse("it was ready without the connection for its calls");
        }
        match std::mem::replace(&mut self.state, State::Rejected) {
            State::QpRts(key, notice_sender, keepalive_state) => {
                let version = self.handshake.version();
                tracing::debug!(peer = %self.peer, %key, version, "a client has connected");
                let rest = std::mem::take(&mut self.handshake).into_rest();
                let closed = ControlStream::plain(Arc::clone(self.stream.socket()));
                let stream = std::mem::replace(&mut self.stream, closed);
                NextAction::Open(
                    LivenessConnection::new(
                        stream,
                        key,
                        notice_sender,
                        *keepalive_state,
                        ClockRole::Answers,
                    ),
                    rest,
                )
            }
            State::Offered(_) | State::Challenged(..) | State::Waiting(..) | State::Admitted => {
                self.refuse("it did not wait for the response to its hello")
            }
            // The state machine accepts no `Ready` before the hello.
            State::Incoming | State::Rejected => NextAction::Close,
        }
    }

    /// Rejects the client for what it sent, or because this side cannot serve it. Sends the reason
    /// and keeps the socket open, so the client can read the reason.
    pub(super) fn refuse(&mut self, reason: &str) -> NextAction {
        let stage = self.stage();
        log_limited!(info, peer = %self.peer, reason, ?stage, "rejected a client");
        self.end(reason)
    }

    /// Rejects the client because its handshake ended before it was complete: for example, it took
    /// too long. The reason says how far the handshake had come.
    pub(super) fn give_up(&mut self, why: &str) -> NextAction {
        let reason = format!("{why}: {}", self.reached());
        self.refuse(&reason)
    }

    /// Rejects the client to make room for another one. Strangers can cause this often, so it is
    /// not logged for each client.
    pub(super) fn make_room(&mut self, why: &str) {
        let reason = format!("{why}: {}; try again", self.reached());
        tracing::debug!(peer = %self.peer, reason, "rejected a client");
        self.end(&reason);
    }

    fn end(&mut self, reason: &str) -> NextAction {
        let state = std::mem::replace(&mut self.state, State::Rejected);
        let told = match self.beginning {
            Beginning::Nothing | Beginning::Done => {
                let frame = self.handshake.refuse(reason);
                let told = self.stream.write(&frame);
                self.stream.seal_end();
                told
            }
            // What TLS has to say about it is sent already.
            Beginning::Securing { .. } | Beginning::Away { .. } | Beginning::Insecure => Ok(()),
        };
        let flushed = told.and_then(|()| self.flush());
        // After the reason was written: the poller shuts the socket down when it closes the
        // connection.
        if let State::QpRts(key, notice_sender, _) = state {
            let _ = notice_sender.send(Notice::Ended(key, LivenessEnd::Gone));
        }
        match flushed {
            Ok(()) => NextAction::Wait,
            Err(_) => NextAction::Close,
        }
    }

    /// Writes as much as the socket accepts. Shuts down the write half once a rejection is sent
    /// completely.
    fn flush(&mut self) -> Result<(), StreamError> {
        self.stream.flush()?;
        if matches!(self.state, State::Rejected) && !self.stream.is_writing() {
            self.stream.shut_down_write()?;
        }
        Ok(())
    }
}
