//! The state machine that measures the clock of a server on another host, over the liveness
//! connection, without its socket and clock.
//!
//! `proto/handshake.proto` describes the bytes. The client asks a few times in a row, every few
//! seconds, and sends a question only after its last one was answered. The server answers at once.
//! If the server stops answering, the client asks no more, and the error of the last estimate grows.
//! If an answer contradicts the estimate, the series begins again, once.

use std::time::Duration;

use super::keepalive::UnexpectedByte;
use crate::transport::peer_clock::ClockEstimate;

/// ASCII device control 1: "what does your clock show?"
pub(crate) const CLOCK_QUESTION: u8 = 0x11;
/// ASCII device control 2: the first byte of the answer. Eight bytes with the reading follow.
pub(crate) const CLOCK_ANSWER: u8 = 0x12;

/// The time between two series of questions. In this time, the error grows by four
/// milliseconds.
pub(crate) const CLOCK_INTERVAL: Duration = Duration::from_secs(4);

/// The number of questions in a series. The fastest of a few round trips seldom has to wait for a
/// processor.
const SERIES_LEN: u32 = 3;

/// Length of the answer.
pub(crate) const CLOCK_ANSWER_LEN: usize = 9;

/// Encodes the answer to a question.
pub(crate) fn clock_answer(reading_us: i64) -> [u8; CLOCK_ANSWER_LEN] {
    let mut bytes = [CLOCK_ANSWER; CLOCK_ANSWER_LEN];
    bytes[1..].copy_from_slice(&reading_us.to_be_bytes());
    bytes
}

/// A client's side of the exchange. Times are microseconds on this host's clock.
#[derive(Debug)]
pub(crate) struct ClockExchange {
    best: ClockEstimate,
    /// When the question in flight was sent.
    asked_us: Option<i64>,
    /// Questions that this series still has.
    left: u32,
    /// True if a contradiction makes this series begin again. A server may send contradictions only.
    may_begin_again: bool,
    /// The reading, as far as it has arrived, and the number of its bytes. `None` before the first
    /// byte of an answer.
    answer: Option<([u8; 8], usize)>,
}

/// What a received byte means for the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockByte {
    /// The byte belongs to something else.
    Other,
    /// The byte is part of an answer.
    Taken,
    /// An answer is complete. This is the best estimate now.
    Measured {
        estimate: ClockEstimate,
        /// True if the next question of the series has to be sent.
        asks_again: bool,
    },
}

impl ClockExchange {
    /// Starts with the estimate from the handshake.
    pub(crate) fn new(first: ClockEstimate) -> Self {
        Self {
            best: first,
            asked_us: None,
            left: 0,
            may_begin_again: false,
            answer: None,
        }
    }

    /// Begins a series. Returns true if a question has to be sent now.
    pub(crate) fn begin_series(&mut self, now_us: i64) -> bool {
        self.left = SERIES_LEN;
        self.may_begin_again = true;
        self.asked_us.is_none() && self.ask(now_us)
    }

    /// Records that the question could not be sent.
    pub(crate) fn could_not_ask(&mut self) {
        self.asked_us = None;
    }

    fn ask(&mut self, now_us: i64) -> bool {
        let asks = self.left > 0;
        if asks {
            self.left -= 1;
            self.asked_us = Some(now_us);
        }
        asks
    }

