//! The client's half of connection setup: a blocking handshake on any thread, after which the
//! poller adopts the connection.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpc_core::transport::{ConnectError, Connected, Dialer, Transport};

use super::clock_exchange::ClockExchange;
use super::handshake::choice;
use super::handshake::client::{ClientHandshake, ServerResponse};
use super::handshake::{Challenge, Endpoint, HandshakeError, Offer, Received, Welcome};
use super::keepalive::KeepaliveState;
use super::liveness::{ClockRole, LivenessConnection};
use super::{address, control_thread};
use crate::transport::VerbsTransport;
use crate::transport::connection::Phase;
use crate::transport::endpoint::{DeviceAddress, SOFT};
use crate::transport::notices::LivenessKey;
use crate::transport::peer_clock::{ClockEstimate, PeerClockCell, monotonic_us};
use crate::transport::queue_pairs::{QpInit, QpRts, QueuePairError, QueuePairs};

/// Runs handshakes for one transport, on any thread.
pub(crate) struct HandshakeDialer {
    /// The lanes, in the order of the transport's lanes.
    lanes: Vec<DialingLane>,
    slot_len: u32,
}

struct DialingLane {
    number: u32,
    queue_pairs: Arc<QueuePairs>,
}

/// A connection that has completed the handshake and waits for its poller to adopt it.
#[derive(Debug)]
pub struct Dialed {
    lane: u32,
    qp_rts: QpRts,
    stream: TcpStream,
    welcome: Welcome,
    remote: SocketAddr,
    address: String,
    /// The first estimate of the server's clock.
    clock: ClockEstimate,
}

