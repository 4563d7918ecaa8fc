//! The states of a queue pair: every transition with its required attributes, with each of them
//! missing, and with each superfluous one.

use std::net::Ipv6Addr;

use super::case::{Section, case};
use super::device::Device;
use super::verbs_side::{self, Plan, Side};
use verbline_verbs::{
    Access, AckTimeout, AddressVector, AlternatePath, Attribute, Gid, ModifyError, Mtu,
    PathMigration, Psn, QpAttributes, QpNum, QpState, RemoteEndpoint, RetryCount, RnrRetry,
    RnrTimer,
};

use Attribute as A;
use QpState as S;

pub(crate) const CASES: Section = Section {
    topic: "states",
    cases: &[
        case!(
            transitions_that_do_not_exist_are_refused_and_change_nothing,
            "specification: queue pair states; qp_test: ModifyInvalidResetToRtrTransition, ModifyInvalidInitToRtsTransition, ModifyInvalidRtsToRtrTransition"
        ),
        case!(
            transitions_with_what_they_require_alone_and_with_all_options_are_made,
            "specification: queue pair states; qp_test: Modify"
        ),
        case!(
            each_required_attribute_that_is_missing_is_named_and_nothing_changes,
            "specification: queue pair states; qp_test: ModifyBadResetToInitStateTransition, ModifyBadInitToRtrStateTransition, ModifyBadRtrToRtsStateTransition"
        ),
        case!(
            each_superfluous_attribute_is_named_and_nothing_changes,
            "specification: queue pair states"
        ),
        case!(
            values_out_of_range_are_refused_by_name_and_nothing_changes,
            "specification: queue pair states"
        ),
        case!(
            the_state_that_the_caller_believes_in_is_the_one_that_counts,
            "specification: queue pair states"
        ),
        case!(
            a_process_that_is_not_there_is_named_and_the_state_stays,
            "specification: queue pair states"
        ),
    ],
};

