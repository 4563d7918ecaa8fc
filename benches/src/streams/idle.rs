//! Streams and connections that are idle: the memory that they take in both processes.

use std::thread;
use std::time::Duration;

use proto::bench::Fixed;
use rpc_core::{Sender, Streaming, sender};

use super::message::Numbered;
use crate::Outcome;
use crate::rpc::{Client, Rpc};

/// Streams that stay open. Dropping this cancels them.
pub struct IdleStreams {
    _streams: Vec<(Sender<Fixed>, Streaming<Fixed>)>,
}

impl IdleStreams {
    /// Opens streams, each of which has carried one message in each direction.
    ///
    /// # Errors
    ///
    /// Fails if a stream cannot be opened, or if a message does not come back.
    pub fn open(client: &Rpc, count: usize) -> Outcome<Self> {
        let stub = client.streams();
        let mut streams = Vec::with_capacity(count);
        client.block_on(async {
            for number in 0..count as u64 {
                let (mut sender, requests) = sender();
                let mut messages = stub.ping_pong(requests).await?.into_inner();
                sender.send(Fixed::numbered(number, 0)).await?;
                if messages.message().await?.is_none() {
                    return Err("the server must send the message back".into());
                }
                streams.push((sender, messages));
            }
            Outcome::Ok(())
        })?;
        Ok(Self { _streams: streams })
    }
}

/// Lets both sides take turns until idle streams have freed what they free.
///
/// # Errors
///
/// Returns the error of a call.
pub fn settle(client: &Rpc) -> Outcome<()> {
    for _ in 0..30 {
        client.stats()?;
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
