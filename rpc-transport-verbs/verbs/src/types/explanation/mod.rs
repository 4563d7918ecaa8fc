//! Explanations of failures and events: meaning, usual causes, and what to check.
//!
//! `docs/verbs-errors.md` is generated from them: see `tests/it/verbs_explanations.rs`.

mod events;
mod statuses;

use std::fmt;

use super::async_event::AsyncEvent;
use super::work_completion::CompletionStatus;

/// The explanation of a completion status or an event, for troubleshooting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The meaning of the status or event, and the resulting state of the objects.
    pub meaning: &'static str,
    /// Usual causes, the most frequent first.
    pub causes: &'static str,
    /// The checks to make, and the remedies.
    pub look_at: &'static str,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            meaning,
            causes,
            look_at,
        } = self;
        write!(f, "{meaning} Usual causes: {causes} Look at: {look_at}")
    }
}

impl CompletionStatus {
    /// Returns the meaning of the status, its usual causes, and what to check.
    pub fn explanation(self) -> Explanation {
        statuses::explain(self)
    }
}

impl AsyncEvent {
    /// Returns the meaning of the event, its usual causes, and what to check.
    pub fn explanation(&self) -> Explanation {
        events::explain(self).explanation
    }

    /// Returns the event's name in `enum ibv_event_type`, without the prefix: `QP_FATAL`.
    pub fn verbs_name(&self) -> &'static str {
        events::explain(self).verbs_name
    }

    /// Returns the event's number in `enum ibv_event_type`.
    pub fn code(&self) -> i32 {
        match self {
            Self::Unknown(code) => *code,
            known => events::explain(known).code,
        }
    }

    /// Returns every event that has a name: its number, name and explanation.
    pub fn explained() -> impl Iterator<Item = (i32, &'static str, Explanation)> {
        let all = events::ALL.iter();
        all.map(|event| (event.code, event.verbs_name, event.explanation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of the three parts is at least one sentence and does not repeat the others.
    fn is_whole(what: &str, explanation: Explanation) {
        let Explanation {
            meaning,
            causes,
            look_at,
        } = explanation;
        for part in [meaning, causes, look_at] {
            assert!(part.len() > 20 && part.ends_with('.'), "{what}: {part:?}");
            assert!(!part.contains("  "), "{what}: {part:?}");
        }
        assert!(meaning != causes && causes != look_at, "{what}");
    }

    #[test]
    fn every_status_is_explained_and_no_two_alike() {
        let mut seen = std::collections::HashSet::new();
        for status in CompletionStatus::NAMED {
            let explanation = status.explanation();
            is_whole(&status.to_string(), explanation);
            assert!(seen.insert(explanation.meaning), "{status}");
        }
        is_whole("unknown", CompletionStatus::Unknown(99).explanation());
    }

    #[test]
    fn every_event_is_explained_and_no_two_alike() {
        let mut seen = std::collections::HashSet::new();
        let mut codes = Vec::new();
        for (code, name, explanation) in AsyncEvent::explained() {
            is_whole(name, explanation);
            assert!(seen.insert(explanation.meaning), "{name}");
            codes.push(code);
        }
        assert_eq!(codes, (0..=20).collect::<Vec<_>>());
        let unknown = AsyncEvent::Unknown(99);
        is_whole("unknown", unknown.explanation());
        assert_eq!((unknown.code(), unknown.verbs_name()), (99, "?"));
        let fatal = AsyncEvent::DeviceFatal;
        assert_eq!((fatal.code(), fatal.verbs_name()), (8, "DEVICE_FATAL"));
    }

    #[test]
    fn an_explanation_prints_as_three_sentences() {
        let text = CompletionStatus::RetryExceeded.explanation().to_string();
        for words in ["did not answer", "Usual causes: ", "Look at: "] {
            assert!(text.contains(words), "{text}");
        }
    }
}
