//! The ends of streams, and what breaks them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Waker};

use prost::Message;

use super::{Bytes, DECODE, Task, Wire, now};
use crate::call_error::{CallError, Cause, Execution};
use crate::limits::LengthLimit;
use crate::message::Response;
use crate::metadata::Metadata;
use crate::protocol::frame::StatusBody;
use crate::status::{Code, Status};
use crate::stream::batch::MessageForm;
use crate::stream::end::StreamEnd;
use crate::stream::from_fn::stream;
use crate::stream::request::request_pump;
use crate::stream::responses::Responses;
use crate::stream::sender::{SendError, sender};
use crate::stream::streaming::Streaming;
use crate::stream::window::WindowExceeded;

type Read = Poll<Result<Option<Vec<u8>>, CallError>>;

fn read(messages: &mut Streaming<Vec<u8>>) -> Read {
    let mut cx = Context::from_waker(Waker::noop());
    pin!(messages.message()).poll(&mut cx)
}

fn attached() -> Wire {
    let mut wire = Wire::new(64, 256, true);
    wire.attach();
    wire
}

fn metadata(key: &str) -> (Metadata, Vec<u8>) {
    let mut metadata = Metadata::new();
    metadata.insert(key, "value").unwrap();
    let mut bytes = vec![0; metadata.encoded_len()];
    metadata.encode(&mut bytes);
    (metadata, bytes)
}

#[test]
fn a_stream_ends_after_its_messages_with_the_trailing_metadata_of_the_response() {
    let wire = attached();
    let mut messages = Streaming::of_server(Arc::clone(&wire.ends[0]), DECODE);
    wire.inject(0, MessageForm::One, b"one");
    let (trailing, bytes) = metadata("trailing");
    wire.respond(0, bytes.len() as u16, false, &bytes);
    assert!(matches!(read(&mut messages), Poll::Ready(Ok(Some(message))) if message == b"one"));
    for _ in 0..3 {
        assert!(matches!(read(&mut messages), Poll::Ready(Ok(None))));
    }
    assert_eq!(now(messages.trailers()).unwrap(), trailing);
    drop(messages);
    assert!(!wire.ends[0].lock().is_cancelled());
}

#[test]
fn a_status_ends_a_stream_once() {
    let wire = attached();
    let mut messages = Streaming::of_server(Arc::clone(&wire.ends[0]), DECODE);
    let body = StatusBody {
        message: "no".to_owned(),
        details: bytes::Bytes::new(),
    };
    wire.respond(Code::NotFound.number(), 0, false, &body.encode_to_vec());
    let Poll::Ready(Err(error)) = read(&mut messages) else {
        panic!("the stream has failed");
    };
    assert_eq!(
        (error.code(), error.execution()),
        (Code::NotFound, Execution::Answered)
    );
    assert!(matches!(read(&mut messages), Poll::Ready(Ok(None))));
    assert_eq!(now(messages.trailers()).unwrap_err().code(), Code::NotFound);
}

#[test]
fn a_failure_of_this_side_ends_a_stream_with_its_execution() {
    let wire = attached();
    let mut messages = Streaming::of_server(Arc::clone(&wire.ends[0]), DECODE);
    let error = CallError::new(
        Cause::DeadlineExceeded { latest: None },
        Execution::NeverSent,
    );
    wire.ends[0].end(StreamEnd::Failed(error));
    assert!(
        matches!(read(&mut messages), Poll::Ready(Err(error)) if error.execution() == Execution::NeverSent)
    );
    assert!(matches!(read(&mut messages), Poll::Ready(Ok(None))));
}

#[test]
fn a_response_without_messages_has_both_metadata() {
    let wire = attached();
    let mut messages = Streaming::of_server(Arc::clone(&wire.ends[0]), DECODE);
    let ((initial, first), (trailing, second)) = (metadata("initial"), metadata("trailing"));
    let section = [&(first.len() as u16).to_le_bytes()[..], &first, &second].concat();
    wire.respond(0, section.len() as u16, true, &section);
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(begun) = messages.poll_begun(&mut cx) else {
        panic!("the server has responded");
    };
    assert_eq!(begun.unwrap(), initial);
    assert!(matches!(read(&mut messages), Poll::Ready(Ok(None))));
    assert_eq!(now(messages.trailers()).unwrap(), trailing);
}

