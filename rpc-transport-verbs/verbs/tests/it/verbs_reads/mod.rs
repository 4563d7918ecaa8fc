//! RDMA READs of the software device, which the side that posts them executes itself, if it may: see
//! `ReadExecution`. Each case runs with both ways, unless it is about one of them. The conformance
//! suite covers what READs mean; it runs with `READS=target` as well.

mod processes;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use verbline_verbs::{
    Access, AsyncEvent, Binding, CompletionStatus as C, Elements, ExposedMemory, MemoryWindow,
    QpState, QueuePairConfig, ReadExecution, ReceiveRequest, RemoteEndpoint, RemoteKey,
    RemoteMemory, RtrAttributes, RtsAttributes, SoftOptions, WindowType, WorkRequest,
};

use crate::verbs_side::{HANG, Plan, Side, address, rtr, rts, soft_options};

const BOTH: [ReadExecution; 2] = [ReadExecution::InPlace, ReadExecution::ByTarget];
const LEN: usize = 256 << 10;

/// The two sides of a connection. The right one owns the memory that is read.
struct Pair {
    left: Side,
    right: Side,
    into: ExposedMemory,
    from: ExposedMemory,
}

fn side(execution: ReadExecution) -> Side {
    let options = SoftOptions {
        read_execution: execution,
        ..soft_options()
    };
    let mut side = Side::new(Plan {
        options,
        ..Plan::default()
    });
    init(&mut side);
    side
}

fn init(side: &mut Side) {
    side.qp = side
        .domain
        .create_qp(QueuePairConfig::new(&side.cq, &side.cq))
        .unwrap();
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    side.qp.to_init(address().port, access).unwrap();
}

fn bring_up(side: &mut Side, remote: RemoteEndpoint) {
    let attributes = RtrAttributes {
        max_dest_rd_atomic: 4,
        ..rtr(remote)
    };
    side.qp.to_rtr(attributes).unwrap();
    let attributes = RtsAttributes {
        max_rd_atomic: 4,
        ..rts()
    };
    side.qp.to_rts(attributes).unwrap();
}

fn connect(left: &mut Side, right: &mut Side) {
    let (l, r) = (left.endpoint(), right.endpoint());
    bring_up(left, r);
    bring_up(right, l);
}

fn everything() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::MW_BIND
}

impl Pair {
    fn new(execution: ReadExecution) -> Self {
        let (mut left, mut right) = (side(execution), side(execution));
        let into = left.domain.expose(LEN, everything()).unwrap();
        let from = right.domain.expose(LEN, everything()).unwrap();
        from.write(0, &[7; LEN]).unwrap();
        connect(&mut left, &mut right);
        let mut pair = Self {
            left,
            right,
            into,
            from,
        };
        // The rings and arenas of both sides have arrived when a READ by the target has ended, and
        // another one can be executed in place.
        let start = Instant::now();
        let all = pair.from.remote(0);
        loop {
            assert_eq!(pair.read(0, LEN, all), C::Success);
            if execution == ReadExecution::ByTarget || pair.in_place() > 0 {
                return pair;
            }
            assert!(start.elapsed() < HANG, "no READ was executed in place");
        }
    }

    fn in_place(&self) -> u64 {
        self.left.context.counters().unwrap().reads_in_place
    }

    fn request(&self, at: usize, len: usize, from: RemoteMemory) -> WorkRequest {
        WorkRequest::read(self.into.element(at..at + len).unwrap(), from)
    }

    /// Reads into the left side's memory.
    fn read(&mut self, at: usize, len: usize, from: RemoteMemory) -> C {
        let request = self.request(at, len, from);
        run(&mut self.left, request)
    }

    fn is_all(&self, len: usize, fill: u8) -> bool {
        let bytes = self.into.to_vec(0..len).unwrap();
        bytes.iter().all(|byte| *byte == fill)
    }

    /// Checks that a READ is rejected, that both queue pairs fail, and that the right side is told.
    fn assert_rejected(mut self, len: usize, from: RemoteMemory) {
        assert_eq!(self.read(0, len, from), C::RemoteAccess);
        assert_eq!(self.left.state(), QpState::Error);
        assert_eq!(
            self.right.event(),
            AsyncEvent::QpAccessError {
                qp_num: self.right.qp.qp_num()
            }
        );
        assert_eq!(self.right.state(), QpState::Error);
    }
}

