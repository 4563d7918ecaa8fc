//! Protection of this end's own memory: the keys, ranges, rights and domains of a request's
//! elements.

use std::ptr::NonNull;

use verbline_verbs::{
    Access, CompletionStatus as C, Element, ExposedMemory, LocalKey, QpState, WorkKind, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::end::{End, LEN, everything, pair, rc};
use super::protection::{Op, nowhere};
use super::seed::flip;

pub(crate) const CASES: Section = Section {
    topic: "protection of own memory",
    cases: &[
        case!(
            a_write_from_an_element_with_a_wrong_key_fails_here,
            "specification: protection checks; rc_test: WriteInvalidLkey"
        ),
        case!(
            a_message_from_an_element_with_a_wrong_key_fails_here,
            "specification: protection checks; rc_test: SendInvalidLkey, UnsignaledSendError"
        ),
        case!(
            a_receive_into_an_element_with_a_wrong_key_fails_both_ends,
            "specification: protection checks; rc_test: BadRecvLkey"
        ),
        case!(
            unsignaled_requests_into_an_element_with_a_wrong_key_complete,
            "specification: protection checks; rc_test: UnsignaledReadError, UnsignaledFetchAddError, UnsignaledCompareSwapError"
        ),
        case!(
            a_read_into_an_element_with_a_wrong_key_fails_here,
            "specification: protection checks; rc_test: ReadInvalidLkey"
        ),
        case!(
            a_compare_and_swap_into_an_element_with_a_wrong_key_fails_here,
            "specification: protection checks; rc_test: CompareSwapInvalidLKey"
        ),
        case!(
            a_fetch_and_add_into_an_element_with_a_wrong_key_fails_here,
            "specification: protection checks; rc_test: FetchAddInvalidLKey"
        ),
        case!(
            a_write_from_a_region_of_another_domain_fails_here,
            "specification: protection checks; pd_test: BasicWriteMrOtherPdLocal"
        ),
        case!(
            a_read_into_a_region_of_another_domain_fails_here,
            "specification: protection checks; pd_test: BasicReadMrOtherPdLocal"
        ),
        case!(
            a_fetch_and_add_into_a_region_of_another_domain_fails_here,
            "specification: protection checks; pd_test: BasicFetchAddMrOtherPdLocal"
        ),
        case!(
            a_compare_and_swap_into_a_region_of_another_domain_fails_here,
            "specification: protection checks; pd_test: BasicCompSwapMrOtherPdLocal"
        ),
        case!(
            an_element_that_ends_after_its_region_fails_here,
            "specification: protection checks"
        ),
        case!(
            messages_and_writes_do_without_local_write,
            "specification: protection checks; access_test: MessagingAccessTest.MissingSrcLocalWrite, MessagingAccessTest.AllAccess"
        ),
        case!(
            a_read_needs_local_write,
            "specification: protection checks; access_test: RdmaAccessTest.MissingSrcLocalWrite"
        ),
        case!(
            atomics_need_local_write,
            "specification: protection checks; access_test: AtomicAccessTest.MissingSrcLocalWrite"
        ),
        case!(
            a_read_with_both_keys_wrong_fails_at_the_peer,
            "specification: completion statuses; rc_test: ReadInvalidRKeyAndInvalidLKey"
        ),
        case!(
            a_write_with_both_keys_wrong_fails_here,
            "specification: completion statuses; rc_test: WriteInvalidRKeyAndInvalidLKey"
        ),
        case!(
            atomics_with_both_keys_wrong_fail_at_the_peer,
            "specification: completion statuses; rc_test: FetchAddInvalidLKeyAndInvalidRKey, CompareSwapInvalidRKeyAndInvalidLKey"
        ),
        case!(
            a_receive_that_ends_after_its_region_fails_both_ends,
            "specification: protection checks; rc_test: RecvPayloadExceedMr, BadRecvAddr"
        ),
        case!(
            a_receive_that_begins_before_its_region_fails_both_ends,
            "specification: protection checks; rc_test: BadRecvAddr"
        ),
        case!(
            a_local_failure_leaves_the_peer_as_it_was,
            "specification: completion statuses; rc_test: FlushErrorPollTogether"
        ),
        case!(
            what_follows_a_read_that_fails_here_is_flushed,
            "specification: completion statuses"
        ),
        case!(
            unsignaled_local_failures_complete,
            "specification: signaling"
        ),
    ],
};

/// Where four bytes are left in an end's memory.
const AT_THE_END: isize = LEN as isize - 4;

/// Returns an element of eight bytes with a key of which one bit is wrong.
fn wrong_key(end: &End) -> Element {
    let wrong = LocalKey(flip(end.memory.local_key().0));
    raw(&end.memory, 0, 8, wrong)
}

/// Returns an element with this key at this distance from a region's first byte.
pub(super) fn raw(region: &ExposedMemory, offset: isize, len: usize, key: LocalKey) -> Element {
    let addr = (region.address() as usize).wrapping_add_signed(offset);
    let addr = NonNull::new(std::ptr::with_exposed_provenance_mut(addr)).expect("an address");
    // SAFETY: the device rejects memory outside the key's region, and any memory if the key is
    // invalid. All other memory belongs to the region: it is exposed, lives longer than the request
    // in each case, and is accessed only through atomics.
    unsafe { Element::from_raw(addr, len as u32, key) }
}

/// What uses an element of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    Send,
    Write,
    Read,
    FetchAndAdd,
    Receive,
}

