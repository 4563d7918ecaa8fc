//! Messages between unreliable queue pairs, with their bytes gathered.

use crate::types::{AddressVector, QpNum, RemoteMemory};

/// A message in flight.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) from: QpNum,
    pub(crate) to: QpNum,
    pub(crate) route: Route,
    /// Of a WRITE: the destination.
    pub(crate) remote: Option<RemoteMemory>,
    pub(crate) imm: Option<u32>,
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