#[test]
fn the_only_response_has_a_message_and_both_metadata() {
    let wire = attached();
    let mut response = Streaming::of_server(Arc::clone(&wire.ends[0]), DECODE);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(response.poll_response(&mut cx).is_pending());
    let ((initial, first), (trailing, second)) = (metadata("initial"), metadata("trailing"));
    let section = [&(first.len() as u16).to_le_bytes()[..], &first, &second].concat();
    wire.respond(
        0,
        section.len() as u16,
        true,
        &[&section[..], b"sum"].concat(),
    );
    let Poll::Ready(Ok(response)) = response.poll_response(&mut cx) else {
        panic!("the server has responded");
    };
    assert_eq!(
        (response.metadata(), response.trailing_metadata()),
        (&initial, &trailing)
    );
    assert_eq!(response.into_inner(), b"sum");
}

#[test]
fn what_cannot_be_decoded_ends_a_stream_and_cancels_its_call() {
    for (form, body) in [
        (MessageForm::One, &b"\xff"[..]),
        (MessageForm::Batch, b"\x01"),
        (MessageForm::Batch, b"\x02\0\0\0a"),
        (MessageForm::Batch, b"\xff\xff\xff\xff"),
    ] {
        let wire = attached();
        let mut messages = Streaming::of_server(Arc::clone(&wire.ends[0]), DECODE);
        wire.inject(0, form, body);
        assert!(
            matches!(read(&mut messages), Poll::Ready(Err(error)) if error.code() == Code::Internal)
        );
        assert!(wire.ends[0].lock().is_cancelled());
        assert!(matches!(read(&mut messages), Poll::Ready(Ok(None))));

        let wire = attached();
        let mut messages = Streaming::of_client(Arc::clone(&wire.ends[1]), DECODE);
        wire.inject(1, form, body);
        assert!(matches!(read(&mut messages), Poll::Ready(Err(_))));
        assert!(matches!(read(&mut messages), Poll::Ready(Ok(None))));
        // What follows is discarded.
        wire.inject(1, form, body);
        assert!(!wire.ends[1].lock().is_cancelled());
    }
}

#[test]
fn a_stream_that_is_dropped_is_cancelled_by_a_client_and_discarded_by_a_handler() {
    let mut wire = attached();
    drop(Streaming::of_server(Arc::clone(&wire.ends[0]), DECODE));
    assert!(wire.ends[0].lock().is_cancelled());
    drop(Streaming::of_client(Arc::clone(&wire.ends[1]), DECODE));
    assert!(!wire.ends[1].lock().is_cancelled());
    // All is discarded, and the windows move.
    let pump = request_pump::<Bytes, _, _>(Arc::clone(&wire.ends[0]), {
        let (mut sender, messages) = sender();
        let mut tasks = [Task::new(async move {
            for _ in 0..32 {
                sender.send(vec![1; 60]).await.unwrap();
            }
        })];
        wire.settle(&mut tasks);
        messages
    });
    let mut tasks = [Task::new(pump)];
    wire.settle(&mut tasks);
    assert!(tasks[0].is_done());
    assert_eq!((wire.frames[0], wire.closes), (32, 1));
}

#[test]
fn a_peer_that_exceeds_its_window_is_told() {
    let wire = attached();
    let mut state = wire.ends[0].lock();
    assert_eq!(state.inbound.receive(MessageForm::Batch, &[0; 200]), Ok(()));
    let exceeded = WindowExceeded {
        sent: 60,
        available: 56,
    };
    assert_eq!(
        state.inbound.receive(MessageForm::One, &[0; 56]),
        Err(exceeded)
    );
    assert!(!state.outbound.grant(u32::MAX));
}

#[test]
fn a_window_grows_for_a_reader_that_waits_and_not_for_a_slow_one() {
    for waits in [true, false] {
        let wire = attached();
        let mut messages = Streaming::of_client(Arc::clone(&wire.ends[1]), DECODE);
        if waits {
            assert!(read(&mut messages).is_pending());
        }
        wire.inject(1, MessageForm::One, &[0; 252]);
        assert!(matches!(read(&mut messages), Poll::Ready(Ok(Some(_)))));
        let granted = wire.ends[1].lock().inbound.take_due_grant();
        assert_eq!(granted, Some(if waits { 512 } else { 256 }));
    }
}

