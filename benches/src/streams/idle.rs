//! Streams and connections that are idle: the memory that they take in both processes.

use std::thread;
use std::time::Duration;

use proto::bench::{Fixed, StatsRequest};
use rpc_core::{Sender, Streaming, sender};
use rustix::process::getpid;

use super::message::Numbered;
use crate::Outcome;
use crate::child::resident;
use crate::rpc::Rpc;

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
        client.poller().block_on(async {
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

/// Resident memory of both processes, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Of this process.
    pub client: u64,
    /// Of the server's process.
    pub server: u64,
}

impl Memory {
    /// Reads the memory of this process and of a client's server.
    ///
    /// # Errors
    ///
    /// Fails if the system does not report it.
    pub fn read(client: &Rpc) -> Outcome<Self> {
        Ok(Self {
            client: resident(getpid())?,
            server: client.server().resident()?,
        })
    }

    /// Returns the growth since an earlier reading, for each of `count` things.
    #[must_use]
    pub fn growth_per(&self, earlier: &Self, count: usize) -> [u64; 2] {
        [
            self.client.saturating_sub(earlier.client) / count as u64,
            self.server.saturating_sub(earlier.server) / count as u64,
        ]
    }
}

/// Lets both sides take turns until idle streams have freed what they free.
///
/// # Errors
///
/// Returns the error of a call.
pub fn settle(client: &Rpc) -> Outcome<()> {
    let calls = client.client();
    for _ in 0..30 {
        client.poller().block_on(calls.stats(StatsRequest {}))?;
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
