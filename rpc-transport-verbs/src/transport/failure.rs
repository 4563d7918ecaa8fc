//! Error messages for failed connections: what happened, what usually causes it, and what to check.

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use rpc_core::transport::PeerSentence;
use verbline_verbs::for_transport::BadRecord;
use verbline_verbs::{
    CompletionStatus, Context, PortAttributes, PostError, QpAttributes, QpNum, QueuePair,
    VerbsError, WorkKind,
};

use crate::transport::device_event::DeviceEvent;
use crate::transport::endpoint::TCP_GID_PREFIX;

/// A work request completed with an error, which also moved its queue pair to the error state.
#[derive(Debug)]
pub struct ConnectionFailure {
    /// The completion status of the request.
    pub status: CompletionStatus,
    /// Whether the request was a send or a receive.
    pub kind: WorkKind,
    /// This side's queue pair.
    pub qp_num: QpNum,
    /// The queue pair's attributes after the failure, if the device could still be queried.
    pub queue_pair: Option<QpAttributes>,
    /// The port's state at that time.
    pub port: Option<PortAttributes>,
}

impl std::error::Error for ConnectionFailure {}

impl fmt::Display for ConnectionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            WorkKind::Send => "a send",
            WorkKind::Receive => "a receive",
        };
        write!(
            f,
            "{kind} of queue pair {} failed with {}",
            self.qp_num, self.status
        )?;
        write_attributes(f, self.queue_pair.as_ref(), self.port.as_ref())?;
        let gid = self.queue_pair.as_ref().and_then(|it| it.address);
        let is_over_tcp = gid.is_some_and(|address| address.gid.0.starts_with(&TCP_GID_PREFIX));
        write!(f, ". {}", what_to_check(self.status, is_over_tcp))
    }
}

/// Writes the attributes of the queue pair and the port at the time of the failure.
fn write_attributes(
    f: &mut fmt::Formatter<'_>,
    queue_pair: Option<&QpAttributes>,
    port: Option<&PortAttributes>,
) -> fmt::Result {
    if let Some(attributes) = queue_pair {
        f.write_str(" (")?;
        if let Some(state) = attributes.state {
            write!(f, "now in {state}")?;
        }
        if let Some(remote) = attributes.dest_qp_num {
            write!(f, ", its peer is {remote}")?;
        }
        if let Some(address) = attributes.address {
            write!(f, " at {}", address.gid)?;
        }
        if let (Some(timeout), Some(retries)) = (attributes.timeout, attributes.retry_cnt) {
            write!(f, ", timeout {}, {retries} retries", timeout.code())?;
        }
        f.write_str(")")?;
    }
    if let Some(port) = port {
        write!(f, "; port {}, MTU {}", port.state, port.active_mtu)?;
    }
    Ok(())
}

/// Queries a failed queue pair and its port.
pub(crate) fn examine(
    context: &Context,
    port: u8,
    queue_pair: &QueuePair,
    kind: WorkKind,
    status: CompletionStatus,
) -> ConnectionFailure {
    ConnectionFailure {
        status,
        kind,
        qp_num: queue_pair.qp_num(),
        queue_pair: queue_pair.query_remains().ok(),
        port: context.query_port(port).ok(),
    }
}