fn post(side: &mut Side, request: WorkRequest) {
    if let Err((request, reason)) = side.qp.post_one(request) {
        panic!("{}: {reason}", request.name());
    }
}

/// Posts a request, and returns its status, which has to be the next one.
fn run(side: &mut Side, request: WorkRequest) -> C {
    post(side, request.signaled());
    next(side).0
}

/// Waits for the next completion of the send queue. Returns its status and length.
fn next(side: &mut Side) -> (C, usize) {
    next_after(side, thread::yield_now)
}

fn next_after(side: &mut Side, mut pause: impl FnMut()) -> (C, usize) {
    let start = Instant::now();
    loop {
        let mut completions = Vec::new();
        side.cq.poll(&mut completions, 1).unwrap();
        if let Some(completion) = completions.pop() {
            let ended = (completion.status(), completion.byte_len());
            side.qp.complete_send(completion, &mut drop).unwrap();
            return ended;
        }
        assert!(start.elapsed() < HANG, "nothing came");
        pause();
    }
}

/// Binds a new window of type 2 over a part of the memory, for READs.
fn bind(side: &mut Side, memory: &ExposedMemory, offset: usize, len: usize) -> MemoryWindow {
    let window = side.domain.alloc_mw(WindowType::Type2).unwrap();
    let binding = Binding::new(memory, offset..offset + len, Access::REMOTE_READ);
    let key = window.next_key();
    let bound = run(side, WorkRequest::bind_window(&window, binding, key));
    assert_eq!(bound, C::Success);
    window
}

fn through(memory: &ExposedMemory, window: &MemoryWindow, offset: usize) -> RemoteMemory {
    RemoteMemory {
        key: window.key(),
        ..memory.remote(offset)
    }
}

#[test]
fn the_side_that_posts_a_read_executes_it_unless_the_target_is_to() {
    for execution in BOTH {
        let mut pair = Pair::new(execution);
        let before = pair.in_place();
        let window = bind(&mut pair.right, &pair.from, 100, 5000);
        for (len, from) in [
            (1, pair.from.remote(LEN - 1)),
            (LEN, pair.from.remote(0)),
            (
                0,
                RemoteMemory {
                    addr: 3,
                    key: RemoteKey(4),
                },
            ),
            (5000, through(&pair.from, &window, 100)),
        ] {
            pair.into.write(0, &[1; LEN]).unwrap();
            assert_eq!(pair.read(0, len, from), C::Success);
            assert!(pair.is_all(len, 7));
            let rest = pair.into.to_vec(len..LEN).unwrap();
            assert!(rest.iter().all(|byte| *byte == 1), "beyond {len} bytes");
        }
        let expected = match execution {
            ReadExecution::InPlace => 4,
            ReadExecution::ByTarget => 0,
        };
        assert_eq!(pair.in_place() - before, expected);
    }
}

#[test]
fn a_key_of_another_connection_is_rejected() {
    for execution in BOTH {
        let mut pair = Pair::new(execution);
        // The window belongs to another queue pair of the same domain.
        let mut other = side(execution);
        let first = pair.right.qp;
        let cq = &pair.right.cq;
        pair.right.qp = pair
            .right
            .domain
            .create_qp(QueuePairConfig::new(cq, cq))
            .unwrap();
        pair.right
            .qp
            .to_init(address().port, Access::REMOTE_READ)
            .unwrap();
        connect(&mut other, &mut pair.right);
        let window = bind(&mut pair.right, &pair.from, 0, LEN);
        let _second = std::mem::replace(&mut pair.right.qp, first);
        let from = through(&pair.from, &window, 0);
        pair.assert_rejected(LEN, from);
    }
}

#[test]
fn a_key_that_was_invalidated_is_rejected() {
    for execution in BOTH {
        let mut pair = Pair::new(execution);
        let window = bind(&mut pair.right, &pair.from, 0, LEN);
        let from = through(&pair.from, &window, 0);
        assert_eq!(pair.read(0, LEN, from), C::Success);
        let invalidate = WorkRequest::local_invalidate(window.key());
        assert_eq!(run(&mut pair.right, invalidate), C::Success);
        pair.assert_rejected(8, from);
    }
}

