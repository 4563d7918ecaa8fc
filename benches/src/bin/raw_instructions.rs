//! Makes raw ping-pongs for callgrind to count: signaled messages of the same length as the frames
//! of the smallest call, over the verbs layer and the software device alone. Each message uses a
//! receive that is posted again. Both sides run on one thread and are stepped in turn, so the count
//! is the same in every run.
//!
//! This is a separate program from `instructions`, so that compiling it does not change the code
//! that is counted there.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;
use std::thread;

use benches::Outcome;
use benches::endpoint::Setup;
use benches::message::{FIXED_SIZE, Load, Shape};
use clap::Parser;
use rpc_core::frame::HEADER_LEN;
use rpc_transport_verbs::verbs::{
    Access, CompletionQueue, Context, QueuePair, QueuePairConfig, SendRequest, Slot,
    WorkCompletion, WorkKind,
};

/// Makes raw ping-pongs on one thread, for callgrind to count
#[derive(Parser)]
struct Cli {
    /// Number of exchanges: one message in each direction
    #[arg(long, default_value_t = 10_000)]
    calls: usize,
}

impl Cli {
    fn run(&self) -> Outcome<()> {
        let load = Load::new(Shape::Fixed64, FIXED_SIZE)?;
        let mut sides = PingPong::open("soft", HEADER_LEN + load.encoded_len())?;
        exchange_messages(&mut sides, self.calls)?;
        println!("{} exchanges made", self.calls);
        Ok(())
    }
}

// Callgrind selects this function by name and counts only the thread that runs it.

#[inline(never)]
fn exchange_messages(sides: &mut PingPong, exchanges: usize) -> Outcome<()> {
    for _ in 0..exchanges {
        sides.exchange()?;
    }
    Ok(())
}

/// Two connected queue pairs of one device.
struct PingPong {
    sides: [Side; 2],
    len: usize,
}

/// One side, with a single queue pair.
struct Side {
    cq: CompletionQueue,
    qp: QueuePair,
    setup: Setup,
    free: Vec<Slot>,
    /// Reused buffers.
    list: Vec<SendRequest>,
    completions: Vec<WorkCompletion>,
}

impl PingPong {
    fn open(device: &str, len: usize) -> Outcome<Self> {
        // A context for each side, as two processes have.
        let mut sides = [Side::open(device)?, Side::open(device)?];
        let peers = sides.each_ref().map(|side| side.setup.local);
        for (side, peer) in sides.iter_mut().zip(peers.into_iter().rev()) {
            side.setup.to_rtr(&mut side.qp, peer)?;
        }
        for side in &mut sides {
            side.setup.to_rts(&mut side.qp)?;
            side.qp.post_recv(&mut side.free, 8)?;
        }
        let mut this = Self { sides, len };
        // The device's thread may still be connecting the two queue pairs.
        this.exchange()?;
        Ok(this)
    }

    /// Sends one message in each direction.
    #[inline]
    fn exchange(&mut self) -> Outcome<()> {
        let [client, server] = &mut self.sides;
        client.send(self.len)?;
        server.receive(self.len)?;
        server.send(self.len)?;
        client.receive(self.len)
    }
}

impl Side {
    fn open(device: &str) -> Outcome<Self> {
        let context = Context::open(device)?;
        let domain = context.alloc_pd()?;
        let cq = context.create_cq(64)?;
        let mut qp = domain.create_qp(QueuePairConfig::new(&cq, &cq))?;
        let free = domain
            .register(64 * 256, Access::LOCAL_WRITE)?
            .into_slots(256)?;
        Ok(Self {
            setup: Setup::begin(&context, &mut qp)?,
            cq,
            qp,
            free,
            list: Vec::new(),
            completions: Vec::new(),
        })
    }

    #[inline]
    fn send(&mut self, len: usize) -> Outcome<()> {
        let slot = self.free.pop().ok_or("no slot is free")?;
        self.list.push(SendRequest::new(slot, len).signaled());
        let free = &mut self.free;
        self.qp
            .post_send(&mut self.list, &mut |slot| free.push(slot))?;
        Ok(())
    }

    /// Polls until a message arrives, and posts its receive again. Completed sends return their
    /// slots.
    #[inline]
    fn receive(&mut self, len: usize) -> Outcome<()> {
        loop {
            self.cq.poll(&mut self.completions, 8)?;
            let mut has_come = false;
            for completion in self.completions.drain(..) {
                if completion.wr_id().kind() == Some(WorkKind::Send) {
                    let free = &mut self.free;
                    self.qp
                        .complete_send(completion, &mut |slot| free.push(slot))?;
                    continue;
                }
                let (slot, came) = self.qp.claim_recv(completion)?;
                if came != len {
                    return Err(format!("received {came} bytes instead of {len}").into());
                }
                self.free.push(slot);
                self.qp.post_recv(&mut self.free, 1)?;
                has_come = true;
            }
            if has_come {
                return Ok(());
            }
            // Valgrind runs one thread at a time.
            thread::yield_now();
        }
    }
}

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("raw_instructions: {error}");
            ExitCode::FAILURE
        }
    }
}
