//! Streams whose messages come from a source of the application.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::{Task, pause};
use crate::call_error::{CallError, Execution};
use crate::metadata::Metadata;
use crate::status::{Code, Status};
use crate::stream::source::MessageSource;
use crate::stream::streaming::Streaming;

/// What a source does when it is polled.
#[derive(Debug)]
enum Step {
    Message(u32),
    /// Wakes the reader, and has nothing yet.
    Pause,
    Fail,
    Panic,
}

/// Follows its script, then ends. Counts how often it is polled, and whether it has been dropped.
struct Script {
    steps: VecDeque<Step>,
    polls: Arc<AtomicU32>,
    dropped: Arc<AtomicU32>,
}

impl MessageSource<u32> for Script {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<u32>, CallError>> {
        self.polls.fetch_add(1, SeqCst);
        match self.steps.pop_front() {
            Some(Step::Message(message)) => Poll::Ready(Ok(Some(message))),
            Some(Step::Pause) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Step::Fail) => {
                let status = Status::data_loss("torn");
                Poll::Ready(Err(CallError::from_status(status, Execution::MayHaveRun)))
            }
            Some(Step::Panic) => panic!("the source panics"),
            None => Poll::Ready(Ok(None)),
        }
    }

    fn trailers(&mut self) -> Metadata {
        let mut metadata = Metadata::new();
        metadata
            .insert("left", self.steps.len().to_string())
            .unwrap();
        metadata
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, SeqCst);
    }
}

struct Scripted {
    messages: Streaming<u32>,
    polls: Arc<AtomicU32>,
    dropped: Arc<AtomicU32>,
}

impl Scripted {
    fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        let (polls, dropped) = (Arc::default(), Arc::default());
        let messages = Streaming::from_source(Script {
            steps: steps.into_iter().collect(),
            polls: Arc::clone(&polls),
            dropped: Arc::clone(&dropped),
        });
        Self {
            messages,
            polls,
            dropped,
        }
    }

    /// Polls until there is a message, or the end.
    fn next(&mut self) -> Result<Option<u32>, CallError> {
        finish(self.messages.message())
    }

    fn trailers(&mut self) -> Result<Metadata, CallError> {
        finish(self.messages.trailers())
    }
}

/// Polls a future to its end.
fn finish<R>(future: impl Future<Output = R>) -> R {
    let mut future = pin!(future);
    let task = Task::new(std::future::pending());
    let waker = Waker::from(Arc::clone(&task.flag));
    loop {
        let before = task.flag.wakes.load(SeqCst);
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => assert_ne!(task.flag.wakes.load(SeqCst), before, "nobody wakes it"),
        }
    }
}

#[test]
fn messages_come_in_order_and_the_source_is_dropped_at_the_end() {
    use Step::{Message, Pause};
    let mut script = Scripted::new([Message(1), Pause, Message(2), Pause]);
    for expected in [Some(1), Some(2)] {
        assert_eq!(script.next().unwrap(), expected);
    }
    assert_eq!(script.dropped.load(SeqCst), 0);
    assert!(format!("{:?}", script.messages).contains("has_ended: false"));
    assert_eq!(script.next().unwrap(), None);
    assert_eq!(script.dropped.load(SeqCst), 1);
    assert!(format!("{:?}", script.messages).contains("has_ended: true"));
    let polls = script.polls.load(SeqCst);
    assert_eq!(script.next().unwrap(), None);
    assert_eq!(script.trailers().unwrap().get("left"), Some("0"));
    assert_eq!(script.polls.load(SeqCst), polls);
}

#[test]
fn trailers_discard_the_messages_before_them() {
    use Step::{Message, Pause};
    let mut script = Scripted::new([Message(1), Message(2), Pause, Message(3)]);
    assert_eq!(script.trailers().unwrap().get("left"), Some("0"));
    assert_eq!(script.next().unwrap(), None);
    assert_eq!(script.dropped.load(SeqCst), 1);
}

#[test]
fn after_an_error_nothing_comes_and_the_trailers_are_the_error() {
    let mut script = Scripted::new([Step::Message(1), Step::Fail, Step::Message(2)]);
    assert_eq!(script.next().unwrap(), Some(1));
    assert_eq!(script.next().unwrap_err().code(), Code::DataLoss);
    assert_eq!(script.dropped.load(SeqCst), 1);
    for _ in 0..2 {
        assert_eq!(script.next().unwrap(), None);
        assert_eq!(script.trailers().unwrap_err().code(), Code::DataLoss);
    }
    let mut unread = Scripted::new([Step::Message(1), Step::Fail]);
    assert_eq!(unread.trailers().unwrap_err().code(), Code::DataLoss);
}

#[test]
fn a_source_that_panics_has_ended_the_stream_with_an_error() {
    let mut script = Scripted::new([Step::Message(1), Step::Panic, Step::Message(2)]);
    assert_eq!(script.next().unwrap(), Some(1));
    let panicked = catch_unwind(AssertUnwindSafe(|| script.next().is_ok()));
    assert!(panicked.is_err());
    assert_eq!(script.dropped.load(SeqCst), 1);
    assert_eq!(script.next().unwrap(), None);
    let error = script.trailers().unwrap_err();
    assert_eq!(
        error.to_string(),
        "INTERNAL: the source of the stream has panicked; the call may have run"
    );
}

#[test]
fn a_stream_that_is_dropped_drops_its_source() {
    let mut script = Scripted::new([Step::Message(1), Step::Message(2)]);
    assert_eq!(script.next().unwrap(), Some(1));
    drop(script.messages);
    assert_eq!(script.dropped.load(SeqCst), 1);
    assert_eq!(script.polls.load(SeqCst), 1);
}

#[test]
fn a_stream_of_items_is_a_source() {
    let items = crate::stream::from_fn::stream(async |mut out| {
        out.send(Ok(1)).await?;
        pause().await;
        let status = Status::aborted("enough");
        out.send(Err(CallError::from_status(status, Execution::Answered)))
            .await
    });
    // Of its own errors, which the loop does not return.
    let mut messages = Streaming::from_stream(Flat(Box::pin(items)));
    assert_eq!(finish(messages.message()).unwrap(), Some(1));
    let error = finish(messages.message()).unwrap_err();
    assert_eq!(error.code(), Code::Aborted);
    assert_eq!(finish(messages.message()).unwrap(), None);
}

/// A stream without the outer of two errors.
struct Flat<S>(std::pin::Pin<Box<S>>);

impl<T, S: Stream<Item = Result<T, Status>>> Stream for Flat<S> {
    type Item = T;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        let polled = self.0.as_mut().poll_next(cx);
        polled.map(|item| item.map(Result::unwrap))
    }
}

/// A stream may be used from any thread, whatever its messages are.
#[test]
fn a_stream_is_send_and_sync_with_a_source() {
    fn check<T: Send + Sync + Unpin>(_: &T) {}
    check(&Streaming::<std::rc::Rc<u32>>::from_stream(Nothing));
}

struct Nothing;

impl Stream for Nothing {
    type Item = Result<std::rc::Rc<u32>, CallError>;

    fn poll_next(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(None)
    }
}
