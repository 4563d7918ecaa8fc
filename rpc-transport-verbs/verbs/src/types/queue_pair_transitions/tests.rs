use super::super::queue_pair_state::{Attribute, AttributeMask, QpState, QpType};
use super::*;
use Attribute as A;
use QpState as S;

/// The specification's table: one row per transition, with what RC, UC and UD require and allow. It
/// is a second, independent copy: it lists columns side by side, while the code lists one type
/// after another.
fn specified(from: S, to: S) -> Option<[(Vec<A>, Vec<A>); 3]> {
    let connected_init = vec![A::PkeyIndex, A::Port, A::Access];
    let datagram_init = vec![A::PkeyIndex, A::Port, A::Qkey];
    let rc_going_on = vec![
        A::CurrentState,
        A::AlternatePath,
        A::Access,
        A::MinRnrTimer,
        A::PathMigration,
    ];
    let uc_going_on = vec![
        A::CurrentState,
        A::AlternatePath,
        A::Access,
        A::PathMigration,
    ];
    let ud_going_on = vec![A::CurrentState, A::Qkey];
    let alike = |required: Vec<A>, optional: Vec<A>| {
        Some(std::array::from_fn(|_| {
            (required.clone(), optional.clone())
        }))
    };
    match (from, to) {
        (_, S::Reset) => alike(vec![], vec![]),
        (S::Reset, S::Error) => None,
        (_, S::Error) => alike(vec![], vec![]),
        (S::Reset, S::Init) => Some([
            (connected_init.clone(), vec![]),
            (connected_init, vec![]),
            (datagram_init, vec![]),
        ]),
        (S::Init, S::Init) => Some([
            (vec![], connected_init.clone()),
            (vec![], connected_init),
            (vec![], datagram_init),
        ]),
        (S::Init, S::Rtr) => {
            let optional = vec![A::AlternatePath, A::Access, A::PkeyIndex];
            let unreliable = vec![A::Address, A::PathMtu, A::DestQpNum, A::RqPsn];
            let mut reliable = unreliable.clone();
            reliable.extend([A::MaxDestRdAtomic, A::MinRnrTimer]);
            Some([
                (reliable, optional.clone()),
                (unreliable, optional),
                (vec![], vec![A::PkeyIndex, A::Qkey]),
            ])
        }
        (S::Rtr, S::Rts) => {
            let reliable = vec![
                A::SqPsn,
                A::Timeout,
                A::RetryCnt,
                A::RnrRetry,
                A::MaxRdAtomic,
            ];
            Some([
                (reliable, rc_going_on),
                (vec![A::SqPsn], uc_going_on),
                (vec![A::SqPsn], ud_going_on),
            ])
        }
        (S::Rts | S::Sqd, S::Rts) => Some([
            (vec![], rc_going_on),
            (vec![], uc_going_on),
            (vec![], ud_going_on),
        ]),
        (S::Rts, S::Sqd) => alike(vec![], vec![A::NotifyDrained]),
        (S::Sqd, S::Sqd) => {
            let unreliable = vec![
                A::Address,
                A::AlternatePath,
                A::Access,
                A::PkeyIndex,
                A::PathMigration,
            ];
            let mut reliable = unreliable.clone();
            reliable.extend([
                A::Port,
                A::Timeout,
                A::RetryCnt,
                A::RnrRetry,
                A::MaxRdAtomic,
                A::MaxDestRdAtomic,
                A::MinRnrTimer,
            ]);
            Some([
                (vec![], reliable),
                (vec![], unreliable),
                (vec![], vec![A::PkeyIndex, A::Qkey]),
            ])
        }
        (S::Sqe, S::Rts) => Some([
            (vec![], vec![]),
            (vec![], vec![A::CurrentState, A::Access]),
            (vec![], ud_going_on),
        ]),
        _ => None,
    }
}

fn check(
    qp_type: QpType,
    from: S,
    to: S,
    given: impl IntoIterator<Item = A>,
) -> Result<S, ModifyError> {
    check_transition(qp_type, from, None, Some(to), given.into_iter().collect())
}

#[test]
fn every_cell_of_the_three_tables_is_as_specified() {
    for (column, qp_type) in QpType::ALL.into_iter().enumerate() {
        for from in S::ALL {
            for to in S::ALL {
                let Some(columns) = specified(from, to) else {
                    let error = check(qp_type, from, to, []).unwrap_err();
                    assert!(
                        matches!(error, ModifyError::Transition { from: f, to: t } if (f, t) == (from, to)),
                        "{qp_type} {from} to {to}: {error}"
                    );
                    continue;
                };
                let (required, optional) = columns[column].clone();
                let all = || required.iter().copied();
                let cell = format!("{qp_type} {from} to {to}");
                assert_eq!(check(qp_type, from, to, all()).unwrap(), to, "{cell}");
                let with_options = all().chain(optional.iter().copied());
                assert_eq!(
                    check(qp_type, from, to, with_options).unwrap(),
                    to,
                    "{cell}"
                );
                for attribute in A::ALL {
                    if required.contains(&attribute) {
                        let without = all().filter(|other| *other != attribute);
                        let error = check(qp_type, from, to, without).unwrap_err();
                        let text = format!("{from} to {to} needs the attribute {attribute}");
                        assert_eq!(error.to_string(), text, "{cell}");
                    } else {
                        let with = check(qp_type, from, to, all().chain([attribute]));
                        if optional.contains(&attribute) {
                            assert_eq!(with.unwrap(), to, "{cell} with {attribute}");
                        } else {
                            let text =
                                format!("{from} to {to} does not take the attribute {attribute}");
                            assert_eq!(with.unwrap_err().to_string(), text, "{cell}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_claimed_state_counts_where_a_queue_pair_may_have_moved_by_itself() {
    for actual in S::ALL {
        let claim = [A::CurrentState].into_iter().collect();
        let result = check_transition(
            QpType::ReliableConnection,
            actual,
            Some(S::Rts),
            Some(S::Rts),
            claim,
        );
        let counts = matches!(actual, S::Rtr | S::Rts | S::Sqd | S::Sqe);
        assert_eq!(result.is_ok(), counts, "{actual}: {result:?}");
    }
}

#[test]
fn without_a_state_to_go_to_it_stays() {
    let mask = AttributeMask::default();
    let ud = QpType::UnreliableDatagram;
    assert_eq!(
        check_transition(ud, S::Rts, None, None, mask).unwrap(),
        S::Rts
    );
    // Only for states with a transition to themselves.
    let error = check_transition(ud, S::Rtr, None, None, mask).unwrap_err();
    assert_eq!(error.to_string(), "a queue pair cannot go from RTR to RTR");
}
