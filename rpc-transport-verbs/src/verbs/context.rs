//! An opened device.

use std::fmt;
use std::time::Duration;

use super::async_event::AsyncEvent;
use super::completion_channel::CompletionChannel;
use super::completion_queue::CompletionQueue;
use super::error::{OpenError, VerbsError};
use super::protection_domain::ProtectionDomain;
use super::queue_pair_attributes::Mtu;
use crate::provider;

/// An opened device: where every other object comes from. Cheap to clone.
///
/// Open one per poller. Its objects may be used from any thread, but one thread at a time gets
/// into the device through one context.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) raw: provider::Context,
}

impl Context {
    /// Opens a device by its name: `"soft"`, which is there everywhere, or an RDMA device's.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        Ok(Self {
            raw: provider::Context::open(name)?,
        })
    }

    /// Opens the software device with options of its own.
    pub fn open_soft(options: SoftOptions) -> Result<Self, OpenError> {
        Ok(Self {
            raw: provider::Context::open_soft(options)?,
        })
    }

    /// Opens the software device in a simulated process.
    #[cfg(feature = "test-util")]
    pub(crate) fn simulated(process: &provider::SimulatedProcess) -> std::io::Result<Self> {
        let context = process.open(SoftOptions::default())?;
        Ok(Self {
            raw: provider::Context::Soft(context),
        })
    }

    /// The name that it was opened by.
    pub fn device_name(&self) -> &str {
        self.raw.device_name()
    }

    /// The device's limits.
    pub fn query_device(&self) -> DeviceAttributes {
        self.raw.query_device()
    }

    /// State of a port. Ports are numbered from 1.
    pub fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.raw.query_port(port)
    }

    /// An entry of a port's GID table.
    pub fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.raw.query_gid(port, index)
    }

    /// The entries of a port's GID table that are in use, in the order of their indexes. Those
    /// beyond 255 are left out: no address vector can name them.
    pub fn query_gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.raw.query_gid_table(port)
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        ProtectionDomain::new(self)
    }

    /// Creates a completion queue of at least `depth` entries.
    ///
    /// Size it to the sum of the depths of all queues that complete to it: one completion too many
    /// kills it, and its queue pairs with it.
    pub fn create_cq(&self, depth: usize) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(self, depth, None)
    }

    /// The same, with the channel to which it raises an event each time that it was armed
    /// ([`CompletionQueue::arm`]). Several queues may have the same channel. It costs nothing as long
    /// as it is not armed.
    ///
    /// # Errors
    ///
    /// [`VerbsError::ForeignObject`] if the channel was made from another context, and what
    /// [`create_cq`](Self::create_cq) may say.
    pub fn create_cq_with_channel(
        &self,
        depth: usize,
        channel: &CompletionChannel,
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(self, depth, Some(channel))
    }

    /// Creates a completion channel: where completion queues raise events, and threads sleep until they
    /// do. It takes a few file descriptors.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        CompletionChannel::new(self)
    }

    /// Waits for an asynchronous event; for a thread of its own.
    ///
    /// `None` after `timeout`, or when [`interrupt_async_events`](Self::interrupt_async_events) was
    /// called. Without a timeout it waits as long as it takes.
    pub fn get_async_event(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<AsyncEvent>, VerbsError> {
        self.raw.get_async_event(timeout)
    }

    /// Whether this is a child of the process that opened it, where nothing of it works.
    pub fn is_forked(&self) -> bool {
        self.raw.is_forked()
    }

    /// Makes one present or next [`get_async_event`](Self::get_async_event) return `None`.
    pub fn interrupt_async_events(&self) {
        self.raw.interrupt_async_events();
    }

    /// What the device has counted for this context. Kernel verbs count by port and not by context:
    /// there it is an error.
    pub fn counters(&self) -> Result<DeviceCounters, VerbsError> {
        self.raw.counters()
    }

    /// How often a receiver was not ready, since the context was opened. `None` if the device does
    /// not count it.
    ///
    /// The software device counts for this context. The kernel counts for a whole port, so there it
    /// is all of the port's users together, as it was at most 10 ms ago (the `lifespan` of the counters
    /// in sysfs).
    pub fn rnr_counters(&self, port: u8) -> Option<RnrCounters> {
        self.raw.rnr_counters(port)
    }

    /// Whether the device keeps its counters with the state of its data path: a look at them then waits
    /// for whoever polls, and makes that wait, while it is of no cost to the poller's own thread. Those
    /// of the kernel are read by system calls, which disturb nobody.
    pub(crate) fn counts_on_data_path(&self) -> bool {
        self.raw.counts_on_data_path()
    }
}

