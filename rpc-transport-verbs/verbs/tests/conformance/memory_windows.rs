//! Memory windows of both types: how they are bound, and how bindings end.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use verbline_verbs::{
    Access, Binding, CompletionOpcode as O, CompletionStatus as C, MemoryWindow, PostErrorReason,
    RemoteKey, RemoteMemory, WindowType, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::end::{End, connect, everything, pair, rc};

pub(crate) const CASES: Section = Section {
    topic: "memory windows",
    cases: &[
        case!(
            windows_of_both_types_come_and_go,
            "specification: memory windows; mw_test: Alloc"
        ),
        case!(
            a_type_1_window_is_bound_by_a_call_that_says_its_key,
            "specification: memory windows; mw_test: MwGeneralTest.Bind"
        ),
        case!(
            a_type_2_window_is_bound_by_a_request_that_chooses_its_key,
            "specification: memory windows; mw_test: MwType2Test.Bind"
        ),
        case!(
            a_type_2_window_keeps_the_upper_bits_of_its_key,
            "specification: memory windows"
        ),
        case!(
            a_type_1_window_that_is_bound_again_loses_its_old_key,
            "specification: memory windows; rc_test: Type1MWUnbind"
        ),
        case!(
            a_type_1_window_may_be_bound_again_through_another_queue_pair,
            "specification: memory windows; mw_test: CrossQpManagement"
        ),
        case!(
            a_type_2_window_that_is_bound_cannot_be_bound_again,
            "specification: memory windows; mw_test: RebindToDifferentRKey"
        ),
        case!(
            a_type_2_window_that_is_bound_cannot_be_bound_through_another_queue_pair,
            "specification: memory windows; mw_test: RebindToDifferentQp"
        ),
        case!(
            a_type_2_window_can_be_bound_again_after_it_was_invalidated,
            "specification: memory windows"
        ),
        case!(
            keys_of_type_2_windows_with_the_same_choice_differ,
            "specification: memory windows; mw_test: BindRKeyReuse, DistinctRKeys"
        ),
        case!(
            each_type_is_bound_in_its_own_way_alone,
            "specification: memory windows; mw_test: Type1BindOnType2"
        ),
        case!(
            a_region_with_windows_cannot_be_deregistered,
            "specification: destruction; mw_test: MwGeneralTest.DeregMrWhenBound, MwType2Test.DeregMrWhenBound"
        ),
        case!(
            a_window_that_is_gone_grants_nothing,
            "specification: memory windows"
        ),
        case!(
            a_queue_pair_with_bound_windows_can_be_destroyed,
            "specification: destruction; mw_test: DestroyQpWithType1Bound, DestroyQpWithType2Bound"
        ),
    ],
};

pub(super) const BOTH: [WindowType; 2] = [WindowType::Type1, WindowType::Type2];
/// Returns the rights that a window grants, unless a case is about rights.
pub(super) fn granted() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

pub(super) fn window(end: &End, window_type: WindowType) -> MemoryWindow {
    end.domain.alloc_mw(window_type).unwrap()
}

/// Returns a binding to a range of an end's memory.
pub(super) fn of_memory(end: &End, range: Range<usize>) -> Binding {
    Binding::new(&end.memory, range, granted())
}

/// Binds a window in the way its type requires. Returns the status and the remote memory to send to
/// a peer.
pub(super) fn bind(end: &mut End, window: &MemoryWindow, binding: &Binding) -> (C, RemoteMemory) {
    match window.window_type() {
        WindowType::Type1 => {
            let key = end.qp.bind_mw(window, binding.clone(), true).unwrap();
            (end.one().status, binding.remote(key))
        }
        WindowType::Type2 => {
            let key = window.next_key();
            let request = WorkRequest::bind_window(window, binding.clone(), key);
            (end.run(request).status, binding.remote(key))
        }
    }
}

pub(super) fn bound(end: &mut End, window: &MemoryWindow, binding: &Binding) -> RemoteMemory {
    let (status, remote) = bind(end, window, binding);
    assert_eq!(status, C::Success, "{:?}", window.window_type());
    remote
}

