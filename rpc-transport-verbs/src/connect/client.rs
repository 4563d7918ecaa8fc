//! The client's half of connection setup: a blocking handshake on any thread, after which the
//! poller adopts the connection.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rpc_core::transport::{ConnectError, Connected, Dialer, PeerSentence, Transport};
use verbline_verbs::for_transport::{LinkBytes, is_forked};
use verbline_verbs::{Forked, log_limited};

use super::clock_exchange::ClockExchange;
use super::control_stream::ControlStream;
use super::control_thread;
use super::dial::{dial, dial_again};
use super::exchange::{Deadline, ExchangeError, Reached, exchange, exchange_error, read_response};
use super::handshake::client::{ClientHandshake, ServerResponse};
use super::handshake::{MAGIC, Offer, Welcome};
use super::keepalive::KeepaliveState;
use super::link::LinkSecret;
use super::liveness::{ClockRole, LivenessConnection};
use super::offers::{self, DialingLane, LaneOffer, Offers, TCP_IS_WITHHELD};
use super::secure::secure;
use crate::transport::VerbsTransport;
use crate::transport::connection::Phase;
use crate::transport::endpoint::TCP;
use crate::transport::notices::LivenessKey;
use crate::transport::peer_clock::{ClockEstimate, PeerClockCell, monotonic_us};
use crate::transport::queue_pairs::QpRts;
use crate::transport::security::ClientSecurity;

/// How long the client waits for the server's reason after the server has closed the connection for
/// calls. The reason travels on the other connection. Longer than a lost segment takes to be sent again.
const REFUSAL_WAIT: Duration = Duration::from_millis(500);

/// Runs handshakes for one transport, on any thread.
pub(crate) struct HandshakeDialer {
    /// The lanes, in the order of the transport's lanes.
    lanes: Vec<DialingLane>,
    slot_len: u32,
    /// The channel was connected over another device than TCP, at this poller or another one. If the
    /// server's process ends, anybody may listen at its address, and would get the calls over TCP: it is not
    /// offered any more.
    was_protected: Arc<AtomicBool>,
    /// Who a server has to be, if connections are secured: none is without it.
    security: Option<Arc<dyn ClientSecurity>>,
}

/// A connection that has completed the handshake and waits for its poller to adopt it.
#[derive(Debug)]
pub struct Dialed {
    lane: u32,
    qp_rts: QpRts,
    stream: ControlStream,
    welcome: Welcome,
    remote: SocketAddr,
    address: String,
    /// The first estimate of the server's clock.
    clock: ClockEstimate,
}

impl HandshakeDialer {
    pub(crate) fn new(transport: &VerbsTransport, was_protected: Arc<AtomicBool>) -> Self {
        let lanes = transport.lanes().map(|lane| DialingLane {
            number: lane.number,
            queue_pairs: Arc::clone(&lane.queue_pairs),
            is_secured: transport.client_security().is_some(),
        });
        Self {
            lanes: lanes.collect(),
            slot_len: u32::try_from(transport.limits().slot_len).unwrap_or(u32::MAX),
            was_protected,
            security: transport.client_security().cloned(),
        }
    }
}

