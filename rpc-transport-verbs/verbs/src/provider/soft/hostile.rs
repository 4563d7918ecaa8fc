//! Attacks that another process can make on this device through the memory that they share: a ring
//! alone, and all memory of a working device. [`hostile_link`](super::hostile_link) and
//! [`hostile_tcp`](super::hostile_tcp) attack what is sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::process::node::Node;
use super::shared::ring::hostile::scribble;
use crate::testing::Script;
use crate::{
    Access, AckTimeout, Binding, CompletionChannel, CompletionQueue, CompletionStatus, Context,
    ExposedMemory, Gid, MemoryWindow, ProtectionDomain, Psn, QpNum, QpState, QueuePair,
    QueuePairConfig, RemoteEndpoint, RemoteMemory, RetryCount, RnrTimer, RtrAttributes,
    RtsAttributes, SendRequest, SharedReceiveQueue, Slot, WindowType, WorkKind, WorkRequest,
};

pub use super::shared::ring::hostile::soft_ring;

const SLOT_LEN: usize = 512;
const PAGE: usize = 4096;
const SLOTS: usize = 48;
pub(super) const PSN: u32 = 100;

/// Time limit for two queue pairs to connect over a link to their own process.
const PATIENCE: Duration = Duration::from_secs(20);

fn remote_access() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

fn exposed_access() -> Access {
    remote_access() | Access::LOCAL_WRITE | Access::MW_BIND
}

/// A context with one object of each kind.
pub(super) struct Side {
    pub(super) context: Context,
    channel: CompletionChannel,
    cq: CompletionQueue,
    srq: Option<SharedReceiveQueue>,
    pub(super) qp: QueuePair,
    slots: Vec<Slot>,
    /// Receives that were completed successfully.
    received: usize,
    /// Signaled sends that were completed successfully.
    sent: usize,
    /// The first status of a send that was neither a success nor a flush.
    failed: Option<CompletionStatus>,
    #[cfg_attr(not(test), expect(dead_code, reason = "only a test withdraws memory"))]
    domain: ProtectionDomain,
    /// Memory that peers may access: one page.
    exposed: ExposedMemory,
    window: MemoryWindow,
}

impl Side {
    pub(super) fn new(is_shared: bool) -> Self {
        Self::on(Context::open("soft").expect("a context"), is_shared)
    }

    pub(super) fn on(context: Context, is_shared: bool) -> Self {
        let domain = context.alloc_pd().expect("a protection domain");
        let channel = context.create_comp_channel().expect("a completion channel");
        let cq = context.create_cq_with_channel(256, &channel);
        let cq = cq.expect("a completion queue");
        let srq = is_shared.then(|| domain.create_srq(16, 1).expect("a shared receive queue"));
        let config = QueuePairConfig {
            srq: srq.as_ref(),
            max_send_sge: 2,
            max_inline_data: SLOT_LEN,
            ..QueuePairConfig::new(&cq, &cq)
        };
        let mut qp = domain.create_qp(config).expect("a queue pair");
        qp.to_init(1, remote_access()).expect("INIT");
        let exposed = domain.expose(PAGE, exposed_access());
        let exposed = exposed.expect("a region");
        let window = domain.alloc_mw(WindowType::Type2).expect("a window");
        let region = domain.register(SLOTS * SLOT_LEN, Access::LOCAL_WRITE);
        let slots = region
            .expect("a region")
            .into_slots(SLOT_LEN)
            .expect("slots");
        Self {
            context,
            channel,
            cq,
            srq,
            qp,
            slots,
            received: 0,
            sent: 0,
            failed: None,
            domain,
            exposed,
            window,
        }
    }

    pub(super) fn qp_num(&self) -> QpNum {
        self.qp.qp_num()
    }

    /// Returns the memory that peers may access.
    pub(super) fn remote(&self) -> RemoteMemory {
        self.exposed.remote(0)
    }

    #[cfg(test)]
    pub(super) fn state(&self) -> QpState {
        self.qp.state().expect("it is there")
    }

    #[cfg(test)]
    pub(super) fn received(&self) -> usize {
        self.received
    }

    #[cfg(test)]
    pub(super) fn sent(&self) -> usize {
        self.sent
    }

    #[cfg(test)]
    pub(super) fn failed(&self) -> Option<CompletionStatus> {
        self.failed
    }

    /// Deregisters the memory that peers may access, and offers other memory instead.
    #[cfg(test)]
    pub(super) fn withdraw(&mut self) {
        let other = self.domain.expose(PAGE, exposed_access());
        self.exposed = other.expect("a region");
    }