/// Runs `send_all` until it is done or waits, and the wire. Returns its outcome, if it is done, and
/// the frames that the server has sent.
fn send_all<St>(response: Response<St>) -> (Option<Result<Response<()>, Status>>, usize, Wire)
where
    St: futures_core::Stream<Item = Result<Vec<u8>, Status>>,
{
    let mut wire = attached();
    let responses = Responses::<Bytes, Vec<u8>>::new(Arc::clone(&wire.ends[1]));
    let mut outcome = None;
    let mut tasks = [Task::new(async {
        outcome = Some(responses.send_all(Ok(response)).await);
    })];
    wire.settle(&mut tasks);
    drop(tasks);
    (outcome, wire.frames[1], wire)
}

#[test]
fn initial_metadata_travels_with_the_first_message_or_alone_if_there_is_none_yet() {
    let (initial, _) = metadata("initial");
    for (is_empty, sends, waits, expected) in [
        (true, true, false, 1),
        (false, true, false, 1),
        (true, false, true, 1),
        (false, false, true, 1),
        (true, false, false, 0),
        (false, false, false, 1),
    ] {
        let mut response = Response::new(stream(async move |mut responses| {
            if sends {
                responses.send(vec![1; 3]).await?;
            }
            if waits {
                std::future::pending::<()>().await;
            }
            Ok(())
        }));
        if !is_empty {
            *response.metadata_mut() = initial.clone();
        }
        response
            .trailing_metadata_mut()
            .insert("trailing", "1")
            .unwrap();
        let (outcome, frames, wire) = send_all(response);
        assert_eq!((outcome.is_none(), frames), (waits, expected));
        if let Some(outcome) = outcome {
            assert_eq!(
                outcome.unwrap().trailing_metadata().get("trailing"),
                Some("1")
            );
        }
        assert_eq!(wire.ends[0].lock().inbound.has_begun(), frames > 0);
    }
}

#[test]
fn an_item_that_is_an_error_ends_the_responses_after_those_before() {
    let (outcome, frames, wire) = send_all(Response::new(stream(async |mut responses| {
        responses.send(vec![1]).await?;
        Err(Status::aborted("enough"))
    })));
    assert_eq!(outcome.unwrap().unwrap_err().code(), Code::Aborted);
    assert_eq!(frames, 1);
    let mut messages = Streaming::of_server(Arc::clone(&wire.ends[0]), DECODE);
    assert!(matches!(read(&mut messages), Poll::Ready(Ok(Some(message))) if message == [1]));
}

#[test]
fn what_does_not_fit_in_a_frame_is_named() {
    let (outcome, frames, _) = send_all(Response::new(stream(async |mut responses| {
        responses.send(vec![1; 64]).await?;
        responses.send(vec![1; 65]).await
    })));
    let status = outcome.unwrap().unwrap_err();
    assert_eq!((status.code(), frames), (Code::ResourceExhausted, 1));
    assert!(
        status
            .message()
            .contains("65 bytes exceeds the client's limit of 64"),
        "{status}"
    );

    let mut response = Response::new(stream(async |mut responses| responses.send(vec![]).await));
    response
        .metadata_mut()
        .insert("key", "v".repeat(64))
        .unwrap();
    let (outcome, frames, _) = send_all(response);
    assert_eq!(
        (outcome.unwrap().unwrap_err().code(), frames),
        (Code::ResourceExhausted, 0)
    );

    // A client's call fails.
    let mut wire = attached();
    let (mut sender, messages) = sender();
    let pump = request_pump::<Bytes, _, _>(Arc::clone(&wire.ends[0]), messages);
    let mut response = Streaming::of_server(Arc::clone(&wire.ends[0]), DECODE);
    response.attach_pump(pump);
    let too_long = SendError::TooLong {
        message_len: 65,
        limit: 64,
        exceeded: LengthLimit::Receiver,
    };
    assert_eq!(now(sender.send(vec![0; 65])), Err(too_long));
    assert_eq!(now(sender.send(vec![0; 1])), Err(too_long));
    wire.settle(&mut []);
    let Poll::Ready(Err(error)) = read(&mut response) else {
        panic!("the call has failed");
    };
    assert!(matches!(
        error.cause(),
        Cause::RequestTooLong {
            message_len: 65,
            limit: 64,
            exceeded: LengthLimit::Receiver,
        }
    ));
    assert!(wire.ends[0].lock().is_cancelled());
}

