//! The server's half of a connection's set-up, on the control thread.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use rpc_core::transport::Admitted;

use super::handshake::choice::{self, Unfit};
use super::handshake::{Endpoint, Offer, Welcome};
use super::keepalive::Pulse;
use crate::transport::VerbsTransport;
use crate::transport::endpoint::Way;
use crate::transport::lane::Lane;
use crate::transport::lifeline::Lifeline;
use crate::transport::mailbox::{LineKey, Mailbox, Notice, Prepared};
use crate::transport::queue_pairs::{QueuePairError, QueuePairs, Ready};

/// How a listener gives connections to one poller's transport. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Port {
    /// In the order in which they are tried.
    lanes: Arc<[LanePort]>,
}

/// How connections are given to one lane.
#[derive(Debug)]
pub(crate) struct LanePort {
    queue_pairs: Arc<QueuePairs>,
    mailbox: Mailbox,
}

/// A client that can be told to come in.
#[derive(Debug)]
pub(crate) struct Invited {
    /// What it is told.
    pub(crate) welcome: Welcome,
    /// That of the lane that it goes to.
    pub(crate) mailbox: Mailbox,
    /// What is known of it from its line, once that is one.
    pub(crate) pulse: Pulse,
}

/// Why a client that the core had let in could not be prepared. What it says goes to the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AcceptError {
    /// No device of one kind on both sides.
    #[error(
        "the two sides have no kind of device in common: the server has {server}, the client offers {client}. Name one that both have, as in VERBLINE_DEVICE=soft; or build both with the feature `rdma`"
    )]
    NoCommonDevice {
        /// This side's.
        server: String,
        /// The client's.
        client: String,
    },
    /// Both sides have devices of one kind, and none that would do.
    #[error(
        "no device of the server reaches the client ({passed_over}): the server has {server}, the client offers {client}"
    )]
    NoWay {
        /// Why each of the server's would not do.
        passed_over: PassedOver,
        /// This side's.
        server: String,
        /// The client's.
        client: String,
    },
    /// The poller's transport has been dropped.
    #[error("the server is shutting down")]
    Closed,
}

/// Devices before the chosen one, each with why it was not taken.
#[derive(Debug, Default)]
pub(crate) struct PassedOver(Vec<(String, NotTaken)>);

/// Why a device was not taken.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error(transparent)]
    Unfit(Unfit),
    #[error("the server's device refused: {0}")]
    Refused(QueuePairError),
}

impl PassedOver {
    fn add(&mut self, device: Way<'_>, why: NotTaken) {
        self.0.push((device.device.to_owned(), why));
    }

    /// For a log line.
    fn or_none(&self) -> String {
        if self.0.is_empty() {
            return "none".to_owned();
        }
        self.to_string()
    }

    /// Whether nothing of it was more than a kind that the client does not have.
    fn only_for_their_kind(&self) -> bool {
        self.0
            .iter()
            .all(|(_, why)| matches!(why, NotTaken::Unfit(Unfit::NotOffered)))
    }
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (device, why)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{device}: {why}")?;
        }
        Ok(())
    }
}

impl LanePort {
    pub(crate) fn new(queue_pairs: Arc<QueuePairs>, mailbox: Mailbox) -> Self {
        Self {
            queue_pairs,
            mailbox,
        }
    }

    /// A queue pair that can receive from `remote` and send to it, and how it is reached.
    fn bring_up(&self, remote: &Endpoint) -> Result<(Ready, Endpoint), QueuePairError> {
        let nascent = self.queue_pairs.create()?;
        let local = self.queue_pairs.endpoint(&nascent);
        let ready = self.queue_pairs.connect(nascent, remote)?;
        Ok((ready, local))
    }
}

impl VerbsTransport {
    pub(crate) fn port(&self) -> Port {
        Port::new(self.lanes().map(Lane::port).collect())
    }
}

impl Lane {
    fn port(&self) -> LanePort {
        LanePort::new(Arc::clone(&self.queue_pairs), self.mailbox.clone())
    }
}

impl Port {
    pub(crate) fn new(lanes: Vec<LanePort>) -> Self {
        Self {
            lanes: lanes.into(),
        }
    }

    /// Makes a queue pair for a client on the first device that both sides have and that reaches
    /// it, brings it up, and tells the poller of it. Gives what the client is to be told.
    ///
    /// The poller knows of the connection before the client is told anything, so that a frame never
    /// comes before its connection.
    pub(crate) fn prepare(
        &self,
        client: &Offer,
        admitted: Admitted,
        line: impl Into<Lifeline>,
        key: LineKey,
    ) -> Result<Invited, AcceptError> {
        let (lane, remote, (ready, local)) = self.choose(client)?;
        let limits = &lane.queue_pairs.plan().limits;
        let slot_len = limits.slot_len;
        let pulse = Pulse::of_client(client.keepalive, limits.keepalive, Instant::now());
        let welcome = Welcome {
            endpoint: local,
            client_endpoint: remote,
            max_frame_len: u32::try_from(slot_len).unwrap_or(u32::MAX),
            session: admitted.server_session.clone(),
            keepalive: true,
        };
        let prepared = Prepared {
            ready,
            remote_frame_len: client.max_frame_len as usize,
            admitted,
            line: line.into(),
            key,
        };
        lane.mailbox
            .put(Notice::Prepared(Box::new(prepared)))
            .map_err(|_| AcceptError::Closed)?;
        Ok(Invited {
            welcome,
            mailbox: lane.mailbox.clone(),
            pulse,
        })
    }

    /// The first lane that meets the client, with the client's endpoint that it meets.
    fn choose(&self, client: &Offer) -> Result<(&LanePort, usize, (Ready, Endpoint)), AcceptError> {
        let mut passed_over = PassedOver::default();
        for lane in self.lanes.iter() {
            let local = lane.queue_pairs.way();
            let fit = match choice::meet(local, &client.endpoints) {
                Ok(fit) => fit,
                Err(unfit) => {
                    passed_over.add(local, NotTaken::Unfit(unfit));
                    continue;
                }
            };
            // Only addresses were compared so far: whether there is a way shows here.
            for index in fit {
                let remote = &client.endpoints[index];
                match lane.bring_up(remote) {
                    Ok(up) => {
                        tracing::info!(
                            device = local.device,
                            kind = local.kind,
                            remote_device = remote.device,
                            passed_over = %passed_over.or_none(),
                            "a client comes over the first of this side's devices that both sides have"
                        );
                        return Ok((lane, index, up));
                    }
                    Err(error) => {
                        tracing::warn!(device = local.device, %error, "a device refused a client");
                        passed_over.add(local, NotTaken::Refused(error));
                    }
                }
            }
        }
        let server = choice::list(self.lanes.iter().map(|lane| lane.queue_pairs.way()));
        let client = choice::list(client.endpoints.iter().map(Endpoint::way));
        Err(if passed_over.only_for_their_kind() {
            AcceptError::NoCommonDevice { server, client }
        } else {
            AcceptError::NoWay {
                passed_over,
                server,
                client,
            }
        })
    }
}