impl Dialer<Dialed> for HandshakeDialer {
    fn dial(
        &self,
        address: &str,
        session: &[u8],
        timeout: Duration,
    ) -> Result<Dialed, ConnectError> {
        // Before any lock, which another thread may have held when this process was forked.
        if is_forked() {
            return Err(ConnectError::Device {
                address: address.to_owned(),
                source: Forked.into(),
            });
        }
        let deadline = Deadline::after(timeout);
        let dial = |which| self.dial_with(address, session, (timeout, &deadline), which);
        // Relaxed: nothing else that another dialer writes is read.
        let was_protected = self.was_protected.load(Ordering::Relaxed);
        let all = Offers {
            shared_memory: true,
            tcp: self.security.is_some() || !was_protected,
        };
        let others = Offers {
            shared_memory: false,
            ..all
        };
        let outcome = match dial(all) {
            Err(DialError::NotProven(error)) if self.offers_any(others) => {
                log_limited!(info, for address, address, %error, "shared memory cannot be had with this server: offering it the other devices only");
                dial(others).map_err(|second| second.after(&error))
            }
            Err(DialError::Other(ConnectError::Refused { address, reason }))
                if self.withholds_tcp(all) =>
            {
                let reason = format!("{reason}. {TCP_IS_WITHHELD}");
                Err(ConnectError::Refused { address, reason })
            }
            Ok(dialed) => Ok(dialed),
            Err(DialError::NotProven(error) | DialError::Other(error)) => Err(error),
        };
        let dialed = outcome?;
        let is_protected = self.security.is_some() || dialed.welcome.endpoint.kind != TCP;
        let was_protected = self.was_protected.fetch_or(is_protected, Ordering::Relaxed);
        match was_protected && !is_protected {
            // Another poller's attempt has ended since this one began.
            true => self.dial(address, session, deadline.left().unwrap_or(Duration::ZERO)),
            false => Ok(dialed),
        }
    }
}

/// Why a server was not connected.
enum DialError {
    /// This side could not prove its GID to the server, which both need for shared memory.
    NotProven(ConnectError),
    Other(ConnectError),
}

impl DialError {
    /// Returns the error of a second attempt, with the reason why the first one offered too much.
    fn after(self, first: &ConnectError) -> ConnectError {
        match self {
            Self::NotProven(error) => error,
            Self::Other(ConnectError::Refused { address, reason }) => ConnectError::Refused {
                address,
                reason: format!("{reason}. Shared memory was tried before: {first}"),
            },
            Self::Other(error) => error,
        }
    }
}

impl From<ConnectError> for DialError {
    fn from(error: ConnectError) -> Self {
        Self::Other(error)
    }
}

impl HandshakeDialer {
    fn offers_any(&self, which: Offers) -> bool {
        self.lanes.iter().any(|lane| lane.offers_any(which))
    }

    fn withholds_tcp(&self, which: Offers) -> bool {
        self.lanes.iter().any(|lane| lane.withholds_tcp(which))
    }