/// Returns the required and optional attributes of an RC transition according to the specification.
/// The table is written out a second time here, to check the layer's table against it.
pub(super) fn specified(from: S, to: S) -> Option<(&'static [A], &'static [A])> {
    Some(match (from, to) {
        (_, S::Reset) => (&[], &[]),
        (S::Reset, S::Error) => return None,
        (_, S::Error) => (&[], &[]),
        (S::Reset, S::Init) => (&[A::PkeyIndex, A::Port, A::Access], &[]),
        (S::Init, S::Init) => (&[], &[A::PkeyIndex, A::Port, A::Access]),
        (S::Init, S::Rtr) => (
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
        (S::Rtr, S::Rts) => (
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
        (S::Rts, S::Rts) | (S::Sqd, S::Rts) => (
            &[],
            &[
                A::CurrentState,
                A::AlternatePath,
                A::Access,
                A::MinRnrTimer,
                A::PathMigration,
            ],
        ),
        (S::Rts, S::Sqd) => (&[], &[A::NotifyDrained]),
        (S::Sqd, S::Sqd) => (
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
        _ => return None,
    })
}

/// States to which a reliable connection can be moved.
pub(super) const REACHABLE: [S; 6] = [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Error];

/// Creates a side in this state, connected to itself where the state requires a connection.
pub(super) fn side_in(state: S) -> Side {
    let mut side = Side::new(Plan::default());
    if state == S::Reset {
        return side;
    }
    side.init();
    match state {
        S::Error => side.go(S::Error),
        S::Rtr | S::Rts | S::Sqd => {
            let to_itself = side.endpoint();
            side.rtr(to_itself);
            if state != S::Rtr {
                side.rts();
            }
            if state == S::Sqd {
                side.go(S::Sqd);
                wait_until_drained(&mut side);
            }
        }
        _ => {}
    }
    assert_eq!(side.state(), state);
    side
}

/// Waits until the queue pair can leave SQD for any state. Before that, Soft-RoCE permits only ERR,
/// and not even RESET.
pub(super) fn wait_until_drained(side: &mut Side) {
    let start = std::time::Instant::now();
    let stay = QpAttributes {
        state: Some(S::Sqd),
        ..QpAttributes::default()
    };
    while let Err(error) = side.qp.modify(&stay) {
        assert!(matches!(error, ModifyError::Draining), "{error}");
        assert!(start.elapsed() < verbs_side::HANG);
        side.poll();
    }
}

fn set(attributes: &mut QpAttributes, attribute: A, side: &Side, from: S) {
    let RemoteEndpoint {
        gid,
        lid,
        qp_num,
        psn,
    } = side.endpoint();
    let address = AddressVector {
        gid,
        lid,
        sgid_index: verbs_side::address().gid_index,
        port: verbs_side::address().port,
        ..AddressVector::default()
    };
    match attribute {
        A::State => {}
        A::CurrentState => attributes.current_state = Some(from),
        A::NotifyDrained => attributes.notify_drained = Some(false),
        A::Access => attributes.access = Some(Access::NONE),
        A::PkeyIndex => attributes.pkey_index = Some(0),
        A::Port => attributes.port = Some(verbs_side::address().port),
        A::Qkey => attributes.qkey = Some(1),
        A::Address => attributes.address = Some(address),
        A::PathMtu => attributes.path_mtu = Some(Mtu::Bytes1024),
        A::Timeout => attributes.timeout = AckTimeout::new(14),
        A::RetryCnt => attributes.retry_cnt = RetryCount::new(6),
        A::RnrRetry => attributes.rnr_retry = Some(RnrRetry::FOREVER),
        A::RqPsn => attributes.rq_psn = Some(psn),
        A::MaxRdAtomic => attributes.max_rd_atomic = Some(0),
        A::AlternatePath => attributes.alternate_path = Some(alternate(address)),
        A::MinRnrTimer => attributes.min_rnr_timer = RnrTimer::new(12),
        A::SqPsn => attributes.sq_psn = Some(psn),
        A::MaxDestRdAtomic => attributes.max_dest_rd_atomic = Some(0),
        A::PathMigration => attributes.path_migration = Some(PathMigration::Migrated),
        A::DestQpNum => attributes.dest_qp_num = Some(qp_num),
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

pub(super) fn attributes_of(
    side: &Side,
    from: S,
    to: S,
    present: impl IntoIterator<Item = A>,
) -> QpAttributes {
    let mut attributes = QpAttributes {
        state: Some(to),
        ..QpAttributes::default()
    };
    for attribute in present {
        set(&mut attributes, attribute, side, from);
    }
    attributes
}

fn transitions_that_do_not_exist_are_refused_and_change_nothing(_: &Device) {
    for from in REACHABLE {
        for to in S::ALL {
            if specified(from, to).is_some() {
                continue;
            }
            let mut side = side_in(from);
            let before = side.qp.query().unwrap();
            let error = side
                .qp
                .modify(&attributes_of(&side, from, to, []))
                .unwrap_err();
            assert!(
                matches!(error, ModifyError::Transition { from: f, to: t } if f == from && t == to),
                "{from} to {to}: {error}"
            );
            assert_eq!(side.qp.query().unwrap(), before, "{from} to {to}");
        }
    }
}

fn transitions_with_what_they_require_alone_and_with_all_options_are_made(_: &Device) {
    for from in REACHABLE {
        for to in S::ALL {
            let Some((required, optional)) = specified(from, to) else {
                continue;
            };
            // There is only one path, so there is no alternate: the table lists the attribute, but
            // its value is rejected.
            let optional = optional
                .iter()
                .filter(|attribute| **attribute != A::AlternatePath);
            for options in [vec![], optional.copied().collect::<Vec<_>>()] {
                let mut side = side_in(from);
                let present = required.iter().copied().chain(options);
                let attributes = attributes_of(&side, from, to, present);
                side.qp
                    .modify(&attributes)
                    .unwrap_or_else(|e| panic!("{from} to {to}: {e}"));
                let after = side.qp.query().unwrap();
                assert_eq!(after.state, Some(to));
                if to != S::Reset {
                    assert_eq!(after.timeout, attributes.timeout.or(after.timeout));
                    assert_eq!(
                        after.min_rnr_timer,
                        attributes.min_rnr_timer.or(after.min_rnr_timer)
                    );
                }
            }
        }
    }
}

fn each_required_attribute_that_is_missing_is_named_and_nothing_changes(_: &Device) {
    let mut cells = 0;
    for from in REACHABLE {
        for to in S::ALL {
            let Some((required, _)) = specified(from, to) else {
                continue;
            };
            for missing in required {
                let mut side = side_in(from);
                let before = side.qp.query().unwrap();
                let present = required
                    .iter()
                    .copied()
                    .filter(|attribute| attribute != missing);
                let attributes = attributes_of(&side, from, to, present);
                let error = side.qp.modify(&attributes).unwrap_err();
                assert!(
                    matches!(error, ModifyError::Missing { attribute, .. } if attribute == *missing),
                    "{from} to {to} without {missing}: {error}"
                );
                assert!(error.to_string().contains(&missing.to_string()), "{error}");
                assert_eq!(side.qp.query().unwrap(), before);
                cells += 1;
            }
        }
    }
    assert_eq!(cells, 3 + 6 + 5);
}

fn each_superfluous_attribute_is_named_and_nothing_changes(_: &Device) {
    for from in REACHABLE {
        for to in S::ALL {
            let Some((required, optional)) = specified(from, to) else {
                continue;
            };
            for superfluous in Attribute::ALL {
                if required.contains(&superfluous) || optional.contains(&superfluous) {
                    continue;
                }
                let mut side = side_in(from);
                let before = side.qp.query().unwrap();
                let present = required.iter().copied().chain([superfluous]);
                let attributes = attributes_of(&side, from, to, present);
                let error = side.qp.modify(&attributes).unwrap_err();
                assert!(
                    matches!(error, ModifyError::Superfluous { attribute, .. } if attribute == superfluous),
                    "{from} to {to} with {superfluous}: {error}"
                );
                assert_eq!(side.qp.query().unwrap(), before);
            }
        }
    }
}

fn values_out_of_range_are_refused_by_name_and_nothing_changes(_: &Device) {
    type Spoil = fn(&mut QpAttributes);
    let cases: [(S, S, A, Spoil); 11] = [
        (S::Reset, S::Init, A::Port, |a| a.port = Some(9)),
        (S::Reset, S::Init, A::PkeyIndex, |a| {
            a.pkey_index = Some(u16::MAX)
        }),
        (S::Init, S::Rtr, A::Address, |a| {
            a.address.as_mut().unwrap().is_global = false
        }),
        (S::Init, S::Rtr, A::Address, |a| {
            a.address.as_mut().unwrap().sgid_index = 255
        }),
        (S::Init, S::Rtr, A::Address, |a| {
            a.address.as_mut().unwrap().port = 9
        }),
        (S::Init, S::Rtr, A::AlternatePath, |a| {
            a.alternate_path = a.address.map(alternate)
        }),
        (S::Init, S::Rtr, A::DestQpNum, |a| {
            a.dest_qp_num = Some(QpNum(1 << 24))
        }),
        (S::Init, S::Rtr, A::Address, |a| {
            a.address.as_mut().unwrap().sl = 16
        }),
        (S::Init, S::Rtr, A::Address, |a| {
            a.address.as_mut().unwrap().flow_label = 1 << 20
        }),
        (S::Init, S::Rtr, A::MaxDestRdAtomic, |a| {
            a.max_dest_rd_atomic = Some(255)
        }),
        (S::Rtr, S::Rts, A::MaxRdAtomic, |a| {
            a.max_rd_atomic = Some(255)
        }),
    ];
    for (from, to, spoiled, spoil) in cases {
        let mut side = side_in(from);
        let before = side.qp.query().unwrap();
        let (required, _) = specified(from, to).unwrap();
        let mut attributes = attributes_of(&side, from, to, required.iter().copied());
        spoil(&mut attributes);
        let error = side.qp.modify(&attributes).unwrap_err();
        assert!(
            matches!(error, ModifyError::Value { attribute, .. } if attribute == spoiled),
            "{spoiled}: {error}"
        );
        let message = format!("{from} to {to}: attribute {spoiled} = ");
        assert!(error.to_string().starts_with(&message), "{error}");
        assert_eq!(side.qp.query().unwrap(), before);
    }
}

fn the_state_that_the_caller_believes_in_is_the_one_that_counts(_: &Device) {
    let mut side = side_in(S::Rts);
    let mut attributes = attributes_of(&side, S::Rts, S::Rts, [A::CurrentState]);
    attributes.current_state = Some(S::Init);
    // INIT has no transition to RTS.
    let error = side.qp.modify(&attributes).unwrap_err();
    assert!(
        matches!(
            error,
            ModifyError::Transition {
                from: S::Init,
                to: S::Rts
            }
        ),
        "{error}"
    );
}

fn a_process_that_is_not_there_is_named_and_the_state_stays(_: &Device) {
    let mut side = side_in(S::Init);
    let own = side.endpoint().gid;
    let neighbour = Gid({
        let mut bytes = own.0;
        bytes[15] ^= 0xff;
        bytes
    });
    let remote = |gid| RemoteEndpoint {
        gid,
        lid: 0,
        qp_num: QpNum(5),
        psn: Psn::new(0),
    };
    let elsewhere = Gid([0x20; 16]);
    let error = side
        .qp
        .to_rtr(verbs_side::rtr(remote(elsewhere)))
        .unwrap_err();
    if Ipv6Addr::from(own.0).to_ipv4_mapped().is_some() {
        // From an IPv4 address to an IPv6 address.
        assert!(
            matches!(error, ModifyError::Value { attribute, .. } if attribute == A::Address),
            "{error}"
        );
    } else {
        assert!(
            matches!(error, ModifyError::Unreachable { gid, .. } if gid == elsewhere),
            "{error}"
        );
    }
    assert_eq!(side.state(), S::Init);
    let result = side.qp.to_rtr(verbs_side::rtr(remote(neighbour)));
    // Over TCP, it depends on the order of the GIDs which side dials.
    if verbs_side::device() != "tcp" && asks_neighbours() {
        let error = result.unwrap_err();
        assert!(
            matches!(error, ModifyError::Unreachable { gid, .. } if gid == neighbour),
            "{error}"
        );
        assert_eq!(side.state(), S::Init);
    } else {
        result.unwrap();
    }
}

/// Returns true if the device resolves neighbors: all network devices do, except those without ARP.
fn asks_neighbours() -> bool {
    const IFF_NOARP: u32 = 0x80;
    let Some(netdev) = &verbs_side::address().netdev else {
        return true;
    };
    let flags = std::fs::read_to_string(format!("/sys/class/net/{netdev}/flags")).unwrap();
    let flags = flags.trim().trim_start_matches("0x");
    u32::from_str_radix(flags, 16).unwrap() & IFF_NOARP == 0
}
