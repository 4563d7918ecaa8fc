//! Compare-and-swap and fetch-and-add: their results, the memory they change, and their atomicity.

use std::sync::atomic::Ordering;
use std::thread;

use verbline_verbs::{
    CompletionOpcode as O, CompletionStatus as C, PostErrorReason, QpState, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::end::{End, connect, pair, rc};
use super::protection::{Op, nowhere};

pub(crate) const CASES: Section = Section {
    topic: "atomics",
    cases: &[
        case!(
            fetch_and_add_adds_and_returns_what_was_there,
            "specification: atomics; rc_test: FetchAddIncrementBy1; access_test: AtomicAccessTest.AllAccess"
        ),
        case!(
            fetch_and_add_of_nothing_reads,
            "specification: atomics; rc_test: FetchAddNoOp"
        ),
        case!(
            fetch_and_add_wraps_round,
            "specification: atomics; rc_test: FetchAddLargeIncrement"
        ),
        case!(
            compare_and_swap_of_what_is_equal_swaps,
            "specification: atomics; rc_test: CompareSwapEqualWithSwap"
        ),
        case!(
            compare_and_swap_of_what_differs_leaves_it,
            "specification: atomics; rc_test: CompareSwapNotEqualNoSwap"
        ),
        case!(
            an_unsignaled_fetch_and_add_completes_with_the_next_signaled_one,
            "specification: signaling; rc_test: UnsignaledFetchAdd"
        ),
        case!(
            an_unsignaled_compare_and_swap_completes_with_the_next_signaled_one,
            "specification: signaling; rc_test: UnsignaledCompareSwap"
        ),
        case!(
            the_result_may_go_into_two_elements,
            "specification: atomics; rc_test: FetchAddSplitSgl"
        ),
        case!(
            a_result_of_another_length_is_refused,
            "specification: atomics"
        ),
        case!(
            an_unaligned_fetch_and_add_is_refused,
            "specification: atomics; rc_test: FetchAddUnaligned"
        ),
        case!(
            an_unaligned_compare_and_swap_is_refused,
            "specification: atomics; rc_test: CompareSwapUnaligned"
        ),
        case!(
            of_an_unaligned_atomic_no_key_is_looked_at,
            "specification: completion statuses; rc_test: FetchAddUnalignedInvalidRKey, CompareSwapUnalignedInvalidRKey"
        ),
        case!(
            of_an_unaligned_atomic_the_place_of_the_result_is_not_looked_at,
            "specification: completion statuses; rc_test: FetchAddUnalignedInvalidLKey, CompareSwapUnalignedInvalidLKey"
        ),
        case!(an_atomic_cannot_be_inline, "specification: inline"),
        case!(
            atomics_take_no_receive_and_complete_nothing_at_the_peer,
            "specification: receive queue"
        ),
        case!(
            atomics_of_one_queue_pair_are_carried_out_in_order,
            "specification: ordering"
        ),
        case!(
            of_many_queue_pairs_no_addition_is_lost_and_each_result_is_unique,
            "specification: atomics"
        ),
        case!(
            of_many_queue_pairs_one_wins_each_compare_and_swap,
            "specification: atomics"
        ),
        case!(
            additions_of_the_processor_and_of_the_device_both_count,
            "specification: atomics"
        ),
        case!(
            more_atomics_than_may_be_outstanding_wait_their_turn,
            "specification: read depth"
        ),
    ],
};

fn number(end: &End, offset: usize) -> u64 {
    end.memory.atomic(offset).unwrap().load(Ordering::SeqCst)
}

fn set(end: &End, offset: usize, value: u64) {
    end.memory
        .atomic(offset)
        .unwrap()
        .store(value, Ordering::SeqCst);
}

fn fetch_and_add_adds_and_returns_what_was_there(_: &Device) {
    let (mut left, right) = pair(rc());
    set(&right, 64, 41);
    let seen = left.run(WorkRequest::fetch_and_add(
        left.at(0..8),
        right.remote(64),
        1,
    ));
    assert_eq!(
        (seen.status, seen.opcode),
        (C::Success, Some(O::FetchAndAdd))
    );
    assert_eq!((number(&left, 0), number(&right, 64)), (41, 42));
    assert_eq!(
        (number(&right, 56), number(&right, 72)),
        (0, 0),
        "nothing else"
    );
}

fn fetch_and_add_of_nothing_reads(_: &Device) {
    let (mut left, right) = pair(rc());
    set(&right, 0, 41);
    left.succeed(WorkRequest::fetch_and_add(
        left.at(0..8),
        right.remote(0),
        0,
    ));
    assert_eq!((number(&left, 0), number(&right, 0)), (41, 41));
}

fn fetch_and_add_wraps_round(_: &Device) {
    let (mut left, right) = pair(rc());
    set(&right, 0, u64::MAX - 1);
    let add =
        |left: &End, addend| WorkRequest::fetch_and_add(left.at(0..8), right.remote(0), addend);
    left.succeed(add(&left, 7));
    assert_eq!((number(&left, 0), number(&right, 0)), (u64::MAX - 1, 5));
    left.succeed(add(&left, 1 << 63));
    assert_eq!((number(&left, 0), number(&right, 0)), (5, (1 << 63) + 5));
}

fn compare_and_swap_of_what_is_equal_swaps(_: &Device) {
    let (mut left, right) = pair(rc());
    set(&right, 0, 41);
    let swap = WorkRequest::compare_and_swap(left.at(0..8), right.remote(0), 41, 7);
    let seen = left.run(swap);
    assert_eq!(
        (seen.status, seen.opcode),
        (C::Success, Some(O::CompareAndSwap))
    );
    assert_eq!((number(&left, 0), number(&right, 0)), (41, 7));
}

fn compare_and_swap_of_what_differs_leaves_it(_: &Device) {
    let (mut left, right) = pair(rc());
    set(&right, 0, 41);
    left.succeed(WorkRequest::compare_and_swap(
        left.at(0..8),
        right.remote(0),
        42,
        7,
    ));
    assert_eq!((number(&left, 0), number(&right, 0)), (41, 41));
}

fn unsignaled(op: Op) {
    let (mut left, right) = pair(rc());
    set(&right, 0, 41);
    left.post(op.request(left.at(0..8), right.remote(0)));
    left.assert_quiet();
    left.succeed(op.request(left.at(8..16), right.remote(0)));
    assert_eq!(number(&left, 0), 41);
}

fn an_unsignaled_fetch_and_add_completes_with_the_next_signaled_one(_: &Device) {
    unsignaled(Op::FetchAndAdd);
}

fn an_unsignaled_compare_and_swap_completes_with_the_next_signaled_one(_: &Device) {
    unsignaled(Op::CompareAndSwap);
}

fn the_result_may_go_into_two_elements(_: &Device) {
    let (mut left, right) = pair(rc());
    let value = 0x8877_6655_4433_2211_u64;
    set(&right, 0, value);
    let halves = vec![left.at(16..20), left.at(100..104)];
    left.succeed(WorkRequest::fetch_and_add(halves, right.remote(0), 1));
    let bytes = [left.bytes(16..20), left.bytes(100..104)].concat();
    assert_eq!(bytes, value.to_ne_bytes());
    assert!(left.is_all(0..16, 0) && left.is_all(20..100, 0));
}

fn a_result_of_another_length_is_refused(_: &Device) {
    let (mut left, right) = pair(rc());
    for len in [0, 4, 7, 9, 16] {
        for op in [Op::FetchAndAdd, Op::CompareAndSwap] {
            let reason = left.refused(op.request(left.at(0..len), right.remote(0)));
            assert!(
                matches!(reason, PostErrorReason::AtomicLength { len: l, .. } if l == len),
                "{reason}"
            );
        }
    }
    left.succeed(WorkRequest::fetch_and_add(
        left.at(0..8),
        right.remote(0),
        1,
    ));
    assert_eq!(number(&right, 0), 1);
}

/// Checks that an atomic at an address that is not a multiple of eight is rejected, at the end
/// where the device rejects it.
fn unaligned(device: &Device, left: &mut End, request: WorkRequest) {
    if device.deviates(&rxe::UNALIGNED_AT_POST, true, false) {
        left.expect(request, C::RemoteInvalidRequest);
        assert_eq!(left.state(), QpState::Error);
    } else {
        let reason = left.refused(request);
        assert!(
            matches!(reason, PostErrorReason::AtomicAlignment { .. }),
            "{reason}"
        );
    }
}

fn unaligned_changes_nothing(device: &Device, op: Op) {
    for offset in [1, 4, 7] {
        let (mut left, right) = pair(rc());
        set(&right, 0, 2);
        set(&left, 0, 1);
        let request = op.request(left.at(0..8), right.remote(offset));
        unaligned(device, &mut left, request);
        assert_eq!((number(&left, 0), number(&right, 0)), (1, 2));
    }
}

fn an_unaligned_fetch_and_add_is_refused(device: &Device) {
    unaligned_changes_nothing(device, Op::FetchAndAdd);
}

fn an_unaligned_compare_and_swap_is_refused(device: &Device) {
    unaligned_changes_nothing(device, Op::CompareAndSwap);
}

fn of_an_unaligned_atomic_no_key_is_looked_at(device: &Device) {
    for op in [Op::FetchAndAdd, Op::CompareAndSwap] {
        let (mut left, right) = pair(rc());
        let [wrong, ..] = nowhere(&right);
        let request = op.request(left.at(0..8), wrong.offset(1));
        unaligned(device, &mut left, request);
    }
}

fn of_an_unaligned_atomic_the_place_of_the_result_is_not_looked_at(device: &Device) {
    for op in [Op::FetchAndAdd, Op::CompareAndSwap] {
        let (mut left, right) = pair(rc());
        let other_domain = left.context.alloc_pd().unwrap();
        let elsewhere = other_domain.expose(4096, super::end::everything()).unwrap();
        let request = op.request(elsewhere.element(0..8).unwrap(), right.remote(1));
        unaligned(device, &mut left, request);
    }
}

fn an_atomic_cannot_be_inline(_: &Device) {
    let (mut left, right) = pair(rc());
    for op in [Op::FetchAndAdd, Op::CompareAndSwap] {
        let reason = left.refused(op.request(left.at(0..8), right.remote(0)).inline());
        assert!(
            matches!(reason, PostErrorReason::NotInline { .. }),
            "{reason}"
        );
    }
}

fn atomics_take_no_receive_and_complete_nothing_at_the_peer(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(100..164);
    left.succeed(WorkRequest::fetch_and_add(
        left.at(0..8),
        right.remote(0),
        1,
    ));
    left.succeed(WorkRequest::compare_and_swap(
        left.at(0..8),
        right.remote(0),
        1,
        2,
    ));
    right.assert_quiet();
    left.succeed(WorkRequest::send(left.at(0..64)));
    assert_eq!(right.expect_recv(C::Success).len, 64);
}

fn atomics_of_one_queue_pair_are_carried_out_in_order(_: &Device) {
    let (mut left, right) = pair(rc());
    for index in 0..16 {
        let result = left.at(index * 8..index * 8 + 8);
        let request = if index % 2 == 0 {
            WorkRequest::fetch_and_add(result, right.remote(0), 1)
        } else {
            // The value that the preceding addition leaves.
            let value = index as u64 / 2 * 11 + 1;
            WorkRequest::compare_and_swap(result, right.remote(0), value, value + 10)
        };
        left.post(request.signaled());
    }
    assert_eq!(left.statuses(16), [C::Success; 16]);
    assert_eq!(number(&right, 0), 8 * 11);
    for index in 0..16 {
        let value = index as u64 / 2 * 11 + index as u64 % 2;
        assert_eq!(number(&left, index * 8), value, "{index}");
    }
}

/// Creates ends that are all connected to one end whose application does nothing.
fn many(count: usize) -> (Vec<End>, End) {
    let mut target = End::new(rc());
    let mut ends = Vec::new();
    for _ in 0..count {
        let mut end = End::new(rc());
        let mut to_end = target.another();
        connect((&mut end.qp, rc()), (&mut to_end, rc()));
        target.others.push(to_end);
        ends.push(end);
    }
    (ends, target)
}

const ENDS: usize = 4;
const ROUNDS: usize = 200;

fn of_many_queue_pairs_no_addition_is_lost_and_each_result_is_unique(_: &Device) {
    let (ends, target) = many(ENDS);
    let place = target.remote(0);
    let mut results: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> = ends
            .into_iter()
            .map(|mut end| {
                scope.spawn(move || {
                    let mut results = Vec::new();
                    for _ in 0..ROUNDS {
                        end.succeed(WorkRequest::fetch_and_add(end.at(0..8), place, 1));
                        results.push(number(&end, 0));
                    }
                    results
                })
            })
            .collect();
        let results = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap());
        results.collect()
    });
    assert_eq!(number(&target, 0), (ENDS * ROUNDS) as u64);
    results.sort_unstable();
    assert!(results.into_iter().eq(0..(ENDS * ROUNDS) as u64));
}

