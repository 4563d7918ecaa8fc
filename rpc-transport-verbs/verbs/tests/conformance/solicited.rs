//! Which requests a queue that is armed for solicited completions hears of: all that take a
//! receive, short or long, and only where their sender asks for it.

use std::time::Duration;

use verbline_verbs::{CompletionStatus as C, WindowType, WorkRequest};

use super::case::{Section, case};
use super::device::Device;
use super::end::End;
use super::memory_windows::with_window;
use super::verbs_side::HANG;

pub(crate) const CASES: Section = Section {
    topic: "solicited events",
    cases: &[
        case!(each_solicited_operation_is_heard, "specification: arming"),
        case!(
            of_an_operation_that_is_not_solicited_nothing_is_heard,
            "specification: arming"
        ),
    ],
};

/// Runs each request that takes a receive, solicited or not, with the peer's queue armed. Calls
/// `check` before the completion is polled.
fn each(is_solicited: bool, check: impl Fn(&End, &str)) {
    type Make = fn(&End, &End, usize) -> WorkRequest;
    let send: Make = |left, _, len| WorkRequest::send(left.at(0..len));
    let send_with_imm: Make = |left, _, len| WorkRequest::send_with_imm(left.at(0..len), 5);
    let write_with_imm: Make =
        |left, right, len| WorkRequest::write_with_imm(left.at(0..len), right.remote(0), 5);
    for len in [0, 8, 2000] {
        // The window is for the last one, which takes its key away.
        let (mut left, mut right, _window, remote) = with_window(WindowType::Type2);
        let requests = [
            send(&left, &right, len),
            send_with_imm(&left, &right, len),
            write_with_imm(&left, &right, len),
            WorkRequest::send_with_invalidate(left.at(0..len), remote.key),
        ];
        for request in requests {
            let what = format!("{} of {len} bytes", request.name());
            right.recv(10_000..12_000);
            right.cq.arm(true).unwrap();
            let request = match is_solicited {
                true => request.solicited(),
                false => request,
            };
            left.succeed(request);
            check(&right, &what);
            right.expect_recv(C::Success);
        }
    }
}

fn each_solicited_operation_is_heard(_: &Device) {
    each(true, |right, what| {
        let heard = right.channel.wait(Some(HANG)).unwrap();
        assert!(heard.is_some(), "{what}");
    });
}

/// If the wait is too short, the case misses a fault, but it never fails wrongly.
fn of_an_operation_that_is_not_solicited_nothing_is_heard(_: &Device) {
    each(false, |right, what| {
        let heard = right.channel.wait(Some(Duration::from_millis(5))).unwrap();
        assert_eq!(heard, None, "{what}");
    });
}
