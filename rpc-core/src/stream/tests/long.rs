//! Long messages between two ends: their order, their room, and their ends.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use proptest::prelude::*;

use super::{Bytes, DECODE, Task, Wire};
use crate::call_error::{CallError, Cause, Execution};
use crate::limits::LengthLimit;
use crate::status::Code;
use crate::stream::end::StreamEnd;
use crate::stream::long::{LONG_MESSAGE_CHARGE, LONG_READ_AHEAD};
use crate::stream::request::request_pump;
use crate::stream::sender::{SendError, Sender, sender};
use crate::stream::streaming::Streaming;
use crate::stream::window::WindowExceeded;

const FRAME: usize = 64;
const WINDOW: u32 = 8 * LONG_MESSAGE_CHARGE;
const LONGEST: usize = 10_000;

fn wire() -> Wire {
    let mut wire = Wire::new(FRAME, WINDOW, true).with_long_messages(LONGEST);
    wire.attach();
    wire
}

/// A message with a number, which is long if it has more than [`FRAME`] bytes.
fn message(number: usize, len: usize) -> Vec<u8> {
    let mut message = vec![number as u8; len.max(1)];
    message[0] = number as u8 & 0x7f;
    message
}

type Read = Poll<Option<Vec<u8>>>;

fn read(messages: &mut Streaming<Vec<u8>>) -> Read {
    let mut cx = Context::from_waker(Waker::noop());
    pin!(messages.message()).poll(&mut cx).map(Result::unwrap)
}

/// Sends from the client while there is room. Returns what is left.
fn send(wire: &mut Wire, lens: &[usize]) -> Sender<Vec<u8>> {
    let (mut sender, messages) = sender();
    let mut pump = request_pump::<Bytes, _, _>(Arc::clone(&wire.ends[0]), messages);
    let mut cx = Context::from_waker(Waker::noop());
    for (number, len) in lens.iter().enumerate() {
        assert!(pump.as_mut().poll(&mut cx).is_pending());
        let sent = pin!(sender.send(message(number, *len))).poll(&mut cx);
        assert_eq!(sent, Poll::Ready(Ok(())), "message {number}");
        wire.run(usize::MAX);
    }
    // The link with the call lives as long as the call.
    Box::leak(Box::new(pump));
    sender
}

#[test]
fn what_is_behind_a_long_message_waits_for_it() {
    let mut wire = wire();
    let mut messages = Streaming::of_client(Arc::clone(&wire.ends[1]), DECODE);
    let sender = send(&mut wire, &[3, 500, 4, 5, 600, 6]);
    drop(sender);
    wire.run(usize::MAX);
    assert_eq!(wire.under_way.len(), 2);
    assert_eq!(read(&mut messages), Poll::Ready(Some(message(0, 3))));
    assert_eq!(read(&mut messages), Poll::Pending);
    // Out of order.
    wire.complete(1);
    assert_eq!(read(&mut messages), Poll::Pending);
    wire.complete(0);
    for (number, len) in [(1, 500), (2, 4), (3, 5), (4, 600), (5, 6)] {
        assert_eq!(read(&mut messages), Poll::Ready(Some(message(number, len))));
    }
    assert_eq!(read(&mut messages), Poll::Ready(None));
}

#[test]
fn an_end_waits_for_the_long_messages_before_it() {
    let mut wire = wire();
    let mut messages = Streaming::of_server(Arc::clone(&wire.ends[0]), DECODE);
    assert_eq!(wire.ends[0].lock().inbound.receive_long(7), Ok(true));
    wire.respond(0, 0, false, &[]);
    assert_eq!(read(&mut messages), Poll::Pending);
    wire.under_way.push((0, 7, message(1, 90).into()));
    wire.complete(0);
    assert_eq!(read(&mut messages), Poll::Ready(Some(message(1, 90))));
    assert_eq!(read(&mut messages), Poll::Ready(None));
}

