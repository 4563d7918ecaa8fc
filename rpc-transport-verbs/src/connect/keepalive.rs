//! The keepalive state machine of one line, without its socket and clock: which bytes may arrive,
//! and when to send an ENQ.
//!
//! `proto/handshake.proto` draws the bytes and says which side may send which byte when. A byte is
//! a frame by itself, which a socket accepts whole or not at all, so no byte has to be buffered.
//!
//! The peer's control thread responds to a probe, so a poller that runs a long handler counts as
//! alive.

use std::time::{Duration, Instant};

use rpc_core::limits::Keepalive;

/// ASCII enquiry: "are you there?"
pub(crate) const ENQ: u8 = 0x05;
/// ASCII acknowledge: the response to an ENQ.
pub(crate) const ACK: u8 = 0x06;

/// The keepalive state of a line.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// True if both sides support keepalives.
    is_agreed: bool,
    /// The keepalive settings in this side's intents.
    keepalive: Option<Keepalive>,
    /// True if an ENQ is in flight, so an ACK may arrive.
    is_asked: bool,
    /// True if the peer can answer: it has sent something, or it is a server, which can answer as
    /// soon as it has admitted a client.
    can_answer: bool,
    /// Number of intervals since the ENQ in which no byte arrived.
    missed: u32,
    heard: Instant,
}

/// A byte arrived that is not a keepalive, or not a valid one in this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfPlace;

/// What to do at the end of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beat {
    /// Do nothing.
    Wait,
    /// Send an ENQ, and call [`Pulse::asked`] when it is sent.
    Ask,
    /// Close the connection: the peer has been silent for this long.
    Silent(Duration),
}

impl Pulse {
    /// Creates the state of a line to a server, which can already answer.
    pub(crate) fn of_server(is_agreed: bool, keepalive: Option<Keepalive>, now: Instant) -> Self {
        Self {
            is_agreed,
            keepalive,
            is_asked: false,
            can_answer: true,
            missed: 0,
            heard: now,
        }
    }

    /// Creates the state of a line to a client, which may not be able to answer yet.
    pub(crate) fn of_client(is_agreed: bool, keepalive: Option<Keepalive>, now: Instant) -> Self {
        Self {
            can_answer: false,
            ..Self::of_server(is_agreed, keepalive, now)
        }
    }

    /// Returns true if an ENQ has to be sent at once, even without a keepalive in the intents: the
    /// server waits for it.
    pub(crate) fn begins(&self) -> bool {
        self.is_agreed && self.can_answer
    }

    /// Returns the time between two calls of [`beat`](Self::beat), if it is to be called.
    pub(crate) fn interval(&self) -> Option<Duration> {
        let keepalive = self.keepalive.filter(|_| self.is_agreed)?;
        Some(keepalive.every)
    }

    /// Handles bytes read from the socket. Returns true if an ACK has to be sent.
    ///
    /// A peer may have at most one ENQ in flight. So there are few unread bytes in either
    /// direction, whatever the peer sends.
    pub(crate) fn hear(&mut self, bytes: &[u8], now: Instant) -> Result<bool, OutOfPlace> {
        let mut answer = false;
        for &byte in bytes {
            match byte {
                ENQ if self.is_agreed && !answer => answer = true,
                ACK if self.is_asked => self.is_asked = false,
                _ => return Err(OutOfPlace),
            }
            self.can_answer = true;
            self.missed = 0;
            self.heard = now;
        }
        Ok(answer)
    }

    /// Records that an ENQ was sent.
    pub(crate) fn asked(&mut self) {
        self.is_asked = true;
    }

