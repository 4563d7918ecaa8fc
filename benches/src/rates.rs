//! Rates of calls, measured in short alternating turns.

use std::time::Duration;

use proto::bench::BenchClient;
use rpc_core::{LocalChannel, block_on};

use crate::Outcome;
use crate::cores::Cores;
use crate::in_flight::{Period, keep_in_flight};
use crate::line::{Distance, RoundTrip};
use crate::message::Load;
use crate::rounds::Rounds;
use crate::rpc::Rpc;
use crate::shared::Shared;
use crate::table::{self, Table};

/// The length of a turn, after a warm-up.
pub const TURN: Duration = Duration::from_millis(200);

/// The warm-up of a turn: the server's process has just been resumed.
pub const WARM_UP: Duration = Duration::from_millis(50);

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

/// A local client with calls in flight, over some of its connections in turn.
pub struct LocalRate {
    rpc: Rpc,
    clients: Vec<BenchClient<LocalChannel>>,
    in_flight: usize,
    load: Load,
}

impl LocalRate {
    /// Pauses the server until the first turn.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be paused.
    pub fn new(rpc: Rpc, load: &Load, in_flight: usize, connections: usize) -> Outcome<Self> {
        rpc.server().pause()?;
        Ok(Self {
            clients: rpc.clients()[..connections].to_vec(),
            rpc,
            in_flight,
            load: load.clone(),
        })
    }

    /// Makes calls over this many connections in the following turns.
    pub fn use_connections(&mut self, connections: usize) {
        self.clients = self.rpc.clients()[..connections].to_vec();
    }
}

impl Rated for LocalRate {
    fn take_turn(&mut self) -> Outcome<f64> {
        self.rpc.server().resume()?;
        let period = Period::after(WARM_UP, TURN);
        let calls = keep_in_flight(&self.clients, self.in_flight, &self.load, period);
        let counted = self.rpc.poller().block_on(calls)?;
        self.rpc.server().pause()?;
        Ok(period.rate(&counted))
    }
}

/// A shared client with calls in flight from this thread.
pub struct SharedRate {
    shared: Shared,
    in_flight: usize,
    load: Load,
}

impl SharedRate {
    /// Pauses the server until the first turn.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be paused.
    pub fn new(shared: Shared, load: &Load, in_flight: usize) -> Outcome<Self> {
        shared.server().pause()?;
        Ok(Self {
            shared,
            in_flight,
            load: load.clone(),
        })
    }
}

impl Rated for SharedRate {
    fn take_turn(&mut self) -> Outcome<f64> {
        self.shared.server().resume()?;
        let period = Period::after(WARM_UP, TURN);
        let clients = [self.shared.client()];
        let counted = block_on(keep_in_flight(&clients, self.in_flight, &self.load, period))?;
        self.shared.server().pause()?;
        Ok(period.rate(&counted))
    }
}

/// Lets each row take a turn in each round. `measure` returns the rate of the row with an index.
///
/// # Errors
///
/// Returns the first error of a row.
pub fn alternate(
    rows: usize,
    rounds: usize,
    cores: Cores,
    mut measure: impl FnMut(usize) -> Outcome<f64>,
) -> Outcome<Rounds> {
    let mut values = vec![Vec::new(); rows];
    let mut lines = Vec::new();
    for _ in 0..rounds {
        for (row, values) in values.iter_mut().enumerate() {
            lines.push(RoundTrip::measure(cores)?);
            values.push(measure(row)?);
        }
    }
    Ok(Rounds::new(values, lines))
}

/// Builds a table of the rates in each state, with their ratios to the first row.
#[must_use]
pub fn table(names: &[String], rounds: &Rounds) -> Table {
    let mut table = Table::new(["", "lines near", "÷ first", "lines far", "÷ first"]);
    for (row, name) in names.iter().enumerate() {
        let mut cells = vec![name.clone()];
        for distance in [Distance::Near, Distance::Far] {
            let none = || "-".to_owned();
            cells.push(rounds.median(row, distance).map_or_else(none, table::rate));
            let ratio = rounds.ratio(row, 0, distance);
            cells.push(ratio.map_or_else(none, |ratio| format!("{ratio:.2}")));
        }
        table.add(cells);
    }
    table
}
