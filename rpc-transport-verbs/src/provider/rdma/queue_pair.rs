//! Reliably connected queue pairs: created, modified, queried, posted to.

use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;
use std::os::raw::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;

use rdma_sys::{
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_post_recv, ibv_post_send, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask as mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type, ibv_send_flags,
    ibv_send_wr, ibv_sge, ibv_wr_opcode,
};

use super::super::limits::{WrongValue, in_range};
use super::super::{QueuePairConfig, ReceiveList, ReceiveWork, SendWork, Sge, WindowBinding, Work};
use super::completion_queue::{self, CompletionQueue};
use super::memory::Domain;
use super::shared_receive_queue::{self, SharedReceiveQueue, index_of, post_receives, reason};
use super::{BATCH, log_leak, os_error, sge, to_u32};
use crate::verbs::{
    Access, AckTimeout, AddressVector, AlternatePath, Attribute, Gid, LinkLayer, ModifyError, Mtu,
    PathMigration, PostError, PostErrorReason, Psn, QpAttributes, QpNum, QpState, QpType,
    QueuePairCapabilities, RemoteKey, RetryCount, RnrRetry, RnrTimer, VerbsError, WrId,
};

#[derive(Debug)]
pub(crate) struct QueuePair {
    /// `None` once it is destroyed.
    raw: Option<ptr::NonNull<ibv_qp>>,
    qp_num: QpNum,
    capabilities: QueuePairCapabilities,
    /// The state that it was brought to. The device may have put it in error since, where posting is
    /// still permitted; but some drivers take a send in any state, and carry it out later.
    state: QpState,
    // Parents, which are destroyed after it.
    _send_cq: Arc<completion_queue::Queue>,
    _recv_cq: Arc<completion_queue::Queue>,
    srq: Option<Arc<shared_receive_queue::Queue>>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs locks a queue pair's queues while they are posted to.
unsafe impl Send for QueuePair {}
// SAFETY: as for `Send`.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    pub(super) fn create(
        domain: &Arc<Domain>,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        srq: Option<&SharedReceiveQueue>,
        config: &QueuePairConfig<'_>,
    ) -> Result<Self, VerbsError> {
        const CALL: &str = "create_qp";
        let handle = &domain.handle;
        handle.fork_guard.check()?;
        // Some drivers take objects of another context, which verbs forbid.
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
        let max_wr = handle.limits.max_qp_wr;
        in_range(CALL, "max_send_wr", config.max_send_wr, 1, max_wr)?;
        if srq.is_none() {
            in_range(CALL, "max_recv_wr", config.max_recv_wr, 0, max_wr)?;
        }
        let mut wanted = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: send_cq.raw(),
            recv_cq: recv_cq.raw(),
            srq: srq.map_or(ptr::null_mut(), SharedReceiveQueue::raw),
            cap: ibv_qp_cap {
                max_send_wr: to_u32(CALL, "max_send_wr", config.max_send_wr)?,
                // Zero with a shared queue: some drivers refuse what they would ignore.
                max_recv_wr: match srq {
                    Some(_) => 0,
                    None => to_u32(CALL, "max_recv_wr", config.max_recv_wr)?,
                },
                max_send_sge: to_u32(CALL, "max_send_sge", config.max_send_sge)?,
                max_recv_sge: match srq {
                    Some(_) => 0,
                    None => to_u32(CALL, "max_recv_sge", config.max_recv_sge)?,
                },
                max_inline_data: to_u32(CALL, "max_inline_data", config.max_inline_data)?,
            },
            qp_type: type_of(config.qp_type),
            sq_sig_all: c_int::from(config.sq_sig_all),
        };
        // SAFETY: the domain and the queues are alive, and of one context.
        let raw = unsafe { (handle.library.ibv_create_qp)(domain.raw(), &mut wanted) };
        let raw = ptr::NonNull::new(raw).ok_or_else(|| os_error(CALL))?;
        // SAFETY: the library filled it in.
        let qp_num = QpNum(unsafe { (*raw.as_ptr()).qp_num });
        Ok(Self {
            raw: Some(raw),
            qp_num,
            // What was granted is written back.
            capabilities: QueuePairCapabilities {
                // Not what was granted, which may be more: completion queues are sized by what was
                // asked for.
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
            _send_cq: Arc::clone(&send_cq.queue),
            _recv_cq: Arc::clone(&recv_cq.queue),
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

    pub(crate) fn state(&self) -> Result<QpState, VerbsError> {
        let (attributes, _) = self.query_raw(mask::IBV_QP_STATE)?;
        state_of(attributes.qp_state)
    }

    pub(crate) fn query(&self) -> Result<QpAttributes, VerbsError> {
        let all = mask::IBV_QP_STATE
            | mask::IBV_QP_ACCESS_FLAGS
            | mask::IBV_QP_PKEY_INDEX
            | mask::IBV_QP_PORT
            | mask::IBV_QP_QKEY
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC
            | mask::IBV_QP_ALT_PATH
            | mask::IBV_QP_MIN_RNR_TIMER
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_PATH_MIG_STATE
            | mask::IBV_QP_DEST_QPN;
        let (raw, _) = self.query_raw(all)?;
        Ok(QpAttributes {
            state: Some(state_of(raw.qp_state)?),
            access: Some(Access::from_bits(raw.qp_access_flags)),
            pkey_index: Some(raw.pkey_index),
            port: Some(raw.port_num),
            qkey: Some(raw.qkey),
            address: Some(address_vector(&raw.ah_attr)),
            path_mtu: Mtu::from_code(raw.path_mtu),
            // Codes that do not exist are of no use to anybody.
            timeout: AckTimeout::new(raw.timeout),
            retry_cnt: RetryCount::new(raw.retry_cnt),
            rnr_retry: RnrRetry::new(raw.rnr_retry),
            rq_psn: Some(Psn::new(raw.rq_psn)),
            max_rd_atomic: Some(raw.max_rd_atomic),
            // Without a second path there is no second port.
            alternate_path: match AckTimeout::new(raw.alt_timeout) {
                Some(timeout) if raw.alt_port_num != 0 => Some(AlternatePath {
                    address: address_vector(&raw.alt_ah_attr),
                    pkey_index: raw.alt_pkey_index,
                    port: raw.alt_port_num,
                    timeout,
                }),
                _ => None,
            },
            min_rnr_timer: RnrTimer::new(raw.min_rnr_timer),
            sq_psn: Some(Psn::new(raw.sq_psn)),
            max_dest_rd_atomic: Some(raw.max_dest_rd_atomic),
            path_migration: match raw.path_mig_state {
                0 => Some(PathMigration::Migrated),
                1 => Some(PathMigration::Rearm),
                2 => Some(PathMigration::Armed),
                _ => None,
            },
            dest_qp_num: Some(QpNum(raw.dest_qp_num)),
            sq_draining: Some(raw.sq_draining != 0),
            current_state: None,
            notify_drained: None,
        })
    }

    fn query_raw(&self, which: mask) -> Result<(ibv_qp_attr, ibv_qp_init_attr), VerbsError> {
        const CALL: &str = "query_qp";
        let handle = &self.domain.handle;
        handle.fork_guard.check()?;
        let Some(raw) = self.raw else {
            return Err(VerbsError::Os {
                call: CALL,
                source: rustix::io::Errno::INVAL.into(),
            });
        };
        // SAFETY: plain structs of numbers and pointers, for which zero is a value.
        let (mut attributes, mut init) =
            unsafe { std::mem::zeroed::<(ibv_qp_attr, ibv_qp_init_attr)>() };
        // SAFETY: the queue pair is alive; both structs are places of our own.
        let returned = unsafe {
            (handle.library.ibv_query_qp)(
                raw.as_ptr(),
                &mut attributes,
                which.0 as c_int,
                &mut init,
            )
        };
        super::check(CALL, returned)?;
        Ok((attributes, init))
    }

    pub(crate) fn modify(
        &mut self,
        from: QpState,
        to: QpState,
        attributes: &QpAttributes,
    ) -> Result<(), ModifyError> {
        let handle = &self.domain.handle;
        handle.fork_guard.check()?;
        let refused = |wrong: WrongValue| wrong.at(from, to);
        handle.attribute_limits.check(attributes).map_err(refused)?;
        let os = |source| ModifyError::Os {
            action: action(from, to),
            source,
        };
        // Asked before, since it ends by itself. Some drivers hold a RESET back as well.
        let is_draining = from == QpState::Sqd && self.is_draining();
        if is_draining && to == QpState::Rts {
            return Err(ModifyError::Draining);
        }
        let raw = self
            .raw
            .ok_or_else(|| os(rustix::io::Errno::INVAL.into()))?;
        let (mut values, which) = to_raw(to, attributes);
        // SAFETY: the queue pair is alive; only what the mask names is read.
        let returned =
            unsafe { (handle.library.ibv_modify_qp)(raw.as_ptr(), &mut values, which.0 as c_int) };
        if returned != 0 {
            let source = io::Error::from_raw_os_error(returned.saturating_abs());
            // RoCE resolves the neighbour's address at this moment.
            let is_unreachable = matches!(
                source.kind(),
                io::ErrorKind::TimedOut
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
            );
            return Err(match attributes.address {
                Some(address) if is_unreachable => ModifyError::Unreachable {
                    gid: address.gid,
                    action: "be reached over the network",
                    source,
                },
                _ if is_draining => ModifyError::Draining,
                _ => match self.value_refused(attributes) {
                    Some(wrong) => wrong.at(from, to),
                    None => os(source),
                },
            });
        }
        self.state = to;
        Ok(())
    }

    /// Whether the send queue was told to drain and has not yet.
    fn is_draining(&self) -> bool {
        self.query_raw(mask::IBV_QP_STATE)
            .is_ok_and(|(attributes, _)| attributes.sq_draining != 0)
    }

    /// Which value the device has refused, where its port tells: looked for only when it has, since
    /// it costs questions.
    fn value_refused(&self, attributes: &QpAttributes) -> Option<WrongValue> {
        let wrong = |attribute, value: u64, reason| {
            Some(WrongValue {
                attribute,
                value,
                reason,
            })
        };
        let handle = &self.domain.handle;
        let (raw, _) = self.query_raw(mask::IBV_QP_PORT).ok()?;
        let port = attributes.port.unwrap_or(raw.port_num);
        let port_attributes = handle.query_port(port).ok()?;
        let is_roce = port_attributes.link_layer == LinkLayer::Ethernet;
        if let Some(path) = attributes.alternate_path
            && is_roce
        {
            let reason = "a connection over Ethernet has one path";
            return wrong(Attribute::AlternatePath, path.port.into(), reason);
        }
        if let Some(key) = attributes.qkey.filter(|key| key >> 31 != 0) {
            let reason = "the top bit is for privileged programs";
            return wrong(Attribute::Qkey, key.into(), reason);
        }
        if let Some(mtu) = attributes.path_mtu
            && mtu > port_attributes.active_mtu.usable()
        {
            return wrong(Attribute::PathMtu, mtu as u64, "more than the port's MTU");
        }
        let address = attributes.address?;
        if address.port != port {
            let reason = "port: another than the queue pair's";
            return wrong(Attribute::Address, address.port.into(), reason);
        }
        if !address.is_global && is_roce {
            let reason = "is_global has to be set: there are no LIDs on Ethernet";
            return wrong(Attribute::Address, 0, reason);
        }
        let index = u64::from(address.sgid_index);
        let sgid = handle.query_gid(port, address.sgid_index);
        let Some(sgid) = sgid.ok().filter(|gid| *gid != Gid([0; 16])) else {
            let reason = "sgid_index: the port has no GID there";
            return wrong(Attribute::Address, index, reason);
        };
        let is_ipv4 = |gid: Gid| Ipv6Addr::from(gid.0).to_ipv4_mapped().is_some();
        if is_roce && is_ipv4(sgid) != is_ipv4(address.gid) {
            let reason = "sgid_index: of the two GIDs one is of IPv4 and one of IPv6";
            return wrong(Attribute::Address, index, reason);
        }
        None
    }

    pub(crate) fn post_send(&mut self, work: &[SendWork]) -> Result<(), PostError> {
        let refuse = |taken, reason| Err(PostError { taken, reason });
        if let Err(forked) = self.domain.handle.fork_guard.check() {
            return refuse(0, PostErrorReason::Forked(forked));
        }
        let Some(raw) = self.raw else {
            return refuse(
                0,
                PostErrorReason::State {
                    state: QpState::Reset,
                },
            );
        };
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) && !work.is_empty() {
            return refuse(0, PostErrorReason::State { state: self.state });
        }
        for (batch, chunk) in work.chunks(BATCH).enumerate() {
            let mut elements = [const { MaybeUninit::<ibv_sge>::uninit() }; BATCH];
            let mut requests = [const { MaybeUninit::<ibv_send_wr>::uninit() }; BATCH];
            // The arrays are reached through these alone until the device has read the list.
            let element: *mut ibv_sge = elements.as_mut_ptr().cast();
            let first: *mut ibv_send_wr = requests.as_mut_ptr().cast();
            for (index, work) in chunk.iter().enumerate() {
                let is_last = index + 1 == chunk.len();
                let next = if is_last {
                    ptr::null_mut()
                } else {
                    first.wrapping_add(index + 1)
                };
                // SAFETY: a chunk has at most as many as the arrays.
                unsafe {
                    element
                        .add(index)
                        .write(sge(work.addr, work.len, work.local_key));
                    first
                        .add(index)
                        .write(send_request(work, element.add(index), next));
                }
            }
            let mut refused = ptr::null_mut();
            // SAFETY: the queue pair is alive, and the list is whole. The memory that it names
            // belongs to the device from now on (see the module `provider`).
            let errno = unsafe { ibv_post_send(raw.as_ptr(), first, &mut refused) };
            if errno != 0 {
                let taken = batch * BATCH + index_of(first, refused, chunk.len());
                return refuse(taken, reason(errno, self.capabilities.max_send_wr));
            }
        }
        Ok(())
    }

    pub(crate) fn post(&mut self, _work: &[Work], _elements: &[Sge]) -> Result<(), PostError> {
        Err(PostError {
            taken: 0,
            reason: PostErrorReason::Refused { errno: 95 },
        })
    }

    pub(crate) fn bind_mw(
        &mut self,
        _wr_id: WrId,
        _binding: WindowBinding,
        _signaled: bool,
    ) -> Result<RemoteKey, PostError> {
        Err(PostError {
            taken: 0,
            reason: PostErrorReason::Refused { errno: 95 },
        })
    }

    pub(crate) fn post_recv_lists(
        &self,
        _work: &[ReceiveList],
        _elements: &[Sge],
    ) -> Result<(), PostError> {
        Err(PostError {
            taken: 0,
            reason: PostErrorReason::Refused { errno: 95 },
        })
    }

    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        let refuse = |reason| Err(PostError { taken: 0, reason });
        if let Err(forked) = self.domain.handle.fork_guard.check() {
            return refuse(PostErrorReason::Forked(forked));
        }
        if self.srq.is_some() {
            return refuse(PostErrorReason::HasSharedReceiveQueue);
        }
        let raw = match self.raw {
            Some(raw) if self.state != QpState::Reset => raw,
            _ => {
                return refuse(PostErrorReason::State {
                    state: QpState::Reset,
                });
            }
        };
        let posted = post_receives(work, self.capabilities.max_recv_wr, |first, refused| {
            // SAFETY: the queue pair is alive, and the list is whole.
            unsafe { ibv_post_recv(raw.as_ptr(), first, refused) }
        });
        if self.state == QpState::Error {
            self.flush_again(raw);
        }
        posted
    }

    /// Some drivers do not tell the device of a receive, which then stays where it was posted after
    /// the queue pair had been put in error. Putting it there once more flushes it.
    fn flush_again(&self, raw: ptr::NonNull<ibv_qp>) {
        let error = QpAttributes::default();
        let (mut values, which) = to_raw(QpState::Error, &error);
        let modify = self.domain.handle.library.ibv_modify_qp;
        // SAFETY: the queue pair is alive; only what the mask names is read.
        let returned = unsafe { modify(raw.as_ptr(), &mut values, which.0 as c_int) };
        if returned != 0 {
            tracing::debug!(errno = returned, "a queue pair in error cannot be flushed");
        }
    }

    /// `false`: the device has refused, and may go on using the memory of what was posted.
    pub(crate) fn destroy(&mut self) -> bool {
        let handle = &self.domain.handle;
        let Some(raw) = self.raw.take() else {
            return true;
        };
        if !handle.is_ours() {
            return true;
        }
        // SAFETY: taken out, so destroyed once. It waits for events of the queue pair to be
        // acknowledged, which their reader does at once.
        let returned = unsafe { (handle.library.ibv_destroy_qp)(raw.as_ptr()) };
        log_leak("destroy_qp", returned);
        returned == 0
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// One request of a list.
#[inline]
fn send_request(work: &SendWork, element: *mut ibv_sge, next: *mut ibv_send_wr) -> ibv_send_wr {
    let mut flags: c_uint = 0;
    if work.signaled {
        flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    if work.inline {
        flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    }
    if work.solicited {
        flags |= ibv_send_flags::IBV_SEND_SOLICITED.0;
    }
    // SAFETY: a struct of numbers, pointers and unions of them, for which zero is a value. The unions
    // stay zero: a plain send has no immediate, remote address or window.
    let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
    request.wr_id = work.wr_id.to_raw();
    request.next = next;
    request.sg_list = element;
    request.num_sge = 1;
    request.opcode = ibv_wr_opcode::IBV_WR_SEND;
    request.send_flags = flags;
    request
}

fn type_of(qp_type: QpType) -> ibv_qp_type::Type {
    match qp_type {
        QpType::ReliableConnection => ibv_qp_type::IBV_QPT_RC,
        QpType::UnreliableConnection => ibv_qp_type::IBV_QPT_UC,
        QpType::UnreliableDatagram => ibv_qp_type::IBV_QPT_UD,
    }
}

fn state_of(raw: c_uint) -> Result<QpState, VerbsError> {
    Ok(match raw {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        4 => QpState::Sqd,
        5 => QpState::Sqe,
        6 => QpState::Error,
        other => {
            return Err(VerbsError::Os {
                call: "query_qp",
                source: io::Error::other(format!(
                    "the queue pair is in a state {other}, which is unknown"
                )),
            });
        }
    })
}

fn code_of(state: QpState) -> c_uint {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqd => 4,
        QpState::Sqe => 5,
        QpState::Error => 6,
    }
}

/// What a refused transition was to do, for a person.
fn action(from: QpState, to: QpState) -> &'static str {
    match (from, to) {
        (_, QpState::Reset) => "reset the queue pair",
        (_, QpState::Init) => "bring the queue pair to INIT",
        (_, QpState::Rtr) => {
            "bring the queue pair to RTR (the device refuses an address that its GID cannot reach)"
        }
        (_, QpState::Rts) => "bring the queue pair to RTS",
        (_, QpState::Sqd) => "drain the queue pair",
        (_, QpState::Sqe) => "bring the queue pair to SQE",
        (_, QpState::Error) => "put the queue pair in error",
    }
}

/// The header's struct, and the mask of what is in it.
fn to_raw(to: QpState, attributes: &QpAttributes) -> (ibv_qp_attr, mask) {
    // SAFETY: a plain struct of numbers, for which zero is a value.
    let mut raw: ibv_qp_attr = unsafe { std::mem::zeroed() };
    let mut which = mask::IBV_QP_STATE;
    raw.qp_state = code_of(to);
    let mut set = |bit: mask, is_present: bool| {
        if is_present {
            which |= bit;
        }
        is_present
    };
    macro_rules! copy {
        ($($attribute:ident => $bit:ident, $field:ident = |$value:ident| $convert:expr;)*) => {
            $(if let Some($value) = attributes.$attribute && set(mask::$bit, true) {
                raw.$field = $convert;
            })*
        };
    }
    copy! {
        current_state => IBV_QP_CUR_STATE, cur_qp_state = |state| code_of(state);
        notify_drained => IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify = |on| u8::from(on);
        access => IBV_QP_ACCESS_FLAGS, qp_access_flags = |access| access.bits();
        pkey_index => IBV_QP_PKEY_INDEX, pkey_index = |index| index;
        port => IBV_QP_PORT, port_num = |port| port;
        qkey => IBV_QP_QKEY, qkey = |key| key;
        address => IBV_QP_AV, ah_attr = |address| address_handle(address);
        path_mtu => IBV_QP_PATH_MTU, path_mtu = |mtu| mtu as c_uint;
        timeout => IBV_QP_TIMEOUT, timeout = |timeout| timeout.code();
        retry_cnt => IBV_QP_RETRY_CNT, retry_cnt = |count| count.code();
        rnr_retry => IBV_QP_RNR_RETRY, rnr_retry = |count| count.code();
        rq_psn => IBV_QP_RQ_PSN, rq_psn = |psn| psn.get();
        max_rd_atomic => IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic = |count| count;
        alternate_path => IBV_QP_ALT_PATH, alt_ah_attr = |path| address_handle(path.address);
        min_rnr_timer => IBV_QP_MIN_RNR_TIMER, min_rnr_timer = |timer| timer.code();
        sq_psn => IBV_QP_SQ_PSN, sq_psn = |psn| psn.get();
        max_dest_rd_atomic => IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic = |count| count;
        path_migration => IBV_QP_PATH_MIG_STATE, path_mig_state = |state| match state {
            PathMigration::Migrated => 0,
            PathMigration::Rearm => 1,
            PathMigration::Armed => 2,
        };
        dest_qp_num => IBV_QP_DEST_QPN, dest_qp_num = |number| number.0;
    }
    // The rest of what its bit stands for.
    if let Some(path) = attributes.alternate_path {
        raw.alt_pkey_index = path.pkey_index;
        raw.alt_port_num = path.port;
        raw.alt_timeout = path.timeout.code();
    }
    (raw, which)
}

fn address_handle(address: AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: address.gid.0 },
            flow_label: address.flow_label,
            sgid_index: address.sgid_index,
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
        },
        dlid: address.lid,
        sl: address.sl,
        src_path_bits: address.src_path_bits,
        static_rate: address.static_rate,
        is_global: u8::from(address.is_global),
        port_num: address.port,
    }
}

fn address_vector(raw: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        // SAFETY: any 16 bytes are a value.
        gid: Gid(unsafe { raw.grh.dgid.raw }),
        lid: raw.dlid,
        sgid_index: raw.grh.sgid_index,
        is_global: raw.is_global != 0,
        port: raw.port_num,
        sl: raw.sl,
        src_path_bits: raw.src_path_bits,
        static_rate: raw.static_rate,
        flow_label: raw.grh.flow_label,
        hop_limit: raw.grh.hop_limit,
        traffic_class: raw.grh.traffic_class,
    }
}
