//! What a queue pair can be told: the attributes of `ibv_modify_qp`, each present or not.

use std::fmt;

use super::access::Access;
use super::gid::Gid;
use super::queue_pair_state::{Attribute, AttributeMask, QpState};
use super::timers::{AckTimeout, RetryCount, RnrRetry, RnrTimer};

/// The number of a queue pair: 24 bits; 0 and 1 are special.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpNum(pub u32);

impl fmt::Display for QpNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A packet sequence number: 24 bits, the rest is cut off as the kernel does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The lower 24 bits of `number`.
    pub fn new(number: u32) -> Self {
        Self(number & 0x00ff_ffff)
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// Path MTU, with the codes of `enum ibv_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    Bytes256 = 1,
    /// 512 bytes.
    Bytes512 = 2,
    /// 1,024 bytes.
    Bytes1024 = 3,
    /// 2,048 bytes.
    Bytes2048 = 4,
    /// 4,096 bytes.
    Bytes4096 = 5,
}

impl Mtu {
    /// The MTU with this code; `None` if there is none.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Bytes256,
            2 => Self::Bytes512,
            3 => Self::Bytes1024,
            4 => Self::Bytes2048,
            5 => Self::Bytes4096,
            _ => return None,
        })
    }

    /// Bytes of a packet's payload.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The largest MTU of at most this many bytes; the smallest of all if there is none.
    pub fn at_most(len: u32) -> Self {
        (1..=5)
            .rev()
            .filter_map(Self::from_code)
            .find(|mtu| mtu.bytes() <= len)
            .unwrap_or(Self::Bytes256)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.bytes(), f)
    }
}

/// Where a queue pair sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The remote port's GID.
    pub gid: Gid,
    /// The remote port's local identifier; 0 where there are none (RoCE, `soft`).
    pub lid: u16,
    /// Index of the local GID to send from.
    pub sgid_index: u8,
    /// Whether a global route is used. Required where there are no LIDs (RoCE, `soft`).
    pub is_global: bool,
    /// The local port; the queue pair's own.
    pub port: u8,
    /// Service level on an InfiniBand subnet, of which its virtual lane follows: 4 bits.
    pub sl: u8,
    /// Which of the port's local identifiers to send from: added to the first.
    pub src_path_bits: u8,
    /// The code of a rate (`enum ibv_rate`) that the receiver can take; 0 sends as fast as the port does.
    pub static_rate: u8,
    /// A number that routers may balance by, 20 bits; 0 leaves it to them.
    pub flow_label: u32,
    /// Routers that a packet may pass.
    pub hop_limit: u8,
    /// The class that routers treat it by: of IP, type of service.
    pub traffic_class: u8,
}

/// Routers that a packet may pass: what IP calls the time to live, at its usual value.
const HOP_LIMIT: u8 = 64;

impl Default for AddressVector {
    /// To nobody, over a global route from the first GID of the first port, without any preference.
    fn default() -> Self {
        Self {
            gid: Gid([0; 16]),
            lid: 0,
            sgid_index: 0,
            is_global: true,
            port: 1,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
        }
    }
}

/// A second way to the same peer, for automatic path migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// The way.
    pub address: AddressVector,
    /// Index of the partition key on the alternate port.
    pub pkey_index: u16,
    /// The local port that it leaves from.
    pub port: u8,
    /// How long an acknowledgement is waited for on it.
    pub timeout: AckTimeout,
}

/// State of automatic path migration. No device here has any; it is named to be refused by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMigration {
    /// Migrated.
    Migrated,
    /// To be armed again.
    Rearm,
    /// Armed.
    Armed,
}

impl fmt::Display for PathMigration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Migrated => "migrated",
            Self::Rearm => "to be rearmed",
            Self::Armed => "armed",
        })
    }
}

/// Attributes of a queue pair. What is `None` is not part of the call.
///
/// Which may and must be given depends on the transition: see [`ModifyError`](crate::verbs::ModifyError).
/// [`QueuePair::to_init`](crate::verbs::QueuePair::to_init) and its neighbours fill them in for the usual way up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of `ibv_qp_attr`; units are in the types or said below
pub struct QpAttributes {
    /// The state to go to; `None` stays in the current one.
    pub state: Option<QpState>,
    /// The state that the caller believes it to be in.
    pub current_state: Option<QpState>,
    /// Raise [`SqDrained`](crate::verbs::AsyncEvent::SqDrained) when it is.
    pub notify_drained: Option<bool>,
    pub access: Option<Access>,
    pub pkey_index: Option<u16>,
    pub port: Option<u8>,
    pub qkey: Option<u32>,
    pub address: Option<AddressVector>,
    pub path_mtu: Option<Mtu>,
    pub timeout: Option<AckTimeout>,
    pub retry_cnt: Option<RetryCount>,
    pub rnr_retry: Option<RnrRetry>,
    pub rq_psn: Option<Psn>,
    pub max_rd_atomic: Option<u8>,
    pub alternate_path: Option<AlternatePath>,
    pub min_rnr_timer: Option<RnrTimer>,
    pub sq_psn: Option<Psn>,
    pub max_dest_rd_atomic: Option<u8>,
    pub path_migration: Option<PathMigration>,
    pub dest_qp_num: Option<QpNum>,
    /// Whether the send queue is still draining. Told by `query` alone; no call sets it.
    pub sq_draining: Option<bool>,
}

