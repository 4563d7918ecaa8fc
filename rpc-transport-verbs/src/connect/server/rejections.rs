//! [`RejectedDevices`]: why a server does not use its devices for a client.

use std::fmt;

use crate::connect::handshake::choice::EndpointMismatch;
use crate::transport::endpoint::DeviceAddress;
use crate::transport::queue_pairs::QueuePairError;

/// The devices that were tried before the chosen one, each with the reason why it was rejected.
#[derive(Debug, Default)]
pub(crate) struct RejectedDevices(Vec<(String, Rejection)>);

/// Why a device was rejected.
#[derive(Debug, thiserror::Error)]
pub(super) enum Rejection {
    #[error(transparent)]
    EndpointMismatch(EndpointMismatch),
    #[error("the server's device refused: {0}")]
    Refused(QueuePairError),
    #[error(
        "the server does not accept calls over TCP, because they are not encrypted: to accept them, call `allow_plaintext()` on the server's device, or, if it has no TLS, start the server with VERBLINE_DEVICE=soft,tcp"
    )]
    Plaintext,
    #[error("its data is not encrypted, and the server's device has `require_encryption`")]
    Unencrypted,
}

impl RejectedDevices {
    pub(super) fn add(&mut self, device: DeviceAddress<'_>, why: Rejection) {
        self.0.push((device.device.to_owned(), why));
    }

    /// Formats the list for a log line.
    pub(super) fn or_none(&self) -> String {
        if self.0.is_empty() {
            return "none".to_owned();
        }
        self.to_string()
    }

    /// Removes a device that was rejected because its calls are not encrypted.
    pub(super) fn remove_plaintext(&mut self) {
        let is_kept = |why: &Rejection| !matches!(why, Rejection::Plaintext);
        self.0.retain(|(_, why)| is_kept(why));
    }

    /// Returns true if a device was rejected because its data is never encrypted.
    pub(super) fn lacks_encryption(&self) -> bool {
        let mut rejections = self.0.iter();
        rejections.any(|(_, why)| matches!(why, Rejection::Unencrypted))
    }

    /// Returns true if a device reaches the client, and has refused it.
    pub(super) fn has_failures(&self) -> bool {
        let is_failure = |why: &Rejection| matches!(why, Rejection::Refused(_));
        self.0.iter().any(|(_, why)| is_failure(why))
    }

    /// Returns true if every device was rejected because the client has no device of its kind.
    pub(super) fn all_for_their_kind(&self) -> bool {
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
