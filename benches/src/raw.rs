//! The lower bound: a ping-pong through the safe verbs layer, without calls.
//!
//! It uses the same resources as the RPC, in the same way: the same device, frames of the same
//! length in slots of the same length, the same number of receives in a shared receive queue,
//! refilled in batches, the same signal interval, inlining for the same frame lengths, and one
//! doorbell per message. It leaves out headers, encoding, credits, the call table and dispatch, so
//! these are the difference between the two.

use rpc_core::Limits;
use rpc_transport_verbs::verbs::{Access, SendRequest, Slot};
use serde::{Deserialize, Serialize};

use crate::child::{self, Process};
use crate::endpoint::{Endpoint, Queues};
use crate::role::Role;
use crate::slices::{Side, Stopwatch, UNRECORDED};
use crate::{Outcome, cores};

/// The parameters of an endpoint, taken from the RPC's limits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RawArgs {
    /// Device name
    pub device: String,
    /// Core to pin to
    pub core: usize,
    /// Length of a message in bytes
    pub frame_len: usize,
    /// Lengths of its queues
    pub queues: Queues,
    /// One send in this many is signaled
    pub signal_interval: usize,
}

impl RawArgs {
    /// Returns the parameters that the RPC's poller uses, for frames of this length.
    #[must_use]
    pub fn like(limits: &Limits, core: usize, frame_len: usize) -> Self {
        Self {
            device: limits.device.clone(),
            core,
            frame_len,
            queues: Queues {
                receives: limits.receives_posted as usize,
                receive_len: limits.slot_len,
                sends: limits.send_queue_depth as usize,
                max_inline_len: limits.max_inline_len,
            },
            signal_interval: limits.signal_interval as usize,
        }
    }

    /// Runs the server process: answers each message with a message, until it is killed.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint cannot be set up, or if the connection fails.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        cores::pin_current_thread(self.core)?;
        let mut frames = Frames::open(self)?;
        frames.endpoint.connect_to_parent("ready")?;
        loop {
            frames.receive()?;
            frames.send()?;
        }
    }
}

/// The client side, with its server process.
pub struct PingPong {
    // Declared before the server, so that the queue pair is destroyed before its peer.
    frames: Frames,
    server: Process,
}

impl PingPong {
    /// Starts the server process, connects, and pauses the server until the first turn. Pin the
    /// calling thread first.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(local: &RawArgs, server_core: usize) -> Outcome<Self> {
        let remote = RawArgs {
            core: server_core,
            ..local.clone()
        };
        let (mut server, peer) = Process::start(&Role::Frames(remote))?;
        let mut frames = Frames::open(local)?;
        frames.endpoint.connect(&mut server, &peer)?;
        for _ in 0..UNRECORDED {
            frames.exchange()?;
        }
        server.pause()?;
        Ok(Self { frames, server })
    }
}

impl Side for PingPong {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let Self { frames, server } = self;
        server.in_turn(|| stopwatch.time(UNRECORDED, calls, || frames.exchange()))
    }
}

/// An endpoint that sends and receives frames of one length.
struct Frames {
    endpoint: Endpoint,
    /// Send slots that are not in flight.
    to_send: Vec<Slot>,
    requests: Vec<SendRequest>,
    /// Frames that were claimed but not yet consumed by [`receive`](Self::receive).
    received: usize,
    since_signal: usize,
    signal_interval: usize,
    frame_len: usize,
    is_inline: bool,
}

impl Frames {
    fn open(args: &RawArgs) -> Outcome<Self> {
        let queues = &args.queues;
        let endpoint = Endpoint::open(&args.device, queues)?;
        let len = queues.sends * queues.receive_len;
        let region = endpoint.domain.register(len, Access::LOCAL_WRITE)?;
        Ok(Self {
            endpoint,
            to_send: region.into_slots(queues.receive_len)?,
            requests: Vec::with_capacity(1),
            received: 0,
            since_signal: 0,
            signal_interval: args.signal_interval,
            frame_len: args.frame_len,
            is_inline: args.frame_len <= queues.max_inline_len,
        })
    }

    /// Sends a message and waits for one.
    #[inline]
    fn exchange(&mut self) -> Outcome<()> {
        self.send()?;
        self.receive()
    }

    #[inline]
    fn send(&mut self) -> Outcome<()> {
        let Some(slot) = self.to_send.pop() else {
            return Err("all send slots are in flight".into());
        };
        self.since_signal += 1;
        // As in the transport: a slot that the device keeps is returned only by a completion.
        let is_signaled = !self.is_inline || self.since_signal >= self.signal_interval;
        if is_signaled {
            self.since_signal = 0;
        }
        self.requests.push(SendRequest {
            slot,
            len: self.frame_len,
            signaled: is_signaled,
            inline: self.is_inline,
            solicited: false,
        });
        let to_send = &mut self.to_send;
        Ok(self
            .endpoint
            .queue_pair
            .post_send(&mut self.requests, &mut |slot| to_send.push(slot))?)
    }

    #[inline]
    fn receive(&mut self) -> Outcome<()> {
        let Self {
            endpoint,
            to_send,
            received,
            frame_len,
            ..
        } = self;
        while *received == 0 {
            endpoint.poll(
                |slot| to_send.push(slot),
                |frame| {
                    if frame.len() != *frame_len {
                        return Err(format!("received {} bytes, not a frame", frame.len()).into());
                    }
                    *received += 1;
                    Ok(())
                },
            )?;
        }
        *received -= 1;
        Ok(())
    }
}