#[test]
fn a_linked_sender_sends_while_nothing_polls_the_response_and_waits_at_the_window() {
    let mut wire = attached();
    let (mut sender, messages) = sender();
    now(sender.send(vec![0; 10])).unwrap();
    let pump = request_pump::<Bytes, _, _>(Arc::clone(&wire.ends[0]), messages);
    for index in 1..6 {
        now(sender.send(vec![index; 50])).unwrap();
        wire.run(usize::MAX);
    }
    // The window of 256 bytes and the queue are full.
    let mut send = Box::pin(async {
        for index in 6..30 {
            sender.send(vec![index; 50]).await.unwrap();
        }
    });
    let mut reads = Streaming::of_client(Arc::clone(&wire.ends[1]), DECODE);
    let mut tasks = vec![Task::new(&mut send)];
    wire.settle(&mut tasks);
    assert!(!tasks[0].is_done());
    tasks.push(Task::new(async {
        assert_eq!(reads.message().await.unwrap(), Some(vec![0; 10]));
        for index in 1..30 {
            assert_eq!(reads.message().await.unwrap(), Some(vec![index; 50]));
        }
    }));
    wire.settle(&mut tasks);
    assert!(tasks.iter().all(Task::is_done));
    drop(tasks);
    drop((send, pump));
    assert_eq!(now(sender.send(Vec::new())), Err(SendError::Ended));
}

#[test]
fn a_sender_and_a_call_free_each_other() {
    for drops_sender_first in [true, false] {
        let wire = attached();
        let (mut sender, messages) = sender();
        let pump = request_pump::<Bytes, Vec<u8>, _>(Arc::clone(&wire.ends[0]), messages);
        let mut cx = Context::from_waker(Waker::noop());
        let mut send = Box::pin(async {
            loop {
                sender.send(vec![0; 60]).await.unwrap();
            }
        });
        let polled: Poll<()> = send.as_mut().poll(&mut cx);
        assert!(polled.is_pending());
        drop(send);
        if drops_sender_first {
            drop(sender);
            drop(pump);
        } else {
            drop(pump);
            assert_eq!(now(sender.send(vec![])), Err(SendError::Ended));
        }
        assert_eq!(Arc::strong_count(&wire.ends[0]), 1);
    }
}

#[test]
fn a_sender_that_is_not_linked_wakes_its_stream_once_per_batch() {
    let (mut sender, mut messages) = sender();
    let task = Task::new(std::future::pending());
    let waker = Waker::from(Arc::clone(&task.flag));
    let mut cx = Context::from_waker(&waker);
    let mut next = || futures_core::Stream::poll_next(pin!(&mut messages), &mut cx);
    assert!(next().is_pending());
    for number in 0..32 {
        now(sender.send(number)).unwrap();
    }
    assert_eq!(task.flag.wakes.load(SeqCst), 1);
    let mut waits = Box::pin(sender.send(32));
    assert!(
        waits
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    assert_eq!(next(), Poll::Ready(Some(0)));
    now(waits).unwrap();
    drop(sender);
    for number in 1..33 {
        assert_eq!(next(), Poll::Ready(Some(number)));
    }
    assert_eq!(next(), Poll::Ready(None));
}

#[test]
fn a_codec_that_panics_leaves_the_stream_as_it_was() {
    let mut wire = attached();
    let (mut sender, messages) = sender();
    let pump = request_pump::<Bytes, _, _>(Arc::clone(&wire.ends[0]), messages);
    now(sender.send(vec![1])).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| now(sender.send(vec![0xfe; 8]))));
    assert!(panicked.is_err());
    now(sender.send(vec![2])).unwrap();
    wire.settle(&mut []);
    let mut reads = Streaming::of_client(Arc::clone(&wire.ends[1]), DECODE);
    for expected in [1, 2] {
        assert!(
            matches!(read(&mut reads), Poll::Ready(Ok(Some(message))) if message == [expected])
        );
    }
    assert!(read(&mut reads).is_pending());
    drop(pump);
}
