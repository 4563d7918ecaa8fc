//! The memory that an idle server has registered.

use std::thread;
use std::time::Duration;

use proto::bench::BenchServer;
use rpc_core::{Intents, Server};
use rpc_transport_verbs::Device;

use crate::Outcome;
use crate::service::Echo;

/// The longest message of the second figure, in bytes.
pub const LONG: usize = 64 << 20;

/// Time after which the poller of a new server has nothing left to do.
const STARTING: Duration = Duration::from_millis(100);

/// The registered memory of a server without connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Longest message that it takes, in bytes.
    pub max_message_len: usize,
    /// Bytes registered by its one poller on the device, for slots and for long messages.
    pub registered: usize,
}

impl Idle {
    /// Starts a server with one poller on a core, and all settings but `max_message_len` as they
    /// are by default. Returns what it has registered before anyone has connected.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be started.
    pub fn measure(device: &Device, core: usize, max_message_len: usize) -> Outcome<Self> {
        let server = Server::builder(device)
            .add_service(BenchServer::per_poller(Echo::default))
            .cores([core])
            .max_message_len(max_message_len)
            .bind("127.0.0.1:0")
            .map_err(|error| format!("a server of {max_message_len} byte messages: {error}"))?;
        let slots = server.limits().registered_len();
        let server = server.spawn();
        // The poller updates the number before it sleeps.
        thread::sleep(STARTING);
        let messages = server.stats().total().memory.registered;
        server.shutdown()?;
        let registered = slots + usize::try_from(messages)?;
        Ok(Self {
            max_message_len,
            registered,
        })
    }

    /// Returns the default of the longest message, in bytes.
    #[must_use]
    pub fn default_len() -> usize {
        Intents::default().max_message_len
    }
}
