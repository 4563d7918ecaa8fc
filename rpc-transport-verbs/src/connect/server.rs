//! The server's half of connection setup. It runs on the preparer threads of `control_thread`.

mod rejections;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;

use rpc_core::PeerCertificate;
use rpc_core::transport::{Admitted, Peer, PeerSentence, RoomWanted, limit_reached};
use verbline_verbs::log_limited;

pub(crate) use self::rejections::RejectedDevices;
use self::rejections::Rejection;
use super::address;
use super::handshake::choice;
use super::handshake::{Challenge, Endpoint, Offer, Welcome};
use super::keepalive::KeepaliveState;
use super::link::LinkSecret;
use crate::transport::VerbsTransport;
use crate::transport::endpoint::{DeviceAddress, SOFT, TCP};
use crate::transport::lane::Lane;
use crate::transport::liveness_socket::LivenessSocket;
use crate::transport::notices::{ConnectionInRts, LivenessKey, Notice, NoticeSender};
use crate::transport::peer_clock::monotonic_us;
use crate::transport::queue_pairs::{
    AwaitedClaim, LinkTarget, Plaintext, QpRts, QueuePairError, QueuePairs,
};

/// Opens the listening socket at `host:port`.
pub(crate) fn bind(address: &str) -> io::Result<TcpListener> {
    TcpListener::bind(&address::resolve(address)?[..])
}

/// Number of clients that may wait to be accepted, at most `net.core.somaxconn`. If more connect
/// while the control thread does not run, the kernel drops their first packet, which costs them a
/// second.
const BACKLOG: i32 = 4096;

/// Makes a socket listen as the control thread needs it, and returns its address. An application
/// may have received it from another process.
pub(crate) fn listen(socket: &TcpListener) -> io::Result<SocketAddr> {
    // Replaces the limit that the standard library, or the other process, chose.
    rustix::net::listen(socket, BACKLOG)?;
    // A socket that was not bound has its port since it listens.
    let address = socket.local_addr()?;
    socket.set_nonblocking(true)?;
    // One from another process mostly lacks this flag.
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC)?;
    Ok(address)
}

/// Hands a listener's connections to one poller's transport. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Port {
    /// The lanes, in the order in which they are tried.
    lanes: Arc<[LanePort]>,
}

/// Hands connections to one lane.
#[derive(Debug)]
pub(crate) struct LanePort {
    queue_pairs: Arc<QueuePairs>,
    notice_sender: NoticeSender,
}

/// What is known of a client besides what it offers.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    /// Its connections are encrypted, and this server has proved who it is.
    pub(crate) is_secured: bool,
    /// What the client has proved to be.
    pub(crate) certificate: Option<Arc<PeerCertificate>>,
}

impl Origin {
    /// Returns the description of the client, without the device of its calls.
    pub(crate) fn peer(&self) -> Peer {
        // A client of a socket for IPv4 and IPv6 is called by its own address.
        let address = SocketAddr::new(self.address.ip().to_canonical(), self.address.port());
        let peer = Peer::new(address);
        match &self.certificate {
            Some(certificate) => peer.with_certificate(Arc::clone(certificate)),
            None => peer,
        }
    }
}

/// A client that has a queue pair and can be sent its `Welcome`.
#[derive(Debug)]
pub(crate) struct ClientInRts {
    /// The message to send to the client.
    pub(crate) welcome: Welcome,
    /// The notice sender of the lane that the client was assigned to.
    pub(crate) notice_sender: NoticeSender,
    /// The keepalive state of the client's TCP connection, for when the handshake is complete.
    pub(crate) keepalive_state: KeepaliveState,
    /// The queue pair that waits for the connection that the client dials for its calls, and the
    /// secret that this connection begins with.
    pub(crate) awaited_link: Option<(LinkSecret, LinkTarget)>,
}