/// Creates two ends, and a window over bytes 4096 to 8192 of the right one.
pub(super) fn with_window(window_type: WindowType) -> (End, End, MemoryWindow, RemoteMemory) {
    let (left, mut right) = pair(rc());
    let window = window(&right, window_type);
    let binding = of_memory(&right, 4096..8192);
    let remote = bound(&mut right, &window, &binding);
    (left, right, window, remote)
}

pub(super) fn cannot_be_read(left: &mut End, remote: RemoteMemory) {
    left.expect(WorkRequest::read(left.at(0..8), remote), C::RemoteAccess);
}

/// Creates another queue pair on the right end, connected to an end of its own.
pub(super) fn another(right: &mut End) -> End {
    let mut end = End::new(rc());
    let mut qp = right.another();
    connect((&mut end.qp, rc()), (&mut qp, rc()));
    right.others.push(qp);
    end
}

fn windows_of_both_types_come_and_go(_: &Device) {
    let end = End::new(rc());
    for window_type in BOTH {
        for _ in 0..100 {
            let window = window(&end, window_type);
            assert_eq!(window.window_type(), window_type);
            window.dealloc().unwrap();
        }
    }
}

fn a_type_1_window_is_bound_by_a_call_that_says_its_key(_: &Device) {
    let (_left, mut right) = pair(rc());
    let window = window(&right, WindowType::Type1);
    let before = window.key();
    let binding = of_memory(&right, 0..4096);
    let key = right.qp.bind_mw(&window, binding, true).unwrap();
    assert_eq!(window.key(), key);
    assert_ne!(key, before);
    assert_eq!(
        key.0 & !0xff,
        before.0 & !0xff,
        "the lower eight bits change"
    );
    let seen = right.one();
    assert_eq!(
        (seen.status, seen.opcode),
        (C::Success, Some(O::BindWindow))
    );
}

fn a_type_2_window_is_bound_by_a_request_that_chooses_its_key(_: &Device) {
    let (mut left, mut right) = pair(rc());
    let window = window(&right, WindowType::Type2);
    let key = RemoteKey(window.key().0 & !0xff | 0xba);
    let binding = of_memory(&right, 0..4096);
    let seen = right.run(WorkRequest::bind_window(&window, binding.clone(), key));
    assert_eq!(
        (seen.status, seen.opcode),
        (C::Success, Some(O::BindWindow))
    );
    left.succeed(WorkRequest::read(left.at(0..8), binding.remote(key)));
}

/// A key with other upper bits is rejected when it is posted, or fails.
fn a_type_2_window_keeps_the_upper_bits_of_its_key(_: &Device) {
    let (_left, mut right) = pair(rc());
    let window = window(&right, WindowType::Type2);
    let key = RemoteKey(window.key().0 ^ 0x0100);
    let request = WorkRequest::bind_window(&window, of_memory(&right, 0..4096), key);
    match right.qp.post_one(request.signaled()) {
        Err((_, reason)) => {
            let window = window.key();
            assert_eq!(reason, PostErrorReason::WindowKey { key, window });
        }
        Ok(_) => assert_eq!(right.one().status, C::MemoryWindowBind),
    }
}

fn a_type_1_window_that_is_bound_again_loses_its_old_key(_: &Device) {
    let (mut left, mut right, window, old) = with_window(WindowType::Type1);
    let binding = of_memory(&right, 4096..8192);
    let new = bound(&mut right, &window, &binding);
    assert_ne!(old.key, new.key);
    left.succeed(WorkRequest::read(left.at(0..8), new));
    cannot_be_read(&mut left, old);
}

fn a_type_1_window_may_be_bound_again_through_another_queue_pair(_: &Device) {
    let (mut left, mut right, window, _) = with_window(WindowType::Type1);
    let _other = another(&mut right);
    let binding = of_memory(&right, 0..4096);
    let key = right.others[0]
        .bind_mw(&window, binding.clone(), true)
        .unwrap();
    assert_eq!(right.one().status, C::Success);
    left.succeed(WorkRequest::read(left.at(0..8), binding.remote(key)));
}

fn a_type_2_window_that_is_bound_cannot_be_bound_again(_: &Device) {
    let (_left, mut right, window, _) = with_window(WindowType::Type2);
    let binding = of_memory(&right, 4096..8192);
    let (status, _) = bind(&mut right, &window, &binding);
    assert_eq!(status, C::MemoryWindowBind);
}

