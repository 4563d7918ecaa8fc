//! Cases and their outcomes.

use super::device::Device;

/// The cases of one topic.
pub(crate) struct Section {
    pub(crate) topic: &'static str,
    pub(crate) cases: &'static [Case],
}

/// A case: one named situation.
pub(crate) struct Case {
    /// The name of the function.
    pub(crate) function: &'static str,
    /// The sources of the case, separated by semicolons: a topic of the specification, or `rc_test:
    /// Send, SendImm` for cases of google/rdma-unit-test.
    pub(crate) source: &'static str,
    pub(crate) run: fn(&Device),
}

impl Case {
    /// Returns the name used in reports and filters.
    pub(crate) fn name(&self) -> String {
        self.function.replace('_', "-")
    }

    /// Returns the cases of google/rdma-unit-test that this case covers, as `rc_test: Send`.
    pub(crate) fn translated(&self) -> impl Iterator<Item = String> {
        self.source
            .split("; ")
            .filter_map(|source| source.split_once("_test: "))
            .flat_map(|(file, names)| {
                names
                    .split(", ")
                    .map(move |name| format!("{file}_test: {name}"))
            })
    }
}

/// Makes a [`Case`] of a function and its source.
macro_rules! case {
    ($run:ident, $source:literal) => {
        $crate::case::Case {
            function: stringify!($run),
            source: $source,
            run: $run,
        }
    };
}
pub(crate) use case;

/// The outcome of a case on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pass,
    /// With the keys of the deviations.
    Deviation(Vec<String>),
    /// With the key of the reason.
    NotSupported(String),
    /// Of a network card: not what the specification says. With the message.
    Differs(String),
    /// With the failure's message.
    Failed(String),
}

impl Outcome {
    /// Formats the outcome for the report and the results file.
    pub(crate) fn cell(&self) -> String {
        match self {
            Self::Pass => "pass".to_owned(),
            Self::Deviation(keys) => format!("deviation: {}", keys.join(", ")),
            Self::NotSupported(key) => format!("not supported: {key}"),
            Self::Differs(_) => "differs".to_owned(),
            Self::Failed(_) => "**failed**".to_owned(),
        }
    }
}
