//! Memory regions: what can be registered, with which rights, and that keys are not reused.

use std::collections::HashSet;

use verbline_verbs::{Access, CompletionStatus as C, RemoteMemory, VerbsError, WorkRequest};

use super::case::{Section, case};
use super::device::Device;
use super::end::{End, everything, pair, rc};
use super::protection::Op;

pub(crate) const CASES: Section = Section {
    topic: "memory regions",
    cases: &[
        case!(
            a_region_of_no_bytes_is_refused,
            "specification: creation parameters; buffer_test: RegisterZeroByteMr"
        ),
        case!(
            remote_write_needs_local_write,
            "specification: creation parameters; mr_test: RemoteWriteWithoutLocalWrite"
        ),
        case!(
            remote_atomic_needs_local_write,
            "specification: creation parameters; mr_test: RemoteAtomicWithoutLocalWrite"
        ),
        case!(
            remote_read_does_without_local_write,
            "specification: creation parameters"
        ),
        case!(
            registered_memory_is_zeroed_and_as_long_as_asked_for,
            "specification: creation parameters"
        ),
        case!(
            regions_of_one_byte_are_regions,
            "specification: creation parameters"
        ),
        case!(keys_of_regions_that_are_there_differ, "specification: keys"),
        case!(
            a_key_of_a_region_that_is_gone_names_no_later_one,
            "specification: keys"
        ),
        case!(
            a_key_that_was_given_up_is_not_given_out_at_once,
            "specification: keys"
        ),
        case!(
            a_region_of_many_megabytes_is_reached_at_its_ends,
            "specification: protection checks"
        ),
        case!(
            a_long_request_past_the_end_of_a_region_moves_not_one_byte,
            "specification: protection checks; completion statuses"
        ),
        case!(
            regions_are_independent,
            "specification: creation parameters"
        ),
        case!(
            what_is_written_here_is_what_the_peer_reads,
            "specification: visibility"
        ),
        case!(
            rights_that_are_rare_are_given_or_named,
            "specification: access flags"
        ),
        case!(
            a_zero_based_region_is_named_by_its_address_here,
            "specification: access flags"
        ),
        case!(
            copies_outside_of_a_region_are_stopped_here,
            "specification: protection checks"
        ),
    ],
};

fn a_region_of_no_bytes_is_refused(_: &Device) {
    let end = End::new(rc());
    for error in [
        end.domain.expose(0, everything()).map(drop),
        end.domain.register(0, Access::LOCAL_WRITE).map(drop),
    ] {
        let error = error.unwrap_err();
        assert!(
            matches!(
                error,
                VerbsError::OutOfRange {
                    parameter: "len",
                    ..
                }
            ),
            "{error}"
        );
    }
}

fn needs_local_write(access: Access) {
    let end = End::new(rc());
    let error = end.domain.expose(4096, access).unwrap_err();
    assert!(
        matches!(error, VerbsError::RemoteWithoutLocalWrite),
        "{error}"
    );
    end.domain
        .expose(4096, access | Access::LOCAL_WRITE)
        .unwrap();
}

fn remote_write_needs_local_write(_: &Device) {
    needs_local_write(Access::REMOTE_WRITE);
}

fn remote_atomic_needs_local_write(_: &Device) {
    needs_local_write(Access::REMOTE_ATOMIC);
}

fn remote_read_does_without_local_write(_: &Device) {
    let (mut left, right) = pair(rc());
    let region = right.expose(4096, Access::REMOTE_READ, 7);
    left.succeed(WorkRequest::read(left.at(0..8), region.remote(0)));
    assert!(left.is_all(0..8, 7));
}

fn registered_memory_is_zeroed_and_as_long_as_asked_for(_: &Device) {
    let end = End::new(rc());
    for len in [1, 63, 4096, 4097, 100_000] {
        let region = end.domain.expose(len, everything()).unwrap();
        assert!(region.len() >= len);
        assert!(
            region
                .to_vec(0..region.len())
                .unwrap()
                .iter()
                .all(|byte| *byte == 0)
        );
        region.write(0, &vec![7; len]).unwrap();
        assert!(region.to_vec(0..len).unwrap().iter().all(|byte| *byte == 7));
    }
}

