//! The memory that an idle server has registered.

use std::thread;
use std::time::Duration;

use proto::bench::BenchServer;
use rpc_core::Server;
use rpc_transport_verbs::Device;

use crate::Outcome;
use crate::service::Echo;

/// Time after which the poller of a new server has nothing left to do.
const STARTING: Duration = Duration::from_millis(100);

/// Starts a server with one poller on a core, and all settings but `max_message_len` as they are by
/// default. Returns the bytes that it has registered on the device, for slots and for long messages,
/// before anyone has connected.
///
/// # Errors
///
/// Fails if the server cannot be started.
pub fn registered(device: &Device, core: usize, max_message_len: usize) -> Outcome<usize> {
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
    Ok(slots + usize::try_from(messages)?)
}
