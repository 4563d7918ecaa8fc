//! [`LaneCounters`], a lane's counters, and [`LaneCounterReader`], which reads them from any
//! thread.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use rpc_core::stats::{Counter, Gauge};
use rpc_core::transport::{CounterReader, Counters};
use verbline_verbs::Context;

use crate::transport::queue_pairs::QueuePairs;
use crate::transport::reserve::ReserveCounters;

/// The counters of the data path, written on the poller's thread.
#[derive(Debug, Default)]
pub(crate) struct LaneCounters {
    pub(crate) sends: Counter,
    pub(crate) signaled: Counter,
    pub(crate) doorbells: Counter,
    pub(crate) receives: Counter,
    /// Completions that matched no outstanding request or no connection.
    pub(crate) stale: Counter,
    /// Look-ups that found nothing, as of the poller's last update.
    pub(crate) missed: Gauge,
    /// Peers that did not answer the keepalive.
    pub(crate) silent_peers: Counter,
    /// Frames that found no receive, as of the poller's last update. Used if the device is closed,
    /// and for a device that guards its own counter with the lock of the data path.
    pub(crate) rnr: Gauge,
}

impl LaneCounters {
    /// Counts a doorbell for `sends` requests. Without requests, there was none.
    #[inline]
    pub(crate) fn count_doorbell(&self, sends: usize) {
        if sends > 0 {
            self.sends.add(sends as u64);
            self.doorbells.add(1);
        }
    }
}

/// Access to a device's own counters. It keeps the device open, so a [`LaneCounterReader`] has only
/// a weak reference to it.
#[derive(Debug)]
pub(crate) struct DeviceCounterReader {
    pub(crate) context: Context,
    pub(crate) queue_pairs: Arc<QueuePairs>,
}

impl DeviceCounterReader {
    /// Returns the number of frames that found no receive on this device since it was opened; 0 if
    /// the device does not count them. A nonzero value points to a bug in flow control.
    pub(crate) fn rnr(&self) -> u64 {
        let rnr = self.context.rnr_counters(self.queue_pairs.port());
        rnr.map_or(0, |rnr| rnr.nak_sent)
    }
}

/// Reads a lane's counters from any thread. It keeps the counters alive, but not the device.
pub(crate) struct LaneCounterReader {
    pub(crate) counters: Arc<LaneCounters>,
    pub(crate) reserve: Arc<ReserveCounters>,
    pub(crate) device: Weak<DeviceCounterReader>,
}

impl CounterReader for LaneCounterReader {
    fn counters(&self) -> Counters {
        let counters = &self.counters;
        let device = self.device.upgrade();
        let rnr = match device {
            Some(device) if !device.context.counts_on_data_path() => device.rnr(),
            _ => counters.rnr.get(),
        };
        Counters {
            sends: counters.sends.get(),
            signaled: counters.signaled.get(),
            doorbells: counters.doorbells.get(),
            receives: counters.receives.get(),
            srq_limit_events: self.reserve.events.load(Ordering::Relaxed),
            reserve_posted: self.reserve.posted.load(Ordering::Relaxed),
            rnr,
            stale: counters.stale.get(),
            missed: counters.missed.get(),
            silent_peers: counters.silent_peers.get(),
        }
    }
}

/// The sum of the counters of all lanes of a transport.
pub(crate) struct TransportCounterReader(pub(crate) Vec<LaneCounterReader>);

impl CounterReader for TransportCounterReader {
    fn counters(&self) -> Counters {
        let lanes = self.0.iter().map(CounterReader::counters);
        lanes.fold(Counters::default(), |sum, lane| sum.plus(&lane))
    }
}
