//! [`Class`]: what frames need to leave, and what they leave to others.

use crate::driver::link::Link;
use crate::driver::link_bodies::LastCredit;

/// The frames that need the same, in the order in which they leave when several wait.
///
/// | class | what a frame takes | of the credits that are there | in a turn |
/// | --- | --- | --- | --- |
/// | `Response` | nothing: its client has promised a receive for it, or a credit was taken before | | of each connection, up to the first that finds no slot |
/// | `Control` | nothing: at most one is unacknowledged | | one for each connection |
/// | `Request` | a credit, and room for one more call in flight | all | all that have what they need |
/// | `Opening` | a credit that is none of a call's, and room for one more stream | all | the same |
/// | `Message` | a credit that is none of a call's | all | [`FRAMES_OF_STREAM`] of a stream |
/// | `Piece` | the same | half ([`Class::credits`]); the last one in turn with calls and streams that wait | [`PIECES_OF_TURN`], and none after one that was copied |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Class {
    Response,
    Control,
    Request,
    Opening,
    Message,
    Piece,
}

/// The most frames of messages that a stream sends in a turn, before others.
pub(in super::super) const FRAMES_OF_STREAM: u64 = 16;

/// The most attempts of a turn to send a piece of a long message, of all messages.
const PIECES_OF_TURN: usize = 16;

/// The attempts of a turn to send pieces of long messages.
#[derive(Debug)]
pub(in super::super) struct PiecesOfTurn {
    left: usize,
}

impl Class {
    /// Takes what a frame of this class needs. Returns false, and takes nothing, if it is not there.
    #[inline(always)]
    pub(super) fn take<B>(self, link: &mut Link<B>) -> bool {
        match self {
            Self::Response | Self::Control => true,
            Self::Request => link.connection.take_request(),
            Self::Opening => link.connection.take_stream(),
            Self::Message | Self::Piece => {
                let has_credit = link.connection.take_message();
                link.bodies.credits_seen += u64::from(has_credit);
                has_credit
            }
        }
    }

    pub(super) fn give_back<B>(self, link: &mut Link<B>) {
        match self {
            Self::Response | Self::Control => {}
            Self::Request => link.connection.return_request_credit(),
            Self::Opening => link.connection.return_stream(),
            Self::Message | Self::Piece => link.connection.return_message_credit(),
        }
    }

    /// Returns how many of the credits that are there the frames of this class may take now. The last one goes
    /// to pieces and to others alternately, while both want it.
    pub(in super::super) fn credits(
        self,
        available: usize,
        others_wait: bool,
        last: &mut LastCredit,
    ) -> usize {
        match (self, available) {
            (Self::Piece, 1) => {
                let takes = !others_wait || *last == LastCredit::Others;
                *last = match takes {
                    true => LastCredit::Pieces,
                    false => LastCredit::Others,
                };
                usize::from(takes)
            }
            (Self::Piece, _) => available.div_ceil(2),
            _ => available,
        }
    }
}

impl PiecesOfTurn {
    /// Begins a turn in which so many messages wait. None has more than one attempt if none can send.
    pub(in super::super) fn begin(messages: usize) -> Self {
        let left = messages.min(PIECES_OF_TURN);
        Self { left }
    }

    /// Takes an attempt. Returns false if there is none.
    pub(in super::super) fn take(&mut self) -> bool {
        let has_any = self.left > 0;
        self.left -= usize::from(has_any);
        has_any
    }

    /// Ends the turn after a piece that was copied, so that calls wait for one copy at most.
    pub(in super::super) fn note(&mut self, was_copied: bool) {
        if was_copied {
            self.left = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_leave_half_of_the_credits() {
        let last = &mut LastCredit::default();
        let of_pieces =
            [0, 2, 3, 8, 9].map(|available| Class::Piece.credits(available, true, last));
        assert_eq!(of_pieces, [0, 1, 2, 4, 5]);
        assert_eq!(*last, LastCredit::Others, "it was not the last one");
        for class in [Class::Request, Class::Opening, Class::Message] {
            assert_eq!(class.credits(8, true, last), 8, "{class:?}");
        }
    }

    #[test]
    fn the_last_credit_goes_to_pieces_and_others_alternately() {
        let last = &mut LastCredit::default();
        let taken: Vec<_> = (0..4)
            .map(|_| Class::Piece.credits(1, true, last))
            .collect();
        assert_eq!(taken, [1, 0, 1, 0]);
        // Nobody else wants it.
        let taken: Vec<_> = (0..3)
            .map(|_| Class::Piece.credits(1, false, last))
            .collect();
        assert_eq!(taken, [1, 1, 1]);
        assert_eq!(
            Class::Piece.credits(1, true, last),
            0,
            "now it is the turn of others"
        );
    }

    #[test]
    fn a_turn_has_some_attempts_and_one_copy() {
        let attempts = |messages| {
            let mut turn = PiecesOfTurn::begin(messages);
            std::iter::repeat_with(|| turn.take())
                .take_while(|has_any| *has_any)
                .count()
        };
        assert_eq!([0, 3, 1000].map(attempts), [0, 3, PIECES_OF_TURN]);
        let mut turn = PiecesOfTurn::begin(3);
        assert!(turn.take());
        turn.note(false);
        assert!(turn.take());
        turn.note(true);
        assert!(!turn.take());
    }
}
