//! One side of a connection, for the tests of the verbs layer: a context with one object of each
//! kind, on the device that the environment variable `VERBLINE_DEVICE` names, or on `soft`.

// Each test program uses a different part of this.
#![allow(dead_code)]

#[cfg(feature = "test-util")]
mod tls_records;

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

#[cfg(feature = "test-util")]
use verbline_verbs::for_transport::LinkRecords;
use verbline_verbs::{
    Access, AckTimeout, AddressWish, AsyncEvent, CompletionChannel, CompletionQueue,
    CompletionStatus, Context, DeviceName, MemoryRegion, PortAddress, PostError, ProtectionDomain,
    Psn, QpAttributes, QpState, QueuePair, QueuePairConfig, ReadExecution, ReceiveOrder,
    RemoteEndpoint, RetryCount, RnrTimer, RtrAttributes, RtsAttributes, SendRequest,
    SharedReceiveQueue, Slot, SoftOptions, SoftPath, WorkCompletion, WorkKind,
};

/// Time limit of all waits. Far longer than they take: only a hang reaches it.
pub(crate) const HANG: Duration = Duration::from_secs(20);
pub(crate) const SLOT_LEN: usize = 2048;
const PSN: u32 = 0x00ff_fff0;

/// Returns the device under test as it was named, which may be `mlx5_0:1:3` or `@eth0`.
fn named() -> &'static str {
    static NAMED: OnceLock<String> = OnceLock::new();
    NAMED.get_or_init(|| std::env::var("VERBLINE_DEVICE").unwrap_or_else(|_| "soft".to_owned()))
}

/// Returns the name of the device under test.
pub(crate) fn device() -> &'static str {
    static DEVICE: OnceLock<String> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let name = named().parse::<DeviceName>();
        let name = name.unwrap_or_else(|error| panic!("{error}"));
        name.device.unwrap_or_else(|| {
            let context = Context::open(named());
            let context = context.unwrap_or_else(|error| panic!("{error}"));
            context.device_name().to_owned()
        })
    })
}

/// Returns the options under which `soft` is tested: its own, unless these variables change them. If
/// `SHARED_RECEIVES` is `oldest`, it takes the receives of a shared queue in the order of network
/// devices. If `READS` is `target`, the side that owns the memory executes READs. If `RECORDS` is
/// `tls`, links over TCP are in the records of TLS.
pub(crate) fn soft_options() -> SoftOptions {
    if cfg!(not(feature = "test-util")) {
        let records = std::env::var("RECORDS");
        assert!(records.is_err(), "RECORDS needs the feature test-util");
    }
    static IS_OLDEST_FIRST: OnceLock<bool> = OnceLock::new();
    let is_oldest_first = *IS_OLDEST_FIRST.get_or_init(|| {
        match std::env::var("SHARED_RECEIVES")
            .as_deref()
            .unwrap_or("newest")
        {
            "newest" => false,
            "oldest" => true,
            other => panic!("SHARED_RECEIVES is newest or oldest, not {other:?}"),
        }
    });
    SoftOptions {
        shared_receive_order: if is_oldest_first {
            ReceiveOrder::OldestFirst
        } else {
            ReceiveOrder::NewestFirst
        },
        read_execution: read_execution(),
        path: match device() {
            "tcp" => SoftPath::TCP_OVER_LOOPBACK,
            _ => SoftPath::SharedMemory,
        },
        #[cfg(feature = "test-util")]
        link_records: is_in_records().then_some(LinkRecords(tls_records::layer)),
        ..SoftOptions::default()
    }
}

#[cfg(feature = "test-util")]
fn is_in_records() -> bool {
    std::env::var("RECORDS").is_ok_and(|records| match records.as_str() {
        "none" => false,
        "tls" => true,
        other => panic!("RECORDS is none or tls, not {other:?}"),
    })
}

/// Returns true if the device under test is the software device, over shared memory or over TCP.
pub(crate) fn is_soft() -> bool {
    matches!(device(), "soft" | "tcp")
}

/// Returns which side executes READs on `soft`.
pub(crate) fn read_execution() -> ReadExecution {
    static IS_TARGET: OnceLock<bool> = OnceLock::new();
    let is_target =
        *IS_TARGET.get_or_init(
            || match std::env::var("READS").as_deref().unwrap_or("in-place") {
                "in-place" => false,
                "target" => true,
                other => panic!("READS is in-place or target, not {other:?}"),
            },
        );
    match is_target {
        true => ReadExecution::ByTarget,
        false => ReadExecution::InPlace,
    }
}

