//! One-sided operations between real processes: on memory whose owner is doing something else,
//! whose owner is killed, and that several processes access at once.

use std::collections::HashSet;
use std::io::{BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use verbline_verbs::{
    AckTimeout, CompletionOpcode, CompletionStatus as C, Psn, QueuePair, RemoteEndpoint, RemoteKey,
    RemoteMemory, RetryCount, RtrAttributes, RtsAttributes, WorkKind, WorkRequest,
};

use super::case::{Section, case};
use super::device::Device;
use super::end::{self, End, Options, rc};
use super::processes::{read_endpoint, read_line_of_peer, role, write_endpoint};
use super::verbs_side::{HANG, address};

pub(crate) const CASES: Section = Section {
    topic: "one-sided operations between processes",
    cases: &[
        case!(
            memory_of_a_process_that_sleeps_is_written_and_read,
            "specification: one-sided operations"
        ),
        case!(
            processes_that_add_to_one_number_lose_nothing,
            "specification: atomics"
        ),
        case!(
            a_target_that_is_killed_in_mid_transfer_is_noticed,
            "specification: acknowledgement timer"
        ),
        case!(
            a_requester_that_is_killed_in_mid_transfer_harms_nobody,
            "specification: acknowledgement timer"
        ),
    ],
};

/// The prefix of this file's roles.
pub(crate) const ROLES: &str = "one-sided-";
const PSN: u32 = 77;
/// Number of additions of each process.
const ADDITIONS: u64 = 200;

/// Another process, killed when dropped.
struct Peer {
    process: Child,
    from: BufReader<ChildStdout>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Peer {
    /// Starts a peer that is connected to `qp`, and sends it the location of `end`'s memory.
    /// Returns the location of the peer's own memory.
    fn start(of: &str, end: &End, qp: &mut QueuePair) -> (Self, RemoteMemory) {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(role(), format!("{ROLES}{of}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut from = BufReader::new(process.stdout.take().unwrap());
        let to = process.stdin.as_mut().unwrap();
        end::init(qp, end.options);
        write_endpoint(&mut *to, endpoint(qp));
        write_memory(to, end.remote(0));
        let remote = read_endpoint(&mut from);
        let memory = read_memory(&mut from);
        bring_up(qp, remote, end.options);
        assert_eq!(read_line_of_peer(&mut from), "ready");
        (Self { process, from }, memory)
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn endpoint(qp: &QueuePair) -> RemoteEndpoint {
    RemoteEndpoint {
        gid: address().gid,
        lid: address().lid,
        qp_num: qp.qp_num(),
        psn: Psn::new(PSN),
    }
}

/// Brings up a queue pair. A peer that does not respond is detected after 4.096 µs × 2^12 × 3 = 50
/// ms.
fn bring_up(qp: &mut QueuePair, remote: RemoteEndpoint, options: Options) {
    qp.to_rtr(RtrAttributes {
        sgid_index: address().gid_index,
        max_dest_rd_atomic: options.max_dest_rd_atomic,
        ..RtrAttributes::new(remote)
    })
    .unwrap();
    qp.to_rts(RtsAttributes {
        timeout: AckTimeout::new(12).unwrap(),
        retry_cnt: RetryCount::new(2).unwrap(),
        max_rd_atomic: options.max_rd_atomic,
        ..RtsAttributes::new(Psn::new(PSN))
    })
    .unwrap();
}

fn write_memory(mut to: impl Write, memory: RemoteMemory) {
    writeln!(to, "@{} {}", memory.addr, memory.key.0).unwrap();
    to.flush().unwrap();
}

fn read_memory(from: &mut impl std::io::BufRead) -> RemoteMemory {
    let line = read_line_of_peer(from);
    let (addr, key) = line.split_once(' ').expect("two numbers");
    RemoteMemory {
        addr: addr.parse().unwrap(),
        key: RemoteKey(key.parse().unwrap()),
    }
}

/// The body of a process that was started as a peer of this file.
pub(crate) fn run_peer(role: &str) -> ExitCode {
    let mut from = std::io::stdin().lock();
    let mut end = End::new(rc());
    end::init(&mut end.qp, end.options);
    let remote = read_endpoint(&mut from);
    let theirs = read_memory(&mut from);
    write_endpoint(std::io::stdout(), endpoint(&end.qp));
    write_memory(std::io::stdout(), end.remote(0));
    let options = end.options;
    bring_up(&mut end.qp, remote, options);
    println!("@ready");
    match role {
        // It never polls its device again.
        "target" => loop {
            std::thread::sleep(HANG);
        },
        "adder" => {
            // Wait until both sides are ready before sending.
            assert_eq!(read_line_of_peer(&mut from), "go");
            for _ in 0..ADDITIONS {
                end.succeed(WorkRequest::fetch_and_add(end.at(0..8), theirs, 1));
                let was = end.memory.atomic(0).unwrap().load(Ordering::SeqCst);
                println!("@{was}");
            }
            ExitCode::SUCCESS
        }
        "writer" => {
            assert_eq!(read_line_of_peer(&mut from), "go");
            let long = 0..end::LEN;
            for fill in (1..=250).cycle() {
                end.fill(long.clone(), fill);
                end.succeed(WorkRequest::write(end.at(long.clone()), theirs));
            }
            ExitCode::FAILURE
        }
        other => panic!("a role of this file, {other}"),
    }
}

fn memory_of_a_process_that_sleeps_is_written_and_read(_: &Device) {
    let end = End::new(rc());
    let mut end = end;
    let mut qp = end.another();
    let (_peer, theirs) = Peer::start("target", &end, &mut qp);
    std::mem::swap(&mut end.qp, &mut qp);
    for (fill, len) in [(1, 8), (2, 300), (3, end::LEN / 2)] {
        end.fill(0..len, fill);
        let write = end.run(WorkRequest::write(end.at(0..len), theirs));
        assert_eq!(write.opcode, Some(CompletionOpcode::RdmaWrite));
        let half = end::LEN / 2;
        end.succeed(WorkRequest::read(end.at(half..half + len), theirs));
        assert!(end.is_all(half..half + len, fill));
    }
    let number = theirs.offset(8);
    end.succeed(WorkRequest::compare_and_swap(
        end.at(0..8),
        number,
        u64::from_ne_bytes([3; 8]),
        5,
    ));
    end.succeed(WorkRequest::fetch_and_add(end.at(0..8), number, 1));
    let was = end.memory.atomic(0).unwrap().load(Ordering::SeqCst);
    assert_eq!(was, 5);
}

fn processes_that_add_to_one_number_lose_nothing(_: &Device) {
    let mut end = End::new(rc());
    end.fill(0..8, 0);
    let mut peers = Vec::new();
    for _ in 0..3 {
        let mut qp = end.another();
        let (peer, _) = Peer::start("adder", &end, &mut qp);
        end.others.push(qp);
        peers.push(peer);
    }
    for peer in &mut peers {
        writeln!(peer.process.stdin.as_mut().unwrap(), "@go").unwrap();
    }
    let mut results = HashSet::new();
    for peer in &mut peers {
        for _ in 0..ADDITIONS {
            let was: u64 = read_line_of_peer(&mut peer.from).parse().unwrap();
            assert!(results.insert(was), "two were told {was}");
        }
    }
    let total = ADDITIONS * peers.len() as u64;
    assert!(results.iter().all(|was| *was < total));
    let sum = end.memory.atomic(0).unwrap().load(Ordering::SeqCst);
    assert_eq!(sum, total);
}

fn a_target_that_is_killed_in_mid_transfer_is_noticed(_: &Device) {
    for kind in 0..3 {
        let mut end = End::new(rc());
        let mut qp = end.another();
        let (mut peer, theirs) = Peer::start("target", &end, &mut qp);
        std::mem::swap(&mut end.qp, &mut qp);
        let request = |end: &End| match kind {
            0 => WorkRequest::write(end.at(0..end::LEN), theirs),
            1 => WorkRequest::read(end.at(0..end::LEN), theirs),
            _ => WorkRequest::fetch_and_add(end.at(0..8), theirs, 1),
        };
        for _ in 0..20 {
            let request = request(&end).signaled();
            end.post(request);
        }
        peer.kill();
        // Some requests may have completed. Then one request fails because the peer does not
        // respond, unless all requests were faster, and the ones after it are flushed.
        let statuses = end.statuses(20);
        let ended = statuses.iter().take_while(|status| **status == C::Success);
        let ended = ended.count();
        if ended < 20 {
            assert_eq!(statuses[ended], C::RetryExceeded, "{statuses:?}");
        }
        let after = statuses.iter().skip(ended + 1);
        assert!(
            after.copied().all(|status| status == C::WorkRequestFlushed),
            "{statuses:?}"
        );
        if ended == 20 {
            end.expect(request(&end), C::RetryExceeded);
        }
    }
}

fn a_requester_that_is_killed_in_mid_transfer_harms_nobody(_: &Device) {
    let mut end = End::new(rc());
    let mut qp = end.another();
    let (mut peer, _) = Peer::start("writer", &end, &mut qp);
    end.others.push(qp);
    let mut qp = end.another();
    let (_other, theirs) = Peer::start("target", &end, &mut qp);
    std::mem::swap(&mut end.qp, &mut qp);
    writeln!(peer.process.stdin.as_mut().unwrap(), "@go").unwrap();
    // Wait until the peer is writing, and a while longer.
    let start = Instant::now();
    while end.bytes(0..1) == [0] {
        assert!(start.elapsed() < HANG, "nothing was written");
    }
    std::thread::sleep(Duration::from_millis(20));
    peer.kill();
    // This side is not notified: only a request of its own would detect the dead peer. Writes that
    // the peer had in flight may still arrive, but not in this memory.
    let own = end.expose(1024, end::everything(), 0);
    for fill in 1..50 {
        own.write(0, &[fill; 512]).unwrap();
        let (from, to) = (
            own.element(0..512).unwrap(),
            own.element(512..1024).unwrap(),
        );
        end.succeed(WorkRequest::write(from, theirs));
        end.succeed(WorkRequest::read(to, theirs));
        assert_eq!(own.to_vec(512..1024).unwrap(), [fill; 512]);
    }
    let gone = &mut end.others[0];
    gone.post_one(WorkRequest::send(verbline_verbs::Elements::NONE).signaled())
        .unwrap();
    let seen = end.one();
    assert_eq!((seen.kind, seen.status), (WorkKind::Send, C::RetryExceeded));
}
