//! The states of unreliable queue pairs, UC and UD: every transition with its required attributes,
//! with each of them missing, and with each superfluous one.

use verbline_verbs::{
    Access, AckTimeout, AddressVector, AlternatePath, Attribute, CompletionStatus, ModifyError,
    Mtu, PathMigration, Psn, QpAttributes, QpNum, QpState, QpType, RetryCount, RnrRetry, RnrTimer,
    WorkKind,
};

use Attribute as A;
use QpState as S;
use QpType::{UnreliableConnection as UC, UnreliableDatagram as UD};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::unreliable_side::{Making, Party, QKEY, Seen, port_address_vector};
use super::verbs_side;

pub(crate) const CASES: Section = Section {
    topic: "unreliable states",
    cases: &[
        case!(
            transitions_that_unreliable_queue_pairs_do_not_have_are_refused,
            "specification: queue pair states"
        ),
        case!(
            transitions_of_unreliable_queue_pairs_are_made_bare_and_with_all_options,
            "specification: queue pair states; qp_test: CreateUd, UdModify"
        ),
        case!(
            each_attribute_that_an_unreliable_transition_misses_is_named,
            "specification: queue pair states"
        ),
        case!(
            each_attribute_that_an_unreliable_transition_does_not_take_is_named,
            "specification: queue pair states"
        ),
        case!(
            values_of_unreliable_queue_pairs_out_of_range_are_refused_by_name,
            "specification: queue pair states"
        ),
    ],
};

/// Returns the required and optional attributes of a transition according to the specification. The
/// table is written out a second time here, to check the layer's table against it.
fn specified(qp_type: QpType, from: S, to: S) -> Option<(&'static [A], &'static [A])> {
    Some(match (qp_type, from, to) {
        (_, _, S::Reset) => (&[], &[]),
        (_, S::Reset, S::Error) => return None,
        (_, _, S::Error) => (&[], &[]),
        (_, S::Rts, S::Sqd) => (&[], &[A::NotifyDrained]),

        (UC, S::Reset, S::Init) => (&[A::PkeyIndex, A::Port, A::Access], &[]),
        (UC, S::Init, S::Init) => (&[], &[A::PkeyIndex, A::Port, A::Access]),
        (UC, S::Init, S::Rtr) => (
            &[A::Address, A::PathMtu, A::DestQpNum, A::RqPsn],
            &[A::AlternatePath, A::Access, A::PkeyIndex],
        ),
        (UC, S::Rtr, S::Rts) => (
            &[A::SqPsn],
            &[
                A::CurrentState,
                A::AlternatePath,
                A::Access,
                A::PathMigration,
            ],
        ),
        (UC, S::Rts | S::Sqd, S::Rts) => (
            &[],
            &[
                A::CurrentState,
                A::AlternatePath,
                A::Access,
                A::PathMigration,
            ],
        ),
        (UC, S::Sqd, S::Sqd) => (
            &[],
            &[
                A::Address,
                A::AlternatePath,
                A::Access,
                A::PkeyIndex,
                A::PathMigration,
            ],
        ),
        (UC, S::Sqe, S::Rts) => (&[], &[A::CurrentState, A::Access]),

        (UD, S::Reset, S::Init) => (&[A::PkeyIndex, A::Port, A::Qkey], &[]),
        (UD, S::Init, S::Init) => (&[], &[A::PkeyIndex, A::Port, A::Qkey]),
        (UD, S::Init, S::Rtr) => (&[], &[A::PkeyIndex, A::Qkey]),
        (UD, S::Rtr, S::Rts) => (&[A::SqPsn], &[A::CurrentState, A::Qkey]),
        (UD, S::Rts | S::Sqd | S::Sqe, S::Rts) => (&[], &[A::CurrentState, A::Qkey]),
        (UD, S::Sqd, S::Sqd) => (&[], &[A::PkeyIndex, A::Qkey]),
        _ => return None,
    })
}

/// Creates a side in this state, connected to itself where the state requires a connection.
fn party_in(qp_type: QpType, state: S) -> Party {
    let mut party = Party::new(Making::new(qp_type));
    if state == S::Reset {
        return party;
    }
    party.init();
    match state {
        S::Error => party.go(S::Error),
        S::Rtr | S::Rts | S::Sqd | S::Sqe => {
            party.rtr(party.qp.qp_num());
            if state != S::Rtr {
                party.rts();
            }
            if state == S::Sqd {
                party.go(S::Sqd);
                wait_until_drained(&mut party);
            }
            if state == S::Sqe {
                party.post(party.bad_message(&party));
                let status = CompletionStatus::LocalProtection;
                assert_eq!(party.wait_one(), Seen::failed(WorkKind::Send, status));
            }
        }
        _ => {}
    }
    assert_eq!(party.state(), state);
    party
}

