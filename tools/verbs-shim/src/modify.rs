//! Changes and queries the attributes of queue pairs.

use std::ffi::{c_int, c_void};

use verbline_verbs::for_shim::{access, mtu};
use verbline_verbs::{
    AckTimeout, AlternatePath, PathMigration, Psn, QpAttributes, QpNum, QpState, RetryCount,
    RnrRetry, RnrTimer,
};

use crate::abi::{ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use crate::boundary::{Errno, NoSignals, lock, number};
use crate::memory::{address, address_attribute};
use crate::queue_pairs::qp_of;
use crate::queues::cq_of;

/// The bits of `enum ibv_qp_attr_mask`, by their index.
mod bit {
    pub(super) const STATE: u32 = 0;
    pub(super) const CUR_STATE: u32 = 1;
    pub(super) const EN_SQD_ASYNC_NOTIFY: u32 = 2;
    pub(super) const ACCESS_FLAGS: u32 = 3;
    pub(super) const PKEY_INDEX: u32 = 4;
    pub(super) const PORT: u32 = 5;
    pub(super) const QKEY: u32 = 6;
    pub(super) const AV: u32 = 7;
    pub(super) const PATH_MTU: u32 = 8;
    pub(super) const TIMEOUT: u32 = 9;
    pub(super) const RETRY_CNT: u32 = 10;
    pub(super) const RNR_RETRY: u32 = 11;
    pub(super) const RQ_PSN: u32 = 12;
    pub(super) const MAX_QP_RD_ATOMIC: u32 = 13;
    pub(super) const ALT_PATH: u32 = 14;
    pub(super) const MIN_RNR_TIMER: u32 = 15;
    pub(super) const SQ_PSN: u32 = 16;
    pub(super) const MAX_DEST_RD_ATOMIC: u32 = 17;
    pub(super) const PATH_MIG_STATE: u32 = 18;
    pub(super) const CAP: u32 = 19;
    pub(super) const DEST_QPN: u32 = 20;
    /// All that are above, but `CAP`: queues are not resized.
    pub(super) const KNOWN: u32 = ((1 << 21) - 1) & !(1 << CAP);
}

fn state(number: u32) -> Option<QpState> {
    QpState::ALL
        .into_iter()
        .find(|state| *state as u32 == number)
}

fn migration(number: u32) -> Option<PathMigration> {
    match number {
        0 => Some(PathMigration::Migrated),
        1 => Some(PathMigration::Rearm),
        2 => Some(PathMigration::Armed),
        _ => None,
    }
}

/// Converts the attributes that the mask names. A number that none of the attribute's values has is
/// invalid.
fn attributes(raw: &ibv_qp_attr, mask: u32) -> Result<QpAttributes, Errno> {
    let has = |index: u32| mask >> index & 1 == 1;
    if mask & !bit::KNOWN != 0 {
        return Err(Errno::INVALID);
    }
    /// Returns the value, if the attribute is there.
    fn checked<T>(is_there: bool, value: Option<T>) -> Result<Option<T>, Errno> {
        match (is_there, value) {
            (false, _) => Ok(None),
            (true, Some(value)) => Ok(Some(value)),
            (true, None) => Err(Errno::INVALID),
        }
    }
    let alternate = AckTimeout::new(raw.alt_timeout).map(|timeout| AlternatePath {
        address: address(&raw.alt_ah_attr),
        pkey_index: raw.alt_pkey_index,
        port: raw.alt_port_num,
        timeout,
    });
    Ok(QpAttributes {
        state: checked(has(bit::STATE), state(raw.qp_state))?,
        current_state: checked(has(bit::CUR_STATE), state(raw.cur_qp_state))?,
        notify_drained: has(bit::EN_SQD_ASYNC_NOTIFY).then_some(raw.en_sqd_async_notify != 0),
        access: has(bit::ACCESS_FLAGS).then(|| access(raw.qp_access_flags)),
        pkey_index: has(bit::PKEY_INDEX).then_some(raw.pkey_index),
        port: has(bit::PORT).then_some(raw.port_num),
        qkey: has(bit::QKEY).then_some(raw.qkey),
        address: has(bit::AV).then(|| address(&raw.ah_attr)),
        path_mtu: checked(has(bit::PATH_MTU), mtu(raw.path_mtu))?,
        timeout: checked(has(bit::TIMEOUT), AckTimeout::new(raw.timeout))?,
        retry_cnt: checked(has(bit::RETRY_CNT), RetryCount::new(raw.retry_cnt))?,
        rnr_retry: checked(has(bit::RNR_RETRY), RnrRetry::new(raw.rnr_retry))?,
        rq_psn: has(bit::RQ_PSN).then(|| Psn::new(raw.rq_psn)),
        max_rd_atomic: has(bit::MAX_QP_RD_ATOMIC).then_some(raw.max_rd_atomic),
        alternate_path: checked(has(bit::ALT_PATH), alternate)?,
        min_rnr_timer: checked(has(bit::MIN_RNR_TIMER), RnrTimer::new(raw.min_rnr_timer))?,
        sq_psn: has(bit::SQ_PSN).then(|| Psn::new(raw.sq_psn)),
        max_dest_rd_atomic: has(bit::MAX_DEST_RD_ATOMIC).then_some(raw.max_dest_rd_atomic),
        path_migration: checked(has(bit::PATH_MIG_STATE), migration(raw.path_mig_state))?,
        dest_qp_num: has(bit::DEST_QPN).then_some(QpNum(raw.dest_qp_num)),
        sq_draining: None,
    })
}

/// `ibv_modify_qp(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // The device may start threads when it connects.
    let _signals = NoSignals::new();
    number(|| {
        // SAFETY: the program's queue pair and attributes.
        let (own, raw) = unsafe { (qp_of(qp), &*attr) };
        let wanted = attributes(raw, mask.cast_unsigned())?;
        let now = lock(&own.inner).modify(&wanted)?;
        let mut sends = lock(&own.sends);
        sends.may_post = !matches!(now, QpState::Reset | QpState::Init | QpState::Rtr);
        if let Some(reads) = wanted.max_rd_atomic {
            sends.max_rd_atomic = reads;
        }
        if now == QpState::Reset {
            sends.clear();
            drop(sends);
            // SAFETY: the queue pair's own queues.
            unsafe {
                cq_of((*qp).send_cq).forget(QpNum((*qp).qp_num));
                cq_of((*qp).recv_cq).forget(QpNum((*qp).qp_num));
            }
        }
        // SAFETY: the program's queue pair.
        unsafe { (*qp).state = now as c_int };
        Ok(())
    })
}

