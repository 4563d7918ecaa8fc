//! [`DeviceEvent`]: the log message of an asynchronous event, and how the event is handled.

use std::fmt;
use std::sync::Arc;

use tracing::Level;
use verbline_verbs::{AsyncEvent, QpNum, log_limited};

/// An asynchronous event of a device.
///
/// Its message names the object, the device and the event, and says what the event means
/// ([`AsyncEvent::explanation`]), what Verbline does about it ([`Consequence`]), and, if it needs a
/// person, what to look at.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) struct DeviceEvent {
    pub(super) device: Arc<str>,
    pub(super) event: AsyncEvent,
}

/// How an event is handled. Prints as a sentence about what Verbline does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Consequence {
    /// Post the reserve of receives.
    #[error("Its poller lags: Verbline posts the reserve of receives")]
    Refill,
    /// The queue pair has failed, and so has its connection.
    #[error("Verbline closes its connection")]
    ConnectionFails(QpNum),
    /// The queue pair is in the error state and will complete no more receives: it can be
    /// destroyed.
    #[error("Verbline destroys it now")]
    LastReceiveTaken(QpNum),
    /// A resource that all connections of the lane share has failed.
    #[error(
        "Verbline closes all of this poller's connections over the device; the process has to open it again"
    )]
    LaneFails,
    /// Choose the address again, for connections that are made from now on, and log the event at
    /// this level.
    #[error("Verbline reads the port's address again: new connections use the current address")]
    AddressChanges(Level),
    /// Only log the event, at this level.
    #[error("Verbline does nothing about it: its connections stay open")]
    OnlyLogged(Level),
}

impl Consequence {
    /// Returns the level at which the event is logged.
    pub(super) fn level(self) -> Level {
        match self {
            // The reserve logs the warning, with the number of receives that it posted.
            Self::Refill | Self::LastReceiveTaken(_) => Level::DEBUG,
            // Peers can cause it.
            Self::ConnectionFails(_) => Level::WARN,
            Self::LaneFails => Level::ERROR,
            Self::AddressChanges(level) | Self::OnlyLogged(level) => level,
        }
    }
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
        // A partition may have another place in the table.
        AsyncEvent::LidChange { .. }
        | AsyncEvent::GidChange { .. }
        | AsyncEvent::PkeyChange { .. } => Consequence::AddressChanges(Level::WARN),
        // A port that comes up may have another address than before it went down: the address could
        // not be read while the port was down.
        AsyncEvent::PortActive { .. } | AsyncEvent::ClientReregister { .. } => {
            Consequence::AddressChanges(Level::INFO)
        }
        AsyncEvent::SmChange { .. } => Consequence::OnlyLogged(Level::INFO),
        AsyncEvent::SqDrained { .. }
        | AsyncEvent::CommunicationEstablished { .. }
        | AsyncEvent::PathMigrated { .. }
        | AsyncEvent::PathMigrationError { .. } => Consequence::OnlyLogged(Level::DEBUG),
        // A port that goes down, another speed; and events that the
        // verbs crate does not know, or learns later.
        _ => Consequence::OnlyLogged(Level::WARN),
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

impl DeviceEvent {
    /// Logs the event, which has this consequence.
    pub(super) fn log(&self, consequence: Consequence) {
        match consequence.level() {
            Level::ERROR => tracing::error!("{self}"),
            Level::WARN if matches!(consequence, Consequence::ConnectionFails(_)) => {
                log_limited!(warn, for &self.device, "{self}");
            }
            Level::WARN => tracing::warn!("{self}"),
            Level::INFO => tracing::info!("{self}"),
            _ => tracing::debug!("{self}"),
        }
    }
}

impl fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, event } = self;
        write_object(f, *event)?;
        write!(f, "{device}: ")?;
        match event {
            AsyncEvent::Unknown(number) => write!(f, "event {number}")?,
            named => f.write_str(named.verbs_name())?,
        }
        let explanation = event.explanation();
        let consequence = consequence_of(*event);
        write!(f, ". {} {consequence}", explanation.meaning)?;
        // Levels are ordered by verbosity.
        if consequence.level() <= Level::WARN {
            // Like other messages, it ends without a full stop.
            let look_at = explanation.look_at.trim_end_matches('.');
            write!(f, ". Look at: {look_at}")?;
        }
        Ok(())
    }
}

/// Writes what the event is about, up to the name of the device.
fn write_object(f: &mut fmt::Formatter<'_>, event: AsyncEvent) -> fmt::Result {
    match event {
        AsyncEvent::QpFatal { qp_num }
        | AsyncEvent::QpRequestError { qp_num }
        | AsyncEvent::QpAccessError { qp_num }
        | AsyncEvent::QpLastWqeReached { qp_num }
        | AsyncEvent::SqDrained { qp_num }
        | AsyncEvent::CommunicationEstablished { qp_num }
        | AsyncEvent::PathMigrated { qp_num }
        | AsyncEvent::PathMigrationError { qp_num } => write!(f, "queue pair {qp_num} of "),
        AsyncEvent::CompletionQueueError { cq } => write!(f, "completion queue {cq} of "),
        AsyncEvent::SrqLimitReached { srq } | AsyncEvent::SrqError { srq } => {
            write!(f, "shared receive queue {} of ", srq.0)
        }
        AsyncEvent::PortError { port }
        | AsyncEvent::PortActive { port }
        | AsyncEvent::DeviceSpeedChange { port }
        | AsyncEvent::LidChange { port }
        | AsyncEvent::GidChange { port }
        | AsyncEvent::PkeyChange { port }
        | AsyncEvent::SmChange { port }
        | AsyncEvent::ClientReregister { port } => write!(f, "port {port} of "),
        AsyncEvent::WorkQueueFatal => f.write_str("a work queue of "),
        _ => f.write_str("the device "),
    }
}