    fn dial_with(
        &self,
        address: &str,
        session: &[u8],
        (timeout, deadline): (Duration, &Deadline),
        which: Offers,
    ) -> Result<Dialed, DialError> {
        let device_error =
            |source: Box<dyn std::error::Error + Send + Sync>| ConnectError::Device {
                address: address.to_owned(),
                source,
            };
        if !self.offers_any(which)
            && let Some(lane) = self.lanes.first()
        {
            return Err(device_error(lane.why_nothing_is_offered().into()).into());
        }
        let (socket, remote) = dial(address, (timeout, deadline))?;
        let mut stream = self.secured(socket, address, (timeout, deadline))?;

        let offers = offers::offers(&self.lanes, which).map_err(|e| device_error(e.into()))?;
        let mut handshake = ClientHandshake::default();
        let hello = handshake
            .hello(Offer {
                endpoints: offers.iter().flat_map(LaneOffer::endpoints).collect(),
                max_frame_len: self.slot_len,
                session: session.to_vec(),
            })
            .map_err(|e| device_error(e.into()))?;

        let failed = |(reached, error)| exchange_error(address, timeout, reached, error);
        let mut asked_us = monotonic_us();
        let response = exchange(&mut stream, &mut handshake, &hello, deadline);
        let mut response = response.map_err(failed)?;
        if let ServerResponse::Challenge(challenge) = &response {
            asked_us = monotonic_us();
            let late = |error: io::Error| failed((Reached::Challenged, error.into()));
            let left = deadline.left().map_err(late)?;
            offers::prove(&offers, challenge, left).map_err(|error| match deadline.left() {
                Ok(_) => DialError::NotProven(device_error(error.into())),
                Err(timed_out) => late(timed_out).into(),
            })?;
            response = read_response(&mut stream, &mut handshake, deadline)
                .map_err(|error| failed((Reached::Claimed(handshake.received()), error)))?;
        }
        let welcome = match response {
            ServerResponse::Welcome(welcome) => welcome,
            // The state machine accepts one challenge.
            ServerResponse::Challenge(_) => {
                return Err(ConnectError::NotVerbline {
                    address: address.to_owned(),
                    reason: "it sent a second challenge".to_owned(),
                }
                .into());
            }
            ServerResponse::Refused(reason) => {
                return Err(ConnectError::Refused {
                    address: address.to_owned(),
                    reason: reason.to_string(),
                }
                .into());
            }
        };
        let clock = ClockEstimate::new(asked_us, welcome.clock_us, monotonic_us());
        // Queue pairs that the server did not choose are dropped here.
        let LaneOffer { lane, qp_init, .. } =
            offers::chosen(offers, address, &welcome, handshake.version()).map_err(|reason| {
                ConnectError::NotVerbline {
                    address: address.to_owned(),
                    reason,
                }
            })?;
        let mut qp_rts = lane
            .queue_pairs
            .connect(qp_init, &welcome.endpoint)
            .map_err(|e| device_error(e.into()))?;
        if let Some(secret) = welcome.link_secret {
            let link = self.dial_link((address, remote), secret, (timeout, deadline));
            let link = link.map_err(|error| {
                let refused = |reason: PeerSentence| ConnectError::Refused {
                    address: address.to_owned(),
                    reason: reason.to_string(),
                };
                let error = match error {
                    LinkError::Refused(reason) => return refused(reason),
                    LinkError::Connect(error) => error,
                    LinkError::Exchange(error) => failed((Reached::Admitted, error)),
                };
                let reason = refusal_after_welcome(&mut stream, &mut handshake, deadline);
                reason.map_or(error, refused)
            })?;
            let adopted = qp_rts.queue_pair.adopt_link(link);
            adopted.map_err(|e| device_error(e.into()))?;
        }
        let frame = handshake.ready().map_err(|e| device_error(e.into()))?;
        deadline
            .write(&mut stream, &frame)
            .map_err(|error| failed((Reached::Welcomed, error.into())))?;

        Ok(Dialed {
            lane: lane.number,
            qp_rts,
            stream,
            welcome,
            remote,
            address: address.to_owned(),
            clock,
        })
    }
}

impl HandshakeDialer {
    /// Secures a connection, if connections are secured, and if the server is who it has to be.
    fn secured(
        &self,
        socket: TcpStream,
        address: &str,
        (timeout, deadline): (Duration, &Deadline),
    ) -> Result<ControlStream, ConnectError> {
        let stream = ControlStream::plain(socket);
        match &self.security {
            Some(security) => secure(stream, &**security, address, deadline)
                .map_err(|error| error.into_connect_error(address, timeout)),
            None => Ok(stream),
        }
    }

    /// Dials the connection that carries the calls, at the address at which the server was dialed, and
    /// waits until the server's queue pair has it: until its answer begins to arrive.
    fn dial_link(
        &self,
        (address, remote): (&str, SocketAddr),
        secret: LinkSecret,
        (timeout, deadline): (Duration, &Deadline),
    ) -> Result<LinkBytes, LinkError> {
        let dialed = dial_again(remote, (timeout, deadline));
        let socket = dialed.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => error.into(),
            _ => LinkError::Connect(ConnectError::Unreachable {
                address: address.to_owned(),
                source: error,
            }),
        })?;
        let secured = self.secured(socket, address, (timeout, deadline));
        let mut link = secured.map_err(LinkError::Connect)?;
        deadline.write(&mut link, &secret.hello())?;
        // The answer is for the queue pair to read; a refusal is a message of the handshake.
        let mut beginning = [0; MAGIC.len()];
        loop {
            let len = deadline.peek(&mut link, &mut beginning)?;
            match len.ok_or(ExchangeError::LinkClosed)? {
                0 => {}
                len if beginning[..len] != MAGIC[..len] => {
                    let link = link.into_link();
                    return Ok(link.ok_or(ExchangeError::LinkClosed)?);
                }
                // More of it is on its way.
                len if len < MAGIC.len() => thread::sleep(Duration::from_millis(1)),
                _ => break,
            }
        }
        match read_response(&mut link, &mut ClientHandshake::default(), deadline)? {
            ServerResponse::Refused(reason) => Err(LinkError::Refused(reason)),
            ServerResponse::Welcome(_) | ServerResponse::Challenge(_) => {
                Err(ExchangeError::LinkClosed.into())
            }
        }
    }
}

