//! The device's objects as the provider interface above sees them: each is an index into a
//! context's tables, with the code that creates and destroys it.

use std::sync::Arc;
use std::time::Duration;

use self::completion_channel::CompletionChannel;
use super::super::limits::in_range;
use super::capacities::{DEVICE_NAME, MAX_RD_ATOMIC, TCP_DEVICE_NAME};
use super::capacities::{
    MAX_CQE, MAX_INLINE, MAX_MESSAGE_LEN, MAX_QUEUES, MAX_REGION_LEN, MAX_SGE, MAX_WR, exhausted,
};
use super::context::completion_queues::CompletionRing;
use super::context::regions::MAX_REGIONS;
use super::process::node::Node;
use super::shared::announcements::MAX_QUEUE_PAIRS;
#[cfg(feature = "test-util")]
use crate::hooks::has_simulation;
use crate::provider::soft::process::node::domain::Domain;
#[cfg(feature = "test-util")]
use crate::types::WindowFault;
use crate::types::{
    AsyncEvent, DeviceAttributes, DeviceCounters, Forked, Gid, GidEntry, GidType, LinkLayer,
    OpenError, PartitionKey, PortAttributes, PostError, PostErrorReason, RnrCounters, SoftOptions,
    SoftPath, VerbsError,
};

pub(super) mod completion_channel;
mod completion_queue;
pub(super) mod device;
mod memory;
mod queue_pair;
mod shared_receive_queue;
mod tcp_link;
pub(super) mod unsupported;
pub(super) mod windows;

pub(crate) use completion_queue::CompletionQueue;
pub(crate) use memory::{MemoryRegion, ProtectionDomain};
pub(crate) use queue_pair::QueuePair;
pub(crate) use shared_receive_queue::SharedReceiveQueue;
pub use tcp_link::{LinkBytes, LinkTarget};

#[cfg(feature = "shim")]
pub(crate) use super::shared::memory::SharedMemory;
#[cfg(feature = "shim")]
pub(crate) use super::shared::program_pages::{make_private, make_private_after_fork, share};

const LIMITS: DeviceAttributes = DeviceAttributes {
    max_qp: MAX_QUEUE_PAIRS,
    max_qp_wr: MAX_WR,
    max_sge: MAX_SGE,
    max_sge_rd: MAX_SGE,
    max_srq_sge: MAX_SGE,
    max_cq: MAX_QUEUES,
    max_cqe: MAX_CQE,
    max_srq: MAX_QUEUES,
    max_srq_wr: MAX_WR,
    max_mr: MAX_REGIONS,
    max_mr_len: MAX_REGION_LEN,
    // No limit: shared memory is not locked.
    max_locked_len: usize::MAX,
    max_inline_data: MAX_INLINE,
    max_qp_rd_atomic: MAX_RD_ATOMIC,
    max_res_rd_atomic: MAX_RD_ATOMIC as usize * MAX_QUEUE_PAIRS,
    port_count: 1,
    ..device::ATTRIBUTES
};

#[derive(Clone, Debug)]
pub(crate) struct Context {
    domain: Arc<Domain>,
}

impl Context {
    pub(crate) fn open(options: SoftOptions) -> Result<Self, OpenError> {
        // The name that was asked for: nobody has named shared memory where all goes over TCP.
        let name = match options.path {
            SoftPath::Tcp { .. } => TCP_DEVICE_NAME,
            SoftPath::SharedMemory | SoftPath::Either { .. } => DEVICE_NAME,
        };
        Self::on(Node::get(name)?, options).map_err(|source| OpenError::Os {
            name: name.to_owned(),
            action: "make a context",
            source,
        })
    }

    /// Returns true if something is wrong with its windows, outside of a simulation, in which a trial
    /// would wait for ever.
    #[cfg(feature = "test-util")]
    pub(crate) fn has_window_fault(&self) -> bool {
        let is_faulty = |options: SoftOptions| options.window_fault != WindowFault::Nothing;
        let state = self.domain.enter();
        !has_simulation() && state.is_ok_and(|state| is_faulty(state.common.options))
    }

    /// Opens a context of the given process.
    pub(super) fn on(node: Arc<Node>, options: SoftOptions) -> std::io::Result<Self> {
        let domain = Domain::open(node, options)?;
        Ok(Self { domain })
    }

