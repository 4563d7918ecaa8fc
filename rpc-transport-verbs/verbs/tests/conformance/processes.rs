//! Two real processes, one of which is killed, stopped or forked. The other one has to be notified,
//! or to wait, and must lose nothing else.
//!
//! The program starts itself again as the peer. The two exchange their endpoints over the peer's
//! standard input and output, in lines that start with `@`.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv6Addr;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::one_sided_processes;
use super::verbs_side::{self, HANG, Plan, Side, failed, received, rts, sent};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use verbline_verbs::{
    AckTimeout, CompletionStatus, Gid, Psn, QpNum, QpState, RemoteEndpoint, RetryCount,
    RtsAttributes, SoftOptions, WorkKind,
};

pub(crate) const CASES: Section = Section {
    topic: "processes",
    cases: &[
        case!(
            messages_go_to_another_process_and_back,
            "specification: reliability"
        ),
        case!(
            a_killed_peer_is_noticed_within_the_retry_budget_and_not_before,
            "specification: acknowledgement timer"
        ),
        case!(
            a_send_to_a_peer_that_was_killed_before_fails_too,
            "specification: acknowledgement timer"
        ),
        case!(
            death_can_be_noticed_at_once_for_tests_above,
            "the software device"
        ),
        case!(
            without_a_timeout_a_dead_peer_is_waited_for_for_ever,
            "specification: acknowledgement timer"
        ),
        case!(
            a_stopped_peer_is_waited_for_and_nothing_is_lost,
            "specification: acknowledgement timer"
        ),
        case!(
            peers_killed_in_mid_transfer_leave_the_others_and_the_process_alone,
            "specification: acknowledgement timer"
        ),
        case!(
            a_process_that_sleeps_is_woken_by_each_message_and_by_nothing_else,
            "specification: completion channels"
        ),
        case!(
            contexts_that_come_and_go_leave_no_files_open,
            "specification: objects; device_test: OpenMany"
        ),
        case!(
            in_the_child_of_a_fork_every_verb_is_an_error,
            "specification: fork"
        ),
    ],
};

const ROLE: &str = "VERBS_PEER_ROLE";

pub(crate) fn write_endpoint(mut to: impl Write, endpoint: RemoteEndpoint) {
    let gid = Ipv6Addr::from(endpoint.gid.0);
    let RemoteEndpoint {
        lid, qp_num, psn, ..
    } = endpoint;
    writeln!(to, "@{gid} {lid} {} {}", qp_num.0, psn.get()).unwrap();
    to.flush().unwrap();
}

pub(crate) fn read_endpoint(from: &mut impl BufRead) -> RemoteEndpoint {
    let words = read_line_of_peer(from);
    let mut words = words.split(' ');
    let mut next = || words.next().expect("four words");
    let gid = Gid(next().parse::<Ipv6Addr>().unwrap().octets());
    let lid = next().parse().unwrap();
    let qp_num = QpNum(next().parse().unwrap());
    let psn = Psn::new(next().parse().unwrap());
    RemoteEndpoint {
        gid,
        lid,
        qp_num,
        psn,
    }
}

pub(crate) fn read_line_of_peer(from: &mut impl BufRead) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(from.read_line(&mut line).unwrap(), 0, "the peer has ended");
        if let Some((_, words)) = line.trim_end().split_once('@') {
            return words.to_owned();
        }
    }
}

/// A peer process, killed when dropped.
struct Peer {
    process: Child,
    /// Kept open as long as the peer lives, because the peer may still write.
    from: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a peer in this role, connected to `side`.
    fn start(role: &str, side: &mut Side, attributes: RtsAttributes) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut from = BufReader::new(process.stdout.take().unwrap());
        side.init();
        write_endpoint(process.stdin.as_mut().unwrap(), side.endpoint());
        let remote = read_endpoint(&mut from);
        side.rtr(remote);
        side.qp.to_rts(attributes).unwrap();
        assert_eq!(read_line_of_peer(&mut from), "ready");
        Self { process, from }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, signal).unwrap();
    }

    /// Stops the peer and waits until it has stopped.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = Some(Pid::from_child(&self.process));
        let (_, status) = waitpid(pid, WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the name of the environment variable that makes a process a peer.
pub(crate) fn role() -> &'static str {
    ROLE
}

