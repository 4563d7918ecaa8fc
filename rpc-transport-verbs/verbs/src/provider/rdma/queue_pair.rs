//! Creates and destroys queue pairs. Their operations are in `modify`, `post` and `requests`.

use std::io;
use std::os::raw::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{ibv_gid, ibv_qp, ibv_qp_cap, ibv_qp_init_attr};

use super::super::limits::in_range;
use super::super::queue_pair_options::QueuePairOptions;
use super::completion_queue::CompletionQueue;
use super::extended::{create_qp_ex, lacking};
use super::handle::{Handle, not_supported};
use super::inline_chain::InlineChain;
use super::inline_probe::probe_inline;
use super::memory::{Domain, ProtectionDomain};
use super::queue_events::Queue;
use super::raw_attributes::type_of;
use super::request_lists::RequestLists;
use super::shared_receive_queue::{self, SharedReceiveQueue};
use super::{check, log_leak, os_error, to_u32};
use crate::types::{
    DeviceAttributes, Gid, QpNum, QpState, QpType, QueuePairCapabilities, VerbsError,
};

const CALL: &str = "create_qp";

#[derive(Debug)]
pub(crate) struct QueuePair {
    /// `None` once destroyed.
    pub(super) raw: Option<NonNull<ibv_qp>>,
    qp_num: QpNum,
    pub(super) qp_type: QpType,
    pub(super) capabilities: QueuePairCapabilities,
    /// The state after the last transition. The device may have moved it to ERR since, in which
    /// posting is still permitted. Kept because some drivers accept a send in any state and execute
    /// it later.
    pub(super) state: QpState,
    pub(super) lists: RequestLists,
    /// Inline sends that wait for the doorbell.
    pub(super) inline: InlineChain,
    /// Longest datagram in bytes: the MTU of its port.
    pub(super) datagram_len: usize,
    /// Multicast groups that it has joined. The device destroys the queue pair only after it has
    /// left them.
    groups: Vec<(Gid, u16)>,
    // Parents: they are destroyed after the queue pair.
    _send_cq: Arc<Queue>,
    recv_cq: Arc<Queue>,
    pub(super) srq: Option<Arc<shared_receive_queue::Queue>>,
    pub(super) domain: Arc<Domain>,
}

// SAFETY: libibverbs locks a queue pair's queues while requests are posted, and any thread may call
// any verb.
unsafe impl Send for QueuePair {}
// SAFETY: concurrent calls on one queue pair are synchronized by libibverbs, so shared references
// may be used from any thread.
unsafe impl Sync for QueuePair {}

impl ProtectionDomain {
    pub(crate) fn create_qp(
        &self,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        srq: Option<&SharedReceiveQueue>,
        config: &QueuePairOptions,
    ) -> Result<QueuePair, VerbsError> {
        QueuePair::create(&self.domain, send_cq, recv_cq, srq, config)
    }
}

