//! [`Endpoint`]: the address of one side, which consists of its device, its port and its queue
//! pair.

/// The software device, which connects processes of one host.
pub(crate) const SOFT: &str = "soft";

/// The software device, which connects processes over TCP.
pub(crate) const TCP: &str = "tcp";
/// The first bytes of a GID of the kind [`TCP`]; the port follows.
pub(crate) const TCP_GID_PREFIX: [u8; 2] = [0xfd, 0x76];

/// RDMA over Ethernet.
pub(crate) const ROCE: &str = "roce";

/// RDMA over Ethernet, version 1. Its packets are incompatible with version 2.
pub(crate) const ROCE_V1: &str = "roce-v1";

/// RDMA over an InfiniBand subnet.
pub(crate) const INFINIBAND: &str = "infiniband";

/// An endpoint of one side: a device, and the queue pair on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// [`SOFT`], [`TCP`], [`ROCE`], [`ROCE_V1`] or [`INFINIBAND`]. Another kind is valid, but no
    /// device can connect to it.
    pub(crate) kind: String,
    /// The device's name on its host.
    pub(crate) device: String,
    /// The port's address.
    pub(crate) gid: [u8; 16],
    /// In bytes: a power of two from 256 to 4096.
    pub(crate) mtu: u32,
    /// The queue pair's number. 24 bits.
    pub(crate) qp_number: u32,
    /// The queue pair's initial packet sequence number. 24 bits.
    pub(crate) psn: u32,
    /// The port's LID on an InfiniBand subnet; 0 otherwise.
    pub(crate) lid: u16,
    /// READs that the queue pair can have outstanding, and answer at a time. 0: long messages travel
    /// in fragments.
    pub(crate) read_depth: u8,
}

impl Endpoint {
    /// Returns the properties that the choice of a device depends on.
    pub(crate) fn device_address(&self) -> DeviceAddress<'_> {
        DeviceAddress {
            kind: &self.kind,
            device: &self.device,
            gid: self.gid,
        }
    }
}

/// A device of one side, with the properties that the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceAddress<'a> {
    /// The kind of device.
    pub(crate) kind: &'a str,
    /// Its name on its host, for messages.
    pub(crate) device: &'a str,
    /// The port's address.
    pub(crate) gid: [u8; 16],
}