/// Returns true if this process was started as a peer.
pub(crate) fn is_peer() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// The body of a process that was started as a peer.
pub(crate) fn run_peer() -> ExitCode {
    let role = std::env::var(ROLE).expect("it is a peer");
    if let Some(role) = role.strip_prefix(one_sided_processes::ROLES) {
        return one_sided_processes::run_peer(role);
    }
    if role == "alone" {
        contexts_come_and_go();
        return ExitCode::SUCCESS;
    }
    let mut from = std::io::stdin().lock();
    let plan = Plan {
        max_send_wr: 64,
        max_recv_wr: 64,
        ..Plan::default()
    };
    let mut side = Side::new(plan);
    side.init();
    let remote = read_endpoint(&mut from);
    write_endpoint(std::io::stdout(), side.endpoint());
    side.rtr(remote);
    side.rts();
    if role != "deaf" {
        side.post_recv(32);
    }
    println!("@ready");
    if role == "sleeper" {
        respond_asleep(&mut side);
    }
    let mut responses = VecDeque::new();
    loop {
        for done in side.poll() {
            if role == "echo" && done.kind == WorkKind::Receive && done.status == sent().status {
                side.post_recv(1);
                responses.push_back(done);
            }
        }
        while side.qp.send_slots_free() > 0
            && let Some(done) = responses.pop_front()
        {
            // As long as the received message, so it takes the arena if that one did.
            side.send_signaled(done.len, done.first);
        }
        std::thread::yield_now();
    }
}

/// Sleeps whenever there is nothing to do, and answers each message with the number of times that
/// it has been woken.
fn respond_asleep(side: &mut Side) -> ! {
    let thread = rustix::thread::gettid().as_raw_nonzero();
    let mut out = std::io::stdout();
    writeln!(out, "@{thread}").unwrap();
    let mut woken = 0;
    loop {
        side.cq.arm(false).unwrap();
        let done = side.poll();
        if done.is_empty() {
            side.channel.wait(None).unwrap();
            woken += 1;
        }
        for _ in done {
            side.post_recv(1);
            // Not signaled, so that no send completion wakes a thread; there are enough slots.
            side.send(woken, 1);
        }
    }
}

fn plan() -> Plan {
    Plan {
        max_send_wr: 64,
        max_recv_wr: 64,
        ..Plan::default()
    }
}

/// Sends one message and waits for its echo.
fn round_trip(side: &mut Side, len: usize, fill: u8) {
    side.post_recv(1);
    side.send_signaled(len, fill);
    let mut done = side.wait(2);
    done.sort_by_key(|done| done.kind == WorkKind::Receive);
    assert_eq!(done, [sent(), received(len, fill)]);
}

fn messages_go_to_another_process_and_back(_: &Device) {
    let mut side = Side::new(plan());
    let _peer = Peer::start("echo", &mut side, rts());
    for number in 0..500_usize {
        round_trip(&mut side, 1 + number * 2, (number % 250) as u8 + 1);
    }
}

fn a_killed_peer_is_noticed_within_the_retry_budget_and_not_before(_: &Device) {
    let mut side = Side::new(plan());
    // 4.096 µs × 2^13 × 3 = 100 ms.
    let attributes = RtsAttributes {
        timeout: AckTimeout::new(13).unwrap(),
        retry_cnt: RetryCount::new(2).unwrap(),
        ..rts()
    };
    let mut peer = Peer::start("deaf", &mut side, attributes);
    side.send(10, 1);
    side.send_signaled(900, 2);
    side.assert_quiet();
    let killed = Instant::now();
    peer.kill();
    let done = side.wait(2);
    // On a network, the first of the three timeouts started earlier, with the last response. There,
    // a kernel may count in steps of 4 ms.
    let budget = match verbs_side::device() {
        "soft" => Duration::from_millis(100),
        _ => Duration::from_millis(2 * 32),
    };
    assert!(killed.elapsed() >= budget, "{:?}", killed.elapsed());
    assert_eq!(
        done[0],
        failed(WorkKind::Send, CompletionStatus::RetryExceeded)
    );
    assert_eq!(done[1], verbs_side::flushed(WorkKind::Send));
    assert_eq!(side.state(), QpState::Error);
}