/// Opens the device under test.
pub(crate) fn open() -> Context {
    if is_soft() {
        Context::open_soft(soft_options()).unwrap()
    } else {
        Context::open(named()).unwrap()
    }
}

/// Of `posted` receives of a shared queue, numbered in the order of their posting, returns the one
/// that the `place`th message takes.
pub(crate) fn shared_receive(place: usize, posted: usize) -> usize {
    let is_newest_first = soft_options().shared_receive_order == ReceiveOrder::NewestFirst;
    if is_soft() && is_newest_first {
        posted - 1 - place
    } else {
        place
    }
}

/// Waits until a port's counters are read from the device again: the kernel caches them for 10 ms
/// (their `lifespan`).
fn wait_for_fresh_counters() {
    if !is_soft() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the address that the device sends from.
pub(crate) fn address() -> &'static PortAddress {
    static ADDRESS: OnceLock<PortAddress> = OnceLock::new();
    ADDRESS.get_or_init(|| {
        let context = open();
        context.choose_address(AddressWish::default()).unwrap()
    })
}

/// Returns true for the kernel's Soft-RoCE: of the RDMA drivers, it is the one whose device has a
/// network device as its parent.
pub(crate) fn is_rxe() -> bool {
    Path::new("/sys/class/infiniband")
        .join(device())
        .join("parent")
        .exists()
}

/// Returns the specified value, or the value that Soft-RoCE deviates to (docs/deviations.md).
pub(crate) fn specified_or_rxe<T>(specified: T, rxe: T) -> T {
    if is_rxe() { rxe } else { specified }
}

/// The parameters of a side.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
    /// 0: the queue pair has its own receive queue.
    pub(crate) srq_wr: usize,
    pub(crate) cq_depth: usize,
    pub(crate) sq_sig_all: bool,
    pub(crate) options: SoftOptions,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            max_send_wr: 16,
            max_recv_wr: 16,
            srq_wr: 0,
            cq_depth: 256,
            sq_sig_all: false,
            options: soft_options(),
        }
    }
}

/// A completion whose slot has been claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) kind: WorkKind,
    pub(crate) status: CompletionStatus,
    pub(crate) len: usize,
    /// First byte of a received message.
    pub(crate) first: u8,
}

pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) domain: ProtectionDomain,
    /// The channel of the queue below, which most tests never arm.
    pub(crate) channel: CompletionChannel,
    pub(crate) cq: CompletionQueue,
    pub(crate) srq: Option<SharedReceiveQueue>,
    pub(crate) qp: QueuePair,
    pub(crate) slots: Vec<Slot>,
    pub(crate) plan: Plan,
}

impl Side {
    pub(crate) fn new(plan: Plan) -> Self {
        let context = if is_soft() {
            Context::open_soft(plan.options).unwrap()
        } else {
            assert_eq!(plan.options, soft_options(), "this test is about soft");
            // The current counter values are subtracted later.
            wait_for_fresh_counters();
            Context::open(named()).unwrap()
        };
        let domain = context.alloc_pd().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context
            .create_cq_with_channel(plan.cq_depth, &channel)
            .unwrap();
        let srq = (plan.srq_wr > 0).then(|| domain.create_srq(plan.srq_wr, 1).unwrap());
        // The memory is registered before the queue pair exists. A kernel destroys the objects of a
        // killed process newest first: memory that goes before its queue pair makes the answer to a
        // message REM_OP_ERR, and with the queue pair gone there is none.
        let slots = region(&domain, 256).into_slots(SLOT_LEN).unwrap();
        let qp = create_qp(&domain, &cq, srq.as_ref(), plan);
        Self {
            context,
            domain,
            channel,
            cq,
            srq,
            qp,
            slots,
            plan,
        }
    }

    pub(crate) fn endpoint(&self) -> RemoteEndpoint {
        endpoint(&self.qp)
    }

    pub(crate) fn init(&mut self) {
        self.qp.to_init(address().port, Access::NONE).unwrap();
    }