/// Options of the software device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftOptions {
    /// Fail sends to a dead process at once, instead of after timeout × (retry_cnt + 1) as a
    /// device on a network would.
    pub detect_death_at_once: bool,
}

/// A global identifier: the address of a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&std::net::Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// How a port's packets are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// An InfiniBand subnet.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// Memory of this host.
    Memory,
    /// Another one, by its number.
    Other(u8),
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::Ethernet => f.write_str("Ethernet"),
            Self::Memory => f.write_str("shared memory"),
            Self::Other(number) => write!(f, "link layer {number}"),
        }
    }
}

/// What kind of packets leave from a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet frames, which no router forwards.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
    /// The software device's.
    Soft,
    /// The system does not say, or says a number that is newer than this layer.
    Unknown,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Soft => "soft",
            Self::Unknown => "type unknown",
        })
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the table.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// The kind of packets that leave from it.
    pub gid_type: GidType,
    /// The network device that it belongs to, if any is seen from here.
    pub netdev: Option<String>,
}

/// How often a receiver was not ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RnrCounters {
    /// Times that a message found no receive here.
    pub nak_sent: u64,
    /// Times that a peer had no receive for a message from here.
    pub nak_received: u64,
}

/// The device's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Queue pairs per context.
    pub max_qp: usize,
    /// Work requests per send or receive queue.
    pub max_qp_wr: usize,
    /// Scatter/gather elements per work request that this layer uses.
    pub max_sge: usize,
    /// Completion queues per context.
    pub max_cq: usize,
    /// Entries per completion queue.
    pub max_cqe: usize,
    /// Shared receive queues per context; 0 if the device has none.
    pub max_srq: usize,
    /// Work requests per shared receive queue.
    pub max_srq_wr: usize,
    /// Memory regions per context.
    pub max_mr: usize,
    /// Bytes per memory region.
    pub max_mr_len: usize,
    /// Bytes that this process may still lock for the device, when it was opened: what the limit of
    /// locked memory leaves. As many as there are, if there is no limit.
    pub max_locked_len: usize,
    /// Bytes that a send can carry inline: as far as was tried, since kernel verbs do not say.
    pub max_inline_data: usize,
    /// RDMA reads and atomics that a queue pair can have outstanding.
    pub max_qp_rd_atomic: u8,
    /// Ports.
    pub port_count: u8,
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// Not connected.
    Down,
    /// Ready.
    Active,
    /// Another state, by its number in `enum ibv_port_state`.
    Other(u32),
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("down"),
            Self::Active => f.write_str("active"),
            Self::Other(2) => f.write_str("initializing"),
            Self::Other(3) => f.write_str("armed"),
            Self::Other(number) => write!(f, "in state {number}"),
        }
    }
}

/// What a port says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Its state.
    pub state: PortState,
    /// How its packets are carried.
    pub link_layer: LinkLayer,
    /// The MTU in use.
    pub active_mtu: Mtu,
    /// Bytes of the longest message.
    pub max_msg_len: usize,
    /// Entries of its GID table.
    pub gid_count: u32,
    /// Its local identifier; 0 where there are none.
    pub lid: u16,
}

/// What the device has counted for one context since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Lists of sends that were posted, each with one look at the receiver.
    pub doorbells: u64,
    /// Messages sent.
    pub sends: u64,
    /// Messages received.
    pub receives: u64,
    /// Times that a message found no receive here: a bug in the users' flow control.
    pub rnr_nak_sent: u64,
    /// Times that a peer had no receive for a message from here.
    pub rnr_nak_received: u64,
    /// Times that a limit of a shared receive queue was reached.
    pub srq_limit_events: u64,
    /// Ready bits and wake-ups that senders here had to write for cold receivers.
    pub wakes: u64,
    /// Of these, times that it slept, so that it had to be woken by a system call.
    pub sleepers_woken: u64,
}
