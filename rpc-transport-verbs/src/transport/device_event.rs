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
    pub(crate) fn of(device: &str, event: AsyncEvent) -> Self {
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
                "shared receive queue {} of {device} is running low, since its poller lags: the reserve is posted",
                srq.0
            ),
            AsyncEvent::QpFatal { qp_num } => write!(
                f,
                "queue pair {qp_num} of {device} failed outside of any request, and its connection ends. Check the system's log for the device"
            ),
            AsyncEvent::QpRequestError { qp_num } => write!(
                f,
                "queue pair {qp_num} of {device} got a request that it does not take, and its connection ends. Verbline sends none such: check that the peer is a Verbline process, of a version that fits"
            ),
            AsyncEvent::QpAccessError { qp_num } => write!(
                f,
                "queue pair {qp_num} of {device} got a request for memory that no peer has rights to, and its connection ends. Verbline sends none such: check who else sends to this address"
            ),
            AsyncEvent::CompletionQueueError { cq } => write!(
                f,
                "completion queue {cq} of {device} overran or failed, and all of this poller's connections over {device} end. It is sized for all of them, so this is a bug here or in the driver: check the system's log, and please report it; the process has to open the device again"
            ),
            AsyncEvent::SrqError { srq } => write!(
                f,
                "shared receive queue {} of {device} failed, and all of this poller's connections over {device} end, as nothing can be received. Check the system's log for the device; the process has to open it again",
                srq.0
            ),
            AsyncEvent::DeviceFatal => write!(
                f,
                "the device {device} has failed with everything that was made from it, and all connections over it end. It needs a reset, which its driver may do by itself (see the system's log); then the process has to open it again"
            ),
            AsyncEvent::PortError { port } => write!(
                f,
                "port {port} of {device} is down: calls under way may time out; connections stay, and survive if it is back before their retries are used up. Check the cable, the switch and the network device"
            ),
            AsyncEvent::PortActive { port } => write!(f, "port {port} of {device} is up"),
            AsyncEvent::DeviceSpeedChange { port } => {
                write!(
                    f,
                    "the link of port {port} of {device} has another speed: check its cable if it is a lower one"
                )
            }
            AsyncEvent::LidChange { port } => write!(
                f,
                "port {port} of {device} has another local identifier: connections to the old one will fail, and new ones take the present one"
            ),
            AsyncEvent::GidChange { port } => write!(
                f,
                "the GIDs of port {port} of {device} changed: connections whose address went away will fail, and new ones take the present table. Check the addresses of its network device if this was not meant"
            ),
            AsyncEvent::PkeyChange { port } => write!(
                f,
                "the partition keys of port {port} of {device} changed: connections whose partition went away will fail. Ask whoever runs the subnet if this was not meant"
            ),
            AsyncEvent::SmChange { port } => write!(
                f,
                "port {port} of {device} has another subnet manager: connections stay"
            ),
            AsyncEvent::ClientReregister { port } => write!(
                f,
                "the subnet manager asks the users of port {port} of {device} to register again: Verbline registers nothing there, and connections stay"
            ),
            AsyncEvent::SqDrained { qp_num } => {
                write!(
                    f,
                    "the send queue of queue pair {qp_num} of {device} is drained"
                )
            }
            AsyncEvent::QpLastWqeReached { qp_num } => write!(
                f,
                "queue pair {qp_num} of {device} is in error and takes no more receives"
            ),
            AsyncEvent::CommunicationEstablished { qp_num } => write!(
                f,
                "queue pair {qp_num} of {device} got a message before it could send"
            ),
            AsyncEvent::PathMigrated { qp_num } => {
                write!(f, "queue pair {qp_num} of {device} uses its alternate path")
            }
            AsyncEvent::PathMigrationError { qp_num } => write!(
                f,
                "queue pair {qp_num} of {device} could not change to its alternate path"
            ),
            AsyncEvent::WorkQueueFatal => write!(
                f,
                "a work queue of {device} failed that is none of Verbline's: connections stay. Check the system's log for the device"
            ),
            AsyncEvent::Unknown(number) => write!(
                f,
                "{device} raised event {number}, which this version of Verbline does not know: nothing was done about it"
            ),
        }
    }
}
