//! The seam to devices: one enum per verbs object, with a variant for each provider.
//!
//! Above this line nobody knows which device it is; below it nobody knows of slots and their
//! owners. The promise that makes raw addresses sound here is made once, by the layer above: the
//! memory of a work request belongs to the device from the moment it is posted until its completion
//! (or a later one of the same send queue) has been polled, or the queue pair has been reset or
//! destroyed.

use std::ptr::NonNull;
use std::time::Duration;

use crate::verbs::{
    Access, AsyncEvent, DeviceAttributes, DeviceCounters, Gid, LocalKey, ModifyError, OpenError,
    PortAttributes, PostError, QpAttributes, QpNum, QpState, QueuePairCapabilities, RemoteKey,
    SoftOptions, SrqAttributes, SrqNum, VerbsError, WorkCompletion, WrId,
};

mod soft;

/// One send, as the device gets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWork {
    pub(crate) wr_id: WrId,
    pub(crate) addr: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) local_key: LocalKey,
    pub(crate) signaled: bool,
    pub(crate) inline: bool,
    pub(crate) solicited: bool,
}

/// One receive, as the device gets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWork {
    pub(crate) wr_id: WrId,
    pub(crate) addr: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) local_key: LocalKey,
}

// SAFETY: the addresses are handed to the device, never dereferenced as references, and the memory
// behind them is owned by whoever holds the work request (see the module's promise), on any thread.
unsafe impl Send for SendWork {}
// SAFETY: as for `SendWork`.
unsafe impl Send for ReceiveWork {}

/// What a queue pair is made with, in the provider's own objects.
pub(crate) struct QueuePairConfig<'a> {
    pub(crate) send_cq: &'a CompletionQueue,
    pub(crate) recv_cq: &'a CompletionQueue,
    pub(crate) srq: Option<&'a SharedReceiveQueue>,
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
    pub(crate) max_inline_data: usize,
    pub(crate) sq_sig_all: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Context {
    Soft(soft::Context),
}

impl Context {
    pub(crate) fn open(name: &str) -> Result<Self, OpenError> {
        match name {
            soft::DEVICE_NAME => Self::open_soft(SoftOptions::default()),
            _ => Err(OpenError::UnknownDevice {
                name: name.to_owned(),
                known: soft::DEVICE_NAME,
            }),
        }
    }

    pub(crate) fn open_soft(options: SoftOptions) -> Result<Self, OpenError> {
        soft::Context::open(options).map(Self::Soft)
    }

    pub(crate) fn device_name(&self) -> &'static str {
        match self {
            Self::Soft(_) => soft::DEVICE_NAME,
        }
    }

    pub(crate) fn query_device(&self) -> DeviceAttributes {
        match self {
            Self::Soft(context) => context.query_device(),
        }
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        match self {
            Self::Soft(context) => context.query_port(port),
        }
    }

    pub(crate) fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        match self {
            Self::Soft(context) => context.query_gid(port, index),
        }
    }

    pub(crate) fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        match self {
            Self::Soft(context) => context.alloc_pd().map(ProtectionDomain::Soft),
        }
    }

    pub(crate) fn create_cq(&self, depth: usize) -> Result<CompletionQueue, VerbsError> {
        match self {
            Self::Soft(context) => context.create_cq(depth).map(CompletionQueue::Soft),
        }
    }

    pub(crate) fn get_async_event(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<AsyncEvent>, VerbsError> {
        match self {
            Self::Soft(context) => context.get_async_event(timeout),
        }
    }

    pub(crate) fn interrupt_async_events(&self) {
        match self {
            Self::Soft(context) => context.interrupt_async_events(),
        }
    }

    pub(crate) fn counters(&self) -> Result<DeviceCounters, VerbsError> {
        match self {
            Self::Soft(context) => context.counters(),
        }
    }
}

#[derive(Debug)]
pub(crate) enum ProtectionDomain {
    Soft(soft::ProtectionDomain),
}

