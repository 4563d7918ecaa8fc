//! Queue pairs of one poller, made and brought up: by the poller when it connects, by the control
//! thread when a client is let in.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::transport::endpoint::{Endpoint, INFINIBAND, ROCE, ROCE_V1, SOFT, Way};
use crate::transport::failure::LaneFailure;
use crate::transport::plan::Plan;
use crate::verbs::{
    Access, AddressError, AddressWish, CompletionQueueHandle, Context, Gid, GidType, LinkLayer,
    ModifyError, Mtu, PortAddress, ProtectionDomain, Psn, QpNum, QueuePair, QueuePairConfig,
    RemoteEndpoint, RnrTimer, RtrAttributes, RtsAttributes, SharedReceiveQueue, VerbsError,
};

/// 0.96 ms: short beside a retry's timeout, and never code 0, which is the longest of all.
const MIN_RNR_TIMER: RnrTimer = RnrTimer::new(13).unwrap();

/// The kind of a device that sends from this address, in a handshake's terms.
fn kind_of(address: &PortAddress) -> &'static str {
    match address.link_layer {
        LinkLayer::Memory => SOFT,
        LinkLayer::InfiniBand => INFINIBAND,
        LinkLayer::Ethernet | LinkLayer::Other(_) => match address.gid_type {
            GidType::RoceV1 => ROCE_V1,
            _ => ROCE,
        },
    }
}

/// What queue pairs of one poller are made from. Usable from any thread.
#[derive(Debug)]
pub(crate) struct QueuePairs {
    domain: ProtectionDomain,
    completion_queue: CompletionQueueHandle,
    srq: SharedReceiveQueue,
    plan: Plan,
    /// What the user insists on in it.
    wish: AddressWish,
    /// Chosen again when the device says that its table has changed.
    address: Mutex<Arc<PortAddress>>,
    /// Why there are to be no more queue pairs.
    retired: OnceLock<Arc<LaneFailure>>,
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
    /// What it would share with others has failed.
    #[error("it has failed before: {0}")]
    Retired(Arc<LaneFailure>),
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
    /// What the peer is told, and what it is connected from, whatever changes in between.
    address: Arc<PortAddress>,
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
        wish: AddressWish,
        address: PortAddress,
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
            wish,
            address: Mutex::new(Arc::new(address)),
            retired: OnceLock::new(),
            count: Arc::default(),
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Ends the making of queue pairs, since what they would share has failed; `false` if it has
    /// ended before.
    pub(crate) fn retire(&self, device: &str, failure: Arc<LaneFailure>) -> bool {
        let is_first = self.retired.set(Arc::clone(&failure)).is_ok();
        if is_first {
            tracing::error!(device, error = %failure, "all connections of a poller over a device are lost");
        }
        is_first
    }

    /// Why there are to be no more.
    pub(crate) fn failure(&self) -> Option<&Arc<LaneFailure>> {
        self.retired.get()
    }

    /// Chooses again where to send from, for the queue pairs that are made from now on.
    pub(crate) fn choose_address_again(&self, context: &Context) -> Result<(), AddressError> {
        let present = Arc::new(context.choose_address(self.wish)?);
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = present;
        Ok(())
    }

    fn address(&self) -> Arc<PortAddress> {
        // Whoever panics under the lock has written nothing by halves.
        let address = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&address)
    }

    /// The device's port in use, from 1.
    pub(crate) fn port(&self) -> u8 {
        self.address().port
    }

    /// This side's device, as far as choosing among several needs it.
    pub(crate) fn way(&self) -> Way<'_> {
        let address = self.address();
        Way {
            kind: kind_of(&address),
            device: &self.plan.limits.device,
            gid: address.gid.0,
        }
    }

    /// Queue pairs that exist at this moment.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Makes a queue pair and brings it to INIT.
    pub(crate) fn create(&self) -> Result<Nascent, QueuePairError> {
        if let Some(failure) = self.retired.get() {
            return Err(QueuePairError::Retired(Arc::clone(failure)));
        }
        let limit = self.plan.limits.max_connections;
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let place = Place(Arc::clone(&self.count));
        if before >= limit {
            return Err(QueuePairError::Full { limit });
        }
        let mut queue_pair = self.domain.create_qp(QueuePairConfig {
            srq: Some(&self.srq),
            max_send_wr: self.plan.limits.send_queue_depth as usize,
            max_recv_wr: 0,
            max_inline_data: self.plan.limits.max_inline_len,
            sq_sig_all: false,
            ..QueuePairConfig::new(&self.completion_queue, &self.completion_queue)
        })?;
        let address = self.address();
        queue_pair.to_init(address.port, Access::LOCAL_WRITE)?;
        Ok(Nascent {
            queue_pair,
            address,
            psn: random_psn()?,
            place,
        })
    }

    /// How a peer reaches a queue pair.
    pub(crate) fn endpoint(&self, nascent: &Nascent) -> Endpoint {
        let address = &nascent.address;
        Endpoint {
            kind: kind_of(address).to_owned(),
            device: self.plan.limits.device.clone(),
            gid: address.gid.0,
            mtu: address.mtu.bytes(),
            qp_number: nascent.queue_pair.qp_num().0,
            psn: nascent.psn.get(),
            lid: address.lid,
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
            address,
            psn,
            place,
        } = nascent;
        let remote_endpoint = RemoteEndpoint {
            gid: Gid(remote.gid),
            lid: remote.lid,
            qp_num: QpNum(remote.qp_number),
            psn: Psn::new(remote.psn),
        };
        queue_pair.to_rtr(RtrAttributes {
            sgid_index: address.gid_index,
            // Both sides reckon the same, each from its own and what it was told.
            path_mtu: address.mtu.min(Mtu::at_most(remote.mtu)),
            min_rnr_timer: MIN_RNR_TIMER,
            ..RtrAttributes::new(remote_endpoint)
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