/// Why no queue pair could be set up for an admitted client. The message is sent to the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AcceptError {
    /// The two sides have no kind of device in common.
    #[error(
        "the two sides have no kind of device in common: the server has {server}, the client offers {client}. {remedy}; or build both with the feature `rdma`",
        remedy = match is_secured {
            true => "Name one that both have, as in VERBLINE_DEVICE=soft,tcp for both: tcp is encrypted here",
            false => "Name one that both have, as in VERBLINE_DEVICE=soft,tcp for the client, or call `allow_plaintext()` on its device",
        }
    )]
    NoCommonDevice {
        /// The client has TLS.
        is_secured: bool,
        /// The server's devices.
        server: String,
        /// The client's devices.
        client: String,
    },
    /// The two sides have a kind of device in common, but no pair of devices that can connect.
    #[error(
        "no device of the server reaches the client ({rejected}): the server has {server}, the client offers {client}. {remedy}",
        remedy = match (rejected.has_failures(), is_secured) {
            (true, _) => "A device that reaches the client has failed: see the server's log",
            (false, true) => "Both sides need a device on one network, or tcp, which is encrypted here: name it, as in VERBLINE_DEVICE=soft,tcp",
            (false, false) => "Both sides need a device on one network, or tcp, which is not encrypted: call `allow_plaintext()` on the devices of both, or name it, as in VERBLINE_DEVICE=soft,tcp",
        }
    )]
    NoRoute {
        /// The client has TLS.
        is_secured: bool,
        /// Why each of the server's devices was rejected.
        rejected: RejectedDevices,
        /// The server's devices.
        server: String,
        /// The client's devices.
        client: String,
    },
    /// The client offers no device whose data is encrypted, and the server takes no others.
    #[error(
        "the server takes only devices whose data is encrypted (`require_encryption`): tcp with TLS. The client offers {client}: name tcp on it, too, as in VERBLINE_DEVICE=soft,tcp"
    )]
    Unencrypted {
        /// The client's devices.
        client: String,
    },
    /// The client can only be reached over TCP, and the server takes no such clients.
    #[error(
        "{}. Its other devices do not reach the client ({others})",
        Rejection::Plaintext
    )]
    Plaintext {
        /// Why each of the server's other devices was rejected.
        others: RejectedDevices,
    },
    /// The system returned no random bytes.
    #[error("the server's system returned no random bytes: {0}")]
    Random(#[from] io::Error),
    /// The poller's transport has been dropped.
    #[error("the server is shutting down")]
    Closed,
}

/// Why a client cannot be asked to prove the GID that it offers. The message is sent to the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChallengeError {
    /// A client has the software device once, and it proves one endpoint.
    #[error("the client offers {0} endpoints of the software device, but a client has one")]
    SeveralEndpoints(usize),
    /// The device failed.
    #[error("the server's device failed: {0}")]
    Device(#[from] QueuePairError),
}

/// Returns the proof that a client owes before it is admitted, or `None` if it offers no GID of the
/// software device that a device of these ports can reach. `on_claim` gets the result, once.
///
/// A connection over the software device leads to the process of the GID, and takes resources of
/// both. Other devices have no such proof.
pub(crate) fn challenge(
    ports: &[Port],
    client: &Offer,
    on_claim: impl FnOnce(bool) + Send + 'static,
) -> Result<Option<(Challenge, AwaitedClaim)>, ChallengeError> {
    // All lanes of the software device of a process have one GID.
    let mut lanes = ports.iter().flat_map(|port| port.lanes.iter());
    let Some((lane, local)) = lanes.find_map(|lane| {
        let mut addresses = lane.queue_pairs.device_addresses();
        Some((lane, addresses.find(|address| address.kind == SOFT)?))
    }) else {
        return Ok(None);
    };
    let Ok(fit) = choice::matching_endpoints(local, &client.endpoints) else {
        return Ok(None);
    };
    let [index] = fit[..] else {
        return Err(ChallengeError::SeveralEndpoints(fit.len()));
    };
    let endpoint = &client.endpoints[index];
    let awaited = lane.queue_pairs.expect_claim(endpoint, on_claim)?;
    let challenge = Challenge {
        gid: awaited.own_gid().0,
        nonce: awaited.nonce(),
        client_endpoint: index,
    };
    Ok(Some((challenge, awaited)))
}