#[test]
fn an_error_of_this_side_does_not_wait_for_a_long_message() {
    let mut wire = wire();
    let mut messages = Streaming::of_server(Arc::clone(&wire.ends[0]), DECODE);
    for number in [0, 1] {
        assert_eq!(wire.ends[0].lock().inbound.receive_long(number), Ok(true));
    }
    wire.under_way.push((0, 0, message(1, 90).into()));
    wire.complete(0);
    // It has crossed the deadline.
    wire.respond(0, 0, false, &[]);
    let error = CallError::new(
        Cause::DeadlineExceeded { latest: None },
        Execution::MayHaveRun,
    );
    wire.ends[0].end(StreamEnd::Failed(error));
    assert_eq!(read(&mut messages), Poll::Ready(Some(message(1, 90))));
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Err(error)) = pin!(messages.message()).poll(&mut cx) else {
        panic!("the call has failed");
    };
    assert_eq!(error.code(), Code::DeadlineExceeded);
}

#[test]
fn nothing_behind_a_message_that_its_sender_gave_up_is_read() {
    let mut wire = wire();
    let mut messages = Streaming::of_client(Arc::clone(&wire.ends[1]), DECODE);
    let sender = send(&mut wire, &[3, 500, 4]);
    wire.ends[1].lock().inbound.cut(0);
    drop(sender);
    wire.run(usize::MAX);
    assert_eq!(read(&mut messages), Poll::Ready(Some(message(0, 3))));
    // The half-close behind it must not look like the end of a complete stream.
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Err(error)) = pin!(messages.message()).poll(&mut cx) else {
        panic!("the stream is incomplete");
    };
    assert_eq!(error.code(), Code::Cancelled);
    assert!(
        wire.ends[1]
            .lock()
            .inbound
            .receive_long(9)
            .is_ok_and(|wanted| !wanted)
    );
}

#[test]
fn a_few_long_messages_are_fetched_ahead_of_the_reader() {
    let mut wire = wire();
    let mut messages = Streaming::of_client(Arc::clone(&wire.ends[1]), DECODE);
    let _sender = send(&mut wire, &[100; 5]);
    let next = |wire: &Wire| {
        let mut end = wire.ends[1].lock();
        let next = end.inbound.next_to_fetch()?.transfer;
        end.inbound.begin_to_fetch(next, None);
        Some(next)
    };
    assert_eq!(
        [next(&wire), next(&wire), next(&wire)],
        [Some(0), Some(1), None]
    );
    wire.complete(0);
    assert_eq!(next(&wire), None, "the reader has not taken it");
    let signals = wire.signals.count.load(SeqCst);
    assert_eq!(read(&mut messages), Poll::Ready(Some(message(0, 100))));
    assert_eq!(
        wire.signals.count.load(SeqCst),
        signals + 1,
        "the driver looks"
    );
    assert_eq!([next(&wire), next(&wire)], [Some(2), None]);
    assert_eq!(LONG_READ_AHEAD, 2);
}

#[test]
fn a_reader_that_waits_asks_for_a_message_that_was_not_fetched_ahead_of_it() {
    let mut wire = wire();
    let mut messages = Streaming::of_client(Arc::clone(&wire.ends[1]), DECODE);
    let _sender = send(&mut wire, &[100; 2]);
    let next = |wire: &Wire| wire.ends[1].lock().inbound.next_to_fetch();
    assert!(next(&wire).is_some_and(|next| !next.is_awaited));
    let signals = wire.signals.count.load(SeqCst);
    assert!(read(&mut messages).is_pending());
    assert_eq!(
        wire.signals.count.load(SeqCst),
        signals + 1,
        "the driver looks"
    );
    assert!(next(&wire).is_some_and(|next| next.is_awaited));
    wire.ends[1].lock().inbound.begin_to_fetch(0, None);
    assert!(
        next(&wire).is_some_and(|next| !next.is_awaited),
        "the second"
    );
}

#[test]
fn a_long_message_takes_a_part_of_the_window() {
    let wire = wire();
    let mut state = wire.ends[0].lock();
    for number in 0..8 {
        assert_eq!(state.inbound.receive_long(number), Ok(true));
    }
    let exceeded = WindowExceeded {
        sent: LONG_MESSAGE_CHARGE as usize,
        available: 0,
    };
    assert_eq!(state.inbound.receive_long(8), Err(exceeded));
}