#[test]
fn an_address_outside_of_the_window_is_rejected() {
    for execution in BOTH {
        for (offset, len) in [(99, 1), (99, 2), (100, 5001), (5100, 1), (5099, 2)] {
            let mut pair = Pair::new(execution);
            let window = bind(&mut pair.right, &pair.from, 100, 5000);
            let from = through(&pair.from, &window, offset);
            pair.assert_rejected(len, from);
        }
    }
}

/// Windows beyond those that fit the table of published keys are read as well: by the target.
#[test]
fn a_key_that_is_not_published_is_left_to_the_target() {
    let mut pair = Pair::new(ReadExecution::InPlace);
    let windows: Vec<_> = (0..1024)
        .map(|_| pair.right.domain.alloc_mw(WindowType::Type2).unwrap())
        .collect();
    let window = bind(&mut pair.right, &pair.from, 0, LEN);
    let before = pair.in_place();
    let from = through(&pair.from, &window, 0);
    assert_eq!(pair.read(0, LEN, from), C::Success);
    assert_eq!(pair.in_place(), before);
    drop(windows);
}

/// A READ sees what earlier requests of its queue pair have changed.
#[test]
fn a_read_waits_for_requests_that_change_what_it_sees() {
    for execution in BOTH {
        let mut pair = Pair::new(execution);
        let before = pair.in_place();
        let target = pair.from.remote(0);
        for round in 1..100 {
            pair.into.write(0, &[round; LEN]).unwrap();
            let write = WorkRequest::write(pair.into.element(0..LEN / 2).unwrap(), target);
            let read = pair.request(LEN / 2, LEN / 2, target).signaled();
            pair.into.write(LEN / 2, &[0; LEN / 2]).unwrap();
            pair.left
                .qp
                .post(&mut vec![write, read], &mut drop)
                .unwrap();
            assert_eq!(next(&mut pair.left).0, C::Success);
            assert!(pair.is_all(LEN, round));
            let add = WorkRequest::fetch_and_add(pair.into.element(0..8).unwrap(), target, 1);
            let read = pair.request(8, 8, target).signaled();
            pair.left.qp.post(&mut vec![add, read], &mut drop).unwrap();
            assert_eq!(next(&mut pair.left).0, C::Success);
            let numbers = [0, 8].map(|at| pair.into.to_vec(at..at + 8).unwrap());
            let [was, now] = numbers.map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()));
            assert_eq!(was + 1, now);
        }
        assert_eq!(pair.in_place(), before);
    }
}

/// The message that takes the key away has not been executed, since no receive is posted.
#[test]
fn a_read_behind_a_send_that_invalidates_its_key_is_rejected() {
    for execution in BOTH {
        let mut pair = Pair::new(execution);
        let window = bind(&mut pair.right, &pair.from, 0, LEN);
        let from = through(&pair.from, &window, 0);
        let send = WorkRequest::send_with_invalidate(Elements::NONE, from.key).signaled();
        post(&mut pair.left, send);
        let read = pair.request(0, 8, from).signaled();
        post(&mut pair.left, read);
        pair.left.assert_quiet();
        let receive = ReceiveRequest::new(Elements::NONE);
        pair.right
            .qp
            .post_recv_elements(&mut vec![receive])
            .unwrap();
        let statuses = [0; 2].map(|_| next_while(&mut pair).0);
        assert_eq!(statuses, [C::Success, C::RemoteAccess]);
    }
}

/// Waits for the next completion of the left side, while the right side polls.
fn next_while(pair: &mut Pair) -> (C, usize) {
    next_after(&mut pair.left, || {
        pair.right.cq.poll(&mut Vec::new(), 0).unwrap();
    })
}

/// A READ overtakes messages that the target cannot receive yet, but its completion does not.
#[test]
fn a_read_completes_after_the_messages_before_it() {
    for execution in BOTH {
        let mut pair = Pair::new(execution);
        let before = pair.in_place();
        post(&mut pair.left, WorkRequest::send(Elements::NONE).signaled());
        pair.into.write(0, &[1; LEN]).unwrap();
        let first = pair.request(0, 8, pair.from.remote(0));
        let second = pair.request(0, LEN, pair.from.remote(0)).signaled();
        pair.left
            .qp
            .post(&mut vec![first, second], &mut drop)
            .unwrap();
        pair.left.assert_quiet();
        if execution == ReadExecution::InPlace {
            assert_eq!(pair.in_place(), before + 2);
            assert!(pair.is_all(LEN, 7));
        }
        let receive = ReceiveRequest::new(Elements::NONE);
        pair.right
            .qp
            .post_recv_elements(&mut vec![receive])
            .unwrap();
        let lens = [0; 2].map(|_| {
            let (status, len) = next_while(&mut pair);
            assert_eq!(status, C::Success);
            len
        });
        assert_eq!(lens, [0, LEN]);
        assert!(pair.is_all(LEN, 7));
    }
}