impl ProtectionDomain {
    pub(crate) fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        match self {
            Self::Soft(domain) => domain.register(len, access).map(MemoryRegion::Soft),
        }
    }

    pub(crate) fn create_srq(
        &self,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        match self {
            Self::Soft(domain) => domain
                .create_srq(max_wr, max_sge)
                .map(SharedReceiveQueue::Soft),
        }
    }

    pub(crate) fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        match self {
            Self::Soft(domain) => {
                let CompletionQueue::Soft(send_cq) = config.send_cq;
                let CompletionQueue::Soft(recv_cq) = config.recv_cq;
                let srq = config.srq.map(|SharedReceiveQueue::Soft(srq)| srq);
                domain
                    .create_qp(send_cq, recv_cq, srq, &config)
                    .map(QueuePair::Soft)
            }
        }
    }
}

#[derive(Debug)]
pub(crate) enum MemoryRegion {
    Soft(soft::MemoryRegion),
}

impl MemoryRegion {
    /// The first byte of `len` zeroed bytes that stay mapped until this is dropped.
    pub(crate) fn start(&self) -> NonNull<u8> {
        match self {
            Self::Soft(region) => region.start(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Soft(region) => region.len(),
        }
    }

    pub(crate) fn local_key(&self) -> LocalKey {
        match self {
            Self::Soft(region) => region.local_key(),
        }
    }

    pub(crate) fn remote_key(&self) -> RemoteKey {
        match self {
            Self::Soft(region) => region.remote_key(),
        }
    }
}

#[derive(Debug)]
pub(crate) enum CompletionQueue {
    Soft(soft::CompletionQueue),
}

impl CompletionQueue {
    pub(crate) fn poll(
        &self,
        out: &mut Vec<WorkCompletion>,
        max: usize,
    ) -> Result<usize, VerbsError> {
        match self {
            Self::Soft(cq) => cq.poll(out, max),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        match self {
            Self::Soft(cq) => cq.capacity(),
        }
    }

    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Soft(cq) => cq.number(),
        }
    }
}

#[derive(Debug)]
pub(crate) enum SharedReceiveQueue {
    Soft(soft::SharedReceiveQueue),
}

impl SharedReceiveQueue {
    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        match self {
            Self::Soft(srq) => srq.post_recv(work),
        }
    }

    pub(crate) fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        match self {
            Self::Soft(srq) => srq.arm_limit(limit),
        }
    }

    pub(crate) fn query(&self) -> Result<SrqAttributes, VerbsError> {
        match self {
            Self::Soft(srq) => srq.query(),
        }
    }

    pub(crate) fn number(&self) -> SrqNum {
        match self {
            Self::Soft(srq) => srq.number(),
        }
    }
}

#[derive(Debug)]
pub(crate) enum QueuePair {
    Soft(soft::QueuePair),
}

impl QueuePair {
    pub(crate) fn qp_num(&self) -> QpNum {
        match self {
            Self::Soft(qp) => qp.qp_num(),
        }
    }

    pub(crate) fn capabilities(&self) -> QueuePairCapabilities {
        match self {
            Self::Soft(qp) => qp.capabilities(),
        }
    }

    pub(crate) fn state(&self) -> Result<QpState, VerbsError> {
        match self {
            Self::Soft(qp) => qp.state(),
        }
    }

    pub(crate) fn query(&self) -> Result<QpAttributes, VerbsError> {
        match self {
            Self::Soft(qp) => qp.query(),
        }
    }

    /// `from` and `to` were checked against the table of transitions, and so was which attributes
    /// are present; their values were not.
    pub(crate) fn modify(
        &mut self,
        from: QpState,
        to: QpState,
        attributes: &QpAttributes,
    ) -> Result<(), ModifyError> {
        match self {
            Self::Soft(qp) => qp.modify(from, to, attributes),
        }
    }

    pub(crate) fn post_send(&mut self, work: &[SendWork]) -> Result<(), PostError> {
        match self {
            Self::Soft(qp) => qp.post_send(work),
        }
    }

    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        match self {
            Self::Soft(qp) => qp.post_recv(work),
        }
    }

    /// Gives its queues up: the device touches none of their memory after this.
    pub(crate) fn destroy(&mut self) {
        match self {
            Self::Soft(qp) => qp.destroy(),
        }
    }
}