/// Waits until the queue pair can leave SQD for any state.
fn wait_until_drained(party: &mut Party) {
    let start = std::time::Instant::now();
    let stay = QpAttributes {
        state: Some(S::Sqd),
        ..QpAttributes::default()
    };
    while let Err(error) = party.qp.modify(&stay) {
        assert!(matches!(error, ModifyError::Draining), "{error}");
        assert!(start.elapsed() < verbs_side::HANG);
        party.poll();
    }
}

fn set(attributes: &mut QpAttributes, attribute: A, party: &Party, from: S) {
    match attribute {
        A::State => {}
        A::CurrentState => attributes.current_state = Some(from),
        A::NotifyDrained => attributes.notify_drained = Some(false),
        A::Access => attributes.access = Some(Access::NONE),
        A::PkeyIndex => attributes.pkey_index = Some(0),
        A::Port => attributes.port = Some(verbs_side::address().port),
        A::Qkey => attributes.qkey = Some(QKEY + 1),
        A::Address => attributes.address = Some(port_address_vector()),
        A::PathMtu => attributes.path_mtu = Some(Mtu::Bytes1024),
        A::Timeout => attributes.timeout = AckTimeout::new(14),
        A::RetryCnt => attributes.retry_cnt = RetryCount::new(6),
        A::RnrRetry => attributes.rnr_retry = Some(RnrRetry::FOREVER),
        A::RqPsn => attributes.rq_psn = Some(Psn::new(5)),
        A::MaxRdAtomic => attributes.max_rd_atomic = Some(0),
        A::AlternatePath => attributes.alternate_path = Some(alternate(port_address_vector())),
        A::MinRnrTimer => attributes.min_rnr_timer = RnrTimer::new(12),
        A::SqPsn => attributes.sq_psn = Some(Psn::new(5)),
        A::MaxDestRdAtomic => attributes.max_dest_rd_atomic = Some(0),
        A::PathMigration => attributes.path_migration = Some(PathMigration::Migrated),
        A::DestQpNum => attributes.dest_qp_num = Some(party.qp.qp_num()),
    }
}

fn alternate(address: AddressVector) -> AlternatePath {
    AlternatePath {
        address,
        pkey_index: 0,
        port: address.port,
        timeout: AckTimeout::new(14).unwrap(),
    }
}

fn attributes_of(
    party: &Party,
    from: S,
    to: S,
    present: impl IntoIterator<Item = A>,
) -> QpAttributes {
    let mut attributes = QpAttributes {
        state: Some(to),
        ..QpAttributes::default()
    };
    for attribute in present {
        set(&mut attributes, attribute, party, from);
    }
    attributes
}

/// Returns each combination of a type, a state that the device can be moved to, and a target state.
fn cells(device: &Device) -> Vec<(QpType, S, S)> {
    let mut states = vec![S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Error];
    states.extend(device.deviates(&rxe::NO_SQE, Some(S::Sqe), None));
    let mut cells = Vec::new();
    for qp_type in [UC, UD] {
        for from in &states {
            cells.extend(S::ALL.map(|to| (qp_type, *from, to)));
        }
    }
    cells
}

fn transitions_that_unreliable_queue_pairs_do_not_have_are_refused(device: &Device) {
    for (qp_type, from, to) in cells(device) {
        if specified(qp_type, from, to).is_some() {
            continue;
        }
        let mut party = party_in(qp_type, from);
        let before = party.qp.query().unwrap();
        let attributes = attributes_of(&party, from, to, []);
        let error = party.qp.modify(&attributes).unwrap_err();
        assert!(
            matches!(error, ModifyError::Transition { from: f, to: t } if f == from && t == to),
            "{qp_type}: {from} to {to}: {error}"
        );
        assert_eq!(party.qp.query().unwrap(), before);
    }
}

