//! The keepalive state machine of one liveness connection, without its socket and clock: which
//! bytes may arrive, and when to send an ENQ.
//!
//! `proto/handshake.proto` draws the bytes and says which side may send which byte when. Each byte
//! is a frame. While the socket has not taken all of one, no other is written.
//!
//! The peer's control thread responds to a probe, so a poller that runs a long handler counts as
//! alive.

use std::time::{Duration, Instant};

use rpc_core::Keepalive;

/// ASCII enquiry: "are you there?"
pub(crate) const ENQ: u8 = 0x05;
/// ASCII acknowledge: the response to an ENQ.
pub(crate) const ACK: u8 = 0x06;

/// The keepalive state of a liveness connection.
#[derive(Debug)]
pub(crate) struct KeepaliveState {
    /// The keepalive settings in this side's intents.
    keepalive: Option<Keepalive>,
    /// True if an ENQ is in flight, so an ACK may arrive.
    is_enq_in_flight: bool,
    /// True if the peer can answer: it has sent something, or it is a server, which can answer as
    /// soon as it has admitted a client.
    can_respond: bool,
    /// Number of intervals since the ENQ in which no byte arrived.
    missed: u32,
    last_received: Instant,
}

/// A byte arrived that is not a keepalive, or not a valid one in this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnexpectedByte;

/// What to do at the end of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntervalOutcome {
    /// Do nothing.
    Wait,
    /// Send an ENQ, and call [`KeepaliveState::enq_sent`] when it is sent.
    SendEnq,
    /// Close the connection: the peer has been silent for this long.
    Silent(Duration),
}

impl KeepaliveState {
    /// Creates the state of a connection to a server, which can already respond.
    pub(crate) fn with_server(keepalive: Option<Keepalive>, now: Instant) -> Self {
        Self {
            keepalive,
            is_enq_in_flight: false,
            can_respond: true,
            missed: 0,
            last_received: now,
        }
    }

    /// Creates the state of a connection to a client, which may not be able to respond yet.
    pub(crate) fn with_client(keepalive: Option<Keepalive>, now: Instant) -> Self {
        Self {
            can_respond: false,
            ..Self::with_server(keepalive, now)
        }
    }

    /// Returns true if an ENQ has to be sent at once, even without a keepalive in the intents: the
    /// server waits for it.
    pub(crate) fn sends_first_enq(&self) -> bool {
        self.can_respond
    }

    /// Returns the time between two calls of [`end_interval`](Self::end_interval), if it is to be
    /// called.
    pub(crate) fn interval(&self) -> Option<Duration> {
        Some(self.keepalive?.every)
    }

    /// Handles bytes read from the socket. Returns true if an ACK has to be sent.
    ///
    /// A peer may have at most one ENQ in flight. So there are few unread bytes in either
    /// direction, whatever the peer sends.
    pub(crate) fn handle_bytes(
        &mut self,
        bytes: &[u8],
        now: Instant,
    ) -> Result<bool, UnexpectedByte> {
        let mut sends_ack = false;
        for &byte in bytes {
            match byte {
                ENQ if !sends_ack => sends_ack = true,
                ACK if self.is_enq_in_flight => self.is_enq_in_flight = false,
                _ => return Err(UnexpectedByte),
            }
            self.can_respond = true;
            self.missed = 0;
            self.last_received = now;
        }
        Ok(sends_ack)
    }

    /// Records that an ENQ was sent.
    pub(crate) fn enq_sent(&mut self) {
        self.is_enq_in_flight = true;
    }

