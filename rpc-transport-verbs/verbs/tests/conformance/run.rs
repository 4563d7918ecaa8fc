//! Runs the cases one after another, each on its own thread with a time limit.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::panic;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::SECTIONS;
use super::case::{Case, Outcome};
use super::deviations;
use super::device::{Device, Kind, NotSupported};
use super::{rdma_unit_test, verbs_side};

/// Time after which a case counts as hanging. A case waits at most 20 s for any one event, and few
/// cases wait for several events that long.
const LIMIT: Duration = Duration::from_secs(180);

/// The message of the first panic in the running case, on any thread.
static FIRST_PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Runs the cases that the filters name, or all cases, and writes their outcomes to the file
/// `results`.
pub(crate) fn run(filters: &[String], results: Option<&str>) -> ExitCode {
    let problems = rdma_unit_test::problems();
    for problem in &problems {
        eprintln!("!! {problem}");
    }
    // If there is no such device, the panic is to be seen.
    let device = verbs_side::device();
    panic::set_hook(Box::new(|info| {
        let message = words(info.payload());
        let place = info
            .location()
            .map(|place| format!("{}:{}: ", place.file(), place.line()));
        let panic_message = format!("{}{message}", place.unwrap_or_default());
        FIRST_PANIC
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(panic_message);
    }));

    let started = Instant::now();
    let mut lines = String::new();
    let mut counts = [0_usize; 4];
    let mut seen = BTreeSet::new();
    for section in SECTIONS {
        for case in section.cases {
            if !is_chosen(section.topic, &case.name(), filters) {
                continue;
            }
            let before = Instant::now();
            let outcome = run_one(case);
            let (count, what) = match &outcome {
                Outcome::Pass => (0, "pass".to_owned()),
                Outcome::Deviation(keys) => {
                    seen.extend(keys.clone());
                    (1, format!("deviation: {}", keys.join(", ")))
                }
                Outcome::NotSupported(key) => {
                    seen.insert(key.clone());
                    (2, format!("not supported: {key}"))
                }
                Outcome::Failed(panic_message) => (
                    3,
                    format!("FAILED\n    {}", panic_message.replace('\n', "\n    ")),
                ),
            };
            counts[count] += 1;
            println!(
                "{:7.3} s  {}: {}: {what}",
                before.elapsed().as_secs_f64(),
                section.topic,
                case.name()
            );
            writeln!(lines, "{}\t{}", case.name(), outcome.cell()).unwrap();
        }
    }
    let [passed, deviations, not_supported, mut failed] = counts;
    if filters.is_empty() && Device::new().kind == Kind::Rxe {
        for key in deviations::keys().filter(|key| !seen.contains(*key)) {
            eprintln!("!! the reason {key} is listed, and no case needs it");
            failed += 1;
        }
    }
    failed += problems.len();
    println!(
        "== conformance on {device}: {passed} pass, {deviations} deviate, {not_supported} not supported, {failed} failed ({:.1} s)",
        started.elapsed().as_secs_f64()
    );
    if let Some(file) = results {
        std::fs::write(file, lines).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    if passed + deviations + not_supported + failed == 0 {
        eprintln!("!! no case has {filters:?} in its name");
        return ExitCode::FAILURE;
    }
    if failed > 0 {
        return ExitCode::FAILURE;
    }
    // The line with which test programs end, for scripts that count.
    println!(
        "test result: ok. {} passed; 0 failed; {not_supported} ignored;",
        passed + deviations
    );
    ExitCode::SUCCESS
}

/// Returns the message of a panic.
fn words(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("something that is no string")
}

/// Returns true if a filter matches. Spaces, hyphens and underscores are equivalent.
fn is_chosen(topic: &str, name: &str, filters: &[String]) -> bool {
    let full = format!("{} {name}", topic.replace(' ', "-"));
    filters.is_empty()
        || filters
            .iter()
            .any(|filter| full.contains(&filter.replace(['_', ' '], "-")))
}

fn run_one(case: &'static Case) -> Outcome {
    *FIRST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let (done, end) = channel();
    let runner = thread::Builder::new()
        .name(case.name())
        .spawn(move || {
            let device = Device::new();
            let ended = panic::catch_unwind(panic::AssertUnwindSafe(|| (case.run)(&device)));
            let _ = done.send((device, ended));
        })
        .expect("a thread");
    let (device, ended) = match end.recv_timeout(LIMIT) {
        Ok(ended) => ended,
        Err(RecvTimeoutError::Disconnected) => unreachable!("it sends before it ends"),
        Err(RecvTimeoutError::Timeout) => {
            let panic_message = FIRST_PANIC
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let panic_message =
                panic_message.map(|panic_message| format!("; it said: {panic_message}"));
            let (name, panic_message) = (case.name(), panic_message.unwrap_or_default());
            eprintln!("!! {name} hangs, and ends the run{panic_message}");
            std::process::exit(1);
        }
    };
    runner.join().expect("it caught what there was");
    let panic_message = FIRST_PANIC
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    judge(device, ended.err(), panic_message)
}

/// Determines the outcome from how a case ended.
fn judge(
    device: Device,
    payload: Option<Box<dyn Any + Send>>,
    panic_message: Option<String>,
) -> Outcome {
    let kind = device.kind;
    if let Some(payload) = &payload
        && let Some(NotSupported(key)) = payload.downcast_ref()
    {
        return match kind {
            Kind::Soft => Outcome::Failed(format!("not supported by soft: {key}")),
            _ => Outcome::NotSupported((*key).to_owned()),
        };
    }
    // A panic on a thread of the device is a failure, even if the case itself succeeded.
    let failure = match (payload, panic_message) {
        (None, None) => None,
        (None, Some(panic_message)) => Some(panic_message),
        (Some(last), panic_message) => {
            // The first failure is the cause. If the case's own panic has another message, append
            // it.
            let (first, last) = (panic_message.unwrap_or_default(), words(&*last).to_owned());
            Some(match first.ends_with(&last) {
                true => first,
                false => format!("{first}\n{last}"),
            })
        }
    };
    let seen = device.into_seen();
    match failure {
        Some(panic_message) => Outcome::Failed(panic_message),
        None if seen.is_empty() => Outcome::Pass,
        None => Outcome::Deviation(seen.into_iter().map(str::to_owned).collect()),
    }
}