fn of_many_queue_pairs_one_wins_each_compare_and_swap(_: &Device) {
    let (ends, target) = many(ENDS);
    let place = target.remote(0);
    let wins: usize = thread::scope(|scope| {
        let threads: Vec<_> = ends
            .into_iter()
            .map(|mut end| {
                scope.spawn(move || {
                    let mut wins = 0;
                    for round in 0..ROUNDS as u64 {
                        let swap =
                            WorkRequest::compare_and_swap(end.at(0..8), place, round, round + 1);
                        end.succeed(swap);
                        let was = number(&end, 0);
                        wins += usize::from(was == round);
                        assert!(was >= round, "all up to it have been won");
                    }
                    wins
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!((number(&target, 0), wins), (ROUNDS as u64, ROUNDS));
}

fn additions_of_the_processor_and_of_the_device_both_count(device: &Device) {
    device.needs_soft(&rxe::ATOMIC_FOR_ITSELF);
    let (mut left, right) = pair(rc());
    let place = right.remote(0);
    thread::scope(|scope| {
        let cell = right.memory.atomic(0).unwrap();
        let of_the_device = scope.spawn(move || {
            for _ in 0..ROUNDS {
                left.succeed(WorkRequest::fetch_and_add(left.at(0..8), place, 1 << 48));
            }
        });
        // An addition takes the processor far less time: it adds until the device has ended.
        let mut added = 0;
        while !of_the_device.is_finished() {
            cell.fetch_add(1, Ordering::SeqCst);
            added += 1;
        }
        of_the_device.join().unwrap();
        assert_eq!(number(&right, 0), (ROUNDS as u64) << 48 | added);
    });
}

fn more_atomics_than_may_be_outstanding_wait_their_turn(_: &Device) {
    let (mut left, right) = pair(super::end::Options {
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ..rc()
    });
    for index in 0..16 {
        let result = left.at(index * 8..index * 8 + 8);
        left.post(WorkRequest::fetch_and_add(result, right.remote(0), 1).signaled());
    }
    assert_eq!(left.statuses(16), [C::Success; 16]);
    let results: Vec<_> = (0..16).map(|index| number(&left, index * 8)).collect();
    assert_eq!(results, (0..16).collect::<Vec<_>>());
}
