//! The greeting of a link: what each side says first, and the reasons to refuse.
//!
//! ```text
//!  dialer                                      accepter
//!  checks the listener's user and process      checks the dialer's user
//!  Hello { layouts, GID, limits }  ─────────►  checks that the GID is the dialer's, and chooses the
//!                                              newest layout that both have
//!                                  ◄─────────  Welcome { layout, limits }, or Refused { reason }
//! ```
//!
//! The greeting has this form in every version, so each side can name the versions of the other.
//!
//! The limits are for the other side: what the sender maps and keeps for one peer.

use std::fmt;
use std::time::Duration;

use rustix::io::Errno;

use crate::provider::soft::capacities::MAX_REGION_LEN;
use crate::provider::soft::context::regions::MAX_REGIONS;
use crate::provider::soft::shared::ring::LAYOUT_VERSION;

/// Time within which a link has to be greeted, on both sides. It is longer than any scheduling
/// delay, and shorter than the five seconds of the handshake over TCP, which may wait for a link,
/// so the handshake can still report the reason.
pub(crate) const GREETING_TIME: Duration = Duration::from_secs(4);

/// The versions of the shared-memory layout that one side has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layouts {
    pub(crate) min: u32,
    pub(crate) max: u32,
}

impl Layouts {
    /// The layouts of this version.
    pub(crate) const OWN: Self = Self {
        min: LAYOUT_VERSION,
        max: LAYOUT_VERSION,
    };

    /// Returns the newest layout that both sides have.
    pub(crate) fn choose(self, other: Self) -> Option<u32> {
        let newest = self.max.min(other.max);
        (newest >= self.min && newest >= other.min).then_some(newest)
    }
}

impl fmt::Display for Layouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            return write!(f, "shared-memory layout {}", self.max);
        }
        write!(f, "shared-memory layouts {} to {}", self.min, self.max)
    }
}

/// What one side keeps for a peer. The other side checks these limits before it sends, and this
/// side enforces them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) max_arenas: u32,
    /// Contexts that the peer may have announced.
    pub(crate) max_contexts: u32,
    pub(crate) max_arena_bytes: u64,
}

impl Limits {
    /// The limits of this version.
    pub(crate) const OWN: Self = Self {
        // As many as one context can register. A poller registers one for its slots, and one for
        // each chunk of memory for long messages; a program that uses the verbs directly may
        // register more. A mapping costs an entry of the kernel's table, which has 65,530 entries
        // by default (vm.max_map_count): ten such peers leave room.
        max_arenas: MAX_REGIONS as u32,
        // A poller has one context for each of its devices. A context costs a file and two
        // mappings.
        max_contexts: 256,
        // Four regions of the maximum length. The pages are the peer's, and this process maps them
        // one by one as messages name them, so the bytes only cost address space: of its 128 TiB,
        // 128 such peers take a quarter.
        max_arena_bytes: 4 * MAX_REGION_LEN as u64,
    };

    /// Returns true if these limits are at least what this version grants.
    pub(crate) fn are_usual(self) -> bool {
        let own = Self::OWN;
        self.max_arenas >= own.max_arenas
            && self.max_contexts >= own.max_contexts
            && self.max_arena_bytes >= own.max_arena_bytes
    }
}

/// A peer may not be announced more than it maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LimitReached {
    #[error(
        "this process would have {needed} memory regions that its peer maps, and the peer maps at most {limit}"
    )]
    Arenas { needed: u64, limit: u64 },
    #[error(
        "this process would have {needed} bytes of memory regions that its peer maps, and the peer maps at most {limit}"
    )]
    ArenaBytes { needed: u64, limit: u64 },
    #[error(
        "this process would have {needed} contexts that its peer knows, and the peer keeps at most {limit}"
    )]
    Contexts { needed: u64, limit: u64 },
}

impl LimitReached {
    /// Returns an error if `arenas` arenas with `bytes` bytes in all exceed the limits.
    pub(crate) fn check_arenas(limits: Limits, arenas: usize, bytes: u64) -> Result<(), Self> {
        let (needed, limit) = (arenas as u64, u64::from(limits.max_arenas));
        if needed > limit {
            return Err(Self::Arenas { needed, limit });
        }
        let (needed, limit) = (bytes, limits.max_arena_bytes);
        if needed > limit {
            return Err(Self::ArenaBytes { needed, limit });
        }
        Ok(())
    }

    /// Returns an error if `contexts` contexts exceed the limits.
    pub(crate) fn check_contexts(limits: Limits, contexts: usize) -> Result<(), Self> {
        let (needed, limit) = (contexts as u64, u64::from(limits.max_contexts));
        if needed > limit {
            return Err(Self::Contexts { needed, limit });
        }
        Ok(())
    }
}

/// Why an accepter refuses a link. It travels as a code and two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The two sides have no layout in common.
    Layouts(Layouts),
    /// The dialer is not the process that its GID names.
    OtherProcess,
    /// The accepter has as many links as it keeps.
    TooManyLinks { limit: u64 },
    /// The accepter has as many links from the dialer's process as it keeps.
    TooManyLinksOfProcess { limit: u64 },
    /// A reason that a later version has.
    Unknown { code: u32, numbers: [u64; 2] },
}

impl Refusal {
    pub(crate) fn encode(self) -> (u32, [u64; 2]) {
        match self {
            Self::Layouts(Layouts { min, max }) => (1, [min.into(), max.into()]),
            Self::OtherProcess => (2, [0, 0]),
            Self::TooManyLinks { limit } => (3, [limit, 0]),
            Self::TooManyLinksOfProcess { limit } => (4, [limit, 0]),
            Self::Unknown { code, numbers } => (code, numbers),
        }
    }