#[test]
fn one_long_message_waits_at_a_time() {
    let mut wire = Wire::new(FRAME, LONG_MESSAGE_CHARGE, true).with_long_messages(LONGEST);
    wire.attach();
    let (mut sender, messages) = sender();
    let mut pump = request_pump::<Bytes, _, _>(Arc::clone(&wire.ends[0]), messages);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pump.as_mut().poll(&mut cx).is_pending());
    let mut send = |number| pin!(sender.send(message(number, 9_000))).poll(&mut cx);
    assert_eq!(send(0), Poll::Ready(Ok(())));
    wire.run(usize::MAX);
    // The window is used up, so this one waits.
    assert_eq!(send(1), Poll::Ready(Ok(())));
    assert_eq!(send(2), Poll::Pending);
    wire.run(usize::MAX);
    assert_eq!(wire.under_way.len(), 1);
    let mut messages = Streaming::of_client(Arc::clone(&wire.ends[1]), DECODE);
    wire.complete(0);
    assert_eq!(read(&mut messages), Poll::Ready(Some(message(0, 9_000))));
    while wire.run(usize::MAX) {}
    assert_eq!(send(2), Poll::Ready(Ok(())));
}

#[test]
fn a_message_beyond_the_limit_fails_with_the_numbers() {
    let mut wire = wire();
    let mut sender = send(&mut wire, &[LONGEST]);
    let mut cx = Context::from_waker(Waker::noop());
    let sent = pin!(sender.send(message(0, LONGEST + 1))).poll(&mut cx);
    let too_long = SendError::TooLong {
        message_len: LONGEST + 1,
        limit: LONGEST,
        exceeded: LengthLimit::Receiver,
    };
    assert_eq!(sent, Poll::Ready(Err(too_long)));
    assert!(wire.ends[0].lock().is_cancelled());
}

#[test]
fn a_reader_that_goes_tells_the_driver() {
    let mut wire = wire();
    let messages = Streaming::of_client(Arc::clone(&wire.ends[1]), DECODE);
    let sender = send(&mut wire, &[100]);
    let signals = wire.signals.count.load(SeqCst);
    drop(messages);
    assert_eq!(wire.signals.count.load(SeqCst), signals + 1);
    assert!(wire.ends[1].lock().inbound.is_discarded());
    drop(sender);
}

/// A stream of messages that are there.
struct Iter(std::vec::IntoIter<Vec<u8>>);

impl Stream for Iter {
    type Item = Vec<u8>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        Poll::Ready(self.0.next())
    }
}

fn lens() -> impl Strategy<Value = Vec<usize>> {
    let len = prop_oneof![4 => 1..FRAME, 1 => FRAME + 1..LONGEST];
    proptest::collection::vec(len, 0..60)
}

proptest! {
    /// Any mix of short and long messages arrives in its order, whenever the long ones are complete.
    #[test]
    fn any_mix_arrives_in_order(lens in lens(), steps in proptest::collection::vec(0..8_usize, 400)) {
        let mut wire = wire();
        let expected: Vec<_> = lens.iter().enumerate().map(|(n, len)| message(n, *len)).collect();
        let received = RefCell::new(Vec::new());
        let requests = Iter(expected.clone().into_iter());
        let pump = request_pump::<Bytes, _, _>(Arc::clone(&wire.ends[0]), requests);
        let mut messages = Streaming::of_client(Arc::clone(&wire.ends[1]), DECODE);
        let mut tasks = [
            Task::new(pump),
            Task::new(async {
                while let Some(message) = messages.message().await.unwrap() {
                    received.borrow_mut().push(message);
                }
            }),
        ];
        let mut steps = steps.into_iter();
        for _ in 0..10_000 {
            match steps.next() {
                Some(step @ (0 | 1)) => drop(tasks[step].run()),
                Some(2 | 3) => drop(wire.run(1)),
                Some(4 | 5) => drop(wire.run(3)),
                Some(_) if wire.under_way.is_empty() => {}
                Some(step) => wire.complete((step - 6) % wire.under_way.len()),
                None => {
                    wire.settle(&mut tasks);
                    match wire.under_way.len() {
                        0 => break,
                        count => wire.complete(count - 1),
                    }
                }
            }
        }
        prop_assert!(tasks.iter().all(Task::is_done));
        drop(tasks);
        prop_assert_eq!(received.into_inner(), expected);
    }
}
