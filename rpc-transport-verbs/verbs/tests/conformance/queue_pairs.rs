//! Queue pairs: the parameters of their creation, and their attributes in each state.

use verbline_verbs::{
    CompletionStatus as C, QpAttributes, QpState, QpType, QueuePairConfig, VerbsError, WorkRequest,
};

use super::case::{Section, case};
use super::device::Device;
use super::end::{self, End, Options, own_port, pair, rc, ud};
use super::verbs_side;

pub(crate) const CASES: Section = Section {
    topic: "queue pairs",
    cases: &[
        case!(
            a_queue_pair_is_made_as_it_was_asked_for,
            "specification: creation parameters; qp_test: Create, CreateUd"
        ),
        case!(
            a_new_queue_pair_says_that_it_is_in_reset_and_no_more,
            "specification: querying queue pairs"
        ),
        case!(
            a_queue_pair_tells_in_each_state_what_it_has_by_then,
            "specification: querying queue pairs; rc_test: QueryQpInitialState; qp_test: UdModify"
        ),
        case!(
            what_a_queue_pair_was_given_it_tells_again,
            "specification: querying queue pairs"
        ),
        case!(
            a_queue_pair_with_queues_of_another_context_is_refused,
            "specification: objects"
        ),
        case!(
            queue_pair_numbers_have_24_bits_and_are_not_special,
            "specification: creation parameters"
        ),
        case!(
            a_queue_pair_in_rtr_receives_from_one_in_rts,
            "specification: what each state permits; qp_test: RtsSendToRtr"
        ),
        case!(
            rights_can_be_changed_while_it_works,
            "specification: queue pair states"
        ),
        case!(
            the_queue_pair_that_fails_says_so_when_it_is_asked,
            "specification: errors"
        ),
    ],
};

fn a_queue_pair_is_made_as_it_was_asked_for(_: &Device) {
    for qp_type in QpType::ALL {
        for (sq_sig_all, srq_wr) in [(false, 0), (true, 0), (false, 16)] {
            let options = Options {
                qp_type,
                sq_sig_all,
                srq_wr,
                ..rc()
            };
            let end = End::new(options);
            let init = end.qp.query_init();
            assert_eq!((init.qp_num, init.qp_type), (end.qp.qp_num(), qp_type));
            assert_eq!((init.sq_sig_all, init.has_srq), (sq_sig_all, srq_wr > 0));
            let granted = init.capabilities;
            assert_eq!(granted, end.qp.capabilities());
            assert!(granted.max_send_wr >= 32 && granted.max_send_sge >= 4);
            assert!(granted.max_inline_data >= 64);
            if srq_wr == 0 {
                assert!(granted.max_recv_wr >= 32 && granted.max_recv_sge >= 4);
            } else {
                assert_eq!((granted.max_recv_wr, granted.max_recv_sge), (0, 0));
            }
        }
    }
}

fn a_new_queue_pair_says_that_it_is_in_reset_and_no_more(_: &Device) {
    for qp_type in QpType::ALL {
        let end = End::new(Options { qp_type, ..rc() });
        assert_eq!(end.qp.query().unwrap(), end::to(QpState::Reset));
    }
}

fn a_queue_pair_tells_in_each_state_what_it_has_by_then(_: &Device) {
    for options in [rc(), ud()] {
        let is_reliable = options.qp_type == QpType::ReliableConnection;
        let mut end = End::new(options);
        let own = end.qp.qp_num();
        let told = |end: &End, state| {
            let told = end.qp.query().unwrap();
            assert_eq!(told.state, Some(state));
            let valid = told.valid_in(options.qp_type, state);
            assert_eq!(told, valid, "what means nothing yet is not told");
            assert!(told.to_string().contains(&state.to_string()));
            told
        };
        end::init(&mut end.qp, options);
        let init = told(&end, QpState::Init);
        assert_eq!(
            (init.port, init.pkey_index),
            (Some(own_port().port), Some(0))
        );
        assert_eq!(init.access, is_reliable.then_some(options.access));
        assert_eq!(init.qkey, (!is_reliable).then_some(end::QKEY));
        assert_eq!(init.address, None);
        end::rtr(&mut end.qp, own, options);
        let rtr = told(&end, QpState::Rtr);
        assert_eq!(rtr.dest_qp_num, is_reliable.then_some(own));
        assert_eq!(rtr.address.is_some(), is_reliable);
        assert_eq!(rtr.sq_psn, None);
        end::rts(&mut end.qp, options);
        let rts = told(&end, QpState::Rts);
        assert!(rts.sq_psn.is_some());
        assert_eq!(rts.timeout, is_reliable.then_some(options.timeout));
        end.go(QpState::Error);
        assert_eq!(told(&end, QpState::Error), end::to(QpState::Error));
    }
}

