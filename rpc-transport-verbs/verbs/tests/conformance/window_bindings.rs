//! Bindings of memory windows that are rejected or fail, and the rights that regions have to grant.

use std::ops::Range;

use verbline_verbs::{
    Access, Binding, CompletionStatus as C, ExposedMemory, MemoryWindow, PostErrorReason, QpState,
    WindowType, WorkRequest,
};

use super::case::{Section, case};
use super::device::Device;
use super::end::{End, LEN, everything, pair, rc};
use super::memory_windows::{
    BOTH, bind, bound, cannot_be_read, granted, of_memory, window, with_window,
};

pub(crate) const CASES: Section = Section {
    topic: "binding memory windows",
    cases: &[
        case!(
            a_type_1_window_cannot_be_zero_based,
            "specification: memory windows"
        ),
        case!(
            a_binding_that_begins_before_its_region_fails,
            "specification: memory windows"
        ),
        case!(
            a_binding_that_ends_after_its_region_fails,
            "specification: memory windows"
        ),
        case!(
            a_region_has_to_permit_bindings,
            "specification: memory windows"
        ),
        case!(
            a_window_for_writes_needs_a_region_with_local_write,
            "specification: memory windows"
        ),
        case!(
            a_window_for_atomics_needs_a_region_with_local_write,
            "specification: memory windows"
        ),
        case!(
            a_window_for_reads_does_without_local_write,
            "specification: memory windows"
        ),
        case!(
            the_rights_of_a_region_decide_which_windows_may_be_bound_to_it,
            "specification: memory windows; mw_test: MwBindAccessTests"
        ),
        case!(
            a_window_of_another_domain_cannot_be_bound,
            "specification: memory windows; pd_test: MwOnOtherPd"
        ),
        case!(
            a_region_of_another_domain_cannot_be_bound_to,
            "specification: memory windows; pd_test: MrOnOtherPd"
        ),
        case!(
            window_and_region_of_another_domain_cannot_be_bound_here,
            "specification: memory windows; pd_test: MrMwOnOtherPd"
        ),
        case!(
            an_unsignaled_binding_completes_with_the_next_signaled_request,
            "specification: signaling; mw_test: UnsignaledBind"
        ),
        case!(
            an_unsignaled_binding_that_fails_completes,
            "specification: signaling"
        ),
        case!(
            a_type_1_window_without_bytes_is_unbound,
            "specification: memory windows; mw_test: MwType1Test.BindZeroLengthMw"
        ),
        case!(
            a_type_2_window_cannot_have_no_bytes,
            "specification: memory windows; mw_test: MwType2Test.BindZeroLengthMw"
        ),
        case!(
            a_binding_in_error_is_flushed,
            "specification: what each state permits; mw_test: MwType1Test.BindType1WhenQpError, MwType2Test.BindType1WhenQpError"
        ),
    ],
};

/// Binds a window with `window_access` to a region with the rights `region`.
fn binding_rights(window_type: WindowType, region: Access, window_access: Access) -> C {
    let (_left, mut right) = pair(rc());
    let window = window(&right, window_type);
    let region = right.domain.expose(4096, region).unwrap();
    bind(
        &mut right,
        &window,
        &Binding::new(&region, 0..4096, window_access),
    )
    .0
}

fn a_type_1_window_cannot_be_zero_based(_: &Device) {
    let (_left, mut right) = pair(rc());
    let window = window(&right, WindowType::Type1);
    let access = granted() | Access::ZERO_BASED;
    let binding = Binding::new(&right.memory, 4096..8192, access);
    match right.qp.bind_mw(&window, binding, true) {
        Ok(_) => assert_eq!(right.one().status, C::MemoryWindowBind),
        Err(reason) => assert!(
            matches!(reason, PostErrorReason::Refused { .. }),
            "{reason}"
        ),
    }
}

/// Posts the binding of a window in the way its type requires.
fn post_binding(
    end: &mut End,
    window: &MemoryWindow,
    binding: Binding,
    signaled: bool,
) -> Result<(), PostErrorReason> {
    if window.window_type() == WindowType::Type1 {
        return end.qp.bind_mw(window, binding, signaled).map(drop);
    }
    let request = WorkRequest::bind_window(window, binding, window.next_key());
    let request = match signaled {
        true => request.signaled(),
        false => request,
    };
    let posted = end.qp.post_one(request);
    posted.map(drop).map_err(|(_, reason)| reason)
}

/// The layer rejects the binding itself: devices do not agree on when they notice.
fn refused_binding(range: Range<usize>) {
    for window_type in BOTH {
        let (_left, mut right) = pair(rc());
        let window = window(&right, window_type);
        let binding = of_memory(&right, range.clone());
        let posted = post_binding(&mut right, &window, binding, true);
        let Range { start, end } = range;
        let refused = PostErrorReason::WindowRange {
            start,
            end,
            len: right.memory.len(),
        };
        assert_eq!(posted, Err(refused), "{window_type:?}");
        assert_eq!(right.state(), QpState::Rts);
    }
}

fn a_binding_that_begins_before_its_region_fails(_: &Device) {
    // Seven bytes, from eight bytes before the region on.
    refused_binding(usize::MAX - 7..usize::MAX);
    // A range that ends before it begins has no bytes inside either.
    refused_binding(Range { start: 8, end: 4 });
}

fn a_binding_that_ends_after_its_region_fails(_: &Device) {
    for end in [LEN + 1, LEN + 8, usize::MAX] {
        refused_binding(LEN - 8..end);
    }
    refused_binding(LEN + 1..LEN + 1);
}

fn a_region_has_to_permit_bindings(_: &Device) {
    for window_type in BOTH {
        let without = binding_rights(window_type, everything(), granted());
        assert_eq!(without, C::MemoryWindowBind);
        let with = binding_rights(window_type, everything() | Access::MW_BIND, granted());
        assert_eq!(with, C::Success);
    }
}

