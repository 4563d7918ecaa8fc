//! One end of a connection, of any type: what the cases about requests of every kind are written with. Its
//! memory is exposed, so that both ends can name every byte of it at any time.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use rpc_transport_verbs::verbs::{
    Access, AckTimeout, AddressHandle, AddressVector, AsyncEvent, CompletionChannel,
    CompletionOpcode, CompletionQueue, CompletionStatus, Context, Element, ExposedMemory, Mtu,
    PostErrorReason, ProtectionDomain, Psn, QpAttributes, QpNum, QpState, QpType, QueuePair,
    QueuePairConfig, ReceiveRequest, RemoteKey, RemoteMemory, RetryCount, RnrRetry, RnrTimer,
    SharedReceiveQueue, WorkCompletion, WorkKind, WorkRequest,
};

use super::verbs_side::{self, HANG, address};

/// What peers may do with an end's memory, unless the case is about that.
pub(crate) fn everything() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}
/// Bytes of an end's memory.
pub(crate) const LEN: usize = 64 << 10;
/// Of datagrams.
pub(crate) const QKEY: u32 = 0x1111_1111;
/// What a datagram's receive begins with.
pub(crate) const GRH: usize = 40;

const PSN: u32 = 0x00ff_fff0;

/// How an end is made.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) qp_type: QpType,
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
    pub(crate) max_sge: usize,
    pub(crate) max_inline_data: usize,
    /// 0: receives from a queue of its own.
    pub(crate) srq_wr: usize,
    pub(crate) cq_depth: usize,
    pub(crate) sq_sig_all: bool,
    /// Of the queue pair.
    pub(crate) access: Access,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) timeout: AckTimeout,
    pub(crate) rnr_retry: RnrRetry,
    pub(crate) min_rnr_timer: RnrTimer,
}

/// A reliable connection on which everything is permitted. Silence is noticed after 4.096 µs × 2^11 × 6, 50 ms.
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

/// What a completion said.
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
    /// As given to the device, to be compared.
    pub(crate) wr_id: u64,
}

pub(crate) struct End {
    pub(crate) qp: QueuePair,
    /// On the same queues.
    pub(crate) others: Vec<QueuePair>,
    pub(crate) srq: Option<SharedReceiveQueue>,
    pub(crate) cq: CompletionQueue,
    pub(crate) channel: CompletionChannel,
    pub(crate) memory: ExposedMemory,
    pub(crate) domain: ProtectionDomain,
    pub(crate) context: Context,
    pub(crate) options: Options,
    /// Polled, and not yet looked at.
    pending: VecDeque<Seen>,
}

impl End {
    /// With a queue pair in RESET.
    pub(crate) fn new(options: Options) -> Self {
        Self::of(Context::open(verbs_side::device()).unwrap(), options)
    }

    /// The same, in a domain of its own of this context.
    pub(crate) fn of(context: Context, options: Options) -> Self {
        let domain = context.alloc_pd().unwrap();
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

    /// Another queue pair on the same queues, in RESET.
    pub(crate) fn another(&self) -> QueuePair {
        create(&self.domain, &self.cq, self.srq.as_ref(), self.options)
    }

    /// Memory of its own, all `fill`.
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

    /// Its memory, as a peer names it.
    pub(crate) fn remote(&self, offset: usize) -> RemoteMemory {
        self.memory.remote(offset)
    }

    pub(crate) fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        self.memory.to_vec(range).unwrap()
    }

    /// What a WRITE leaves is seen soon after its completion, not with it.
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

    /// Whether the bytes are all `fill`.
    pub(crate) fn is_all(&self, range: Range<usize>, fill: u8) -> bool {
        self.bytes(range).iter().all(|byte| *byte == fill)
    }

    // ---- posting ----

    /// Posts it; its number in completions.
    pub(crate) fn post(&mut self, request: WorkRequest) -> u64 {
        let name = request.name();
        match self.qp.post_one(request) {
            Ok(wr_id) => wr_id.to_raw(),
            Err((_, reason)) => panic!("{name}: {reason}"),
        }
    }

    /// Posts it, signaled, and waits for its completion, the next that comes.
    pub(crate) fn run(&mut self, request: WorkRequest) -> Seen {
        let wr_id = self.post(request.signaled());
        let seen = self.one();
        assert_eq!(seen.wr_id, wr_id, "{seen:?}");
        seen
    }

    /// The same, which has to end so.
    pub(crate) fn expect(&mut self, request: WorkRequest, status: CompletionStatus) {
        let name = request.name();
        let seen = self.run(request);
        assert_eq!(seen.status, status, "{name}");
    }

    /// The same, which has to succeed.
    pub(crate) fn succeed(&mut self, request: WorkRequest) {
        self.expect(request, CompletionStatus::Success);
    }

    /// Why it is not even taken.
    pub(crate) fn refused(&mut self, request: WorkRequest) -> PostErrorReason {
        let name = request.name();
        match self.qp.post_one(request) {
            Err((_, reason)) => reason,
            Ok(_) => panic!("{name} was taken"),
        }
    }

    /// Posts a receive into these bytes of its memory.
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

    /// Polls once, and claims what came.
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

    /// The next completion.
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

    /// The next completions.
    pub(crate) fn wait(&mut self, count: usize) -> Vec<Seen> {
        (0..count).map(|_| self.one()).collect()
    }

    /// What has come by now.
    pub(crate) fn now(&mut self) -> Vec<Seen> {
        self.poll();
        self.pending.drain(..).collect()
    }

    /// The next completion, which has to be of a receive, and so.
    pub(crate) fn expect_recv(&mut self, status: CompletionStatus) -> Seen {
        let seen = self.one();
        assert_eq!((seen.kind, seen.status), (WorkKind::Receive, status));
        seen
    }

    /// The statuses of the next completions, in order.
    pub(crate) fn statuses(&mut self, count: usize) -> Vec<CompletionStatus> {
        self.wait(count).iter().map(|seen| seen.status).collect()
    }

    /// Nothing comes for a while (a case that is too quick here misses a fault, and fails never).
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

    /// To another state, without attributes.
    pub(crate) fn go(&mut self, state: QpState) {
        self.qp.modify(&to(state)).unwrap();
    }

    /// The next event, which must come.
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

    /// The way to the port that everything here is on, for datagrams.
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

/// The address of the port that everything here is on.
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

// ---- the way up, by hand: with everything that a type has ----

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

/// Connects two queue pairs, both ready to send.
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

/// Two ends of one process, connected, with nothing posted.
pub(crate) fn pair(options: Options) -> (End, End) {
    pair_of(options, options)
}

pub(crate) fn pair_of(left: Options, right: Options) -> (End, End) {
    let (mut left, mut right) = (End::new(left), End::new(right));
    connect((&mut left.qp, left.options), (&mut right.qp, right.options));
    (left, right)
}