/// If the device provides the right, it has to work.
fn rights_that_are_rare_are_given_or_named(_: &Device) {
    let (mut left, right) = pair(rc());
    for (right_asked, name) in [
        (Access::RELAXED_ORDERING, "RELAXED_ORDERING"),
        (Access::HUGETLB, "HUGETLB"),
        (Access::ON_DEMAND, "ON_DEMAND"),
        (Access::FLUSH_GLOBAL, "FLUSH_GLOBAL"),
        (Access::FLUSH_PERSISTENT, "FLUSH_PERSISTENT"),
    ] {
        match right.domain.expose(4096, everything() | right_asked) {
            Ok(region) => {
                left.fill(0..8, 9);
                left.post(WorkRequest::write(left.at(0..8), region.remote(8)));
                left.succeed(WorkRequest::read(left.at(8..16), region.remote(8)));
                assert!(left.is_all(8..16, 9), "{name}");
            }
            Err(VerbsError::NotSupported { what, .. }) => assert!(what.contains(name), "{what}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Peers use addresses that start at 0.
fn a_zero_based_region_is_named_by_its_address_here(_: &Device) {
    let (mut left, right) = pair(rc());
    let region = left.expose(4096, everything() | Access::ZERO_BASED, 5);
    let from = region.element(16..24).unwrap();
    left.succeed(WorkRequest::write(from, right.remote(0)));
    right.becomes(0..8, 5);
    right.fill(0..8, 6);
    let to = region.element(32..40).unwrap();
    left.succeed(WorkRequest::read(to, right.remote(0)));
    assert_eq!(region.to_vec(32..40).unwrap(), [6; 8]);
}

fn regions_of_one_byte_are_regions(_: &Device) {
    let (mut left, right) = pair(rc());
    let (from, to) = (
        left.expose(1, everything(), 7),
        right.expose(1, everything(), 0),
    );
    left.succeed(WorkRequest::write(
        from.element(0..1).unwrap(),
        to.remote(0),
    ));
    left.succeed(WorkRequest::read(left.at(0..1), to.remote(0)));
    assert_eq!(
        (left.bytes(0..1), to.to_vec(0..1).unwrap()),
        (vec![7], vec![7])
    );
}

fn keys_of_regions_that_are_there_differ(_: &Device) {
    let end = End::new(rc());
    let regions: Vec<_> = (0..200)
        .map(|_| end.domain.expose(4096, everything()).unwrap())
        .collect();
    let remote: HashSet<_> = regions.iter().map(|region| region.remote_key()).collect();
    let local: HashSet<_> = regions.iter().map(|region| region.local_key()).collect();
    assert_eq!((remote.len(), local.len()), (200, 200));
}

fn a_key_that_was_given_up_is_not_given_out_at_once(_: &Device) {
    let end = End::new(rc());
    let mut last = None;
    for _ in 0..100 {
        let region = end.domain.expose(4096, everything()).unwrap();
        let key = region.remote_key();
        assert_ne!(Some(key), last);
        last = Some(key);
        region.deregister().unwrap();
    }
}

fn a_region_of_many_megabytes_is_reached_at_its_ends(_: &Device) {
    const LONG: usize = 16 << 20;
    let (mut left, right) = pair(rc());
    let region = right.domain.expose(LONG, everything()).unwrap();
    left.fill(0..8, 7);
    for offset in [0, LONG / 2 - 4, LONG - 8] {
        left.succeed(WorkRequest::write(left.at(0..8), region.remote(offset)));
        left.succeed(WorkRequest::read(left.at(8..16), region.remote(offset)));
        assert!(left.is_all(8..16, 7));
        assert_eq!(region.to_vec(offset..offset + 8).unwrap(), [7; 8]);
    }
    let beyond = region.remote(0).offset(region.len() as u64 - 7);
    left.expect(WorkRequest::write(left.at(0..8), beyond), C::RemoteAccess);
}

/// The range is checked as a whole, before the first of the request's many packets.
fn a_long_request_past_the_end_of_a_region_moves_not_one_byte(_: &Device) {
    const LONG: usize = 200_000;
    // A whole number of pages, so the region is exactly as long as requested.
    const REGION: usize = 1 << 18;
    for op in [Op::Read, Op::Write] {
        let (mut left, right) = pair(rc());
        let local = left.expose(LONG, everything(), 1);
        let region = right.expose(REGION, everything(), 2);
        let place = region.remote(REGION - LONG);
        let element = || local.element(0..LONG).unwrap();
        left.expect(op.request(element(), place.offset(1)), C::RemoteAccess);
        let (here, there) = (local.to_vec(0..LONG), region.to_vec(0..REGION));
        assert!(here.unwrap().iter().all(|byte| *byte == 1), "{op:?}");
        assert!(there.unwrap().iter().all(|byte| *byte == 2), "{op:?}");
    }
}

fn regions_are_independent(_: &Device) {
    let (mut left, right) = pair(rc());
    let regions: Vec<_> = (0..20)
        .map(|index| right.expose(4096, everything(), index))
        .collect();
    for (index, region) in regions.iter().enumerate().rev() {
        left.succeed(WorkRequest::read(left.at(0..4096), region.remote(0)));
        assert!(left.is_all(0..4096, index as u8));
        left.fill(0..4096, 100 + index as u8);
        left.succeed(WorkRequest::write(left.at(0..2048), region.remote(1024)));
    }
    left.succeed(WorkRequest::read(left.at(0..8), right.remote(0)));
    for (index, region) in regions.iter().enumerate() {
        let bytes = region.to_vec(0..4096).unwrap();
        let old = index as u8;
        assert!(bytes[..1024].iter().all(|byte| *byte == old));
        assert!(bytes[1024..3072].iter().all(|byte| *byte == old + 100));
        assert!(bytes[3072..].iter().all(|byte| *byte == old));
    }
}

fn what_is_written_here_is_what_the_peer_reads(_: &Device) {
    let (mut left, right) = pair(rc());
    for round in 0..100 {
        right.fill(0..300, round);
        left.succeed(WorkRequest::read(left.at(0..300), right.remote(0)));
        assert!(left.is_all(0..300, round), "{round}");
    }
}

fn copies_outside_of_a_region_are_stopped_here(_: &Device) {
    let end = End::new(rc());
    let region = end.domain.expose(4096, everything()).unwrap();
    let len = region.len();
    let refused = |result: Result<(), VerbsError>, says: &str| {
        let error = result.unwrap_err();
        assert!(matches!(error, VerbsError::OutOfRange { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("ExposedMemory::{says}"));
    };
    let ends_late = |call, start| {
        let end = len + 1;
        format!("{call}: the end = {end} is outside {start}..={len}")
    };
    let start = len - 3;
    refused(region.write(start, &[0; 4]), &ends_late("write", start));
    refused(region.read(start, &mut [0; 4]), &ends_late("read", start));
    refused(
        region.to_vec(start..len + 1).map(drop),
        &ends_late("to_vec", start),
    );
    refused(
        region.element(len..len + 1).map(drop),
        &ends_late("element", len),
    );
    refused(
        region.atomic(len - 7).map(drop),
        &ends_late("atomic", len - 7),
    );
    refused(
        region.read(usize::MAX, &mut [0; 2]),
        &format!("read: the first byte = {} is outside 0..={len}", usize::MAX),
    );
    let error = region.atomic(len - 12).unwrap_err();
    assert!(matches!(error, VerbsError::Misaligned { .. }), "{error:?}");
    let says = format!(
        "ExposedMemory::atomic: offset = {} is not a multiple of 8",
        len - 12
    );
    assert_eq!(error.to_string(), says);
    // An empty range at the very end is valid.
    region.write(len, &[]).unwrap();
    assert_eq!(region.to_vec(0..len).unwrap(), vec![0; len]);
}

fn a_key_of_a_region_that_is_gone_names_no_later_one(_: &Device) {
    for op in Op::ALL {
        let (mut left, right) = pair(rc());
        let old = right.expose(4096, everything(), 0);
        let key = old.remote_key();
        old.deregister().unwrap();
        // A device may give one of them the place of the old region in its tables.
        let new = (0..4).map(|_| right.expose(4096, everything(), 7));
        let new: Vec<_> = new.collect();
        left.fill(0..8, 1);
        let place = RemoteMemory {
            key,
            ..new[0].remote(0)
        };
        left.expect(op.request(left.at(0..8), place), C::RemoteAccess);
        assert!(left.is_all(0..8, 1), "{op:?}: nothing came");
        for region in &new {
            let bytes = region.to_vec(0..region.len()).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 7), "{op:?}: nothing went");
        }
    }
}
