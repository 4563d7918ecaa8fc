//! Runs many seeds on all cores.

use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rpc_transport_verbs::testing::simulation::FaultCounters;
use verbline_verbs::for_transport::keep_from_children;

use super::long::TRANSFERS;
use super::outcomes::OUTCOMES;
use super::seed::{self, Report};

/// Seeds that have failed once, with what they found. They run whatever the range is. A seed that fails is
/// added here with its mend.
const FAILED_ONCE: [(u64, &str); 7] = [
    (
        1238,
        "a call that may have run was said not to have started",
    ),
    (4703, "two sides waited for memory in a circle"),
    (9706, "connections were replaced faster than they closed"),
    (
        5_010_410,
        "a long message was taken for stopped while others of its connection had their turns",
    ),
    (
        5_014_901,
        "messages of a stream took the memory that an earlier one of it waited for",
    ),
    (
        17_462_207_942_659,
        "messages that waited for their receivers held all windows",
    ),
    (
        1_795_702_837_038_488,
        "a refusal of windows was believed after others had been deallocated",
    ),
];

/// Number of seeds, unless `SEEDS` is set.
const SEEDS: u64 = 500;
/// Number of seeds from which every possible event must have occurred.
const ENOUGH: u64 = 5000;

/// One seed in this many is run twice, to check that it replays exactly.
const REPLAYED: u64 = 50;

pub(crate) fn run() -> ExitCode {
    if let Some(seed) = number("SEED") {
        return replay(seed);
    }
    if let (Some(first), Some(step), Some(end)) = (
        number("FAULTS_FIRST"),
        number("FAULTS_STEP"),
        number("FAULTS_END"),
    ) {
        let range = (first..end).step_by(step as usize);
        let kept = std::env::var_os("FAULTS_KEPT").map_or(&[][..], |_| &FAILED_ONCE);
        return run_share(kept.iter().map(|&(seed, _)| seed).chain(range));
    }
    run_all(
        number("FIRST").unwrap_or(0),
        number("SEEDS").unwrap_or(SEEDS),
    )
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is not a number")),
    )
}

fn replay(seed: u64) -> ExitCode {
    let first = run_seed(seed);
    let again = run_seed(seed);
    match (first, again) {
        (Some(first), Some(again)) if first == again => {
            print_summary(&Sum::of(1, &first));
            println!(
                "seed {seed} is well, twice the same (trace {:016x})",
                first.trace
            );
            ExitCode::SUCCESS
        }
        (Some(first), Some(again)) => {
            eprintln!(
                "seed {seed} does not replay: {:016x}, {:016x}",
                first.trace, again.trace
            );
            ExitCode::FAILURE
        }
        _ => ExitCode::FAILURE,
    }
}

/// Time within which a seed's files have to be closed.
const CLOSING_TIME: Duration = Duration::from_secs(5);

/// Runs one seed and checks for files that it leaves open. Returns `None` if it failed, after
/// printing the failure.
fn run_seed(seed: u64) -> Option<Report> {
    // The first socket of a process that its children do not keep opens a file, which stays.
    let (socket, _) = UnixStream::pair().expect("a pair of sockets");
    keep_from_children(&socket).expect("a handler of forks");
    drop(socket);
    let files = open_files();
    let outcome = catch_unwind(AssertUnwindSafe(|| seed::run(seed)));
    let count_left = || open_files() as i64 - files as i64;
    // The device closes the files of peers on other threads.
    let end = Instant::now() + CLOSING_TIME;
    while count_left() != 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_micros(100));
    }
    let left = count_left();
    if let Ok(Report {
        in_circles: 1.., ..
    }) = outcome
    {
        eprintln!("seed {seed}: calls that may have waited for memory in a circle were given up");
    }
    match outcome {
        Ok(report) if left == 0 => Some(report),
        Ok(_) => {
            eprintln!("seed {seed} left {left} files open");
            None
        }
        Err(_) => {
            eprintln!("seed {seed} failed, as the panic above says");
            None
        }
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// The totals over many seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sum {
    seeds: u64,
    fault_counters: FaultCounters,
    outcomes: [u64; OUTCOMES.len()],
    transfers: [u64; TRANSFERS.len()],
}

impl Sum {
    fn of(seeds: u64, report: &Report) -> Self {
        Self {
            seeds,
            fault_counters: report.fault_counters.clone(),
            outcomes: report.outcomes,
            transfers: report.transfers,
        }
    }

    fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.fault_counters.add(&other.fault_counters);
        let add = |sums: &mut [u64], others: &[u64]| {
            sums.iter_mut().zip(others).for_each(|(sum, n)| *sum += n);
        };
        add(&mut self.outcomes, &other.outcomes);
        add(&mut self.transfers, &other.transfers);
    }

    fn entries(&self) -> Vec<(String, u64)> {
        let outcomes = OUTCOMES.iter().zip(self.outcomes);
        let outcomes = outcomes.map(|(name, count)| (format!("call {name}"), count));
        let transfers = TRANSFERS.iter().zip(self.transfers);
        let transfers = transfers.map(|(name, count)| ((*name).to_owned(), count));
        let faults = self.fault_counters.entries();
        faults.chain(outcomes).chain(transfers).collect()
    }
}

/// Runs the share of one process, and prints the totals as numbers in one line for the parent
/// process.
fn run_share(seeds: impl Iterator<Item = u64>) -> ExitCode {
    let mut sum = Sum::default();
    for seed in seeds {
        // Tells the parent process which seed ran, in case this process crashes.
        println!("{seed}");
        let Some(report) = run_seed(seed) else {
            return ExitCode::FAILURE;
        };
        if seed.is_multiple_of(REPLAYED) && run_seed(seed).as_ref() != Some(&report) {
            eprintln!("seed {seed} does not replay exactly");
            return ExitCode::FAILURE;
        }
        sum.add(&Sum::of(1, &report));
    }
    let counts = sum
        .entries()
        .into_iter()
        .map(|(_, count)| count.to_string());
    println!("sum {} {}", sum.seeds, counts.collect::<Vec<_>>().join(" "));
    ExitCode::SUCCESS
}

/// Runs `seeds` seeds from `start` on.
fn run_all(start: u64, seeds: u64) -> ExitCode {
    let end = start.saturating_add(seeds);
    println!(
        "seeds {start} to {}, and those that have failed once: {FAILED_ONCE:?}",
        end.saturating_sub(1)
    );
    let started = Instant::now();
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get()) as u64;
    let program = std::env::current_exe().expect("a program knows where it is");
    let children: Vec<_> = (0..workers)
        .map(|worker| {
            let mut share = Command::new(&program);
            if worker == 0 {
                share.env("FAULTS_KEPT", "1");
            }
            share
                .env("FAULTS_FIRST", start.saturating_add(worker).to_string())
                .env("FAULTS_STEP", workers.to_string())
                .env("FAULTS_END", end.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .expect("the program starts once more")
        })
        .collect();
    let mut names: Vec<String> = Vec::new();
    let mut counts: Vec<u64> = Vec::new();
    let (mut run, mut failed) = (0, false);
    for (name, _) in Sum::default().entries() {
        names.push(name);
        counts.push(0);
    }
    // Threads that only read: a child with a full pipe would block.
    let outputs: Vec<_> = children
        .into_iter()
        .map(|child| std::thread::spawn(move || child.wait_with_output()))
        .collect();
    for output in outputs {
        let output = output
            .join()
            .expect("reading does not panic")
            .expect("a child can be read");
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().unwrap_or_default();
        let Some(sum) = last
            .strip_prefix("sum ")
            .filter(|_| output.status.success())
        else {
            failed = true;
            eprintln!("seed {last} failed ({}); replay it with", output.status);
            eprintln!("    SEED={last} make faults");
            continue;
        };
        let mut numbers = sum
            .split(' ')
            .map(|number| number.parse::<u64>().expect("a number"));
        run += numbers.next().expect("the seeds come first");
        counts
            .iter_mut()
            .zip(numbers)
            .for_each(|(count, number)| *count += number);
    }
    if failed {
        return ExitCode::FAILURE;
    }
    let entries: Vec<_> = names.into_iter().zip(counts).collect();
    print_entries(&entries);
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{run} seeds in {seconds:.1} s on {workers} cores: {:.0} seeds a second",
        run as f64 / seconds
    );
    // A campaign that is long enough for every event, but in which one never occurs, has failed.
    let never: Vec<_> = entries.iter().filter(|(_, count)| *count == 0).collect();
    if run >= ENOUGH && !never.is_empty() {
        eprintln!("never seen: {never:?}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn print_summary(sum: &Sum) {
    print_entries(&sum.entries());
}

fn print_entries(entries: &[(String, u64)]) {
    for (name, count) in entries {
        println!("{count:>12}  {name}");
    }
}
