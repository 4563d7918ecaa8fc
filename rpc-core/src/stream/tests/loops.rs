//! Streams that are written as loops.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::{Task, pause};
use crate::status::{Code, Status};
use crate::stream::from_fn::stream;

#[test]
fn messages_come_in_order_then_the_error_then_nothing() {
    let mut messages = pin!(stream(async |mut out| {
        for number in 0..1000 {
            out.send(number).await?;
            if number % 100 == 99 {
                pause().await;
            }
        }
        Err(Status::aborted("enough"))
    }));
    let mut cx = Context::from_waker(Waker::noop());
    let mut expected = 0;
    let mut pauses = 0;
    loop {
        match messages.as_mut().poll_next(&mut cx) {
            Poll::Ready(Some(Ok(number))) => {
                assert_eq!(number, expected);
                expected += 1;
            }
            Poll::Ready(Some(Err(status))) => {
                assert_eq!(status.code(), Code::Aborted);
                break;
            }
            Poll::Ready(None) => panic!("the error is missing"),
            Poll::Pending => pauses += 1,
        }
    }
    assert_eq!(expected, 1000);
    assert!(pauses <= 10, "{pauses}");
    assert!(matches!(
        messages.as_mut().poll_next(&mut cx),
        Poll::Ready(None)
    ));
}

#[test]
fn another_task_may_send_and_wakes_the_stream() {
    let (give, take) = std::sync::mpsc::channel();
    let mut messages = Box::pin(stream(async move |out| {
        give.send(out).unwrap();
        std::future::pending().await
    }));
    let task = Task::new(std::future::pending());
    let waker = Waker::from(Arc::clone(&task.flag));
    let mut cx = Context::from_waker(&waker);
    assert!(messages.as_mut().poll_next(&mut cx).is_pending());
    let mut out = take.recv().unwrap();
    let mut sends = Box::pin(async move {
        for number in 0.. {
            out.send(number).await?;
        }
        Ok::<_, Status>(())
    });
    let mut other = Context::from_waker(Waker::noop());
    assert!(sends.as_mut().poll(&mut other).is_pending());
    assert_eq!(task.flag.wakes.load(SeqCst), 1);
    let mut expected = 0;
    while expected < 32 {
        match messages.as_mut().poll_next(&mut cx) {
            Poll::Ready(Some(Ok(number))) => {
                assert_eq!(number, expected);
                expected += 1;
            }
            Poll::Pending => assert!(sends.as_mut().poll(&mut other).is_pending()),
            Poll::Ready(_) => panic!("the stream has not ended"),
        }
    }
    assert!(sends.as_mut().poll(&mut other).is_pending());
    drop(messages);
    assert!(
        matches!(sends.as_mut().poll(&mut other), Poll::Ready(Err(status)) if status.code() == Code::Cancelled)
    );
}
