//! Connections for calls, on their way to the queue pairs that wait for them.

use verbline_verbs::log_limited;

use super::incoming_client::IncomingClient;
use super::sockets::{Sockets, Source};
use crate::connect::link::LinkSecret;

impl Sockets {
    /// Hands a connection to the queue pair that waits for it, if the secret is right: it serves once.
    pub(super) fn hand_over_link(&mut self, link: IncomingClient, secret: LinkSecret) {
        let peer = link.peer();
        let Some((owner, target)) = self.awaited_links.remove(&secret) else {
            log_limited!(info, %peer, "closed a connection for calls: its secret is wrong, was used before, or its handshake has ended");
            return;
        };
        let attached = match link.into_stream() {
            Some(stream) => target.attach(stream),
            None => Ok(false),
        };
        match attached {
            Ok(true) => {
                if let Some(Source::Incoming(client)) = self.sources.get_mut(&owner) {
                    client.link_secret = None;
                }
            }
            Ok(false) => tracing::debug!(%peer, "a connection for calls came too late"),
            Err(error) => {
                log_limited!(warn, %peer, %error, "a connection for calls cannot be used");
            }
        }
    }
}
