//! One end of a connection of any type, with which the cases about all kinds of requests are
//! written. Its memory is exposed, so both ends can address every byte of it at any time.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use verbline_verbs::{
    Access, AckTimeout, AddressHandle, AddressVector, AsyncEvent, CompletionChannel,
    CompletionOpcode, CompletionQueue, CompletionStatus, Context, Element, ExposedMemory, Mtu,
    PostErrorReason, ProtectionDomain, Psn, QpAttributes, QpNum, QpState, QpType, QueuePair,
    QueuePairConfig, ReceiveRequest, RemoteKey, RemoteMemory, RetryCount, RnrRetry, RnrTimer,
    SharedReceiveQueue, WorkCompletion, WorkKind, WorkRequest,
};

use super::verbs_side::{self, HANG, address};

/// Returns the rights that peers have to an end's memory, unless a case is about rights.
pub(crate) fn everything() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}
/// Length of an end's memory in bytes.
pub(crate) const LEN: usize = 64 << 10;
/// The Q_Key of datagrams.
pub(crate) const QKEY: u32 = 0x1111_1111;
/// Length of the GRH at the start of a received datagram.
pub(crate) const GRH: usize = 40;

const PSN: u32 = 0x00ff_fff0;

/// The parameters of an end.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) qp_type: QpType,
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
    pub(crate) max_sge: usize,
    pub(crate) max_inline_data: usize,
    /// 0: the queue pair has its own receive queue.
    pub(crate) srq_wr: usize,
    pub(crate) cq_depth: usize,
    pub(crate) sq_sig_all: bool,
    /// The access flags of the queue pair.
    pub(crate) access: Access,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) timeout: AckTimeout,
    pub(crate) rnr_retry: RnrRetry,
    pub(crate) min_rnr_timer: RnrTimer,
}

/// Returns the options of a reliable connection that permits everything. A peer that does not
/// respond is detected after 4.096 µs × 2^11 × 6 = 50 ms.
pub(crate) fn rc() -> Options {
    Options {
        qp_type: QpType::ReliableConnection,
        max_send_wr: 32,
        max_recv_wr: 32,
        max_sge: 4,
        max_inline_data: 64,
        srq_wr: 0,
        cq_depth: 256,
        sq_sig_all: false,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        timeout: AckTimeout::new(11).unwrap(),
        rnr_retry: RnrRetry::FOREVER,
        min_rnr_timer: RnrTimer::new(1).unwrap(),
    }
}

pub(crate) fn ud() -> Options {
    Options {
        qp_type: QpType::UnreliableDatagram,
        ..rc()
    }
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kind: WorkKind,
    pub(crate) status: CompletionStatus,
    pub(crate) opcode: Option<CompletionOpcode>,
    pub(crate) len: usize,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidated: Option<RemoteKey>,
    pub(crate) qp_num: QpNum,
    pub(crate) src_qp: Option<QpNum>,
    /// As passed to the device, to be compared.
    pub(crate) wr_id: u64,
}

pub(crate) struct End {
    pub(crate) qp: QueuePair,
    /// More queue pairs on the same queues.
    pub(crate) others: Vec<QueuePair>,
    pub(crate) srq: Option<SharedReceiveQueue>,
    pub(crate) cq: CompletionQueue,
    pub(crate) channel: CompletionChannel,
    pub(crate) memory: ExposedMemory,
    pub(crate) domain: ProtectionDomain,
    pub(crate) context: Context,
    pub(crate) options: Options,
    /// Completions that were polled but not yet returned.
    pending: VecDeque<Seen>,
}

impl End {
    /// Creates an end with a queue pair in RESET.
    pub(crate) fn new(options: Options) -> Self {
        Self::of(verbs_side::open(), options)
    }

    /// Creates an end in a new domain of this context.
    pub(crate) fn of(context: Context, options: Options) -> Self {
        let domain = context.alloc_pd().unwrap();
        Self::within(context, domain, options)
    }

