//! Rates of calls, measured in short alternating turns.

use proto::bench::BenchClient;
use rpc_core::CallError;

use crate::Outcome;
use crate::in_flight::{Period, keep_in_flight};
use crate::message::Load;
use crate::rpc::Client;

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
    Ok(move || rate_of_turn(&client, &connections, &load, in_flight))
}

/// Keeps calls in flight for one turn, over these connections in turn. Returns the calls per second.
///
/// # Errors
///
/// Returns the error of the first call that fails.
pub fn rate_of_turn<C: Client>(
    client: &C,
    connections: &[BenchClient<C::Channel>],
    load: &Load,
    in_flight: usize,
) -> Outcome<f64> {
    client.in_turn(async {
        let period = Period::turn();
        let counted = keep_in_flight(connections, in_flight, load, period).await?;
        Ok::<_, CallError>(period.rate(&counted))
    })
}