impl LanePort {
    pub(crate) fn new(queue_pairs: Arc<QueuePairs>, notice_sender: NoticeSender) -> Self {
        Self {
            queue_pairs,
            notice_sender,
        }
    }

    /// Creates a queue pair, connects it to `remote` and moves it to RTS. Also returns the local
    /// endpoint.
    fn bring_up(&self, remote: &Endpoint) -> Result<(QpRts, Endpoint), QueuePairError> {
        let qp_init = self.queue_pairs.create()?;
        let local = self.queue_pairs.endpoint(&qp_init, &remote.kind);
        let qp_rts = self.queue_pairs.connect(qp_init, remote)?;
        Ok((qp_rts, local))
    }
}

impl VerbsTransport {
    pub(crate) fn port(&self) -> Port {
        Port::new(self.lanes().map(Lane::port).collect())
    }
}

impl Lane {
    fn port(&self) -> LanePort {
        LanePort::new(Arc::clone(&self.queue_pairs), self.notice_sender.clone())
    }
}

impl Port {
    pub(crate) fn new(lanes: Vec<LanePort>) -> Self {
        Self {
            lanes: lanes.into(),
        }
    }

    /// Asks the poller to end connections that nobody uses.
    pub(crate) fn ask_for_room(&self, wanted: RoomWanted) {
        if let Some(lane) = self.lanes.first() {
            // A poller that has ended drops it, which answers it.
            let _ = lane.notice_sender.send(Notice::RoomWanted(wanted));
        }
    }

    /// Creates a queue pair for a client, on the first device that both sides have and that reaches
    /// the client, brings it up, and notifies the poller. Returns the `Welcome` to send to the
    /// client.
    ///
    /// The poller is notified before the client is sent anything, so a frame can never arrive
    /// before the poller knows its connection.
    ///
    /// A simulation has no origin.
    pub(crate) fn create_queue_pair(
        &self,
        client: &Offer,
        origin: Option<Origin>,
        mut admitted: Admitted,
        liveness: impl Into<LivenessSocket>,
        key: LivenessKey,
    ) -> Result<ClientInRts, AcceptError> {
        let is_secured = origin.as_ref().is_some_and(|origin| origin.is_secured);
        let Chosen {
            lane,
            remote,
            qp_rts,
            local,
            rejected,
        } = self.choose(client, is_secured)?;
        let address = origin.as_ref().map(|origin| origin.address);
        log_limited!(
            info,
            address = address.map(tracing::field::display),
            device = local.device,
            kind = local.kind,
            remote_device = client.endpoints[remote].device,
            rejected,
            "a client uses the first of this side's devices that both sides have"
        );
        let awaited_link = match qp_rts.queue_pair.link_target() {
            Some(target) => Some((LinkSecret::random()?, target)),
            None => None,
        };
        if let Some(origin) = &origin {
            let peer = origin.peer().with_device(&*local.device);
            // Shared memory is only had with processes whose user, as the kernel tells, is the
            // effective user of this process: both sides of each link check
            // `Credentials::is_our_user`. So root is refused, unless this process is root's. If this
            // process changes its user later, its links stay, and this is its new user.
            admitted.set_peer(match qp_rts.is_on_this_host {
                true => peer.with_user_id(rustix::process::geteuid().as_raw()),
                false => peer,
            });
        }
        let limits = &lane.queue_pairs.plan().limits;
        let slot_len = limits.slot_len;
        let keepalive_state = KeepaliveState::with_client(limits.keepalive, Instant::now());
        let welcome = Welcome {
            endpoint: local,
            client_endpoint: remote,
            max_frame_len: u32::try_from(slot_len).unwrap_or(u32::MAX),
            session: admitted.server_session.clone(),
            clock_us: monotonic_us(),
            link_secret: awaited_link.as_ref().map(|(secret, _)| *secret),
            rejected: PeerSentence::new(&rejected),
        };
        let connection = ConnectionInRts {
            qp_rts,
            remote_frame_len: client.max_frame_len as usize,
            admitted,
            liveness: liveness.into(),
            key,
        };
        lane.notice_sender
            .send(Notice::QpRts(Box::new(connection)))
            .map_err(|_| AcceptError::Closed)?;
        Ok(ClientInRts {
            welcome,
            notice_sender: lane.notice_sender.clone(),
            keepalive_state,
            awaited_link,
        })
    }

