//! [`Timeline`]: the arrivals of calls, in phases of one rate each.

use std::time::Duration;

use verbline_load::{Arrivals, Schedule};

/// A period in which calls arrive at one rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Number of the phase, which its calls carry.
    pub number: usize,
    /// Calls per second.
    pub rate: f64,
    /// Length of the phase.
    pub length: Duration,
}

/// Phases that follow each other without a pause.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Distribution of the times between calls.
    pub arrivals: Arrivals,
    /// Seed of Poisson arrivals. Each phase has its own arrivals.
    pub seed: u64,
    /// The phases in order.
    pub phases: Vec<Phase>,
}

/// The arrival of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Time since the beginning of the timeline.
    pub intended: Duration,
    /// Time since the beginning of the phase.
    pub in_phase: Duration,
    /// Number of the phase.
    pub phase: usize,
}

impl Timeline {
    /// Returns the length of all phases.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.phases.iter().map(|phase| phase.length).sum()
    }

    /// Returns all arrivals in order.
    pub fn arrivals(&self) -> impl Iterator<Item = Arrival> {
        let mut end = Duration::ZERO;
        self.phases.iter().flat_map(move |phase| {
            let start = end;
            end += phase.length;
            let seed = self.seed.wrapping_add(phase.number as u64);
            Schedule::new(self.arrivals, phase.rate, seed)
                .take_while(|&in_phase| in_phase < phase.length)
                .map(move |in_phase| Arrival {
                    intended: start + in_phase,
                    in_phase,
                    phase: phase.number,
                })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other_at_their_own_rates() {
        let phase = |number, rate| Phase {
            number,
            rate,
            length: Duration::from_millis(100),
        };
        let timeline = Timeline {
            arrivals: Arrivals::Fixed,
            seed: 1,
            phases: vec![phase(4, 100.0), phase(9, 1000.0)],
        };
        let arrivals: Vec<Arrival> = timeline.arrivals().collect();
        let of = |number| arrivals.iter().filter(move |one| one.phase == number);
        assert_eq!((of(4).count(), of(9).count()), (10, 100));
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.intended));
        for arrival in of(9) {
            assert_eq!(
                arrival.intended,
                arrival.in_phase + timeline.phases[0].length
            );
        }
        assert_eq!(timeline.length(), Duration::from_millis(200));
    }
}
