//! Small calls of one connection, alone and beside a stream of large messages of another.
//!
//! Both connections have the same poller on each side: a small call waits while the poller works
//! for a large message.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use proto::bulk::{PutRequest, UploadReply};
use rpc_core::codegen::v1::bytes::Bytes;
use rpc_core::{CallError, Stream};
use verbline_load::TaskSet;
use verbline_load::{add_time, histogram};

use super::pattern::payload;
use crate::Outcome;
use crate::message::Load;
use crate::rpc::{Client, Rpc};
use crate::slices::UNRECORDED;

/// Messages without an end, until they are stopped.
struct Messages {
    data: Bytes,
    is_stopped: Arc<AtomicBool>,
}

impl Stream for Messages {
    type Item = PutRequest;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<PutRequest>> {
        let data = self.data.clone();
        // Relaxed, also below: both run on this thread.
        Poll::Ready((!self.is_stopped.load(Ordering::Relaxed)).then_some(PutRequest { data }))
    }
}

/// The figures of one turn.
#[derive(Debug)]
pub struct Turn {
    /// Latencies of the small calls, in nanoseconds.
    pub calls: Histogram<u64>,
    /// Bytes per second of the stream beside them, if there was one.
    pub stream: Option<f64>,
}

/// Makes small calls for a time, beside a stream of messages of `message_len` bytes if there is one.
/// The server must not be paused.
///
/// # Errors
///
/// Returns the error of the first call that fails, or says that the stream did not move.
pub fn take_turn(rpc: &Rpc, length: Duration, message_len: Option<usize>) -> Outcome<Turn> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    let (calls, uploaded) = (Cell::new(None), Cell::new(None));
    let small = async {
        calls.set(Some(small_calls(rpc, length).await));
        is_stopped.store(true, Ordering::Relaxed);
    };
    let mut tasks: Vec<Pin<Box<dyn Future<Output = ()>>>> = vec![Box::pin(small)];
    let bulk = rpc.bulk()?;
    if let Some(len) = message_len {
        let messages = Messages {
            data: payload(len),
            is_stopped: Arc::clone(&is_stopped),
        };
        let uploaded = &uploaded;
        tasks.push(Box::pin(async move {
            let start = Instant::now();
            let reply = bulk.upload(messages).await;
            uploaded.set(Some((reply, start.elapsed())));
        }));
    }
    rpc.poller().block_on(TaskSet::new(tasks));
    let calls = calls.take().ok_or("the small calls have not ended")??;
    let stream = match uploaded.take() {
        None => None,
        Some((reply, elapsed)) => {
            let UploadReply { count, bytes } = reply?.into_inner();
            if count == 0 {
                return Err("no message of the stream has arrived".into());
            }
            Some(bytes as f64 / elapsed.as_secs_f64())
        }
    };
    Ok(Turn { calls, stream })
}

async fn small_calls(rpc: &Rpc, length: Duration) -> Result<Histogram<u64>, CallError> {
    let client = &rpc.client();
    let mut load = Load::fixed();
    for _ in 0..UNRECORDED {
        load.exchange(client).await?;
    }
    let mut calls = histogram();
    let start = Instant::now();
    let mut last = start;
    while last - start < length {
        load.exchange(client).await?;
        let now = Instant::now();
        add_time(&mut calls, now - last);
        last = now;
    }
    Ok(calls)
}