    /// Creates an end in this domain of this context.
    pub(crate) fn within(context: Context, domain: ProtectionDomain, options: Options) -> Self {
        let channel = context.create_comp_channel().unwrap();
        let cq = context
            .create_cq_with_channel(options.cq_depth, &channel)
            .unwrap();
        let srq = (options.srq_wr > 0)
            .then(|| domain.create_srq(options.srq_wr, options.max_sge).unwrap());
        let qp = create(&domain, &cq, srq.as_ref(), options);
        let memory = domain.expose(LEN, everything() | Access::MW_BIND).unwrap();
        Self {
            qp,
            others: Vec::new(),
            srq,
            cq,
            channel,
            memory,
            domain,
            context,
            options,
            pending: VecDeque::new(),
        }
    }

    /// Creates another queue pair on the same queues, in RESET.
    pub(crate) fn another(&self) -> QueuePair {
        create(&self.domain, &self.cq, self.srq.as_ref(), self.options)
    }

    /// Registers more memory, filled with `fill`.
    pub(crate) fn expose(&self, len: usize, access: Access, fill: u8) -> ExposedMemory {
        let memory = self.domain.expose(len, access).unwrap();
        memory.write(0, &vec![fill; len]).unwrap();
        memory
    }

    pub(crate) fn fill(&self, range: Range<usize>, fill: u8) {
        self.memory
            .write(range.start, &vec![fill; range.len()])
            .unwrap();
    }

    pub(crate) fn at(&self, range: Range<usize>) -> Element {
        self.memory.element(range).unwrap()
    }

    /// Returns the end's memory as a peer addresses it.
    pub(crate) fn remote(&self, offset: usize) -> RemoteMemory {
        self.memory.remote(offset)
    }