/// Returns advice for each failure that a user can do something about.
fn what_to_check(status: CompletionStatus, is_over_tcp: bool) -> &'static str {
    match status {
        CompletionStatus::RetryExceeded if is_over_tcp => {
            "The TCP connection for the calls was cut and that of the handshake was not, or the peer has acknowledged nothing for a minute: check that no firewall, proxy or load balancer between the two hosts ends single connections, and that the peer's process is not stopped"
        }
        CompletionStatus::RetryExceeded => {
            "Check that the peer's process is alive and, on a network, that its port is up, routed, not filtered (RoCE: UDP port 4791) and not congested"
        }
        CompletionStatus::RnrRetryExceeded => {
            "The peer ran out of posted receives, so flow control failed: this is a bug in Verbline on one of the sides. Please report it"
        }
        CompletionStatus::RemoteInvalidRequest | CompletionStatus::LocalLength => {
            "A frame was longer than the receiver's slots: compare the slot lengths that the limits of both sides print, and check that both run compatible versions of Verbline"
        }
        CompletionStatus::RemoteAccess => {
            "A READ of a long message was refused: the peer does not let this connection read the memory that it has announced, or has revoked the key too early. Check that the peer runs a compatible version of Verbline"
        }
        CompletionStatus::MemoryWindowBind => {
            "The device does not bind memory windows any more: later long messages are sent in fragments. Check the system's log for the device"
        }
        CompletionStatus::LocalProtection | CompletionStatus::LocalAccess => {
            "A request used memory that is not registered for it: this is a bug in Verbline. Please report it"
        }
        CompletionStatus::WorkRequestFlushed => {
            "The queue pair had failed before: look for the cause in an earlier message, or in the peer's log"
        }
        CompletionStatus::Fatal => "Check the system's log for the device",
        _ => "This is not expected between two Verbline processes: please report it",
    }
}

/// The device rejected a chain of sends.
#[derive(Debug, thiserror::Error)]
#[error("queue pair {qp_num} rejected a send, so its connection is closed: {source}")]
pub(crate) struct PostFailure {
    pub(crate) qp_num: QpNum,
    pub(crate) source: PostError,
}

/// The device has neither completed nor failed a send.
#[derive(Debug, thiserror::Error)]
#[error(
    "the device has neither completed nor failed a send of queue pair {qp_num} for {time:?} or \
     longer, with {in_flight} sends in flight. Retries without an answer end after two seconds at most, so \
     either the device has lost track of a send: check the system's log for the device, and its firmware \
     or kernel version. Or the peer answers that it has no receive (RNR NAK), because it or another of its \
     clients breaks the rules of flow control"
)]
pub(crate) struct StuckSends {
    pub(crate) qp_num: QpNum,
    /// The number of sends in flight.
    pub(crate) in_flight: usize,
    /// The least time for which the oldest one has waited.
    pub(crate) time: Duration,
}

/// An asynchronous event reported that a queue pair has failed.
#[derive(Debug)]
pub(crate) struct QueuePairFailure {
    event: DeviceEvent,
    queue_pair: Option<QpAttributes>,
    port: Option<PortAttributes>,
}

impl std::error::Error for QueuePairFailure {}

impl fmt::Display for QueuePairFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.event, f)?;
        if self.queue_pair.is_some() {
            f.write_str(". The queue pair")?;
        }
        write_attributes(f, self.queue_pair.as_ref(), self.port.as_ref())
    }
}

impl QueuePairFailure {
    /// Queries a failed queue pair and its port.
    pub(crate) fn new(
        event: DeviceEvent,
        context: &Context,
        port: u8,
        queue_pair: &QueuePair,
    ) -> Self {
        Self {
            event,
            queue_pair: queue_pair.query_remains().ok(),
            port: context.query_port(port).ok(),
        }
    }
}

/// A failure of a connection's TCP connection other than its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LivenessFailure {
    #[error(
        "the peer sent bytes other than keepalives on its TCP connection after the handshake: check that it runs a compatible version of Verbline"
    )]
    Bytes,
    #[error("the TCP connection of the handshake has failed: {0}")]
    Record(#[source] BadRecord),
    #[error("the server ended the handshake just before it was complete: {0}")]
    Refused(PeerSentence),
    #[error(
        "the peer's process has been silent for {silence:.1?}, and it did not answer a keepalive: it is stopped (by a debugger, a signal, or with its container or virtual machine), or its host or the network is down. To wait for stopped peers, leave 'keepalive' out of the intents"
    )]
    Silent { silence: Duration },
}

/// A failure of a resource that all connections of a lane share.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaneFailure {
    #[error("the completion queue cannot be polled: {0}")]
    Completions(#[source] VerbsError),
    #[error("receives cannot be posted: {0}")]
    Receives(#[source] PostError),
    #[error("{0}")]
    Device(#[source] DeviceEvent),
    #[error(
        "the device's asynchronous events cannot be read, and without them failures go unnoticed: {0}. Check the system's log for the device; the process has to open it again"
    )]
    Events(#[source] VerbsError),
}
