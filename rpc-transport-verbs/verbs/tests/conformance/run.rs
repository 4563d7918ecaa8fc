//! Runs the cases one after another, each on its own thread with a time limit.

use std::any::Any;
use std::panic;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::SECTIONS;
use super::cards::{self, Lacks};
use super::case::{Case, Outcome};
use super::deviations;
use super::device::{Device, Kind, NotSupported, provider};
use super::differences::Outcomes;
use super::{rdma_unit_test, trials, verbs_side};

/// Time after which a case counts as hanging. A case waits at most 20 s for any one event, and few
/// cases wait for several events that long.
const LIMIT: Duration = Duration::from_secs(180);

/// The message of the first panic in the running case, on any thread.
static FIRST_PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Runs the cases that the filters name, or all cases, and writes their outcomes to the file
/// `results`.
pub(crate) fn run(filters: &[String], results: Option<&str>) -> ExitCode {
    // If there is no such device, the panic is to be seen.
    let device = verbs_side::device();
    let kind = Device::new().kind;
    // A card has to be there, too: then each case may differ.
    let lacks = match kind {
        Kind::Card => Lacks::find(&verbs_side::open()),
        _ => Lacks::default(),
    };
    let mut problems = rdma_unit_test::problems();
    problems.extend(cards::problems());
    if filters.is_empty() && device == "soft" && kind == Kind::Soft {
        problems.extend(trials::problems());
    }
    for problem in &problems {
        eprintln!("!! {problem}");
    }
    let mut outcomes = Outcomes::take();
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
    for section in SECTIONS {
        for case in section.cases {
            let name = case.name();
            if !is_chosen(section.topic, &name, filters) || outcomes.has(&name) {
                continue;
            }
            let before = Instant::now();
            let (outcome, is_over) = match run_one(case, lacks) {
                Some(outcome) => (outcome, false),
                // Its thread is still there.
                None => (hang(case, kind), true),
            };
            println!(
                "{:7.3} s  {}: {name}: {}",
                before.elapsed().as_secs_f64(),
                section.topic,
                in_words(&outcome)
            );
            outcomes.push(name, outcome);
            if is_over {
                outcomes.start_again();
            }
        }
    }
    let of = |is_it: fn(&Outcome) -> bool| {
        let all = outcomes.all.iter();
        all.filter(|(_, outcome)| is_it(outcome)).count()
    };
    let passed = of(|it| matches!(it, Outcome::Pass));
    let deviations = of(|it| matches!(it, Outcome::Deviation(_)));
    let not_supported = of(|it| matches!(it, Outcome::NotSupported(_)));
    let differ = of(|it| matches!(it, Outcome::Differs(_)));
    let mut failed = of(|it| matches!(it, Outcome::Failed(_)));
    if filters.is_empty() && kind == Kind::Rxe {
        let seen = outcomes.reasons();
        for key in deviations::keys().filter(|key| !seen.contains(key)) {
            eprintln!("!! the reason {key} is listed, and no case needs it");
            failed += 1;
        }
    }
    failed += problems.len();
    outcomes.print_differences(device);
    let differing = match kind {
        Kind::Card => format!("{differ} differ, "),
        _ => String::new(),
    };
    println!(
        "== conformance on {device}: {passed} pass, {deviations} deviate, {not_supported} not supported, {differing}{failed} failed ({:.1} s)",
        started.elapsed().as_secs_f64()
    );
    if let Some(file) = results {
        let lines = outcomes.cells();
        std::fs::write(file, lines).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    if outcomes.all.is_empty() && failed == 0 {
        eprintln!("!! no case has {filters:?} in its name");
        return ExitCode::FAILURE;
    }
    if failed > 0 {
        return ExitCode::FAILURE;
    }
    // The line with which test programs end, for scripts that count.
    println!(
        "test result: ok. {} passed; 0 failed; {} ignored;",
        passed + deviations,
        not_supported + differ
    );
    ExitCode::SUCCESS
}

fn in_words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Failed(message) => format!("FAILED\n    {}", message.replace('\n', "\n    ")),
        Outcome::Differs(message) => format!("differs\n    {}", message.replace('\n', "\n    ")),
        other => other.cell(),
    }
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

/// Returns the outcome of a case, or `None` if it hangs.
fn run_one(case: &'static Case, lacks: Lacks) -> Option<Outcome> {
    *FIRST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let (done, end) = channel();
    let planted = trials::planted(&case.name());
    let runner = thread::Builder::new()
        .name(case.name())
        .spawn(move || {
            let device = Device::new();
            let run = || match planted {
                None => (case.run)(&device),
                Some(planted) => planted.run(),
            };
            let ended = panic::catch_unwind(panic::AssertUnwindSafe(run));
            let _ = done.send((device, ended));
        })
        .expect("a thread");
    let limit = planted.map_or(LIMIT, |_| trials::LIMIT);
    let (device, ended) = match end.recv_timeout(limit) {
        Ok(ended) => ended,
        Err(RecvTimeoutError::Disconnected) => unreachable!("it sends before it ends"),
        Err(RecvTimeoutError::Timeout) => return None,
    };
    runner.join().expect("it caught what there was");
    let panic_message = first_panic();
    Some(judge(case, lacks, device, ended.err(), panic_message))
}

fn first_panic() -> Option<String> {
    FIRST_PANIC
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
}

/// Returns the outcome of a case that hangs. It ends the run, except on a network card.
fn hang(case: &Case, kind: Kind) -> Outcome {
    let said = first_panic().map(|message| format!("; it said: {message}"));
    let (name, said) = (case.name(), said.unwrap_or_default());
    if kind == Kind::Card {
        return different(case, format!("hangs{said}"));
    }
    eprintln!("!! {name} hangs, and ends the run{said}");
    std::process::exit(1);
}

/// Returns the outcome of a case in which a network card did not do what the specification says.
fn different(case: &Case, message: String) -> Outcome {
    match cards::known(provider(), case.function) {
        Some(known) => Outcome::Deviation(vec![known.key.to_owned()]),
        None => Outcome::Differs(message),
    }
}

/// Determines the outcome from how a case ended.
fn judge(
    case: &Case,
    lacks: Lacks,
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
    // A panic on a thread of the device is a failure, even if the case itself succeeded, and on a
    // network card, too.
    let is_of_case = payload.is_some();
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
        Some(message) if kind == Kind::Card && is_of_case => match lacks.explain(&message) {
            Some(key) => Outcome::NotSupported(key.to_owned()),
            None => different(case, message),
        },
        Some(panic_message) => Outcome::Failed(panic_message),
        None if seen.is_empty() => Outcome::Pass,
        None => Outcome::Deviation(seen.into_iter().map(str::to_owned).collect()),
    }
}