    pub(crate) fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        self.memory.to_vec(range).unwrap()
    }

    /// Waits until the bytes are all `fill`. The data of a WRITE is visible soon after its
    /// completion, not together with it.
    pub(crate) fn becomes(&self, range: Range<usize>, fill: u8) {
        let start = Instant::now();
        while !self.is_all(range.clone(), fill) {
            assert!(
                start.elapsed() < HANG,
                "{:?}",
                self.bytes(range.start..range.start + 8)
            );
            std::thread::yield_now();
        }
    }

    /// Returns true if the bytes are all `fill`.
    pub(crate) fn is_all(&self, range: Range<usize>, fill: u8) -> bool {
        self.bytes(range).iter().all(|byte| *byte == fill)
    }

    // ---- posting ----

    /// Posts a request. Returns its number in completions.
    pub(crate) fn post(&mut self, request: WorkRequest) -> u64 {
        let name = request.name();
        match self.qp.post_one(request) {
            Ok(wr_id) => wr_id.to_raw(),
            Err((_, reason)) => panic!("{name}: {reason}"),
        }
    }

    /// Posts a request, signaled, and waits for its completion, which must be the next one.
    pub(crate) fn run(&mut self, request: WorkRequest) -> Seen {
        let wr_id = self.post(request.signaled());
        let seen = self.one();
        assert_eq!(seen.wr_id, wr_id, "{seen:?}");
        seen
    }

    /// Does the same, and polls the peer meanwhile, where nothing may arrive: `soft` is slow for a
    /// process that does not ask.
    pub(crate) fn run_with(&mut self, peer: &mut Self, request: WorkRequest) -> Seen {
        let name = request.name();
        let wr_id = self.post(request.signaled());
        let start = Instant::now();
        loop {
            assert_eq!(peer.now(), [], "{name}");
            if let [seen] = self.now()[..] {
                assert_eq!(seen.wr_id, wr_id, "{seen:?}");
                return seen;
            }
            assert!(start.elapsed() < HANG, "{name} does not complete");
        }
    }

    /// Runs a request that has to complete with this status.
    pub(crate) fn expect(&mut self, request: WorkRequest, status: CompletionStatus) {
        let name = request.name();
        let seen = self.run(request);
        assert_eq!(seen.status, status, "{name}");
    }

    /// Runs a request that has to succeed.
    pub(crate) fn succeed(&mut self, request: WorkRequest) {
        self.expect(request, CompletionStatus::Success);
    }

    /// Posts a request that has to be rejected. Returns the reason.
    pub(crate) fn refused(&mut self, request: WorkRequest) -> PostErrorReason {
        let name = request.name();
        match self.qp.post_one(request) {
            Err((_, reason)) => reason,
            Ok(_) => panic!("{name} was taken"),
        }
    }

    /// Posts a receive into these bytes of the end's memory.
    pub(crate) fn recv(&mut self, range: Range<usize>) {
        let element = self.at(range);
        self.recv_into(vec![element]);
    }

    pub(crate) fn recv_into(&mut self, elements: Vec<Element>) {
        let mut list = vec![ReceiveRequest::new(elements)];
        match &self.srq {
            Some(srq) => srq.post_recv_elements(&mut list),
            None => self.qp.post_recv_elements(&mut list),
        }
        .unwrap();
    }

    // ---- completions ----

    /// Polls once and claims the completions.
    fn poll(&mut self) {
        let mut completions = Vec::new();
        self.cq.poll(&mut completions, 64).unwrap();
        for completion in completions {
            let seen = self.claim(completion);
            self.pending.push_back(seen);
        }
    }

    fn claim(&mut self, completion: WorkCompletion) -> Seen {
        let qp_num = completion.qp_num();
        let seen = Seen {
            kind: completion.wr_id().kind().expect("a completion of a kind"),
            status: completion.status(),
            opcode: completion.opcode(),
            len: completion.byte_len(),
            imm: completion.imm(),
            invalidated: completion.invalidated(),
            qp_num,
            src_qp: completion.src_qp(),
            wr_id: completion.wr_id().to_raw(),
        };
        let qp = match self.others.iter_mut().find(|qp| qp.qp_num() == qp_num) {
            Some(other) => other,
            None => &mut self.qp,
        };
        assert_eq!(qp.qp_num(), qp_num);
        match (seen.kind, &self.srq) {
            (WorkKind::Send, _) => qp.complete_send(completion, &mut drop).unwrap(),
            (WorkKind::Receive, Some(srq)) => drop(srq.claim_elements(completion).unwrap()),
            (WorkKind::Receive, None) => drop(qp.claim_recv_elements(completion).unwrap()),
        }
        seen
    }

    /// Waits for the next completion.
    pub(crate) fn one(&mut self) -> Seen {
        let start = Instant::now();
        loop {
            if let Some(seen) = self.pending.pop_front() {
                return seen;
            }
            assert!(start.elapsed() < HANG, "no completion comes");
            self.poll();
            std::thread::yield_now();
        }
    }

    /// Waits for the next completions.
    pub(crate) fn wait(&mut self, count: usize) -> Vec<Seen> {
        (0..count).map(|_| self.one()).collect()
    }

    /// Returns the completions that have arrived by now.
    pub(crate) fn now(&mut self) -> Vec<Seen> {
        self.poll();
        self.pending.drain(..).collect()
    }

    /// Waits for the next completion, which has to be a receive with this status.
    pub(crate) fn expect_recv(&mut self, status: CompletionStatus) -> Seen {
        let seen = self.one();
        assert_eq!((seen.kind, seen.status), (WorkKind::Receive, status));
        seen
    }

    /// Returns the statuses of the next completions, in order.
    pub(crate) fn statuses(&mut self, count: usize) -> Vec<CompletionStatus> {
        self.wait(count).iter().map(|seen| seen.status).collect()
    }

    /// Checks that nothing arrives for a while. If the wait is too short, the case misses a fault,
    /// but it never fails wrongly.
    pub(crate) fn assert_quiet(&mut self) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {
            assert_eq!(self.now(), []);
            std::thread::yield_now();
        }
    }

    // ---- states and events ----

    pub(crate) fn state(&self) -> QpState {
        self.qp.state().unwrap()
    }

    pub(crate) fn wait_for_state(&mut self, state: QpState) {
        let start = Instant::now();
        while self.state() != state {
            assert!(start.elapsed() < HANG, "still in {}", self.state());
            std::thread::yield_now();
        }
    }

    /// Moves the queue pair to another state, without attributes.
    pub(crate) fn go(&mut self, state: QpState) {
        self.qp.modify(&to(state)).unwrap();
    }

    /// Returns the next event, which has to arrive.
    pub(crate) fn event(&self) -> AsyncEvent {
        self.context
            .get_async_event(Some(HANG))
            .unwrap()
            .expect("an event")
    }

    pub(crate) fn assert_no_event(&self) {
        let quiet = Some(Duration::from_millis(30));
        assert_eq!(self.context.get_async_event(quiet).unwrap(), None);
    }

    /// Returns an address handle for the port that all queue pairs here use, for datagrams.
    pub(crate) fn way(&self) -> AddressHandle {
        self.domain.create_ah(own_port()).unwrap()
    }
}

