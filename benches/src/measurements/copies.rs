//! Which copies into registered memory should go past the caches.
//!
//! One core writes a message, piece by piece, into registered memory that is used again and again.
//! Another core copies each announced piece out into private memory, while the next piece is
//! written, and reads a byte of each cache line. The time of a message runs from its first store
//! until the reader has finished. The two sides are threads: caches do not distinguish threads of one
//! process from those of two.

use std::hint;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use clap::Args;
use rpc_transport_verbs::verbs::{Access, Context, CopyRule, Slot};
use verbline_load::unit::Unit;

use crate::cores::{self, Cores};
use crate::line::Line;
use crate::report::Row;
use crate::rounds::alternate_rows;
use crate::setup::{Bench, Measurement};
use crate::slices::median;
use crate::{Outcome, arguments};

/// Copies into registered memory that another core reads: plain stores, and stores past the caches
#[derive(Clone, Debug, Args)]
pub struct Copies {
    /// Lengths of the messages
    #[arg(
        long,
        value_parser = arguments::bytes,
        value_delimiter = ',',
        default_value = "1K,4K,16K,64K,256K,1M,8M"
    )]
    sizes: Vec<usize>,
    /// Lengths of the pieces in which longer messages are announced
    #[arg(
        long,
        value_parser = arguments::bytes,
        value_delimiter = ',',
        default_value = "8K,16K,32K,64K,128K,256K"
    )]
    pieces: Vec<usize>,
    /// Turns that each kind of copy takes
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Bytes to copy in each turn
    #[arg(long, value_parser = arguments::bytes, default_value = "32M")]
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

impl Measurement for Copies {
    fn device(&self) -> Option<&'static str> {
        Some("soft")
    }

    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        arguments::at_least_one_round(self.rounds)?;
        bench.announce(format_args!(
            "{} rounds of copies into registered memory",
            self.rounds
        ));
        let cores = bench.cores;
        cores::pin_current_thread(cores.client)?;
        let rows: Vec<(Case, CopyRule)> = rows(&self.cases()).collect();
        let rounds = alternate_rows(rows.len(), self.rounds, cores, |row| {
            let (case, rule) = rows[row];
            Message::new(bench.device(), case)?.turn(case, rule, cores, self.bytes)
        })?;
        let texts = |case: &Case| [case.len, case.piece].map(|len| Unit::Bytes.text(len as f64));
        let figures = rows.iter().enumerate().map(|(row, (case, rule))| {
            let [len, piece] = texts(case);
            let (kind, base) = match rule.past_caches_from {
                None => ("plain", row),
                Some(_) => ("past", row - 1),
            };
            Row::new(format!("{len} in {piece}, {kind}"))
                .with("size_bytes", case.len)
                .with("piece_bytes", case.piece)
                .with_rounds("time_ns", &rounds, row, Some(base))
        });
        bench.report.table("copies", figures);
        bench.report.note(rounds.to_string());
        let rule = CopyRule::of_this_machine();
        bench
            .report
            .note(format!("the rule of this machine: {rule}"));
        Ok(())
    }
}

impl Copies {
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

/// A message in registered memory, and how far it is written and read.
struct Message {
    /// Each piece belongs to the side that holds its lock. Neither side waits for a lock, because
    /// the two counts say whose turn it is.
    pieces: Vec<Mutex<Slot>>,
    /// Pieces written and read since the beginning of the turn.
    written: Line,
    read: Line,
}

impl Message {
    fn new(device: &str, case: Case) -> Outcome<Self> {
        let domain = Context::open(device)?.alloc_pd()?;
        let count = case.len.div_ceil(case.piece);
        let region = domain.register(count * case.piece, Access::LOCAL_WRITE)?;
        let pieces = region.into_slots(case.piece)?.into_iter().map(Mutex::new);
        Ok(Self {
            pieces: pieces.take(count).collect(),
            written: Line::default(),
            read: Line::default(),
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
            self.written.set(before + index as u64 + 1);
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
                self.read.set(read);
            }
        }
    }
}

/// Reads a byte of each cache line.
fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(64).map(|byte| u64::from(*byte)).sum()
}
