//! Queue pair states, types and attributes (`ibv_modify_qp(3)`).

use std::fmt;

/// State of a queue pair, with the numbers of `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Just created; accepts no requests.
    Reset = 0,
    /// Accepts receives.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained: the queue pair receives, but starts no new send.
    Sqd = 4,
    /// Send queue error (unreliable types only).
    Sqe = 5,
    /// Error: all posted requests are flushed.
    Error = 6,
}

impl QpState {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Error,
    ];
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERR",
        })
    }
}

/// Transport type of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection.
    ReliableConnection = 2,
    /// Unreliable connection: lost packets are not retransmitted.
    UnreliableConnection = 3,
    /// Unreliable datagram: each send names its destination and is one packet.
    UnreliableDatagram = 4,
}

impl QpType {
    /// All types.
    pub const ALL: [Self; 3] = [
        Self::ReliableConnection,
        Self::UnreliableConnection,
        Self::UnreliableDatagram,
    ];
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReliableConnection => "RC",
            Self::UnreliableConnection => "UC",
            Self::UnreliableDatagram => "UD",
        })
    }
}

/// One attribute, with the bit numbers of `enum ibv_qp_attr_mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each is the field of `QpAttributes` with the same name
pub enum Attribute {
    State = 0,
    CurrentState = 1,
    NotifyDrained = 2,
    Access = 3,
    PkeyIndex = 4,
    Port = 5,
    Qkey = 6,
    Address = 7,
    PathMtu = 8,
    Timeout = 9,
    RetryCnt = 10,
    RnrRetry = 11,
    RqPsn = 12,
    MaxRdAtomic = 13,
    AlternatePath = 14,
    MinRnrTimer = 15,
    SqPsn = 16,
    MaxDestRdAtomic = 17,
    PathMigration = 18,
    DestQpNum = 20,
}

impl Attribute {
    /// All attributes that a transition may allow or reject; the state itself is implied.
    pub const ALL: [Self; 19] = [
        Self::CurrentState,
        Self::NotifyDrained,
        Self::Access,
        Self::PkeyIndex,
        Self::Port,
        Self::Qkey,
        Self::Address,
        Self::PathMtu,
        Self::Timeout,
        Self::RetryCnt,
        Self::RnrRetry,
        Self::RqPsn,
        Self::MaxRdAtomic,
        Self::AlternatePath,
        Self::MinRnrTimer,
        Self::SqPsn,
        Self::MaxDestRdAtomic,
        Self::PathMigration,
        Self::DestQpNum,
    ];
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::State => "state",
            Self::CurrentState => "current_state",
            Self::NotifyDrained => "notify_drained",
            Self::Access => "access",
            Self::PkeyIndex => "pkey_index",
            Self::Port => "port",
            Self::Qkey => "qkey",
            Self::Address => "address",
            Self::PathMtu => "path_mtu",
            Self::Timeout => "timeout",
            Self::RetryCnt => "retry_cnt",
            Self::RnrRetry => "rnr_retry",
            Self::RqPsn => "rq_psn",
            Self::MaxRdAtomic => "max_rd_atomic",
            Self::AlternatePath => "alternate_path",
            Self::MinRnrTimer => "min_rnr_timer",
            Self::SqPsn => "sq_psn",
            Self::MaxDestRdAtomic => "max_dest_rd_atomic",
            Self::PathMigration => "path_migration",
            Self::DestQpNum => "dest_qp_num",
        })
    }
}

/// A set of attributes: `attr_mask` of `ibv_modify_qp(3)`, without the bit of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeMask(u32);

impl AttributeMask {
    pub(crate) const fn from_attributes(attributes: &[Attribute]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < attributes.len() {
            bits |= 1 << attributes[i] as u32;
            i += 1;
        }
        Self(bits)
    }

    /// Returns the bits as numbered by verbs.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Returns true if the set contains `attribute`.
    pub fn contains(self, attribute: Attribute) -> bool {
        self.0 & (1 << attribute as u32) != 0
    }

    /// Returns the attributes in the order of their bits.
    pub fn iter(self) -> impl Iterator<Item = Attribute> {
        Attribute::ALL
            .into_iter()
            .filter(move |attribute| self.contains(*attribute))
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl FromIterator<Attribute> for AttributeMask {
    fn from_iter<I: IntoIterator<Item = Attribute>>(attributes: I) -> Self {
        Self(
            attributes
                .into_iter()
                .fold(0, |bits, attribute| bits | 1 << attribute as u32),
        )
    }
}
