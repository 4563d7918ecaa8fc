//! The conditions of a seed: its faults, the deaths of its processes, and its load.

use std::time::Duration;

use rpc_core_testing::Random;
use rpc_transport_verbs::testing::simulation::{Fault, Faults, Point, Post};
use rpc_transport_verbs::verbs::for_transport::WindowFault;

/// How much the handlers have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Handlers take no time.
    None,
    /// Handlers take some time.
    Bearable(Duration),
    /// More calls than the servers can serve in time, and one client that has most of them.
    Overload(Duration),
}

impl Load {
    pub(super) fn random(random: &Random) -> Self {
        let each = Duration::from_micros(1 + random.below(3000));
        match random.below(20) {
            0 => Self::Overload(each),
            1 | 2 => Self::Bearable(each),
            _ => Self::None,
        }
    }

    pub(super) fn work(self) -> Option<Duration> {
        match self {
            Self::None => None,
            Self::Bearable(each) | Self::Overload(each) => Some(each),
        }
    }

    pub(super) fn is_overload(self) -> bool {
        matches!(self, Self::Overload(_))
    }
}

/// Chooses each fault in a third of the seeds, each with its own rate; no faults in one seed of
/// ten.
pub(super) fn random_faults(random: &Random) -> (Faults, bool) {
    let mut faults = Faults::none();
    if random.happens(100) {
        return (faults, true);
    }
    for fault in Fault::ALL {
        if random.happens(333) {
            let rate = match fault {
                Fault::Stall => [1, 5, 20][random.below(3) as usize],
                // The rate applies to a whole round.
                Fault::QueuePairFails | Fault::LineCut | Fault::Death => {
                    [2, 5, 20][random.below(3) as usize]
                }
                _ => [5, 50, 200, 600][random.below(4) as usize],
            };
            faults.set(*fault, rate);
        }
    }
    for post in Post::ALL {
        if random.happens(150) {
            faults.set_post(*post, [1, 10, 50][random.below(3) as usize]);
        }
    }
    (faults, false)
}

/// Chooses the point at which each process dies, and after how many passes. The number of passes is
/// spread over orders of magnitude, because some points are passed once, and others with every
/// message.
pub(super) fn deaths(
    random: &Random,
    processes: usize,
    is_fault_free: bool,
) -> Vec<Option<(Point, u64)>> {
    let is_deadly = !is_fault_free && random.happens(300);
    let death = |_| {
        (is_deadly && random.happens(400)).then(|| {
            let point = Point::ALL[random.below(Point::ALL.len() as u64) as usize];
            let magnitude = 1 << random.below(8);
            (point, random.below(magnitude))
        })
    };
    (0..processes).map(death).collect()
}

/// Lets the devices of some seeds refuse memory windows at some time, and those of others bind none from
/// some time on. Drawn apart from all else, so that the other seeds stay what they were.
pub(super) fn window_fault(seed: u64, is_fault_free: bool) -> WindowFault {
    let random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x81d0);
    let is_refused = !is_fault_free && random.happens(200);
    let after = || random.below(1 << random.below(7)) as usize;
    match is_refused {
        true => WindowFault::AtMost(after()),
        false if !is_fault_free && random.happens(100) => WindowFault::UnbindableAfter(after()),
        false => WindowFault::Nothing,
    }
}
