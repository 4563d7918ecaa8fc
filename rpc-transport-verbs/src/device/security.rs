//! [`Security`]: how the connections of a device are secured, in both roles.

use std::sync::Arc;

use crate::transport::queue_pairs::Plaintext;
use crate::transport::security::{ClientSecurity, ServerSecurity};

/// How the connections of a device are secured.
#[derive(Clone, Debug, Default)]
pub(super) struct Security {
    /// For connections to servers: all of them.
    pub(super) client: Option<Arc<dyn ClientSecurity>>,
    /// For connections from clients.
    pub(super) server: Option<Arc<dyn ServerSecurity>>,
    /// The program has called `allow_plaintext`.
    pub(super) allows_plaintext: bool,
    /// The program has called `require_encryption`.
    pub(super) requires_encryption: bool,
}

impl Security {
    /// Returns true if a server takes clients whose connections are not secured.
    pub(super) fn takes_plain_clients(&self) -> bool {
        !self.requires_encryption && (self.server.is_none() || self.allows_plaintext)
    }

    /// Returns where calls may travel without encryption, if the names of the devices say this. With
    /// TLS, the name `tcp` is not enough.
    pub(super) fn plaintext(&self, of_names: Plaintext) -> Plaintext {
        if self.requires_encryption {
            return Plaintext::Nowhere;
        }
        let is_secured = self.client.is_some() || self.server.is_some();
        match is_secured && !self.allows_plaintext {
            true => Plaintext::Refused,
            false => of_names,
        }
    }
}
