//! The lower bound: a ping-pong through the safe verbs layer, without calls.
//!
//! It uses the same resources as the RPC, in the same way: the same device, frames of the same
//! length in slots of the same length, the same number of receives in a shared receive queue,
//! refilled in batches, the same signal interval, inlining for the same frame lengths, and one
//! doorbell per message. It leaves out headers, encoding, credits, the call table and dispatch, so
//! these are the difference between the two.

use rpc_core::Limits;
use rpc_transport_verbs::verbs::{
    Access, AddressWish, CompletionQueue, Context, Gid, PortAddress, Psn, QpNum, QueuePair,
    QueuePairConfig, RemoteEndpoint, RtrAttributes, RtsAttributes, SendRequest, SharedReceiveQueue,
    Slot, WorkCompletion, WorkKind,
};
use serde::{Deserialize, Serialize};

use crate::child::{self, Process};
use crate::role::Role;
use crate::slices::{Side, Stopwatch, UNRECORDED};
use crate::{Outcome, cores};

/// Receives posted with one call, as in the transport.
const REFILL_BATCH: usize = 16;

/// Completions taken with one poll, as in the transport.
const POLL_BATCH: usize = 32;

/// The parameters of an endpoint, taken from the RPC's limits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RawArgs {
    /// Device name
    pub device: String,
    /// Core to pin to
    pub core: usize,
    /// Length of a message in bytes
    pub frame_len: usize,
    /// Length of a slot in bytes
    pub slot_len: usize,
    /// Receives to keep posted
    pub receives: usize,
    /// Depth of the send queue
    pub send_queue_depth: usize,
    /// One send in this many is signaled
    pub signal_interval: usize,
    /// Longest message to inline, in bytes
    pub max_inline_len: usize,
}

impl RawArgs {
    /// Returns the parameters that the RPC's poller uses, for frames of this length.
    #[must_use]
    pub fn like(limits: &Limits, core: usize, frame_len: usize) -> Self {
        Self {
            device: limits.device.clone(),
            core,
            frame_len,
            slot_len: limits.slot_len,
            receives: limits.receives_posted as usize,
            send_queue_depth: limits.send_queue_depth as usize,
            signal_interval: limits.signal_interval as usize,
            max_inline_len: limits.max_inline_len,
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
        let mut endpoint = Endpoint::open(self)?;
        child::write_line_to_parent(&line_of(&endpoint.local))?;
        endpoint.ready_to_receive(endpoint_of(&child::read_line_from_parent()?)?)?;
        endpoint.ready_to_send()?;
        child::write_line_to_parent("ready")?;
        loop {
            endpoint.receive()?;
            endpoint.send()?;
        }
    }
}

/// The client side, with its server process.
pub struct PingPong {
    // Declared before the server, so that the queue pair is destroyed before its peer.
    endpoint: Endpoint,
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
        let mut endpoint = Endpoint::open(local)?;
        endpoint.ready_to_receive(endpoint_of(&peer)?)?;
        // Both sides must be ready to receive before either sends.
        server.write_line(&line_of(&endpoint.local))?;
        server.read_line()?;
        endpoint.ready_to_send()?;
        for _ in 0..UNRECORDED {
            endpoint.exchange()?;
        }
        server.pause()?;
        Ok(Self { endpoint, server })
    }
}

impl Side for PingPong {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let Self { endpoint, server } = self;
        server.in_turn(|| stopwatch.time(UNRECORDED, calls, || endpoint.exchange()))
    }
}

/// A queue pair and its resources.
struct Endpoint {
    queue_pair: QueuePair,
    completion_queue: CompletionQueue,
    receives: SharedReceiveQueue,
    local: RemoteEndpoint,
    /// The local address to send from.
    address: PortAddress,
    /// Slots of received messages, to be posted again.
    to_post: Vec<Slot>,
    /// Send slots that are not in flight.
    to_send: Vec<Slot>,
    requests: Vec<SendRequest>,
    completions: Vec<WorkCompletion>,
    /// Messages that were claimed but not yet consumed by [`receive`](Self::receive).
    received: usize,
    since_signal: usize,
    signal_interval: usize,
    frame_len: usize,
    is_inline: bool,
}