    /// Handles a byte that was read at `now_us`.
    pub(crate) fn handle_byte(
        &mut self,
        byte: u8,
        now_us: i64,
    ) -> Result<ClockByte, UnexpectedByte> {
        let Some((mut reading, len)) = self.answer.take() else {
            if byte != CLOCK_ANSWER {
                return Ok(ClockByte::Other);
            }
            if self.asked_us.is_none() {
                return Err(UnexpectedByte);
            }
            self.answer = Some(([0; 8], 0));
            return Ok(ClockByte::Taken);
        };
        reading[len] = byte;
        if len + 1 < reading.len() {
            self.answer = Some((reading, len + 1));
            return Ok(ClockByte::Taken);
        }
        let asked_us = self.asked_us.take().ok_or(UnexpectedByte)?;
        let newer = ClockEstimate::new(asked_us, i64::from_be_bytes(reading), now_us);
        if self.best.contradicts(&newer, now_us) && std::mem::take(&mut self.may_begin_again) {
            self.left = SERIES_LEN;
        }
        self.best = self.best.or_newer(newer, now_us);
        Ok(ClockByte::Measured {
            estimate: self.best,
            asks_again: self.ask(now_us),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR_US: i64 = 3_600_000_000;

    fn started() -> ClockExchange {
        ClockExchange::new(ClockEstimate::new(0, 0, 1_000_000))
    }

    fn answer(exchange: &mut ClockExchange, reading_us: i64, now_us: i64) -> ClockByte {
        let (last, first) = clock_answer(reading_us).split_last().map_or_else(
            || unreachable!("an answer has bytes"),
            |(last, first)| (*last, first.to_vec()),
        );
        for byte in first {
            assert_eq!(exchange.handle_byte(byte, now_us), Ok(ClockByte::Taken));
        }
        exchange.handle_byte(last, now_us).unwrap()
    }

    #[test]
    fn a_series_has_three_questions_each_after_the_last_answer() {
        let mut exchange = started();
        assert!(exchange.begin_series(0));
        for number in 1..=3 {
            match answer(&mut exchange, 5, number) {
                ClockByte::Measured { asks_again, .. } => assert_eq!(asks_again, number < 3),
                other => panic!("{other:?}"),
            }
        }
        assert!(exchange.begin_series(10));
    }

    #[test]
    fn a_series_begins_again_when_an_answer_contradicts_the_estimate_and_once() {
        let mut exchange = started();
        assert!(exchange.begin_series(0));
        let mut asked = 0;
        loop {
            asked += 1;
            // Each answer shows another hour.
            match answer(&mut exchange, HOUR_US * asked, asked) {
                ClockByte::Measured {
                    asks_again: true, ..
                } => {}
                _ => break,
            }
        }
        // The first answer contradicts, and the series begins again.
        assert_eq!(asked, 1 + i64::from(SERIES_LEN));
        assert!(exchange.begin_series(10));
    }

    #[test]
    fn a_server_that_does_not_answer_is_asked_once() {
        let mut exchange = started();
        assert!(exchange.begin_series(0));
        for number in 1..100 {
            assert!(!exchange.begin_series(number));
        }
        assert!(matches!(
            answer(&mut exchange, 5, 100),
            ClockByte::Measured {
                asks_again: true,
                ..
            }
        ));
    }

    #[test]
    fn a_question_that_could_not_be_sent_is_none() {
        let mut exchange = started();
        assert!(exchange.begin_series(0));
        exchange.could_not_ask();
        assert!(exchange.begin_series(1));
    }

    #[test]
    fn answers_to_no_question_are_refused_and_other_bytes_are_passed_on() {
        let mut exchange = started();
        assert_eq!(exchange.handle_byte(CLOCK_ANSWER, 0), Err(UnexpectedByte));
        assert_eq!(exchange.handle_byte(5, 0), Ok(ClockByte::Other));
        assert!(exchange.begin_series(0));
        assert_eq!(exchange.handle_byte(6, 0), Ok(ClockByte::Other));
        // The reading may contain any byte.
        let reading = i64::from_be_bytes([5, 6, 0x11, 0x12, 5, 6, 0x11, 0x12]);
        answer(&mut exchange, reading, 1);
    }

    /// A simulated server: its clock shows another time, and runs at another rate.
    #[derive(Clone, Copy, Debug)]
    struct Server {
        ahead_us: i64,
        drift_ppm: i64,
    }

    impl Server {
        /// Returns the true difference at a moment of the client's clock.
        fn ahead_at(self, now_us: i64) -> i64 {
            self.ahead_us + now_us * self.drift_ppm / 1_000_000
        }

        fn reading_at(self, now_us: i64) -> i64 {
            now_us + self.ahead_at(now_us)
        }
    }

    fn server() -> impl Strategy<Value = Server> {
        (-HOUR_US..=HOUR_US, -1000..=1000_i64).prop_map(|(ahead_us, drift_ppm)| Server {
            ahead_us,
            drift_ppm,
        })
    }

    proptest! {
        /// Two clocks up to an hour apart, which drift by up to 1000 millionths, and delays of any
        /// length in either direction: the true difference always lies within the error, at every
        /// moment. After a series without delays, the error is small.
        #[test]
        fn the_true_difference_lies_within_the_error(
            server in server(),
            handshake in (0..2_000_000_i64, 0..2_000_000_i64),
            rounds in prop::collection::vec(
                (0..2_000_000_i64, 0..2_000_000_i64, 0..20_000_000_i64),
                0..20,
            ),
        ) {
            let holds = |estimate: ClockEstimate, now_us| {
                let clock = estimate.peer_clock(now_us).unwrap();
                let off_us = (server.ahead_at(now_us) - clock.ahead_us).unsigned_abs();
                off_us <= u64::from(clock.error_us)
            };
            let (there, back) = handshake;
            let mut now_us = there + back;
            let mut best = ClockEstimate::new(0, server.reading_at(there), now_us);
            let mut exchange = ClockExchange::new(best);
            prop_assert!(holds(best, now_us));
            for (there, back, pause) in rounds {
                let mut asks = exchange.begin_series(now_us);
                while asks {
                    let reading_us = server.reading_at(now_us + there);
                    now_us += there + back;
                    let ClockByte::Measured { estimate, asks_again } =
                        answer(&mut exchange, reading_us, now_us)
                    else {
                        panic!("the answer is complete");
                    };
                    (best, asks) = (estimate, asks_again);
                    prop_assert!(holds(best, now_us));
                }
                now_us += pause;
                prop_assert!(holds(best, now_us));
            }
            prop_assert!(exchange.begin_series(now_us));
            let reading_us = server.reading_at(now_us + 50);
            let ClockByte::Measured { estimate, .. } =
                answer(&mut exchange, reading_us, now_us + 100)
            else {
                panic!("the answer is complete");
            };
            prop_assert!(holds(estimate, now_us + 100));
            prop_assert!(estimate.peer_clock(now_us + 100).unwrap().error_us < 100);
        }

        /// A server that sends any bytes at any time gets no more questions than the series have,
        /// which may each begin again once, and one at a time.
        #[test]
        fn any_bytes_cause_few_questions(
            steps in prop::collection::vec((any::<u8>(), any::<i64>()), 0..300),
        ) {
            let mut exchange = started();
            let (mut series, mut questions, mut measured) = (0, 0, 0);
            for (byte, now_us) in steps {
                // Mostly bytes of answers.
                let byte = if byte < 200 { CLOCK_ANSWER } else { byte };
                if byte == 255 {
                    series += 1;
                    questions += u32::from(exchange.begin_series(now_us));
                    continue;
                }
                match exchange.handle_byte(byte, now_us) {
                    Ok(ClockByte::Measured { asks_again, .. }) => {
                        measured += 1;
                        questions += u32::from(asks_again);
                    }
                    Ok(ClockByte::Other | ClockByte::Taken) => {}
                    Err(UnexpectedByte) => break,
                }
                prop_assert!(measured <= questions && questions <= measured + 1);
                prop_assert!(questions <= 2 * SERIES_LEN * series);
            }
        }

        /// The server's clock jumps, as after its host was suspended: the next answer is believed.
        #[test]
        fn a_clock_that_jumps_is_followed(server in server(), by_us in HOUR_US..2 * HOUR_US) {
            let first = ClockEstimate::new(0, server.reading_at(50), 100);
            let mut exchange = ClockExchange::new(first);
            prop_assert!(exchange.begin_series(1000));
            let jumped = server.reading_at(11_000) + by_us;
            let ClockByte::Measured { estimate, .. } = answer(&mut exchange, jumped, 21_000) else {
                panic!("the answer is complete");
            };
            let clock = estimate.peer_clock(21_000).unwrap();
            let off_us = (server.ahead_at(21_000) + by_us - clock.ahead_us).unsigned_abs();
            prop_assert!(off_us <= u64::from(clock.error_us));
        }
    }
}
