//! [`Accepted`]: the file with the accepted figures.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use super::figure::{Figure, Part, Unit};
use crate::Outcome;

/// Parts of each kind that the report of a growth names.
const NAMED: usize = 12;

const HEADER: &str = "\
# The accepted figures of `make count`, with the functions and source files that make them up.
# A check of `make test` counts again and fails if a figure is exceeded by more than 1 %, or by more
# than 2 % without LTO. Lines of code may be exceeded by 5 %, and misses by 50, since both change with
# the places that the linker gives to functions.
#
#     make count ACCEPT='why the figures that changed by more than that changed'
#
# writes this file again. The reason stands beside each figure that it changes.
";

/// The accepted figures, and the toolchain that they were counted with.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// Figures are compared only if they were counted with the same toolchain.
    pub toolchain: String,
    /// In the order in which they are printed.
    pub entries: Vec<Entry>,
}

/// An accepted figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The figure.
    pub figure: Figure,
    /// Why it is what it is: what changed it last by more than its room.
    pub reason: String,
}

/// The result of comparing a figure with the accepted one.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It is at most [`room`](Unit::room) more or less.
    Within,
    /// It is lower by more.
    Lower {
        /// The accepted value.
        accepted: f64,
    },
    /// It is exceeded by more.
    Exceeded(Growth),
}

/// A figure that is exceeded, and the parts that grew.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    name: String,
    unit: Unit,
    accepted: f64,
    counted: f64,
    /// The accepted and the counted value of each part that grew, by growth.
    parts: Vec<(Part, f64, f64)>,
}

impl Entry {
    /// Compares a newly counted figure with this one.
    #[must_use]
    pub fn compare(&self, counted: &Figure) -> Verdict {
        let accepted = self.figure.value;
        let room = counted.unit.room(accepted);
        if counted.value > accepted + room {
            Verdict::Exceeded(Growth::new(&self.figure, counted))
        } else if counted.value < accepted - room {
            Verdict::Lower { accepted }
        } else {
            Verdict::Within
        }
    }
}

impl Growth {
    fn new(accepted: &Figure, counted: &Figure) -> Self {
        let mut parts: Vec<_> = counted
            .parts
            .iter()
            .map(|(part, &after)| {
                let before = accepted.parts.get(part).copied().unwrap_or(0.0);
                (part.clone(), before, after)
            })
            .filter(|(_, before, after)| after > before)
            .collect();
        parts.sort_by(|a, b| (b.2 - b.1).total_cmp(&(a.2 - a.1)));
        Self {
            name: counted.name.clone(),
            unit: counted.unit,
            accepted: accepted.value,
            counted: counted.value,
            parts,
        }
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = (self.counted / self.accepted - 1.0) * 100.0;
        write!(
            f,
            "{}: {} {}, {percent:.1} % more than the accepted {}",
            self.name,
            self.counted,
            self.unit.name(),
            self.accepted
        )?;
        let is_function = |part: &Part| matches!(part, Part::Function(_));
        for functions in [true, false] {
            let parts = self.parts.iter();
            let parts = parts.filter(|(part, ..)| is_function(part) == functions);
            for (part, before, after) in parts.take(NAMED) {
                let growth = format!("+{}", tidy(after - before));
                write!(f, "\n  {growth:>6} {part} (from {before} to {after})")?;
            }
        }
        Ok(())
    }
}

