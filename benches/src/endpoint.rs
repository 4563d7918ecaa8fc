//! An endpoint of the safe verbs layer: a queue pair with receives in a shared receive queue, connected
//! to one of another process.

use rpc_transport_verbs::verbs::{
    Access, AddressWish, CompletionQueue, Context, Gid, PortAddress, ProtectionDomain, Psn, QpNum,
    QueuePair, QueuePairConfig, RemoteEndpoint, RtrAttributes, RtsAttributes, SharedReceiveQueue,
    Slot, WorkCompletion, WorkKind,
};
use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::child::{self, Process};

/// Receives posted with one call, as in the transport.
const REFILL_BATCH: usize = 16;

/// Completions taken with one poll, as in the transport.
const POLL_BATCH: usize = 32;

/// The lengths of an endpoint's queues, and of what they hold.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Queues {
    /// Receives to keep posted.
    pub receives: usize,
    /// Length of a receive in bytes.
    pub receive_len: usize,
    /// Depth of the send queue.
    pub sends: usize,
    /// Longest message to inline, in bytes.
    pub max_inline_len: usize,
}

/// The queue pair and what belongs to it.
pub struct Endpoint {
    /// The queue pair, which is connected.
    pub queue_pair: QueuePair,
    /// Where memory for it is registered.
    pub domain: ProtectionDomain,
    setup: Setup,
    completion_queue: CompletionQueue,
    receives: SharedReceiveQueue,
    /// Slots of received messages, to be posted again.
    to_post: Vec<Slot>,
    completions: Vec<WorkCompletion>,
}

impl Endpoint {
    /// Creates the queue pair, and posts its receives.
    ///
    /// # Errors
    ///
    /// Fails if the device refuses something.
    pub fn open(device: &str, queues: &Queues) -> Outcome<Self> {
        let context = Context::open(device)?;
        let domain = context.alloc_pd()?;
        let completion_queue = context.create_cq(queues.sends + queues.receives)?;
        let receives = domain.create_srq(queues.receives, 1)?;
        let mut queue_pair = domain.create_qp(QueuePairConfig {
            srq: Some(&receives),
            max_send_wr: queues.sends,
            max_recv_wr: 0,
            max_inline_data: queues.max_inline_len,
            ..QueuePairConfig::new(&completion_queue, &completion_queue)
        })?;
        let region = domain.register(queues.receives * queues.receive_len, Access::LOCAL_WRITE)?;
        let mut to_post = region.into_slots(queues.receive_len)?;
        let setup = Setup::begin(&context, &mut queue_pair)?;
        receives.post_recv(&mut to_post, queues.receives)?;
        Ok(Self {
            queue_pair,
            domain,
            setup,
            completion_queue,
            receives,
            to_post,
            completions: Vec::with_capacity(POLL_BATCH),
        })
    }

    /// Connects to the process that has printed `peer`, and returns what it prints then.
    ///
    /// # Errors
    ///
    /// Fails if the process has ended, or if the device refuses its endpoint.
    pub fn connect(&mut self, process: &mut Process, peer: &str) -> Outcome<String> {
        self.setup
            .to_rtr(&mut self.queue_pair, endpoint_of(peer)?)?;
        // Both sides must be ready to receive before either sends.
        process.write_line(&line_of(&self.setup.local))?;
        let line = process.read_line()?;
        self.setup.to_rts(&mut self.queue_pair)?;
        Ok(line)
    }

    /// Connects to the parent process, and tells it `line`.
    ///
    /// # Errors
    ///
    /// Fails if the parent has ended, or if the device refuses its endpoint.
    pub fn connect_to_parent(&mut self, line: &str) -> Outcome<()> {
        child::write_line_to_parent(&line_of(&self.setup.local))?;
        let peer = endpoint_of(&child::read_line_from_parent()?)?;
        self.setup.to_rtr(&mut self.queue_pair, peer)?;
        self.setup.to_rts(&mut self.queue_pair)?;
        Ok(child::write_line_to_parent(line)?)
    }

