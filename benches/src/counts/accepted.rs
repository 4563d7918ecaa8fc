//! [`Accepted`]: the file with the accepted figures.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::figure::{Figure, Unit};
use crate::Outcome;

/// The accepted figures, and the toolchain that they were counted with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Accepted {
    /// Figures are compared only if they were counted with the same toolchain.
    pub toolchain: String,
    /// In the order in which they are printed.
    pub figures: Vec<Figure>,
}

impl Accepted {
    /// Returns the accepted figure for each counted one.
    ///
    /// # Errors
    ///
    /// Fails if the two do not have the same figures. Those without LTO may all be missing.
    pub fn of_each(&self, counted: &[Figure]) -> Outcome<Vec<&Figure>> {
        let is_counted = |accepted: &&Figure| counted.iter().any(|it| it.name == accepted.name);
        let has_no_lto = counted.iter().any(|it| it.unit == Unit::InstructionsNoLto);
        let is_due = |it: &&Figure| has_no_lto || it.unit != Unit::InstructionsNoLto;
        let mut due = self.figures.iter().filter(is_due);
        if let Some(surplus) = due.find(|accepted| !is_counted(accepted)) {
            return Err(format!("'{}' is accepted but was not counted", surplus.name).into());
        }
        let of = |counted: &Figure| {
            let missing = || format!("'{}' was counted but is not accepted", counted.name);
            Ok(self.find(counted).ok_or_else(missing)?)
        };
        counted.iter().map(of).collect()
    }

    fn find(&self, counted: &Figure) -> Option<&Figure> {
        let is_same = |it: &&Figure| it.name == counted.name && it.unit == counted.unit;
        self.figures.iter().find(is_same)
    }

    /// Accepts what was counted. A figure that changed by more than its room gets `reason`. One that is
    /// exceeded by less stays as it is, so that many small growths are noticed together.
    #[must_use]
    pub fn accept(&self, toolchain: &str, counted: Vec<Figure>, reason: &str) -> Self {
        let is_same_toolchain = self.toolchain == toolchain;
        let accept = |figure: Figure| {
            let (old, reason) = match self.find(&figure) {
                Some(old) if old.compare(&figure) == Ordering::Equal => (Some(old), &*old.reason),
                _ => (None, reason),
            };
            match old {
                Some(old) if is_same_toolchain && figure.value >= old.value => old.clone(),
                _ => Figure {
                    reason: reason.to_owned(),
                    ..figure
                },
            }
        };
        Self {
            toolchain: toolchain.to_owned(),
            figures: counted.into_iter().map(accept).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: f64, begin: f64) -> Figure {
        let functions = [("<Driver<T>>::begin", begin), ("turn", value - begin)];
        Figure {
            name: "over call".to_owned(),
            unit: Unit::Instructions,
            value,
            reason: "the first count".to_owned(),
            functions: functions
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            sources: [("rpc-core/src/driver/mod.rs".to_owned(), value)].into(),
        }
    }

    fn accepted() -> Accepted {
        Accepted {
            toolchain: "rustc 1".to_owned(),
            figures: vec![of(1000.0, 300.0)],
        }
    }

    #[test]
    fn a_figure_may_grow_by_one_percent_and_no_more() {
        let compare = |value, begin| of(1000.0, 300.0).compare(&of(value, begin));
        assert_eq!(compare(1009.0, 309.0), Ordering::Equal);
        assert_eq!(compare(1010.0, 310.0), Ordering::Equal);
        assert_eq!(compare(1011.0, 311.0), Ordering::Greater);
        assert_eq!(compare(989.0, 300.0), Ordering::Less);
    }

    #[test]
    fn the_function_that_grew_is_named_with_its_growth() {
        let text = of(1000.0, 300.0).growth(&of(1011.0, 311.0));
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
        counted.functions.insert("new".to_owned(), 40.0);
        let text = of(1000.0, 300.0).growth(&counted);
        assert!(text.contains("+40 function new (from 0 to 40)"), "{text}");
    }

    #[test]
    fn misses_have_room_for_another_layout_of_the_code() {
        let misses = |value| Figure {
            unit: Unit::Misses,
            ..of(value, 1.0)
        };
        let compare = |value| misses(5.6).compare(&misses(value));
        assert_eq!(compare(55.6), Ordering::Equal);
        assert_eq!(compare(55.7), Ordering::Greater);
    }

    #[test]
    fn figures_without_lto_may_be_left_out() {
        let mut accepted = accepted();
        let without_lto = Figure {
            name: "call without LTO".to_owned(),
            unit: Unit::InstructionsNoLto,
            ..of(1200.0, 300.0)
        };
        accepted.figures.push(without_lto);
        let counted = [of(1000.0, 300.0)];
        assert_eq!(accepted.of_each(&counted).unwrap().len(), 1);
    }

    #[test]
    fn figures_that_only_one_side_has_are_an_error() {
        assert!(accepted().of_each(&[]).is_err());
        let other = Figure {
            name: "over soft".to_owned(),
            ..of(1.0, 0.0)
        };
        assert!(accepted().of_each(&[of(1000.0, 300.0), other]).is_err());
    }

    fn read(text: &str) -> serde_json::Result<Accepted> {
        serde_json::from_str(text)
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let text = serde_json::to_string(&accepted()).expect("text");
        assert_eq!(read(&text).expect("it is whole"), accepted());
    }

    #[test]
    fn a_file_with_a_damaged_line_is_an_error() {
        let text = serde_json::to_string(&accepted()).expect("text");
        for (from, to) in [
            ("\"toolchain\":\"rustc 1\",", ""),
            ("\"reason\":\"the first count\",", ""),
            ("1000.0", "many"),
            ("\"instructions\"", "\"bytes\""),
            ("\"sources\"", "\"sauces\""),
        ] {
            let damaged = text.replacen(from, to, 1);
            assert_ne!(damaged, text, "{from}");
            assert!(read(&damaged).is_err(), "{to}");
        }
    }

    #[test]
    fn a_reason_replaces_the_old_one_only_where_the_figure_changed() {
        let accept = |value| {
            let accepted = accepted().accept("rustc 1", vec![of(value, 300.0)], "a new check");
            let figure = &accepted.figures[0];
            (figure.value, figure.reason.clone())
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
        let figure = &accepted.figures[0];
        assert_eq!(
            (figure.value, figure.reason.as_str()),
            (1009.0, "the first count")
        );
        assert_eq!(accepted.toolchain, "rustc 2");
    }
}
