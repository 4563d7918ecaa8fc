//! Messages between unreliable queue pairs, with their bytes gathered.

use crate::types::{AddressVector, QpNum, RemoteOperation};

/// A message in flight.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) from: QpNum,
    pub(crate) to: QpNum,
    pub(crate) route: Route,
    /// A SEND or a WRITE, also with an immediate.
    pub(crate) operation: RemoteOperation,
    pub(crate) solicited: bool,
    pub(crate) payload: Vec<u8>,
}

/// How a message finds its receiver.
#[derive(Debug)]
pub(crate) enum Route {
    /// By connection: from the queue pair that the receiver is connected to.
    Connected,
    Datagram {
        address: AddressVector,
        qkey: u32,
    },
}
