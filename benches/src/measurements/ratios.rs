//! Ratios of rates that are to stay: many connections to one, a longer message to a shorter one.
//!
//! `make count` does not see what misses of caches and the way to the other core cost. A rate shows it, but
//! changes with the machine. So two rates of neighbouring turns are compared, and these are not the calls
//! per second but *typical* rates: the number in flight ÷ the median latency. By Little's law, the number in
//! flight ÷ the mean is the calls per second. The mean includes the time slices that the machine gives to
//! other programs, and the median does not: beside five busy programs on two cores, a tenth of the calls
//! are made, and the ratios of typical rates differ by less than a tenth.

use std::fmt;

use clap::Args;

use crate::line::Distance;
use crate::message::{FIXED_SIZE, Load, Shape};
use crate::rates::Point;
use crate::report::Row;
use crate::rounds::{Rounds, alternate_rows, least_and_most};
use crate::setup::{Bench, Measurement};
use crate::slices::median_of;
use crate::{Outcome, arguments};

/// Rates over many connections, of many calls and of long messages ÷ those of fewer and shorter ones; fails below the accepted ratios
#[derive(Clone, Debug, Args)]
pub struct Ratios {
    /// Turns that each row takes
    #[arg(long, default_value_t = 11)]
    rounds: usize,
}

/// A load whose rate is compared with that of the load before it, so that their turns are neighbours.
struct Compared {
    name: &'static str,
    size: usize,
    connections: usize,
    in_flight: usize,
    accepted: Option<Accepted>,
}

/// The ratio to the load before it: what was measured with near cache lines, and with far ones.
struct Accepted {
    near: f64,
    far: f64,
}

const LOADS: [Compared; 7] = [
    of("1 in flight", [64, 1, 1], None),
    of("32 in flight", [64, 1, 32], accept(1.42, 2.03)),
    // The far one is of a slower version: far lines have not come since.
    of("64 connections", [64, 64, 32], accept(0.83, 0.28)),
    of("200 bytes", [200, 1, 8], None),
    of("232 bytes", [232, 1, 8], accept(0.96, 0.87)),
    of("4200 bytes", [4200, 1, 8], None),
    of("8192 bytes", [8192, 1, 8], accept(0.66, 0.8)),
];

const fn of(name: &'static str, load: [usize; 3], accepted: Option<Accepted>) -> Compared {
    let [size, connections, in_flight] = load;
    Compared {
        name,
        size,
        connections,
        in_flight,
        accepted,
    }
}

const fn accept(near: f64, far: f64) -> Option<Accepted> {
    Some(Accepted { near, far })
}

/// The part of an accepted ratio that is enough. Medians of eleven rounds have differed by a fifth at most.
const ENOUGH: f64 = 0.75;

/// Fewer rounds with the same cache lines show nothing.
const ROUNDS: usize = 5;

impl Measurement for Ratios {
    fn device(&self) -> Option<&'static str> {
        Some("soft")
    }

    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        arguments::at_least_one_round(self.rounds)?;
        bench.announce(format_args!(
            "{} rounds; in each, every load takes a turn of 0.2 s",
            self.rounds
        ));
        let start = |load: &Compared| {
            let message = match load.size {
                FIXED_SIZE => Load::fixed(),
                size => Load::new(Shape::Bytes, size)?,
            };
            Point::start(bench, message, load.connections, load.in_flight)
        };
        let points: Vec<Point> = LOADS.iter().map(start).collect::<Outcome<_>>()?;
        let mut typical = vec![Vec::new(); LOADS.len()];
        let rates = alternate_rows(LOADS.len(), self.rounds, bench.cores, |row| {
            bench.progress(format_args!("round {}", typical[row].len() + 1));
            let turn = points[row].take_turn()?;
            typical[row].push(LOADS[row].in_flight as f64 / turn.quantile(0.5) * 1e9);
            Ok(turn.calls_per_s)
        })?;
        let typical = rates.with_values(typical);
        let rows = LOADS.iter().enumerate().map(|(row, load)| {
            Row::new(load.name)
                .with("size_bytes", load.size)
                .with("connections", load.connections)
                .with("in_flight", load.in_flight)
                .with("calls_per_s", rates.median(row, None))
                .with("typical_per_s", typical.median(row, None))
        });
        bench.report.table("loads", rows);
        let ratios: Vec<Ratio> = ratios_of(&typical).collect();
        bench.report.table("ratios", ratios.iter().map(Ratio::row));
        bench.report.note(rates.to_string());
        bench.report.note(format!(
            "A typical rate is the number in flight ÷ the median latency. A ratio is that of typical rates, \
             in one state of the cache lines; it is judged after {ROUNDS} rounds, and too low below \
             {ENOUGH} of the accepted one."
        ));
        let too_low = ratios.iter().filter(|ratio| ratio.is_too_low());
        bench.failures.extend(too_low.map(Ratio::to_string));
        Ok(())
    }
}

