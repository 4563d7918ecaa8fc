//! The transitions of queue pairs: for each type, the attributes that each requires and allows
//! (`ibv_modify_qp(3)`).

use super::modify_error::ModifyError;
use super::queue_pair_state::{Attribute as A, AttributeMask, QpState, QpState as S, QpType};

/// A valid transition, with its required and its optional attributes.
#[derive(Clone, Copy, Debug)]
struct Transition {
    from: QpState,
    to: QpState,
    required: AttributeMask,
    optional: AttributeMask,
}

const fn row(from: QpState, to: QpState, required: &[A], optional: &[A]) -> Transition {
    Transition {
        from,
        to,
        required: AttributeMask::from_attributes(required),
        optional: AttributeMask::from_attributes(optional),
    }
}

/// Reliable connection, from the kernel's `qp_state_table`. A transition that is not listed does
/// not exist, except "any to RESET" and "any but RESET to ERR", which have no attributes and are
/// handled in [`transition`].
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
    // A reliable connection never enters SQE, but the kernel's table has a transition out of it.
    row(S::Sqe, S::Rts, &[], &[]),
];

/// Unreliable connection: no timers, no retries, no RDMA READs.
const UNRELIABLE_CONNECTION: &[Transition] = &[
    row(S::Reset, S::Init, &[A::PkeyIndex, A::Port, A::Access], &[]),
    row(S::Init, S::Init, &[], &[A::PkeyIndex, A::Port, A::Access]),
    row(
        S::Init,
        S::Rtr,
        &[A::Address, A::PathMtu, A::DestQpNum, A::RqPsn],
        &[A::AlternatePath, A::Access, A::PkeyIndex],
    ),
    row(
        S::Rtr,
        S::Rts,
        &[A::SqPsn],
        &[
            A::CurrentState,
            A::AlternatePath,
            A::Access,
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
        ],
    ),
    row(S::Rts, S::Sqd, &[], &[A::NotifyDrained]),
    row(
        S::Sqd,
        S::Sqd,
        &[],
        &[
            A::Address,
            A::AlternatePath,
            A::Access,
            A::PkeyIndex,
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
            A::PathMigration,
        ],
    ),
    row(S::Sqe, S::Rts, &[], &[A::CurrentState, A::Access]),
];

/// Unreliable datagram: no peer, and a Q_Key in place of access rights.
const UNRELIABLE_DATAGRAM: &[Transition] = &[
    row(S::Reset, S::Init, &[A::PkeyIndex, A::Port, A::Qkey], &[]),
    row(S::Init, S::Init, &[], &[A::PkeyIndex, A::Port, A::Qkey]),
    row(S::Init, S::Rtr, &[], &[A::PkeyIndex, A::Qkey]),
    row(S::Rtr, S::Rts, &[A::SqPsn], &[A::CurrentState, A::Qkey]),
    row(S::Rts, S::Rts, &[], &[A::CurrentState, A::Qkey]),
    row(S::Rts, S::Sqd, &[], &[A::NotifyDrained]),
    row(S::Sqd, S::Sqd, &[], &[A::PkeyIndex, A::Qkey]),
    row(S::Sqd, S::Rts, &[], &[A::CurrentState, A::Qkey]),
    row(S::Sqe, S::Rts, &[], &[A::CurrentState, A::Qkey]),
];

/// Returns the transition, if it exists for this type.
fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    match (from, to) {
        (_, S::Reset) => Some(row(from, to, &[], &[])),
        (S::Reset, S::Error) => None,
        (_, S::Error) => Some(row(from, to, &[], &[])),
        _ => {
            let table = match qp_type {
                QpType::ReliableConnection => RELIABLE_CONNECTION,
                QpType::UnreliableConnection => UNRELIABLE_CONNECTION,
                QpType::UnreliableDatagram => UNRELIABLE_DATAGRAM,
            };
            table
                .iter()
                .find(|row| row.from == from && row.to == to)
                .copied()
        }
    }
}

/// Checks a call to `modify` against the table of transitions and returns the target state.
///
/// `actual` is the state that the device reports. `claimed` is the call's `current_state`, which
/// replaces `actual` in the states RTR to SQE.
pub(crate) fn check_transition(
    qp_type: QpType,
    actual: QpState,
    claimed: Option<QpState>,
    wanted: Option<QpState>,
    mask: AttributeMask,
) -> Result<QpState, ModifyError> {
    let from = match claimed {
        Some(claimed)
            if matches!(
                actual,
                QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
            ) =>
        {
            claimed
        }
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

#[cfg(test)]
mod tests;
