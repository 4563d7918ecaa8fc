//! Keys of which one bit is wrong: whatever part of a key a device looks at, it has to look at all.

use verbline_verbs::{
    CompletionStatus as C, LocalKey, MemoryWindow, QpState, QpType, RemoteKey, RemoteMemory,
    WindowType,
};

use super::case::{Section, case};
use super::device::{Device, Kind};
use super::end::{End, pair, rc};
use super::memory_windows::with_window;
use super::protection::Op;
use super::protection_local::{User, raw, unreadable};
use super::seed::Random;
use super::unreliable_side::{self, HEADER_LEN, Making, QKEY, RECEIVE_OFFSET};

pub(crate) const CASES: Section = Section {
    topic: "keys with one flipped bit",
    cases: &[
        case!(
            a_key_with_one_flipped_bit_is_refused,
            "specification: protection checks"
        ),
        case!(
            a_local_key_with_one_flipped_bit_is_refused,
            "specification: protection checks"
        ),
        case!(
            a_q_key_with_one_flipped_bit_is_dropped,
            "specification: status codes"
        ),
    ],
};

/// Returns the bits of a key that are tried: all of 32, or a random one for operations that take
/// the same way as others, and on devices that are not `soft`.
fn bits(device: &Device, are_all: bool, random: &mut Random) -> Vec<u32> {
    match device.kind {
        Kind::Soft if are_all => (0..32).collect(),
        _ => vec![random.below(32) as u32],
    }
}

/// Creates two ends. Returns them with the description of the right one's memory: by its own key,
/// or through a window.
fn exposed(window: Option<WindowType>) -> (End, End, RemoteMemory, Option<MemoryWindow>) {
    match window {
        None => {
            let (left, right) = pair(rc());
            let remote = right.remote(4096);
            (left, right, remote, None)
        }
        Some(window_type) => {
            let (left, right, window, remote) = with_window(window_type);
            (left, right, remote, Some(window))
        }
    }
}

fn a_key_with_one_flipped_bit_is_refused(device: &Device) {
    let mut random = Random::new();
    for window in [None, Some(WindowType::Type1), Some(WindowType::Type2)] {
        for op in Op::ALL {
            let is_like_type_2 = window == Some(WindowType::Type1);
            let are_all = matches!(op, Op::Write | Op::Read) && !is_like_type_2;
            for bit in bits(device, are_all, &mut random) {
                let (mut left, mut right, remote, _window) = exposed(window);
                left.fill(0..8, 1);
                right.fill(4096..4104, 2);
                let key = RemoteKey(remote.key.0 ^ 1 << bit);
                let place = RemoteMemory { key, ..remote };
                let what = format!("{op:?}, {window:?}, bit {bit} of {:?}", remote.key);
                let request = op.request(left.at(0..8), place);
                let status = left.run_with(&mut right, request).status;
                assert_eq!(status, C::RemoteAccess, "{what}");
                right.wait_for_state(QpState::Error);
                let is_unchanged = left.is_all(0..8, 1) && right.is_all(4096..4104, 2);
                assert!(is_unchanged, "{what}");
            }
        }
    }
}

fn a_local_key_with_one_flipped_bit_is_refused(device: &Device) {
    let mut random = Random::new();
    let users = [
        (User::Send, 8),
        (User::Send, 1000),
        (User::Write, 8),
        (User::Read, 8),
        (User::FetchAndAdd, 8),
        (User::Receive, 8),
        (User::Receive, 1000),
    ];
    for (user, len) in users {
        let are_all = user != User::FetchAndAdd;
        for bit in bits(device, are_all, &mut random) {
            let (mut left, mut right) = pair(rc());
            left.fill(0..len, 1);
            right.fill(0..len, 2);
            let memory = user.memory(&left, &right);
            let key = LocalKey(memory.local_key().0 ^ 1 << bit);
            let element = raw(memory, 0, len, key);
            let what = format!("{user:?} of {len} bytes, bit {bit} of {key:?}");
            let ends = (&mut left, &mut right);
            user.is_refused(device, ends, (element, len), unreadable(device), &what);
            assert!(
                left.is_all(0..len, 1) && right.is_all(0..len, 2),
                "{what}: nothing came"
            );
        }
    }
}

/// The highest bit of a key stands for the sender's own.
fn a_q_key_with_one_flipped_bit_is_dropped(_: &Device) {
    let (mut left, mut right) = unreliable_side::pair(Making::new(QpType::UnreliableDatagram));
    let place = RECEIVE_OFFSET..RECEIVE_OFFSET + HEADER_LEN + 100;
    right.receive(place);
    let (handle, to) = (left.handle(), right.qp.qp_num());
    for bit in 0..31 {
        let request = left.message(0..1 + bit, 1).signaled();
        left.post(request.to(&handle, to, QKEY ^ 1 << bit));
        left.wait_one();
    }
    let request = left.message(0..100, 2).signaled();
    left.post(request.to(&handle, to, QKEY));
    left.wait_one();
    // The length of another one would tell its bit.
    let expected = unreliable_side::Seen::datagram(100, &left);
    assert_eq!(right.wait_one(), expected);
    right.assert_quiet();
}