/// The ratios of one load to another in the rounds of one state.
struct Ratio {
    name: String,
    values: Vec<f64>,
    accepted: f64,
}

/// Returns the ratios for which there is an accepted one, in each state that was seen.
fn ratios_of(typical: &Rounds) -> impl Iterator<Item = Ratio> {
    let pairs = LOADS.windows(2).enumerate();
    let ratios = pairs.flat_map(move |(base, pair)| {
        let accepted = pair[1].accepted.iter();
        let states = accepted.flat_map(|it| [(Distance::Near, it.near), (Distance::Far, it.far)]);
        states.map(move |(state, accepted)| Ratio {
            name: format!("{} ÷ {}, {state}", pair[1].name, pair[0].name),
            values: typical.ratios(base + 1, base, state).collect(),
            accepted,
        })
    });
    ratios.filter(|ratio| !ratio.values.is_empty())
}

impl Ratio {
    fn median(&self) -> f64 {
        median_of(self.values.iter().copied())
    }

    fn is_too_low(&self) -> bool {
        self.values.len() >= ROUNDS && self.median() < ENOUGH * self.accepted
    }

    fn row(&self) -> Row {
        let (least, most) = least_and_most(self.values.iter().copied());
        Row::new(self.name.as_str())
            .with("ratio", self.median())
            .with("least_ratio", least)
            .with("most_ratio", most)
            .with("accepted_ratio", self.accepted)
            .with("rounds", self.values.len())
            .with("verdict", if self.is_too_low() { "too low" } else { "" })
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = least_and_most(self.values.iter().copied());
        write!(
            f,
            "{}: {:.2} in {} rounds, from {least:.2} to {most:.2}, is too far below the accepted {}",
            self.name,
            self.median(),
            self.values.len(),
            self.accepted
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::line::RoundTrip;

    /// Rounds in which the ratios to the row before are the accepted near ones, but for one.
    fn rounds(count: usize, nanos: u64, (slow, by): (usize, f64)) -> Rounds {
        let mut rate = 1e6;
        let rates = LOADS.iter().enumerate().map(|(row, load)| {
            rate *= load.accepted.as_ref().map_or(1.0, |it| it.near);
            rate *= if row == slow { by } else { 1.0 };
            vec![rate; count]
        });
        let line = RoundTrip(Duration::from_nanos(nanos));
        Rounds::new(rates.collect(), vec![line; count * LOADS.len()])
    }

    fn too_low(rounds: &Rounds) -> Vec<String> {
        let ratios = ratios_of(rounds).filter(Ratio::is_too_low);
        ratios.map(|ratio| ratio.to_string()).collect()
    }

    #[test]
    fn a_ratio_that_is_far_below_the_accepted_one_is_named() {
        let found = too_low(&rounds(9, 60, (2, 0.7)));
        let expected = "64 connections ÷ 32 in flight, near: 0.58 in 9 rounds, from 0.58 to 0.58, is too \
                        far below the accepted 0.83";
        assert_eq!(found, [expected]);
        assert!(too_low(&rounds(9, 60, (2, 0.8))).is_empty());
        assert!(too_low(&rounds(9, 60, (2, 3.0))).is_empty());
    }

    #[test]
    fn few_rounds_are_not_judged() {
        assert_eq!(too_low(&rounds(ROUNDS, 60, (6, 0.1))).len(), 1);
        assert!(too_low(&rounds(ROUNDS - 1, 60, (6, 0.1))).is_empty());
    }

    #[test]
    fn far_lines_have_accepted_ratios_of_their_own() {
        // 1.42 times as many calls with 32 in flight are enough with near lines, and not with far ones.
        let found = too_low(&rounds(9, 540, (0, 1.0)));
        assert!(
            found[0].starts_with("32 in flight ÷ 1 in flight, far: 1.42"),
            "{found:?}"
        );
        assert!(too_low(&rounds(9, 60, (0, 1.0))).is_empty());
    }
}