/// Removes the digits that subtraction adds.
fn tidy(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

impl Accepted {
    /// Compares each figure with the accepted one.
    ///
    /// # Errors
    ///
    /// Fails if the two do not have the same figures.
    pub fn compare(&self, counted: &[Figure]) -> Outcome<Vec<Verdict>> {
        let surplus = self.entries.iter().find(|entry| {
            let name = &entry.figure.name;
            !counted.iter().any(|figure| figure.name == *name)
        });
        if let Some(entry) = surplus {
            return Err(format!("'{}' is accepted but was not counted", entry.figure.name).into());
        }
        let verdict = |figure: &Figure| {
            let entry = self
                .entry(figure)
                .ok_or_else(|| format!("'{}' was counted but is not accepted", figure.name))?;
            Ok(entry.compare(figure))
        };
        counted.iter().map(verdict).collect()
    }

    fn entry(&self, figure: &Figure) -> Option<&Entry> {
        let is_same =
            |entry: &&Entry| entry.figure.name == figure.name && entry.figure.unit == figure.unit;
        self.entries.iter().find(is_same)
    }

    /// Accepts what was counted. A figure that changed by more than its room gets `reason`. One that is
    /// exceeded by less stays as it is, so that many small growths are noticed together.
    #[must_use]
    pub fn accept(&self, toolchain: &str, counted: Vec<Figure>, reason: &str) -> Self {
        let is_same_toolchain = self.toolchain == toolchain;
        let accept = |figure: Figure| match self.entry(&figure) {
            Some(entry) if entry.compare(&figure) == Verdict::Within => {
                let keep = is_same_toolchain && figure.value >= entry.figure.value;
                Entry {
                    figure: if keep { entry.figure.clone() } else { figure },
                    reason: entry.reason.clone(),
                }
            }
            _ => Entry {
                figure,
                reason: reason.to_owned(),
            },
        };
        Self {
            toolchain: toolchain.to_owned(),
            entries: counted.into_iter().map(accept).collect(),
        }
    }

    /// Parses the file.
    ///
    /// # Errors
    ///
    /// Fails if a line is not understood, or if a figure has no reason.
    pub fn parse(text: &str) -> Outcome<Self> {
        let mut toolchain = None;
        let mut entries: Vec<Entry> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let not_understood = || format!("line {}: {line:?} is not understood", number + 1);
            let (key, value) = line.split_once(' ').ok_or_else(not_understood)?;
            match (key, entries.last_mut()) {
                ("toolchain", None) => toolchain = Some(value.to_owned()),
                ("figure", _) => entries.push(Entry {
                    figure: figure(value).ok_or_else(not_understood)?,
                    reason: String::new(),
                }),
                ("reason", Some(entry)) => value.clone_into(&mut entry.reason),
                (_, Some(entry)) => {
                    let (part, value) = part(key, value).ok_or_else(not_understood)?;
                    entry.figure.parts.insert(part, value);
                }
                _ => return Err(not_understood().into()),
            }
        }
        if let Some(entry) = entries.iter().find(|entry| entry.reason.is_empty()) {
            return Err(format!("'{}' has no reason", entry.figure.name).into());
        }
        Ok(Self {
            toolchain: toolchain.ok_or("the line `toolchain` is missing")?,
            entries,
        })
    }
}

/// Parses `8306 instructions over call`.
fn figure(text: &str) -> Option<Figure> {
    let (value, rest) = text.split_once(' ')?;
    let (unit, name) = rest.split_once(' ')?;
    Some(Figure {
        name: name.to_owned(),
        unit: Unit::ALL.into_iter().find(|known| known.name() == unit)?,
        value: value.parse().ok().filter(|value: &f64| value.is_finite())?,
        parts: BTreeMap::new(),
    })
}

