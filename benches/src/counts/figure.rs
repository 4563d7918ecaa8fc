//! [`Figure`]: one figure of `make count`, and what it is made of.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::callgrind::{Cost, LINE_LEN, Place, Profile};
use super::locked::Locked;

/// Parts of each kind that the text about a growth names.
const NAMED: usize = 12;

/// Enters a biased lock while its favourite is another thread or none. How often that happens depends on the
/// clock: the device's thread enters now and then, and the next 64 entries of the poller are of this kind. On
/// a slow machine, under valgrind, over TCP, that was 50 to 200 instructions of a call.
const ENTRY_BY_THE_CLOCK: &str = "BiasedLock<T>::enter_taking";

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Instructions per exchange.
    Instructions,
    /// Instructions per exchange, in a build without LTO: what users' builds execute.
    InstructionsNoLto,
    /// Distinct cache lines of code that an exchange executes.
    Lines,
    /// Simulated cache misses per exchange.
    Misses,
    /// Locked instructions per exchange.
    Locked,
}

impl Unit {
    /// By how much a value may exceed the accepted one. The linker places functions anew whenever
    /// any code changes, so that a function may straddle one line more: the same code has executed 318
    /// and 326 lines. Without LTO, any change may move a function to another codegen unit, where it
    /// is inlined no more. Misses of data are as many as places in memory fall into one set of the cache. The
    /// device's thread enters now and then, which costs the poller a locked instruction.
    #[must_use]
    pub fn room(self, accepted: f64) -> f64 {
        match self {
            Self::Instructions => accepted * 0.01,
            Self::InstructionsNoLto => accepted * 0.02,
            Self::Lines => accepted * 0.05,
            Self::Misses => 50.0,
            Self::Locked => 0.5,
        }
    }

    /// Returns the unit's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::InstructionsNoLto => "instructions-no-lto",
            Self::Lines => "lines",
            Self::Misses => "misses",
            Self::Locked => "locked instructions",
        }
    }

    /// Rounds to what the file of accepted figures holds: misses and locked instructions to tenths, all
    /// else to whole numbers.
    fn rounded(self, value: f64) -> f64 {
        match self {
            Self::Misses | Self::Locked => tenths(value),
            _ => value.round(),
        }
    }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// A figure, and how much of it each part has. The functions of a figure add up to it, and so do the
/// source files of instructions. A code line that two functions share counts for both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The name, which stays the same.
    pub name: String,
    /// What is counted.
    pub unit: Unit,
    /// Per exchange.
    pub value: f64,
    /// Why an accepted figure is what it is: what changed it last by more than its room.
    pub reason: String,
    /// Emitted functions, each with what was inlined into it.
    pub functions: BTreeMap<String, f64>,
    /// Source files, each with its code wherever that was inlined.
    pub sources: BTreeMap<String, f64>,
}

impl Figure {
    /// A figure that was just counted, without the parts that round to zero.
    fn new(
        name: &str,
        unit: Unit,
        value: f64,
        functions: BTreeMap<&str, f64>,
        sources: BTreeMap<&str, f64>,
    ) -> Self {
        let rounded = |parts: BTreeMap<&str, f64>| {
            let parts = parts.into_iter();
            let parts = parts.map(|(name, value)| (name.to_owned(), unit.rounded(value)));
            parts.filter(|(_, value)| *value > 0.0).collect()
        };
        Self {
            name: name.to_owned(),
            unit,
            value: unit.rounded(value),
            reason: String::new(),
            functions: rounded(functions),
            sources: rounded(sources),
        }
    }

    /// Compares a newly counted figure with this accepted one. It is equal if it is at most
    /// [`room`](Unit::room) more or less.
    #[must_use]
    pub fn compare(&self, counted: &Self) -> Ordering {
        let room = self.unit.room(self.value);
        match counted.value - self.value {
            growth if growth > room => Ordering::Greater,
            growth if growth < -room => Ordering::Less,
            _ => Ordering::Equal,
        }
    }

    /// Says by how much a newly counted figure exceeds this accepted one, and which parts grew.
    #[must_use]
    pub fn growth(&self, counted: &Self) -> String {
        let percent = (counted.value / self.value - 1.0) * 100.0;
        let mut text = format!(
            "{}: {} {}, {percent:.1} % more than the accepted {}",
            self.name,
            counted.value,
            self.unit.name(),
            self.value
        );
        for (kind, accepted, counted) in [
            ("function", &self.functions, &counted.functions),
            ("source", &self.sources, &counted.sources),
        ] {
            let before = |name| accepted.get(name).copied().unwrap_or(0.0);
            let parts = counted.iter().map(|(name, &after)| {
                // Without the digits that subtraction adds.
                (tenths(after - before(name)), name, after)
            });
            let mut grown: Vec<_> = parts.filter(|(growth, ..)| *growth > 0.0).collect();
            grown.sort_by(|a, b| b.0.total_cmp(&a.0));
            for (growth, name, after) in grown.into_iter().take(NAMED) {
                let (growth, before) = (format!("+{growth}"), before(name));
                text += &format!("\n  {growth:>6} {kind} {name} (from {before} to {after})");
            }
        }
        text
    }
}

/// Two runs of one program with different numbers of exchanges. The difference gives the cost of an
/// exchange: what happens once cancels out.
#[derive(Clone, Debug)]
pub struct Runs {
    /// The run with fewer exchanges.
    pub few: Profile,
    /// The run with more exchanges.
    pub many: Profile,
    /// The difference in exchanges.
    pub exchanges: u64,
}