    pub(crate) fn rtr(&mut self, remote: RemoteEndpoint) {
        self.qp.to_rtr(rtr(remote)).unwrap();
    }

    pub(crate) fn rts(&mut self) {
        self.qp.to_rts(rts()).unwrap();
    }

    /// Posts `count` receives to the queue pair's receive queue or the shared one.
    pub(crate) fn post_recv(&mut self, count: usize) {
        self.try_post_recv(count).unwrap();
    }

    pub(crate) fn try_post_recv(&mut self, count: usize) -> Result<(), PostError> {
        match &self.srq {
            Some(srq) => srq.post_recv(&mut self.slots, count),
            None => self.qp.post_recv(&mut self.slots, count),
        }
    }

    /// Returns a message of `len` bytes, all equal to `fill`.
    pub(crate) fn message(&mut self, len: usize, fill: u8) -> SendRequest {
        let mut slot = self.slots.pop().expect("the test has slots enough");
        slot[..len].fill(fill);
        SendRequest::new(slot, len)
    }

    pub(crate) fn post(&mut self, request: SendRequest) -> Result<(), PostError> {
        self.post_list(&mut vec![request])
    }

    /// Posts a list. Requests that were not posted stay in the list.
    pub(crate) fn post_list(&mut self, list: &mut Vec<SendRequest>) -> Result<(), PostError> {
        let slots = &mut self.slots;
        self.qp.post_send(list, &mut |slot| slots.push(slot))
    }

    pub(crate) fn send(&mut self, len: usize, fill: u8) {
        let request = self.message(len, fill);
        self.post(request).unwrap();
    }

    pub(crate) fn send_signaled(&mut self, len: usize, fill: u8) {
        let request = self.message(len, fill).signaled();
        self.post(request).unwrap();
    }

    /// Polls once and claims the completions.
    pub(crate) fn poll(&mut self) -> Vec<Done> {
        let mut completions = Vec::new();
        self.cq.poll(&mut completions, 64).unwrap();
        completions
            .into_iter()
            .map(|completion| self.claim(completion))
            .collect()
    }

    pub(crate) fn claim(&mut self, completion: WorkCompletion) -> Done {
        let status = completion.status();
        assert_eq!(completion.qp_num(), self.qp.qp_num());
        match completion.wr_id().kind() {
            Some(WorkKind::Send) => {
                let slots = &mut self.slots;
                self.qp
                    .complete_send(completion, &mut |slot| slots.push(slot))
                    .unwrap();
                Done {
                    kind: WorkKind::Send,
                    status,
                    len: 0,
                    first: 0,
                }
            }
            Some(WorkKind::Receive) => {
                let (slot, len) = match &self.srq {
                    Some(srq) => srq.claim(completion).unwrap(),
                    None => self.qp.claim_recv(completion).unwrap(),
                };
                let first = slot.first().copied().filter(|_| len > 0).unwrap_or(0);
                assert!(
                    slot[..len].iter().all(|byte| *byte == first),
                    "a message is of one piece"
                );
                self.slots.push(slot);
                Done {
                    kind: WorkKind::Receive,
                    status,
                    len,
                    first,
                }
            }
            None => panic!("a completion of no kind"),
        }
    }

    /// Polls until `count` completions have arrived.
    pub(crate) fn wait(&mut self, count: usize) -> Vec<Done> {
        let start = Instant::now();
        let mut done = Vec::new();
        while done.len() < count {
            done.extend(self.poll());
            assert!(
                start.elapsed() < HANG,
                "{} of {count} completions came: {done:?}",
                done.len()
            );
            std::thread::yield_now();
        }
        assert_eq!(done.len(), count, "{done:?}");
        done
    }

    /// Polls until at least one completion has arrived.
    pub(crate) fn wait_some(&mut self) -> Vec<Done> {
        let start = Instant::now();
        loop {
            let done = self.poll();
            if !done.is_empty() {
                return done;
            }
            assert!(start.elapsed() < HANG, "nothing came");
            std::thread::yield_now();
        }
    }

    pub(crate) fn wait_one(&mut self) -> Done {
        self.wait(1)[0]
    }

