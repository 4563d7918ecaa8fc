//! READs that run while their key is taken away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use verbline_verbs::{Access, Binding, CompletionStatus as C, QpState, WindowType, WorkRequest};

use super::case::{Section, case};
use super::device::{Device, Kind};
use super::end::{connect, everything, pair, rc};
use super::memory_windows::{bound, granted, window};
use super::seed::Random;

pub(crate) const CASES: Section = Section {
    topic: "withdrawn keys",
    cases: &[case!(
        a_read_that_succeeds_saw_nothing_from_after_its_key,
        "specification: memory windows; ordering"
    )],
};

/// Number of bytes that the owner overwrites: those that a READ comes to last.
const LAST: usize = 64;

/// The owner of the memory overwrites its end as soon as the key is gone: a READ that is then in the
/// middle of it comes to the new bytes. One READ follows the other without a pause, into two places
/// in turns, so that one of them is under way then, and is found if it succeeds.
fn a_read_that_succeeds_saw_nothing_from_after_its_key(device: &Device) {
    let (len, rounds) = match device.kind {
        Kind::Soft => (8 << 20, 40),
        _ => (256 << 10, 5),
    };
    let mut random = Random::new();
    let (mut left, mut right) = pair(rc());
    let rights = everything() | Access::MW_BIND;
    let from = right.domain.expose(len, rights).unwrap();
    let into = [(); 2].map(|()| left.domain.expose(len, rights).unwrap());
    for round in 1..=rounds {
        from.write(len - LAST, &[0; LAST]).unwrap();
        let window = window(&right, WindowType::Type2);
        let binding = Binding::new(&from, 0..len, granted());
        let remote = bound(&mut right, &window, &binding);
        let has_begun = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                let status = loop {
                    let element = into[number % 2].element(0..len).unwrap();
                    let seen = left.run(WorkRequest::read(element, remote));
                    if seen.status != C::Success {
                        break seen.status;
                    }
                    number += 1;
                    has_begun.store(true, Ordering::Release);
                };
                assert_eq!(status, C::RemoteAccess);
                let last = into[(number - 1) % 2].to_vec(len - LAST..len).unwrap();
                assert_eq!(last, [0; LAST], "READ {number} of round {round}");
            });
            while !has_begun.load(Ordering::Acquire) {
                thread::yield_now();
            }
            thread::sleep(Duration::from_micros(random.below(3_000) as u64));
            right.succeed(WorkRequest::local_invalidate(remote.key));
            from.write(len - LAST, &[1; LAST]).unwrap();
        });
        left.go(QpState::Reset);
        right.go(QpState::Reset);
        let options = (left.options, right.options);
        connect((&mut left.qp, options.0), (&mut right.qp, options.1));
    }
}
