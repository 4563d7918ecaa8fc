//! What an application sees when a queue pair ends, from the first completion to the last event, in
//! this order.
//!
//! Each case runs over rings and over TCP (those of `over_tcp` only there), with one completion queue for sends and another for
//! receives, and with one for both, where the order between them shows. It uses nothing but verbs. A
//! list of lines says what is to come: `send 2: LocalProtection`, `receive 1: Success`, `event QpFatal`.
//! Requests are numbered as they are posted, those of each queue on their own. Number 0 of each has
//! completed before a case begins.

mod failures;
mod over_tcp;
mod refusals;
mod transitions;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::{
    Access, AckTimeout, AsyncEvent, CompletionQueue, Context, Element, ExposedMemory, Gid,
    ProtectionDomain, Psn, QpNum, QpState, QueuePair, QueuePairConfig, RemoteEndpoint, RetryCount,
    RnrRetry, RnrTimer, RtrAttributes, RtsAttributes, SharedReceiveQueue, Slot, SoftOptions,
    SoftPath, VerbsError, WorkCompletion, WorkKind, WorkRequest,
};

/// Time limit of all waits. Far longer than they take: only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time for which nothing may follow what was expected. If it is too short, a case misses a fault, but
/// it never fails wrongly.
const QUIET: Duration = Duration::from_millis(12);

const PSN: u32 = 100;
/// Length of an end's exposed memory, and of each of its receives.
const LEN: usize = 64 << 10;
const SLOT_LEN: usize = 64;
const SLOTS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Rings,
    Tcp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queues {
    /// One completion queue for sends, and another for receives.
    Separate,
    Shared,
}

/// In which way a case runs, and what the queue pair of an end is like.
#[derive(Clone, Copy, Debug)]
struct Plan {
    carrier: Carrier,
    queues: Queues,
    is_srq: bool,
    cq_depth: usize,
    rnr_retry: RnrRetry,
}

/// Runs a case in every way.
fn in_every_way(case: impl Fn(Plan)) {
    for carrier in [Carrier::Rings, Carrier::Tcp] {
        for queues in [Queues::Separate, Queues::Shared] {
            case(Plan {
                carrier,
                queues,
                is_srq: false,
                cq_depth: 64,
                rnr_retry: RnrRetry::FOREVER,
            });
        }
    }
}

/// One end of a connection, and what it has seen.
struct End {
    name: &'static str,
    plan: Plan,
    qp: QueuePair,
    srq: Option<SharedReceiveQueue>,
    send_cq: CompletionQueue,
    /// `None`: the same as that of sends.
    recv_cq: Option<CompletionQueue>,
    slots: Vec<Slot>,
    /// The numbers of the receives, by the addresses of their slots.
    receives: HashMap<usize, usize>,
    memory: ExposedMemory,
    domain: ProtectionDomain,
    context: Context,
    seen: Seen,
}

/// The lines that an end has seen: of each completion queue, and events.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    /// If there is one completion queue, it is the first.
    queues: [Vec<String>; 2],
    events: Vec<String>,
}

impl Seen {
    fn of(lines: &[&str], queues: Queues) -> Self {
        let mut seen = Self::default();
        for line in lines {
            let list = match line.split(' ').next() {
                Some("event") => &mut seen.events,
                Some("send") => &mut seen.queues[0],
                Some("receive") => &mut seen.queues[usize::from(queues == Queues::Separate)],
                _ => panic!("no line of a list: {line}"),
            };
            list.push((*line).to_owned());
        }
        seen
    }

    /// Returns true if every list is as long as the other's, or longer.
    fn is_as_long_as(&self, other: &Self) -> bool {
        let lens = |seen: &Self| {
            let [first, second] = &seen.queues;
            [first.len(), second.len(), seen.events.len()]
        };
        lens(self)
            .iter()
            .zip(lens(other))
            .all(|(own, other)| *own >= other)
    }
}

impl End {
    fn new(name: &'static str, plan: Plan) -> Self {
        let context = Context::open_soft(SoftOptions {
            path: match plan.carrier {
                Carrier::Rings => SoftPath::SharedMemory,
                Carrier::Tcp => SoftPath::TCP_OVER_LOOPBACK,
            },
            ..SoftOptions::default()
        });
        Self::on(context.expect("a context"), name, plan)
    }

