//! The server's half of connection setup. It runs on the preparer threads of `control_thread`.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use rpc_core::transport::Admitted;

use super::address;
use super::handshake::choice::{self, EndpointMismatch};
use super::handshake::{Challenge, Endpoint, Offer, Welcome};
use super::keepalive::KeepaliveState;
use crate::transport::VerbsTransport;
use crate::transport::endpoint::{DeviceAddress, SOFT};
use crate::transport::lane::Lane;
use crate::transport::liveness_socket::LivenessSocket;
use crate::transport::notices::{ConnectionInRts, LivenessKey, Notice, NoticeSender};
use crate::transport::peer_clock::monotonic_us;
use crate::transport::queue_pairs::{AwaitedClaim, QpRts, QueuePairError, QueuePairs};

/// Opens the listening socket at `host:port`.
pub(crate) fn bind(address: &str) -> io::Result<TcpListener> {
    TcpListener::bind(&address::resolve(address)?[..])
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

/// A client that has a queue pair and can be sent its `Welcome`.
#[derive(Debug)]
pub(crate) struct ClientInRts {
    /// The message to send to the client.
    pub(crate) welcome: Welcome,
    /// The notice sender of the lane that the client was assigned to.
    pub(crate) notice_sender: NoticeSender,
    /// The keepalive state of the client's TCP connection, for when the handshake is complete.
    pub(crate) keepalive_state: KeepaliveState,
}

/// Why no queue pair could be set up for an admitted client. The message is sent to the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AcceptError {
    /// The two sides have no kind of device in common.
    #[error(
        "the two sides have no kind of device in common: the server has {server}, the client offers {client}. Name one that both have, as in VERBLINE_DEVICE=soft; or build both with the feature `rdma`"
    )]
    NoCommonDevice {
        /// The server's devices.
        server: String,
        /// The client's devices.
        client: String,
    },
    /// The two sides have a kind of device in common, but no pair of devices that can connect.
    #[error(
        "no device of the server reaches the client ({rejected}): the server has {server}, the client offers {client}. Both sides need a device on one network"
    )]
    NoRoute {
        /// Why each of the server's devices was rejected.
        rejected: RejectedDevices,
        /// The server's devices.
        server: String,
        /// The client's devices.
        client: String,
    },
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
    let is_soft = |lane: &&LanePort| lane.queue_pairs.device_address().kind == SOFT;
    let Some(lane) = lanes.find(is_soft) else {
        return Ok(None);
    };
    let local = lane.queue_pairs.device_address();
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

/// The devices that were tried before the chosen one, each with the reason why it was rejected.
#[derive(Debug, Default)]
pub(crate) struct RejectedDevices(Vec<(String, Rejection)>);

/// Why a device was rejected.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error(transparent)]
    EndpointMismatch(EndpointMismatch),
    #[error("the server's device refused: {0}")]
    Refused(QueuePairError),
}

impl RejectedDevices {
    fn add(&mut self, device: DeviceAddress<'_>, why: Rejection) {
        self.0.push((device.device.to_owned(), why));
    }

    /// Formats the list for a log line.
    fn or_none(&self) -> String {
        if self.0.is_empty() {
            return "none".to_owned();
        }
        self.to_string()
    }

    /// Returns true if every device was rejected because the client has no device of its kind.
    fn all_for_their_kind(&self) -> bool {
        self.0.iter().all(|(_, why)| {
            matches!(
                why,
                Rejection::EndpointMismatch(EndpointMismatch::NotOffered)
            )
        })
    }
}

impl fmt::Display for RejectedDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (device, why)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{device}: {why}")?;
        }
        Ok(())
    }
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
        let local = self.queue_pairs.endpoint(&qp_init);
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

    /// Creates a queue pair for a client, on the first device that both sides have and that reaches
    /// the client, brings it up, and notifies the poller. Returns the `Welcome` to send to the
    /// client.
    ///
    /// The poller is notified before the client is sent anything, so a frame can never arrive
    /// before the poller knows its connection.
    pub(crate) fn create_queue_pair(
        &self,
        client: &Offer,
        admitted: Admitted,
        liveness: impl Into<LivenessSocket>,
        key: LivenessKey,
    ) -> Result<ClientInRts, AcceptError> {
        let (lane, remote, (qp_rts, local)) = self.choose(client)?;
        let limits = &lane.queue_pairs.plan().limits;
        let slot_len = limits.slot_len;
        let keepalive_state =
            KeepaliveState::with_client(client.keepalive, limits.keepalive, Instant::now());
        let welcome = Welcome {
            endpoint: local,
            client_endpoint: remote,
            max_frame_len: u32::try_from(slot_len).unwrap_or(u32::MAX),
            session: admitted.server_session.clone(),
            keepalive: true,
            clock_us: monotonic_us(),
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
        })
    }

    /// Returns the first lane that can connect to the client, with the index of the client's
    /// endpoint and the connected queue pair.
    fn choose(&self, client: &Offer) -> Result<(&LanePort, usize, (QpRts, Endpoint)), AcceptError> {
        let mut rejected = RejectedDevices::default();
        for lane in self.lanes.iter() {
            let local = lane.queue_pairs.device_address();
            let fit = match choice::matching_endpoints(local, &client.endpoints) {
                Ok(fit) => fit,
                Err(mismatch) => {
                    rejected.add(local, Rejection::EndpointMismatch(mismatch));
                    continue;
                }
            };
            // So far only addresses were compared. Whether the client is reachable shows when the
            // queue pair is connected.
            for index in fit {
                let remote = &client.endpoints[index];
                match lane.bring_up(remote) {
                    Ok(up) => {
                        tracing::info!(
                            device = local.device,
                            kind = local.kind,
                            remote_device = remote.device,
                            rejected = %rejected.or_none(),
                            "a client uses the first of this side's devices that both sides have"
                        );
                        return Ok((lane, index, up));
                    }
                    Err(error) => {
                        tracing::warn!(device = local.device, %error, "a device refused a client");
                        rejected.add(local, Rejection::Refused(error));
                    }
                }
            }
        }
        let server = choice::list(
            self.lanes
                .iter()
                .map(|lane| lane.queue_pairs.device_address()),
        );
        let client = choice::list(client.endpoints.iter().map(Endpoint::device_address));
        Err(if rejected.all_for_their_kind() {
            AcceptError::NoCommonDevice { server, client }
        } else {
            AcceptError::NoRoute {
                rejected,
                server,
                client,
            }
        })
    }
}