    /// Handles the end of an interval, after all bytes that arrived in the interval were handled.
    ///
    /// Intervals are counted regardless of their length: if this process was stopped, that counts
    /// as one interval, and a response that arrived in the meantime is handled before the interval
    /// is counted.
    pub(crate) fn end_interval(&mut self, now: Instant) -> IntervalOutcome {
        let Some(keepalive) = self.keepalive.filter(|_| self.can_respond) else {
            return IntervalOutcome::Wait;
        };
        if !self.is_enq_in_flight {
            return IntervalOutcome::SendEnq;
        }
        self.missed += 1;
        if self.missed < keepalive.intervals() {
            return IntervalOutcome::Wait;
        }
        IntervalOutcome::Silent(now.saturating_duration_since(self.last_received))
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

    fn asking(now: Instant) -> KeepaliveState {
        KeepaliveState::with_server(Some(KEEPALIVE), now)
    }

    #[test]
    fn a_silent_peer_is_asked_once_and_given_up_after_its_time() {
        let start = Instant::now();
        let mut keepalive_state = asking(start);
        let second = |number| start + Duration::from_secs(number);
        assert_eq!(
            keepalive_state.end_interval(second(1)),
            IntervalOutcome::SendEnq
        );
        keepalive_state.enq_sent();
        assert_eq!(
            keepalive_state.end_interval(second(2)),
            IntervalOutcome::Wait
        );
        assert_eq!(
            keepalive_state.end_interval(second(3)),
            IntervalOutcome::Wait
        );
        let silent = IntervalOutcome::Silent(Duration::from_secs(4));
        assert_eq!(keepalive_state.end_interval(second(4)), silent);
    }

    #[test]
    fn whatever_is_heard_counts_as_life_and_the_next_question_waits_for_the_answer() {
        let now = Instant::now();
        let mut keepalive_state = asking(now);
        keepalive_state.enq_sent();
        for _ in 0..10 {
            assert_eq!(keepalive_state.end_interval(now), IntervalOutcome::Wait);
            assert_eq!(keepalive_state.end_interval(now), IntervalOutcome::Wait);
            assert_eq!(
                keepalive_state.handle_bytes(&[ENQ], now),
                Ok(true),
                "a question of its own"
            );
        }
        assert_eq!(keepalive_state.handle_bytes(&[ACK], now), Ok(false));
        assert_eq!(keepalive_state.end_interval(now), IntervalOutcome::SendEnq);
    }

    /// An hour in which this process was stopped counts as one interval.
    #[test]
    fn a_process_that_was_stopped_itself_gives_nobody_up() {
        let start = Instant::now();
        let mut keepalive_state = asking(start);
        keepalive_state.enq_sent();
        let later = start + Duration::from_secs(3600);
        assert_eq!(keepalive_state.end_interval(later), IntervalOutcome::Wait);
    }

    #[test]
    fn a_question_that_could_not_be_written_is_no_question() {
        let now = Instant::now();
        let mut keepalive_state = asking(now);
        for _ in 0..10 {
            assert_eq!(keepalive_state.end_interval(now), IntervalOutcome::SendEnq);
        }
    }

    #[test]
    fn a_client_is_asked_after_its_first_byte_and_no_earlier() {
        let now = Instant::now();
        let mut keepalive_state = KeepaliveState::with_client(Some(KEEPALIVE), now);
        assert!(!keepalive_state.sends_first_enq());
        assert_eq!(keepalive_state.end_interval(now), IntervalOutcome::Wait);
        assert_eq!(keepalive_state.handle_bytes(&[ENQ], now), Ok(true));
        assert_eq!(keepalive_state.end_interval(now), IntervalOutcome::SendEnq);
    }

    #[test]
    fn two_questions_at_a_time_and_answers_to_none_are_out_of_place() {
        let now = Instant::now();
        assert_eq!(
            asking(now).handle_bytes(&[ENQ, ENQ], now),
            Err(UnexpectedByte)
        );
        assert_eq!(asking(now).handle_bytes(&[ACK], now), Err(UnexpectedByte));
        let mut keepalive_state = asking(now);
        keepalive_state.enq_sent();
        assert_eq!(
            keepalive_state.handle_bytes(&[ACK, ACK], now),
            Err(UnexpectedByte)
        );
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
                KeepaliveState::with_server(keepalive(intents[0]), now),
                KeepaliveState::with_client(keepalive(intents[1]), now),
            ];
            let mut to = [VecDeque::new(), VecDeque::from([ENQ])];
            sides[0].enq_sent();
            for (side, action) in steps {
                let (me, other) = (usize::from(side), usize::from(!side));
                if action == 0 {
                    // The interval ends, and the peer has read and answered everything by then.
                    for (at, from) in [(other, me), (me, other), (other, me)] {
                        let bytes: Vec<_> = to[at].drain(..).collect();
                        for byte in bytes {
                            if sides[at].handle_bytes(&[byte], now).unwrap() {
                                to[from].push_back(ACK);
                            }
                        }
                    }
                    match sides[me].end_interval(now) {
                        IntervalOutcome::SendEnq => {
                            sides[me].enq_sent();
                            to[other].push_back(ENQ);
                        }
                        IntervalOutcome::Wait => {}
                        IntervalOutcome::Silent(_) => prop_assert!(false, "given up"),
                    }
                } else {
                    let count = to[me].len().min(usize::from(action));
                    let bytes: Vec<_> = to[me].drain(..count).collect();
                    let sends_ack = sides[me].handle_bytes(&bytes, now);
                    prop_assert!(sends_ack.is_ok());
                    if sends_ack == Ok(true) {
                        to[other].push_back(ACK);
                    }
                }
                prop_assert!(to.iter().all(|bytes| bytes.len() <= 2), "little lies unread");
            }
        }
    }
}
