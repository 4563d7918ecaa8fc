//! Selects the attributes returned by `query` that are valid in the queue pair's state.
//!
//! Devices fill in the whole struct from their memory. An attribute that the state does not have
//! yet, or no longer has, contains garbage.

use std::fmt;

use super::lines::{Bytes, Lines};
use super::queue_pair_attributes::{AddressVector, Psn, QpAttributes, QpNum};
use super::queue_pair_capabilities::QueuePairCapabilities;
use super::queue_pair_state::{Attribute as A, AttributeMask, QpState, QpType};

/// Valid from INIT on, in all later states.
const INIT: [A; 2] = [A::PkeyIndex, A::Port];
const CONNECTED_INIT: [A; 1] = [A::Access];
const DATAGRAM_INIT: [A; 1] = [A::Qkey];

/// Valid from RTR on.
const CONNECTED_RTR: [A; 5] = [
    A::Address,
    A::PathMtu,
    A::DestQpNum,
    A::RqPsn,
    A::AlternatePath,
];
const RELIABLE_RTR: [A; 2] = [A::MaxDestRdAtomic, A::MinRnrTimer];

/// Valid from RTS on.
const RTS: [A; 1] = [A::SqPsn];
const CONNECTED_RTS: [A; 1] = [A::PathMigration];
const RELIABLE_RTS: [A; 4] = [A::Timeout, A::RetryCnt, A::RnrRetry, A::MaxRdAtomic];

/// Returns the attributes that are valid in this state of this type. In addition, the state itself
/// is always valid, and `sq_draining` is valid in SQD.
pub(crate) fn valid_in(qp_type: QpType, state: QpState) -> AttributeMask {
    // How far the queue pair has advanced. In ERR no attribute is valid.
    let (is_init, is_rtr, is_rts) = match state {
        QpState::Reset | QpState::Error => (false, false, false),
        QpState::Init => (true, false, false),
        QpState::Rtr => (true, true, false),
        QpState::Rts | QpState::Sqd | QpState::Sqe => (true, true, true),
    };
    let is_datagram = qp_type == QpType::UnreliableDatagram;
    let is_reliable = qp_type == QpType::ReliableConnection;
    let groups: [(bool, &[A]); 8] = [
        (is_init, &INIT),
        (is_init && is_datagram, &DATAGRAM_INIT),
        (is_init && !is_datagram, &CONNECTED_INIT),
        (is_rtr && !is_datagram, &CONNECTED_RTR),
        (is_rtr && is_reliable, &RELIABLE_RTR),
        (is_rts, &RTS),
        (is_rts && !is_datagram, &CONNECTED_RTS),
        (is_rts && is_reliable, &RELIABLE_RTS),
    ];
    // A reliable connection is never in SQE, whatever the device reports.
    let exists = state != QpState::Sqe || !is_reliable;
    let groups = groups
        .into_iter()
        .filter(|(is_valid, _)| *is_valid && exists);
    groups
        .flat_map(|(_, group)| group.iter().copied())
        .collect()
}

impl QpAttributes {
    /// Returns the attributes that are valid in this state of this queue pair type.
    pub fn valid_in(&self, qp_type: QpType, state: QpState) -> Self {
        let valid = valid_in(qp_type, state);
        macro_rules! keep {
            ($($field:ident: $attribute:ident),* $(,)?) => {
                Self {
                    state: self.state,
                    // Only meaningful in a call to `modify`.
                    current_state: None,
                    notify_drained: None,
                    sq_draining: self.sq_draining.filter(|_| state == QpState::Sqd),
                    $($field: self.$field.filter(|_| valid.contains(A::$attribute)),)*
                }
            };
        }
        keep! {
            access: Access,
            pkey_index: PkeyIndex,
            port: Port,
            qkey: Qkey,
            address: Address,
            path_mtu: PathMtu,
            timeout: Timeout,
            retry_cnt: RetryCnt,
            rnr_retry: RnrRetry,
            rq_psn: RqPsn,
            max_rd_atomic: MaxRdAtomic,
            alternate_path: AlternatePath,
            min_rnr_timer: MinRnrTimer,
            sq_psn: SqPsn,
            max_dest_rd_atomic: MaxDestRdAtomic,
            path_migration: PathMigration,
            dest_qp_num: DestQpNum,
        }
    }
}

/// The attributes of a queue pair's creation (`struct ibv_qp_init_attr`, `ibv_query_qp(3)`). They
/// do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInitAttributes {
    /// Queue pair number.
    pub qp_num: QpNum,
    /// Queue pair type.
    pub qp_type: QpType,
    /// Granted capabilities: at least what was requested.
    pub capabilities: QueuePairCapabilities,
    /// Whether every send generates a completion, signaled or not.
    pub sq_sig_all: bool,
    /// Whether it receives from a shared receive queue.
    pub has_srq: bool,
}