    /// Polls once. The slots of sends and READs that have ended go to `sent`. Each received message
    /// goes to `received`, and its slot is posted again, with others.
    ///
    /// # Errors
    ///
    /// Fails if something has failed on the device, or returns the error of `received`.
    #[inline]
    pub fn poll(
        &mut self,
        mut sent: impl FnMut(Slot),
        mut received: impl FnMut(&[u8]) -> Outcome<()>,
    ) -> Outcome<()> {
        self.completion_queue
            .poll(&mut self.completions, POLL_BATCH)?;
        for completion in self.completions.drain(..) {
            if !completion.is_success() {
                return Err(completion.status().to_string().into());
            }
            if completion.wr_id().kind() == Some(WorkKind::Receive) {
                let (slot, len) = self.receives.claim(completion)?;
                received(&slot[..len])?;
                self.to_post.push(slot);
            } else {
                self.queue_pair.complete_send(completion, &mut sent)?;
            }
        }
        if self.to_post.len() >= REFILL_BATCH {
            self.receives.post_recv(&mut self.to_post, REFILL_BATCH)?;
        }
        Ok(())
    }
}

/// The way of a queue pair from its creation to its first message.
pub struct Setup {
    /// What the peer is told.
    pub local: RemoteEndpoint,
    address: PortAddress,
    /// READs that both sides allow at a time.
    depth: u8,
}

impl Setup {
    /// Initializes a queue pair that was just created.
    ///
    /// # Errors
    ///
    /// Fails if the device has no usable port.
    pub fn begin(context: &Context, queue_pair: &mut QueuePair) -> Outcome<Self> {
        let address = context.choose_address(AddressWish::default())?;
        queue_pair.to_init(address.port, Access::REMOTE_READ)?;
        Ok(Self {
            local: RemoteEndpoint {
                gid: address.gid,
                lid: address.lid,
                qp_num: queue_pair.qp_num(),
                psn: Psn::new(0),
            },
            address,
            depth: context.query_device().max_qp_rd_atomic.min(16),
        })
    }

    /// Makes the queue pair ready to receive from the peer.
    ///
    /// # Errors
    ///
    /// Fails if the device refuses the peer's endpoint.
    pub fn to_rtr(&self, queue_pair: &mut QueuePair, peer: RemoteEndpoint) -> Outcome<()> {
        Ok(queue_pair.to_rtr(RtrAttributes {
            sgid_index: self.address.gid_index,
            path_mtu: self.address.mtu,
            max_dest_rd_atomic: self.depth,
            ..RtrAttributes::new(peer)
        })?)
    }

    /// Makes the queue pair ready to send. The peer must be ready to receive.
    ///
    /// # Errors
    ///
    /// Fails if the queue pair is not ready to receive.
    pub fn to_rts(&self, queue_pair: &mut QueuePair) -> Outcome<()> {
        Ok(queue_pair.to_rts(RtsAttributes {
            max_rd_atomic: self.depth,
            ..RtsAttributes::new(self.local.psn)
        })?)
    }
}

/// Formats an endpoint as one line of text: the GID, the LID and the queue pair number, as JSON. All
/// packet sequence numbers begin with 0.
fn line_of(endpoint: &RemoteEndpoint) -> String {
    let RemoteEndpoint {
        gid, lid, qp_num, ..
    } = endpoint;
    format!("[{:?}, {lid}, {}]", gid.0, qp_num.0)
}

/// Reads an endpoint from its line.
fn endpoint_of(line: &str) -> Outcome<RemoteEndpoint> {
    let (gid, lid, qp_num) = serde_json::from_str(line)?;
    Ok(RemoteEndpoint {
        gid: Gid(gid),
        lid,
        qp_num: QpNum(qp_num),
        psn: Psn::new(0),
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
            psn: Psn::new(0),
        };
        assert_eq!(endpoint_of(&line_of(&endpoint)).expect("a line"), endpoint);
        assert!(endpoint_of("ready").is_err());
    }
}