impl QpAttributes {
    /// Which are present. The state is always implied.
    pub fn mask(&self) -> AttributeMask {
        let present = [
            (self.current_state.is_some(), Attribute::CurrentState),
            (self.notify_drained.is_some(), Attribute::NotifyDrained),
            (self.access.is_some(), Attribute::Access),
            (self.pkey_index.is_some(), Attribute::PkeyIndex),
            (self.port.is_some(), Attribute::Port),
            (self.qkey.is_some(), Attribute::Qkey),
            (self.address.is_some(), Attribute::Address),
            (self.path_mtu.is_some(), Attribute::PathMtu),
            (self.timeout.is_some(), Attribute::Timeout),
            (self.retry_cnt.is_some(), Attribute::RetryCnt),
            (self.rnr_retry.is_some(), Attribute::RnrRetry),
            (self.rq_psn.is_some(), Attribute::RqPsn),
            (self.max_rd_atomic.is_some(), Attribute::MaxRdAtomic),
            (self.alternate_path.is_some(), Attribute::AlternatePath),
            (self.min_rnr_timer.is_some(), Attribute::MinRnrTimer),
            (self.sq_psn.is_some(), Attribute::SqPsn),
            (
                self.max_dest_rd_atomic.is_some(),
                Attribute::MaxDestRdAtomic,
            ),
            (self.path_migration.is_some(), Attribute::PathMigration),
            (self.dest_qp_num.is_some(), Attribute::DestQpNum),
        ];
        present
            .into_iter()
            .filter_map(|(is_present, attribute)| is_present.then_some(attribute))
            .collect()
    }
}

/// What one side tells the other, out of band, so that they can be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteEndpoint {
    /// GID of the port.
    pub gid: Gid,
    /// The port's local identifier on an InfiniBand subnet; 0 where there is none.
    pub lid: u16,
    /// Number of the queue pair.
    pub qp_num: QpNum,
    /// The first sequence number that it will send.
    pub psn: Psn,
}

/// 0.96 ms.
const USUAL_RNR_TIMER: RnrTimer = RnrTimer::new(13).unwrap();
/// 67 ms.
const USUAL_TIMEOUT: AckTimeout = AckTimeout::new(14).unwrap();
const USUAL_RETRY_COUNT: RetryCount = RetryCount::new(6).unwrap();

/// What [`QueuePair::to_rtr`](crate::verbs::QueuePair::to_rtr) needs.
#[derive(Clone, Copy, Debug)]
pub struct RtrAttributes {
    /// The peer's queue pair.
    pub remote: RemoteEndpoint,
    /// Index of the local GID to send from.
    pub sgid_index: u8,
    /// The smaller of what both ports take.
    pub path_mtu: Mtu,
    /// What a peer waits when this side has no receive posted. Never code 0, the longest.
    pub min_rnr_timer: RnrTimer,
    /// READs and atomics of the peer that are answered at a time; 0 refuses them.
    pub max_dest_rd_atomic: u8,
}

impl RtrAttributes {
    /// The usual values: from the first GID, MTU 1,024, RNR timer 0.96 ms, no READs.
    pub fn new(remote: RemoteEndpoint) -> Self {
        Self {
            remote,
            sgid_index: 0,
            path_mtu: Mtu::Bytes1024,
            min_rnr_timer: USUAL_RNR_TIMER,
            max_dest_rd_atomic: 0,
        }
    }
}

/// What [`QueuePair::to_rts`](crate::verbs::QueuePair::to_rts) needs.
#[derive(Clone, Copy, Debug)]
pub struct RtsAttributes {
    /// The first sequence number that this side sends: what the peer was told.
    pub psn: Psn,
    /// How long an acknowledgement is waited for.
    pub timeout: AckTimeout,
    /// How often an unanswered request is repeated: at most 6, since 7 is for ever on some devices.
    pub retry_cnt: RetryCount,
    /// How often "receiver not ready" is put up with.
    pub rnr_retry: RnrRetry,
    /// READs and atomics that are outstanding at a time: at most what the peer answers; 0 for none.
    pub max_rd_atomic: u8,
}

impl RtsAttributes {
    /// The usual values: timeout 67 ms, 6 retries, RNR retried for ever, no READs.
    pub fn new(psn: Psn) -> Self {
        Self {
            psn,
            timeout: USUAL_TIMEOUT,
            retry_cnt: USUAL_RETRY_COUNT,
            rnr_retry: RnrRetry::FOREVER,
            max_rd_atomic: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_psn_has_24_bits() {
        assert_eq!(Psn::new(0x1234_5678).get(), 0x0034_5678);
    }
}