impl Runs {
    /// Returns the cost of an exchange in one event, such as [`Cost::instructions`]. The entries of a lock that
    /// the clock decides on are left out: the locked instructions show an entry that is always of this kind.
    #[must_use]
    pub fn figure(&self, name: &str, unit: Unit, event: fn(&Cost) -> u64) -> Figure {
        let steady = |part: fn(&Place) -> &str| {
            let place = move |place| (!is_by_the_clock(place)).then(|| part(place));
            known(self.by(place, event))
        };
        let functions = steady(|place| &place.function);
        let total = functions.values().sum();
        let mut sources = steady(|place| &place.source);
        // A miss is seldom the fault of the file that the code was written in.
        sources.retain(|_, _| unit != Unit::Misses);
        Figure::new(name, unit, total, functions, sources)
    }

    /// Returns the number of locked instructions of an exchange. Between two processes that valgrind slows
    /// down, the devices' own threads do part of the work, by the clock, and end favours: there, `steady`
    /// leaves out the entries that follow.
    #[must_use]
    pub fn locked(&self, name: &str, locked: &Locked, steady: bool) -> Figure {
        let place = |place| {
            let is_counted = locked.contains(place) && !(steady && is_by_the_clock(place));
            is_counted.then_some(place.function.as_str())
        };
        let functions = known(self.by(place, Cost::instructions));
        let total = functions.values().sum();
        Figure::new(name, Unit::Locked, total, functions, BTreeMap::new())
    }

    /// Returns the number of code lines of which an instruction is executed in at least every second
    /// exchange. Work that is done once in 32 messages is not hot.
    #[must_use]
    pub fn hot_lines<'a>(&'a self, name: &str) -> Figure {
        let place = |place: &'a Place| (&*place.function, &*place.object, place.address);
        let mut executions = self.by(place, Cost::instructions);
        executions.retain(|_, executions| *executions >= 0.5);
        let lines = executions.into_keys();
        let lines =
            lines.map(|(function, object, address)| (function, (object, address / LINE_LEN)));
        let lines: BTreeSet<_> = lines.collect();
        let mut functions = BTreeMap::new();
        for (function, _) in &lines {
            *functions.entry(*function).or_default() += 1.0;
        }
        let lines: BTreeSet<_> = lines.into_iter().map(|(_, line)| line).collect();
        let count = lines.len() as f64;
        Figure::new(name, Unit::Lines, count, functions, BTreeMap::new())
    }

    /// Returns the sums of an event by a part of the place, per exchange.
    fn by<'a, K: Ord>(
        &'a self,
        part: impl Fn(&'a Place) -> K,
        event: fn(&Cost) -> u64,
    ) -> BTreeMap<K, f64> {
        let few = self.few.by(&part);
        let many = self.many.by(&part).into_iter();
        many.map(|(part, many)| {
            let few = few.get(&part).map_or(0, event);
            let difference = event(&many) as f64 - few as f64;
            (part, difference / self.exchanges as f64)
        })
        .collect()
    }
}

fn is_by_the_clock(place: &Place) -> bool {
    place.function.ends_with(ENTRY_BY_THE_CLOCK)
}

/// Returns the sums of what has a name.
fn known(sums: BTreeMap<Option<&str>, f64>) -> BTreeMap<&str, f64> {
    let sums = sums.into_iter();
    sums.filter_map(|(name, sum)| Some((name?, sum))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(exchanges: u64) -> Profile {
        let mut text =
            "positions: instr line\nevents: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\n".to_owned();
        text += "ob=/bin/x\nfl=/a.rs\nfn=call\n";
        // 200 instructions happen once; a loop has ten, on two lines; one is executed rarely.
        text += &format!("0x0 1 200\n0x100 1 {}\n", exchanges * 9);
        text += &format!(
            "0x140 1 {exchanges}\nfi=/b.rs\n0x200 1 {}\n",
            exchanges / 32
        );
        text += &format!("totals: {}\n", 200 + exchanges * 10 + exchanges / 32);
        Profile::parse(&text).expect("it is whole")
    }

    fn runs() -> Runs {
        Runs {
            few: profile(320),
            many: profile(3520),
            exchanges: 3200,
        }
    }

    #[test]
    fn what_happens_once_cancels_out() {
        let figure = runs().figure("over call", Unit::Instructions, Cost::instructions);
        assert_eq!(figure.value, 10.0);
        assert_eq!(figure.functions, [("call".to_owned(), 10.0)].into());
        assert_eq!(figure.sources, [("/a.rs".to_owned(), 10.0)].into());
    }

    #[test]
    fn entries_that_the_clock_decides_on_are_left_out() {
        let profile = |calls: u64, entries: u64| {
            let events = "positions: instr line\nevents: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\n";
            let call = format!("ob=/bin/x\nfl=/a.rs\nfn=call\n0x100 1 {}\n", 9 * calls);
            let entry =
                format!("fl=/lock.rs\nfn=biased_lock::{ENTRY_BY_THE_CLOCK}\n0x200 1 {entries}\n");
            let total = format!("totals: {}\n", 9 * calls + entries);
            Profile::parse(&[events, &call, &entry, &total].concat()).expect("it is whole")
        };
        let runs = Runs {
            few: profile(1, 3),
            many: profile(2, 500),
            exchanges: 1,
        };
        let figure = runs.figure("over tcp", Unit::Instructions, Cost::instructions);
        assert_eq!(figure.value, 9.0);
        assert_eq!(figure.functions, [("call".to_owned(), 9.0)].into());
        assert_eq!(figure.sources, [("/a.rs".to_owned(), 9.0)].into());
    }

    #[test]
    fn lines_are_hot_if_most_exchanges_execute_them() {
        let figure = runs().hot_lines("hot code");
        assert_eq!(figure.value, 2.0);
        assert_eq!(figure.functions, [("call".to_owned(), 2.0)].into());
    }
}
