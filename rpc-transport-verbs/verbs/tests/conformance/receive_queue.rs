//! Messages between two queue pairs of one process: which messages arrive, and in which order.

use verbline_verbs::{PostErrorReason, WorkKind};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::verbs_side::{Plan, SLOT_LEN, connected, received, sent};

pub(crate) const CASES: Section = Section {
    topic: "receive queue",
    cases: &[
        case!(
            messages_of_every_length_arrive_whole,
            "specification: receive queue; rc_test: Send"
        ),
        case!(
            both_directions_keep_their_order_over_many_rounds_of_the_ring,
            "specification: receive queue"
        ),
        case!(
            a_receive_queue_takes_what_it_has_room_for,
            "specification: receive queue"
        ),
    ],
};

fn messages_of_every_length_arrive_whole(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    // Lengths around the maximum in the ring (240), cache lines and the slot length.
    for len in [
        0,
        1,
        47,
        48,
        49,
        63,
        64,
        112,
        113,
        239,
        240,
        241,
        512,
        SLOT_LEN - 1,
        SLOT_LEN,
    ] {
        right.post_recv(1);
        left.send_signaled(len, 0xa5);
        assert_eq!(
            right.wait_one(),
            received(len, if len > 0 { 0xa5 } else { 0 }),
            "{len}"
        );
        assert_eq!(left.wait_one(), sent());
    }
}

fn both_directions_keep_their_order_over_many_rounds_of_the_ring(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    for round in 0..100_u8 {
        for side in [&mut left, &mut right] {
            side.post_recv(8);
        }
        for (side, offset) in [(&mut left, 0), (&mut right, 100)] {
            for index in 0..8_u8 {
                let len = usize::from(index) * 60;
                let request = side.message(len, (round + index + offset) | 1);
                let request = if index == 7 {
                    request.signaled()
                } else {
                    request
                };
                side.post(request).unwrap();
            }
        }
        for (side, offset) in [(&mut left, 100), (&mut right, 0)] {
            let done = side.wait(9);
            assert_eq!(
                done.iter()
                    .filter(|done| done.kind == WorkKind::Send)
                    .count(),
                1
            );
            let mut receives = done.iter().filter(|done| done.kind == WorkKind::Receive);
            for index in 0..8_u8 {
                let len = usize::from(index) * 60;
                let first = if len == 0 {
                    0
                } else {
                    (round + index + offset) | 1
                };
                assert_eq!(receives.next(), Some(&received(len, first)));
            }
        }
    }
}

fn a_receive_queue_takes_what_it_has_room_for(device: &Device) {
    let (mut left, _right) = connected(Plan {
        max_recv_wr: 4,
        ..Plan::default()
    });
    let capacity = left.receive_capacity();
    let slots = left.slots.len();
    let error = left.try_post_recv(2 * capacity + 1).unwrap_err();
    // Soft-RoCE's capacity is one less than a power of two, but it reports more.
    let room = device.deviates(
        &rxe::RECEIVE_DEPTH,
        capacity,
        (capacity + 1).next_power_of_two() - 1,
    );
    assert_eq!(
        (error.taken, error.reason),
        (room, PostErrorReason::QueueFull { capacity })
    );
    assert_eq!(left.slots.len(), slots - room);
}
