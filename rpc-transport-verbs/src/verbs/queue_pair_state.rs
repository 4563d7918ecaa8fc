//! The states of a queue pair, and which attributes each transition needs and takes.

use std::fmt;

use super::error::ModifyError;

/// State of a queue pair, with the numbers of `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Just created; takes nothing.
    Reset = 0,
    /// Takes receives.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained: receives, but starts no new send.
    Sqd = 4,
    /// Send queue error (unreliable types only).
    Sqe = 5,
    /// In error: everything posted is flushed.
    Error = 6,
}

impl QpState {
    /// All of them.
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
    /// All that a transition may take or refuse; the state itself is implied.
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

/// A set of attributes: `attr_mask` of `ibv_modify_qp`, without the state's own bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeMask(u32);

impl AttributeMask {
    const fn of(attributes: &[Attribute]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < attributes.len() {
            bits |= 1 << attributes[i] as u32;
            i += 1;
        }
        Self(bits)
    }

    /// The bits, as verbs number them.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether it has this attribute.
    pub fn contains(self, attribute: Attribute) -> bool {
        self.0 & (1 << attribute as u32) != 0
    }

    /// In the order of their bits.
    pub fn iter(self) -> impl Iterator<Item = Attribute> {
        Attribute::ALL
            .into_iter()
            .filter(move |attribute| self.contains(*attribute))
    }

    fn without(self, other: Self) -> Self {
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

/// A transition that exists, and the attributes that it must have and may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transition {
    from: QpState,
    to: QpState,
    required: AttributeMask,
    optional: AttributeMask,
}

const fn row(
    from: QpState,
    to: QpState,
    required: &[Attribute],
    optional: &[Attribute],
) -> Transition {
    Transition {
        from,
        to,
        required: AttributeMask::of(required),
        optional: AttributeMask::of(optional),
    }
}

use Attribute as A;
use QpState as S;

/// Reliable connection, from the kernel's `qp_state_table`. What is not here does not exist, but
/// for "any to RESET" and "any but RESET to ERR", which take no attributes and are in
/// [`transition`]. UC and UD will be tables beside this one.
const RELIABLE_CONNECTION: &[Transition] = &[
    row(S::Reset, S::Init, &[A::PkeyIndex, A::Port, A::Access], &[]),
    row(S::Init, S::Init, &[], &[A::PkeyIndex, A::Port, A::Access]),
    row(
        S::Init,
        S::Rtr,
        &[
            A::Address,
            A::PathMtu,
            A::DestQpNum,
            A::RqPsn,
            A::MaxDestRdAtomic,
            A::MinRnrTimer,
        ],
        &[A::AlternatePath, A::Access, A::PkeyIndex],
    ),
    row(
        S::Rtr,
        S::Rts,
        &[
            A::SqPsn,
            A::Timeout,
            A::RetryCnt,
            A::RnrRetry,
            A::MaxRdAtomic,
        ],
        &[
            A::CurrentState,
            A::AlternatePath,
            A::Access,
            A::MinRnrTimer,
            A::PathMigration,
        ],
    ),
    row(
        S::Rts,
        S::Rts,
        &[],
        &[
            A::CurrentState,
            A::Access,
            A::AlternatePath,
            A::PathMigration,
            A::MinRnrTimer,
        ],
    ),
    row(S::Rts, S::Sqd, &[], &[A::NotifyDrained]),
    row(
        S::Sqd,
        S::Sqd,
        &[],
        &[
            A::Port,
            A::Address,
            A::Timeout,
            A::RetryCnt,
            A::RnrRetry,
            A::MaxRdAtomic,
            A::MaxDestRdAtomic,
            A::AlternatePath,
            A::Access,
            A::PkeyIndex,
            A::MinRnrTimer,
            A::PathMigration,
        ],
    ),
    row(
        S::Sqd,
        S::Rts,
        &[],
        &[
            A::CurrentState,
            A::AlternatePath,
            A::Access,
            A::MinRnrTimer,
            A::PathMigration,
        ],
    ),
    // A reliable connection never enters SQE by itself; the way out is in the table all the same.
    row(S::Sqe, S::Rts, &[], &[]),
];

fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    match (from, to) {
        (_, S::Reset) => Some(row(from, to, &[], &[])),
        (S::Reset, S::Error) => None,
        (_, S::Error) => Some(row(from, to, &[], &[])),
        _ => {
            let table = match qp_type {
                QpType::ReliableConnection => RELIABLE_CONNECTION,
            };
            table
                .iter()
                .find(|row| row.from == from && row.to == to)
                .copied()
        }
    }
}

/// Checks a call to `modify` against the table.
///
/// `actual` is the state that the device says; `claimed` is the call's `current_state`, which
/// replaces it where that makes sense. Gives the state to go to.
pub(super) fn check_transition(
    qp_type: QpType,
    actual: QpState,
    claimed: Option<QpState>,
    wanted: Option<QpState>,
    mask: AttributeMask,
) -> Result<QpState, ModifyError> {
    let from = match claimed {
        Some(claimed) if matches!(actual, S::Rtr | S::Rts | S::Sqd | S::Sqe) => claimed,
        _ => actual,
    };
    let to = wanted.unwrap_or(from);
    let row = transition(qp_type, from, to).ok_or(ModifyError::Transition { from, to })?;
    if let Some(attribute) = row.required.without(mask).iter().next() {
        return Err(ModifyError::Missing {
            from,
            to,
            attribute,
        });
    }
    let superfluous = mask.without(row.required).without(row.optional);
    if let Some(attribute) = superfluous.iter().next() {
        return Err(ModifyError::Superfluous {
            from,
            to,
            attribute,
        });
    }
    Ok(to)
}
