//! How a side is reached: its device, its address, and the queue pair that waits there.

/// The software device: two of one host reach each other.
pub(crate) const SOFT: &str = "soft";

/// RDMA over Ethernet.
pub(crate) const ROCE: &str = "roce";

/// RDMA over Ethernet, in packets of the first version, which those of the second do not understand.
pub(crate) const ROCE_V1: &str = "roce-v1";

/// RDMA over an InfiniBand subnet.
pub(crate) const INFINIBAND: &str = "infiniband";

/// One way to reach a side: a device, and the queue pair that waits on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// [`SOFT`], [`ROCE`] or [`INFINIBAND`]; another one is no error, but met by nobody.
    pub(crate) kind: String,
    /// The device's name on its host.
    pub(crate) device: String,
    /// The port's address.
    pub(crate) gid: [u8; 16],
    /// In bytes, a power of two from 256 to 4096.
    pub(crate) mtu: u32,
    /// 24 bits.
    pub(crate) qp_number: u32,
    /// 24 bits.
    pub(crate) psn: u32,
    /// The port's local identifier on an InfiniBand subnet; 0 where there is none.
    pub(crate) lid: u16,
}

impl Endpoint {
    /// What a choice among endpoints looks at.
    pub(crate) fn way(&self) -> Way<'_> {
        Way {
            kind: &self.kind,
            device: &self.device,
            gid: self.gid,
        }
    }
}

/// One way to reach a side, as far as choosing needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way<'a> {
    /// The kind of device.
    pub(crate) kind: &'a str,
    /// Its name on its host, for sentences.
    pub(crate) device: &'a str,
    /// The port's address.
    pub(crate) gid: [u8; 16],
}
