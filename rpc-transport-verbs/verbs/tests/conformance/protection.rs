//! Protection: the keys, ranges, rights and domains that a peer's operation is checked against, and
//! that a rejected operation changes nothing.

use verbline_verbs::{
    Access, CompletionStatus as C, Elements, QpState, RemoteKey, RemoteMemory, WorkRequest,
};

use super::case::{Section, case};
use super::device::Device;
use super::end::{End, LEN, Options, everything, pair, pair_of, rc};
use super::seed::flip;

pub(crate) const CASES: Section = Section {
    topic: "protection at the peer",
    cases: &[
        case!(
            a_write_with_a_wrong_key_is_refused,
            "specification: protection checks; rc_test: WriteInvalidRkey"
        ),
        case!(
            a_read_with_a_wrong_key_is_refused,
            "specification: protection checks; rc_test: ReadInvalidRkey"
        ),
        case!(
            a_read_behind_one_that_is_refused_fetches_nothing,
            "specification: ordering; protection checks"
        ),
        case!(
            a_compare_and_swap_with_a_wrong_key_is_refused,
            "specification: protection checks; rc_test: CompareSwapInvalidRKey"
        ),
        case!(
            a_fetch_and_add_with_a_wrong_key_is_refused,
            "specification: protection checks; rc_test: FetchAddInvalidRKey"
        ),
        case!(
            unsignaled_requests_that_are_refused_complete,
            "specification: signaling; rc_test: UnsignaledWriteInvalidRkey, UnsignaledReadError, UnsignaledFetchAddError, UnsignaledCompareSwapError"
        ),
        case!(
            a_write_that_begins_before_the_region_is_refused,
            "specification: protection checks; buffer_test: BufferMrTest.WriteExceedFront"
        ),
        case!(
            a_write_that_ends_after_the_region_is_refused_whole,
            "specification: protection checks; buffer_test: BufferMrTest.WriteExceedRear"
        ),
        case!(
            a_long_write_that_ends_after_the_region_changes_no_byte,
            "specification: protection checks"
        ),
        case!(
            a_read_that_begins_before_the_region_is_refused,
            "specification: protection checks; buffer_test: BufferMrTest.ReadExceedFront"
        ),
        case!(
            a_read_that_ends_after_the_region_is_refused,
            "specification: protection checks; buffer_test: BufferMrTest.ReadExceedRear"
        ),
        case!(
            an_atomic_outside_of_the_region_is_refused,
            "specification: protection checks"
        ),
        case!(
            a_write_to_an_address_that_is_not_registered_is_refused,
            "specification: protection checks; rc_test: WriteUnregisteredAddress"
        ),
        case!(
            a_read_of_an_address_that_is_not_registered_is_refused,
            "specification: protection checks; rc_test: ReadUnregisteredRemoteAddress"
        ),
        case!(
            an_address_that_wraps_round_is_refused,
            "specification: protection checks"
        ),
        case!(
            a_write_needs_the_regions_remote_write,
            "specification: protection checks; access_test: RdmaAccessTest.MissingDstRemoteWrite"
        ),
        case!(
            a_read_needs_the_regions_remote_read,
            "specification: protection checks; access_test: RdmaAccessTest.MissingDstRemoteRead"
        ),
        case!(
            atomics_need_the_regions_remote_atomic_and_nothing_else,
            "specification: protection checks; access_test: AtomicAccessTest.MissingDstRemoteAtomic, AtomicAccessTest.MissingDstRemoteWrite, AtomicAccessTest.MissingDstRemoteRead"
        ),
        case!(
            writes_and_reads_do_without_remote_atomic,
            "specification: protection checks; access_test: RdmaAccessTest.MissingDstRemoteAtomic"
        ),
        case!(
            messages_do_without_remote_write,
            "specification: protection checks; access_test: MessagingAccessTest.MissingDstRemoteWrite"
        ),
        case!(
            a_write_needs_the_queue_pairs_remote_write,
            "specification: protection checks"
        ),
        case!(
            a_read_needs_the_queue_pairs_remote_read,
            "specification: protection checks"
        ),
        case!(
            atomics_need_the_queue_pairs_remote_atomic,
            "specification: protection checks"
        ),
        case!(
            a_write_to_a_region_of_another_domain_is_refused,
            "specification: protection checks; pd_test: BasicWriteMrOtherPdRemote"
        ),
        case!(
            a_read_of_a_region_of_another_domain_is_refused,
            "specification: protection checks; pd_test: BasicReadMrOtherPdRemote"
        ),
        case!(
            a_fetch_and_add_to_a_region_of_another_domain_is_refused,
            "specification: protection checks; pd_test: BasicFetchAddMrOtherPdRemote"
        ),
        case!(
            a_compare_and_swap_in_a_region_of_another_domain_is_refused,
            "specification: protection checks; pd_test: BasicCompSwapMrOtherPdRemote"
        ),
        case!(
            the_addresses_of_a_zero_based_region_begin_at_zero,
            "specification: protection checks; access_test: ZeroBasedAccess"
        ),
    ],
};