/// `ibv_query_qp(3)`: all attributes, whatever the mask.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    out: *mut ibv_qp_attr,
    _mask: c_int,
    out_init: *mut ibv_qp_init_attr,
) -> c_int {
    number(|| {
        // SAFETY: the program's queue pair.
        let own = unsafe { qp_of(qp) };
        let known = lock(&own.inner).query()?;
        let state = known.state.unwrap_or(QpState::Reset) as u32;
        let alternate = known.alternate_path;
        let answer = ibv_qp_attr {
            qp_state: state,
            cur_qp_state: state,
            path_mtu: known.path_mtu.map_or(0, |mtu| mtu as u32),
            path_mig_state: match known.path_migration {
                None | Some(PathMigration::Migrated) => 0,
                Some(PathMigration::Rearm) => 1,
                Some(PathMigration::Armed) => 2,
            },
            qkey: known.qkey.unwrap_or(0),
            rq_psn: known.rq_psn.unwrap_or_default().get(),
            sq_psn: known.sq_psn.unwrap_or_default().get(),
            dest_qp_num: known.dest_qp_num.map_or(0, |number| number.0),
            qp_access_flags: known.access.unwrap_or_default().bits(),
            cap: own.cap,
            ah_attr: known
                .address
                .as_ref()
                .map_or_else(Default::default, address_attribute),
            alt_ah_attr: alternate
                .map_or_else(Default::default, |path| address_attribute(&path.address)),
            pkey_index: known.pkey_index.unwrap_or(0),
            alt_pkey_index: alternate.map_or(0, |path| path.pkey_index),
            en_sqd_async_notify: 0,
            sq_draining: known.sq_draining.unwrap_or(false).into(),
            max_rd_atomic: known.max_rd_atomic.unwrap_or(0),
            max_dest_rd_atomic: known.max_dest_rd_atomic.unwrap_or(0),
            min_rnr_timer: known.min_rnr_timer.map_or(0, |timer| timer.code()),
            port_num: known.port.unwrap_or(0),
            timeout: known.timeout.map_or(0, |timeout| timeout.code()),
            retry_cnt: known.retry_cnt.map_or(0, |count| count.code()),
            rnr_retry: known.rnr_retry.map_or(0, |count| count.code()),
            alt_port_num: alternate.map_or(0, |path| path.port),
            alt_timeout: alternate.map_or(0, |path| path.timeout.code()),
            rate_limit: 0,
        };
        // SAFETY: the program's queue pair, and its places for the answers.
        unsafe {
            (*qp).state = state.cast_signed();
            *out = answer;
            *out_init = ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: own.cap,
                qp_type: (*qp).qp_type,
                sq_sig_all: own.signals_all.into(),
            };
        }
        Ok(())
    })
}

/// `ibv_query_ece(3)`: no options are there to agree on.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_ece(_: *mut ibv_qp, _: *mut c_void) -> c_int {
    libc::EOPNOTSUPP
}

/// `ibv_set_ece(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_set_ece(_: *mut ibv_qp, _: *mut c_void) -> c_int {
    libc::EOPNOTSUPP
}

/// `ibv_query_qp_data_in_order(3)`: bytes are not promised to arrive in their order.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: c_int, _: u32) -> c_int {
    0
}
