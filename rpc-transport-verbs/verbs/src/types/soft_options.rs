//! Options of the software device.

#[cfg(any(test, feature = "test-util"))]
use std::net::SocketAddr;
use std::net::{Ipv4Addr, SocketAddrV4};

#[cfg(any(test, feature = "test-util"))]
use crate::record_layer::RecordLayer;

/// Options of the software device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftOptions {
    /// Whether sends to a dead process fail at once. By default they fail after timeout ×
    /// (retry_cnt + 1), as on a network device.
    pub detect_death_at_once: bool,
    /// Which receive of a shared receive queue the next message takes. Messages always take the
    /// receives of a queue pair's own queue in the order in which they were posted.
    pub shared_receive_order: ReceiveOrder,
    /// Which side executes the RDMA READs that the context posts over shared memory. Over TCP, the
    /// side that owns the memory executes them.
    pub read_execution: ReadExecution,
    /// The way between queue pairs.
    pub path: SoftPath,
    /// What is wrong with the context's memory windows, for tests.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub window_fault: WindowFault,
    /// The records that the context's links over TCP are in, as over TLS, for tests. Both sides have to
    /// say the same.
    #[cfg(any(test, feature = "test-util"))]
    #[doc(hidden)]
    pub link_records: Option<LinkRecords>,
}

/// Returns one side's records of the link between two addresses, for tests. The first one is its own.
#[cfg(any(test, feature = "test-util"))]
#[derive(Clone, Copy, Debug)]
pub struct LinkRecords(pub fn(SocketAddr, SocketAddr) -> Box<dyn RecordLayer>);

#[cfg(any(test, feature = "test-util"))]
impl PartialEq for LinkRecords {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

#[cfg(any(test, feature = "test-util"))]
impl Eq for LinkRecords {}

/// What is wrong with the memory windows of a device, as far as it has any.
#[cfg(feature = "test-util")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WindowFault {
    /// They are as they should be.
    #[default]
    Nothing,
    /// The device refuses a window once it has given this many, whether or not they still exist.
    RefusedAfter(usize),
    /// The device refuses a window while this many exist.
    AtMost(usize),
    /// The device binds no window once it has bound this many.
    UnbindableAfter(usize),
    /// A bound window spans its whole region.
    Wide,
    /// Every queue pair may use a bound window.
    Shared,
    /// A window stays bound when its key is invalidated.
    Kept,
}

/// The way between two reliable queue pairs of the software device. Unreliable ones reach only queue
/// pairs of their own process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SoftPath {
    /// Memory that two processes of one host and one user share.
    #[default]
    SharedMemory,
    /// TCP connections. The context's GID says where its process accepts them, so every process that
    /// knows the GID can connect to those of its queue pairs that are connected to it in turn. What
    /// travels is not encrypted.
    Tcp {
        /// The address at which the process accepts connections: the first context of a process that
        /// names one decides. `None`: the process only dials, so the other side has to accept. Port 0
        /// leaves the choice of the port to the system.
        accept_at: Option<SocketAddrV4>,
    },
    /// Either, as the GID of the remote queue pair says. The context has two GIDs: the first is for
    /// shared memory, the second for TCP.
    Either {
        /// As for [`Tcp`](Self::Tcp).
        accept_at: Option<SocketAddrV4>,
    },
}

impl SoftPath {
    /// TCP connections, which the process accepts over loopback, at a port that the system chooses.
    pub const TCP_OVER_LOOPBACK: Self = Self::Tcp {
        accept_at: Some(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)),
    };
}

/// The order in which messages take the receives of a shared receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveOrder {
    /// The oldest receive first, as network devices do.
    OldestFirst,
    /// The newest receive first: its memory was used last, so it is still in the cache.
    #[default]
    NewestFirst,
}

/// Which side executes an RDMA READ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadExecution {
    /// The side that posts it, which copies from the memory of the other side. The other side's
    /// process need not run. READs that have to wait for an earlier request, and those that are not
    /// permitted, are executed or rejected by the target.
    #[default]
    InPlace,
    /// The side that owns the memory, as for WRITEs and atomics.
    ByTarget,
}
