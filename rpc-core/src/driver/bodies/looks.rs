//! [`Looks`]: whether the peer has gone on with a long message.
//!
//! Both sides look at their messages from time to time: the receiver at whether the sender goes on
//! (`progress.rs`), and the sender at whether the receiver does (`release.rs`). Pieces and entries do
//! not touch a timer. A look notes how far the message has come, and the next one compares.
//!
//! The peer is too late if two looks in a row find nothing new: its connection is closed. Frames that arrived
//! while this poller took no turns are handled between the two, so a poller that was stopped itself
//! does not close the connections of innocent peers. This does not help if it is stopped after the
//! first look, which found nothing new, until the second one.

use std::time::Duration;

/// The time between two looks at a message.
pub(super) const LOOK: Duration = Duration::from_secs(15);

/// The least time for which a peer has done nothing when its connection is closed.
pub(super) const PATIENCE: Duration = Duration::from_secs(2 * LOOK.as_secs());

/// The latest look at a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Looks<P> {
    noted: P,
    was_late: bool,
}

impl<P: Copy> Looks<P> {
    /// Notes how far a message has come.
    pub(super) fn begin(noted: P) -> Self {
        let was_late = false;
        Self { noted, was_late }
    }

    /// Returns how far the message had come at the latest look.
    pub(super) fn noted(&self) -> P {
        self.noted
    }

    /// Looks again. Returns true if this is the second look in a row at which the peer is late.
    pub(super) fn is_too_late(&mut self, progress: P, is_late: bool) -> bool {
        let is_too_late = is_late && self.was_late;
        self.noted = progress;
        self.was_late = is_late;
        is_too_late
    }

    /// Returns true if the peer was late at the latest look.
    pub(super) fn was_late(&self) -> bool {
        self.was_late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_second_look_in_a_row_that_finds_the_peer_late_is_too_late() {
        let mut looks = Looks::begin(1);
        for progress in 1..5 {
            assert_eq!(looks.noted(), progress);
            assert!(!looks.is_too_late(progress, true), "{progress}");
            assert!(looks.was_late());
            assert!(!looks.is_too_late(progress + 1, false), "{progress}");
            assert!(!looks.was_late());
        }
        assert!(!looks.is_too_late(5, true));
        assert!(looks.is_too_late(5, true));
    }
}