fn a_type_2_window_that_is_bound_cannot_be_bound_through_another_queue_pair(_: &Device) {
    let (_left, mut right, window, _) = with_window(WindowType::Type2);
    let _other = another(&mut right);
    let binding = of_memory(&right, 4096..8192);
    let request = WorkRequest::bind_window(&window, binding, window.next_key());
    right.others[0].post_one(request.signaled()).unwrap();
    assert_eq!(right.one().status, C::MemoryWindowBind);
}

fn a_type_2_window_can_be_bound_again_after_it_was_invalidated(_: &Device) {
    let (mut left, mut right, window, old) = with_window(WindowType::Type2);
    right.succeed(WorkRequest::local_invalidate(old.key));
    let binding = of_memory(&right, 0..4096);
    let new = bound(&mut right, &window, &binding);
    assert_ne!(old.key, new.key);
    left.succeed(WorkRequest::read(left.at(0..8), new));
    cannot_be_read(&mut left, old);
}

fn keys_of_type_2_windows_with_the_same_choice_differ(_: &Device) {
    let (_left, mut right) = pair(rc());
    let mut keys = std::collections::HashSet::new();
    let mut windows = Vec::new();
    let windows_there_are = right.context.query_device().max_mw.min(4096);
    for _ in 0..windows_there_are {
        let window = window(&right, WindowType::Type2);
        let key = RemoteKey(window.key().0 & !0xff | 0xba);
        let binding = of_memory(&right, 0..4096);
        right.succeed(WorkRequest::bind_window(&window, binding, key));
        assert!(keys.insert(key.0), "{key:?}");
        windows.push(window);
    }
}

fn each_type_is_bound_in_its_own_way_alone(_: &Device) {
    let (_left, mut right) = pair(rc());
    let (one, two) = (
        window(&right, WindowType::Type1),
        window(&right, WindowType::Type2),
    );
    let binding = of_memory(&right, 0..4096);
    let reason = right.qp.bind_mw(&two, binding.clone(), true).unwrap_err();
    assert!(
        matches!(reason, PostErrorReason::WindowType { .. }),
        "{reason}"
    );
    let reason = right.refused(WorkRequest::bind_window(&one, binding, one.next_key()));
    assert!(
        matches!(reason, PostErrorReason::WindowType { .. }),
        "{reason}"
    );
}

fn a_region_with_windows_cannot_be_deregistered(_: &Device) {
    for window_type in BOTH {
        let (mut left, mut right) = pair(rc());
        let region = right.expose(4096, everything() | Access::MW_BIND, 7);
        let window = window(&right, window_type);
        let binding = Binding::new(&region, 0..4096, granted());
        let remote = bound(&mut right, &window, &binding);
        drop(binding);
        let region = region.deregister().unwrap_err().object;
        left.succeed(WorkRequest::read(left.at(0..8), remote));
        window.dealloc().unwrap();
        region.deregister().unwrap();
    }
}

fn a_window_that_is_gone_grants_nothing(_: &Device) {
    for window_type in BOTH {
        let (mut left, right, window, remote) = with_window(window_type);
        right.fill(4096..4104, 7);
        left.succeed(WorkRequest::read(left.at(0..8), remote));
        window.dealloc().unwrap();
        cannot_be_read(&mut left, remote);
    }
}

fn a_queue_pair_with_bound_windows_can_be_destroyed(device: &Device) {
    for window_type in BOTH {
        let (_left, right, window, _) = with_window(window_type);
        let End {
            qp,
            cq,
            memory,
            domain,
            ..
        } = right;
        let destroyed = thread::spawn(move || qp.destroy(&mut drop));
        if window_type == WindowType::Type2 {
            // Long enough for a device on which the destroy does not have to wait.
            thread::sleep(Duration::from_millis(300));
            let is_over = device.deviates(&rxe::WINDOW_HOLDS_QUEUE_PAIR, true, false);
            assert_eq!(destroyed.is_finished(), is_over);
        } else {
            destroyed.join().unwrap();
            window.dealloc().unwrap();
            continue;
        }
        window.dealloc().unwrap();
        destroyed.join().unwrap();
        drop((cq, memory, domain));
    }
}