impl QueuePair {
    fn create(
        domain: &Arc<Domain>,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        srq: Option<&SharedReceiveQueue>,
        config: &QueuePairOptions,
    ) -> Result<Self, VerbsError> {
        let handle = &domain.handle;
        handle.fork_guard.check()?;
        check_context(handle, send_cq, recv_cq, srq)?;
        let mut wanted = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: send_cq.raw(),
            recv_cq: recv_cq.raw(),
            srq: srq.map_or(ptr::null_mut(), SharedReceiveQueue::raw),
            cap: capabilities_wanted(&handle.limits, config, srq.is_some())?,
            qp_type: type_of(config.qp_type),
            sq_sig_all: c_int::from(config.sq_sig_all),
        };
        // SAFETY: the domain and the queues are alive (their owners are borrowed here), and of one
        // context (checked above).
        let raw = unsafe { create_raw(domain, &mut wanted, config) }?;
        // SAFETY: the library has initialized the queue pair, and nothing else uses it yet.
        let qp_num = QpNum(unsafe { (*raw.as_ptr()).qp_num });
        if config.qp_type == QpType::UnreliableDatagram {
            recv_cq.queue.datagrams.insert(qp_num);
        }
        Ok(Self {
            raw: Some(raw),
            qp_num,
            qp_type: config.qp_type,
            // The library has written the granted capabilities to `wanted`.
            capabilities: QueuePairCapabilities {
                // The requested depth, although the device may have granted more: users size
                // completion queues by what they requested.
                max_send_wr: config.max_send_wr,
                max_recv_wr: match srq {
                    Some(_) => 0,
                    None => wanted.cap.max_recv_wr as usize,
                },
                max_send_sge: wanted.cap.max_send_sge as usize,
                max_recv_sge: match srq {
                    Some(_) => 0,
                    None => wanted.cap.max_recv_sge as usize,
                },
                max_inline_data: wanted.cap.max_inline_data as usize,
            },
            state: QpState::Reset,
            lists: RequestLists::default(),
            inline: InlineChain::new(wanted.cap.max_inline_data as usize, config.max_send_wr),
            datagram_len: 0,
            groups: Vec::new(),
            _send_cq: Arc::clone(&send_cq.queue),
            recv_cq: Arc::clone(&recv_cq.queue),
            srq: srq.map(|srq| Arc::clone(&srq.queue)),
            domain: Arc::clone(domain),
        })
    }

    pub(crate) fn qp_num(&self) -> QpNum {
        self.qp_num
    }

    pub(crate) fn capabilities(&self) -> QueuePairCapabilities {
        self.capabilities
    }

    pub(crate) fn attach_multicast(&mut self, gid: Gid, lid: u16) -> Result<(), VerbsError> {
        if self.groups.contains(&(gid, lid)) {
            return Ok(());
        }
        let attach = self.domain.handle.library.ibv_attach_mcast;
        self.multicast("attach_mcast", attach, gid, lid)?;
        self.groups.push((gid, lid));
        Ok(())
    }

    /// Leaves a group. Returns false if the queue pair is not a member.
    pub(crate) fn detach_multicast(&mut self, gid: Gid, lid: u16) -> Result<bool, VerbsError> {
        if !self.groups.contains(&(gid, lid)) {
            return Ok(false);
        }
        let detach = self.domain.handle.library.ibv_detach_mcast;
        self.multicast("detach_mcast", detach, gid, lid)?;
        self.groups.retain(|group| *group != (gid, lid));
        Ok(true)
    }

    fn multicast(
        &self,
        call: &'static str,
        change: unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int,
        gid: Gid,
        lid: u16,
    ) -> Result<(), VerbsError> {
        let handle = &self.domain.handle;
        handle.fork_guard.check()?;
        let Some(raw) = self.raw else {
            let source = rustix::io::Errno::INVAL.into();
            return Err(VerbsError::Os { call, source });
        };
        let group = ibv_gid { raw: gid.0 };
        // SAFETY: the queue pair is alive while `self` holds it; the driver reads the group during
        // the call and does not keep the pointer.
        let returned = unsafe { change(raw.as_ptr(), &group, lid) };
        check(call, returned)
            .map_err(|error| not_supported(handle, call, "multicast groups", error))
    }

    /// Destroys the queue pair. Returns false if the device refused, and may still access the
    /// memory of posted requests.
    pub(crate) fn destroy(&mut self) -> bool {
        let handle = &self.domain.handle;
        let Some(raw) = self.raw.take() else {
            return true;
        };
        if !handle.is_ours() {
            return true;
        }
        for (gid, lid) in self.groups.drain(..) {
            let gid = ibv_gid { raw: gid.0 };
            // SAFETY: the queue pair is alive until `ibv_destroy_qp` below.
            let returned = unsafe { (handle.library.ibv_detach_mcast)(raw.as_ptr(), &gid, lid) };
            log_leak("detach_mcast", returned);
        }
        // SAFETY: `raw` was taken out of `self`, so the queue pair is destroyed once. The call
        // waits until the queue pair's events are acknowledged, which their reader does at once.
        let returned = unsafe { (handle.library.ibv_destroy_qp)(raw.as_ptr()) };
        log_leak("destroy_qp", returned);
        if self.qp_type == QpType::UnreliableDatagram {
            self.recv_cq.datagrams.remove(self.qp_num);
        }
        returned == 0
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// Rejects objects of another context. Some drivers accept them, which verbs forbid.
fn check_context(
    handle: &Arc<Handle>,
    send_cq: &CompletionQueue,
    recv_cq: &CompletionQueue,
    srq: Option<&SharedReceiveQueue>,
) -> Result<(), VerbsError> {
    let is_ours = |other| Arc::ptr_eq(handle, other);
    for (is_ours, object) in [
        (is_ours(&send_cq.queue.handle), "send_cq"),
        (is_ours(&recv_cq.queue.handle), "recv_cq"),
        (
            srq.is_none_or(|srq| is_ours(&srq.queue.domain.handle)),
            "srq",
        ),
    ] {
        if !is_ours {
            return Err(VerbsError::ForeignObject { call: CALL, object });
        }
    }
    Ok(())
}

/// Creates the queue pair, and writes the granted capabilities to `wanted`.
///
/// # Safety
///
/// The queues of `wanted` must be alive and of the domain's context.
unsafe fn create_raw(
    domain: &Domain,
    wanted: &mut ibv_qp_init_attr,
    config: &QueuePairOptions,
) -> Result<NonNull<ibv_qp>, VerbsError> {
    if config.extended.is_empty() {
        // SAFETY: the domain is borrowed, and the caller guarantees that the queues are alive and
        // of its context.
        let raw = unsafe { (domain.handle.library.ibv_create_qp)(domain.raw(), wanted) };
        NonNull::new(raw).ok_or_else(|| refused(&domain.handle, config, os_error(CALL)))
    } else {
        let asked = *wanted;
        // SAFETY: the caller guarantees that the queues are alive and of the domain's context.
        unsafe { create_qp_ex(domain, wanted, &config.extended) }.map_err(|errno| {
            // SAFETY: the caller guarantees that the queues are alive and of the domain's
            // context.
            let lacking = unsafe { lacking(domain, &asked, &config.extended) };
            lacking.unwrap_or_else(|| {
                let source = io::Error::from_raw_os_error(errno);
                let call = "create_qp_ex";
                refused(&domain.handle, config, VerbsError::Os { call, source })
            })
        })
    }
}

fn capabilities_wanted(
    limits: &DeviceAttributes,
    config: &QueuePairOptions,
    has_srq: bool,
) -> Result<ibv_qp_cap, VerbsError> {
    let bounded = |parameter, value, min, max| {
        in_range(CALL, parameter, value, min, max)?;
        to_u32(CALL, parameter, value)
    };
    let (max_wr, max_sge) = (limits.max_qp_wr, limits.max_sge);
    // Zero with a shared queue: some drivers reject values that they should ignore.
    let (max_recv_wr, max_recv_sge) = match has_srq {
        true => (0, 0),
        false => (config.max_recv_wr, config.max_recv_sge),
    };
    Ok(ibv_qp_cap {
        max_send_wr: bounded("max_send_wr", config.max_send_wr, 1, max_wr)?,
        max_recv_wr: bounded("max_recv_wr", max_recv_wr, 0, max_wr)?,
        max_send_sge: bounded("max_send_sge", config.max_send_sge, 0, max_sge)?,
        max_recv_sge: bounded("max_recv_sge", max_recv_sge, 0, max_sge)?,
        max_inline_data: to_u32(CALL, "max_inline_data", config.max_inline_data)?,
    })
}

/// Finds the cause of a failed creation, as far as possible: the device reports most causes with
/// the same error number.
#[cold]
fn refused(handle: &Arc<Handle>, config: &QueuePairOptions, error: VerbsError) -> VerbsError {
    let VerbsError::Os { source, .. } = &error else {
        return error;
    };
    if source.kind() == io::ErrorKind::Unsupported {
        return VerbsError::NotSupported {
            call: CALL,
            device: handle.name.clone(),
            what: match config.qp_type {
                QpType::ReliableConnection => "queue pairs of type RC",
                QpType::UnreliableConnection => "queue pairs of type UC",
                QpType::UnreliableDatagram => "queue pairs of type UD",
            },
        };
    }
    // No call reports how many bytes a device sends inline, so it is found by trying.
    let inline = config.max_inline_data;
    match in_range(CALL, "max_inline_data", inline, 0, probe_inline(handle)) {
        Err(named) if inline > 0 => named,
        _ => error,
    }
}
