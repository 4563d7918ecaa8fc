//! Round trips of streams and of unary calls, in turns over one connection. The server must be paused
//! before each turn.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use proto::bench::{BenchClient, BenchStreamsClient, Fixed, StatsRequest, SubscribeRequest};
use rpc_core::{Caller, Sender, Streaming, sender};

use super::message::Numbered;
use crate::message::Load;
use crate::rpc::Client;
use crate::slices::{Side, Stopwatch, UNRECORDED};
use crate::{Outcome, drop_time};

/// Makes unary calls, one at a time.
pub fn unary(client: &impl Client) -> impl Side {
    let (calls, mut load) = (client.client(), Load::fixed());
    move |count: usize, stopwatch: &mut Stopwatch| {
        let exchange = async || load.exchange(&calls).await;
        client.in_turn(stopwatch.time_async(UNRECORDED, count, exchange))
    }
}

/// Opens a stream, on which messages go there and back, one at a time. The server must not be paused yet.
///
/// # Errors
///
/// Fails if the stream cannot be opened.
pub fn ping_pong(client: &impl Client) -> Outcome<impl Side> {
    let streams = client.streams();
    let mut stream = client.block_on(PingPong::open(&streams))?;
    Ok(move |count: usize, stopwatch: &mut Stopwatch| {
        let exchange = async || stream.exchange().await;
        client.in_turn(stopwatch.time_async(UNRECORDED, count, exchange))
    })
}

/// A stream whose messages come back.
struct PingPong {
    sender: Sender<Fixed>,
    messages: Streaming<Fixed>,
    number: u64,
}

impl PingPong {
    async fn open<C: Caller>(streams: &BenchStreamsClient<C>) -> Outcome<Self> {
        let (sender, requests) = sender();
        Ok(Self {
            messages: streams.ping_pong(requests).await?.into_inner(),
            sender,
            number: 0,
        })
    }

    /// Sends a message and waits until it comes back.
    async fn exchange(&mut self) -> Outcome<()> {
        self.number += 1;
        self.sender.send(Fixed::numbered(self.number, 0)).await?;
        match self.messages.message().await? {
            Some(message) if message.number(0) == Some(self.number) => Ok(()),
            _ => Err("the server must send the message back".into()),
        }
    }
}

/// Times from the call of a server-streaming method to its first message. What follows is not timed.
pub fn first_message(client: &impl Client) -> impl Side {
    let streams = client.streams();
    let request = SubscribeRequest {
        count: 1,
        payload_len: 0,
    };
    move |count: usize, stopwatch: &mut Stopwatch| {
        client.in_turn(async {
            for call in 0..UNRECORDED + count {
                stopwatch.start();
                let mut messages = streams.subscribe_fixed(request).await?.into_inner();
                let first = messages.message().await?;
                if call >= UNRECORDED {
                    stopwatch.lap();
                }
                if first.and_then(|message| message.number(0)) != Some(0) {
                    return Err("the server must send a message".into());
                }
                if messages.message().await?.is_some() {
                    return Err("the stream must end".into());
                }
            }
            Outcome::Ok(())
        })
    }
}

/// Nanoseconds after the drop of a call in which the client makes no other call.
const PAUSE_NS: u64 = 20_000;

/// Times from the drop of a call at the client to the drop of its handler's future at the server.
pub fn cancel(client: &impl Client) -> impl Side {
    let (calls, streams) = (client.client(), client.streams());
    move |count: usize, stopwatch: &mut Stopwatch| {
        // Each takes far longer than the others.
        let (unrecorded, count) = (UNRECORDED / 4, count / 4);
        client.in_turn(async {
            for call in 0..unrecorded + count {
                let nanos = drop_a_call(&calls, &streams).await?;
                if call >= unrecorded {
                    stopwatch.record(Duration::from_nanos(nanos));
                }
            }
            Outcome::Ok(())
        })
    }
}

/// Drops a call whose handler waits for a message. Returns the nanoseconds until the handler was dropped.
async fn drop_a_call<C: Caller>(
    calls: &BenchClient<C>,
    streams: &BenchStreamsClient<C>,
) -> Outcome<u64> {
    let mut stream = PingPong::open(streams).await?;
    stream.exchange().await?;
    let start = drop_time::now_ns();
    drop(stream.messages);
    // Other calls would be in the way of the cancel.
    poll_fn(|cx| {
        if drop_time::now_ns() > start + PAUSE_NS {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    loop {
        let stats = calls.stats(StatsRequest {}).await?.into_inner();
        if stats.last_drop_ns > start {
            return Ok(stats.last_drop_ns - start);
        }
    }
}