    /// Returns the name under which the device is opened.
    pub(crate) fn device_name(&self) -> &'static str {
        match self.link_layer() {
            LinkLayer::Tcp => TCP_DEVICE_NAME,
            _ => DEVICE_NAME,
        }
    }

    /// Returns the path of the first GID.
    fn link_layer(&self) -> LinkLayer {
        let gids = self.domain.gids;
        match gids.tcp() == Some(gids.first()) {
            true => LinkLayer::Tcp,
            false => LinkLayer::Memory,
        }
    }

    pub(crate) fn query_device(&self) -> DeviceAttributes {
        DeviceAttributes {
            node_guid: device::guid(self.domain.gids.first()),
            sys_image_guid: device::guid(self.domain.gids.first()),
            ..LIMITS
        }
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        in_range("query_port", "port", usize::from(port), 1, 1)?;
        Ok(PortAttributes {
            max_msg_len: MAX_MESSAGE_LEN,
            link_layer: self.link_layer(),
            gid_count: self.domain.gids.count().into(),
            ..device::port()
        })
    }

    pub(crate) fn query_pkey(&self, port: u8, index: u16) -> Result<PartitionKey, VerbsError> {
        in_range("query_pkey", "port", usize::from(port), 1, 1)?;
        in_range("query_pkey", "index", usize::from(index), 0, 0)?;
        Ok(PartitionKey::DEFAULT)
    }

    pub(crate) fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        in_range("query_gid", "port", usize::from(port), 1, 1)?;
        let last = usize::from(self.domain.gids.count()) - 1;
        in_range("query_gid", "index", usize::from(index), 0, last)?;
        Ok(self.domain.gids.get(index).unwrap_or_default())
    }

    pub(crate) fn query_gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        let entry = |index| {
            let gid = self.query_gid(port, index)?;
            Ok(GidEntry {
                index,
                gid,
                gid_type: match Some(gid) == self.domain.gids.tcp() {
                    true => GidType::Tcp,
                    false => GidType::Soft,
                },
                netdev: None,
            })
        };
        (0..self.domain.gids.count()).map(entry).collect()
    }

    pub(crate) fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        let mut state = self.domain.enter()?;
        let number = state.common.next_protection_domain;
        state.common.next_protection_domain = number
            .checked_add(1)
            .ok_or_else(|| exhausted("alloc_pd", "protection domains", u32::MAX as usize))?;
        Ok(ProtectionDomain {
            domain: Arc::clone(&self.domain),
            number,
        })
    }

    pub(crate) fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        self.domain.node.check()?;
        CompletionChannel::new(&self.domain).map_err(|source| VerbsError::Os {
            call: "create_comp_channel",
            source,
        })
    }

    pub(crate) fn create_cq(
        &self,
        depth: usize,
        channel: Option<&CompletionChannel>,
        vector: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        self.domain.node.check()?;
        in_range("create_cq", "depth", depth, 1, MAX_CQE)?;
        let last_vector = LIMITS.num_comp_vectors - 1;
        in_range("create_cq", "comp_vector", vector as usize, 0, last_vector)?;
        if channel.is_some_and(|channel| !channel.is_of(&self.domain)) {
            return Err(VerbsError::ForeignObject {
                call: "create_cq",
                object: "the completion channel",
            });
        }
        let number = self.domain.node.next_serial();
        let channel = channel.map(CompletionChannel::events);
        let ring = CompletionRing::new(depth, number, channel.clone());
        let mut state = self.domain.enter()?;
        if state.common.completion_queues.len() == MAX_QUEUES {
            return Err(exhausted("create_cq", "completion queues", MAX_QUEUES));
        }
        let index = state.common.completion_queues.insert(ring);
        Ok(CompletionQueue {
            domain: Arc::clone(&self.domain),
            index,
            number,
            channel,
        })
    }

    pub(crate) fn get_async_event(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<AsyncEvent>, VerbsError> {
        self.domain.node.check()?;
        Ok(self.domain.events.next(timeout))
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.domain.node.check().is_err()
    }

    pub(crate) fn interrupt_async_events(&self) {
        self.domain.events.interrupt();
    }

    pub(crate) fn counters(&self) -> Result<DeviceCounters, VerbsError> {
        Ok(self.domain.enter()?.common.counters)
    }

    pub(crate) fn rnr_counters(&self, port: u8) -> Option<RnrCounters> {
        in_range("rnr_counters", "port", usize::from(port), 1, 1).ok()?;
        let counters = self.counters().ok()?;
        Some(RnrCounters {
            nak_sent: counters.rnr_nak_sent,
            nak_received: counters.rnr_nak_received,
        })
    }
}

fn not_posted(forked: Forked) -> PostError {
    PostError {
        taken: 0,
        reason: forked.into(),
    }
}

fn all_taken(taken: usize, posted: usize, capacity: usize) -> Result<(), PostError> {
    if taken == posted {
        return Ok(());
    }
    Err(PostError {
        taken,
        reason: PostErrorReason::QueueFull { capacity },
    })
}
