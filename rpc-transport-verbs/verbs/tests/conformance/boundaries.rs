//! Messages of every length at which a device may change its way, in lists of every kind: each byte
//! is compared, and those around it.

use verbline_verbs::{
    Access, CompletionStatus as C, Element, PostErrorReason, QpType, WorkKind, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::{Device, Kind};
use super::end::{End, Options, everything, pair, rc};
use super::lengths::{GUARD, Places, Way, cuts, lengths, message};
use super::seed::Random;

pub(crate) const CASES: Section = Section {
    topic: "boundaries",
    cases: &[
        case!(
            sends_of_every_boundary_length_arrive_whole,
            "the project's own"
        ),
        case!(
            sends_with_immediate_of_every_boundary_length_arrive_whole,
            "the project's own"
        ),
        case!(
            writes_of_every_boundary_length_arrive_whole,
            "the project's own"
        ),
        case!(
            writes_with_immediate_of_every_boundary_length_arrive_whole,
            "the project's own"
        ),
        case!(
            reads_of_every_boundary_length_arrive_whole,
            "the project's own"
        ),
        case!(
            unreliable_messages_of_every_boundary_length_arrive_whole,
            "the project's own"
        ),
        case!(
            a_receive_one_byte_too_short_is_refused_at_every_boundary,
            "specification: completion statuses"
        ),
        case!(
            inline_up_to_the_limit_and_not_beyond,
            "specification: inline"
        ),
        case!(
            atomics_next_to_each_other_leave_their_neighbours,
            "specification: atomics"
        ),
    ],
};

/// Where the parts of a message begin, modulo 64.
const OFFSETS: [usize; 4] = [1, 0, 7, 63];

fn arrive_whole(device: &Device, way: Way) {
    arrive_whole_on(rc(), way, lengths(device));
}

fn arrive_whole_on(options: Options, way: Way, lengths: Vec<usize>) {
    let mut random = Random::new();
    let (mut left, mut right) = pair(options);
    let longest = lengths.last().unwrap() + 8 * GUARD;
    let from = left.expose(longest, everything(), 0);
    let to = right.expose(longest, everything(), 0);
    let mut number = 0;
    for len in lengths {
        for (cut, other) in both_cuts(way, len, &mut random) {
            number += 1;
            let message = message(len, &mut random);
            let what = format!("{way:?} of {len} bytes, {cut:?} and {other:?}");
            let here = Places::new(&from, OFFSETS[number % 4], &cut);
            let there = Places::new(&to, OFFSETS[number / 4 % 4], &other);
            let (source, target) = match way {
                Way::Read => (&there, &here),
                _ => (&here, &there),
            };
            source.put(&message);
            target.clear();
            match way {
                Way::Send | Way::SendWithImm => right.recv_into(there.elements()),
                Way::WriteWithImm => right.recv_into(vec![]),
                Way::Write | Way::Read => {}
            }
            let imm = random.next() as u32;
            let request = way.request(here.elements(), there.remote(), imm);
            let wr_id = left.post(request.signaled());
            // The receiver is polled first: `soft` is slow for a process that does not ask.
            if matches!(way, Way::Send | Way::SendWithImm | Way::WriteWithImm) {
                let received = right.expect_recv(C::Success);
                assert_eq!(received.len, len, "{what}");
                let expected = (way != Way::Send).then_some(imm);
                assert_eq!(received.imm, expected, "{what}");
            }
            let sent = left.one();
            assert_eq!((sent.status, sent.kind), (C::Success, WorkKind::Send));
            assert_eq!(sent.wr_id, wr_id, "{what}");
            if way == Way::Read {
                assert_eq!(sent.len, len, "{what}");
            }
            target.check(&message, &what);
            source.check(&message, &what);
        }
    }
}

/// Returns the ways to cut a message here, each with those at the other end. A receive has all of it
/// in one element, and then in several that are not those of the message.
fn both_cuts(way: Way, len: usize, random: &mut Random) -> Vec<(Vec<usize>, Vec<usize>)> {
    let mut both = Vec::new();
    for cut in cuts(len, random) {
        both.push((cut.clone(), vec![len]));
        if matches!(way, Way::Send | Way::SendWithImm) && len > 1 {
            let mut others = cuts(len, random);
            let other = others.swap_remove(1 + random.below(others.len() - 1));
            both.push((cut, other));
        }
    }
    both
}

fn sends_of_every_boundary_length_arrive_whole(device: &Device) {
    arrive_whole(device, Way::Send);
}

fn sends_with_immediate_of_every_boundary_length_arrive_whole(device: &Device) {
    arrive_whole(device, Way::SendWithImm);
}

fn writes_of_every_boundary_length_arrive_whole(device: &Device) {
    arrive_whole(device, Way::Write);
}

fn writes_with_immediate_of_every_boundary_length_arrive_whole(device: &Device) {
    arrive_whole(device, Way::WriteWithImm);
}

fn reads_of_every_boundary_length_arrive_whole(device: &Device) {
    arrive_whole(device, Way::Read);
}

/// Unreliable connections of `soft` have no slots and pieces, so the longest lengths are no others.
fn unreliable_messages_of_every_boundary_length_arrive_whole(device: &Device) {
    let unreliable = Options {
        qp_type: QpType::UnreliableConnection,
        access: Access::REMOTE_WRITE,
        ..rc()
    };
    let mut lengths = lengths(device);
    lengths.retain(|len| *len < 10_000);
    for way in [Way::SendWithImm, Way::WriteWithImm] {
        arrive_whole_on(unreliable, way, lengths.clone());
    }
}

fn a_receive_one_byte_too_short_is_refused_at_every_boundary(device: &Device) {
    let lengths: &[usize] = match device.kind {
        Kind::Soft => &[1, 2, 8, 9, 64, 65, 240, 241, 1025, 4097, 65_536, 65_537],
        _ => &[1, 9, 1025],
    };
    for &len in lengths {
        let room = len - 1;
        for cut in [vec![room], vec![room / 2, 0, room - room / 2]] {
            let (mut left, mut right) = pair(rc());
            let from = left.expose(len, everything(), 7);
            let to = right.expose(len + 8 * GUARD, everything(), 0);
            let places = Places::new(&to, 1, &cut);
            places.clear();
            right.recv_into(places.elements());
            let what = format!("{len} bytes into {cut:?}");
            too_long(
                device,
                &mut left,
                &mut right,
                from.element(0..len).unwrap(),
                &what,
            );
            // What fits may have been written before the device found that there is more.
            places.check_guards(&what);
        }
    }
}

/// Sends a message that is longer than the receive that is posted.
fn too_long(device: &Device, left: &mut End, right: &mut End, bytes: Element, what: &str) {
    let sent = left.run(WorkRequest::send(bytes)).status;
    let received = right.one();
    assert_eq!(received.kind, WorkKind::Receive);
    let of_the_sender = device.deviates(
        &rxe::RECEIVE_STATUSES,
        C::RemoteInvalidRequest,
        C::RemoteOperation,
    );
    let of_the_receiver =
        device.deviates(&rxe::RECEIVE_STATUSES, C::LocalLength, C::LocalQpOperation);
    assert_eq!(sent, of_the_sender, "{what}");
    assert_eq!(received.status, of_the_receiver, "{what}");
}

fn inline_up_to_the_limit_and_not_beyond(device: &Device) {
    let mut random = Random::new();
    // Between slots and the buffer of a ring, the device goes another way.
    let (wishes, turns): (&[usize], &[usize]) = match device.kind {
        Kind::Soft => (&[0, 1, 1024], &[228, 240]),
        _ => (&[64], &[]),
    };
    for &max_inline_data in wishes {
        let (mut left, mut right) = pair(Options {
            max_inline_data,
            ..rc()
        });
        let limit = left.qp.capabilities().max_inline_data;
        assert!(limit >= max_inline_data);
        let (from, to) = (left.memory.clone(), right.memory.clone());
        for way in [Way::Send, Way::SendWithImm, Way::Write, Way::WriteWithImm] {
            let lengths = turns.iter().chain([&limit]);
            for len in lengths.flat_map(|turn| turn - 1..=turn + 1) {
                for cut in cuts(len, &mut random) {
                    let what = format!("{way:?} of {len} bytes, {cut:?}");
                    let message = message(len, &mut random);
                    let here = Places::new(&from, 7, &cut);
                    let there = Places::new(&to, 1, &[len]);
                    here.put(&message);
                    there.clear();
                    let request = way.request(here.elements(), there.remote(), 5);
                    let request = request.inline();
                    if len > limit {
                        let reason = left.refused(request);
                        let expected = PostErrorReason::InlineTooLong { len, limit };
                        assert_eq!(reason, expected, "{what}");
                        there.check_guards(&what);
                        continue;
                    }
                    if way != Way::Write {
                        right.recv_into(there.elements());
                    }
                    let wr_id = left.post(request.signaled());
                    here.clear();
                    if way != Way::Write {
                        right.expect_recv(C::Success);
                    }
                    let sent = left.one();
                    assert_eq!((sent.status, sent.wr_id), (C::Success, wr_id), "{what}");
                    there.check(&message, &what);
                }
            }
        }
    }
}

/// Cells of the right end's memory: neighbours, those at the ends of pages, and the last.
const CELLS: [usize; 8] = [0, 8, 16, 4080, 4088, 4096, 4104, 8184];

/// The result goes into two elements at any address, whatever the length of the first.
fn atomics_next_to_each_other_leave_their_neighbours(_: &Device) {
    let mut random = Random::new();
    let (mut left, right) = pair(rc());
    let results = left.memory.clone();
    let mut cells = message(8192, &mut random);
    right.memory.write(0, &cells).unwrap();
    for round in 0..2 * CELLS.len() {
        let cell = CELLS[round % CELLS.len()];
        let range = cell..cell + 8;
        let was: [u8; 8] = cells[range.clone()].try_into().unwrap();
        let value = u64::from_ne_bytes(was);
        let first = round % 9;
        let result = Places::new(&results, OFFSETS[round % 4], &[first, 8 - first]);
        result.clear();
        let (remote, other) = (right.remote(cell), random.next());
        let (request, becomes) = match round % 3 {
            0 => (
                WorkRequest::fetch_and_add(result.elements(), remote, other),
                value.wrapping_add(other),
            ),
            1 => (
                WorkRequest::compare_and_swap(result.elements(), remote, value, other),
                other,
            ),
            // What is there differs in one bit from what is expected, so it stays.
            _ => {
                let expected = value ^ 1 << random.below(64);
                let request =
                    WorkRequest::compare_and_swap(result.elements(), remote, expected, other);
                (request, value)
            }
        };
        let what = format!("round {round}, {} at {cell}", request.name());
        let seen = left.run(request);
        assert_eq!((seen.status, seen.len), (C::Success, 8), "{what}");
        result.check(&was, &what);
        cells[range].copy_from_slice(&becomes.to_ne_bytes());
        assert!(right.bytes(0..8192) == cells, "{what}");
    }
}
