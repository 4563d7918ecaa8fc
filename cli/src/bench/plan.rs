//! [`Plan`]: the loads that a command line asks for, one after the other.

use std::hash::{BuildHasher, RandomState};

use serde::{Deserialize, Serialize};
use verbline_load::Points;
use verbline_load::sweep::Over;

use super::arguments::Bench;
use crate::failure::Failure;

/// The most calls in flight of an open loop, unless the command line says it: those of a stall of some
/// milliseconds.
const OPEN_IN_FLIGHT: f64 = 256.0;

/// One load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Calls per second of an open loop.
    pub(crate) rate: Option<f64>,
    pub(crate) in_flight: u32,
    pub(crate) connections: u32,
    /// Encoded bytes of each random message.
    pub(crate) message_bytes: Option<u32>,
    pub(crate) seed: u64,
}

/// The loads of a sweep, or a single one.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// What is raised from load to load.
    pub(crate) over: Over,
    pub(crate) points: Points,
    /// With the first of the points.
    first: Load,
}

impl Plan {
    /// Makes the plan. Fails if it has several sweeps, or less of something than there are processes.
    pub(crate) fn of(arguments: &Bench) -> Result<Self, Failure> {
        let processes = f64::from(arguments.processes);
        let connections = arguments.connections.clone();
        let connections = connections.unwrap_or_else(|| processes.into());
        let in_flight = arguments.in_flight.clone().unwrap_or_else(|| {
            let least = processes.max(connections.first());
            Points::from(match arguments.rate {
                Some(_) => least.max(OPEN_IN_FLIGHT),
                None => least,
            })
        });
        let sizes = arguments.random.clone().flatten();
        // The standard library's hasher has other keys in each process.
        let seed = arguments
            .seed
            .unwrap_or_else(|| RandomState::new().hash_one(()));
        let first = Load {
            rate: arguments.rate.as_ref().map(Points::first),
            in_flight: in_flight.first() as u32,
            connections: connections.first() as u32,
            message_bytes: sizes.as_ref().map(|sizes| sizes.first() as u32),
            seed,
        };
        let few = [
            ("--in-flight", first.in_flight),
            ("--connections", first.connections),
        ];
        if let Some((option, number)) = few.into_iter().find(|few| few.1 < arguments.processes) {
            return Err(Failure::FewForProcesses {
                option,
                number,
                processes: arguments.processes,
            });
        }
        if first.connections > first.in_flight && !connections.is_sweep() {
            return Err(Failure::IdleConnections {
                in_flight: first.in_flight,
                connections: first.connections,
            });
        }
        let mut swept = [
            (Over::Rate, "--rate", arguments.rate.clone()),
            (Over::MessageBytes, "--random", sizes),
            (Over::Connections, "--connections", Some(connections)),
            (Over::InFlight, "--in-flight", Some(in_flight)),
        ]
        .into_iter()
        .filter_map(|(over, option, points)| Some((over, option, points?)))
        .filter(|(.., points)| points.is_sweep());
        let (over, option, points) = match (swept.next(), first.rate) {
            (Some(sweep), _) => sweep,
            (None, Some(rate)) => (Over::Rate, "--rate", rate.into()),
            (None, None) => (
                Over::InFlight,
                "--in-flight",
                f64::from(first.in_flight).into(),
            ),
        };
        if let Some((_, other, _)) = swept.next() {
            return Err(Failure::SeveralSweeps { option, other });
        }
        Ok(Self {
            over,
            points,
            first,
        })
    }

    /// The name of the load at a point.
    pub(crate) fn name(&self, point: f64) -> String {
        format!("{} {}", self.over, self.over.unit().text(point))
    }

    /// The load at a point.
    pub(crate) fn at(&self, point: f64) -> Load {
        let mut load = self.first;
        match self.over {
            Over::Rate => load.rate = Some(point),
            Over::MessageBytes => load.message_bytes = Some(point as u32),
            Over::Connections => {
                load.connections = point as u32;
                // A connection without a call would measure nothing.
                load.in_flight = load.in_flight.max(load.connections);
            }
            Over::InFlight => load.in_flight = point as u32,
        }
        load
    }
}

impl Load {
    /// The part of one process.
    pub(crate) fn part(self, index: u32, of: u32) -> Self {
        let share = |all: u32| all / of + u32::from(index < all % of);
        Self {
            rate: self.rate.map(|rate| rate / f64::from(of)),
            in_flight: share(self.in_flight),
            connections: share(self.connections),
            message_bytes: self.message_bytes,
            // Equal seeds would send in step.
            seed: self.seed.wrapping_add(u64::from(index)),
        }
    }
}