    /// Posts a WRITE of exposed memory that does not keep it registered: see
    /// [`withdraw`](Self::withdraw).
    #[cfg(test)]
    pub(super) fn write_from_raw_memory(&mut self, len: u32) {
        let start = self.exposed.address() as usize;
        let start = std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(start));
        let start = start.expect("an address");
        // SAFETY: nothing writes the bytes. If they are deregistered meanwhile, the software device does
        // not access them: it looks for their key before it reads them, while it holds the context's lock.
        let element = unsafe { crate::Element::from_raw(start, len, self.exposed.local_key()) };
        let request = WorkRequest::write(element, self.exposed.remote(0));
        self.qp.post_one(request).expect("there is room");
    }

    #[cfg(test)]
    pub(super) fn post_receives(&mut self, count: usize) {
        let posted = match &self.srq {
            Some(srq) => srq.post_recv(&mut self.slots, count),
            None => self.qp.post_recv(&mut self.slots, count),
        };
        posted.expect("there is room");
    }

    pub(super) fn gid(&self) -> Gid {
        self.context.query_gid(1, 0).expect("the device's GID")
    }

    pub(super) fn connect(&mut self, remote: QpNum) {
        self.connect_to(self.gid(), remote);
    }

    pub(super) fn connect_to(&mut self, gid: Gid, remote: QpNum) {
        let remote = RemoteEndpoint {
            gid,
            lid: 0,
            qp_num: remote,
            psn: Psn::new(PSN),
        };
        let rtr = RtrAttributes {
            min_rnr_timer: RnrTimer::new(1).expect("a code"),
            max_dest_rd_atomic: 4,
            ..RtrAttributes::new(remote)
        };
        self.qp.to_rtr(rtr).expect("RTR");
        let rts = RtsAttributes {
            timeout: AckTimeout::new(10).expect("a code"),
            retry_cnt: RetryCount::new(2).expect("a code"),
            max_rd_atomic: 4,
            ..RtsAttributes::new(Psn::new(PSN))
        };
        self.qp.to_rts(rts).expect("RTS");
    }

    /// Performs one step of the side's application. Errors are allowed, but every completion has to
    /// name a posted request.
    pub(super) fn act(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 4 {
            0 if step & 32 != 0 => self.request(step, script),
            0 => {
                let Some(slot) = self.slots.pop() else { return };
                let len = usize::from(script.byte()) * 2;
                let mut request = SendRequest::new(slot, len);
                request.signaled = step & 8 != 0;
                request.inline = step & 16 != 0;
                let mut list = vec![request];
                let slots = &mut self.slots;
                let _ = self.qp.post_send(&mut list, &mut |slot| slots.push(slot));
                slots.extend(list.into_iter().map(|request| request.slot));
            }
            1 => {
                let count = usize::from(step >> 4).min(self.slots.len());
                let _ = match &self.srq {
                    Some(srq) => srq.post_recv(&mut self.slots, count),
                    None => self.qp.post_recv(&mut self.slots, count),
                };
            }
            2 => self.poll(),
            // Arms the queue and waits, as an application does before it sleeps.
            _ => {
                let _ = self.cq.arm(step & 8 != 0);
                let _ = self.channel.wait(Some(Duration::ZERO));
            }
        }
    }

    /// Posts a request of any kind, with a remote address that may or may not be valid.
    fn request(&mut self, step: u8, script: &mut Script<'_>) {
        let kind = script.byte();
        let len = usize::from(script.short()) % PAGE;
        // An address and key of this side's own region. If a queue pair is connected to itself,
        // this is also the peer's region. Otherwise the peer does not have this key, although both
        // contexts use the same key indices.
        let mut remote = self.exposed.remote(usize::from(script.short()) % PAGE);
        remote.key.0 ^= u32::from(kind >> 4);
        remote.addr ^= u64::from(step & 64) << 8;
        let bytes = || self.exposed.element(0..len).expect("inside");
        let number = || self.exposed.element(0..8).expect("inside");
        let key = self.window.next_key();
        let request = match kind % 9 {
            0 => WorkRequest::send_with_imm(bytes(), 7),
            1 => WorkRequest::send_with_invalidate(bytes(), self.window.key()),
            2 => WorkRequest::write(bytes(), remote),
            3 => WorkRequest::write_with_imm(bytes(), remote, 7),
            4 => WorkRequest::read(bytes(), remote),
            5 => WorkRequest::compare_and_swap(number(), remote, 0, 1),
            6 => WorkRequest::fetch_and_add(number(), remote, 1),
            7 => WorkRequest::local_invalidate(key),
            _ => {
                let binding = Binding::new(&self.exposed, 0..len, remote_access());
                WorkRequest::bind_window(&self.window, binding, key)
            }
        };
        let request = if step & 8 == 0 {
            request
        } else {
            request.signaled()
        };
        let request = if step & 16 == 0 {
            request
        } else {
            request.fenced()
        };
        let _ = self.qp.post_one(request);
    }

    pub(super) fn poll(&mut self) {
        let mut completions = Vec::new();
        let _ = self.cq.poll(&mut completions, 16);
        for completion in completions {
            match completion.wr_id().kind() {
                Some(WorkKind::Send) => {
                    let status = completion.status();
                    self.sent += usize::from(status == CompletionStatus::Success);
                    if !matches!(
                        status,
                        CompletionStatus::Success | CompletionStatus::WorkRequestFlushed
                    ) {
                        self.failed.get_or_insert(status);
                    }
                    let slots = &mut self.slots;
                    let claimed = self
                        .qp
                        .complete_send(completion, &mut |slot| slots.push(slot));
                    claimed.expect("it was posted");
                }
                Some(WorkKind::Receive) => {
                    let status = completion.status();
                    let claimed = match &self.srq {
                        Some(srq) => srq.claim(completion),
                        None => self.qp.claim_recv(completion),
                    };
                    let (slot, len) = claimed.expect("it was posted");
                    assert!(len <= SLOT_LEN || status != CompletionStatus::Success);
                    self.received += usize::from(status == CompletionStatus::Success);
                    self.slots.push(slot);
                }
                None => panic!("a completion of nothing"),
            }
        }
        while let Ok(Some(_)) = self.context.get_async_event(Some(Duration::ZERO)) {}
        assert!(self.slots.len() <= SLOTS.next_multiple_of(4096 / SLOT_LEN));
    }

    /// Waits until the peer's ring has arrived.
    pub(super) fn wait_for_ring(&self) {
        let found = node().find_queue_pair(self.qp.qp_num().0);
        let (domain, qp_index) = found.expect("it is there");
        let start = Instant::now();
        let is_there = || {
            let state = domain.enter().expect("this process has not forked");
            state.queue_pairs[qp_index].link.sender().is_some()
        };
        while !is_there() {
            assert!(start.elapsed() < PATIENCE, "no ring has come");
            std::thread::yield_now();
        }
    }

    /// Makes one forged write to memory that this side shares.
    pub(super) fn forge(&self, step: u8, script: &mut Script<'_>) {
        let found = node().find_queue_pair(self.qp.qp_num().0);
        let (domain, qp_index) = found.expect("it is there");
        if step & 8 == 0 {
            let state = domain.enter().expect("this process has not forked");
            if let Some(rings) = state.queue_pairs[qp_index].link.rings() {
                rings.receiver.forge(script);
            }
        } else {
            let at = usize::from(script.short());
            let state = domain.enter().expect("this process has not forked");
            match step & 16 {
                0 => state.common.ready.scribble(at, script.piece()),
                // As the owner of the memory that the other side reads: all of its published table,
                // which is longer than two bytes count.
                _ => scribble(state.common.notes.mapping(), at * 4, script.piece()),
            }
        }
    }

    /// Moves the queue pair to ERROR and destroys it: everything posted has to come back, whatever
    /// was done to it.
    pub(super) fn end(mut self) {
        if !matches!(self.qp.state(), Ok(QpState::Error)) {
            self.qp.to_error().expect("ERROR, from any state but RESET");
        }
        for _ in 0..4 {
            self.poll();
        }
        let slots = &mut self.slots;
        self.qp.destroy(&mut |slot| slots.push(slot));
    }
}

pub(super) fn node() -> Arc<Node> {
    Node::get("soft").expect("the device is open")
}

/// Connects two queue pairs while a third party writes to the memory between them.
pub fn soft_device(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let is_shared = script.byte().is_multiple_of(2);
    let mut sides = [Side::new(is_shared), Side::new(is_shared)];
    let numbers = [sides[1].qp.qp_num(), sides[0].qp.qp_num()];
    for (side, remote) in sides.iter_mut().zip(numbers) {
        side.connect(remote);
    }
    sides.iter().for_each(Side::wait_for_ring);
    while let Some(step) = script.step() {
        let side = &mut sides[usize::from(step >> 7)];
        match step % 8 {
            0..5 => side.act(step % 8, &mut script),
            5 => side.act(step & !7, &mut script),
            _ => side.forge(step, &mut script),
        }
    }
    sides.into_iter().for_each(Side::end);
}
