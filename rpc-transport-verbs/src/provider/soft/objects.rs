//! The device's objects as the seam above sees them: a place in a context, and what it takes to
//! make one and to end it.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::limits::in_range;
use super::super::{
    Operation, QueuePairConfig, ReceiveList, ReceiveWork, SendWork, Sge, WindowBinding, Work,
};
use super::completion_channel::{ChannelEvents, CompletionChannel};
use super::device;
use super::domain::{Domain, SharedReceives};
use super::faults::{point, taken};
use super::general_send::Outstanding;
use super::link_message::LinkMessage;
use super::node::Node;
use super::queue_pair::{Link, Retry, SoftQueuePair, remote_of};
use super::regions::MAX_REGIONS;
use super::request_message::REMOTE_LEN;
use super::ring::{MAX_IN_RING, RingReceiver};
use super::shared_memory::SharedMemory;
use super::unreliable::Waiting;
use super::unsupported::{check_access, check_extended};
use super::wake::MAX_READY;
use super::work_queues::{CompletionRing, ReceiveQueue, SendQueue};
use super::{DEVICE_NAME, MAX_RD_ATOMIC};
use crate::verbs::{
    Access, AsyncEvent, DeviceAttributes, DeviceCounters, Forked, Gid, GidEntry, GidType, LocalKey,
    ModifyError, OpenError, PartitionKey, PortAttributes, PostError, PostErrorReason, QpAttributes,
    QpNum, QpState, QpType, QueuePairCapabilities, RemoteKey, RnrCounters, SoftOptions,
    SrqAttributes, SrqNum, VerbsError, WorkCompletion, WrId,
};

/// Work requests of one queue. The layer above numbers them in 20 bits and keeps twice as many
/// places for receives as can be posted.
const MAX_WR: usize = 1 << 16;
/// Entries of a completion queue: enough for 64 of the deepest queues.
const MAX_CQE: usize = 1 << 22;
/// Completion queues, and shared receive queues, of one context.
const MAX_QUEUES: usize = 1 << 16;
/// Bytes of a region: a message's length has 31 bits, and so has an offset that ends one.
const MAX_REGION_LEN: usize = 1 << 36;
/// Scatter/gather elements of a request: as many descriptors of long pieces as one slot of a ring holds.
pub(super) const MAX_SGE: usize = 8;
/// Bytes that any request can carry in its slot of the ring: a WRITE says first where they go.
const MAX_INLINE: usize = MAX_IN_RING - REMOTE_LEN;
/// Bytes of the longest message.
pub(super) const MAX_MESSAGE_LEN: usize = 1 << 31;

const LIMITS: DeviceAttributes = DeviceAttributes {
    max_qp: MAX_READY,
    max_qp_wr: MAX_WR,
    max_sge: MAX_SGE,
    max_sge_rd: MAX_SGE,
    max_srq_sge: MAX_SGE,
    max_cq: MAX_QUEUES,
    max_cqe: MAX_CQE,
    max_srq: MAX_QUEUES,
    max_srq_wr: MAX_WR,
    max_mr: MAX_REGIONS,
    max_mr_len: MAX_REGION_LEN,
    // Shared memory is not locked.
    max_locked_len: usize::MAX,
    max_inline_data: MAX_INLINE,
    max_qp_rd_atomic: MAX_RD_ATOMIC,
    max_res_rd_atomic: MAX_RD_ATOMIC as usize * MAX_READY,
    port_count: 1,
    ..device::ATTRIBUTES
};

pub(super) fn exhausted(call: &'static str, what: &'static str, limit: usize) -> VerbsError {
    VerbsError::Exhausted {
        call,
        what,
        limit: limit as u64,
    }
}

/// A place in one of a context's tables, which are all limited to far less than 2³².
pub(super) fn place32(place: usize) -> u32 {
    place as u32
}

#[derive(Clone, Debug)]
pub(crate) struct Context {
    domain: Arc<Domain>,
}

impl Context {
    pub(crate) fn open(options: SoftOptions) -> Result<Self, OpenError> {
        Self::on(Node::get()?, options).map_err(|source| OpenError::Os {
            name: DEVICE_NAME.to_owned(),
            action: "make a context",
            source,
        })
    }

