//! Measures which copies into registered memory should go past the caches:
//!
//! ```text
//! cargo run --release -p benches --bin copies
//! ```
//!
//! One core writes a message, piece by piece, into registered memory that is used again and again.
//! Another core copies each announced piece out into private memory, while the next piece is
//! written, and reads a byte of each cache line. The time of a message runs from its first store
//! until the reader has finished. Plain stores and stores past the caches alternate in short turns,
//! and the time of a cache line between the cores is measured just before each turn. The two sides
//! are threads: caches do not distinguish threads of one process from those of two.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::hint;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use benches::Outcome;
use benches::cores::{self, Cores};
use benches::line::{Distance, RoundTrip};
use benches::rounds::Rounds;
use benches::slices::median;
use benches::table::{self, Table};
use clap::Parser;
use rpc_transport_verbs::verbs::{Access, Context, CopyRule, Slot};

/// Measures copies into registered memory, with plain stores and with stores past the caches
#[derive(Parser)]
struct Cli {
    /// Lengths of the messages in bytes
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1024,4096,16384,65536,262144,1048576,8388608"
    )]
    sizes: Vec<usize>,
    /// Lengths in bytes of the pieces in which longer messages are announced
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "8192,16384,32768,65536,131072,262144"
    )]
    pieces: Vec<usize>,
    /// Turns that each kind of copy takes
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Bytes to copy in each turn
    #[arg(long, default_value_t = 32 << 20)]
    bytes: usize,
}

/// The plain copy, and the copy past the caches.
const RULES: [CopyRule; 2] = [
    CopyRule {
        past_caches_from: None,
        piece_len: 0,
    },
    CopyRule {
        past_caches_from: Some(0),
        piece_len: 0,
    },
];

impl Cli {
    fn run(&self) -> Outcome<()> {
        let cores = Cores::choose()?;
        println!("{cores}");
        if self.rounds == 0 || self.sizes.contains(&0) || self.pieces.contains(&0) {
            return Err("--rounds, --sizes, --pieces: expected at least 1".into());
        }
        let cases = self.cases();
        let mut values = vec![Vec::new(); RULES.len() * cases.len()];
        let mut lines = Vec::new();
        cores::pin_current_thread(cores.client)?;
        for _ in 0..self.rounds {
            for (row, (case, rule)) in rows(&cases).enumerate() {
                lines.push(RoundTrip::measure(cores)?);
                values[row].push(Message::new(case)?.turn(case, rule, cores, self.bytes)?);
            }
        }
        let rounds = Rounds::new(values, lines);
        print!("\n{}\n{rounds}\n", table_of(&cases, &rounds));
        println!("the rule of this machine: {}", CopyRule::of_this_machine());
        Ok(())
    }

    /// Returns the lengths of message and piece of each row: short messages have one piece.
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &len in &self.sizes {
            cases.push(Case { len, piece: len });
            let pieces = self.pieces.iter().filter(|&&piece| piece < len);
            cases.extend(pieces.map(|&piece| Case { len, piece }));
        }
        cases
    }
}

#[derive(Clone, Copy)]
struct Case {
    len: usize,
    piece: usize,
}

/// Returns the rows of the measurement: each case with each kind of copy.
fn rows(cases: &[Case]) -> impl Iterator<Item = (Case, CopyRule)> {
    let with_rules = |case: &Case| RULES.map(|rule| (*case, rule));
    cases.iter().flat_map(with_rules)
}

fn table_of(cases: &[Case], rounds: &Rounds) -> Table {
    let mut table = Table::new([
        "bytes",
        "piece",
        "near: plain",
        "past",
        "ratio",
        "far: plain",
        "past",
        "ratio",
    ]);
    for (index, case) in cases.iter().enumerate() {
        let (plain, past) = (RULES.len() * index, RULES.len() * index + 1);
        let mut cells = vec![case.len.to_string(), case.piece.to_string()];
        for distance in [Distance::Near, Distance::Far] {
            for row in [plain, past] {
                let nanos = rounds.median(row, distance);
                cells.push(nanos.map_or_else(String::new, |nanos| {
                    table::duration(Duration::from_nanos(nanos as u64))
                }));
            }
            let ratio = rounds.ratio(past, plain, distance);
            cells.push(ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")));
        }
        table.add(cells);
    }
    table
}

/// A message in registered memory, and how far it is written and read.
struct Message {
    /// Each piece belongs to the side that holds its lock. Neither side waits for a lock, because
    /// the two counts say whose turn it is.
    pieces: Vec<Mutex<Slot>>,
    /// Pieces written and read since the beginning of the turn.
    written: Count,
    read: Count,
}

/// A count in a cache line of its own, and the line beside it, which the processor may fetch too.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

impl Count {
    fn wait_for(&self, count: u64) {
        while self.0.load(Ordering::Acquire) < count {
            hint::spin_loop();
        }
    }
}

impl Message {
    fn new(case: Case) -> Outcome<Self> {
        let domain = Context::open("soft")?.alloc_pd()?;
        let count = case.len.div_ceil(case.piece);
        let region = domain.register(count * case.piece, Access::LOCAL_WRITE)?;
        let pieces = region.into_slots(case.piece)?.into_iter().map(Mutex::new);
        Ok(Self {
            pieces: pieces.take(count).collect(),
            written: Count::default(),
            read: Count::default(),
        })
    }

    /// Sends the message many times, and returns the median time in nanoseconds.
    fn turn(&self, case: Case, rule: CopyRule, cores: Cores, bytes: usize) -> Outcome<f64> {
        let count = (bytes / case.len).clamp(8, 4000);
        let source: Vec<u8> = (0..case.len).map(|at| at as u8).collect();
        let mut times = Vec::with_capacity(count);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let pinned = cores::pin_current_thread(cores.server);
                // Reads even if this thread is not pinned, because the other side waits for it.
                self.read_all(case, count);
                pinned
            });
            for number in 0..count as u64 {
                let start = Instant::now();
                self.write(&source, number, rule);
                self.read.wait_for((number + 1) * self.pieces.len() as u64);
                times.push(start.elapsed().as_nanos() as u64);
            }
            reader.join().map_err(|_| "the reading thread panicked")??;
            Outcome::Ok(())
        })?;
        // The first messages find cold memory.
        Ok(median(&mut times[count / 8..]) as f64)
    }

    fn write(&self, source: &[u8], number: u64, rule: CopyRule) {
        let before = number * self.pieces.len() as u64;
        let len = source.len().div_ceil(self.pieces.len());
        for (index, (piece, from)) in self.pieces.iter().zip(source.chunks(len)).enumerate() {
            let mut piece = piece.lock().unwrap_or_else(PoisonError::into_inner);
            rule.copy(&mut piece[..from.len()], from);
            drop(piece);
            self.written
                .0
                .store(before + index as u64 + 1, Ordering::Release);
        }
    }

    fn read_all(&self, case: Case, count: usize) {
        let mut target = vec![0; case.len];
        let len = case.len.div_ceil(self.pieces.len());
        let mut read = 0;
        for _ in 0..count {
            for (piece, to) in self.pieces.iter().zip(target.chunks_mut(len)) {
                self.written.wait_for(read + 1);
                let piece = piece.lock().unwrap_or_else(PoisonError::into_inner);
                to.copy_from_slice(&piece[..to.len()]);
                drop(piece);
                hint::black_box(touch(to));
                read += 1;
                self.read.0.store(read, Ordering::Release);
            }
        }
    }
}

/// Reads a byte of each cache line.
fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(64).map(|byte| u64::from(*byte)).sum()
}

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("copies: {error}");
            ExitCode::FAILURE
        }
    }
}
