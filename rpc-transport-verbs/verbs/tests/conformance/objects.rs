//! Objects: with which parameters, and from which other objects, they are created.

use std::time::Instant;

use verbline_verbs::{Access, QueuePairConfig, SendRequest, VerbsError};

use super::case::{Section, case};
use super::device::Device;
use super::verbs_side::{self, HANG, Plan, Side, connected, received, sent};

pub(crate) const CASES: Section = Section {
    topic: "objects",
    cases: &[
        case!(
            parameters_out_of_range_are_refused_by_name,
            "specification: creation parameters; cq_test: ZeroCqe; srq_test: ExceedDeviceMaxWr, ExceedDeviceMaxSge"
        ),
        case!(objects_of_two_contexts_do_not_mix, "specification: objects"),
        case!(
            queue_pairs_come_and_go_beside_a_busy_one,
            "specification: objects"
        ),
        case!(
            a_region_that_is_registered_later_can_be_sent_from,
            "specification: objects; rc_test: SendLargeChunk"
        ),
        case!(
            regions_that_go_while_others_are_in_use_take_nothing_along,
            "specification: objects"
        ),
    ],
};

fn parameters_out_of_range_are_refused_by_name(_: &Device) {
    let side = Side::new(Plan::default());
    let limits = side.context.query_device();
    let named = |result: Result<(), VerbsError>, name: &str| match result {
        Err(VerbsError::OutOfRange { parameter, .. }) => assert_eq!(parameter, name),
        other => panic!("{name}: {other:?}"),
    };
    named(side.context.create_cq(0).map(drop), "depth");
    named(
        side.context.create_cq(limits.max_cqe + 1).map(drop),
        "depth",
    );
    named(side.domain.create_srq(0, 1).map(drop), "max_wr");
    named(
        side.domain.create_srq(limits.max_srq_wr + 1, 1).map(drop),
        "max_wr",
    );
    named(
        side.domain.create_srq(1, limits.max_srq_sge + 1).map(drop),
        "max_sge",
    );
    named(side.domain.register(0, Access::NONE).map(drop), "len");
    // A device may report that it has no limit.
    if let Some(len) = limits.max_mr_len.checked_add(1) {
        named(side.domain.register(len, Access::NONE).map(drop), "len");
    }
    let no_port = limits.port_count + 1;
    named(side.context.query_port(no_port).map(drop), "port");
    named(side.context.query_gid(no_port, 0).map(drop), "port");
    let gid = side.context.query_gid(1, 255);
    if side.context.query_port(1).unwrap().gid_count > 255 {
        assert_eq!(gid.unwrap().0, [0; 16], "an empty entry");
    } else {
        named(gid.map(drop), "index");
    }
    let queue_pair = |max_send_wr, max_recv_wr| {
        let config = QueuePairConfig {
            srq: None,
            max_send_wr,
            max_recv_wr,
            max_inline_data: 0,
            sq_sig_all: false,
            ..QueuePairConfig::new(&side.cq, &side.cq)
        };
        side.domain.create_qp(config).map(drop)
    };
    named(queue_pair(0, 1), "max_send_wr");
    named(queue_pair(limits.max_qp_wr + 1, 1), "max_send_wr");
    named(queue_pair(1, limits.max_qp_wr + 1), "max_recv_wr");
    assert!(matches!(
        side.domain.expose(1, Access::REMOTE_WRITE),
        Err(VerbsError::RemoteWithoutLocalWrite)
    ));
    assert!(matches!(
        side.domain.register(1, Access::REMOTE_READ),
        Err(VerbsError::ExposedSlots { access }) if access == Access::REMOTE_READ
    ));
}

fn objects_of_two_contexts_do_not_mix(_: &Device) {
    let (side, other) = (Side::new(Plan::default()), Side::new(Plan::default()));
    let config = QueuePairConfig {
        srq: None,
        max_send_wr: 1,
        max_recv_wr: 1,
        max_inline_data: 0,
        sq_sig_all: false,
        ..QueuePairConfig::new(&side.cq, &other.cq)
    };
    let error = side.domain.create_qp(config).unwrap_err();
    assert!(
        matches!(
            error,
            VerbsError::ForeignObject {
                object: "recv_cq",
                ..
            }
        ),
        "{error}"
    );
}

fn queue_pairs_come_and_go_beside_a_busy_one(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    let mut last = left.qp.qp_num();
    for round in 0..50_u8 {
        let (mut passing, mut other) = connected(Plan::default());
        assert_ne!(
            passing.qp.qp_num(),
            last,
            "numbers are not used again at once"
        );
        last = passing.qp.qp_num();
        other.post_recv(1);
        passing.send_signaled(700, round);
        right.post_recv(1);
        left.send_signaled(700, round);
        assert_eq!(right.wait_one(), received(700, round));
        assert_eq!(other.wait_one(), received(700, round));
        assert_eq!((left.wait_one(), passing.wait_one()), (sent(), sent()));
    }
}

fn a_region_that_is_registered_later_can_be_sent_from(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    let long = 3 << 20;
    let mut send = left
        .domain
        .register(long, Default::default())
        .unwrap()
        .into_slots(long)
        .unwrap();
    let write = Access::LOCAL_WRITE;
    let mut receive = right
        .domain
        .register(long, write)
        .unwrap()
        .into_slots(long)
        .unwrap();
    right.qp.post_recv(&mut receive, 1).unwrap();
    let mut slot = send.remove(0);
    for (index, byte) in slot.iter_mut().enumerate() {
        *byte = (index / 4093) as u8;
    }
    left.post(SendRequest::new(slot, long).signaled()).unwrap();
    let mut completions = Vec::new();
    let start = Instant::now();
    while right.cq.poll(&mut completions, 1).unwrap() == 0 {
        assert!(start.elapsed() < HANG);
    }
    let (slot, len) = right.qp.claim_recv(completions.remove(0)).unwrap();
    assert_eq!(len, long);
    assert!(
        slot.iter()
            .enumerate()
            .all(|(index, byte)| *byte == (index / 4093) as u8)
    );
    assert_eq!(left.wait_one(), sent());
}

fn regions_that_go_while_others_are_in_use_take_nothing_along(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    for round in 0..30_u8 {
        let mut slots = verbs_side::region(&left.domain, 1)
            .into_slots(verbs_side::SLOT_LEN)
            .unwrap();
        right.post_recv(1);
        let mut slot = slots.swap_remove(0);
        drop(slots);
        slot.fill(round);
        left.post(SendRequest::new(slot, 1000).signaled()).unwrap();
        assert_eq!(right.wait_one(), received(1000, round));
        // Claiming the completion returns the slot of the short-lived region. Dropping the slot
        // deregisters the region.
        assert_eq!(left.wait_one(), sent());
        drop(left.slots.pop());
    }
}