    /// One of a process's contexts.
    pub(super) fn on(node: Arc<Node>, options: SoftOptions) -> std::io::Result<Self> {
        let domain = Domain::open(node, options)?;
        Ok(Self { domain })
    }

    pub(crate) fn query_device(&self) -> DeviceAttributes {
        DeviceAttributes {
            node_guid: device::guid(self.domain.node.gid),
            sys_image_guid: device::guid(self.domain.node.gid),
            ..LIMITS
        }
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        in_range("query_port", "port", usize::from(port), 1, 1)?;
        Ok(PortAttributes {
            max_msg_len: MAX_MESSAGE_LEN,
            ..device::port()
        })
    }

    pub(crate) fn query_pkey(&self, port: u8, index: u16) -> Result<PartitionKey, VerbsError> {
        in_range("query_pkey", "port", usize::from(port), 1, 1)?;
        in_range("query_pkey", "index", usize::from(index), 0, 0)?;
        Ok(PartitionKey::DEFAULT)
    }

    pub(crate) fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        in_range("query_gid", "port", usize::from(port), 1, 1)?;
        in_range("query_gid", "index", usize::from(index), 0, 0)?;
        Ok(self.domain.node.gid)
    }

    pub(crate) fn query_gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        Ok(vec![GidEntry {
            index: 0,
            gid: self.query_gid(port, 0)?,
            gid_type: GidType::Soft,
            netdev: None,
        }])
    }

    pub(crate) fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        let mut state = self.domain.enter()?;
        let number = state.next_protection_domain;
        state.next_protection_domain = number
            .checked_add(1)
            .ok_or_else(|| exhausted("alloc_pd", "protection domains", u32::MAX as usize))?;
        Ok(ProtectionDomain {
            domain: Arc::clone(&self.domain),
            number,
        })
    }

    pub(crate) fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        self.domain.node.check()?;
        CompletionChannel::new(&self.domain).map_err(|source| VerbsError::Os {
            call: "create_comp_channel",
            source,
        })
    }

    pub(crate) fn create_cq(
        &self,
        depth: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        self.domain.node.check()?;
        in_range("create_cq", "depth", depth, 1, MAX_CQE)?;
        if channel.is_some_and(|channel| !channel.is_of(&self.domain)) {
            return Err(VerbsError::ForeignObject {
                call: "create_cq",
                object: "the completion channel",
            });
        }
        let number = self.domain.node.next_serial();
        let channel = channel.map(CompletionChannel::events);
        let ring = CompletionRing::new(depth, number, channel.clone());
        let mut state = self.domain.enter()?;
        if state.completion_queues.len() == MAX_QUEUES {
            return Err(exhausted("create_cq", "completion queues", MAX_QUEUES));
        }
        let place = state.completion_queues.insert(ring);
        Ok(CompletionQueue {
            domain: Arc::clone(&self.domain),
            place,
            number,
            channel,
        })
    }

    pub(crate) fn get_async_event(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<AsyncEvent>, VerbsError> {
        self.domain.node.check()?;
        Ok(self.domain.events.next(timeout))
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.domain.node.check().is_err()
    }

    pub(crate) fn interrupt_async_events(&self) {
        self.domain.events.interrupt();
    }

    pub(crate) fn counters(&self) -> Result<DeviceCounters, VerbsError> {
        Ok(self.domain.enter()?.counters)
    }

    pub(crate) fn rnr_counters(&self, port: u8) -> Option<RnrCounters> {
        in_range("rnr_counters", "port", usize::from(port), 1, 1).ok()?;
        let counters = self.counters().ok()?;
        Some(RnrCounters {
            nak_sent: counters.rnr_nak_sent,
            nak_received: counters.rnr_nak_received,
        })
    }
}

#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    pub(super) domain: Arc<Domain>,
    pub(super) number: u32,
}

