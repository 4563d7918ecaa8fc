//! The first and the last byte of regions and windows: what begins one byte before or ends one byte
//! behind them is refused, and what ends with them is not.

use std::ops::Range;

use verbline_verbs::{
    Access, Binding, CompletionStatus as C, ExposedMemory, MemoryWindow, RemoteMemory, WindowType,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::{Device, Kind};
use super::end::{End, LEN, everything, pair, rc};
use super::memory_windows::{bound, granted, window};
use super::protection::Op;
use super::protection_local::{User, raw};

pub(crate) const CASES: Section = Section {
    topic: "ends of memory",
    cases: &[
        case!(
            one_byte_past_the_end_and_before_the_start_is_refused,
            "specification: protection checks; memory windows"
        ),
        case!(
            one_byte_past_the_end_and_before_the_start_fails_here,
            "specification: protection checks"
        ),
    ],
};

const PAGE: usize = 4096;

/// Memory that a peer may use.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// A region of this length.
    Region(usize),
    /// A window of this length that begins one byte behind the first page of its region, so that
    /// aligned bytes may begin one byte before it.
    Window(WindowType, usize),
}

fn shapes(device: &Device) -> Vec<Shape> {
    let mut shapes = vec![
        Shape::Region(PAGE),
        // An aligned number may end one byte behind it.
        Shape::Window(WindowType::Type2, 4102),
    ];
    if device.kind == Kind::Soft {
        shapes.push(Shape::Region(3 * PAGE));
        let lens = [1, 4095, 4097];
        shapes.extend(lens.map(|len| Shape::Window(WindowType::Type2, len)));
        shapes.extend([4096, 4102].map(|len| Shape::Window(WindowType::Type1, len)));
    }
    shapes
}

/// Returns lengths of requests. Of long ones, network devices transfer the packets before the one
/// that is wrong.
fn lens(device: &Device) -> &'static [usize] {
    match device.kind {
        Kind::Soft => &[1, 8, 4096],
        _ => &[8],
    }
}

impl Shape {
    /// Makes the memory at this end. Returns the region, the range of it that may be used, and how
    /// a peer names the first byte of the region with the key of the shape.
    fn make(
        self,
        end: &mut End,
    ) -> (
        ExposedMemory,
        Range<usize>,
        RemoteMemory,
        Option<MemoryWindow>,
    ) {
        match self {
            Self::Region(len) => {
                let region = end.expose(len, everything(), 2);
                // `soft` rounds regions up to whole pages, and says so.
                let (whole, remote) = (0..region.len(), region.remote(0));
                (region, whole, remote, None)
            }
            Self::Window(window_type, len) => {
                let region = end.expose(3 * PAGE, everything() | Access::MW_BIND, 2);
                let part = PAGE + 1..PAGE + 1 + len;
                let window = window(end, window_type);
                let binding = Binding::new(&region, part.clone(), granted());
                let RemoteMemory { key, .. } = bound(end, &window, &binding);
                let remote = RemoteMemory {
                    key,
                    ..region.remote(0)
                };
                (region, part, remote, Some(window))
            }
        }
    }
}

fn one_byte_past_the_end_and_before_the_start_is_refused(device: &Device) {
    for shape in shapes(device) {
        for op in Op::ALL {
            for &len in lens(device) {
                for is_past in [true, false] {
                    beyond(device, shape, op, len, is_past);
                }
            }
        }
    }
}

/// Makes a request that ends with the memory, or begins with it, and one that is a byte beyond.
fn beyond(device: &Device, shape: Shape, op: Op, len: usize, is_past: bool) {
    let (mut left, mut right) = pair(rc());
    let (region, part, remote, _window) = shape.make(&mut right);
    let (inside, outside) = match is_past {
        true => (part.end.wrapping_sub(len), (part.end + 1).wrapping_sub(len)),
        false => (part.start, part.start.wrapping_sub(1)),
    };
    let is_atomic = !matches!(op, Op::Write | Op::Read);
    // One end alone is to be wrong.
    if len > part.len() + 1 || (is_atomic && (len != 8 || outside % 8 != 0)) {
        return;
    }
    let at = |offset: usize| remote.offset(offset as u64);
    let what = format!("{op:?} of {len} bytes, past the end: {is_past}, {shape:?}");
    if len <= part.len() && !is_atomic {
        left.fill(0..len, 2);
        let inside = op.request(left.at(0..len), at(inside));
        assert_eq!(
            left.run_with(&mut right, inside).status,
            C::Success,
            "{what}"
        );
    }
    left.fill(0..len, 1);
    let outside = op.request(left.at(0..len), at(outside));
    let status = match shape {
        Shape::Region(_) => C::RemoteAccess,
        Shape::Window(..) => device.deviates(&rxe::WINDOW_BOUNDS, C::RemoteAccess, C::Success),
    };
    assert_eq!(left.run_with(&mut right, outside).status, status, "{what}");
    if status != C::Success {
        let bytes = region.to_vec(0..region.len()).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 2), "{what}: nothing went");
        assert!(left.is_all(0..len, 1), "{what}: nothing came");
    }
}

fn one_byte_past_the_end_and_before_the_start_fails_here(device: &Device) {
    let users = [
        User::Send,
        User::Write,
        User::Read,
        User::FetchAndAdd,
        User::Receive,
    ];
    let regions: &[_] = match device.kind {
        Kind::Soft => &[PAGE, 3 * PAGE],
        _ => &[PAGE],
    };
    for &region_len in regions {
        for user in users {
            for &len in lens(device) {
                for is_past in [true, false] {
                    if user != User::FetchAndAdd || len == 8 {
                        beyond_own(device, user, region_len, len, is_past);
                    }
                }
            }
        }
    }
}

fn beyond_own(device: &Device, user: User, region_len: usize, len: usize, is_past: bool) {
    let (mut left, mut right) = pair(rc());
    left.fill(0..len, 1);
    let owner = match user {
        User::Receive => &right,
        _ => &left,
    };
    let region = owner.expose(region_len, everything(), 2);
    let offset = match is_past {
        true => region.len() as isize + 1 - len as isize,
        false => -1,
    };
    let element = raw(&region, offset, len, region.local_key());
    let what = format!("{user:?} of {len} bytes, past the end: {is_past}, of {region_len}");
    let ends = (&mut left, &mut right);
    user.is_refused(device, ends, (element, len), C::LocalProtection, &what);
    let bytes = region.to_vec(0..region.len()).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 2), "{what}: nothing came");
    assert!(right.is_all(0..LEN, 0), "{what}: nothing went");
}