/// An operation on a peer's eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Write,
    Read,
    CompareAndSwap,
    FetchAndAdd,
}

impl Op {
    pub(crate) const ALL: [Self; 4] = [
        Self::Write,
        Self::Read,
        Self::CompareAndSwap,
        Self::FetchAndAdd,
    ];

    pub(crate) fn request(self, local: impl Into<Elements>, remote: RemoteMemory) -> WorkRequest {
        match self {
            Self::Write => WorkRequest::write(local, remote),
            Self::Read => WorkRequest::read(local, remote),
            Self::CompareAndSwap => WorkRequest::compare_and_swap(local, remote, ALL_2, 1),
            Self::FetchAndAdd => WorkRequest::fetch_and_add(local, remote, 1),
        }
    }
}

/// Eight bytes equal to 2.
const ALL_2: u64 = 0x0202_0202_0202_0202;

/// Returns invalid locations: a key with one wrong bit, and addresses outside the region.
pub(crate) fn nowhere(end: &End) -> [RemoteMemory; 3] {
    let memory = end.remote(0);
    let wrong_key = RemoteMemory {
        key: RemoteKey(flip(memory.key.0)),
        ..memory
    };
    [
        wrong_key,
        memory.offset(LEN as u64),
        RemoteMemory { addr: 8, ..memory },
    ]
}

/// Checks that the operation on an invalid location ends with this status, changes nothing, and
/// fails both queue pairs.
fn refused(op: Op, status: C, (mut left, right): (End, End), place: RemoteMemory) {
    left.fill(0..8, 1);
    right.fill(0..LEN, 2);
    left.expect(op.request(left.at(0..8), place), status);
    assert!(left.is_all(0..8, 1), "{op:?}: nothing came");
    assert!(right.is_all(0..LEN, 2), "{op:?}: nothing went");
    left.wait_for_state(QpState::Error);
    right_failed(&right);
}

fn right_failed(right: &End) {
    let start = std::time::Instant::now();
    while right.state() != QpState::Error {
        assert!(start.elapsed() < super::verbs_side::HANG);
    }
}

fn with_wrong_key(op: Op) {
    let ends = pair(rc());
    let [wrong, ..] = nowhere(&ends.1);
    refused(op, C::RemoteAccess, ends, wrong);
}

fn a_write_with_a_wrong_key_is_refused(_: &Device) {
    with_wrong_key(Op::Write);
}

fn a_read_with_a_wrong_key_is_refused(_: &Device) {
    with_wrong_key(Op::Read);
}

fn a_read_behind_one_that_is_refused_fetches_nothing(_: &Device) {
    let (mut left, right) = pair(rc());
    left.fill(0..LEN, 1);
    right.fill(0..LEN, 2);
    let [wrong, ..] = nowhere(&right);
    let refused = WorkRequest::read(left.at(0..8), wrong).signaled();
    let behind = WorkRequest::read(left.at(100..200), right.remote(100)).signaled();
    left.qp.post(&mut vec![refused, behind], &mut drop).unwrap();
    assert_eq!(left.statuses(2), [C::RemoteAccess, C::WorkRequestFlushed]);
    assert!(left.is_all(0..LEN, 1), "nothing came");
}