impl ProtectionDomain {
    pub(crate) fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        self.domain.node.check()?;
        in_range("register", "len", len, 1, MAX_REGION_LEN)?;
        check_access(access)?;
        let memory = SharedMemory::arena(len).map_err(|source| VerbsError::Os {
            call: "register",
            source,
        })?;
        let node = &*self.domain.node;
        let (memory, arena) = (Arc::new(memory), node.next_arena());
        let bytes = (memory.mapping.start(), memory.mapping.len());
        let mut state = self.domain.enter()?;
        if state.regions.len() == MAX_REGIONS {
            return Err(exhausted("register", "memory regions", MAX_REGIONS));
        }
        let (local_key, remote_key) =
            state
                .regions
                .insert(node.next_serial(), self.number, bytes, access, arena);
        drop(state);
        self.domain.add_arena(arena, Arc::clone(&memory));
        node.announce_arena(&self.domain, arena, &memory.fd);
        let domain = Arc::clone(&self.domain);
        Ok(MemoryRegion {
            domain,
            memory,
            arena,
            local_key,
            remote_key,
        })
    }

    pub(crate) fn create_srq(
        &self,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        self.domain.node.check()?;
        in_range("create_srq", "max_wr", max_wr, 1, MAX_WR)?;
        in_range("create_srq", "max_sge", max_sge, 0, LIMITS.max_sge)?;
        let number = self.domain.node.next_serial();
        let queue = ReceiveQueue::new(max_wr);
        let mut state = self.domain.enter()?;
        if state.shared_receive_queues.len() == MAX_QUEUES {
            return Err(exhausted("create_srq", "shared receive queues", MAX_QUEUES));
        }
        let place = state.shared_receive_queues.insert(SharedReceives {
            queue,
            number,
            domain: self.number,
        });
        Ok(SharedReceiveQueue {
            domain: Arc::clone(&self.domain),
            place,
            number,
        })
    }

    pub(crate) fn create_qp(
        &self,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        srq: Option<&SharedReceiveQueue>,
        config: &QueuePairConfig<'_>,
    ) -> Result<QueuePair, VerbsError> {
        self.domain.node.check()?;
        check_extended(config)?;
        let call = "create_qp";
        let is_ours = |domain: &Arc<Domain>| Arc::ptr_eq(domain, &self.domain);
        for (ours, object) in [
            (is_ours(&send_cq.domain), "send_cq"),
            (is_ours(&recv_cq.domain), "recv_cq"),
            (srq.is_none_or(|srq| is_ours(&srq.domain)), "srq"),
        ] {
            if !ours {
                return Err(VerbsError::ForeignObject { call, object });
            }
        }
        let max_recv_wr = if srq.is_some() { 0 } else { config.max_recv_wr };
        in_range(call, "max_send_wr", config.max_send_wr, 1, MAX_WR)?;
        in_range(call, "max_recv_wr", max_recv_wr, 0, MAX_WR)?;
        in_range(call, "max_send_sge", config.max_send_sge, 0, MAX_SGE)?;
        let max_recv_sge = if srq.is_some() {
            0
        } else {
            config.max_recv_sge
        };
        in_range(call, "max_recv_sge", max_recv_sge, 0, MAX_SGE)?;
        in_range(
            call,
            "max_inline_data",
            config.max_inline_data,
            0,
            MAX_INLINE,
        )?;
        let number = self
            .domain
            .node
            .allocate_qp_num(&self.domain)
            .ok_or_else(|| exhausted(call, "queue-pair numbers", 1 << 24))?;
        let qp = SoftQueuePair {
            number: QpNum(number),
            qp_type: config.qp_type,
            domain: self.number,
            state: QpState::Reset,
            attributes: QpAttributes::default(),
            send_cq: send_cq.place,
            recv_cq: recv_cq.place,
            srq: srq.map(|srq| srq.place),
            sq_sig_all: config.sq_sig_all,
            sends: SendQueue::new(config.max_send_wr),
            waiting: Waiting::new(),
            receives: ReceiveQueue::new(max_recv_wr),
            link: Link::default(),
            retry: Retry::default(),
            outstanding: Outstanding::default(),
            is_hot: false,
            is_awaiting: false,
            is_unacked: false,
            empty_looks: 0,
            draining: None,
            established: false,
        };
        let place = self
            .insert(qp)
            .inspect_err(|_| self.domain.node.free_qp_num(number))?;
        self.domain.node.set_place(number, place);
        Ok(QueuePair {
            domain: Arc::clone(&self.domain),
            place,
            number: QpNum(number),
            capabilities: QueuePairCapabilities {
                max_send_wr: config.max_send_wr,
                max_recv_wr,
                max_send_sge: config.max_send_sge,
                max_recv_sge,
                max_inline_data: MAX_INLINE,
            },
            is_reliable: config.qp_type == QpType::ReliableConnection,
            is_connected: false,
            is_destroyed: false,
        })
    }

    fn insert(&self, qp: SoftQueuePair) -> Result<u32, VerbsError> {
        let mut state = self.domain.enter()?;
        if let Some(srq) = qp.srq
            && state.shared_receive_queues[srq].domain != self.number
        {
            return Err(VerbsError::ForeignObject {
                call: "create_qp",
                object: "srq",
            });
        }
        if state.queue_pairs.len() == MAX_READY {
            return Err(exhausted("create_qp", "queue pairs", MAX_READY));
        }
        let place = state.queue_pairs.insert(qp);
        state.places = state.places.max(place + 1);
        Ok(place32(place))
    }
}

