//! The software device.

use std::ptr::NonNull;
use std::time::Duration;

use super::{QueuePairConfig, ReceiveWork, SendWork};
use crate::verbs::*;

pub(crate) const DEVICE_NAME: &str = "soft";
fn no<T>() -> Result<T, VerbsError> {
    Err(VerbsError::Exhausted {
        call: "soft",
        what: "parts",
        limit: 0,
    })
}
#[derive(Clone, Debug)]
pub(crate) struct Context;
#[derive(Debug)]
pub(crate) struct ProtectionDomain;
#[derive(Debug)]
pub(crate) struct MemoryRegion;
#[derive(Debug)]
pub(crate) struct CompletionQueue;
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue;
#[derive(Debug)]
pub(crate) struct QueuePair;
impl Context {
    pub(crate) fn open(_: SoftOptions) -> Result<Self, OpenError> {
        Err(OpenError::UnknownDevice {
            name: "soft".into(),
            known: "none yet",
        })
    }
    pub(crate) fn query_device(&self) -> DeviceAttributes {
        DeviceAttributes {
            max_qp: 0,
            max_qp_wr: 0,
            max_sge: 1,
            max_cq: 0,
            max_cqe: 0,
            max_srq: 0,
            max_srq_wr: 0,
            max_mr: 0,
            max_mr_len: 0,
            max_inline_data: 0,
            max_qp_rd_atomic: 0,
            port_count: 1,
        }
    }
    pub(crate) fn query_port(&self, _: u8) -> Result<PortAttributes, VerbsError> {
        no()
    }
    pub(crate) fn query_gid(&self, _: u8, _: u8) -> Result<Gid, VerbsError> {
        no()
    }
    pub(crate) fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        no()
    }
    pub(crate) fn create_cq(&self, _: usize) -> Result<CompletionQueue, VerbsError> {
        no()
    }
    pub(crate) fn get_async_event(
        &self,
        _: Option<Duration>,
    ) -> Result<Option<AsyncEvent>, VerbsError> {
        no()
    }
    pub(crate) fn interrupt_async_events(&self) {}
    pub(crate) fn counters(&self) -> Result<DeviceCounters, VerbsError> {
        no()
    }
}
impl ProtectionDomain {
    pub(crate) fn register(&self, _: usize, _: Access) -> Result<MemoryRegion, VerbsError> {
        no()
    }
    pub(crate) fn create_srq(&self, _: usize, _: usize) -> Result<SharedReceiveQueue, VerbsError> {
        no()
    }
    pub(crate) fn create_qp(
        &self,
        _: &CompletionQueue,
        _: &CompletionQueue,
        _: Option<&SharedReceiveQueue>,
        _: &QueuePairConfig<'_>,
    ) -> Result<QueuePair, VerbsError> {
        no()
    }
}
impl MemoryRegion {
    pub(crate) fn start(&self) -> NonNull<u8> {
        NonNull::dangling()
    }
    pub(crate) fn len(&self) -> usize {
        0
    }
    pub(crate) fn local_key(&self) -> LocalKey {
        LocalKey(0)
    }
    pub(crate) fn remote_key(&self) -> RemoteKey {
        RemoteKey(0)
    }
}
impl CompletionQueue {
    pub(crate) fn poll(&self, _: &mut Vec<WorkCompletion>, _: usize) -> Result<usize, VerbsError> {
        no()
    }
    pub(crate) fn capacity(&self) -> usize {
        0
    }
    pub(crate) fn number(&self) -> u32 {
        0
    }
}
impl SharedReceiveQueue {
    pub(crate) fn post_recv(&self, _: &[ReceiveWork]) -> Result<(), PostError> {
        Ok(())
    }
    pub(crate) fn arm_limit(&self, _: usize) -> Result<(), VerbsError> {
        no()
    }
    pub(crate) fn query(&self) -> Result<SrqAttributes, VerbsError> {
        no()
    }
    pub(crate) fn number(&self) -> SrqNum {
        SrqNum(0)
    }
}
impl QueuePair {
    pub(crate) fn qp_num(&self) -> QpNum {
        QpNum(0)
    }
    pub(crate) fn capabilities(&self) -> QueuePairCapabilities {
        QueuePairCapabilities {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_inline_data: 0,
        }
    }
    pub(crate) fn state(&self) -> Result<QpState, VerbsError> {
        no()
    }
    pub(crate) fn query(&self) -> Result<QpAttributes, VerbsError> {
        no()
    }
    pub(crate) fn modify(
        &mut self,
        _: QpState,
        _: QpState,
        _: &QpAttributes,
    ) -> Result<(), ModifyError> {
        Ok(())
    }
    pub(crate) fn post_send(&mut self, _: &[SendWork]) -> Result<(), PostError> {
        Ok(())
    }
    pub(crate) fn post_recv(&self, _: &[ReceiveWork]) -> Result<(), PostError> {
        Ok(())
    }
    pub(crate) fn destroy(&mut self) {}
}