impl User {
    /// Returns the memory of the left end, or for receives of the right one.
    pub(super) fn memory<'a>(self, left: &'a End, right: &'a End) -> &'a ExposedMemory {
        match self {
            Self::Receive => &right.memory,
            _ => &left.memory,
        }
    }

    /// Uses an element of this length that has to be refused: with `unreadable` if it is read from.
    pub(super) fn is_refused(
        self,
        device: &Device,
        (left, right): (&mut End, &mut End),
        (element, len): (Element, usize),
        unreadable: C,
        what: &str,
    ) {
        let remote = right.remote(LEN / 2);
        let (request, status) = match self {
            Self::Send => {
                right.recv(0..len);
                (WorkRequest::send(element), unreadable)
            }
            Self::Write => (WorkRequest::write(element, remote), unreadable),
            Self::Read => (WorkRequest::read(element, remote), C::LocalProtection),
            Self::FetchAndAdd => {
                let request = WorkRequest::fetch_and_add(element, remote, 0);
                (request, C::LocalProtection)
            }
            Self::Receive => {
                right.recv_into(vec![element]);
                let request = WorkRequest::send(left.at(0..len));
                (request, C::RemoteOperation)
            }
        };
        left.post(request.signaled());
        // The receiver is polled first: `soft` is slow for a process that does not ask.
        if self == Self::Receive {
            let status = device.deviates(
                &rxe::RECEIVE_STATUSES,
                C::LocalProtection,
                C::LocalQpOperation,
            );
            let seen = right.one();
            assert_eq!(
                (seen.kind, seen.status),
                (WorkKind::Receive, status),
                "{what}"
            );
        }
        assert_eq!(left.one().status, status, "{what}");
    }
}

fn fails_here(op: Op, element: impl FnOnce(&End) -> Element, status: C) {
    let (mut left, right) = pair(rc());
    left.fill(0..8, 1);
    right.fill(0..LEN, 2);
    let element = element(&left);
    left.expect(op.request(element, right.remote(0)), status);
    left.wait_for_state(QpState::Error);
    assert!(left.is_all(0..8, 1), "{op:?}");
    // An atomic is executed at the peer before storing its result fails here.
    if matches!(op, Op::Write) {
        assert!(right.is_all(0..LEN, 2));
    }
}

/// Returns the status of a request that reads from an invalid element.
pub(super) fn unreadable(device: &Device) -> C {
    device.deviates(&rxe::SEND_STATUS, C::LocalProtection, C::LocalQpOperation)
}

fn a_message_from_an_element_with_a_wrong_key_fails_here(device: &Device) {
    for is_signaled in [true, false] {
        let (mut left, mut right) = pair(rc());
        right.recv(0..8);
        let send = WorkRequest::send(wrong_key(&left));
        left.post(if is_signaled { send.signaled() } else { send });
        assert_eq!(left.one().status, unreadable(device));
        right.assert_quiet();
    }
}

fn a_receive_into_an_element_with_a_wrong_key_fails_both_ends(device: &Device) {
    let (mut left, mut right) = pair(rc());
    let wrong = wrong_key(&right);
    right.recv_into(vec![wrong]);
    left.expect(WorkRequest::send(left.at(0..8)), C::RemoteOperation);
    let status = device.deviates(
        &rxe::RECEIVE_STATUSES,
        C::LocalProtection,
        C::LocalQpOperation,
    );
    right.expect_recv(status);
    assert!(right.is_all(0..8, 0));
}

fn unsignaled_requests_into_an_element_with_a_wrong_key_complete(_: &Device) {
    for op in [Op::Read, Op::FetchAndAdd, Op::CompareAndSwap] {
        let (mut left, right) = pair(rc());
        let element = wrong_key(&left);
        left.post(op.request(element, right.remote(0)));
        assert_eq!(left.one().status, C::LocalProtection, "{op:?}");
    }
}

fn a_write_from_an_element_with_a_wrong_key_fails_here(device: &Device) {
    fails_here(Op::Write, wrong_key, unreadable(device));
}

fn a_read_into_an_element_with_a_wrong_key_fails_here(_: &Device) {
    fails_here(Op::Read, wrong_key, C::LocalProtection);
}

fn a_compare_and_swap_into_an_element_with_a_wrong_key_fails_here(_: &Device) {
    fails_here(Op::CompareAndSwap, wrong_key, C::LocalProtection);
}

fn a_fetch_and_add_into_an_element_with_a_wrong_key_fails_here(_: &Device) {
    fails_here(Op::FetchAndAdd, wrong_key, C::LocalProtection);
}