impl HandshakeDialer {
    pub(crate) fn new(transport: &VerbsTransport) -> Self {
        let lanes = transport.lanes().map(|lane| DialingLane {
            number: lane.number,
            queue_pairs: Arc::clone(&lane.queue_pairs),
        });
        Self {
            lanes: lanes.collect(),
            slot_len: u32::try_from(transport.limits().slot_len).unwrap_or(u32::MAX),
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
        let deadline = Deadline::after(timeout);
        let device_error =
            |source: Box<dyn std::error::Error + Send + Sync>| ConnectError::Device {
                address: address.to_owned(),
                source,
            };
        let (mut stream, remote) = dial(address, &deadline)?;

        let offers = offers(&self.lanes).map_err(|e| device_error(e.into()))?;
        let mut handshake = ClientHandshake::default();
        let hello = handshake
            .hello(Offer {
                endpoints: offers.iter().map(LaneOffer::endpoint).collect(),
                max_frame_len: self.slot_len,
                session: session.to_vec(),
                keepalive: true,
            })
            .map_err(|e| device_error(e.into()))?;

        let failed = |(reached, error)| exchange_error(address, timeout, reached, error);
        let mut asked_us = monotonic_us();
        let response = exchange(&mut stream, &mut handshake, &hello, &deadline);
        let mut response = response.map_err(failed)?;
        if let ServerResponse::Challenge(challenge) = &response {
            asked_us = monotonic_us();
            let late = |error: io::Error| failed((Reached::Challenged, error.into()));
            let left = deadline.left().map_err(late)?;
            prove(&offers, challenge, left).map_err(|error| match deadline.left() {
                Ok(_) => device_error(error.into()),
                Err(timed_out) => late(timed_out),
            })?;
            response = read_response(&mut stream, &mut handshake, &deadline)
                .map_err(|error| failed((Reached::Claimed(handshake.received()), error)))?;
        }
        let welcome = match response {
            ServerResponse::Welcome(welcome) => welcome,
            // The state machine accepts one challenge.
            ServerResponse::Challenge(_) => {
                return Err(ConnectError::NotVerbline {
                    address: address.to_owned(),
                    reason: "it sent a second challenge".to_owned(),
                });
            }
            ServerResponse::Refused(reason) => {
                return Err(ConnectError::Refused {
                    address: address.to_owned(),
                    reason,
                });
            }
        };
        let clock = ClockEstimate::new(asked_us, welcome.clock_us, monotonic_us());
        // Queue pairs that the server did not choose are dropped here.
        let LaneOffer { lane, qp_init } =
            chosen(offers, &welcome, handshake.version()).map_err(|reason| {
                ConnectError::NotVerbline {
                    address: address.to_owned(),
                    reason,
                }
            })?;
        let qp_rts = lane
            .queue_pairs
            .connect(qp_init, &welcome.endpoint)
            .map_err(|e| device_error(e.into()))?;
        let frame = handshake.ready().map_err(|e| device_error(e.into()))?;
        deadline
            .write(&mut stream, &frame)
            .map_err(|error| failed((Reached::Welcomed, error)))?;

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
    let liveness = Arc::new(dialed.stream);
    let key = LivenessKey::next();
    // Processes of one host have one clock.
    let peer_clock = (!lane.is_on_one_host).then(|| Arc::new(PeerClockCell::new(dialed.clock)));
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
            let keepalive_state =
                KeepaliveState::with_server(dialed.welcome.keepalive, keepalive, Instant::now());
            let notice_sender = lane.notice_sender.clone();
            control.watch(LivenessConnection::new(
                Arc::clone(&liveness),
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

/// A lane's queue pair, offered to the server.
struct LaneOffer<'a> {
    lane: &'a DialingLane,
    qp_init: QpInit,
}

impl LaneOffer<'_> {
    fn endpoint(&self) -> Endpoint {
        self.lane.queue_pairs.endpoint(&self.qp_init)
    }

    fn device_address(&self) -> DeviceAddress<'_> {
        self.lane.queue_pairs.device_address()
    }
}

/// Creates one queue pair on each lane, in the order of the lanes, and leaves out lanes that fail.
/// Returns the first lane's error if all fail.
fn offers(lanes: &[DialingLane]) -> Result<Vec<LaneOffer<'_>>, QueuePairError> {
    let mut offers = Vec::new();
    let mut first_error = None;
    for lane in lanes {
        match lane.queue_pairs.create() {
            Ok(qp_init) => offers.push(LaneOffer { lane, qp_init }),
            Err(error) => {
                let device = lane.queue_pairs.device_address().device;
                tracing::warn!(device, %error, "a device cannot create a queue pair and is not offered to the server");
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error {
        Some(error) if offers.is_empty() => Err(error),
        _ => Ok(offers),
    }
}

/// Proves to the server that the GID of an offered endpoint is this process's. Takes about this
/// time at most.
fn prove(
    offers: &[LaneOffer<'_>],
    challenge: &Challenge,
    time: Duration,
) -> Result<(), ProofError> {
    let index = challenge.client_endpoint;
    let soft = |offer: &&LaneOffer<'_>| offer.device_address().kind == SOFT;
    let offer = offers.get(index).filter(soft);
    let offer = offer.ok_or(ProofError::Endpoint { index })?;
    Ok(offer
        .lane
        .queue_pairs
        .claim(&offer.qp_init, challenge.gid, challenge.nonce, time)?)
}

/// Why this side cannot prove its GID.
#[derive(Debug, thiserror::Error)]
enum ProofError {
    #[error(
        "the server demands a proof for number {index} of the offered devices, which is not a software device"
    )]
    Endpoint { index: usize },
    #[error("it cannot be proven to the server that this process has the GID that it offers: {0}")]
    Device(#[from] QueuePairError),
}

/// Returns the offer that the server chose, or a message that says why its choice is invalid.
fn chosen<'a>(
    mut offers: Vec<LaneOffer<'a>>,
    welcome: &Welcome,
    version: u32,
) -> Result<LaneOffer<'a>, String> {
    let offered = choice::list(offers.iter().map(|offer| offer.device_address()));
    let remote = &welcome.endpoint;
    let index = welcome.client_endpoint;
    if index >= offers.len() || offers[index].device_address().kind != remote.kind {
        return Err(format!(
            "it chose its device {} of kind {} for number {index} of the offered devices, which are {offered}",
            remote.device, remote.kind
        ));
    }
    let offer = offers.swap_remove(index);
    tracing::info!(
        device = offer.device_address().device,
        kind = remote.kind,
        remote_device = remote.device,
        offered,
        version,
        "connected over the first of the server's devices that both sides have"
    );
    Ok(offer)
}

/// Opens a TCP connection to the first reachable host of the address.
fn dial(address: &str, deadline: &Deadline) -> Result<(TcpStream, SocketAddr), ConnectError> {
    let wrong = |source: io::Error| {
        let address = address.to_owned();
        match source.kind() {
            // It was not looked up.
            io::ErrorKind::InvalidInput => ConnectError::Address { address, source },
            _ => ConnectError::Unresolved { address, source },
        }
    };
    let unreachable = |source| ConnectError::Unreachable {
        address: address.to_owned(),
        source,
    };
    let mut last = None;
    for remote in address::resolve(address).map_err(wrong)? {
        let left = deadline.left().map_err(unreachable)?;
        match TcpStream::connect_timeout(&remote, left) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(unreachable)?;
                return Ok((stream, remote));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(match last {
        Some(error) => unreachable(error),
        None => wrong(io::Error::other("the name resolves to no address")),
    })
}

/// Sends the hello and reads the response. An error comes with the stage that was reached.
fn exchange(
    stream: &mut TcpStream,
    handshake: &mut ClientHandshake,
    hello: &[u8],
    deadline: &Deadline,
) -> Result<ServerResponse, (Reached, ExchangeError)> {
    match deadline.write(stream, hello) {
        Ok(()) => read_response(stream, handshake, deadline)
            .map_err(|error| (Reached::HelloSent(handshake.received()), error)),
        // A server may reject a client before it has read the hello, and close the socket. Then the
        // hello cannot be sent, but the reason can be read.
        Err(error) => match read_response(stream, handshake, deadline) {
            Ok(refused @ ServerResponse::Refused(_)) => Ok(refused),
            Ok(ServerResponse::Welcome(_) | ServerResponse::Challenge(_)) | Err(_) => {
                Err((Reached::Connected, error))
            }
        },
    }
}

fn read_response(
    stream: &mut TcpStream,
    handshake: &mut ClientHandshake,
    deadline: &Deadline,
) -> Result<ServerResponse, ExchangeError> {
    let mut bytes = [0; 4096];
    loop {
        let len = deadline.read(stream, &mut bytes)?;
        if len == 0 {
            return Err(ExchangeError::Closed);
        }
        if let Some(response) = handshake.handle(&bytes[..len])? {
            return Ok(response);
        }
    }
}

/// An error after the TCP connection was established.
#[derive(Debug, thiserror::Error)]
enum ExchangeError {
    #[error("it closed the socket during the handshake")]
    Closed,
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

/// The stage that a client's handshake has reached.
#[derive(Clone, Copy, Debug)]
enum Reached {
    Connected,
    /// How much of the response has arrived.
    HelloSent(Received),
    /// The server demands a proof of this side's GID.
    Challenged,
    /// This side has proven its GID, and this much of the response has arrived.
    Claimed(Received),
    Welcomed,
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("this side's hello could not be sent in that time"),
            Self::HelloSent(received) => {
                write!(
                    f,
                    "this side's hello was sent, and {received} of the response arrived"
                )
            }
            Self::Challenged => f.write_str(
                "the server's process did not answer, to which this side has to prove its GID",
            ),
            Self::Claimed(received) => {
                write!(
                    f,
                    "this side's hello was sent and its GID was proven, and {received} of the response arrived"
                )
            }
            Self::Welcomed => f.write_str("the server's welcome arrived too late to answer it"),
        }
    }
}

fn exchange_error(
    address: &str,
    timeout: Duration,
    reached: Reached,
    error: ExchangeError,
) -> ConnectError {
    let address = address.to_owned();
    match error {
        ExchangeError::Handshake(HandshakeError::Version { client, server }) => {
            ConnectError::Version {
                address,
                local: client,
                remote: server,
            }
        }
        ExchangeError::Socket(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ) =>
        {
            ConnectError::TimedOut {
                address,
                timeout,
                reached: reached.to_string(),
            }
        }
        other => ConnectError::NotVerbline {
            address,
            reason: other.to_string(),
        },
    }
}

/// The time limit of the whole handshake.
struct Deadline(Option<Instant>);

impl Deadline {
    fn after(timeout: Duration) -> Self {
        // A timeout beyond the range of the clock means no timeout.
        Self(Instant::now().checked_add(timeout))
    }

    fn left(&self) -> io::Result<Duration> {
        let Some(deadline) = self.0 else {
            return Ok(Duration::MAX);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(left)
    }

    fn read(&self, stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            stream.set_read_timeout(Some(self.left()?))?;
            match stream.read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn write(&self, stream: &mut TcpStream, bytes: &[u8]) -> Result<(), ExchangeError> {
        stream.set_write_timeout(Some(self.left()?))?;
        Ok(stream.write_all(bytes)?)
    }
}