/// Adopts a dialed connection, on the poller's thread.
pub(crate) fn adopt(
    transport: &mut VerbsTransport,
    dialed: Dialed,
) -> Result<Connected, ConnectError> {
    let Some(lane) = transport.lane(dialed.lane) else {
        return Err(ConnectError::Device {
            address: dialed.address,
            source: "its lane is gone".into(),
        });
    };
    let liveness = Arc::clone(dialed.stream.socket());
    let key = LivenessKey::next();
    // Processes of one host have one clock.
    let is_remote = !dialed.qp_rts.is_on_this_host;
    let peer_clock = is_remote.then(|| Arc::new(PeerClockCell::new(dialed.clock)));
    let clock_role = match &peer_clock {
        Some(estimate) => ClockRole::Asks {
            exchange: Box::new(ClockExchange::new(dialed.clock)),
            estimate: Arc::clone(estimate),
        },
        None => ClockRole::Silent,
    };
    // Register with the control thread only now, on the poller's thread. Otherwise the TCP
    // connection could end before the lane has the connection, and the end would go unnoticed.
    control_thread::control()
        .and_then(|control| {
            let keepalive = lane.plan.limits.keepalive;
            let keepalive_state = KeepaliveState::with_server(keepalive, Instant::now());
            let notice_sender = lane.notice_sender.clone();
            control.watch(LivenessConnection::new(
                dialed.stream,
                key,
                notice_sender,
                keepalive_state,
                clock_role,
            ))
        })
        .map_err(|error| ConnectError::Device {
            address: dialed.address,
            source: error.into(),
        })?;
    let remote_frame_len = dialed.welcome.max_frame_len as usize;
    let connection = lane.add(dialed.qp_rts, liveness, key, remote_frame_len, Phase::Open);
    if let Some(peer_clock) = peer_clock {
        lane.set_peer_clock(connection, peer_clock);
    }
    Ok(Connected {
        connection,
        session: dialed.welcome.session,
        remote: dialed.remote,
    })
}

/// Returns the reason of a server that has ended the handshake while the connection for the calls
/// was dialed, secured or said hello on. The server closes that connection without a word, because it no
/// longer knows its secret, or has no time for it. It sends the reason first, but on the connection of the
/// handshake, where it may come later.
fn refusal_after_welcome(
    stream: &mut ControlStream,
    handshake: &mut ClientHandshake,
    deadline: &Deadline,
) -> Option<PeerSentence> {
    match read_response(stream, handshake, &deadline.within(REFUSAL_WAIT)) {
        Ok(ServerResponse::Refused(reason)) => Some(reason),
        Ok(ServerResponse::Welcome(_) | ServerResponse::Challenge(_)) | Err(_) => None,
    }
}

/// Why there is no connection for the calls.
enum LinkError {
    /// The server has refused it, for this reason.
    Refused(PeerSentence),
    Connect(ConnectError),
    Exchange(ExchangeError),
}

impl<E: Into<ExchangeError>> From<E> for LinkError {
    fn from(error: E) -> Self {
        Self::Exchange(error.into())
    }
}
