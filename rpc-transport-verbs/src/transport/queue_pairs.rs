//! Creates and connects the queue pairs of one poller: on the dialing thread when it connects to a
//! server, on a preparer thread of `control` when a client is admitted.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use verbline_verbs::{
    Access, AddressWish, CompletionQueueHandle, Context, Gid, GidType, LinkLayer, ModifyError, Mtu,
    PortAddress, ProtectionDomain, Psn, QpAttributes, QpNum, QpState, QueuePair, QueuePairConfig,
    RemoteEndpoint, RnrTimer, RtrAttributes, RtsAttributes, SharedReceiveQueue, VerbsError,
};

use crate::transport::endpoint::{DeviceAddress, Endpoint, INFINIBAND, ROCE, ROCE_V1, SOFT, TCP};
use crate::transport::failure::LaneFailure;
use crate::transport::path::{FabricSettings, SettingError, Source, SourceError};
use crate::transport::plan::Plan;

pub(crate) use verbline_verbs::for_transport::{AwaitedClaim, LinkTarget};

/// 0.96 ms: short compared with the retry timeout, and never code 0, which is the longest of all.
const MIN_RNR_TIMER: RnrTimer = RnrTimer::new(13).unwrap();

/// Returns the device kind, as named in the handshake, of a device that sends from this address.
fn kind_of(address: &PortAddress) -> &'static str {
    match address.link_layer {
        _ if address.gid_type == GidType::Tcp => TCP,
        LinkLayer::Memory => SOFT,
        LinkLayer::Tcp => TCP,
        LinkLayer::InfiniBand => INFINIBAND,
        // Ethernet, and link layers that the verbs crate does not know, or learns later.
        _ => match address.gid_type {
            GidType::RoceV1 => ROCE_V1,
            _ => ROCE,
        },
    }
}

/// The resources from which one poller's queue pairs are created. Usable from any thread.
#[derive(Debug)]
pub(crate) struct QueuePairs {
    domain: ProtectionDomain,
    completion_queue: CompletionQueueHandle,
    srq: SharedReceiveQueue,
    plan: Plan,
    /// The user's requirements for the address.
    wish: AddressWish,
    /// The user's requirements for the packets.
    fabric: FabricSettings,
    /// The source. Chosen again when the device reports that its GID table has changed.
    source: Mutex<Arc<Source>>,
    /// Why the settings are not in force at the present address, so that no more queue pairs are created.
    unfit: Mutex<Option<Arc<SettingError>>>,
    /// The device's place in the user's list, which says the order in which devices are tried.
    place: usize,
    /// The second source address of the software device: for TCP, beside shared memory, and its place.
    tcp: Option<(Arc<Source>, usize)>,
    /// Whether clients may connect over TCP, which does not encrypt anything.
    plaintext: Plaintext,
    /// Why no more queue pairs can be created.
    retired: OnceLock<Arc<LaneFailure>>,
    /// The number of existing queue pairs. The completion queue is sized for the plan's maximum.
    count: Arc<AtomicU32>,
}

/// The addresses from which the queue pairs of a lane send.
#[derive(Debug)]
pub(crate) struct SourceAddresses {
    pub(crate) wish: AddressWish,
    pub(crate) fabric: FabricSettings,
    pub(crate) first: Source,
    /// The device's place in the user's list.
    pub(crate) place: usize,
    /// The address for TCP, beside that for shared memory, and its place.
    pub(crate) tcp: Option<(PortAddress, usize)>,
}

#[cfg(any(test, feature = "test-util"))]
impl SourceAddresses {
    /// The only device of a test.
    pub(crate) fn only(address: PortAddress) -> Self {
        Self {
            wish: AddressWish::default(),
            fabric: FabricSettings::default(),
            first: Source::plain(address),
            place: 0,
            tcp: None,
        }
    }
}

/// Which connections there may be whose calls are not encrypted: a listener takes them, and a client
/// offers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Plaintext {
    /// None, on no device.
    Nowhere,
    /// Those of shared memory and of RDMA, as on every RDMA system, and none that anyone between the two
    /// hosts can read.
    #[default]
    Refused,
    /// Those of TCP, too.
    Allowed,
}

