//! Round trips of streams and of unary calls, in turns over one connection.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use proto::bench::{BenchClient, BenchStreamsClient, Fixed, StatsRequest, SubscribeRequest};
use rpc_core::{LocalChannel, Sender, Streaming, sender};

use super::message::Numbered;
use crate::message::{FIXED_SIZE, Load, Shape};
use crate::rpc::Rpc;
use crate::slices::{Side, Stopwatch, UNRECORDED};
use crate::{Outcome, drop_time};

/// Unary calls, one at a time.
pub struct Unary {
    client: Rc<Rpc>,
    calls: BenchClient<LocalChannel>,
    load: Load,
}

impl Unary {
    /// Creates the side. The server must be paused.
    ///
    /// # Errors
    ///
    /// Never fails: the message has its size.
    pub fn new(client: &Rc<Rpc>) -> Outcome<Self> {
        Ok(Self {
            calls: client.client(),
            client: Rc::clone(client),
            load: Load::new(Shape::Fixed64, FIXED_SIZE)?,
        })
    }
}

impl Side for Unary {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let Self {
            client,
            calls: stub,
            load,
        } = self;
        let exchange = async || load.exchange(stub).await;
        let timed = stopwatch.time_async(UNRECORDED, calls, exchange);
        client.server().in_turn(|| client.poller().block_on(timed))
    }
}

/// A message there and back on a stream that stays open.
pub struct PingPong {
    client: Rc<Rpc>,
    sender: Sender<Fixed>,
    messages: Streaming<Fixed>,
    number: u64,
}

impl PingPong {
    /// Opens the stream. The server must not be paused.
    ///
    /// # Errors
    ///
    /// Fails if the stream cannot be opened.
    pub fn open(client: &Rc<Rpc>) -> Outcome<Self> {
        let streams = client.streams();
        let (sender, requests) = sender();
        let opening = streams.ping_pong(requests);
        Ok(Self {
            messages: client.poller().block_on(opening)?.into_inner(),
            sender,
            client: Rc::clone(client),
            number: 0,
        })
    }
}

/// Sends a message and waits until it comes back.
async fn exchange(
    sender: &mut Sender<Fixed>,
    messages: &mut Streaming<Fixed>,
    number: &mut u64,
) -> Outcome<()> {
    *number += 1;
    sender.send(Fixed::numbered(*number, 0)).await?;
    match messages.message().await? {
        Some(message) if message.number(0) == Some(*number) => Ok(()),
        _ => Err("the server must send the message back".into()),
    }
}

impl Side for PingPong {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let Self {
            client,
            sender,
            messages,
            number,
        } = self;
        let exchange = async || exchange(sender, messages, number).await;
        let timed = stopwatch.time_async(UNRECORDED, calls, exchange);
        client.server().in_turn(|| client.poller().block_on(timed))
    }
}

/// From the call of a server-streaming method to its first message. What follows is not timed.
pub struct FirstMessage {
    client: Rc<Rpc>,
    streams: BenchStreamsClient<LocalChannel>,
}

impl FirstMessage {
    /// Creates the side. The server must be paused.
    #[must_use]
    pub fn new(client: &Rc<Rpc>) -> Self {
        Self {
            streams: client.streams(),
            client: Rc::clone(client),
        }
    }
}

/// Calls the method and returns the stream after its first message.
async fn first_message(streams: &BenchStreamsClient<LocalChannel>) -> Outcome<Streaming<Fixed>> {
    let request = SubscribeRequest {
        count: 1,
        payload_len: 0,
    };
    let mut messages = streams.subscribe_fixed(request).await?.into_inner();
    match messages.message().await? {
        Some(message) if message.number(0) == Some(0) => Ok(messages),
        _ => Err("the server must send a message".into()),
    }
}

impl Side for FirstMessage {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let Self { client, streams } = self;
        let timed = async {
            for call in 0..UNRECORDED + calls {
                stopwatch.start();
                let mut messages = first_message(streams).await?;
                if call >= UNRECORDED {
                    stopwatch.lap();
                }
                if messages.message().await?.is_some() {
                    return Err("the stream must end".into());
                }
            }
            Outcome::Ok(())
        };
        client.server().in_turn(|| client.poller().block_on(timed))
    }
}

/// Nanoseconds after the drop of a call in which the client makes no other call.
const PAUSE_NS: u64 = 20_000;

/// From the drop of a call at the client to the drop of its handler's future at the server.
pub struct Cancel {
    client: Rc<Rpc>,
    calls: BenchClient<LocalChannel>,
    streams: BenchStreamsClient<LocalChannel>,
}

impl Cancel {
    /// Creates the side. The server must be paused.
    #[must_use]
    pub fn new(client: &Rc<Rpc>) -> Self {
        Self {
            calls: client.client(),
            streams: client.streams(),
            client: Rc::clone(client),
        }
    }

    /// Drops a call whose handler waits for a message. Returns the nanoseconds.
    async fn cancel(&self) -> Outcome<u64> {
        let (mut sender, requests) = sender();
        let mut messages = self.streams.ping_pong(requests).await?.into_inner();
        exchange(&mut sender, &mut messages, &mut 0).await?;
        let start = drop_time::now_ns();
        drop(messages);
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
            let stats = self.calls.stats(StatsRequest {}).await?.into_inner();
            if stats.last_drop_ns > start {
                return Ok(stats.last_drop_ns - start);
            }
        }
    }
}

impl Side for Cancel {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        // Each takes far longer than the others.
        let (unrecorded, calls) = (UNRECORDED / 4, calls / 4);
        let timed = async {
            for call in 0..unrecorded + calls {
                let nanos = self.cancel().await?;
                if call >= unrecorded {
                    stopwatch.record(Duration::from_nanos(nanos));
                }
            }
            Outcome::Ok(())
        };
        let server = self.client.server();
        server.in_turn(|| self.client.poller().block_on(timed))
    }
}
