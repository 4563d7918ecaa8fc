//! Rates of calls, measured in short alternating turns.

use hdrhistogram::Histogram;
use proto::bench::BenchClient;
use rpc_core::{CallError, LocalChannel};

use crate::Outcome;
use crate::in_flight::{Period, keep_in_flight, with_room};
use crate::message::Load;
use crate::rpc::{Client, Rpc};
use crate::setup::{Bench, busy_intents};

/// Makes calls at the highest rate.
pub trait Rated {
    /// Makes calls until the end of a period, and leaves the cores idle. Returns the calls per
    /// second in the period.
    ///
    /// # Errors
    ///
    /// Returns any error that ends the measurement.
    fn take_turn(&mut self) -> Outcome<f64>;
}

impl<F: FnMut() -> Outcome<f64>> Rated for F {
    fn take_turn(&mut self) -> Outcome<f64> {
        self()
    }
}

/// Keeps calls in flight over the first connection of a client. Pauses the server until the first turn.
///
/// # Errors
///
/// Fails if the server cannot be paused.
pub fn rate<C: Client>(client: C, load: &Load, in_flight: usize) -> Outcome<impl Rated + use<C>> {
    client.server().pause()?;
    let (connections, load) = ([client.client()], load.clone());
    Ok(move || Ok(turn(&client, &connections, &load, in_flight)?.calls_per_s))
}

/// The calls that ended in the period of a turn.
#[derive(Clone, Debug)]
pub struct Turn {
    /// How many, per second.
    pub calls_per_s: f64,
    /// How long each took, in nanoseconds.
    pub times: Histogram<u64>,
}

impl Turn {
    /// Returns the nanoseconds that this part of the calls did not exceed. If the machine gave the whole
    /// turn to other programs, no call has ended, and each takes longer than can be said.
    #[must_use]
    pub fn quantile(&self, part: f64) -> f64 {
        match self.times.is_empty() {
            true => f64::INFINITY,
            false => self.times.value_at_quantile(part) as f64,
        }
    }
}

/// Keeps calls in flight for one turn, over these connections in turn.
///
/// # Errors
///
/// Returns the error of the first call that fails.
pub fn turn<C: Client>(
    client: &C,
    connections: &[BenchClient<C::Channel>],
    load: &Load,
    in_flight: usize,
) -> Outcome<Turn> {
    client.in_turn(async {
        let period = Period::turn();
        let times = keep_in_flight(connections, in_flight, load, period).await?;
        Ok::<_, CallError>(Turn {
            calls_per_s: period.rate(&times),
            times,
        })
    })
}

/// Calls in flight over connections that no other point uses, from a local client to a server of their own.
/// Neither side sleeps: beside busy programs, a side that does waits for its next time slice.
pub struct Point {
    client: Rpc,
    connections: Vec<BenchClient<LocalChannel>>,
    load: Load,
    in_flight: usize,
}

impl Point {
    /// Connects as often as `connections` says, and pauses the server until the first turn.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(bench: &Bench, load: Load, connections: usize, in_flight: usize) -> Outcome<Self> {
        let defaults = busy_intents(load.encoded_len());
        let intents = with_room(defaults, connections, in_flight.div_ceil(connections))?;
        let mut client = Rpc::start_pinned(&bench.device, bench.cores, &intents)?;
        client.connect(connections - 1)?;
        client.server().pause()?;
        Ok(Self {
            connections: client.clients(),
            client,
            load,
            in_flight,
        })
    }

    /// Keeps the calls in flight for one turn.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
    pub fn take_turn(&self) -> Outcome<Turn> {
        turn(&self.client, &self.connections, &self.load, self.in_flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_without_calls_is_slow() {
        let mut turn = Turn {
            calls_per_s: 0.0,
            times: verbline_load::histogram(),
        };
        assert_eq!(turn.quantile(0.5), f64::INFINITY);
        turn.times.record(500).expect("within the bounds");
        assert_eq!(turn.quantile(0.5), 500.0);
    }
}