fn a_compare_and_swap_with_a_wrong_key_is_refused(_: &Device) {
    with_wrong_key(Op::CompareAndSwap);
}

fn a_fetch_and_add_with_a_wrong_key_is_refused(_: &Device) {
    with_wrong_key(Op::FetchAndAdd);
}

fn unsignaled_requests_that_are_refused_complete(_: &Device) {
    for op in Op::ALL {
        let (mut left, right) = pair(rc());
        let [wrong, ..] = nowhere(&right);
        left.post(op.request(left.at(0..8), wrong));
        assert_eq!(left.one().status, C::RemoteAccess, "{op:?}");
    }
}

/// Checks that an operation just before or just after a one-page region is rejected.
fn exceeding(op: Op, begins_before: bool) {
    let ends = pair(rc());
    let region = ends.1.expose(4096, everything(), 2);
    let place = if begins_before {
        let start = region.remote(0);
        RemoteMemory {
            addr: start.addr - 8,
            ..start
        }
    } else {
        region.remote(0).offset(region.len() as u64)
    };
    refused(op, C::RemoteAccess, ends, place);
    let all = region.to_vec(0..region.len()).unwrap();
    assert!(all.iter().all(|byte| *byte == 2));
}

fn a_write_that_begins_before_the_region_is_refused(_: &Device) {
    exceeding(Op::Write, true);
}

fn a_read_that_begins_before_the_region_is_refused(_: &Device) {
    exceeding(Op::Read, true);
}

fn a_read_that_ends_after_the_region_is_refused(_: &Device) {
    exceeding(Op::Read, false);
}

fn an_atomic_outside_of_the_region_is_refused(_: &Device) {
    for op in [Op::CompareAndSwap, Op::FetchAndAdd] {
        exceeding(op, true);
        exceeding(op, false);
    }
}

fn a_write_that_ends_after_the_region_is_refused_whole(_: &Device) {
    let (mut left, right) = pair(rc());
    right.fill(0..LEN, 2);
    let place = right.remote(LEN - 4);
    left.expect(WorkRequest::write(left.at(0..8), place), C::RemoteAccess);
    assert!(right.is_all(0..LEN, 2));
}

/// The first packets of the write would be inside the region.
fn a_long_write_that_ends_after_the_region_changes_no_byte(_: &Device) {
    let (mut left, right) = pair(rc());
    right.fill(0..LEN, 2);
    let place = right.remote(LEN - 20_000);
    left.expect(
        WorkRequest::write(left.at(0..20_001), place),
        C::RemoteAccess,
    );
    assert!(right.is_all(0..LEN, 2));
}

fn at_an_unregistered_address(op: Op) {
    let ends = pair(rc());
    let [.., nowhere] = nowhere(&ends.1);
    refused(op, C::RemoteAccess, ends, nowhere);
}

fn a_write_to_an_address_that_is_not_registered_is_refused(_: &Device) {
    at_an_unregistered_address(Op::Write);
}

fn a_read_of_an_address_that_is_not_registered_is_refused(_: &Device) {
    at_an_unregistered_address(Op::Read);
}

fn an_address_that_wraps_round_is_refused(_: &Device) {
    for op in [Op::Write, Op::Read] {
        let ends = pair(rc());
        let addr = u64::MAX - 3;
        let place = RemoteMemory {
            addr,
            ..ends.1.remote(0)
        };
        refused(op, C::RemoteAccess, ends, place);
    }
}

/// Runs the operation on a region with these rights.
fn region_with(op: Op, access: Access, status: C) {
    let ends = pair(rc());
    let region = ends.1.expose(4096, access, 2);
    let place = region.remote(0);
    if status == C::Success {
        let (mut left, _right) = ends;
        left.succeed(op.request(left.at(0..8), place));
    } else {
        refused(op, status, ends, place);
        assert_eq!(region.to_vec(0..8).unwrap(), [2; 8]);
    }
}