#[derive(Debug)]
pub(crate) struct MemoryRegion {
    domain: Arc<Domain>,
    memory: Arc<SharedMemory>,
    arena: u64,
    local_key: LocalKey,
    remote_key: RemoteKey,
}

impl MemoryRegion {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.memory.mapping.start()
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.mapping.len()
    }

    pub(crate) fn local_key(&self) -> LocalKey {
        self.local_key
    }

    pub(crate) fn remote_key(&self) -> RemoteKey {
        self.remote_key
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // The owner word waits for a copy in progress, and no later one finds the key. In the child
        // of a fork there is nothing to take back.
        if let Ok(mut state) = self.domain.enter() {
            state.regions.remove(self.local_key);
            drop(state);
            self.domain.remove_arena(self.arena);
            self.domain.node.withdraw_arena(self.arena);
        }
    }
}

#[derive(Debug)]
pub(crate) struct CompletionQueue {
    domain: Arc<Domain>,
    place: usize,
    number: u32,
    channel: Option<Arc<ChannelEvents>>,
}

impl CompletionQueue {
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        if self.channel.is_none() {
            return Err(VerbsError::NoCompletionChannel);
        }
        let mut state = self.domain.enter()?;
        state.arm(self.place, solicited_only);
        let is_at_rest = state.is_at_rest();
        drop(state);
        let node = &self.domain.node;
        // Relaxed: see `Engine::tick`, which says so before it enters the context.
        if !is_at_rest && node.is_resting.load(Ordering::Relaxed) {
            node.wake_engine();
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn poll(
        &self,
        out: &mut Vec<WorkCompletion>,
        max: usize,
    ) -> Result<usize, VerbsError> {
        self.domain.enter()?.poll(self.place, out, max)
    }

    pub(crate) fn resize(&self, depth: usize) -> Result<(), VerbsError> {
        let mut state = self.domain.enter()?;
        let queue = &mut state.completion_queues[self.place];
        in_range("resize_cq", "depth", depth, queue.len().max(1), MAX_CQE)?;
        queue.set_capacity(depth);
        Ok(())
    }

    pub(crate) fn capacity(&self) -> usize {
        match self.domain.enter() {
            Ok(state) => state.completion_queues[self.place].capacity(),
            // Nothing works in the child of a fork, and nothing fits.
            Err(_) => 0,
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // Its queue pairs hold it, so they are gone.
        if let Ok(mut state) = self.domain.enter() {
            let _ = state.completion_queues.try_remove(self.place);
            let place = place32(self.place);
            state.overrun.retain(|overrun| *overrun != place);
            drop(state);
            // Nobody is told of a queue that is gone.
            if let Some(channel) = &self.channel {
                channel.forget(self.number);
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    domain: Arc<Domain>,
    place: usize,
    number: u32,
}

impl SharedReceiveQueue {
    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        let mut state = self.domain.enter().map_err(not_posted)?;
        let queue = &mut state.shared_receive_queues[self.place].queue;
        let most = taken!(Receives, work.len(), None);
        all_taken(queue.push(&work[..most]), work.len(), queue.capacity())
    }

    pub(crate) fn post_recv_lists(
        &self,
        work: &[ReceiveList],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        let mut state = self.domain.enter().map_err(not_posted)?;
        let queue = &mut state.shared_receive_queues[self.place].queue;
        let taken = queue.push_lists(work, elements);
        all_taken(taken, work.len(), queue.capacity())
    }

    pub(crate) fn resize(&self, max_wr: usize) -> Result<(), VerbsError> {
        let mut state = self.domain.enter()?;
        let queue = &mut state.shared_receive_queues[self.place].queue;
        in_range("modify_srq", "max_wr", max_wr, queue.len().max(1), MAX_WR)?;
        queue.set_capacity(max_wr);
        Ok(())
    }

    pub(crate) fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        let mut state = self.domain.enter()?;
        let queue = &mut state.shared_receive_queues[self.place].queue;
        in_range("modify_srq", "limit", limit, 0, queue.capacity())?;
        queue.set_limit(limit);
        Ok(())
    }

    pub(crate) fn query(&self) -> Result<SrqAttributes, VerbsError> {
        let state = self.domain.enter()?;
        let queue = &state.shared_receive_queues[self.place].queue;
        let max_sge = LIMITS.max_sge;
        Ok(SrqAttributes {
            max_wr: queue.capacity(),
            max_sge,
            limit: queue.limit(),
        })
    }

    pub(crate) fn number(&self) -> SrqNum {
        SrqNum(self.number)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // Its queue pairs hold it, so they are gone.
        if let Ok(mut state) = self.domain.enter() {
            let _ = state.shared_receive_queues.try_remove(self.place);
        }
    }
}

fn not_posted(forked: Forked) -> PostError {
    PostError {
        taken: 0,
        reason: forked.into(),
    }
}

fn all_taken(taken: usize, posted: usize, capacity: usize) -> Result<(), PostError> {
    if taken == posted {
        return Ok(());
    }
    Err(PostError {
        taken,
        reason: PostErrorReason::QueueFull { capacity },
    })
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(super) domain: Arc<Domain>,
    pub(super) place: u32,
    number: QpNum,
    capabilities: QueuePairCapabilities,
    /// It has rings.
    is_reliable: bool,
    /// Counted among those for which the engine ticks.
    is_connected: bool,
    is_destroyed: bool,
}

impl QueuePair {
    pub(crate) fn qp_num(&self) -> QpNum {
        self.number
    }

    pub(crate) fn capabilities(&self) -> QueuePairCapabilities {
        self.capabilities
    }

    pub(crate) fn state(&self) -> Result<QpState, VerbsError> {
        Ok(self.domain.enter()?.queue_pairs[self.place as usize].state)
    }

    pub(crate) fn query(&self) -> Result<QpAttributes, VerbsError> {
        Ok(self.domain.enter()?.query(self.place))
    }

    pub(crate) fn modify(
        &mut self,
        from: QpState,
        to: QpState,
        attributes: &QpAttributes,
    ) -> Result<(), ModifyError> {
        let own = self.domain.node.gid;
        let state = self.domain.enter()?;
        let qp = &state.queue_pairs[self.place as usize];
        qp.check_values(attributes)
            .and_then(|()| qp.check_reach(attributes, own))
            .map_err(|wrong| wrong.at(from, to))?;
        drop(state);
        let ready = match (from, to) {
            (QpState::Init, QpState::Rtr) if self.is_reliable => Some(self.connect(attributes)?),
            _ => None,
        };
        let mut state = self.domain.enter()?;
        state.modify(self.place, to, attributes, ready)?;
        if !state.overrun.is_empty() {
            state.fail_overrun();
        }
        drop(state);
        match to {
            QpState::Reset => self.set_connected(false),
            QpState::Rtr if self.is_reliable => self.set_connected(true),
            QpState::Rts if !self.is_reliable => self.send_unreliable(),
            _ => {}
        }
        Ok(())
    }

    /// Makes this side's ring and tells the peer of it: outside of the owner word, because sockets
    /// may make one wait.
    fn connect(
        &self,
        attributes: &QpAttributes,
    ) -> Result<(RingReceiver, Arc<super::peer::Peer>), ModifyError> {
        let fail = |action| move |source| ModifyError::Os { action, source };
        // All three are required for this transition, so that they are there.
        let (gid, remote) = remote_of(attributes).unwrap_or((self.domain.node.gid, self.number));
        let psn = attributes.rq_psn.unwrap_or_default();
        let peer = self.domain.node.connect(gid)?;
        let may_be_read = attributes.max_dest_rd_atomic.unwrap_or(0) > 0;
        let receiver = RingReceiver::new(psn.get(), may_be_read).map_err(fail("make a ring"))?;
        let attach = LinkMessage::Attach {
            from: self.number.0,
            to: remote.0,
            context: self.domain.number,
            ready_index: self.place,
        };
        self.domain
            .node
            .attach(&self.domain, gid, attach, receiver.fd())
            .map_err(fail("tell the peer of its ring"))?;
        point!(Attach);
        Ok((receiver, peer))
    }

    fn set_connected(&mut self, connected: bool) {
        if self.is_connected == connected {
            return;
        }
        self.is_connected = connected;
        let node = &*self.domain.node;
        if connected {
            node.connected.fetch_add(1, Ordering::AcqRel);
            // It may be sleeping without a tick.
            node.wake_engine();
        } else {
            node.connected.fetch_sub(1, Ordering::AcqRel);
        }
    }

    #[inline]
    pub(crate) fn post_send(&mut self, work: &[SendWork]) -> Result<(), PostError> {
        if !self.is_reliable {
            return self.post_send_unreliable(work);
        }
        let mut state = self.domain.enter().map_err(not_posted)?;
        let posted = state.post_send(self.place, work);
        if !state.overrun.is_empty() {
            state.fail_overrun();
        }
        posted
    }

    pub(crate) fn post(&mut self, work: &[Work], elements: &[Sge]) -> Result<(), PostError> {
        let mut state = self.domain.enter().map_err(not_posted)?;
        let posted = state.post(self.place, work, elements);
        if !state.overrun.is_empty() {
            state.fail_overrun();
        }
        drop(state);
        if !self.is_reliable {
            self.send_unreliable();
        }
        posted
    }

    pub(crate) fn bind_mw(
        &mut self,
        wr_id: WrId,
        binding: WindowBinding,
        signaled: bool,
    ) -> Result<RemoteKey, PostError> {
        let key = binding.key;
        let work = Work {
            wr_id,
            operation: Operation::BindWindow(binding),
            first_element: 0,
            element_count: 0,
            destination: None,
            signaled,
            fenced: false,
            solicited: false,
            inline: false,
        };
        self.post(&[work], &[]).map(|()| key)
    }

    pub(crate) fn post_recv_lists(
        &self,
        work: &[ReceiveList],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        let mut state = self.domain.enter().map_err(not_posted)?;
        let qp = &mut state.queue_pairs[self.place as usize];
        if qp.state == QpState::Reset {
            let reason = PostErrorReason::State { state: qp.state };
            return Err(PostError { taken: 0, reason });
        }
        let capacity = qp.receives.capacity();
        let taken = qp.receives.push_lists(work, elements);
        if qp.state == QpState::Error {
            state.flush_receives(self.place);
            if !state.overrun.is_empty() {
                state.fail_overrun();
            }
        }
        all_taken(taken, work.len(), capacity)
    }

    #[inline]
    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        let mut state = self.domain.enter().map_err(not_posted)?;
        let qp = &mut state.queue_pairs[self.place as usize];
        if qp.state == QpState::Reset {
            let reason = PostErrorReason::State { state: qp.state };
            return Err(PostError { taken: 0, reason });
        }
        let capacity = qp.receives.capacity();
        let taken = qp.receives.push(work);
        if qp.state == QpState::Error {
            state.flush_receives(self.place);
            if !state.overrun.is_empty() {
                state.fail_overrun();
            }
        }
        all_taken(taken, work.len(), capacity)
    }

    pub(crate) fn destroy(&mut self) {
        if std::mem::replace(&mut self.is_destroyed, true) {
            return;
        }
        // In the child of a fork there is nothing to destroy.
        let Ok(mut state) = self.domain.enter() else {
            return;
        };
        state.disconnect(self.place);
        state.queue_pairs.remove(self.place as usize);
        drop(state);
        self.set_connected(false);
        self.domain.node.free_qp_num(self.number.0);
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}
