//! Access through memory windows: which operations, by which peers, and how a key is revoked.

use verbline_verbs::{
    Access, Binding, CompletionOpcode as O, CompletionStatus as C, PostErrorReason, QpState,
    RemoteKey, RnrRetry, WindowType, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::end::{End, LEN, Options, connect, pair, pair_of, rc};
use super::protection::Op;
use super::seed::flip;

use super::memory_windows::{
    BOTH, another, bind, bound, cannot_be_read, granted, of_memory, window, with_window,
};

pub(crate) const CASES: Section = Section {
    topic: "through memory windows",
    cases: &[
        case!(
            a_type_1_window_is_read_through,
            "specification: memory windows; rc_test: Type1MWRead; mw_test: Read"
        ),
        case!(
            a_type_2_window_is_read_through,
            "specification: memory windows; rc_test: Type2MWRead; mw_test: OnlyReads"
        ),
        case!(
            a_type_1_window_is_written_through,
            "specification: memory windows; rc_test: Type1MWWrite"
        ),
        case!(
            a_type_2_window_is_written_through,
            "specification: memory windows; rc_test: Type2MWWrite"
        ),
        case!(atomics_go_through_windows, "specification: memory windows"),
        case!(
            a_window_has_no_byte_before_it,
            "specification: memory windows; buffer_test: BufferMwTest.ReadExceedFront, BufferMwTest.WriteExceedFront"
        ),
        case!(
            a_window_has_no_byte_after_it,
            "specification: memory windows; buffer_test: BufferMwTest.ReadExceedRear, BufferMwTest.WriteExceedRear"
        ),
        case!(
            nothing_at_all_can_be_read_and_written_through_a_window,
            "specification: protection checks; buffer_test: BufferMwTest.ReadZeroByte, BufferMwTest.WriteZeroByte, ReadZeroByteOutsideMw, WriteZeroByteOutsideMw"
        ),
        case!(
            a_window_grants_what_it_was_bound_with_and_no_more,
            "specification: memory windows"
        ),
        case!(
            a_window_grants_what_its_region_does_not,
            "specification: memory windows"
        ),
        case!(
            the_addresses_of_a_zero_based_window_begin_at_zero,
            "specification: memory windows; mw_test: ReadZeroBased"
        ),
        case!(
            an_atomic_through_a_window_that_begins_anywhere_has_to_be_aligned_in_memory,
            "specification: protection checks"
        ),
        case!(
            a_type_1_window_is_for_every_queue_pair_of_the_domain,
            "specification: memory windows; mw_test: BindReadDiffQp"
        ),
        case!(
            a_type_2_window_is_for_the_queue_pair_that_bound_it,
            "specification: memory windows; mw_test: CrossQpRead"
        ),
        case!(
            a_window_is_for_queue_pairs_of_its_domain_alone,
            "specification: memory windows; pd_test: ReadMwOtherPd, WriteMwOtherPd, FetchAddMwOtherPd, CompSwapMwOtherPd"
        ),
        case!(
            a_queue_pair_without_one_sided_rights_grants_nothing_through_windows_either,
            "specification: protection checks"
        ),
        case!(
            a_local_invalidate_takes_a_window_away,
            "specification: memory windows; mw_test: LocalInvalidate, Invalidate"
        ),
        case!(
            an_unsignaled_local_invalidate_takes_a_window_away,
            "specification: memory windows; mw_test: UnsignaledLocalInvalidate"
        ),
        case!(
            a_local_invalidate_waits_for_what_was_posted_before_it,
            "specification: send queue"
        ),
        case!(
            a_local_invalidate_of_a_wrong_key_fails,
            "specification: memory windows; mw_test: UnsignaledLocalInvalidateError"
        ),
        case!(
            a_local_invalidate_of_a_window_that_is_not_bound_fails,
            "specification: memory windows"
        ),
        case!(
            a_local_invalidate_through_another_queue_pair_fails,
            "specification: memory windows; mw_test: CrossQpInvalidate"
        ),
        case!(
            a_message_takes_a_window_away_and_says_so,
            "specification: memory windows; rc_test: SendWithInvalidate"
        ),
        case!(
            a_message_without_bytes_takes_a_window_away,
            "specification: memory windows; rc_test: SendWithInvalidateEmptySgl"
        ),
        case!(
            a_message_that_finds_no_receive_takes_nothing_away,
            "specification: responder; rc_test: SendWithInvalidateNoBuffer"
        ),
        case!(
            a_message_that_is_to_take_a_wrong_key_away_fails_both_ends,
            "specification: completion statuses; rc_test: SendWithInvalidateBadRkey"
        ),
        case!(
            a_message_cannot_take_a_type_1_window_away,
            "specification: completion statuses; rc_test: SendWithInvalidateType1Rkey"
        ),
        case!(
            a_message_cannot_take_a_window_of_another_queue_pair_away,
            "specification: completion statuses; rc_test: SendWithInvalidateWrongQp"
        ),
    ],
};

fn read_through(window_type: WindowType) {
    let (mut left, right, _window, remote) = with_window(window_type);
    right.fill(4096..8192, 7);
    left.succeed(WorkRequest::read(left.at(0..4096), remote));
    assert!(left.is_all(0..4096, 7));
    left.succeed(WorkRequest::read(left.at(0..8), remote.offset(4088)));
}

fn a_type_1_window_is_read_through(_: &Device) {
    read_through(WindowType::Type1);
}

fn a_type_2_window_is_read_through(_: &Device) {
    read_through(WindowType::Type2);
}

fn written_through(window_type: WindowType) {
    let (mut left, right, _window, remote) = with_window(window_type);
    left.fill(0..4096, 7);
    left.succeed(WorkRequest::write(left.at(0..4096), remote));
    right.becomes(4096..8192, 7);
    assert!(right.is_all(0..4096, 0) && right.is_all(8192..LEN, 0));
}

fn a_type_1_window_is_written_through(_: &Device) {
    written_through(WindowType::Type1);
}

fn a_type_2_window_is_written_through(_: &Device) {
    written_through(WindowType::Type2);
}

fn atomics_go_through_windows(_: &Device) {
    for window_type in BOTH {
        let (mut left, right, _window, remote) = with_window(window_type);
        left.succeed(WorkRequest::fetch_and_add(
            left.at(0..8),
            remote.offset(8),
            5,
        ));
        left.succeed(WorkRequest::compare_and_swap(
            left.at(0..8),
            remote.offset(8),
            5,
            6,
        ));
        assert_eq!(right.bytes(4104..4112), 6_u64.to_ne_bytes());
    }
}

fn outside(device: &Device, offset: i64) {
    for window_type in BOTH {
        for op in [Op::Read, Op::Write] {
            let (mut left, right, _window, remote) = with_window(window_type);
            let place = remote.offset(offset as u64);
            left.fill(0..8, 1);
            let status = device.deviates(&rxe::WINDOW_BOUNDS, C::RemoteAccess, C::Success);
            left.expect(op.request(left.at(0..8), place), status);
            if status != C::Success {
                assert!(left.is_all(0..8, 1) && right.is_all(0..LEN, 0));
            }
        }
    }
}

fn a_window_has_no_byte_before_it(device: &Device) {
    outside(device, -1);
}

fn a_window_has_no_byte_after_it(device: &Device) {
    outside(device, 4096 - 7);
}

fn nothing_at_all_can_be_read_and_written_through_a_window(_: &Device) {
    for window_type in BOTH {
        let (mut left, _right, _window, remote) = with_window(window_type);
        for op in [Op::Read, Op::Write] {
            left.succeed(op.request(left.at(0..0), remote));
            left.succeed(op.request(left.at(0..0), remote.offset(5000)));
        }
    }
}

fn a_window_grants_what_it_was_bound_with_and_no_more(_: &Device) {
    let rights = [
        (Op::Write, Access::REMOTE_WRITE),
        (Op::Read, Access::REMOTE_READ),
        (Op::CompareAndSwap, Access::REMOTE_ATOMIC),
        (Op::FetchAndAdd, Access::REMOTE_ATOMIC),
    ];
    for window_type in BOTH {
        for (_, access) in rights {
            for (op, needed) in rights {
                let (mut left, mut right) = pair(rc());
                let window = window(&right, window_type);
                let binding = Binding::new(&right.memory, 0..4096, access);
                let remote = bound(&mut right, &window, &binding);
                let status = match access == needed {
                    true => C::Success,
                    false => C::RemoteAccess,
                };
                left.expect(op.request(left.at(0..8), remote), status);
            }
        }
    }
}

fn a_window_grants_what_its_region_does_not(_: &Device) {
    for window_type in BOTH {
        let (mut left, mut right) = pair(rc());
        let region = right.expose(4096, Access::LOCAL_WRITE | Access::MW_BIND, 7);
        let window = window(&right, window_type);
        let binding = Binding::new(&region, 0..4096, granted());
        let remote = bound(&mut right, &window, &binding);
        left.succeed(WorkRequest::read(left.at(0..8), remote));
        assert!(left.is_all(0..8, 7));
        left.succeed(WorkRequest::write(left.at(0..8), remote));
        cannot_be_read(&mut left, region.remote(0));
    }
}

fn the_addresses_of_a_zero_based_window_begin_at_zero(device: &Device) {
    let (mut left, mut right) = pair(rc());
    right.fill(4096..8192, 7);
    let window = window(&right, WindowType::Type2);
    let access = granted() | Access::ZERO_BASED;
    let binding = Binding::new(&right.memory, 4096..8192, access);
    let remote = bound(&mut right, &window, &binding);
    assert_eq!(remote.addr, 0);
    left.succeed(WorkRequest::read(left.at(0..8), remote));
    left.succeed(WorkRequest::read(left.at(8..16), remote.offset(4088)));
    assert!(left.is_all(0..16, 7));
    let status = device.deviates(&rxe::WINDOW_BOUNDS, C::RemoteAccess, C::Success);
    left.expect(
        WorkRequest::read(left.at(0..8), remote.offset(4096)),
        status,
    );
}

/// Address 0 of the window is a multiple of eight, but the memory address that it maps to is not.
fn an_atomic_through_a_window_that_begins_anywhere_has_to_be_aligned_in_memory(_: &Device) {
    for op in [Op::CompareAndSwap, Op::FetchAndAdd] {
        for begin in [4097, 4100] {
            let (mut left, mut right) = pair(rc());
            left.fill(0..8, 1);
            let window = window(&right, WindowType::Type2);
            let access = granted() | Access::ZERO_BASED;
            let binding = Binding::new(&right.memory, begin..begin + 64, access);
            let remote = bound(&mut right, &window, &binding);
            assert_eq!(remote.addr, 0);
            left.expect(op.request(left.at(0..8), remote), C::RemoteInvalidRequest);
            right.wait_for_state(QpState::Error);
            assert!(left.is_all(0..8, 1) && right.is_all(0..LEN, 0));
        }
    }
}

fn a_type_1_window_is_for_every_queue_pair_of_the_domain(_: &Device) {
    let (mut left, mut right, _window, remote) = with_window(WindowType::Type1);
    let mut other = another(&mut right);
    left.succeed(WorkRequest::read(left.at(0..8), remote));
    other.succeed(WorkRequest::read(other.at(0..8), remote));
}

fn a_type_2_window_is_for_the_queue_pair_that_bound_it(_: &Device) {
    let (mut left, mut right, _window, remote) = with_window(WindowType::Type2);
    let mut other = another(&mut right);
    cannot_be_read(&mut other, remote);
    left.succeed(WorkRequest::read(left.at(0..8), remote));
}

fn a_window_is_for_queue_pairs_of_its_domain_alone(_: &Device) {
    for op in Op::ALL {
        let (mut left, mut right) = pair(rc());
        // A window of the right end's context, in another domain with its own queue pair.
        let mut owner = End::of(right.context.clone(), rc());
        let mut owners_peer = End::new(rc());
        connect((&mut owner.qp, rc()), (&mut owners_peer.qp, rc()));
        let window = owner.domain.alloc_mw(WindowType::Type1).unwrap();
        let binding = of_memory(&owner, 0..4096);
        let remote = bound(&mut owner, &window, &binding);
        left.expect(op.request(left.at(0..8), remote), C::RemoteAccess);
        right.wait_for_state(QpState::Error);
        owners_peer.succeed(op.request(owners_peer.at(0..8), remote));
    }
}

fn a_queue_pair_without_one_sided_rights_grants_nothing_through_windows_either(_: &Device) {
    let nothing = Options {
        access: Access::NONE,
        ..rc()
    };
    for window_type in BOTH {
        let (mut left, mut right) = pair_of(rc(), nothing);
        let window = window(&right, window_type);
        let binding = of_memory(&right, 0..4096);
        let remote = bound(&mut right, &window, &binding);
        left.expect(
            WorkRequest::read(left.at(0..8), remote),
            C::RemoteInvalidRequest,
        );
    }
}

fn a_local_invalidate_takes_a_window_away(_: &Device) {
    let (mut left, mut right, _window, remote) = with_window(WindowType::Type2);
    left.succeed(WorkRequest::read(left.at(0..8), remote));
    let seen = right.run(WorkRequest::local_invalidate(remote.key));
    assert_eq!(
        (seen.status, seen.opcode),
        (C::Success, Some(O::LocalInvalidate))
    );
    cannot_be_read(&mut left, remote);
}

fn an_unsignaled_local_invalidate_takes_a_window_away(_: &Device) {
    let (mut left, mut right, _window, remote) = with_window(WindowType::Type2);
    right.post(WorkRequest::local_invalidate(remote.key));
    // The invalidate is complete once the next request is.
    right.succeed(WorkRequest::read(right.at(0..8), left.remote(0)));
    cannot_be_read(&mut left, remote);
}

/// The window stays valid while the peer is not ready for the preceding message.
fn a_local_invalidate_waits_for_what_was_posted_before_it(device: &Device) {
    let (mut left, mut right, _window, remote) = with_window(WindowType::Type2);
    let message = right.post(WorkRequest::send(right.at(0..8)).signaled());
    let invalidate = right.post(WorkRequest::local_invalidate(remote.key).signaled());
    right.assert_quiet();
    if !device.deviates(&rxe::INVALIDATE_AT_ONCE, true, false) {
        // Whether the access succeeds depends on when the RNR NAK arrives.
        let seen = left.run(WorkRequest::read(left.at(0..8), remote));
        assert!(
            matches!(seen.status, C::Success | C::RemoteAccess),
            "{seen:?}"
        );
        return;
    }
    left.succeed(WorkRequest::read(left.at(0..8), remote));
    left.recv(0..64);
    left.expect_recv(C::Success);
    for wr_id in [message, invalidate] {
        let seen = right.one();
        assert_eq!((seen.wr_id, seen.status), (wr_id, C::Success), "{seen:?}");
    }
    cannot_be_read(&mut left, remote);
}

/// Returns the status of an invalidate that the device cannot execute.
fn invalidate_failure(device: &Device) -> C {
    device.deviates(
        &rxe::INVALIDATE_STATUS,
        C::MemoryWindowBind,
        C::LocalQpOperation,
    )
}

fn a_local_invalidate_of_a_wrong_key_fails(device: &Device) {
    let (_left, mut right, _window, remote) = with_window(WindowType::Type2);
    right.post(WorkRequest::local_invalidate(RemoteKey(flip(remote.key.0))));
    assert_eq!(right.one().status, invalidate_failure(device));
}

/// A window that was never bound, one invalidated locally, and one invalidated by the peer.
fn a_local_invalidate_of_a_window_that_is_not_bound_fails(device: &Device) {
    let is_taken = device.deviates(&rxe::INVALIDATE_OF_NOTHING, true, false);
    let fails = |right: &mut End, key| {
        if is_taken {
            let request = WorkRequest::local_invalidate(key);
            right.expect(request, C::MemoryWindowBind);
        } else {
            let reason = right.refused(WorkRequest::local_invalidate(key));
            assert_eq!(reason, PostErrorReason::WindowNotBound { key });
        }
    };
    let (_left, mut right) = pair(rc());
    let window = window(&right, WindowType::Type2);
    fails(&mut right, window.key());

    let (_left, mut right, _window, remote) = with_window(WindowType::Type2);
    right.succeed(WorkRequest::local_invalidate(remote.key));
    fails(&mut right, remote.key);

    let (mut left, mut right, _window, remote) = with_window(WindowType::Type2);
    right.recv(0..64);
    left.succeed(WorkRequest::send_with_invalidate(vec![], remote.key));
    right.expect_recv(C::Success);
    fails(&mut right, remote.key);
}

fn a_local_invalidate_through_another_queue_pair_fails(device: &Device) {
    let (mut left, mut right, _window, remote) = with_window(WindowType::Type2);
    let _other = another(&mut right);
    let request = WorkRequest::local_invalidate(remote.key).signaled();
    right.others[0].post_one(request).unwrap();
    if device.deviates(&rxe::INVALIDATE_ANYWHERE, true, false) {
        assert_eq!(right.one().status, invalidate_failure(device));
        left.succeed(WorkRequest::read(left.at(0..8), remote));
    } else {
        assert_eq!(right.one().status, C::Success);
        cannot_be_read(&mut left, remote);
    }
}

fn a_message_takes_a_window_away_and_says_so(_: &Device) {
    let (mut left, mut right, _window, remote) = with_window(WindowType::Type2);
    right.recv(0..64);
    left.fill(0..64, 7);
    let seen = left.run(WorkRequest::send_with_invalidate(
        left.at(0..64),
        remote.key,
    ));
    assert_eq!((seen.status, seen.opcode), (C::Success, Some(O::Send)));
    let seen = right.expect_recv(C::Success);
    assert_eq!((seen.opcode, seen.len), (Some(O::Receive), 64));
    assert_eq!(seen.invalidated, Some(remote.key));
    assert_eq!(seen.imm, None);
    assert!(right.is_all(0..64, 7));
    cannot_be_read(&mut left, remote);
}

fn a_message_without_bytes_takes_a_window_away(_: &Device) {
    let (mut left, mut right, _window, remote) = with_window(WindowType::Type2);
    right.recv_into(vec![]);
    left.succeed(WorkRequest::send_with_invalidate(vec![], remote.key));
    let invalidated = right.expect_recv(C::Success).invalidated;
    assert_eq!(invalidated, Some(remote.key));
    cannot_be_read(&mut left, remote);
}

fn a_message_that_finds_no_receive_takes_nothing_away(_: &Device) {
    let impatient = Options {
        rnr_retry: RnrRetry::new(0).unwrap(),
        ..rc()
    };
    let (mut left, mut right) = pair(impatient);
    let window = window(&right, WindowType::Type2);
    let binding = of_memory(&right, 0..4096);
    let remote = bound(&mut right, &window, &binding);
    let message = WorkRequest::send_with_invalidate(left.at(0..8), remote.key);
    left.expect(message, C::RnrRetryExceeded);
    // The window is still bound.
    let (status, _) = bind(&mut right, &window, &binding);
    assert_ne!(status, C::Success);
}

/// Checks that the message fails at both ends and that the window remains bound.
fn takes_nothing_away(device: &Device, left: &mut End, right: &mut End, key: RemoteKey) {
    right.recv(0..64);
    left.post(WorkRequest::send_with_invalidate(left.at(0..8), key).signaled());
    let received = right.one();
    assert_ne!(received.status, C::Success, "{received:?}");
    let status = device.deviates(&rxe::INVALIDATE_ACKNOWLEDGED, C::RemoteAccess, C::Success);
    assert_eq!(left.one().status, status);
    right.wait_for_state(QpState::Error);
}

fn a_message_that_is_to_take_a_wrong_key_away_fails_both_ends(device: &Device) {
    let (mut left, mut right, _window, remote) = with_window(WindowType::Type2);
    takes_nothing_away(device, &mut left, &mut right, RemoteKey(flip(remote.key.0)));
}

fn a_message_cannot_take_a_type_1_window_away(device: &Device) {
    let (mut left, mut right, _window, remote) = with_window(WindowType::Type1);
    let mut other = another(&mut right);
    takes_nothing_away(device, &mut left, &mut right, remote.key);
    other.succeed(WorkRequest::read(other.at(0..8), remote));
}

fn a_message_cannot_take_a_window_of_another_queue_pair_away(device: &Device) {
    let (mut left, mut right, _window, remote) = with_window(WindowType::Type2);
    let mut other = another(&mut right);
    // The message goes to the second queue pair, through which the window was not bound.
    std::mem::swap(&mut right.qp, &mut right.others[0]);
    if device.deviates(&rxe::INVALIDATE_ANYWHERE, true, false) {
        takes_nothing_away(device, &mut other, &mut right, remote.key);
        left.succeed(WorkRequest::read(left.at(0..8), remote));
    } else {
        right.recv(0..64);
        other.succeed(WorkRequest::send_with_invalidate(
            other.at(0..8),
            remote.key,
        ));
        right.expect_recv(C::Success);
        cannot_be_read(&mut left, remote);
    }
}