fn a_write_needs_the_regions_remote_write(_: &Device) {
    let without = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    region_with(Op::Write, without, C::RemoteAccess);
    region_with(Op::Read, without, C::Success);
}

fn a_read_needs_the_regions_remote_read(_: &Device) {
    let without = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    region_with(Op::Read, without, C::RemoteAccess);
    region_with(Op::Write, without, C::Success);
}

fn atomics_need_the_regions_remote_atomic_and_nothing_else(_: &Device) {
    for op in [Op::CompareAndSwap, Op::FetchAndAdd] {
        let without = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        region_with(op, without, C::RemoteAccess);
        region_with(op, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC, C::Success);
    }
}

fn writes_and_reads_do_without_remote_atomic(_: &Device) {
    let without = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    region_with(Op::Write, without, C::Success);
    region_with(Op::Read, without, C::Success);
}

fn messages_do_without_remote_write(_: &Device) {
    let (mut left, mut right) = pair(rc());
    let region = right.expose(4096, Access::LOCAL_WRITE, 0);
    right.recv_into(vec![region.element(0..64).unwrap()]);
    left.fill(0..64, 7);
    left.succeed(WorkRequest::send(left.at(0..64)));
    right.expect_recv(C::Success);
    assert_eq!(region.to_vec(0..64).unwrap(), [7; 64]);
}

/// Checks the operation when the peer's queue pair does not permit it.
fn queue_pair_with(op: Op, access: Access) {
    let options = Options { access, ..rc() };
    let ends = pair_of(rc(), options);
    let place = ends.1.remote(0);
    refused(op, C::RemoteInvalidRequest, ends, place);
}

fn a_write_needs_the_queue_pairs_remote_write(_: &Device) {
    queue_pair_with(Op::Write, Access::REMOTE_READ | Access::REMOTE_ATOMIC);
}

fn a_read_needs_the_queue_pairs_remote_read(_: &Device) {
    queue_pair_with(Op::Read, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
}

fn atomics_need_the_queue_pairs_remote_atomic(_: &Device) {
    for op in [Op::CompareAndSwap, Op::FetchAndAdd] {
        queue_pair_with(op, Access::REMOTE_WRITE | Access::REMOTE_READ);
    }
}

fn in_another_domain(op: Op) {
    let ends = pair(rc());
    let domain = ends.1.context.alloc_pd().unwrap();
    let region = domain.expose(4096, everything()).unwrap();
    refused(op, C::RemoteAccess, ends, region.remote(0));
    assert_eq!(region.to_vec(0..8).unwrap(), [0; 8]);
}

fn a_write_to_a_region_of_another_domain_is_refused(_: &Device) {
    in_another_domain(Op::Write);
}

fn a_read_of_a_region_of_another_domain_is_refused(_: &Device) {
    in_another_domain(Op::Read);
}

fn a_fetch_and_add_to_a_region_of_another_domain_is_refused(_: &Device) {
    in_another_domain(Op::FetchAndAdd);
}

fn a_compare_and_swap_in_a_region_of_another_domain_is_refused(_: &Device) {
    in_another_domain(Op::CompareAndSwap);
}

fn the_addresses_of_a_zero_based_region_begin_at_zero(_: &Device) {
    let (mut left, right) = pair(rc());
    let region = right.expose(4096, everything() | Access::ZERO_BASED, 2);
    assert_eq!(region.remote(16).addr, 16);
    left.succeed(WorkRequest::read(left.at(0..8), region.remote(16)));
    assert!(left.is_all(0..8, 2));
    left.fill(0..8, 7);
    left.post(WorkRequest::write(left.at(0..8), region.remote(4088)));
    left.succeed(WorkRequest::read(left.at(8..16), region.remote(4088)));
    assert!(left.is_all(8..16, 7));
    let real = RemoteMemory {
        addr: region.address(),
        key: region.remote_key(),
    };
    left.expect(WorkRequest::read(left.at(0..8), real), C::RemoteAccess);
}
