//! Connections of a loopback that are requested.

use std::time::Duration;

use rpc_core::transport::{ConnectError, Dialer};

/// A requested connection. It is established when it is adopted, on the only thread of the network.
pub struct Dialed {
    pub(super) address: String,
    pub(super) session: Vec<u8>,
}

pub(super) struct LoopbackDialer;

impl Dialer<Dialed> for LoopbackDialer {
    fn dial(&self, address: &str, session: &[u8], _: Duration) -> Result<Dialed, ConnectError> {
        Ok(Dialed {
            address: address.to_owned(),
            session: session.to_vec(),
        })
    }
}
