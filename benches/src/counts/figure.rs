//! [`Figure`]: one figure of `make count`, and what it is made of.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use super::callgrind::{Cost, LINE_LEN, Profile};

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Instructions per exchange.
    Instructions,
    /// Instructions per exchange, in a build without LTO: what users' builds execute.
    InstructionsNoLto,
    /// Distinct cache lines of code that an exchange executes.
    Lines,
    /// Simulated cache misses per exchange.
    Misses,
}

impl Unit {
    /// All units.
    pub const ALL: [Self; 4] = [
        Self::Instructions,
        Self::InstructionsNoLto,
        Self::Lines,
        Self::Misses,
    ];

    /// By how much a value may exceed the accepted one. The linker places functions anew whenever
    /// any code changes, so that a function may straddle one line more: the same code has executed 318
    /// and 326 lines. Without LTO, any change may move a function to another codegen unit, where it
    /// is inlined no more.
    ///
    /// Where nine of these lines fall into one set of a cache with eight places in each set, each of the
    /// nine misses in every call. In builds of nearly the same code, between no set and four had so
    /// many, and 5 to 45 lines have missed. A change that adds lines shows in their number first.
    #[must_use]
    pub fn room(self, accepted: f64) -> f64 {
        match self {
            Self::Instructions => accepted * 0.01,
            Self::InstructionsNoLto => accepted * 0.02,
            Self::Lines => accepted * 0.05,
            Self::Misses => 50.0,
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
        }
    }
}

/// A part of a figure.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// An emitted function, with what was inlined into it.
    Function(String),
    /// A source file, wherever its code was inlined.
    Source(String),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(name) => write!(f, "function {name}"),
            Self::Source(path) => write!(f, "source {path}"),
        }
    }
}

/// A figure, and how much of it each part has. The functions of a figure add up to it, and so do the
/// source files of instructions. A code line that two functions share counts for both.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The name, which stays the same.
    pub name: String,
    /// What is counted.
    pub unit: Unit,
    /// Per exchange.
    pub value: f64,
    /// The parts, without those that round to zero.
    pub parts: BTreeMap<Part, f64>,
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
    fn per_exchange(&self, few: u64, many: u64) -> f64 {
        (many as f64 - few as f64) / self.exchanges as f64
    }

    /// Returns the instructions of an exchange.
    #[must_use]
    pub fn instructions(&self, name: &str) -> Figure {
        self.figure(name, Unit::Instructions, |cost| cost.instructions)
    }

    /// Returns the instructions of an exchange of a program that was built without LTO.
    #[must_use]
    pub fn instructions_no_lto(&self, name: &str) -> Figure {
        self.figure(name, Unit::InstructionsNoLto, |cost| cost.instructions)
    }

    /// Returns the misses of an exchange in the simulated first-level instruction cache.
    #[must_use]
    pub fn i1_misses(&self, name: &str) -> Figure {
        self.figure(name, Unit::Misses, |cost| cost.i1_misses)
    }

    /// Returns the misses of an exchange in the simulated first-level data cache.
    #[must_use]
    pub fn d1_misses(&self, name: &str) -> Figure {
        self.figure(name, Unit::Misses, |cost| cost.d1_misses)
    }

    fn figure(&self, name: &str, unit: Unit, of: impl Fn(&Cost) -> u64) -> Figure {
        let functions = self.parts(&self.few.functions, &self.many.functions, &of);
        let sources = self.parts(&self.few.sources, &self.many.sources, &of);
        let functions = functions.map(|(name, value)| (Part::Function(name), value));
        let sources = sources.map(|(name, value)| (Part::Source(name), value));
        // A miss is seldom the fault of the file that the code was written in.
        let sources = sources.filter(|_| unit != Unit::Misses);
        Figure::new(
            name,
            unit,
            self.per_exchange(of(&self.few.total), of(&self.many.total)),
            functions.chain(sources),
        )
    }

    fn parts<'a>(
        &'a self,
        few: &'a BTreeMap<String, Cost>,
        many: &'a BTreeMap<String, Cost>,
        of: &'a impl Fn(&Cost) -> u64,
    ) -> impl Iterator<Item = (String, f64)> + 'a {
        many.iter().map(move |(name, cost)| {
            let before = few.get(name).map_or(0, of);
            (name.clone(), self.per_exchange(before, of(cost)))
        })
    }

    /// Returns the number of code lines of which an instruction is executed in at least every second
    /// exchange. Work that is done once in 32 messages is not hot.
    #[must_use]
    pub fn hot_lines(&self, name: &str) -> Figure {
        let mut lines = BTreeSet::new();
        let mut functions: HashMap<&str, BTreeSet<(&str, u64)>> = HashMap::new();
        for (address, (executions, function)) in &self.many.instructions {
            let before = self.few.instructions.get(address).map_or(0, |few| few.0);
            if self.per_exchange(before, *executions) >= 0.5 {
                let line = (address.0.as_str(), address.1 / LINE_LEN);
                lines.insert(line);
                functions.entry(function).or_default().insert(line);
            }
        }
        let parts = functions
            .into_iter()
            .map(|(name, lines)| (Part::Function(name.to_owned()), lines.len() as f64));
        Figure::new(name, Unit::Lines, lines.len() as f64, parts)
    }
}

impl Figure {
    fn new(name: &str, unit: Unit, value: f64, parts: impl Iterator<Item = (Part, f64)>) -> Self {
        Self {
            name: name.to_owned(),
            unit,
            value: rounded(unit, value),
            parts: parts
                .map(|(part, value)| (part, rounded(unit, value)))
                .filter(|(_, value)| *value > 0.0)
                .collect(),
        }
    }

    /// Returns the functions, the most expensive first.
    #[must_use]
    pub fn functions(&self) -> Vec<(&str, f64)> {
        let mut functions: Vec<(&str, f64)> = self
            .parts
            .iter()
            .filter_map(|(part, value)| match part {
                Part::Function(name) => Some((name.as_str(), *value)),
                Part::Source(_) => None,
            })
            .collect();
        functions.sort_by(|a, b| b.1.total_cmp(&a.1));
        functions
    }
}

/// Rounds to what the file of accepted figures holds: misses to tenths, all else to whole numbers.
fn rounded(unit: Unit, value: f64) -> f64 {
    match unit {
        Unit::Instructions | Unit::InstructionsNoLto | Unit::Lines => value.round(),
        Unit::Misses => (value * 10.0).round() / 10.0,
    }
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
        let figure = runs().instructions("over call");
        assert_eq!(figure.value, 10.0);
        let parts = [
            (Part::Function("call".to_owned()), 10.0),
            (Part::Source("/a.rs".to_owned()), 10.0),
        ];
        assert_eq!(figure.parts, BTreeMap::from(parts));
    }

    #[test]
    fn lines_are_hot_if_most_exchanges_execute_them() {
        let figure = runs().hot_lines("hot code");
        assert_eq!(
            (figure.value, figure.functions()),
            (2.0, vec![("call", 2.0)])
        );
    }
}
