//! READs from the memory of another process, which is stopped or killed.
//!
//! The program starts itself again as the other process.

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv6Addr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use verbline_verbs::{
    CompletionStatus as C, ExposedMemory, Gid, Psn, QpNum, QpState, ReadExecution, RemoteEndpoint,
    RemoteKey, RemoteMemory, WorkRequest,
};

use super::{BOTH, LEN, bring_up, everything, next, post, run, side};
use crate::verbs_side::{HANG, Side};

const REMOTE: &str = "VERBS_READS_REMOTE";

/// A process whose memory is read, killed when dropped.
struct Target {
    process: Child,
    _from: BufReader<ChildStdout>,
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn line_of(endpoint: RemoteEndpoint) -> String {
    let gid = Ipv6Addr::from(endpoint.gid.0);
    format!("{gid} {} {}", endpoint.qp_num.0, endpoint.psn.get())
}

fn endpoint_in<'a>(words: &mut impl Iterator<Item = &'a str>) -> RemoteEndpoint {
    let mut next = || words.next().expect("three words");
    RemoteEndpoint {
        gid: Gid(next().parse::<Ipv6Addr>().unwrap().octets()),
        lid: 0,
        qp_num: QpNum(next().parse().unwrap()),
        psn: Psn::new(next().parse().unwrap()),
    }
}

/// Not a test: the body of the other process.
#[test]
#[ignore = "the process that other tests start"]
fn target() {
    let Ok(remote) = std::env::var(REMOTE) else {
        return;
    };
    let mut side = side(ReadExecution::InPlace);
    let memory = side.domain.expose(LEN, everything()).unwrap();
    memory.write(0, &[7; LEN]).unwrap();
    bring_up(&mut side, endpoint_in(&mut remote.split(' ')));
    let RemoteMemory { addr, key } = memory.remote(0);
    let line = line_of(side.endpoint());
    let mut to = std::io::stdout();
    writeln!(to, "@{line} {addr} {}", key.0).unwrap();
    to.flush().unwrap();
    loop {
        thread::sleep(HANG);
    }
}

impl Target {
    /// Starts a process, and connects `side` to it. Returns its memory.
    fn start(side: &mut Side) -> (Self, RemoteMemory) {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "verbs_reads::processes::target",
                "--ignored",
                "--nocapture",
            ])
            .env(REMOTE, line_of(side.endpoint()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut from = BufReader::new(process.stdout.take().unwrap());
        let words = loop {
            let mut line = String::new();
            assert_ne!(from.read_line(&mut line).unwrap(), 0, "the peer has ended");
            if let Some((_, words)) = line.trim_end().split_once('@') {
                break words.to_owned();
            }
        };
        let mut words = words.split(' ');
        let remote = endpoint_in(&mut words);
        let memory = RemoteMemory {
            addr: words.next().unwrap().parse().unwrap(),
            key: RemoteKey(words.next().unwrap().parse().unwrap()),
        };
        bring_up(side, remote);
        let target = Self {
            process,
            _from: from,
        };
        (target, memory)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

fn read_until_in_place(side: &mut Side, into: &ExposedMemory, from: RemoteMemory) {
    let start = Instant::now();
    let is_in_place = |side: &Side| side.context.counters().unwrap().reads_in_place > 0;
    while !is_in_place(side) && side.plan.options.read_execution == ReadExecution::InPlace {
        let request = WorkRequest::read(into.element(0..LEN).unwrap(), from);
        assert_eq!(run(side, request), C::Success);
        assert!(start.elapsed() < HANG, "no READ was executed in place");
    }
}

#[test]
fn a_process_that_is_stopped_holds_up_no_read_that_is_executed_in_place() {
    for execution in BOTH {
        let mut side = side(execution);
        let into = side.domain.expose(LEN, everything()).unwrap();
        let (target, from) = Target::start(&mut side);
        read_until_in_place(&mut side, &into, from);
        target.signal(Signal::STOP);
        let pid = Some(Pid::from_child(&target.process));
        let (_, status) = waitpid(pid, WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
        into.write(0, &[0; LEN]).unwrap();
        let request = WorkRequest::read(into.element(0..LEN).unwrap(), from);
        post(&mut side, request.signaled());
        if execution == ReadExecution::ByTarget {
            side.assert_quiet();
            target.signal(Signal::CONT);
        }
        assert_eq!(next(&mut side).0, C::Success);
        let bytes = into.to_vec(0..LEN).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn a_read_of_a_process_that_was_killed_ends_in_retries() {
    for execution in BOTH {
        for _ in 0..5 {
            let mut side = side(execution);
            let into = side.domain.expose(LEN, everything()).unwrap();
            let (mut target, from) = Target::start(&mut side);
            read_until_in_place(&mut side, &into, from);
            target.process.kill().unwrap();
            target.process.wait().unwrap();
            let request = WorkRequest::read(into.element(0..LEN).unwrap(), from);
            assert_eq!(run(&mut side, request), C::RetryExceeded);
            assert_eq!(side.state(), QpState::Error);
        }
    }
}