impl Endpoint {
    fn open(args: &RawArgs) -> Outcome<Self> {
        let context = Context::open(&args.device)?;
        let domain = context.alloc_pd()?;
        let slots = args.receives + args.send_queue_depth;
        let region = domain.register(slots * args.slot_len, Access::LOCAL_WRITE)?;
        let mut to_send = region.into_slots(args.slot_len)?;
        let mut to_post = to_send.split_off(args.send_queue_depth);
        let completion_queue = context.create_cq(slots)?;
        let receives = domain.create_srq(args.receives, 1)?;
        let mut queue_pair = domain.create_qp(QueuePairConfig {
            srq: Some(&receives),
            max_send_wr: args.send_queue_depth,
            max_recv_wr: 0,
            max_inline_data: args.max_inline_len,
            sq_sig_all: false,
            ..QueuePairConfig::new(&completion_queue, &completion_queue)
        })?;
        let address = context.choose_address(AddressWish::default())?;
        queue_pair.to_init(address.port, Access::LOCAL_WRITE)?;
        receives.post_recv(&mut to_post, args.receives)?;
        Ok(Self {
            local: RemoteEndpoint {
                gid: address.gid,
                lid: address.lid,
                qp_num: queue_pair.qp_num(),
                psn: Psn::new(0),
            },
            address,
            queue_pair,
            completion_queue,
            receives,
            to_post,
            to_send,
            requests: Vec::with_capacity(1),
            completions: Vec::with_capacity(POLL_BATCH),
            received: 0,
            since_signal: 0,
            signal_interval: args.signal_interval,
            frame_len: args.frame_len,
            is_inline: args.frame_len <= args.max_inline_len,
        })
    }

    fn ready_to_receive(&mut self, remote: RemoteEndpoint) -> Outcome<()> {
        Ok(self.queue_pair.to_rtr(RtrAttributes {
            sgid_index: self.address.gid_index,
            path_mtu: self.address.mtu,
            ..RtrAttributes::new(remote)
        })?)
    }

    fn ready_to_send(&mut self) -> Outcome<()> {
        Ok(self.queue_pair.to_rts(RtsAttributes::new(self.local.psn))?)
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
            .queue_pair
            .post_send(&mut self.requests, &mut |slot| to_send.push(slot))?)
    }

    #[inline]
    fn receive(&mut self) -> Outcome<()> {
        while self.received == 0 {
            self.poll()?;
        }
        self.received -= 1;
        Ok(())
    }

    #[inline]
    fn poll(&mut self) -> Outcome<()> {
        self.completion_queue
            .poll(&mut self.completions, POLL_BATCH)?;
        for completion in self.completions.drain(..) {
            if !completion.is_success() {
                return Err(completion.status().to_string().into());
            }
            if completion.wr_id().kind() == Some(WorkKind::Send) {
                let to_send = &mut self.to_send;
                self.queue_pair
                    .complete_send(completion, &mut |slot| to_send.push(slot))?;
            } else {
                let (slot, len) = self.receives.claim(completion)?;
                if len != self.frame_len {
                    return Err(format!("received a message of {len} bytes, not a frame").into());
                }
                self.to_post.push(slot);
                self.received += 1;
            }
        }
        if self.to_post.len() >= REFILL_BATCH {
            self.receives.post_recv(&mut self.to_post, REFILL_BATCH)?;
        }
        Ok(())
    }
}

/// Formats an endpoint as one line of text: the GID, the LID, the queue pair number, the first PSN.
pub(crate) fn line_of(endpoint: &RemoteEndpoint) -> String {
    format!(
        "{:032x} {} {} {}",
        u128::from_be_bytes(endpoint.gid.0),
        endpoint.lid,
        endpoint.qp_num.0,
        endpoint.psn.get()
    )
}

/// Reads an endpoint from its line.
pub(crate) fn endpoint_of(line: &str) -> Outcome<RemoteEndpoint> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [gid, lid, qp_num, psn] = words[..] else {
        return Err(format!("'{line}' is not an endpoint (GID, LID, QP number, PSN)").into());
    };
    Ok(RemoteEndpoint {
        gid: Gid(u128::from_str_radix(gid, 16)?.to_be_bytes()),
        lid: lid.parse()?,
        qp_num: QpNum(qp_num.parse()?),
        psn: Psn::new(psn.parse()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_survives_its_line() {
        let endpoint = RemoteEndpoint {
            gid: Gid(std::array::from_fn(|index| index as u8)),
            lid: 0xabcd,
            qp_num: QpNum(0x00ab_cdef),
            psn: Psn::new(77),
        };
        assert_eq!(endpoint_of(&line_of(&endpoint)).expect("a line"), endpoint);
        assert!(endpoint_of("ready").is_err());
    }
}