fn what_a_queue_pair_was_given_it_tells_again(_: &Device) {
    let (left, right) = pair(rc());
    let told = left.qp.query().unwrap();
    assert_eq!(told.dest_qp_num, Some(right.qp.qp_num()));
    assert_eq!(
        told.address.map(|address| address.gid),
        Some(own_port().gid)
    );
    assert_eq!(told.timeout, Some(rc().timeout));
    assert_eq!(told.rnr_retry, Some(rc().rnr_retry));
    assert_eq!(told.min_rnr_timer, Some(rc().min_rnr_timer));
    assert_eq!(told.max_rd_atomic, Some(rc().max_rd_atomic));
    assert_eq!(told.max_dest_rd_atomic, Some(rc().max_dest_rd_atomic));
    assert_eq!(told.access, Some(rc().access));
    assert_eq!(told.sq_draining, None);
}

fn a_queue_pair_with_queues_of_another_context_is_refused(_: &Device) {
    let end = End::new(rc());
    let other = verbs_side::open();
    let foreign_cq = other.create_cq(16).unwrap();
    let foreign_srq = other.alloc_pd().unwrap().create_srq(16, 1).unwrap();
    let configs = [
        ("send_cq", QueuePairConfig::new(&foreign_cq, &end.cq)),
        ("recv_cq", QueuePairConfig::new(&end.cq, &foreign_cq)),
        (
            "srq",
            QueuePairConfig {
                srq: Some(&foreign_srq),
                ..QueuePairConfig::new(&end.cq, &end.cq)
            },
        ),
    ];
    for (name, config) in configs {
        let error = end.domain.create_qp(config).unwrap_err();
        assert!(
            matches!(error, VerbsError::ForeignObject { object, .. } if object == name),
            "{error}"
        );
    }
}

fn queue_pair_numbers_have_24_bits_and_are_not_special(_: &Device) {
    let end = End::new(rc());
    for _ in 0..50 {
        let number = end.another().qp_num().0;
        assert!((2..0xff_ffff).contains(&number), "{number}");
    }
}

fn a_queue_pair_in_rtr_receives_from_one_in_rts(_: &Device) {
    let (mut left, mut right) = (End::new(rc()), End::new(rc()));
    end::init(&mut left.qp, rc());
    end::init(&mut right.qp, rc());
    let (to_left, to_right) = (left.qp.qp_num(), right.qp.qp_num());
    end::rtr(&mut left.qp, to_right, rc());
    end::rtr(&mut right.qp, to_left, rc());
    end::rts(&mut left.qp, rc());
    right.recv(0..64);
    left.fill(0..64, 7);
    left.succeed(WorkRequest::send(left.at(0..64)));
    right.expect_recv(C::Success);
    left.succeed(WorkRequest::read(left.at(64..128), right.remote(0)));
    assert!(left.is_all(0..128, 7));
    assert_eq!(right.state(), QpState::Rtr);
}

fn rights_can_be_changed_while_it_works(_: &Device) {
    use verbline_verbs::Access;
    let (mut left, mut right) = pair(rc());
    left.succeed(WorkRequest::read(left.at(0..8), right.remote(0)));
    let change = |access| QpAttributes {
        access: Some(access),
        ..QpAttributes::default()
    };
    right.qp.modify(&change(Access::REMOTE_WRITE)).unwrap();
    assert_eq!(right.qp.query().unwrap().access, Some(Access::REMOTE_WRITE));
    left.succeed(WorkRequest::write(left.at(0..8), right.remote(0)));
    let read = WorkRequest::read(left.at(0..8), right.remote(0));
    left.expect(read, C::RemoteInvalidRequest);
}

fn the_queue_pair_that_fails_says_so_when_it_is_asked(_: &Device) {
    let (mut left, right) = pair(rc());
    let [wrong, ..] = super::protection::nowhere(&right);
    left.post(WorkRequest::write(left.at(0..8), wrong));
    // No completion is polled before this.
    left.wait_for_state(QpState::Error);
    assert_eq!(left.qp.query().unwrap(), end::to(QpState::Error));
    assert_eq!(left.one().status, C::RemoteAccess);
}