pub(crate) fn to(state: QpState) -> QpAttributes {
    QpAttributes {
        state: Some(state),
        ..QpAttributes::default()
    }
}

/// Returns the address of the port that all queue pairs here use.
pub(crate) fn own_port() -> AddressVector {
    AddressVector {
        gid: address().gid,
        lid: address().lid,
        sgid_index: address().gid_index,
        is_global: address().lid == 0,
        port: address().port,
        ..AddressVector::default()
    }
}

pub(crate) fn create(
    domain: &ProtectionDomain,
    cq: &CompletionQueue,
    srq: Option<&SharedReceiveQueue>,
    options: Options,
) -> QueuePair {
    domain
        .create_qp(QueuePairConfig {
            qp_type: options.qp_type,
            srq,
            max_send_wr: options.max_send_wr,
            max_recv_wr: options.max_recv_wr,
            max_send_sge: options.max_sge,
            max_recv_sge: options.max_sge,
            max_inline_data: options.max_inline_data,
            sq_sig_all: options.sq_sig_all,
            ..QueuePairConfig::new(cq, cq)
        })
        .unwrap()
}

// ---- state transitions by hand, with all attributes of the type ----

pub(crate) fn init(qp: &mut QueuePair, options: Options) {
    let is_datagram = qp.qp_type() == QpType::UnreliableDatagram;
    qp.modify(&QpAttributes {
        pkey_index: Some(0),
        port: Some(address().port),
        qkey: is_datagram.then_some(QKEY),
        access: (!is_datagram).then_some(options.access),
        ..to(QpState::Init)
    })
    .unwrap();
}

pub(crate) fn rtr(qp: &mut QueuePair, remote: QpNum, options: Options) {
    let is_datagram = qp.qp_type() == QpType::UnreliableDatagram;
    let is_reliable = qp.qp_type() == QpType::ReliableConnection;
    qp.modify(&QpAttributes {
        address: (!is_datagram).then(own_port),
        path_mtu: (!is_datagram).then_some(Mtu::Bytes1024),
        dest_qp_num: (!is_datagram).then_some(remote),
        rq_psn: (!is_datagram).then_some(Psn::new(PSN)),
        max_dest_rd_atomic: is_reliable.then_some(options.max_dest_rd_atomic),
        min_rnr_timer: is_reliable.then_some(options.min_rnr_timer),
        ..to(QpState::Rtr)
    })
    .unwrap();
}

pub(crate) fn rts(qp: &mut QueuePair, options: Options) {
    let is_reliable = qp.qp_type() == QpType::ReliableConnection;
    qp.modify(&QpAttributes {
        sq_psn: Some(Psn::new(PSN)),
        timeout: is_reliable.then_some(options.timeout),
        retry_cnt: is_reliable.then_some(RetryCount::new(5).unwrap()),
        rnr_retry: is_reliable.then_some(options.rnr_retry),
        max_rd_atomic: is_reliable.then_some(options.max_rd_atomic),
        ..to(QpState::Rts)
    })
    .unwrap();
}

/// Connects two queue pairs and moves both to RTS.
pub(crate) fn connect(
    (left, left_options): (&mut QueuePair, Options),
    (right, right_options): (&mut QueuePair, Options),
) {
    let (to_left, to_right) = (left.qp_num(), right.qp_num());
    init(left, left_options);
    init(right, right_options);
    rtr(left, to_right, left_options);
    rtr(right, to_left, right_options);
    rts(left, left_options);
    rts(right, right_options);
}

/// Creates two connected ends in one process, with nothing posted.
pub(crate) fn pair(options: Options) -> (End, End) {
    pair_of(options, options)
}

pub(crate) fn pair_of(left: Options, right: Options) -> (End, End) {
    let (mut left, mut right) = (End::new(left), End::new(right));
    connect((&mut left.qp, left.options), (&mut right.qp, right.options));
    (left, right)
}