fn a_send_to_a_peer_that_was_killed_before_fails_too(_: &Device) {
    let mut side = Side::new(plan());
    let mut peer = Peer::start("echo", &mut side, rts());
    round_trip(&mut side, 100, 1);
    peer.kill();
    side.send(10, 1);
    assert_eq!(
        side.wait_one(),
        failed(WorkKind::Send, CompletionStatus::RetryExceeded)
    );
}

fn death_can_be_noticed_at_once_for_tests_above(device: &Device) {
    device.needs_soft(&rxe::SOFT_OPTION);
    let options = SoftOptions {
        detect_death_at_once: true,
        ..verbs_side::soft_options()
    };
    let mut side = Side::new(Plan { options, ..plan() });
    // A retry time far beyond the test's time limit.
    let attributes = RtsAttributes {
        timeout: AckTimeout::new(25).unwrap(),
        retry_cnt: RetryCount::new(7).unwrap(),
        ..rts()
    };
    let mut peer = Peer::start("deaf", &mut side, attributes);
    side.send(10, 1);
    peer.kill();
    assert_eq!(
        side.wait_one(),
        failed(WorkKind::Send, CompletionStatus::RetryExceeded)
    );
}

fn without_a_timeout_a_dead_peer_is_waited_for_for_ever(_: &Device) {
    let mut side = Side::new(plan());
    let mut peer = Peer::start(
        "deaf",
        &mut side,
        RtsAttributes {
            timeout: AckTimeout::FOREVER,
            ..rts()
        },
    );
    side.send_signaled(10, 1);
    peer.kill();
    for _ in 0..3 {
        side.assert_quiet();
    }
    assert_eq!(side.state(), QpState::Rts);
}

fn a_stopped_peer_is_waited_for_and_nothing_is_lost(_: &Device) {
    let mut side = Side::new(plan());
    // The retry time is 12.6 ms, and the peer is stopped for 300 ms.
    let peer = Peer::start("echo", &mut side, rts());
    round_trip(&mut side, 10, 1);
    peer.stop();
    side.post_recv(8);
    for fill in 1..=8 {
        side.send(200 * usize::from(fill) / 2, fill);
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        assert_eq!(side.poll(), []);
    }
    peer.signal(Signal::CONT);
    let fills: Vec<_> = side.wait(8).iter().map(|done| done.first).collect();
    assert_eq!(fills, [1, 2, 3, 4, 5, 6, 7, 8]);
}

fn peers_killed_in_mid_transfer_leave_the_others_and_the_process_alone(_: &Device) {
    let (mut left, mut right) = verbs_side::connected(Plan::default());
    for round in 0..4_u8 {
        let mut side = Side::new(plan());
        let mut peer = Peer::start("echo", &mut side, rts());
        side.post_recv(60);
        let start = Instant::now();
        // Traffic in both directions, through the ring and the arenas, until the connection breaks.
        let mut fill = 0_u8;
        let mut is_killed = false;
        let broke = loop {
            fill = fill.wrapping_add(1);
            if side.qp.send_slots_free() > 32 {
                side.send_signaled(usize::from(fill) * 4, fill);
            }
            let done = side.poll();
            if let Some(done) = done.iter().find(|done| done.status != sent().status) {
                break *done;
            }
            let came = done
                .iter()
                .filter(|done| done.kind == WorkKind::Receive)
                .count();
            side.post_recv(came);
            if !is_killed && start.elapsed() > Duration::from_millis(20 + 7 * u64::from(round)) {
                peer.kill();
                is_killed = true;
            }
            assert!(start.elapsed() < HANG);
        };
        assert!(is_killed);
        assert_eq!(
            broke,
            failed(WorkKind::Send, CompletionStatus::RetryExceeded)
        );
        right.post_recv(1);
        left.send_signaled(500, round);
        assert_eq!(right.wait_one(), received(500, round));
        assert_eq!(left.wait_one(), sent());
    }
}