    pub(crate) fn parse(code: u32, numbers: [u64; 2]) -> Self {
        match (code, numbers) {
            (1, [min, max]) => match (u32::try_from(min), u32::try_from(max)) {
                (Ok(min), Ok(max)) => Self::Layouts(Layouts { min, max }),
                _ => Self::Unknown { code, numbers },
            },
            (2, [0, 0]) => Self::OtherProcess,
            (3, [limit, 0]) => Self::TooManyLinks { limit },
            (4, [limit, 0]) => Self::TooManyLinksOfProcess { limit },
            _ => Self::Unknown { code, numbers },
        }
    }
}

/// The dialer's view of a refusal.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layouts(theirs) => write!(
                f,
                "it has {theirs}, this process has {}: run the same version of Verbline on both sides",
                Layouts::OWN
            ),
            Self::OtherProcess => f.write_str("it found that this GID is not this process's"),
            Self::TooManyLinks { limit } => {
                write!(f, "it has links to {limit} processes, which is its limit")
            }
            Self::TooManyLinksOfProcess { limit } => {
                write!(
                    f,
                    "it has {limit} links to this process, which is its limit"
                )
            }
            Self::Unknown { code, numbers } => write!(
                f,
                "it refused the link for reason {code} ({}, {}), which this version does not know: it probably runs a later version of Verbline",
                numbers[0], numbers[1]
            ),
        }
    }
}

/// Why a process cannot be linked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("it is not the GID of a software device of this host")]
    NotLocal,
    #[error("the process there is not the one that the GID names, or it is another user's")]
    OtherProcess,
    #[error("it has accepted no new link for {0:?}: it is stopped, or overloaded")]
    Busy(Duration),
    #[error("it has not answered the greeting of the link for {0:?}: it is stopped, or overloaded")]
    Silent(Duration),
    #[error(
        "it closed the link during the greeting: it ends, is overloaded, or runs another version of Verbline (this process has {own})",
        own = Layouts::OWN
    )]
    Closed,
    #[error("{0}")]
    Refused(Refusal),
    #[error(
        "it chose shared-memory layout {chosen}, this process has {own}: run the same version of Verbline on both sides",
        own = Layouts::OWN
    )]
    Layout { chosen: u32 },
    #[error("it answered the greeting of the link with something else")]
    Garbage,
    #[error("the link cannot {action}: {errno}")]
    Os { action: &'static str, errno: Errno },
    #[error("it has closed its link to this process")]
    Gone,
    #[error("the thread that connected the link has ended")]
    Abandoned,
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn layouts(min: u32, max: u32) -> Layouts {
        Layouts { min, max }
    }

    #[test]
    fn the_newest_common_layout_is_chosen() {
        for (a, b, chosen) in [
            (layouts(4, 4), layouts(4, 4), Some(4)),
            (layouts(4, 7), layouts(5, 6), Some(6)),
            (layouts(4, 5), layouts(5, 9), Some(5)),
            (layouts(4, 4), layouts(5, 6), None),
            (layouts(3, 3), layouts(4, 4), None),
        ] {
            assert_eq!(a.choose(b), chosen);
            assert_eq!(b.choose(a), chosen);
        }
    }

    #[test]
    fn a_refusal_for_versions_names_both() {
        assert_eq!(
            Refusal::Layouts(layouts(8, 9)).to_string(),
            format!(
                "it has shared-memory layouts 8 to 9, this process has shared-memory layout {LAYOUT_VERSION}: run the same version of Verbline on both sides"
            )
        );
        assert_eq!(
            LinkError::Layout { chosen: 9 }.to_string(),
            format!(
                "it chose shared-memory layout 9, this process has shared-memory layout {LAYOUT_VERSION}: run the same version of Verbline on both sides"
            )
        );
    }

    #[test]
    fn every_refusal_travels() {
        for refusal in [
            Refusal::Layouts(layouts(8, 9)),
            Refusal::OtherProcess,
            Refusal::TooManyLinks { limit: 5 },
            Refusal::TooManyLinksOfProcess { limit: 6 },
            Refusal::Unknown {
                code: 77,
                numbers: [1, 2],
            },
        ] {
            let (code, numbers) = refusal.encode();
            assert_eq!(Refusal::parse(code, numbers), refusal);
            assert!(!refusal.to_string().is_empty());
        }
    }

    #[test]
    fn a_limit_is_reached_by_the_first_that_is_too_many_and_names_both_numbers() {
        let limits = Limits {
            max_arenas: 2,
            max_contexts: 3,
            max_arena_bytes: 100,
        };
        assert_eq!(LimitReached::check_arenas(limits, 2, 100), Ok(()));
        let too_many = LimitReached::check_arenas(limits, 3, 1).unwrap_err();
        let too_long = LimitReached::check_arenas(limits, 1, 101).unwrap_err();
        assert_eq!(LimitReached::check_contexts(limits, 3), Ok(()));
        let contexts = LimitReached::check_contexts(limits, 4).unwrap_err();
        for (error, numbers) in [
            (too_many, ["3", "2"]),
            (too_long, ["101", "100"]),
            (contexts, ["4", "3"]),
        ] {
            let sentence = error.to_string();
            let has_both = numbers.iter().all(|number| sentence.contains(number));
            assert!(has_both, "{sentence}");
        }
    }
}
