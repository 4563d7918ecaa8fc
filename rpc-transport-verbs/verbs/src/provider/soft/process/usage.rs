//! What this process keeps for its peers, in all and for each process. A process can have several
//! GIDs: nothing verifies the random bytes of a GID. So the limits of each peer do not suffice.

use std::ops::Add;

use super::greeting::Limits;
use crate::provider::soft::context::regions::MAX_REGIONS;

/// What peers have announced here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) arenas: u64,
    pub(crate) arena_bytes: u64,
    pub(crate) contexts: u64,
}

/// Part of each total that one process may have.
const SHARE_OF_PROCESS: u64 = 8;

impl Usage {
    /// The most that all peers may have announced.
    const MAX: Self = Self {
        // One process may announce as many as one context can register. They are half of the
        // mappings that the kernel allows a process by default, which rings need as well.
        arenas: SHARE_OF_PROCESS * MAX_REGIONS as u64,
        // A quarter of the address space.
        arena_bytes: 128 * Limits::OWN.max_arena_bytes,
        // Eight for each link that may be dialed. A context costs a file and two mappings.
        contexts: 8192,
    };

    /// Returns what is exceeded, if all peers have `self`, and the peers of one process have
    /// `of_process`.
    pub(crate) fn check(self, of_process: Self) -> Result<(), String> {
        for (subject, used, limit) in [
            ("all peers", self, 1),
            ("this peer's process", of_process, SHARE_OF_PROCESS),
        ] {
            for (what, used, limit) in [
                ("memory regions", used.arenas, Self::MAX.arenas / limit),
                (
                    "bytes of memory regions",
                    used.arena_bytes,
                    Self::MAX.arena_bytes / limit,
                ),
                ("contexts", used.contexts, Self::MAX.contexts / limit),
            ] {
                if used > limit {
                    return Err(format!(
                        "{subject} would have {used} {what} here, and may have {limit}"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            arenas: self.arenas.saturating_add(other.arenas),
            arena_bytes: self.arena_bytes.saturating_add(other.arena_bytes),
            contexts: self.contexts.saturating_add(other.contexts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_may_announce_is_within_the_share_of_its_process() {
        let limits = Limits::OWN;
        let one = Usage {
            arenas: limits.max_arenas.into(),
            arena_bytes: limits.max_arena_bytes,
            contexts: limits.max_contexts.into(),
        };
        assert_eq!(one.check(one), Ok(()));
    }

    #[test]
    fn each_number_is_limited_for_all_and_for_each_process() {
        let max = Usage::MAX;
        let none = Usage::default();
        for one_more in [
            Usage { arenas: 1, ..none },
            Usage {
                arena_bytes: 1,
                ..none
            },
            Usage {
                contexts: 1,
                ..none
            },
        ] {
            assert_eq!(max.check(none), Ok(()));
            let error = (max + one_more).check(none).unwrap_err();
            assert!(error.starts_with("all peers"), "{error}");
            let share = Usage {
                arenas: max.arenas / 8,
                arena_bytes: max.arena_bytes / 8,
                contexts: max.contexts / 8,
            };
            assert_eq!(max.check(share), Ok(()));
            let error = max.check(share + one_more).unwrap_err();
            assert!(error.starts_with("this peer's process"), "{error}");
        }
    }
}