fn transitions_of_unreliable_queue_pairs_are_made_bare_and_with_all_options(device: &Device) {
    for (qp_type, from, to) in cells(device) {
        let Some((required, optional)) = specified(qp_type, from, to) else {
            continue;
        };
        let takes_address = (qp_type, from, to) != (UC, S::Sqd, S::Sqd)
            || device.deviates(&rxe::NO_ADDRESS_IN_SQD, true, false);
        // There is only one path, so there is no alternate: the table lists the attribute, but its
        // value is rejected.
        let optional = optional.iter().filter(|attribute| match attribute {
            A::AlternatePath => false,
            A::Address => takes_address,
            _ => true,
        });
        for options in [vec![], optional.copied().collect::<Vec<_>>()] {
            let mut party = party_in(qp_type, from);
            let present = required.iter().copied().chain(options);
            let attributes = attributes_of(&party, from, to, present);
            party
                .qp
                .modify(&attributes)
                .unwrap_or_else(|e| panic!("{qp_type}: {from} to {to}: {e}"));
            let after = party.qp.query().unwrap();
            assert_eq!(after.state, Some(to));
            if !matches!(to, S::Reset | S::Error) {
                assert_eq!(after.access, attributes.access.or(after.access));
                assert_eq!(after.qkey, attributes.qkey.or(after.qkey));
                assert_eq!(
                    after.dest_qp_num,
                    attributes.dest_qp_num.or(after.dest_qp_num)
                );
            }
        }
    }
}

fn each_attribute_that_an_unreliable_transition_misses_is_named(device: &Device) {
    let mut count = 0;
    for (qp_type, from, to) in cells(device) {
        let Some((required, _)) = specified(qp_type, from, to) else {
            continue;
        };
        for missing in required {
            let mut party = party_in(qp_type, from);
            let before = party.qp.query().unwrap();
            let present = required.iter().copied();
            let present = present.filter(|attribute| attribute != missing);
            let attributes = attributes_of(&party, from, to, present);
            let error = party.qp.modify(&attributes).unwrap_err();
            assert!(
                matches!(error, ModifyError::Missing { attribute, .. } if attribute == *missing),
                "{qp_type}: {from} to {to} without {missing}: {error}"
            );
            assert_eq!(party.qp.query().unwrap(), before);
            count += 1;
        }
    }
    assert_eq!(count, (3 + 4 + 1) + (3 + 1));
}

fn each_attribute_that_an_unreliable_transition_does_not_take_is_named(device: &Device) {
    for (qp_type, from, to) in cells(device) {
        let Some((required, optional)) = specified(qp_type, from, to) else {
            continue;
        };
        for superfluous in Attribute::ALL {
            if required.contains(&superfluous) || optional.contains(&superfluous) {
                continue;
            }
            let mut party = party_in(qp_type, from);
            let before = party.qp.query().unwrap();
            let present = required.iter().copied().chain([superfluous]);
            let attributes = attributes_of(&party, from, to, present);
            let error = party.qp.modify(&attributes).unwrap_err();
            assert!(
                matches!(error, ModifyError::Superfluous { attribute, .. } if attribute == superfluous),
                "{qp_type}: {from} to {to} with {superfluous}: {error}"
            );
            assert_eq!(party.qp.query().unwrap(), before);
        }
    }
}

fn values_of_unreliable_queue_pairs_out_of_range_are_refused_by_name(_: &Device) {
    type Spoil = fn(&mut QpAttributes);
    let cases: [(QpType, S, S, A, Spoil); 7] = [
        (UC, S::Reset, S::Init, A::Port, |a| a.port = Some(9)),
        (UD, S::Reset, S::Init, A::PkeyIndex, |a| {
            a.pkey_index = Some(u16::MAX)
        }),
        (UC, S::Init, S::Rtr, A::Address, |a| {
            a.address.as_mut().unwrap().is_global = false
        }),
        (UC, S::Init, S::Rtr, A::Address, |a| {
            a.address.as_mut().unwrap().sgid_index = 255
        }),
        (UC, S::Init, S::Rtr, A::Address, |a| {
            a.address.as_mut().unwrap().port = 9
        }),
        (UC, S::Init, S::Rtr, A::AlternatePath, |a| {
            a.alternate_path = a.address.map(alternate)
        }),
        (UC, S::Init, S::Rtr, A::DestQpNum, |a| {
            a.dest_qp_num = Some(QpNum(1 << 24))
        }),
    ];
    for (qp_type, from, to, spoiled, spoil) in cases {
        let mut party = party_in(qp_type, from);
        let before = party.qp.query().unwrap();
        let (required, _) = specified(qp_type, from, to).unwrap();
        let mut attributes = attributes_of(&party, from, to, required.iter().copied());
        spoil(&mut attributes);
        let error = party.qp.modify(&attributes).unwrap_err();
        assert!(
            matches!(error, ModifyError::Value { attribute, .. } if attribute == spoiled),
            "{spoiled}: {error}"
        );
        assert_eq!(party.qp.query().unwrap(), before);
    }
}