/// The peer is not woken by a periodic tick of an engine, which would find every message
/// eventually: the sender wakes it, and counts the wakeup.
fn a_process_that_sleeps_is_woken_by_each_message_and_by_nothing_else(_: &Device) {
    // Fewer than the number of slots, because no send completes.
    const MESSAGES: usize = 50;
    let mut side = Side::new(plan());
    let mut peer = Peer::start("sleeper", &mut side, rts());
    let thread = read_line_of_peer(&mut peer.from);
    let wchan = format!("/proc/{}/task/{thread}/wchan", peer.process.id());
    // On a busy machine, it also sleeps elsewhere: for a lock, or for the pipe of its line.
    let sleeps = || std::fs::read_to_string(&wchan).unwrap().contains("poll");
    // Over TCP, the kernel wakes the peer, and counts nothing.
    let counts = verbs_side::device() == "soft";
    let woken = |side: &Side| side.context.counters().ok().map(|it| it.sleepers_woken);
    for number in 1..=MESSAGES {
        let start = Instant::now();
        while !sleeps() {
            assert!(start.elapsed() < HANG, "it does not sleep");
            std::thread::yield_now();
        }
        side.post_recv(1);
        let before = woken(&side);
        side.send(10, 1);
        // The first message may have to wait for the peer's ring, and is not counted here.
        if number > 1 && counts {
            assert_eq!(woken(&side), before.map(|before| before + 1));
        }
        assert_eq!(side.wait_one(), received(number, 1), "how often it woke");
    }
}

/// The peers keep no files open either: in this case, the process is its own peer.
fn contexts_that_come_and_go_leave_no_files_open(_: &Device) {
    let status = Command::new(std::env::current_exe().unwrap())
        .env(ROLE, "alone")
        .status();
    assert!(status.unwrap().success());
}

/// Runs in a process of its own, in which no other test opens files.
fn contexts_come_and_go() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let come_and_go = || {
        let (mut left, mut right) = verbs_side::connected(Plan::default());
        right.post_recv(1);
        left.send_signaled(10, 1);
        assert_eq!(left.wait_one(), sent());
    };
    // Opens the files that the device opens only once.
    come_and_go();
    let before = open();
    for _ in 0..20 {
        come_and_go();
    }
    let start = Instant::now();
    // The engine may still be using the last context.
    while open() > before {
        assert!(
            start.elapsed() < HANG,
            "{} files, and {before} before",
            open()
        );
        std::thread::yield_now();
    }
}

fn in_the_child_of_a_fork_every_verb_is_an_error(_: &Device) {
    // SAFETY: the declarations are those of unistd.h on Linux, where `pid_t` and `int` are `i32`.
    // Neither function takes memory; the child calls nothing that needs the threads it lacks.
    unsafe extern "C" {
        safe fn fork() -> i32;
        safe fn _exit(code: i32) -> !;
    }
    let (mut left, mut right) = verbs_side::connected(Plan::default());
    let (message, mut slots) = (
        left.message(10, 1),
        left.slots.split_off(left.slots.len() - 1),
    );
    let mut list = vec![message];
    // In the child, do nothing that allocates, prints or panics: another thread may have held a
    // lock at the fork.
    match fork() {
        0 => {
            let refused = [
                left.qp.post_send(&mut list, &mut drop).is_err(),
                left.qp.post_recv(&mut slots, 1).is_err(),
                left.cq.poll(&mut Vec::new(), 0).is_err(),
                left.qp.state().is_err(),
                left.context.counters().is_err(),
                left.context.alloc_pd().is_err(),
                left.context.create_cq(1).is_err(),
                left.context.create_comp_channel().is_err(),
                left.cq.arm(false).is_err(),
                left.channel.wait(Some(Duration::ZERO)).is_err(),
                left.context.get_async_event(Some(Duration::ZERO)).is_err(),
            ];
            let first_allowed = refused.iter().position(|refused| !refused);
            _exit(first_allowed.map_or(0, |index| index as i32 + 1));
        }
        pid => {
            assert!(pid > 0);
            let child = Pid::from_raw(pid).unwrap();
            let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
            assert_eq!(
                status.exit_status(),
                Some(0),
                "the number of the verb that was allowed"
            );
        }
    }
    right.post_recv(1);
    left.post_list(&mut list).unwrap();
    assert_eq!(right.wait_one(), received(10, 1));
}
