//! Queue pairs of one poller, made and brought up: by the poller when it connects, by the control
//! thread when a client is let in.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::handshake::Endpoint;
use crate::handshake::choice::Way;
use crate::handshake::endpoint::{ROCE, SOFT};
use crate::sizing::Plan;
use crate::verbs::{
    Access, CompletionQueueHandle, Context, Gid, ModifyError, Mtu, ProtectionDomain, Psn, QpNum,
    QueuePair, QueuePairConfig, RemoteEndpoint, RnrTimer, RtrAttributes, RtsAttributes,
    SharedReceiveQueue, VerbsError,
};

/// Every device here has one port in use.
const PORT: u8 = 1;

/// The index of the GID in use.
const GID_INDEX: u8 = 0;

/// 0.96 ms: short beside a retry's timeout, and never code 0, which is the longest of all.
const MIN_RNR_TIMER: RnrTimer = RnrTimer(13);

/// Where a device is reached.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// The kind of device, in a handshake's terms.
    pub(crate) kind: &'static str,
    gid: Gid,
    lid: u16,
    mtu: Mtu,
}

impl Address {
    pub(crate) fn of(context: &Context) -> Result<Self, VerbsError> {
        let port = context.query_port(PORT)?;
        Ok(Self {
            kind: kind_of(context),
            gid: context.query_gid(PORT, GID_INDEX)?,
            lid: port.lid,
            mtu: port.active_mtu,
        })
    }
}

/// For people: "port 1, GID 0 fe80::17, MTU 4096".
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {PORT}, ")?;
        if self.lid != 0 {
            write!(f, "LID {}, ", self.lid)?;
        }
        write!(f, "GID {GID_INDEX} {}, MTU {}", self.gid, mtu_len(self.mtu))
    }
}

/// The kind of a device, in a handshake's terms.
fn kind_of(context: &Context) -> &'static str {
    match context.device_name() {
        SOFT => SOFT,
        _ => ROCE,
    }
}

/// What queue pairs of one poller are made from. Usable from any thread.
#[derive(Debug)]
pub(crate) struct QueuePairs {
    domain: ProtectionDomain,
    completion_queue: CompletionQueueHandle,
    srq: SharedReceiveQueue,
    plan: Plan,
    address: Address,
    /// Queue pairs that exist: the completion queue has room for no more than the plan's.
    count: Arc<AtomicU32>,
}

/// Why a queue pair could not be made or brought up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueuePairError {
    /// The poller holds as many connections as it was sized for.
    #[error("the poller holds {limit} connections already; raise 'connections' where it is built")]
    Full {
        /// How many it was sized for.
        limit: u32,
    },
    /// The device refused to create it.
    #[error("no queue pair can be created: {0}")]
    Create(#[from] VerbsError),
    /// The device refused a transition.
    #[error("the queue pair cannot be connected: {0}")]
    Modify(#[from] ModifyError),
    /// The system gave no random number.
    #[error("no random packet sequence number: {0}")]
    Random(#[from] rustix::io::Errno),
}

/// A queue pair's place among those of its poller; dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicU32>);

impl Drop for Place {
    fn drop(&mut self) {
        // A count and nothing else.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A queue pair in INIT, which a peer can be told of.
#[derive(Debug)]
pub(crate) struct Nascent {
    queue_pair: QueuePair,
    psn: Psn,
    place: Place,
}

/// A queue pair in RTS.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) queue_pair: QueuePair,
    pub(crate) place: Place,
}

impl QueuePairs {
    pub(crate) fn new(
        address: Address,
        domain: ProtectionDomain,
        completion_queue: CompletionQueueHandle,
        srq: SharedReceiveQueue,
        plan: Plan,
    ) -> Self {
        Self {
            domain,
            completion_queue,
            srq,
            plan,
            address,
            count: Arc::default(),
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// This side's device, as far as choosing among several needs it.
    pub(crate) fn way(&self) -> Way<'_> {
        Way {
            kind: self.address.kind,
            device: &self.plan.limits.device,
            gid: self.address.gid.0,
        }
    }

    /// Makes a queue pair and brings it to INIT.
    pub(crate) fn create(&self) -> Result<Nascent, QueuePairError> {
        let limit = self.plan.limits.max_connections;
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let place = Place(Arc::clone(&self.count));
        if before >= limit {
            return Err(QueuePairError::Full { limit });
        }
        let mut queue_pair = self.domain.create_qp(QueuePairConfig {
            send_cq: &self.completion_queue,
            recv_cq: &self.completion_queue,
            srq: Some(&self.srq),
            max_send_wr: self.plan.limits.send_queue_depth as usize,
            max_recv_wr: 0,
            max_inline_data: self.plan.limits.max_inline_len,
            sq_sig_all: false,
        })?;
        queue_pair.to_init(PORT, Access::LOCAL_WRITE)?;
        Ok(Nascent {
            queue_pair,
            psn: random_psn()?,
            place,
        })
    }

    /// How a peer reaches a queue pair.
    pub(crate) fn endpoint(&self, nascent: &Nascent) -> Endpoint {
        Endpoint {
            kind: self.address.kind.to_owned(),
            device: self.plan.limits.device.clone(),
            gid: self.address.gid.0,
            mtu: mtu_len(self.address.mtu),
            qp_number: nascent.queue_pair.qp_num().0,
            psn: nascent.psn.get(),
            lid: self.address.lid,
        }
    }

    /// INIT to RTR to RTS, towards a peer.
    pub(crate) fn connect(
        &self,
        nascent: Nascent,
        remote: &Endpoint,
    ) -> Result<Ready, QueuePairError> {
        let Nascent {
            mut queue_pair,
            psn,
            place,
        } = nascent;
        queue_pair.to_rtr(RtrAttributes {
            remote: RemoteEndpoint {
                gid: Gid(remote.gid),
                lid: remote.lid,
                qp_num: QpNum(remote.qp_number),
                psn: Psn::new(remote.psn),
            },
            sgid_index: GID_INDEX,
            // Both sides reckon the same, each from its own and what it was told.
            path_mtu: self.address.mtu.min(mtu_of(remote.mtu)),
            min_rnr_timer: MIN_RNR_TIMER,
        })?;
        queue_pair.to_rts(RtsAttributes::new(psn))?;
        Ok(Ready { queue_pair, place })
    }
}

/// Random, so that packets of an earlier connection with the same numbers are not taken for ours.
fn random_psn() -> Result<Psn, rustix::io::Errno> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(Psn::new(u32::from_ne_bytes(bytes)))
}

fn mtu_len(mtu: Mtu) -> u32 {
    match mtu {
        Mtu::Bytes256 => 256,
        Mtu::Bytes512 => 512,
        Mtu::Bytes1024 => 1024,
        Mtu::Bytes2048 => 2048,
        Mtu::Bytes4096 => 4096,
    }
}

/// The MTU of a checked endpoint.
fn mtu_of(len: u32) -> Mtu {
    match len {
        4096.. => Mtu::Bytes4096,
        2048.. => Mtu::Bytes2048,
        1024.. => Mtu::Bytes1024,
        512.. => Mtu::Bytes512,
        _ => Mtu::Bytes256,
    }
}
