//! [`Report`]: runs side by side, as one HTML file with pictures, and as JSON.
//!
//! ```
//! use std::convert::Infallible;
//! use std::time::Duration;
//!
//! use verbline_load::ClosedLoop;
//! use verbline_load::report::{Report, Run};
//!
//! # fn block_on<F: Future>(future: F) -> F::Output {
//! #     verbline::block_on(future)
//! # }
//! let plan = ClosedLoop::new().warm_up(Duration::ZERO).time(Duration::from_millis(10));
//! let record = block_on(plan.run([async || Ok::<(), Infallible>(())]));
//!
//! let run = Run::new("nothing", record).fact("client", "none");
//! let html = Report::new("What a call of nothing takes").run(run).to_html();
//! assert!(html.starts_with("<!doctype html>"));
//! ```
//!
//! ```text
//!  machine.rs: facts ──┐
//!  cautions.rs ────────┴▶ Run ─▶ Report ─▶ pictures.rs ─▶ plot.rs: SVG
//!                                          html.rs
//! ```

mod cautions;
mod html;
mod machine;
mod pictures;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plot::Plot;
use crate::sweep::Sweep;

/// The version of the keys in a report's JSON.
const VERSION: u32 = 1;

/// Runs that are shown side by side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    version: u32,
    /// The heading.
    pub title: String,
    /// The runs, in the order in which they are shown.
    pub runs: Vec<Run>,
}

/// What has been measured once, and under which conditions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Run {
    /// Its name in the pictures.
    pub label: String,
    /// The conditions, in the order in which they are shown.
    pub facts: Vec<Fact>,
    /// Why the figures may be wrong, or not say what they seem to: a sentence each.
    pub cautions: Vec<String>,
    /// The loads and their records.
    pub sweep: Sweep,
}

/// A condition of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Fact {
    /// What it is about, in a word or two.
    pub name: String,
    /// What it is.
    pub value: String,
}

/// A text that is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// It is no JSON of a report.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It was written by another version of this library.
    #[error("the report has version {found}, and this program reads {VERSION}")]
    Version {
        /// The version of the report.
        found: u32,
    },
}

impl Run {
    /// Creates a run from what was measured, a [`Record`](crate::Record) or a sweep, in this process, on this
    /// machine: adds the facts that it finds by itself, which are the machine, the time and the version of
    /// this library; and cautions, for what the records and the machine give reason to.
    pub fn new(label: impl Into<String>, measured: impl Into<Sweep>) -> Self {
        let sweep = measured.into();
        let machine = machine::Machine::of_this_process();
        Self {
            label: label.into(),
            cautions: cautions::of(&sweep, &machine),
            facts: machine.facts(),
            sweep,
        }
    }

    /// Adds a condition: the device, how pollers wait, the version of the server. Leave secrets out.
    #[must_use]
    pub fn fact(mut self, name: impl Into<String>, value: impl fmt::Display) -> Self {
        self.facts.push(Fact {
            name: name.into(),
            value: value.to_string(),
        });
        self
    }

    /// Adds a sentence that says what is not to be trusted.
    #[must_use]
    pub fn caution(mut self, sentence: impl Into<String>) -> Self {
        self.cautions.push(sentence.into());
        self
    }
}

impl Report {
    /// Creates a report without runs.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            version: VERSION,
            title: title.into(),
            runs: Vec::new(),
        }
    }

    /// Adds a run.
    #[must_use]
    pub fn run(mut self, run: Run) -> Self {
        self.runs.push(run);
        self
    }

    /// Returns the pictures that there is something to show in, with a short name each, such as one for a
    /// file: `percentiles`, `over-time`, and `sweep` of runs with several loads.
    #[must_use]
    pub fn pictures(&self) -> Vec<(String, Plot)> {
        pictures::of(self)
    }

    /// Writes one HTML file, which needs neither a network nor a script: what is not to be trusted, pictures,
    /// figures, conditions, and the data as JSON.
    #[must_use]
    pub fn to_html(&self) -> String {
        html::page(self)
    }

    /// Writes everything as JSON, which [`from_json`](Self::from_json) reads. `docs/load.md` lists the keys.
    ///
    /// # Panics
    ///
    /// Never: each value has a form in JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("each value has a form in JSON")
    }

    /// Reads what [`to_json`](Self::to_json) has written.
    ///
    /// # Errors
    ///
    /// Fails if the text is something else, or of another version.
    pub fn from_json(text: &str) -> Result<Self, ReportError> {
        let report: Self = serde_json::from_str(text)?;
        match report.version {
            VERSION => Ok(report),
            found => Err(ReportError::Version { found }),
        }
    }
}