    /// Handles the end of an interval, after all bytes that arrived in the interval were handled.
    ///
    /// Intervals are counted regardless of their length: if this process was stopped, that counts
    /// as one interval, and a response that arrived in the meantime is handled before the interval
    /// is counted.
    pub(crate) fn beat(&mut self, now: Instant) -> Beat {
        let Some(keepalive) = self.keepalive.filter(|_| self.is_agreed && self.can_answer) else {
            return Beat::Wait;
        };
        if !self.is_asked {
            return Beat::Ask;
        }
        self.missed += 1;
        if self.missed < keepalive.intervals() {
            return Beat::Wait;
        }
        Beat::Silent(now.saturating_duration_since(self.heard))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const KEEPALIVE: Keepalive = Keepalive {
        every: Duration::from_secs(1),
        gone_after: Duration::from_secs(3),
    };

    fn asking(now: Instant) -> Pulse {
        Pulse::of_server(true, Some(KEEPALIVE), now)
    }

    #[test]
    fn a_silent_peer_is_asked_once_and_given_up_after_its_time() {
        let start = Instant::now();
        let mut pulse = asking(start);
        let second = |number| start + Duration::from_secs(number);
        assert_eq!(pulse.beat(second(1)), Beat::Ask);
        pulse.asked();
        assert_eq!(pulse.beat(second(2)), Beat::Wait);
        assert_eq!(pulse.beat(second(3)), Beat::Wait);
        let silent = Beat::Silent(Duration::from_secs(4));
        assert_eq!(pulse.beat(second(4)), silent);
    }

    #[test]
    fn whatever_is_heard_counts_as_life_and_the_next_question_waits_for_the_answer() {
        let now = Instant::now();
        let mut pulse = asking(now);
        pulse.asked();
        for _ in 0..10 {
            assert_eq!(pulse.beat(now), Beat::Wait);
            assert_eq!(pulse.beat(now), Beat::Wait);
            assert_eq!(pulse.hear(&[ENQ], now), Ok(true), "a question of its own");
        }
        assert_eq!(pulse.hear(&[ACK], now), Ok(false));
        assert_eq!(pulse.beat(now), Beat::Ask);
    }

    /// An hour in which this process was stopped counts as one interval.
    #[test]
    fn a_process_that_was_stopped_itself_gives_nobody_up() {
        let start = Instant::now();
        let mut pulse = asking(start);
        pulse.asked();
        let later = start + Duration::from_secs(3600);
        assert_eq!(pulse.beat(later), Beat::Wait);
    }

    #[test]
    fn a_question_that_could_not_be_written_is_no_question() {
        let now = Instant::now();
        let mut pulse = asking(now);
        for _ in 0..10 {
            assert_eq!(pulse.beat(now), Beat::Ask);
        }
    }

    #[test]
    fn a_client_is_asked_after_its_first_byte_and_no_earlier() {
        let now = Instant::now();
        let mut pulse = Pulse::of_client(true, Some(KEEPALIVE), now);
        assert!(!pulse.begins());
        assert_eq!(pulse.beat(now), Beat::Wait);
        assert_eq!(pulse.hear(&[ENQ], now), Ok(true));
        assert_eq!(pulse.beat(now), Beat::Ask);
    }

    #[test]
    fn a_peer_that_knows_no_keepalive_is_never_asked_and_has_nothing_to_say() {
        let now = Instant::now();
        let mut pulse = Pulse::of_server(false, Some(KEEPALIVE), now);
        assert!(!pulse.begins());
        assert_eq!(pulse.interval(), None);
        assert_eq!(pulse.beat(now), Beat::Wait);
        assert_eq!(pulse.hear(&[ENQ], now), Err(OutOfPlace));
    }

    #[test]
    fn two_questions_at_a_time_and_answers_to_none_are_out_of_place() {
        let now = Instant::now();
        assert_eq!(asking(now).hear(&[ENQ, ENQ], now), Err(OutOfPlace));
        assert_eq!(asking(now).hear(&[ACK], now), Err(OutOfPlace));
        let mut pulse = asking(now);
        pulse.asked();
        assert_eq!(pulse.hear(&[ACK, ACK], now), Err(OutOfPlace));
    }

    proptest! {
        /// Two sides with any intents and with delayed bytes: neither side rejects a byte of the
        /// other, and neither gives up a peer that answers within an interval.
        #[test]
        fn two_sides_that_keep_the_rules_never_end_the_line(
            intents in any::<[bool; 2]>(),
            steps in prop::collection::vec((any::<bool>(), 0..3_u8), 0..200),
        ) {
            let now = Instant::now();
            let keepalive = |wanted: bool| wanted.then_some(KEEPALIVE);
            let mut sides = [
                Pulse::of_server(true, keepalive(intents[0]), now),
                Pulse::of_client(true, keepalive(intents[1]), now),
            ];
            let mut to = [VecDeque::new(), VecDeque::from([ENQ])];
            sides[0].asked();
            for (side, action) in steps {
                let (me, other) = (usize::from(side), usize::from(!side));
                if action == 0 {
                    // The interval ends, and the peer has read and answered everything by then.
                    for (at, from) in [(other, me), (me, other), (other, me)] {
                        let bytes: Vec<_> = to[at].drain(..).collect();
                        for byte in bytes {
                            if sides[at].hear(&[byte], now).unwrap() {
                                to[from].push_back(ACK);
                            }
                        }
                    }
                    match sides[me].beat(now) {
                        Beat::Ask => {
                            sides[me].asked();
                            to[other].push_back(ENQ);
                        }
                        Beat::Wait => {}
                        Beat::Silent(_) => prop_assert!(false, "given up"),
                    }
                } else {
                    let count = to[me].len().min(usize::from(action));
                    let bytes: Vec<_> = to[me].drain(..count).collect();
                    let answer = sides[me].hear(&bytes, now);
                    prop_assert!(answer.is_ok());
                    if answer == Ok(true) {
                        to[other].push_back(ACK);
                    }
                }
                prop_assert!(to.iter().all(|bytes| bytes.len() <= 2), "little lies unread");
            }
        }
    }
}
