//! Converts queue pair attributes from and to the header's structs.

use std::io;
use std::os::raw::c_uint;

use rdma_sys::{
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_type,
};

use crate::types::{
    Access, AckTimeout, AddressVector, AlternatePath, Gid, Mtu, PathMigration, Psn, QpAttributes,
    QpNum, QpState, QpType, RetryCount, RnrRetry, RnrTimer, VerbsError,
};

pub(super) fn type_of(qp_type: QpType) -> ibv_qp_type::Type {
    match qp_type {
        QpType::ReliableConnection => ibv_qp_type::IBV_QPT_RC,
        QpType::UnreliableConnection => ibv_qp_type::IBV_QPT_UC,
        QpType::UnreliableDatagram => ibv_qp_type::IBV_QPT_UD,
    }
}

pub(super) fn state_of(raw: c_uint) -> Result<QpState, VerbsError> {
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

pub(super) fn code_of(state: QpState) -> c_uint {
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

/// Converts attributes to the header's struct and the mask of the fields that are set.
pub(super) fn to_raw(to: QpState, attributes: &QpAttributes) -> (ibv_qp_attr, mask) {
    // SAFETY: a plain struct of numbers, for which all zeros is a valid value.
    let mut raw: ibv_qp_attr = unsafe { std::mem::zeroed() };
    let mut attr_mask = mask::IBV_QP_STATE;
    raw.qp_state = code_of(to);
    let mut set = |bit: mask, is_present: bool| {
        if is_present {
            attr_mask |= bit;
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
    // The other fields that belong to the alternate path's bit.
    if let Some(path) = attributes.alternate_path {
        raw.alt_pkey_index = path.pkey_index;
        raw.alt_port_num = path.port;
        raw.alt_timeout = path.timeout.code();
    }
    (raw, attr_mask)
}

/// Converts all attributes that a query returned.
pub(super) fn from_raw(raw: &ibv_qp_attr) -> Result<QpAttributes, VerbsError> {
    Ok(QpAttributes {
        state: Some(state_of(raw.qp_state)?),
        access: Some(Access::from_bits(raw.qp_access_flags)),
        pkey_index: Some(raw.pkey_index),
        port: Some(raw.port_num),
        qkey: Some(raw.qkey),
        address: Some(address_vector(&raw.ah_attr)),
        path_mtu: Mtu::from_code(raw.path_mtu),
        // Invalid codes become `None`.
        timeout: AckTimeout::new(raw.timeout),
        retry_cnt: RetryCount::new(raw.retry_cnt),
        rnr_retry: RnrRetry::new(raw.rnr_retry),
        rq_psn: Some(Psn::new(raw.rq_psn)),
        max_rd_atomic: Some(raw.max_rd_atomic),
        // An alternate port of 0 means that there is no alternate path.
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

pub(super) fn address_handle(address: AddressVector) -> ibv_ah_attr {
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
        // SAFETY: every pattern of 16 bytes is a valid value of the union's field.
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
