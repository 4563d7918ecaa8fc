//! A context that many peer processes are connected to. Its polls do not look at all of them, find
//! a message even if its announcement is lost, and do not let the rings of some peers displace those
//! of others.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::context::link::NewRing;
use super::context::peer::Peer;
use super::context::state::State;
use super::process::node::Node;
use super::process::node::domain::Domain;
use super::reliable::connect::Ready;
use super::shared::announcements::AnnouncementPage;
use super::shared::descriptor::Descriptor;
use super::shared::memory::{Mapping, PeerMemory, SharedMemory};
use super::shared::ring::{ContextNotifier, RING_LEN, RingNotifier, RingReceiver, RingSender};
use super::shared::wake_socket::EngineCaller;
use crate::types::{
    Access, AddressVector, Gid, ModifyError, Psn, QpAttributes, QpNum, QpState, RemoteEndpoint,
    RtrAttributes, RtsAttributes,
};
use crate::{CompletionQueue, Context, QueuePair, QueuePairConfig, SendRequest, Slot, WorkKind};

/// A context with queue pairs that are connected to themselves, and with pages of announcements for
/// other processes, which do not exist.
struct Polled {
    cq: CompletionQueue,
    qps: Vec<QueuePair>,
    slots: Vec<Slot>,
    domain: Arc<Domain>,
    _context: Context,
}

impl Polled {
    fn new(queue_pairs: usize, peers: Range<u8>) -> Self {
        let context = Context::open("soft").expect("a context");
        let domain = context.alloc_pd().expect("a protection domain");
        let cq = context.create_cq(64).expect("a completion queue");
        let region = domain.register(4096, Access::LOCAL_WRITE);
        let slots = region.expect("a region").into_slots(64).expect("slots");
        let qps: Vec<_> = (0..queue_pairs)
            .map(|_| {
                let qp = domain.create_qp(QueuePairConfig::new(&cq, &cq));
                connected_to_itself(qp.expect("a queue pair"), &context)
            })
            .collect();
        let node = Node::get("soft").expect("the device is open");
        let found = node.find_queue_pair(qps[0].qp_num().0);
        let (domain, _) = found.expect("it was created");
        for peer in peers {
            let files = domain.files_for(Gid([peer; 16]));
            files.expect("files for a peer");
        }
        Self {
            cq,
            qps,
            slots,
            domain,
            _context: context,
        }
    }

    /// Returns what a peer has of the context.
    fn notifier(&self) -> Arc<ContextNotifier> {
        let (_, files) = self.domain.files_for(Gid([1; 16])).expect("files");
        let notifier = ContextNotifier::from_peer(files, EngineCaller::default());
        Arc::new(notifier.expect("they are valid"))
    }

    fn poll_in_vain(&mut self, polls: usize) {
        for _ in 0..polls {
            let completion = self.cq.poll_one().expect("the queue works");
            assert!(completion.is_none());
        }
    }

    /// Polls until so many rings are cold: all but one.
    fn make_cold(&mut self, count: usize) {
        let start = Instant::now();
        let is_cold = |domain: &Domain| {
            domain
                .enter()
                .is_ok_and(|state| state.common.lists.cold.len() == count)
        };
        while !is_cold(&self.domain) {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "no ring went cold"
            );
            self.poll_in_vain(100);
        }
    }
}

fn connected_to_itself(mut qp: QueuePair, context: &Context) -> QueuePair {
    let psn = Psn::new(1);
    let remote = RemoteEndpoint {
        gid: context.query_gid(1, 0).expect("a GID"),
        lid: 0,
        qp_num: qp.qp_num(),
        psn,
    };
    qp.to_init(1, Access::NONE).expect("INIT");
    qp.to_rtr(RtrAttributes::new(remote)).expect("RTR");
    qp.to_rts(RtsAttributes::new(psn)).expect("RTS");
    qp
}

/// Returns a peer's end of a ring.
fn sender_to(receiver: &RingReceiver, notifier: &Arc<ContextNotifier>) -> RingSender {
    let ring = Mapping::from_peer(receiver.fd(), RING_LEN, PeerMemory::Ring);
    let notifier = RingNotifier::new(Arc::clone(notifier), 0);
    let sender = RingSender::new(ring.expect("it is a ring"), notifier);
    sender.expect("it is a ring")
}

/// The announcements that a poll takes show which peers it looks at.
#[test]
fn a_poll_looks_at_the_announcements_of_one_peer() {
    let mut polled = Polled::new(2, 1..201);
    polled.make_cold(1);
    // The engine takes none meanwhile: it cannot enter the context.
    let mut state = polled.domain.enter().expect("no fork");
    state.common.ready.announce_for_all(0);
    let mut left = state.common.ready.count_announcing();
    assert!(left >= 200);
    let mut polls = 0;
    while left > 0 {
        let before = left;
        let polled = state.poll(0, &mut Vec::new(), 1);
        assert_eq!(polled.expect("the queue works"), 0);
        left = state.common.ready.count_announcing();
        assert!(before - left <= 1, "one poll took {}", before - left);
        polls += 1;
        assert!(polls <= 400, "{left} peers do not have their turn");
    }
}