/// Parses `function 2044 name` or `source 2044 path`.
fn part(key: &str, text: &str) -> Option<(Part, f64)> {
    let (value, name) = text.split_once(' ')?;
    let part = match key {
        "function" => Part::Function(name.to_owned()),
        "source" => Part::Source(name.to_owned()),
        _ => return None,
    };
    Some((part, value.parse().ok()?))
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("{HEADER}\ntoolchain {}\n", self.toolchain);
        for Entry { figure, reason } in &self.entries {
            let (value, unit) = (figure.value, figure.unit.name());
            writeln!(text, "\nfigure {value} {unit} {}", figure.name)?;
            writeln!(text, "  reason {reason}")?;
            for (part, value) in &figure.parts {
                match part {
                    Part::Function(name) => writeln!(text, "  function {value} {name}")?,
                    Part::Source(path) => writeln!(text, "  source {value} {path}")?,
                }
            }
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: f64, begin: f64) -> Figure {
        Figure {
            name: "over call".to_owned(),
            unit: Unit::Instructions,
            value,
            parts: BTreeMap::from([
                (Part::Function("<Driver<T>>::begin".to_owned()), begin),
                (Part::Function("turn".to_owned()), value - begin),
                (Part::Source("rpc-core/src/driver/mod.rs".to_owned()), value),
            ]),
        }
    }

    fn accepted() -> Accepted {
        Accepted {
            toolchain: "rustc 1".to_owned(),
            entries: vec![Entry {
                figure: of(1000.0, 300.0),
                reason: "the first count".to_owned(),
            }],
        }
    }

    fn verdict(counted: Figure) -> Verdict {
        let mut verdicts = accepted().compare(&[counted]).expect("the same figures");
        assert_eq!(verdicts.len(), 1);
        verdicts.remove(0)
    }

    #[test]
    fn a_figure_may_grow_by_one_percent_and_no_more() {
        assert_eq!(verdict(of(1009.0, 309.0)), Verdict::Within);
        assert_eq!(verdict(of(1010.0, 310.0)), Verdict::Within);
        assert!(matches!(verdict(of(1011.0, 311.0)), Verdict::Exceeded(_)));
        let lower = Verdict::Lower { accepted: 1000.0 };
        assert_eq!(verdict(of(989.0, 300.0)), lower);
    }

    #[test]
    fn the_function_that_grew_is_named_with_its_growth() {
        let Verdict::Exceeded(growth) = verdict(of(1011.0, 311.0)) else {
            panic!("it is exceeded");
        };
        let text = growth.to_string();
        assert!(
            text.starts_with("over call: 1011 instructions, 1.1 % more"),
            "{text}"
        );
        assert!(
            text.contains("+11 function <Driver<T>>::begin (from 300 to 311)"),
            "{text}"
        );
        assert!(
            text.contains("+11 source rpc-core/src/driver/mod.rs"),
            "{text}"
        );
        assert!(!text.contains("turn"), "it did not grow: {text}");
    }

    #[test]
    fn a_function_that_is_new_grew_from_nothing() {
        let mut counted = of(1020.0, 300.0);
        counted.parts.insert(Part::Function("new".to_owned()), 40.0);
        let Verdict::Exceeded(growth) = verdict(counted) else {
            panic!("it is exceeded");
        };
        assert!(
            growth
                .to_string()
                .contains("+40 function new (from 0 to 40)")
        );
    }

    #[test]
    fn misses_have_room_for_another_layout_of_the_code() {
        let misses = |value| Figure {
            unit: Unit::Misses,
            ..of(value, 1.0)
        };
        let entry = Entry {
            figure: misses(5.6),
            reason: "-".to_owned(),
        };
        assert_eq!(entry.compare(&misses(55.6)), Verdict::Within);
        assert!(matches!(entry.compare(&misses(55.7)), Verdict::Exceeded(_)));
    }

    #[test]
    fn figures_that_only_one_side_has_are_an_error() {
        assert!(accepted().compare(&[]).is_err());
        let other = Figure {
            name: "over soft".to_owned(),
            ..of(1.0, 0.0)
        };
        assert!(accepted().compare(&[of(1000.0, 300.0), other]).is_err());
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let text = accepted().to_string();
        assert_eq!(
            Accepted::parse(&text).expect("it is whole"),
            accepted(),
            "{text}"
        );
    }

    #[test]
    fn a_file_with_a_damaged_line_is_an_error() {
        let text = accepted().to_string();
        for (from, to) in [
            ("toolchain rustc 1", ""),
            ("  reason the first count", ""),
            ("figure 1000 ", "figure many "),
            ("figure 1000 instructions", "figure 1000 bytes"),
            ("function 300 ", "function "),
            ("source 1000", "sauce 1000"),
        ] {
            let damaged = text.replacen(from, to, 1);
            assert_ne!(damaged, text, "{from}");
            assert!(Accepted::parse(&damaged).is_err(), "{to}");
        }
    }

    #[test]
    fn a_reason_replaces_the_old_one_only_where_the_figure_changed() {
        let accept = |value| {
            let accepted = accepted().accept("rustc 1", vec![of(value, 300.0)], "a new check");
            let entry = &accepted.entries[0];
            (entry.figure.value, entry.reason.clone())
        };
        let (old, new) = ("the first count".to_owned(), "a new check".to_owned());
        assert_eq!(accept(1011.0), (1011.0, new.clone()));
        // Nine growths of 0.9 % are not accepted one by one.
        assert_eq!(accept(1009.0), (1000.0, old.clone()));
        assert_eq!(accept(995.0), (995.0, old));
        assert_eq!(accept(900.0), (900.0, new));
    }

    #[test]
    fn another_toolchain_counts_all_figures_again() {
        let accepted = accepted().accept("rustc 2", vec![of(1009.0, 309.0)], "rustc 2");
        let entry = &accepted.entries[0];
        assert_eq!(
            (entry.figure.value, entry.reason.as_str()),
            (1009.0, "the first count")
        );
        assert_eq!(accepted.toolchain, "rustc 2");
    }
}