    fn on(context: Context, name: &'static str, plan: Plan) -> Self {
        let domain = context.alloc_pd().expect("a protection domain");
        let cq = || context.create_cq(plan.cq_depth).expect("a queue");
        let send_cq = cq();
        let recv_cq = (plan.queues == Queues::Separate).then(cq);
        let srq = plan.is_srq.then(|| domain.create_srq(16, 1));
        let srq = srq.transpose().expect("a shared receive queue");
        let config = QueuePairConfig {
            srq: srq.as_ref(),
            ..QueuePairConfig::new(&send_cq, recv_cq.as_ref().unwrap_or(&send_cq))
        };
        let mut qp = domain.create_qp(config).expect("a queue pair");
        qp.to_init(1, remote_access()).expect("INIT");
        let region = domain.register(SLOTS * SLOT_LEN, Access::LOCAL_WRITE);
        let slots = region.expect("a region").into_slots(SLOT_LEN);
        let memory = domain.expose(LEN, exposed_access());
        Self {
            name,
            plan,
            qp,
            srq,
            send_cq,
            recv_cq,
            slots: slots.expect("slots"),
            receives: HashMap::new(),
            memory: memory.expect("a region"),
            domain,
            context,
            seen: Seen::default(),
        }
    }

    fn gid(&self) -> Gid {
        self.context.query_gid(1, 0).expect("the device's GID")
    }

    fn go_to_rtr(&mut self, (gid, qp_num): (Gid, QpNum)) {
        let remote = RemoteEndpoint {
            gid,
            lid: 0,
            qp_num,
            psn: Psn::new(PSN),
        };
        let rtr = RtrAttributes {
            min_rnr_timer: RnrTimer::new(1).expect("a code"),
            max_dest_rd_atomic: 4,
            ..RtrAttributes::new(remote)
        };
        self.qp.to_rtr(rtr).expect("RTR");
    }

    /// A peer that does not respond is noticed after 4.096 µs × 2^11 × 6 = 50 ms.
    fn go_to_rts(&mut self) {
        let rts = RtsAttributes {
            timeout: AckTimeout::new(11).expect("a code"),
            retry_cnt: RetryCount::new(5).expect("a code"),
            rnr_retry: self.plan.rnr_retry,
            max_rd_atomic: 4,
            ..RtsAttributes::new(Psn::new(PSN))
        };
        self.qp.to_rts(rts).expect("RTS");
    }

    fn bytes(&self, len: usize) -> Element {
        self.memory.element(0..len).expect("inside")
    }

    /// A SEND of eight bytes. Those of other lengths are no different.
    fn send(&self) -> WorkRequest {
        WorkRequest::send(self.bytes(8))
    }

    /// Posts requests with one doorbell, so that nothing happens between them.
    fn post<const N: usize>(&mut self, requests: [WorkRequest; N]) {
        let posted = self.qp.post(&mut requests.into(), &mut drop);
        posted.expect("there is room");
    }

    /// Posts as many receives. A receive's slot is not used again.
    fn receive(&mut self, count: usize) {
        for _ in 0..count {
            let slot = self.slots.pop().expect("a slot");
            self.receives.insert(address(&slot), self.receives.len());
            let posted = match &self.srq {
                Some(srq) => srq.post_recv(&mut vec![slot], 1),
                None => self.qp.post_recv(&mut vec![slot], 1),
            };
            posted.expect("there is room");
        }
    }

    /// Polls each queue once, and takes the events that are there.
    fn poll(&mut self) {
        let mut completions = Vec::new();
        let queues = [Some(&mut self.send_cq), self.recv_cq.as_mut()];
        for (place, cq) in queues.into_iter().enumerate() {
            match cq.map(|cq| cq.poll(&mut completions, 64)) {
                None | Some(Ok(_) | Err(VerbsError::CompletionQueueOverrun { .. })) => {}
                Some(Err(error)) => panic!("{error}"),
            }
            for completion in completions.drain(..) {
                let line = claim(&mut self.qp, self.srq.as_ref(), &self.receives, completion);
                self.seen.queues[place].push(line);
            }
        }
        let at_once = Some(Duration::ZERO);
        while let Some(event) = self.context.get_async_event(at_once).expect("events") {
            self.seen.events.push(self.name_of(event));
        }
    }