/// Messages in an arena that has not arrived, at most one in the ring of each queue pair.
struct Blocked {
    polled: Polled,
    qp_indexes: Vec<u32>,
    notifier: Arc<ContextNotifier>,
    /// The number of the arena.
    arena: u64,
}

impl Blocked {
    fn new(queue_pairs: usize) -> Self {
        let mut polled = Polled::new(queue_pairs, 1..1);
        let mut qp_indexes = Vec::new();
        for qp in &mut polled.qps {
            let mut receives = vec![polled.slots.pop().expect("a slot")];
            qp.post_recv(&mut receives, 1).expect("there is room");
            let found = polled.domain.node.find_queue_pair(qp.qp_num().0);
            qp_indexes.push(found.expect("it was created").1);
        }
        Self {
            notifier: polled.notifier(),
            arena: polled.domain.node.next_arena(),
            polled,
            qp_indexes,
        }
    }

    /// Sends the message to the first rings. The state keeps the engine outside.
    fn send(&self, state: &mut State, rings: usize) {
        for &qp_index in &self.qp_indexes[..rings] {
            let rings = state.split(qp_index).0.link.rings().expect("rings");
            let message = Descriptor {
                arena: self.arena,
                offset: 0,
                len: 8,
            };
            sender_to(&rings.receiver, &self.notifier).send_descriptor(message, 0);
        }
    }

    /// The arena comes over the link, from which the engine takes it. Returns what keeps it.
    fn deliver_arena(&self) -> Arc<SharedMemory> {
        let memory = Arc::new(SharedMemory::arena(4096).expect("memory"));
        let domain = &self.polled.domain;
        let sent = domain.node.announce_arena(domain, self.arena, &memory);
        sent.expect("the link works");
        memory
    }
}

fn poll_in_vain(state: &mut State, polls: usize) {
    for _ in 0..polls {
        let polled = state.poll(0, &mut Vec::new(), 1);
        assert_eq!(polled.expect("the queue works"), 0);
    }
}

/// The peer never sends the arena. Otherwise a peer with many of them would leave no other ring a place among
/// the hot ones, and have each poll look at all of its own, also after the engine has done the polls' work.
#[test]
fn rings_with_messages_that_cannot_be_received_go_cold() {
    let blocked = Blocked::new(16);
    let mut state = blocked.polled.domain.enter().expect("no fork");
    blocked.send(&mut state, 15);
    poll_in_vain(&mut state, 1);
    let hot = |state: &State| state.common.lists.hot.len();
    assert_eq!(hot(&state), 1);
    // Beyond a circle.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20) {
        poll_in_vain(&mut state, 64);
        state.progress_while_idle(Instant::now());
        state.progress_while_idle(Instant::now());
        assert_eq!(hot(&state), 1);
    }
}

/// A ring that waits for its sender's retry is found at each poll, but that is no arrival. 400 polls that
/// receive nothing age a ring by 25 arrivals, which are not enough for it to go cold.
#[test]
fn a_message_that_finds_no_receive_makes_no_other_ring_cold() {
    let polled = Polled::new(2, 1..1);
    let found = polled.domain.node.find_queue_pair(polled.qps[0].qp_num().0);
    let (_, qp_index) = found.expect("it was created");
    let notifier = polled.notifier();
    let mut state = polled.domain.enter().expect("no fork");
    let rings = state.split(qp_index).0.link.rings().expect("rings");
    sender_to(&rings.receiver, &notifier).send(NonNull::from(&[0_u8; 8]).cast(), 8, 0);
    poll_in_vain(&mut state, 400);
    assert_eq!(state.common.lists.hot.len(), 2);
}

#[test]
fn a_cold_ring_goes_on_when_the_arena_of_its_message_arrives() {
    let mut blocked = Blocked::new(2);
    let mut state = blocked.polled.domain.enter().expect("no fork");
    blocked.send(&mut state, 2);
    poll_in_vain(&mut state, 600);
    assert_eq!(state.common.lists.cold.len(), 2);
    drop(state);
    let _arena = blocked.deliver_arena();
    let start = Instant::now();
    let mut received = 0;
    while received < 2 {
        assert!(start.elapsed() < Duration::from_secs(20), "{received} of 2");
        let completion = blocked.polled.cq.poll_one().expect("the queue works");
        received += usize::from(completion.is_some());
    }
}

/// A sleeping context rests while nothing of it can be received, and no announcement follows the arena.
#[test]
fn an_arena_wakes_a_context_that_sleeps_before_a_message_in_it() {
    let blocked = Blocked::new(2);
    let mut state = blocked.polled.domain.enter().expect("no fork");
    blocked.send(&mut state, 2);
    state.arm(0, false);
    assert!(state.is_idle());
    drop(state);
    let _arena = blocked.deliver_arena();
    let start = Instant::now();
    let is_asleep = |state: &State| state.common.pending.is_asleep();
    while is_asleep(&blocked.polled.domain.enter().expect("no fork")) {
        assert!(start.elapsed() < Duration::from_secs(20), "it still sleeps");
        thread::yield_now();
    }
}

