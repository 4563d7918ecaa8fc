//! Checks at the end of a run: resources that are left, and waits without a cause.

use rpc_core::transport::Transport;

use super::super::Fault;
use super::{Process, ProcessId, World};

impl World {
    /// Describes the parts of a process that are still in use. Empty once all calls and connections
    /// have ended.
    #[must_use]
    pub fn leftovers(&self, process: ProcessId) -> Vec<String> {
        let Process { node, device, .. } = &self.processes[process.0];
        let (Some(node), Some(device)) = (node, device) else {
            return Vec::new();
        };
        let mut left = node.leftovers();
        left.extend(device.leftovers());
        node.with_transport(|transport| {
            let limits = transport.verbs.limits().clone();
            let places = transport.verbs.slots_by_state();
            let are_back = places.total() == limits.slots()
                && places.sends_free == limits.send_slots
                && places.receives_held == 0;
            if !are_back {
                left.push(format!("not all slots are back: {places}"));
            }
            let memory = transport.verbs.memory_by_owner();
            if memory.exposed + memory.fetching + memory.held > 0 {
                left.push(format!("not all memory for messages is back: {memory:?}"));
            }
            if let Some(lane) = transport.verbs.lane(0) {
                for (count, what) in [
                    (lane.connections.len(), "connections"),
                    (lane.liveness_index.len(), "liveness sockets"),
                    (lane.closing.len(), "ending connections"),
                    (lane.queue_pairs.count() as usize, "queue pairs"),
                ] {
                    if count > 0 {
                        left.push(format!("{count} {what} of the lane"));
                    }
                }
            }
        });
        left
    }

    /// Returns the processes whose frames found no receive although no injected fault explains it,
    /// with counts.
    #[must_use]
    pub fn not_ready_without_cause(&self) -> Vec<(ProcessId, u64)> {
        let fault_counters = self.fault_counters();
        let [_, receives] = fault_counters.posts.map(|[refused, cut]| refused + cut);
        if fault_counters.faults[Fault::ReceiverNotReady as usize] + receives > 0 {
            return Vec::new();
        }
        let of = |process: ProcessId| {
            Some((
                process,
                self.node(process)?.poller().stats().total().transport.rnr,
            ))
        };
        let processes = self.processes().filter_map(of);
        processes.filter(|(_, not_ready)| *not_ready > 0).collect()
    }

    /// Returns how often a poller kept sleeping although work had arrived, if no injected fault
    /// explains it.
    #[must_use]
    pub fn slept_through_without_cause(&self) -> u64 {
        let fault_counters = self.fault_counters();
        let is_late = [
            Fault::LateMessage,
            Fault::LateAnnouncement,
            Fault::LateCompletion,
            Fault::ShortPoll,
        ]
        .iter()
        .any(|fault| fault_counters.faults[*fault as usize] > 0);
        // A process killed between the commit word and the wakeup wakes no peer.
        if is_late || fault_counters.deaths.iter().any(|count| *count > 0) {
            return 0;
        }
        let of = |process: &Process| process.slept_through.get();
        self.processes.iter().map(of).sum()
    }
}