/// Writes one line per attribute, aligned with the lines of [`QpAttributes`].
impl fmt::Display for QpInitAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Lines::new(f, 18);
        lines.line("qp_num", self.qp_num)?;
        lines.line("qp_type", self.qp_type)?;
        let QueuePairCapabilities {
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            max_recv_sge,
            max_inline_data,
        } = self.capabilities;
        lines.line("max_send_wr", max_send_wr)?;
        lines.line("max_send_sge", max_send_sge)?;
        if self.has_srq {
            lines.line("receives", "from a shared receive queue")?;
        } else {
            lines.line("max_recv_wr", max_recv_wr)?;
            lines.line("max_recv_sge", max_recv_sge)?;
        }
        lines.line("max_inline_data", Bytes(max_inline_data as u64))?;
        lines.line("sq_sig_all", yes_or_no(self.sq_sig_all))
    }
}

/// Writes one line per present attribute: its name, value and unit.
impl fmt::Display for QpAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Lines::new(f, 18);
        lines.line_if_some("state", self.state)?;
        lines.line_if_some("sq_draining", self.sq_draining.map(yes_or_no))?;
        lines.line_if_some("current_state", self.current_state)?;
        lines.line_if_some("notify_drained", self.notify_drained.map(yes_or_no))?;
        lines.line_if_some("port", self.port)?;
        lines.line_if_some("pkey_index", self.pkey_index)?;
        lines.line_if_some("qkey", self.qkey.map(|key| format!("{key:#010x}")))?;
        lines.line_if_some("access", self.access)?;
        lines.line_if_some("dest_qp_num", self.dest_qp_num)?;
        lines.line_if_some("address", self.address)?;
        lines.line_if_some("path_mtu", self.path_mtu.map(|mtu| format!("{mtu} bytes")))?;
        let psn = |psn: Psn| format!("{:#08x}", psn.get());
        lines.line_if_some("rq_psn", self.rq_psn.map(psn))?;
        lines.line_if_some("sq_psn", self.sq_psn.map(psn))?;
        let timeout = self.timeout.map(|timeout| match timeout.duration() {
            Some(_) => format!("{timeout} for an acknowledgement"),
            None => "none: an acknowledgement is waited for for ever".to_owned(),
        });
        lines.line_if_some("timeout", timeout)?;
        let retries = self.retry_cnt.map(|count| {
            match self.timeout.and_then(|timeout| count.budget(timeout)) {
                Some(budget) => format!("{count}, so {budget:.3?} for a silent peer"),
                None => count.to_string(),
            }
        });
        lines.line_if_some("retry_cnt", retries)?;
        lines.line_if_some("rnr_retry", self.rnr_retry)?;
        lines.line_if_some("min_rnr_timer", self.min_rnr_timer)?;
        lines.line_if_some("max_rd_atomic", self.max_rd_atomic)?;
        lines.line_if_some("max_dest_rd_atomic", self.max_dest_rd_atomic)?;
        lines.line_if_some("path_migration", self.path_migration)?;
        let alternate = self.alternate_path.map(|path| {
            format!(
                "{}, pkey_index {}, timeout {}",
                path.address, path.pkey_index, path.timeout
            )
        });
        lines.line_if_some("alternate_path", alternate)
    }
}

fn yes_or_no(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// Writes the destination, then the fields that differ from the default.
impl fmt::Display for AddressVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::default();
        if self.is_global {
            write!(f, "{} from GID {}", self.gid, self.sgid_index)?;
        }
        if self.lid != 0 || !self.is_global {
            let comma = if self.is_global { ", " } else { "" };
            write!(f, "{comma}LID {:#06x}", self.lid)?;
        }
        write!(f, ", port {}", self.port)?;
        for (name, value, usual) in [
            ("sl", u32::from(self.sl), u32::from(usual.sl)),
            ("src_path_bits", self.src_path_bits.into(), 0),
            ("static_rate", self.static_rate.into(), 0),
            ("flow_label", self.flow_label, 0),
            ("hop_limit", self.hop_limit.into(), usual.hop_limit.into()),
            ("traffic_class", self.traffic_class.into(), 0),
        ] {
            // Hop limit, flow label and traffic class apply to global routes only.
            let is_of_route = matches!(name, "flow_label" | "hop_limit" | "traffic_class");
            if value != usual && (self.is_global || !is_of_route) {
                write!(f, ", {name} {value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