fn elsewhere(end: &End) -> Element {
    let domain = end.context.alloc_pd().unwrap();
    let region = domain.expose(4096, everything()).unwrap();
    region.element(0..8).unwrap()
}

fn a_write_from_a_region_of_another_domain_fails_here(device: &Device) {
    fails_here(Op::Write, elsewhere, unreadable(device));
}

fn a_read_into_a_region_of_another_domain_fails_here(_: &Device) {
    fails_here(Op::Read, elsewhere, C::LocalProtection);
}

fn a_fetch_and_add_into_a_region_of_another_domain_fails_here(_: &Device) {
    fails_here(Op::FetchAndAdd, elsewhere, C::LocalProtection);
}

fn a_compare_and_swap_into_a_region_of_another_domain_fails_here(_: &Device) {
    fails_here(Op::CompareAndSwap, elsewhere, C::LocalProtection);
}

fn an_element_that_ends_after_its_region_fails_here(_: &Device) {
    let too_long = |end: &End| raw(&end.memory, AT_THE_END, 8, end.memory.local_key());
    fails_here(Op::Write, too_long, C::LocalProtection);
    fails_here(Op::Read, too_long, C::LocalProtection);
}

/// Returns an element of a region that the device may only read.
fn read_only(end: &End) -> Element {
    end.expose(4096, Access::NONE, 1).element(0..8).unwrap()
}

fn messages_and_writes_do_without_local_write(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..8);
    left.succeed(WorkRequest::send(read_only(&left)));
    right.expect_recv(C::Success);
    assert!(right.is_all(0..8, 1));
    left.succeed(WorkRequest::write(read_only(&left), right.remote(8)));
    right.becomes(8..16, 1);
}

fn a_read_needs_local_write(_: &Device) {
    fails_here(Op::Read, read_only, C::LocalProtection);
}

fn atomics_need_local_write(_: &Device) {
    fails_here(Op::FetchAndAdd, read_only, C::LocalProtection);
    fails_here(Op::CompareAndSwap, read_only, C::LocalProtection);
}

fn both_wrong(op: Op, status: C) {
    let (mut left, right) = pair(rc());
    let [wrong, ..] = nowhere(&right);
    left.expect(op.request(wrong_key(&left), wrong), status);
}

fn a_read_with_both_keys_wrong_fails_at_the_peer(_: &Device) {
    both_wrong(Op::Read, C::RemoteAccess);
}

fn a_write_with_both_keys_wrong_fails_here(device: &Device) {
    both_wrong(Op::Write, unreadable(device));
}

fn atomics_with_both_keys_wrong_fail_at_the_peer(_: &Device) {
    both_wrong(Op::FetchAndAdd, C::RemoteAccess);
    both_wrong(Op::CompareAndSwap, C::RemoteAccess);
}

fn a_receive_that_ends_after_its_region_fails_both_ends(device: &Device) {
    exceeding_receive(device, AT_THE_END);
}

fn a_receive_that_begins_before_its_region_fails_both_ends(device: &Device) {
    exceeding_receive(device, -1);
}

fn exceeding_receive(device: &Device, offset: isize) {
    let (mut left, mut right) = pair(rc());
    let exceeding = raw(&right.memory, offset, 64, right.memory.local_key());
    right.recv_into(vec![exceeding]);
    left.expect(WorkRequest::send(left.at(0..64)), C::RemoteOperation);
    let status = device.deviates(
        &rxe::RECEIVE_STATUSES,
        C::LocalProtection,
        C::LocalQpOperation,
    );
    right.expect_recv(status);
    assert!(right.is_all(0..LEN, 0));
}

fn a_local_failure_leaves_the_peer_as_it_was(_: &Device) {
    let (mut left, right) = pair(rc());
    left.fill(0..8, 1);
    left.post(WorkRequest::read(wrong_key(&left), right.remote(0)).signaled());
    left.post(WorkRequest::write(left.at(0..8), right.remote(0)).signaled());
    let failed = [C::LocalProtection, C::WorkRequestFlushed];
    assert_eq!(left.statuses(2), failed);
    assert!(left.is_all(0..8, 1), "nothing came");
    assert_eq!(
        (left.state(), right.state()),
        (QpState::Error, QpState::Rts)
    );
}

fn what_follows_a_read_that_fails_here_is_flushed(_: &Device) {
    let (mut left, right) = pair(rc());
    left.post(WorkRequest::read(wrong_key(&left), right.remote(0)));
    left.post(WorkRequest::read(left.at(0..8), right.remote(0)));
    left.post(WorkRequest::write(left.at(0..8), right.remote(0)));
    let flushed = C::WorkRequestFlushed;
    assert_eq!(left.statuses(3), [C::LocalProtection, flushed, flushed]);
}

fn unsignaled_local_failures_complete(device: &Device) {
    for op in Op::ALL {
        let (mut left, right) = pair(rc());
        left.post(op.request(wrong_key(&left), right.remote(0)));
        let status = match op {
            Op::Write => unreadable(device),
            _ => C::LocalProtection,
        };
        assert_eq!(left.one().status, status, "{op:?}");
    }
}
