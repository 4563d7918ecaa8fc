//! Queue pair attributes (`ibv_modify_qp(3)`), each optional.

use std::fmt;

use super::access::Access;
use super::gid::Gid;
use super::queue_pair_state::{Attribute, AttributeMask, QpState};
use super::timers::{AckTimeout, RetryCount, RnrRetry, RnrTimer};

/// A queue pair number: 24 bits; 0 and 1 are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpNum(pub u32);

impl fmt::Display for QpNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A packet sequence number (PSN) of 24 bits. Higher bits are cut off, as the kernel does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Takes the lower 24 bits of `number`.
    pub fn new(number: u32) -> Self {
        Self(number & 0x00ff_ffff)
    }

    /// Returns the number.
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
    /// Returns the MTU with this code, or `None` if no MTU has it.
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

    /// Returns the payload of a packet in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// Returns the largest MTU of at most `len` bytes, or 256 bytes if none is that small.
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

/// The destination of a queue pair or of a datagram (`struct ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The remote port's GID.
    pub gid: Gid,
    /// The remote port's local identifier (LID); 0 on links without LIDs (RoCE, `soft`).
    pub lid: u16,
    /// Index of the local GID to send from.
    pub sgid_index: u8,
    /// Whether packets carry a global route header. Required on links without LIDs (RoCE, `soft`).
    pub is_global: bool,
    /// The local port, which is the queue pair's port.
    pub port: u8,
    /// Service level on an InfiniBand subnet (4 bits), which determines the virtual lane.
    pub sl: u8,
    /// Selects the source LID: an offset from the port's base LID.
    pub src_path_bits: u8,
    /// Code of the highest rate that the receiver supports (`enum ibv_rate`); 0 sends at the port's
    /// rate.
    pub static_rate: u8,
    /// Flow label by which routers may balance load (20 bits); 0 leaves the choice to the routers.
    pub flow_label: u32,
    /// Number of routers that a packet may pass.
    pub hop_limit: u8,
    /// Traffic class for routers (type of service in IPv4).
    pub traffic_class: u8,
}

/// Number of routers that a packet may pass: IP's usual time to live.
const HOP_LIMIT: u8 = 64;

impl Default for AddressVector {
    /// Returns an address without a destination: a global route from the first GID of the first
    /// port, and defaults for the other fields.
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

/// A second path to the same peer, for automatic path migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// Address vector of the path.
    pub address: AddressVector,
    /// Index of the partition key on the alternate port.
    pub pkey_index: u16,
    /// The local port that the path leaves from.
    pub port: u8,
    /// Time to wait for an acknowledgement on this path.
    pub timeout: AckTimeout,
}

/// State of automatic path migration. No supported device implements it; the type exists so that
/// errors can name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMigration {
    /// Migrated.
    Migrated,
    /// To be rearmed.
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

/// Attributes of a queue pair (`struct ibv_qp_attr`). An attribute that is `None` is not part of
/// the call.
///
/// The transition determines which attributes are required and which are allowed: see
/// [`ModifyError`](super::ModifyError). [`QueuePair::to_init`](crate::QueuePair::to_init)
/// and the related methods set the attributes of the usual sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of `ibv_qp_attr`; units are in the types or said below
pub struct QpAttributes {
    /// The target state; `None` stays in the current one.
    pub state: Option<QpState>,
    /// The state that the caller assumes the queue pair to be in.
    pub current_state: Option<QpState>,
    /// Whether to raise [`SqDrained`](super::AsyncEvent::SqDrained) once the send queue has
    /// drained.
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
    /// Whether the send queue is still draining. Only `query` returns it; no call sets it.
    pub sq_draining: Option<bool>,
}

impl QpAttributes {
    /// Returns the set of attributes that are present. The state is always implied.
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

/// A queue pair's address, which each side sends to the other out of band to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteEndpoint {
    /// GID of the port.
    pub gid: Gid,
    /// The port's LID on an InfiniBand subnet; 0 otherwise.
    pub lid: u16,
    /// Number of the queue pair.
    pub qp_num: QpNum,
    /// The first packet sequence number that the queue pair will send.
    pub psn: Psn,
}

/// 0.96 ms.
const USUAL_RNR_TIMER: RnrTimer = RnrTimer::new(13).unwrap();
/// 67 ms.
const USUAL_TIMEOUT: AckTimeout = AckTimeout::new(14).unwrap();
const USUAL_RETRY_COUNT: RetryCount = RetryCount::new(6).unwrap();

/// The attributes of [`QueuePair::to_rtr`](crate::QueuePair::to_rtr).
#[derive(Clone, Copy, Debug)]
pub struct RtrAttributes {
    /// The peer's queue pair.
    pub remote: RemoteEndpoint,
    /// Index of the local GID to send from.
    pub sgid_index: u8,
    /// Path MTU: the smaller of the two ports' MTUs.
    pub path_mtu: Mtu,
    /// Time that a peer waits after an RNR NAK from this side. Don't use code 0, which is the
    /// longest time.
    pub min_rnr_timer: RnrTimer,
    /// Incoming READs and atomics that are served at a time; 0 rejects them.
    pub max_dest_rd_atomic: u8,
    /// Traffic class of the packets: type of service in IPv4, whose upper six bits are the DSCP. If it
    /// is not 0, packets on an InfiniBand subnet carry a global route header, too.
    pub traffic_class: u8,
    /// Service level on an InfiniBand subnet, up to 15, which determines the virtual lane.
    pub service_level: u8,
}

impl RtrAttributes {
    /// Returns the usual values: first GID, MTU 1,024, RNR timer 0.96 ms, no incoming READs or
    /// atomics, traffic class 0 and service level 0.
    pub fn new(remote: RemoteEndpoint) -> Self {
        Self {
            remote,
            sgid_index: 0,
            path_mtu: Mtu::Bytes1024,
            min_rnr_timer: USUAL_RNR_TIMER,
            max_dest_rd_atomic: 0,
            traffic_class: 0,
            service_level: 0,
        }
    }
}

/// The attributes of [`QueuePair::to_rts`](crate::QueuePair::to_rts).
#[derive(Clone, Copy, Debug)]
pub struct RtsAttributes {
    /// The first packet sequence number that this side sends, as announced to the peer.
    pub psn: Psn,
    /// Time to wait for an acknowledgement.
    pub timeout: AckTimeout,
    /// How often an unacknowledged request is retried. Use at most 6: on some devices 7 means
    /// forever.
    pub retry_cnt: RetryCount,
    /// How often a request is retried after an RNR NAK.
    pub rnr_retry: RnrRetry,
    /// Outstanding READs and atomics: at most as many as the peer serves; 0 for none.
    pub max_rd_atomic: u8,
}

impl RtsAttributes {
    /// Returns the usual values: timeout 67 ms, 6 retries, unlimited RNR retries, no READs or
    /// atomics.
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
