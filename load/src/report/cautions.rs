//! Why the figures of a run may be wrong, or may not say what they seem to.

use super::machine::Machine;
use crate::record::Record;
use crate::sweep::{Over, Sweep};
use crate::unit::Unit;

/// A percentile rests on the calls that took longer: with fewer of them than this, one more or less changes
/// it.
const ENOUGH_CALLS: u64 = 10;

/// The percentile of the tables that rests on the fewest calls.
const TAIL: f64 = 0.999;

/// Late calls are worth a sentence, and a mark, if they are more than this share.
pub(super) const MANY_LATE: f64 = 0.01;

/// What gives reason to a sentence in one record, if anything does.
type Reason = fn(&Record) -> Option<String>;

/// Returns a sentence for each reason.
pub(super) fn of(sweep: &Sweep, machine: &Machine) -> Vec<String> {
    let mut cautions = Vec::new();
    // The last rate of a sweep is to be too high.
    let (knee, below) = match (&sweep.knee, &sweep.steps[..]) {
        (Some(_), [below @ .., knee]) => (Some(knee), below),
        (_, below) => (None, below),
    };
    let of_load: [Reason; 2] = [shortfall, late];
    let of_calls: [Reason; 3] = [failures, unanswered, few_calls];
    let reasons = of_load.map(|reason| (reason, None));
    let reasons = reasons
        .into_iter()
        .chain(of_calls.map(|reason| (reason, knee)));
    for (reason, knee) in reasons {
        let steps = below.iter().chain(knee);
        let found = steps.filter_map(|step| Some((step.at, reason(&step.record)?)));
        let found: Vec<_> = found.collect();
        let Some((at, said)) = found.last() else {
            continue;
        };
        let at = sweep.over.unit().text(*at);
        let over = sweep.over;
        cautions.push(match (sweep.steps.len(), found.len()) {
            (1, _) => format!("{said}."),
            (_, 1) => format!("At {over} {at}: {said}."),
            (_, others) => format!("At {over} {at}, and {} lower: {said}.", others - 1),
        });
    }
    if machine.is_debug_build {
        cautions.push(
            "This program is a debug build: its own part of each call takes many times as long. Build it, and the \
             server, with --release."
                .to_owned(),
        );
    }
    if machine.cores.is_some_and(|cores| cores < 4) {
        cautions.push(
            "This machine has few cores. If the server ran on it, too, threads that spin have waited for each \
             other: the tail then has the scheduler's time slices, of some milliseconds."
                .to_owned(),
        );
    }
    if machine.is_virtual {
        cautions.push(
            "This is a virtual machine: its host takes processors away, which looks like a stall of the server. \
             Repeat the run, and compare the slices."
                .to_owned(),
        );
    }
    let is_closed = sweep.steps.iter().any(|step| step.record.wanted.is_none());
    if is_closed && sweep.over != Over::Rate {
        cautions.push(
            "A closed loop makes no calls while the server stalls, so the calls that would have met a stall are \
             missing. For what callers wait who come at times of their own, use an open loop."
                .to_owned(),
        );
    }
    cautions
}

fn shortfall(record: &Record) -> Option<String> {
    record.shortfall().map(|shortfall| {
        let text = shortfall.to_string();
        let mut chars = text.chars();
        let first = chars.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(chars).collect()
    })
}

fn late(record: &Record) -> Option<String> {
    let own = record.late - record.held;
    let share = own as f64 / record.due().max(1) as f64;
    (share > MANY_LATE).then(|| {
        format!(
            "{own} calls ({}) were sent late although a caller was free: the thread that sends was slow, and \
             their wait for it is in the response times",
            Unit::Share.text(share)
        )
    })
}

fn failures(record: &Record) -> Option<String> {
    let count = record.failures.count();
    (count > 0).then(|| {
        let share = Unit::Share.text(count as f64 / record.due().max(1) as f64);
        format!("{count} calls ({share}) failed, and are in no percentile")
    })
}

fn unanswered(record: &Record) -> Option<String> {
    let count = record.unanswered;
    (count > 0).then(|| {
        format!(
            "{count} calls were in flight when the run was ended, and are in the response times with what they \
             had waited by then"
        )
    })
}

fn few_calls(record: &Record) -> Option<String> {
    let calls = record.response.len();
    let beyond = (calls as f64 * (1.0 - TAIL)).round() as u64;
    (beyond < ENOUGH_CALLS).then(|| match calls {
        0 => "No call was answered".to_owned(),
        calls => format!("The p99.9 of {calls} calls rests on {beyond} of them: record for longer"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debug_build_is_said_and_a_release_build_is_not() {
        let sweep = Sweep {
            over: Over::Rate,
            steps: Vec::new(),
            knee: None,
        };
        let mut machine = Machine::of_this_process();
        for is_debug_build in [true, false] {
            machine.is_debug_build = is_debug_build;
            let said = of(&sweep, &machine);
            let is_said = said.iter().any(|said| said.contains("--release"));
            assert_eq!(is_said, is_debug_build, "{said:?}");
        }
    }
}