fn needs_local_write(access: Access) {
    for window_type in BOTH {
        let without = binding_rights(window_type, Access::MW_BIND, access);
        assert_eq!(without, C::MemoryWindowBind);
        let with = binding_rights(window_type, Access::MW_BIND | Access::LOCAL_WRITE, access);
        assert_eq!(with, C::Success);
    }
}

fn a_window_for_writes_needs_a_region_with_local_write(_: &Device) {
    needs_local_write(Access::REMOTE_WRITE);
}

fn a_window_for_atomics_needs_a_region_with_local_write(_: &Device) {
    needs_local_write(Access::REMOTE_ATOMIC);
}

fn a_window_for_reads_does_without_local_write(_: &Device) {
    for window_type in BOTH {
        for access in [Access::REMOTE_READ, Access::NONE] {
            let status = binding_rights(window_type, Access::MW_BIND, access);
            assert_eq!(status, C::Success);
        }
    }
}

/// All sets of remote rights of a window, with regions that permit bindings or not, writes by their
/// own side or not, and remote access or not. A region's remote rights do not matter.
fn the_rights_of_a_region_decide_which_windows_may_be_bound_to_it(_: &Device) {
    let remote_rights = [
        Access::REMOTE_READ,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
    ];
    let changes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let mut wishes = vec![Access::NONE];
    for right in remote_rights {
        wishes.extend(wishes.clone().iter().map(|wish| *wish | right));
    }
    for window_type in BOTH {
        for rights in [Access::NONE, Access::LOCAL_WRITE, everything()] {
            for wish in wishes.clone() {
                let seen = binding_rights(window_type, rights, wish);
                let message = format!("{window_type:?}: {wish} of {rights}");
                assert_eq!(seen, C::MemoryWindowBind, "{message}");

                let seen = binding_rights(window_type, rights | Access::MW_BIND, wish);
                let needs_more = rights == Access::NONE && wish.intersects(changes);
                let status = match needs_more {
                    true => C::MemoryWindowBind,
                    false => C::Success,
                };
                assert_eq!(seen, status, "{message} and MW_BIND");
            }
        }
    }
}

/// Checks that a binding with an object of another domain is rejected when it is posted, or fails.
fn of_other_domains(is_window: bool, is_region: bool) {
    for window_type in BOTH {
        let (_left, mut right) = pair(rc());
        let other = right.context.alloc_pd().unwrap();
        let (windows, regions) = (
            if is_window { &other } else { &right.domain },
            if is_region { &other } else { &right.domain },
        );
        let window = windows.alloc_mw(window_type).unwrap();
        let access = everything() | Access::MW_BIND;
        let region: ExposedMemory = regions.expose(4096, access).unwrap();
        let binding = Binding::new(&region, 0..4096, granted());
        match post_binding(&mut right, &window, binding, true) {
            Err(reason) => assert!(matches!(reason, PostErrorReason::OtherDomain { .. })),
            Ok(()) => assert_eq!(right.one().status, C::MemoryWindowBind),
        }
    }
}

fn a_window_of_another_domain_cannot_be_bound(_: &Device) {
    of_other_domains(true, false);
}

fn a_region_of_another_domain_cannot_be_bound_to(_: &Device) {
    of_other_domains(false, true);
}

fn window_and_region_of_another_domain_cannot_be_bound_here(_: &Device) {
    of_other_domains(true, true);
}

fn an_unsignaled_binding_completes_with_the_next_signaled_request(_: &Device) {
    let (mut left, mut right) = pair(rc());
    let (one, two) = (
        window(&right, WindowType::Type2),
        window(&right, WindowType::Type2),
    );
    let binding = of_memory(&right, 0..4096);
    right.post(WorkRequest::bind_window(
        &one,
        binding.clone(),
        one.next_key(),
    ));
    right.assert_quiet();
    right.succeed(WorkRequest::bind_window(
        &two,
        binding.clone(),
        two.next_key(),
    ));
    left.succeed(WorkRequest::read(left.at(0..8), binding.remote(one.key())));
}

fn an_unsignaled_binding_that_fails_completes(_: &Device) {
    for window_type in BOTH {
        let (_left, mut right) = pair(rc());
        let window = window(&right, window_type);
        let unbindable = right.domain.expose(4096, everything()).unwrap();
        let binding = Binding::new(&unbindable, 0..4096, granted());
        post_binding(&mut right, &window, binding, false).unwrap();
        assert_eq!(right.one().status, C::MemoryWindowBind);
    }
}

fn a_type_1_window_without_bytes_is_unbound(_: &Device) {
    let (mut left, mut right, window, remote) = with_window(WindowType::Type1);
    let nothing = of_memory(&right, 4096..4096);
    bound(&mut right, &window, &nothing);
    left.succeed(WorkRequest::read(left.at(0..0), remote));
    cannot_be_read(&mut left, remote);
}

fn a_type_2_window_cannot_have_no_bytes(_: &Device) {
    let (_left, mut right) = pair(rc());
    let window = window(&right, WindowType::Type2);
    let nothing = of_memory(&right, 4096..4096);
    let (status, _) = bind(&mut right, &window, &nothing);
    assert_eq!(status, C::MemoryWindowBind);
}

fn a_binding_in_error_is_flushed(_: &Device) {
    for window_type in BOTH {
        let (_left, mut right) = pair(rc());
        let window = window(&right, window_type);
        right.go(QpState::Error);
        let binding = of_memory(&right, 0..4096);
        let (status, _) = bind(&mut right, &window, &binding);
        assert_eq!(status, C::WorkRequestFlushed);
    }
}
