//! Rates of calls, measured in short alternating turns.

use proto::bench::BenchClient;
use rpc_core::{CallError, LocalChannel, block_on};

use crate::Outcome;
use crate::in_flight::{Period, keep_in_flight};
use crate::message::Load;
use crate::rpc::Rpc;
use crate::shared::Shared;

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
    connections: usize,
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
            connections,
            clients: rpc.clients(),
            rpc,
            in_flight,
            load: load.clone(),
        })
    }

    /// Makes calls over this many connections in the following turns.
    pub fn use_connections(&mut self, connections: usize) {
        self.connections = connections;
    }
}

impl Rated for LocalRate {
    fn take_turn(&mut self) -> Outcome<f64> {
        self.rpc.server().in_turn(|| {
            let period = Period::turn();
            let clients = &self.clients[..self.connections];
            let calls = keep_in_flight(clients, self.in_flight, &self.load, period);
            Ok::<_, CallError>(period.rate(&self.rpc.poller().block_on(calls)?))
        })
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
        self.shared.server().in_turn(|| {
            let (period, clients) = (Period::turn(), [self.shared.client()]);
            let calls = keep_in_flight(&clients, self.in_flight, &self.load, period);
            Ok::<_, CallError>(period.rate(&block_on(calls)?))
        })
    }
}