    fn name_of(&self, event: AsyncEvent) -> String {
        match event {
            AsyncEvent::QpFatal { qp_num }
            | AsyncEvent::QpRequestError { qp_num }
            | AsyncEvent::QpAccessError { qp_num }
            | AsyncEvent::CommunicationEstablished { qp_num }
            | AsyncEvent::SqDrained { qp_num }
            | AsyncEvent::QpLastWqeReached { qp_num } => assert_eq!(qp_num, self.qp.qp_num()),
            AsyncEvent::CompletionQueueError { cq } => assert_eq!(cq, self.send_cq.number()),
            AsyncEvent::SrqLimitReached { srq } => {
                assert_eq!(Some(srq), self.srq.as_ref().map(SharedReceiveQueue::number));
            }
            _ => panic!("{event:?}"),
        }
        let name = format!("event {event:?}");
        name.split(" {").next().unwrap_or_default().to_owned()
    }

    fn state(&self) -> QpState {
        self.qp.state().expect("it is there")
    }

    /// Waits until the queue pair has failed, without a poll.
    fn wait_for_error(&self) {
        let start = Instant::now();
        while self.state() != QpState::Error {
            assert!(start.elapsed() < PATIENCE, "{} {:?}", self.name, self.plan);
            std::thread::yield_now();
        }
    }
}

fn remote_access() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

fn exposed_access() -> Access {
    remote_access() | Access::LOCAL_WRITE | Access::MW_BIND
}

fn address(slot: &Slot) -> usize {
    slot.as_ptr().addr()
}

/// Returns the line of a completion, which has to name a request that was posted.
fn claim(
    qp: &mut QueuePair,
    srq: Option<&SharedReceiveQueue>,
    receives: &HashMap<usize, usize>,
    completion: WorkCompletion,
) -> String {
    let status = completion.status();
    let id = completion.wr_id();
    if id.kind() == Some(WorkKind::Send) {
        let claimed = qp.complete_send(completion, &mut drop);
        claimed.expect("it was posted");
        return format!("send {}: {status:?}", id.number());
    }
    let claimed = match srq {
        Some(srq) => srq.claim(completion),
        None => qp.claim_recv(completion),
    };
    let (slot, _) = claimed.expect("it was posted");
    let number = receives[&address(&slot)];
    format!("receive {number}: {status:?}")
}

/// Polls the ends until they have seen these lines, and a while longer: nothing else follows.
fn expect<const N: usize>(mut ends: [(&mut End, &[&str]); N]) {
    let start = Instant::now();
    let mut since = None;
    while since.is_none_or(|since: Instant| since.elapsed() < QUIET) && start.elapsed() < PATIENCE {
        let mut is_there = true;
        for (end, lines) in &mut ends {
            end.poll();
            is_there &= end.seen.is_as_long_as(&Seen::of(lines, end.plan.queues));
        }
        if is_there {
            since.get_or_insert_with(Instant::now);
        }
        std::thread::yield_now();
    }
    for (end, lines) in ends {
        let seen = std::mem::take(&mut end.seen);
        let wanted = Seen::of(lines, end.plan.queues);
        assert_eq!(seen, wanted, "{}, {:?}", end.name, end.plan);
    }
}

/// Connects two ends, and sends a message each way.
fn connected(left: Plan, right: Plan) -> (End, End) {
    let (mut left, mut right) = (End::new("left", left), End::new("right", right));
    let (to_left, to_right) = (
        (left.gid(), left.qp.qp_num()),
        (right.gid(), right.qp.qp_num()),
    );
    left.go_to_rtr(to_right);
    right.go_to_rtr(to_left);
    left.go_to_rts();
    right.go_to_rts();
    send_first(&mut left, &mut right);
    send_first(&mut right, &mut left);
    (left, right)
}

fn send_first(from: &mut End, to: &mut End) {
    to.receive(1);
    from.post([from.send().signaled()]);
    expect([(from, &["send 0: Success"]), (to, &["receive 0: Success"])]);
}
