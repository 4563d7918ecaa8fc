//! [`Tally`], a lane's counters, and [`LaneMeter`], which reads them from any thread.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use rpc_core::stats::{Counter, Gauge};
use rpc_core::transport::{CounterReader, Counters};

use crate::transport::queue_pairs::QueuePairs;
use crate::transport::reserve::ReserveCounts;
use crate::verbs::Context;

/// The counters of the data path, written on the poller's thread.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sends: Counter,
    pub(crate) signaled: Counter,
    pub(crate) doorbells: Counter,
    pub(crate) receives: Counter,
    /// Completions that matched no outstanding request or no connection.
    pub(crate) stale: Counter,
    /// Peers that did not answer the keepalive.
    pub(crate) silent_peers: Counter,
    /// Frames that found no receive, as of the poller's last update. Used if the device is closed,
    /// and for a device that guards its own counter with the lock of the data path.
    pub(crate) rnr: Gauge,
}

/// Access to a device's own counters. It keeps the device open, so a [`LaneMeter`] has only a weak
/// reference to it.
#[derive(Debug)]
pub(crate) struct DeviceCounts {
    pub(crate) context: Context,
    pub(crate) queue_pairs: Arc<QueuePairs>,
}

impl DeviceCounts {
    /// Returns the number of frames that found no receive on this device since it was opened; 0 if
    /// the device does not count them. A nonzero value points to a bug in flow control.
    pub(crate) fn rnr(&self) -> u64 {
        let rnr = self.context.rnr_counters(self.queue_pairs.port());
        rnr.map_or(0, |rnr| rnr.nak_sent)
    }
}

/// Reads a lane's counters from any thread. It keeps the counters alive, but not the device.
pub(crate) struct LaneMeter {
    pub(crate) tally: Arc<Tally>,
    pub(crate) reserve: Arc<ReserveCounts>,
    pub(crate) device: Weak<DeviceCounts>,
}

impl CounterReader for LaneMeter {
    fn counters(&self) -> Counters {
        let tally = &self.tally;
        let device = self.device.upgrade();
        let rnr = match device {
            Some(device) if !device.context.counts_on_data_path() => device.rnr(),
            _ => tally.rnr.get(),
        };
        Counters {
            sends: tally.sends.get(),
            signaled: tally.signaled.get(),
            doorbells: tally.doorbells.get(),
            receives: tally.receives.get(),
            srq_limit_events: self.reserve.events.load(Ordering::Relaxed),
            reserve_posted: self.reserve.posted.load(Ordering::Relaxed),
            rnr,
            stale: tally.stale.get(),
            silent_peers: tally.silent_peers.get(),
        }
    }
}

/// The sum of the counters of all lanes of a transport.
pub(crate) struct TransportMeter(pub(crate) Vec<LaneMeter>);

impl CounterReader for TransportMeter {
    fn counters(&self) -> Counters {
        let lanes = self.0.iter().map(CounterReader::counters);
        lanes.fold(Counters::default(), |sum, lane| sum.plus(&lane))
    }
}
