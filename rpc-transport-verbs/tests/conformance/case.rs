//! What a case is, and what can come of it.

use super::device::Device;

/// Cases of one topic.
pub(crate) struct Section {
    pub(crate) topic: &'static str,
    pub(crate) cases: &'static [Case],
}

/// One named situation.
pub(crate) struct Case {
    /// The function's name.
    pub(crate) function: &'static str,
    /// What it was taken from, with semicolons: a topic of the specification, or `rc_test: Send, SendImm` for
    /// cases of google/rdma-unit-test.
    pub(crate) source: &'static str,
    pub(crate) run: fn(&Device),
}

impl Case {
    /// The name in reports, and of filters.
    pub(crate) fn name(&self) -> String {
        self.function.replace('_', "-")
    }

    /// The cases of google/rdma-unit-test that it stands for, as `rc_test: Send`.
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

/// A function and what it was taken from, as a [`Case`].
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

/// What came of a case on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pass,
    /// With the keys of the reasons.
    Deviation(Vec<String>),
    /// With the key of the reason.
    NotSupported(String),
    /// With what was said.
    Failed(String),
}

impl Outcome {
    /// As the report and the results have it.
    pub(crate) fn cell(&self) -> String {
        match self {
            Self::Pass => "pass".to_owned(),
            Self::Deviation(keys) => format!("deviation: {}", keys.join(", ")),
            Self::NotSupported(key) => format!("not supported: {key}"),
            Self::Failed(_) => "**failed**".to_owned(),
        }
    }
}
