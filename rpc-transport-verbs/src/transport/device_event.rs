//! [`DeviceEvent`]: the log message of an asynchronous event, and how the event is handled.

use std::fmt;
use std::sync::Arc;

use tracing::Level;

use crate::verbs::{AsyncEvent, QpNum};

/// An asynchronous event of a device. Its message says what happened, what the consequences are,
/// and what to do.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) struct DeviceEvent {
    pub(super) device: Arc<str>,
    pub(super) event: AsyncEvent,
}

/// How an event is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consequence {
    /// Post the reserve of receives.
    Refill,
    /// The queue pair has failed, and so has its connection.
    ConnectionFails(QpNum),
    /// The queue pair is in the error state and will complete no more receives: it can be
    /// destroyed.
    LastReceiveTaken(QpNum),
    /// A resource that all connections of the lane share has failed.
    LaneFails,
    /// Choose the address again, for connections that are made from now on.
    AddressChanges,
    /// Only log the event, at this level.
    OnlyLogged(Level),
}

pub(super) fn consequence_of(event: AsyncEvent) -> Consequence {
    match event {
        AsyncEvent::SrqLimitReached { .. } => Consequence::Refill,
        AsyncEvent::QpFatal { qp_num }
        | AsyncEvent::QpRequestError { qp_num }
        | AsyncEvent::QpAccessError { qp_num } => Consequence::ConnectionFails(qp_num),
        AsyncEvent::CompletionQueueError { .. }
        | AsyncEvent::SrqError { .. }
        | AsyncEvent::DeviceFatal => Consequence::LaneFails,
        AsyncEvent::QpLastWqeReached { qp_num } => Consequence::LastReceiveTaken(qp_num),
        // A port that comes up may have another address than before it went down: the address could
        // not be read while the port was down.
        AsyncEvent::LidChange { .. }
        | AsyncEvent::GidChange { .. }
        | AsyncEvent::PortActive { .. }
        | AsyncEvent::ClientReregister { .. } => Consequence::AddressChanges,
        AsyncEvent::PortError { .. }
        | AsyncEvent::DeviceSpeedChange { .. }
        | AsyncEvent::PkeyChange { .. }
        | AsyncEvent::WorkQueueFatal
        | AsyncEvent::Unknown(_) => Consequence::OnlyLogged(Level::WARN),
        AsyncEvent::SmChange { .. } => Consequence::OnlyLogged(Level::INFO),
        AsyncEvent::SqDrained { .. }
        | AsyncEvent::CommunicationEstablished { .. }
        | AsyncEvent::PathMigrated { .. }
        | AsyncEvent::PathMigrationError { .. } => Consequence::OnlyLogged(Level::DEBUG),
    }
}

#[cfg(test)]
impl DeviceEvent {
    pub(crate) fn new(device: &str, event: AsyncEvent) -> Self {
        Self {
            device: device.into(),
            event,
        }
    }
}

impl fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.device;
        match self.event {
            AsyncEvent::SrqLimitReached { srq } => write!(
                f,
                "shared receive queue {} of {device} is running low because its poller lags: the reserve is posted",
                srq.0
            ),
            AsyncEvent::QpFatal { qp_num } => write!(
                f,
                "queue pair {qp_num} of {device} failed outside of any request; closing its connection. Check the system's log for the device"
            ),
            AsyncEvent::QpRequestError { qp_num } => write!(
                f,
                "queue pair {qp_num} of {device} received an unsupported request; closing its connection. Verbline never sends these: check that the peer runs a compatible version"
            ),
            AsyncEvent::QpAccessError { qp_num } => write!(
                f,
                "queue pair {qp_num} of {device} received a request for memory that no peer may access; closing its connection. Verbline never sends these: check which other program sends to this address"
            ),
            AsyncEvent::CompletionQueueError { cq } => write!(
                f,
                "completion queue {cq} of {device} overran or failed; closing all of this poller's connections over {device}. The queue is sized for all of them, so this is a bug in Verbline or in the driver: check the system's log, and please report it. The process has to open the device again"
            ),
            AsyncEvent::SrqError { srq } => write!(
                f,
                "shared receive queue {} of {device} failed, so nothing can be received; closing all of this poller's connections over {device}. Check the system's log for the device; the process has to open it again",
                srq.0
            ),
            AsyncEvent::DeviceFatal => write!(
                f,
                "the device {device} has failed with everything created from it; closing all connections over it. It needs a reset, which its driver may do by itself (see the system's log); then the process has to open it again"
            ),
            AsyncEvent::PortError { port } => write!(
                f,
                "port {port} of {device} is down: calls in flight may time out; connections survive if the port is back before their retries are used up. Check the cable, the switch and the network device"
            ),
            AsyncEvent::PortActive { port } => write!(f, "port {port} of {device} is up"),
            AsyncEvent::DeviceSpeedChange { port } => {
                write!(
                    f,
                    "the link of port {port} of {device} has changed its speed: check its cable if it became slower"
                )
            }
            AsyncEvent::LidChange { port } => write!(
                f,
                "port {port} of {device} has a new local identifier: connections to the old one will fail, and new connections use the new one"
            ),
            AsyncEvent::GidChange { port } => write!(
                f,
                "the GIDs of port {port} of {device} changed: connections whose address was removed will fail, and new connections use the current table. If this was not intended, check the addresses of its network device"
            ),
            AsyncEvent::PkeyChange { port } => write!(
                f,
                "the partition keys of port {port} of {device} changed: connections whose partition was removed will fail. If this was not intended, ask the subnet's administrator"
            ),
            AsyncEvent::SmChange { port } => write!(
                f,
                "port {port} of {device} has a new subnet manager: connections are not affected"
            ),
            AsyncEvent::ClientReregister { port } => write!(
                f,
                "the subnet manager asks the users of port {port} of {device} to register again: Verbline registers nothing there, and connections are not affected"
            ),
            AsyncEvent::SqDrained { qp_num } => {
                write!(
                    f,
                    "the send queue of queue pair {qp_num} of {device} is drained"
                )
            }
            AsyncEvent::QpLastWqeReached { qp_num } => write!(
                f,
                "queue pair {qp_num} of {device} is in the error state and takes no more receives"
            ),
            AsyncEvent::CommunicationEstablished { qp_num } => write!(
                f,
                "queue pair {qp_num} of {device} received a message before it could send"
            ),
            AsyncEvent::PathMigrated { qp_num } => {
                write!(f, "queue pair {qp_num} of {device} uses its alternate path")
            }
            AsyncEvent::PathMigrationError { qp_num } => write!(
                f,
                "queue pair {qp_num} of {device} could not switch to its alternate path"
            ),
            AsyncEvent::WorkQueueFatal => write!(
                f,
                "a work queue of {device} failed that Verbline did not create: connections are not affected. Check the system's log for the device"
            ),
            AsyncEvent::Unknown(number) => write!(
                f,
                "{device} raised event {number}, which this version of Verbline does not know: it is ignored"
            ),
        }
    }
}