    /// Checks that nothing arrives for a while. If the wait is too short, the test misses a fault,
    /// but it never fails wrongly.
    pub(crate) fn assert_quiet(&mut self) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {
            assert_eq!(self.poll(), []);
            std::thread::yield_now();
        }
    }

    /// Returns the number of messages that found no receive: on this side, or on the whole port if
    /// the kernel counts them.
    pub(crate) fn rnr_naks_sent(&self) -> u64 {
        wait_for_fresh_counters();
        let counters = self.context.rnr_counters(address().port);
        counters.expect("the device counts them").nak_sent
    }

    /// Returns the capacity of the receive queue: the requested number or more.
    pub(crate) fn receive_capacity(&self) -> usize {
        match &self.srq {
            Some(srq) => srq.query().unwrap().max_wr,
            None => self.qp.capabilities().max_recv_wr,
        }
    }

    /// Registers `count` more slots.
    pub(crate) fn add_slots(&mut self, count: usize) {
        let more = region(&self.domain, count).into_slots(SLOT_LEN).unwrap();
        self.slots.extend(more);
    }

    /// Returns the next event, which has to arrive.
    pub(crate) fn event(&self) -> AsyncEvent {
        self.context
            .get_async_event(Some(HANG))
            .unwrap()
            .expect("an event")
    }

    pub(crate) fn assert_no_event(&self) {
        assert_eq!(
            self.context
                .get_async_event(Some(Duration::from_millis(30)))
                .unwrap(),
            None
        );
    }

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
        self.qp
            .modify(&QpAttributes {
                state: Some(state),
                ..QpAttributes::default()
            })
            .unwrap();
    }
}

pub(crate) fn create_qp(
    domain: &ProtectionDomain,
    cq: &CompletionQueue,
    srq: Option<&SharedReceiveQueue>,
    plan: Plan,
) -> QueuePair {
    domain
        .create_qp(QueuePairConfig {
            srq,
            max_send_wr: plan.max_send_wr,
            max_recv_wr: plan.max_recv_wr,
            max_inline_data: 64,
            sq_sig_all: plan.sq_sig_all,
            ..QueuePairConfig::new(cq, cq)
        })
        .unwrap()
}

pub(crate) fn region(domain: &ProtectionDomain, slots: usize) -> MemoryRegion {
    domain
        .register(slots * SLOT_LEN, Access::LOCAL_WRITE)
        .unwrap()
}

pub(crate) fn endpoint(qp: &QueuePair) -> RemoteEndpoint {
    RemoteEndpoint {
        gid: address().gid,
        lid: address().lid,
        qp_num: qp.qp_num(),
        psn: Psn::new(PSN),
    }
}

pub(crate) fn rtr(remote: RemoteEndpoint) -> RtrAttributes {
    RtrAttributes {
        sgid_index: address().gid_index,
        min_rnr_timer: RnrTimer::new(1).unwrap(),
        ..RtrAttributes::new(remote)
    }
}

/// Returns attributes with a short retry time: 4.096 µs × 2^10 × 3 = 12.6 ms.
pub(crate) fn rts() -> RtsAttributes {
    RtsAttributes {
        timeout: AckTimeout::new(10).unwrap(),
        retry_cnt: RetryCount::new(2).unwrap(),
        ..RtsAttributes::new(Psn::new(PSN))
    }
}

/// Creates two connected sides in one process, with nothing posted.
pub(crate) fn connected(plan: Plan) -> (Side, Side) {
    connected_with(plan, plan)
}

pub(crate) fn connected_with(left: Plan, right: Plan) -> (Side, Side) {
    let (mut left, mut right) = (Side::new(left), Side::new(right));
    left.init();
    right.init();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    left.rtr(to_right);
    right.rtr(to_left);
    left.rts();
    right.rts();
    (left, right)
}

pub(crate) fn success(kind: WorkKind, len: usize, first: u8) -> Done {
    Done {
        kind,
        status: CompletionStatus::Success,
        len,
        first,
    }
}

pub(crate) fn sent() -> Done {
    success(WorkKind::Send, 0, 0)
}

pub(crate) fn received(len: usize, first: u8) -> Done {
    success(WorkKind::Receive, len, first)
}

pub(crate) fn failed(kind: WorkKind, status: CompletionStatus) -> Done {
    Done {
        kind,
        status,
        len: 0,
        first: 0,
    }
}

pub(crate) fn flushed(kind: WorkKind) -> Done {
    failed(kind, CompletionStatus::WorkRequestFlushed)
}
