//! What a run has seen so far. On a network card a case that hangs does not end the run: the program
//! starts itself again in its place and reads here what was done before.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::case::Outcome;

/// The variable by which a program that starts itself again names the file with what was seen.
const SO_FAR: &str = "CONFORMANCE_SO_FAR";

/// What stands for the end of a line in a message, which has its own line in the file.
const NEWLINE: &str = "\u{1}";

/// The outcomes, in the order of the cases.
#[derive(Default)]
pub(crate) struct Outcomes {
    pub(crate) all: Vec<(String, Outcome)>,
}

impl Outcomes {
    /// Returns what the program saw that started this one in its place; nothing if a person did.
    pub(crate) fn take() -> Self {
        let Some(file) = std::env::var_os(SO_FAR).map(PathBuf::from) else {
            return Self::default();
        };
        let text = std::fs::read_to_string(&file);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let _ = std::fs::remove_file(&file);
        Self::parse(&text)
    }

    pub(crate) fn has(&self, case: &str) -> bool {
        self.all.iter().any(|(name, _)| name == case)
    }

    pub(crate) fn push(&mut self, case: String, outcome: Outcome) {
        self.all.push((case, outcome));
    }

    /// Starts the program again, which ends all threads of this one, also those that hang. The new one
    /// leaves out the cases that are in here.
    pub(crate) fn start_again(&self) -> ! {
        let file = std::env::temp_dir().join(format!("conformance-{}", std::process::id()));
        let error = self.exec(&file);
        eprintln!("!! cannot start again after a case that hangs: {error}");
        std::process::exit(1);
    }

    fn exec(&self, file: &Path) -> std::io::Error {
        let program = match std::fs::write(file, self.text()).and_then(|()| std::env::current_exe())
        {
            Ok(program) => program,
            Err(error) => return error,
        };
        Command::new(program)
            .args(std::env::args_os().skip(1))
            .env(SO_FAR, file)
            .exec()
    }

    /// Returns the keys of all reasons that were needed.
    pub(crate) fn reasons(&self) -> BTreeSet<&str> {
        let mut keys = BTreeSet::new();
        for (_, outcome) in &self.all {
            match outcome {
                Outcome::Deviation(reasons) => keys.extend(reasons.iter().map(String::as_str)),
                Outcome::NotSupported(reason) => drop(keys.insert(reason.as_str())),
                _ => {}
            }
        }
        keys
    }

    /// Returns the lines of the results file, of which a report is made.
    pub(crate) fn cells(&self) -> String {
        let mut lines = String::new();
        for (case, outcome) in &self.all {
            writeln!(lines, "{case}\t{}", outcome.cell()).unwrap();
        }
        lines
    }

    /// Returns a line for each outcome, for [`parse`](Self::parse).
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (case, outcome) in &self.all {
            let (kind, words) = match outcome {
                Outcome::Pass => ("pass", String::new()),
                Outcome::Deviation(keys) => ("deviation", keys.join(",")),
                Outcome::NotSupported(key) => ("not supported", key.clone()),
                Outcome::Differs(message) => ("differs", message.clone()),
                Outcome::Failed(message) => ("failed", message.clone()),
            };
            writeln!(text, "{case}\t{kind}\t{}", words.replace('\n', NEWLINE)).unwrap();
        }
        text
    }

    pub(crate) fn parse(text: &str) -> Self {
        let all = text.lines().map(|line| {
            let parts: Vec<_> = line.splitn(3, '\t').collect();
            let [case, kind, words] = parts[..] else {
                panic!("{line:?} is no outcome");
            };
            let words = words.replace(NEWLINE, "\n");
            let outcome = match kind {
                "pass" => Outcome::Pass,
                "deviation" => Outcome::Deviation(words.split(',').map(str::to_owned).collect()),
                "not supported" => Outcome::NotSupported(words),
                "differs" => Outcome::Differs(words),
                _ => Outcome::Failed(words),
            };
            (case.to_owned(), outcome)
        });
        Self { all: all.collect() }
    }

    /// Prints the differences from the specification that nobody has published, with a request.
    pub(crate) fn print_differences(&self, device: &str) {
        let differences: Vec<_> = self
            .all
            .iter()
            .filter_map(|(case, outcome)| match outcome {
                Outcome::Differs(message) => Some((case, message)),
                _ => None,
            })
            .collect();
        if differences.is_empty() {
            return;
        }
        println!(
            "== {device} differs from the specification in {} cases. It is a card that we have not tried: the card, its\n\
             == driver or the case may be wrong. Nothing has failed by that. Please send us this report:",
            differences.len()
        );
        for (case, message) in differences {
            println!("differs: {case}: {}", message.replace('\n', "\n    "));
        }
    }
}