    /// Returns the first lane that can connect to the client, with a connected queue pair.
    fn choose(&self, client: &Offer, is_secured: bool) -> Result<Chosen<'_>, AcceptError> {
        let mut rejected = RejectedDevices::default();
        let lanes = self.lanes.iter();
        let mut addresses: Vec<_> = lanes
            .flat_map(|lane| {
                let placed = lane.queue_pairs.placed_addresses();
                placed.map(move |(place, local)| (place, lane, local))
            })
            .collect();
        addresses.sort_by_key(|(place, ..)| *place);
        for (_, lane, local) in addresses {
            if let Some(chosen) = lane.try_address(local, (client, is_secured), &mut rejected) {
                return Ok(chosen);
            }
        }
        let offers_tcp = client.endpoints.iter().any(|endpoint| endpoint.kind == TCP);
        // A server without the device tcp takes no such clients either. If another device would have
        // done and has failed, the failure is the reason.
        if !is_secured && !self.takes_plaintext() && offers_tcp && !rejected.has_failures() {
            rejected.remove_plaintext();
            return Err(AcceptError::Plaintext { others: rejected });
        }
        if rejected.lacks_encryption() && !offers_tcp {
            return Err(AcceptError::Unencrypted {
                client: choice::list(client.endpoints.iter().map(Endpoint::device_address)),
            });
        }
        let lanes = self.lanes.iter();
        let server = choice::list(lanes.flat_map(|lane| lane.queue_pairs.device_addresses()));
        let client = choice::list(client.endpoints.iter().map(Endpoint::device_address));
        Err(if rejected.all_for_their_kind() {
            AcceptError::NoCommonDevice {
                is_secured,
                server,
                client,
            }
        } else {
            AcceptError::NoRoute {
                is_secured,
                rejected,
                server,
                client,
            }
        })
    }

    fn takes_plaintext(&self) -> bool {
        let mut lanes = self.lanes.iter();
        lanes.any(|lane| lane.queue_pairs.plaintext() == Plaintext::Allowed)
    }
}

/// A lane that is connected to a client.
struct Chosen<'a> {
    lane: &'a LanePort,
    /// Index of the client's endpoint.
    remote: usize,
    qp_rts: QpRts,
    local: Endpoint,
    /// Why the devices before were not chosen, as a sentence.
    rejected: String,
}

impl LanePort {
    /// Connects a queue pair from this address to the client, if that is permitted and possible.
    fn try_address(
        &self,
        local: DeviceAddress<'_>,
        (client, is_secured): (&Offer, bool),
        rejected: &mut RejectedDevices,
    ) -> Option<Chosen<'_>> {
        let fit = match choice::matching_endpoints(local, &client.endpoints) {
            Ok(fit) => fit,
            Err(mismatch) => {
                rejected.add(local, Rejection::EndpointMismatch(mismatch));
                return None;
            }
        };
        let plaintext = self.queue_pairs.plaintext();
        if !plaintext.permits(local.kind, is_secured) {
            rejected.add(
                local,
                match plaintext {
                    Plaintext::Nowhere => Rejection::Unencrypted,
                    Plaintext::Refused | Plaintext::Allowed => Rejection::Plaintext,
                },
            );
            return None;
        }
        for index in fit {
            let remote = &client.endpoints[index];
            match self.bring_up(remote) {
                Ok((qp_rts, endpoint)) => {
                    return Some(Chosen {
                        lane: self,
                        remote: index,
                        qp_rts,
                        local: endpoint,
                        rejected: rejected.or_none(),
                    });
                }
                Err(error) => {
                    log_limited!(warn, for &local.device, device = local.device, %error, limit = limit_reached(&error), "a device refused a client");
                    rejected.add(local, Rejection::Refused(error));
                }
            }
        }
        None
    }
}
