//! Raw ping-pong over the safe verbs layer: two processes, one core each, busy polling, no RPC.
//!
//! ```text
//! cargo run --release -p benches --bin raw_ping_pong -- [messages] [bytes] [idle connections]
//! ```
//!
//! The program starts itself again as the server; both sides tell each other their endpoints over the
//! server's standard input and output. Sends are inline and every 16th is signaled, receives come
//! from a shared receive queue that is refilled by eights.
//!
//! To compare with UCX, run both in turn (it prints half round trips, in microseconds):
//!
//! ```text
//! UCX_TLS=posix,self taskset -c 1 ucx_perftest -t ucp_am_lat -s 64 -n 400000 &
//! UCX_TLS=posix,self taskset -c 0 ucx_perftest -t ucp_am_lat -s 64 -n 400000 127.0.0.1
//! ```

#![allow(clippy::print_stdout)]

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use hdrhistogram::Histogram;
use rpc_transport_verbs::verbs::{
    Access, CompletionQueue, Context, Gid, Psn, QpNum, QueuePair, QueuePairConfig, RemoteEndpoint,
    RtrAttributes, RtsAttributes, SendRequest, SharedReceiveQueue, Slot, WorkCompletion, WorkKind,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// One send in so many is signaled: an eighth of the send queue.
const SIGNAL_INTERVAL: usize = 16;
const SEND_QUEUE: usize = 128;
/// Receives posted, and how many are reposted at once.
const RECEIVES: usize = 64;
const REFILL: usize = 8;
const SLOT_LEN: usize = 4096;
/// Set in the server's process.
const SERVER: &str = "RAW_PING_PONG_SERVER";

/// Round trips before those that are measured.
const WARM_UP: usize = 20_000;

#[derive(Clone, Copy)]
struct Plan {
    messages: usize,
    len: usize,
    idle: usize,
}

fn main() -> Outcome<()> {
    let mut arguments = env::args().skip(1);
    let mut next = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let plan = Plan {
        messages: next(1_000_000)?,
        len: next(88)?,
        idle: next(0)?,
    };
    if env::var_os(SERVER).is_some() {
        serve(plan)
    } else {
        measure(plan)
    }
}

/// The connected objects of one side.
struct Side {
    // Dropped in any order: each shares ownership of what it needs.
    queue_pair: QueuePair,
    idle: Vec<QueuePair>,
    completion_queue: CompletionQueue,
    receives: SharedReceiveQueue,
    send_slots: Vec<Slot>,
    consumed: Vec<Slot>,
    requests: Vec<SendRequest>,
    completions: Vec<WorkCompletion>,
    unsignaled: usize,
}

impl Side {
    fn new(plan: Plan) -> Outcome<Self> {
        let context = Context::open("soft")?;
        let domain = context.alloc_pd()?;
        let completion_queue = context.create_cq(2 * SEND_QUEUE + RECEIVES)?;
        let receives = domain.create_srq(RECEIVES, 1)?;
        let region = domain.register((RECEIVES + SEND_QUEUE) * SLOT_LEN, Access::LOCAL_WRITE)?;
        let mut slots = region.into_slots(SLOT_LEN);
        receives.post_recv(&mut slots, RECEIVES)?;
        let create = || {
            domain.create_qp(QueuePairConfig {
                send_cq: &completion_queue,
                recv_cq: &completion_queue,
                srq: Some(&receives),
                max_send_wr: SEND_QUEUE,
                max_recv_wr: 0,
                max_inline_data: 220,
                sq_sig_all: false,
            })
        };
        let mut queue_pair = create()?;
        queue_pair.to_init(1, Access::NONE)?;
        let mut idle = Vec::with_capacity(plan.idle);
        for _ in 0..plan.idle {
            let mut queue_pair = create()?;
            queue_pair.to_init(1, Access::NONE)?;
            idle.push(queue_pair);
        }
        Ok(Self {
            queue_pair,
            idle,
            completion_queue,
            receives,
            send_slots: slots,
            consumed: Vec::with_capacity(RECEIVES),
            requests: Vec::with_capacity(1),
            completions: Vec::with_capacity(16),
            unsignaled: 0,
        })
    }

    /// Tells the other side of each queue pair, hears of its peer, and connects them.
    fn connect(&mut self, mut to: impl Write, mut from: impl BufRead) -> Outcome<()> {
        let gid = Context::open("soft")?.query_gid(1, 0)?;
        let queue_pairs = || std::iter::once(&self.queue_pair).chain(&self.idle);
        for queue_pair in queue_pairs() {
            writeln!(
                to,
                "{} {}",
                std::net::Ipv6Addr::from(gid.0),
                queue_pair.qp_num().0
            )?;
        }
        to.flush()?;
        for queue_pair in std::iter::once(&mut self.queue_pair).chain(&mut self.idle) {
            let mut line = String::new();
            from.read_line(&mut line)?;
            let (gid, number) = line
                .trim()
                .split_once(' ')
                .ok_or("the peer said no endpoint")?;
            let gid = Gid(gid.parse::<std::net::Ipv6Addr>()?.octets());
            let qp_num = QpNum(number.parse()?);
            let remote = RemoteEndpoint {
                gid,
                qp_num,
                psn: Psn::new(7),
            };
            queue_pair.to_rtr(RtrAttributes::new(remote))?;
            queue_pair.to_rts(RtsAttributes::new(Psn::new(7)))?;
        }
        // Neither side sends before both are ready to receive.
        writeln!(to, "ready")?;
        to.flush()?;
        from.read_line(&mut String::new())?;
        Ok(())
    }

    fn send(&mut self, len: usize, fill: u8) -> Outcome<()> {
        let mut slot = self.send_slots.pop().ok_or("no send slot is free")?;
        slot[0] = fill;
        self.unsignaled += 1;
        let signaled = self.unsignaled == SIGNAL_INTERVAL;
        if signaled {
            self.unsignaled = 0;
        }
        let inline = len <= self.queue_pair.capabilities().max_inline_data;
        self.requests.push(SendRequest {
            slot,
            len,
            signaled,
            inline,
            solicited: false,
        });
        let send_slots = &mut self.send_slots;
        self.queue_pair
            .post_send(&mut self.requests, &mut |slot| send_slots.push(slot))?;
        Ok(())
    }

    /// Waits for one message, and gives its first byte and its length.
    fn receive(&mut self) -> Outcome<(u8, usize)> {
        loop {
            self.completion_queue.poll(&mut self.completions, 16)?;
            let mut message = None;
            for completion in self.completions.drain(..) {
                if !completion.is_success() {
                    return Err(completion.status().to_string().into());
                }
                if completion.wr_id().kind() == Some(WorkKind::Send) {
                    let send_slots = &mut self.send_slots;
                    self.queue_pair
                        .complete_send(completion, &mut |slot| send_slots.push(slot))?;
                } else {
                    let (slot, len) = self.receives.claim(completion)?;
                    message = Some((slot[0], len));
                    self.consumed.push(slot);
                }
            }
            if self.consumed.len() >= REFILL {
                self.receives.post_recv(&mut self.consumed, REFILL)?;
            }
            if let Some(message) = message {
                return Ok(message);
            }
        }
    }
}

fn serve(plan: Plan) -> Outcome<()> {
    pin(1)?;
    let mut side = Side::new(plan)?;
    side.connect(io::stdout().lock(), io::stdin().lock())?;
    for _ in 0..WARM_UP + plan.messages {
        let (fill, len) = side.receive()?;
        side.send(len, fill)?;
    }
    // The client ends first: this side may still have to acknowledge.
    io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

fn measure(plan: Plan) -> Outcome<()> {
    let mut server = Command::new(env::current_exe()?)
        .args([plan.messages, plan.len, plan.idle].map(|number| number.to_string()))
        .env(SERVER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    pin(0)?;
    let (to, from) = pipes(&mut server)?;
    let mut side = Side::new(plan)?;
    side.connect(&to, from)?;
    for _ in 0..WARM_UP {
        side.send(plan.len, 0)?;
        side.receive()?;
    }
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)?;
    let start = Instant::now();
    let mut last = start;
    for round in 0..plan.messages {
        let fill = round as u8;
        side.send(plan.len, fill)?;
        let answer = side.receive()?;
        if answer != (fill, plan.len) {
            return Err(format!("sent {fill} in {} bytes, got {answer:?}", plan.len).into());
        }
        let now = Instant::now();
        histogram.saturating_record(u64::try_from((now - last).as_nanos())?);
        last = now;
    }
    let seconds = start.elapsed().as_secs_f64();
    drop(to);
    server.wait()?;
    println!(
        "{} B, {} idle: p50 {} ns, p99 {} ns, p99.9 {} ns, {:.0} round trips/s",
        plan.len,
        plan.idle,
        histogram.value_at_quantile(0.5),
        histogram.value_at_quantile(0.99),
        histogram.value_at_quantile(0.999),
        plan.messages as f64 / seconds,
    );
    Ok(())
}

fn pipes(server: &mut Child) -> Outcome<(ChildStdin, BufReader<ChildStdout>)> {
    let to = server
        .stdin
        .take()
        .ok_or("the server has no standard input")?;
    let from = server
        .stdout
        .take()
        .ok_or("the server has no standard output")?;
    Ok((to, BufReader::new(from)))
}

/// Pins this thread to the `index`th core that the process may use.
fn pin(index: usize) -> Outcome<()> {
    let allowed = sched_getaffinity(None)?;
    let cores: Vec<_> = (0..CpuSet::MAX_CPU)
        .filter(|core| allowed.is_set(*core))
        .collect();
    let core = cores
        .get(index)
        .or(cores.first())
        .ok_or("no core is allowed")?;
    let mut set = CpuSet::new();
    set.set(*core);
    Ok(sched_setaffinity(None, &set)?)
}
