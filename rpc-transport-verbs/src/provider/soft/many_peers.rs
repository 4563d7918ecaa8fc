//! A context that many peer processes are connected to: what its empty polls cost, and that a message
//! is found whose ready bit is lost.
//!
//! ```sh
//! cargo test --release -p rpc-transport-verbs --lib --no-run
//! PEERS=200 RINGS=200 valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!     --toggle-collect='*many_peers::poll_in_vain' PROGRAM --ignored many_peers --test-threads=1
//! ```
//!
//! The difference between one peer with one ring and 200, divided by [`POLLS`], is what the other
//! peers cost an empty poll.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::process::node::Node;
use super::process::node::domain::Domain;
use super::shared::wake::DomainReadyBits;
use crate::verbs::types::{Access, Gid, Psn, RemoteEndpoint, RtrAttributes, RtsAttributes};
use crate::verbs::{
    CompletionQueue, Context, QueuePair, QueuePairConfig, SendRequest, Slot, WorkKind,
};

/// Polls that are counted.
const POLLS: usize = 100_000;

/// A context with queue pairs that are connected to themselves, and with ready bits for other
/// processes, which do not exist.
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
        let node = Node::get().expect("the device is open");
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

    /// Does what is counted.
    #[inline(never)]
    fn poll_in_vain(&mut self, polls: usize) {
        for _ in 0..polls {
            let completion = self.cq.poll_one().expect("the queue works");
            assert!(completion.is_none());
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

#[test]
#[ignore = "run under valgrind, which counts its instructions"]
fn many_peers_and_empty_polls() {
    let number = |name| std::env::var(name).map_or(200, |text| text.parse().expect("a number"));
    let mut polled = Polled::new(number("RINGS").into(), 1..number("PEERS"));
    // The engine may still be connecting the queue pair.
    std::thread::sleep(Duration::from_millis(50));
    // All rings but one go cold.
    for _ in 0..POLLS {
        assert!(polled.cq.poll_one().expect("the queue works").is_none());
    }
    polled.poll_in_vain(POLLS);
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

/// A cold ring gets a message, and its ready bit is cleared before a poll looks at it. The engine
/// does nothing for a context that is polled: polls find the message by themselves.
#[test]
fn a_message_without_its_ready_bit_is_found() {
    let mut polled = Polled::new(2, 1..100);
    let slots = &mut polled.slots;
    assert_eq!(polled.qps[0].post_recv(slots, 1).ok(), Some(()));
    let start = Instant::now();
    let is_cold = |domain: &Domain| {
        domain
            .enter()
            .is_ok_and(|state| state.common.cold.len() == 1)
    };
    while !is_cold(&polled.domain) {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "no ring went cold"
        );
        polled.poll_in_vain(100);
    }
    let slot = polled.slots.pop().expect("a slot");
    let mut list = vec![SendRequest::new(slot, 8)];
    let sent = polled.qps[0].post_send(&mut list, &mut |_| {});
    sent.expect("it is connected");
    let state = polled.domain.enter().expect("no fork");
    let zeros = [0; size_of::<DomainReadyBits>()];
    state.common.ready.scribble(0, &zeros);
    assert_eq!(state.common.cold.len(), 1);
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