/// The owner invalidates a window while it is read, and writes to the memory at once. A READ that
/// succeeds has nothing of these bytes.
#[test]
fn a_read_that_overlaps_the_end_of_its_key_fails_or_has_none_of_the_later_bytes() {
    for execution in BOTH {
        let mut failures = 0;
        for round in 0..60_u64 {
            let mut pair = Pair::new(execution);
            let window = bind(&mut pair.right, &pair.from, 0, LEN);
            let from = through(&pair.from, &window, 0);
            let Pair {
                mut right,
                from: memory,
                mut left,
                into,
            } = pair;
            let (start, started) = mpsc::channel();
            let owner = thread::spawn(move || {
                started.recv().unwrap();
                let pause = Duration::from_micros(round * 7 % 60);
                let begin = Instant::now();
                while begin.elapsed() < pause {}
                let invalidate = WorkRequest::local_invalidate(window.key());
                let status = run(&mut right, invalidate);
                memory.write(0, &[9; LEN]).unwrap();
                // The peer's READ may have failed this side's queue pair before.
                assert!(matches!(status, C::Success | C::WorkRequestFlushed));
                (right, memory)
            });
            start.send(()).unwrap();
            loop {
                let request = WorkRequest::read(into.element(0..LEN).unwrap(), from);
                let status = run(&mut left, request);
                if status != C::Success {
                    assert_eq!(status, C::RemoteAccess, "round {round}");
                    failures += 1;
                    break;
                }
                let bytes = into.to_vec(0..LEN).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 7), "round {round}");
            }
            drop(owner.join().unwrap());
        }
        assert_eq!(failures, 60);
    }
}

/// The same for a region that is deregistered and whose memory is returned.
#[test]
fn a_read_that_overlaps_the_end_of_its_region_fails_or_succeeds_whole() {
    for execution in BOTH {
        for round in 0..60_u64 {
            let pair = Pair::new(execution);
            let Pair {
                right,
                from: memory,
                mut left,
                into,
            } = pair;
            let from = memory.remote(0);
            let (start, started) = mpsc::channel();
            let owner = thread::spawn(move || {
                started.recv().unwrap();
                let pause = Duration::from_micros(round * 7 % 60);
                let begin = Instant::now();
                while begin.elapsed() < pause {}
                memory.deregister().unwrap();
                right
            });
            start.send(()).unwrap();
            loop {
                let request = WorkRequest::read(into.element(0..LEN).unwrap(), from);
                let status = run(&mut left, request);
                if status != C::Success {
                    assert_eq!(status, C::RemoteAccess, "round {round}");
                    break;
                }
                let bytes = into.to_vec(0..LEN).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 7), "round {round}");
            }
            drop(owner.join().unwrap());
        }
    }
}

/// A queue pair that is reset does not answer.
#[test]
fn a_read_through_a_queue_pair_that_was_reset_ends_in_retries() {
    for execution in BOTH {
        for round in 0..10_u64 {
            let pair = Pair::new(execution);
            let Pair {
                mut right,
                from: memory,
                mut left,
                into,
            } = pair;
            let from = memory.remote(0);
            let (start, started) = mpsc::channel();
            let owner = thread::spawn(move || {
                started.recv().unwrap();
                thread::sleep(Duration::from_micros(round * 10));
                right.go(QpState::Reset);
                right
            });
            start.send(()).unwrap();
            loop {
                let request = WorkRequest::read(into.element(0..LEN).unwrap(), from);
                let status = run(&mut left, request);
                if status != C::Success {
                    assert_eq!(status, C::RetryExceeded);
                    break;
                }
            }
            drop(owner.join().unwrap());
            drop(memory);
        }
    }
}