/// A ring that arrives before its queue pair is at RTR is kept, whatever other processes send for
/// the same queue pair.
#[test]
fn the_early_rings_of_a_peer_displace_no_other_peers() {
    const NUMBER: u32 = 5;
    let polled = Polled::new(1, 1..1);
    let number = polled.qps[0].qp_num().0;
    let found = polled.domain.node.find_queue_pair(number);
    let (_, qp_index) = found.expect("it was created");
    // The rings of a gone process are closed: these are open.
    let receiver = || RingReceiver::new(0, false).expect("a ring");
    let receivers: Vec<_> = (0..20).map(|_| receiver()).collect();
    let notifier = polled.notifier();
    // Many of one process, and of many processes.
    let others = [1; 10].into_iter().chain(20..29);
    let gids = [9].into_iter().chain(others).map(|peer| Gid([peer; 16]));
    let mut state = polled.domain.enter().expect("no fork");
    let to = [
        (QpState::Rts, QpState::Reset),
        (QpState::Reset, QpState::Init),
    ];
    for transition in to {
        let changed = state.modify(qp_index, transition, &QpAttributes::default(), None);
        changed.expect("a permitted transition");
    }
    for (gid, receiver) in gids.zip(&receivers) {
        let ring = NewRing {
            gid,
            qp_num: NUMBER,
            sender: sender_to(receiver, &notifier),
        };
        state.attach(qp_index, number, ring);
    }
    let gid = Gid([9; 16]);
    let attributes = QpAttributes {
        address: Some(AddressVector {
            gid,
            ..AddressVector::default()
        }),
        dest_qp_num: Some(QpNum(NUMBER)),
        ..QpAttributes::default()
    };
    let ready = Ready::Ring(receiver(), Arc::new(Peer::new(gid)));
    let changed = state.modify(
        qp_index,
        (QpState::Init, QpState::Rtr),
        &attributes,
        Some(ready),
    );
    changed.expect("RTR");
    let (qp, _) = state.split(qp_index);
    assert!(qp.link.sender().is_some(), "its ring was displaced");
}

/// A queue pair that has failed since its owner looked stays failed.
#[test]
fn a_queue_pair_that_fails_while_it_is_being_changed_stays_failed() {
    let polled = Polled::new(1, 1..1);
    let number = polled.qps[0].qp_num();
    let found = polled.domain.node.find_queue_pair(number.0);
    let (_, qp_index) = found.expect("it was created");
    let mut state = polled.domain.enter().expect("no fork");
    let (qp, common) = state.split(qp_index);
    qp.fail(common, None);
    let looked = (QpState::Rtr, QpState::Rts);
    let changed = state.modify(qp_index, looked, &QpAttributes::default(), None);
    let (from, to) = (QpState::Error, QpState::Rts);
    assert!(
        matches!(changed, Err(ModifyError::Transition { from: was, to: asked }) if (was, asked) == (from, to)),
        "{changed:?}"
    );
    assert_eq!(state.split(qp_index).0.core.state, QpState::Error);
}

/// The time of an empty poll does not follow the number of peers: not by more than what a machine
/// in use does to a measurement.
#[test]
fn an_empty_poll_does_not_look_at_all_peers() {
    let [one, many] = [1..1, 1..250].map(|peers| {
        let mut polled = Polled::new(1, peers);
        let best = (0..20).map(|_| {
            let start = Instant::now();
            polled.poll_in_vain(1000);
            start.elapsed()
        });
        best.min().expect("there were twenty")
    });
    assert!(many < one * 20, "{one:?} became {many:?}");
}

/// A cold ring gets a message, and its announcement is cleared before a poll looks at it. The engine
/// does nothing for a context that is polled: polls find the message by themselves.
#[test]
fn a_message_without_its_announcement_is_found() {
    let mut polled = Polled::new(2, 1..100);
    let slots = &mut polled.slots;
    assert_eq!(polled.qps[0].post_recv(slots, 1).ok(), Some(()));
    polled.make_cold(1);
    let slot = polled.slots.pop().expect("a slot");
    let mut list = vec![SendRequest::new(slot, 8)];
    let sent = polled.qps[0].post_send(&mut list, &mut |_| {});
    sent.expect("it is connected");
    let state = polled.domain.enter().expect("no fork");
    let zeros = [0; size_of::<AnnouncementPage>()];
    state.common.ready.scribble(0, &zeros);
    assert_eq!(state.common.lists.cold.len(), 1);
    drop(state);
    let start = Instant::now();
    loop {
        let completion = polled.cq.poll_one().expect("the queue works");
        if let Some(completion) = completion {
            assert_eq!(completion.wr_id().kind(), Some(WorkKind::Receive));
            let claimed = polled.qps[0].claim_recv(completion);
            assert_eq!(claimed.expect("it was posted").1, 8);
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "it is lost");
    }
}