impl Plaintext {
    /// Returns true if there may be a connection of a device of this kind. `is_secured` tells whether
    /// what travels over TCP is encrypted.
    pub(crate) fn permits(self, kind: &str, is_secured: bool) -> bool {
        match self {
            Self::Nowhere => kind == TCP && is_secured,
            Self::Refused => kind != TCP || is_secured,
            Self::Allowed => true,
        }
    }
}

/// Why a queue pair could not be created or connected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueuePairError {
    /// The poller has as many connections as it was sized for.
    #[error(
        "the poller has {limit} connections already, its maximum; raise 'connections' where it is built"
    )]
    Full {
        /// The number of connections it was sized for.
        limit: u32,
    },
    /// A resource that its queue pairs share has failed.
    #[error("the device has failed before: {0}")]
    Retired(Arc<LaneFailure>),
    /// The device has lost what its settings need, such as a partition.
    #[error("the device has changed: {0}")]
    Unfit(Arc<SettingError>),
    /// The device could not create the queue pair.
    #[error("no queue pair can be created: {0}")]
    Create(#[from] VerbsError),
    /// The device cannot wait for the proof of a GID.
    #[error("the proof of a GID cannot be waited for: {0}")]
    Claim(#[source] VerbsError),
    /// The peer offers this side's own queue pair, which it guessed.
    #[error("the other side offers this side's queue pair as its own")]
    Own,
    /// The device rejected a state transition.
    #[error("the queue pair cannot be connected: {0}")]
    Modify(#[from] ModifyError),
    /// The system returned no random number.
    #[error("the system returned no random packet sequence number: {0}")]
    Random(#[from] rustix::io::Errno),
}

/// One of the poller's queue pairs in the count of existing ones. Decrements the count when
/// dropped.
#[derive(Debug)]
pub(crate) struct QpCountGuard(Arc<AtomicU32>);

impl Drop for QpCountGuard {
    fn drop(&mut self) {
        // Relaxed: the count publishes no other data.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A queue pair in INIT, whose endpoint can be sent to a peer.
#[derive(Debug)]
pub(crate) struct QpInit {
    queue_pair: QueuePair,
    /// The source, whose address is sent to the peer. The queue pair is connected from it even if the
    /// source of later queue pairs changes.
    source: Arc<Source>,
    psn: Psn,
    count_guard: QpCountGuard,
}

/// A queue pair in RTS.
#[derive(Debug)]
pub(crate) struct QpRts {
    pub(crate) queue_pair: QueuePair,
    pub(crate) count_guard: QpCountGuard,
    /// READs that either side may have outstanding; 0 if they did not agree on READs.
    pub(crate) read_depth: u8,
    /// True if the peer is a process of this host, which has the same clock.
    pub(crate) is_on_this_host: bool,
    /// True if the calls travel over TCP.
    pub(crate) is_over_tcp: bool,
}

impl QueuePairs {
    pub(crate) fn new(
        source: SourceAddresses,
        plaintext: Plaintext,
        domain: ProtectionDomain,
        completion_queue: CompletionQueueHandle,
        srq: SharedReceiveQueue,
        plan: Plan,
    ) -> Self {
        let SourceAddresses {
            wish,
            fabric,
            first,
            place,
            tcp,
        } = source;
        Self {
            domain,
            completion_queue,
            srq,
            plan,
            wish,
            fabric,
            source: Mutex::new(Arc::new(first)),
            unfit: Mutex::default(),
            place,
            tcp: tcp.map(|(address, place)| (Arc::new(Source::plain(address)), place)),
            plaintext,
            retired: OnceLock::new(),
            count: Arc::default(),
        }
    }

    pub(crate) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Stops the creation of queue pairs because a resource that they share has failed. Returns
    /// false if it was already stopped.
    pub(crate) fn retire(&self, device: &str, failure: Arc<LaneFailure>) -> bool {
        let is_first = self.retired.set(Arc::clone(&failure)).is_ok();
        if is_first {
            tracing::error!(device, error = %failure, "a device has failed for a poller: closing all its connections over it");
        }
        is_first
    }

    /// Returns the failure that stopped the creation of queue pairs, if any.
    pub(crate) fn failure(&self) -> Option<&Arc<LaneFailure>> {
        self.retired.get()
    }

    /// Chooses the source address again, for queue pairs that are created from now on. If there is none,
    /// they have the old one. If the settings cannot be in force there, there are none until they can:
    /// at the old place in the table of partitions may be another partition.
    pub(crate) fn choose_address_again(&self, context: &Context) -> Result<(), SourceError> {
        let address = context.choose_address(self.wish.clone())?;
        // Another port may have another table of partitions.
        let (present, unfit) = match self.fabric.source(context, address) {
            Ok(source) => (Some(source), None),
            Err(error) => (None, Some(Arc::new(error))),
        };
        let mut refused = self.unfit.lock().unwrap_or_else(PoisonError::into_inner);
        refused.clone_from(&unfit);
        if let Some(present) = present {
            *self.source.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(present);
        }
        unfit.map_or(Ok(()), |error| Err(SourceError::Setting(error)))
    }

    fn source(&self) -> Arc<Source> {
        // A poisoned lock is fine: the value is replaced as a whole, never half-written.
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&source)
    }

    /// Returns the port in use, counted from 1.
    pub(crate) fn port(&self) -> u8 {
        self.source().address.port
    }

    /// Returns this side's device as used to choose among several: the first of its addresses.
    pub(crate) fn device_address(&self) -> DeviceAddress<'_> {
        self.device_address_of(&self.source().address)
    }

    /// Returns this side's device once for each of its addresses.
    pub(crate) fn device_addresses(&self) -> impl Iterator<Item = DeviceAddress<'_>> {
        self.placed_addresses().map(|(_, address)| address)
    }

    /// Does the same, with the place of each in the user's list of devices.
    pub(crate) fn placed_addresses(&self) -> impl Iterator<Item = (usize, DeviceAddress<'_>)> {
        let first = (self.place, self.device_address());
        let second = self.tcp.as_ref();
        let second =
            second.map(|(source, place)| (*place, self.device_address_of(&source.address)));
        std::iter::once(first).chain(second)
    }

    fn device_address_of(&self, address: &PortAddress) -> DeviceAddress<'_> {
        let kind = kind_of(address);
        DeviceAddress {
            kind,
            device: match kind {
                TCP => TCP,
                _ => &self.plan.limits.device,
            },
            gid: address.gid.0,
        }
    }

    /// Returns whether clients may connect over TCP.
    pub(crate) fn plaintext(&self) -> Plaintext {
        self.plaintext
    }

    /// Returns the number of queue pairs that exist now.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits for a process to prove that an endpoint of the software device is its own: see
    /// [`ProtectionDomain::expect_claim`].
    pub(crate) fn expect_claim(
        &self,
        endpoint: &Endpoint,
        on_claim: impl FnOnce(bool) + Send + 'static,
    ) -> Result<AwaitedClaim, QueuePairError> {
        let (gid, qp_num) = (Gid(endpoint.gid), QpNum(endpoint.qp_number));
        let awaited = self.domain.expect_claim(gid, qp_num, on_claim);
        awaited.map_err(QueuePairError::Claim)
    }

    /// Proves to the process of `gid` that a queue pair and its GID are this process's. Takes about
    /// this time at most.
    pub(crate) fn claim(
        &self,
        qp_init: &QpInit,
        gid: [u8; 16],
        nonce: [u8; 16],
        time: Duration,
    ) -> Result<(), QueuePairError> {
        let qp_num = qp_init.queue_pair.qp_num();
        Ok(self.domain.claim(Gid(gid), nonce, qp_num, time)?)
    }

    /// Creates a queue pair and moves it to INIT.
    pub(crate) fn create(&self) -> Result<QpInit, QueuePairError> {
        if let Some(failure) = self.retired.get() {
            return Err(QueuePairError::Retired(Arc::clone(failure)));
        }
        let unfit = self.unfit.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = unfit.as_ref() {
            return Err(QueuePairError::Unfit(Arc::clone(error)));
        }
        drop(unfit);
        let limit = self.plan.limits.max_connections;
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let count_guard = QpCountGuard(Arc::clone(&self.count));
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
        let source = self.source();
        // No memory permits remote writes: this one lets a peer that closes send a WRITE of no bytes.
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let access = match self.plan.reads.depth {
            0 => writes,
            _ => writes | Access::REMOTE_READ,
        };
        queue_pair.modify(&QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(source.path.pkey_index),
            port: Some(source.address.port),
            access: Some(access),
            ..QpAttributes::default()
        })?;
        Ok(QpInit {
            queue_pair,
            source,
            psn: random_psn()?,
            count_guard,
        })
    }

    /// Returns the endpoints through which a peer reaches the queue pair, one for each address.
    pub(crate) fn endpoints(&self, qp_init: &QpInit) -> Vec<Endpoint> {
        let second = self.tcp.as_ref().map(|(source, _)| source);
        let sources = std::iter::once(&qp_init.source).chain(second);
        sources
            .map(|source| self.endpoint_at(qp_init, &source.address))
            .collect()
    }

    /// Returns the endpoint of this kind.
    pub(crate) fn endpoint(&self, qp_init: &QpInit, kind: &str) -> Endpoint {
        self.endpoint_at(qp_init, &self.source_of(qp_init, kind).address)
    }

    /// Returns the source of the queue pair whose address has this kind, or the first.
    fn source_of<'a>(&'a self, qp_init: &'a QpInit, kind: &str) -> &'a Source {
        match &self.tcp {
            Some((source, _)) if kind == TCP => source,
            _ => &qp_init.source,
        }
    }

    fn endpoint_at(&self, qp_init: &QpInit, address: &PortAddress) -> Endpoint {
        let DeviceAddress { kind, device, gid } = self.device_address_of(address);
        Endpoint {
            kind: kind.to_owned(),
            device: device.to_owned(),
            gid,
            mtu: address.mtu.bytes(),
            qp_number: qp_init.queue_pair.qp_num().0,
            psn: qp_init.psn.get(),
            lid: address.lid,
            read_depth: self.plan.reads.depth,
        }
    }

    /// Connects a queue pair to a peer: moves it from INIT to RTR to RTS.
    pub(crate) fn connect(
        &self,
        qp_init: QpInit,
        remote: &Endpoint,
    ) -> Result<QpRts, QueuePairError> {
        let Source { address, path } = self.source_of(&qp_init, &remote.kind).clone();
        let QpInit {
            mut queue_pair,
            psn,
            count_guard,
            ..
        } = qp_init;
        if remote.gid == address.gid.0 && remote.qp_number == queue_pair.qp_num().0 {
            return Err(QueuePairError::Own);
        }
        let remote_endpoint = RemoteEndpoint {
            gid: Gid(remote.gid),
            lid: remote.lid,
            qp_num: QpNum(remote.qp_number),
            psn: Psn::new(remote.psn),
        };
        // Both sides compute the same value here, too.
        let read_depth = self.plan.reads.depth.min(remote.read_depth);
        queue_pair.to_rtr(RtrAttributes {
            max_dest_rd_atomic: read_depth,
            sgid_index: address.gid_index,
            // Both sides compute the same value: the minimum of their own MTU and the peer's.
            path_mtu: address.mtu.min(Mtu::at_most(remote.mtu)),
            min_rnr_timer: MIN_RNR_TIMER,
            traffic_class: path.traffic_class,
            service_level: path.service_level,
            ..RtrAttributes::new(remote_endpoint)
        })?;
        let usual = RtsAttributes::new(psn);
        queue_pair.to_rts(RtsAttributes {
            max_rd_atomic: read_depth,
            timeout: path.timeout.unwrap_or(usual.timeout),
            retry_cnt: path.retries.unwrap_or(usual.retry_cnt),
            ..usual
        })?;
        Ok(QpRts {
            queue_pair,
            count_guard,
            read_depth,
            is_on_this_host: remote.kind == SOFT,
            is_over_tcp: remote.kind == TCP,
        })
    }
}

/// Returns a random initial PSN, so packets of an earlier connection with the same queue pair
/// numbers are not accepted.
fn random_psn() -> Result<Psn, rustix::io::Errno> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(Psn::new(u32::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests;
