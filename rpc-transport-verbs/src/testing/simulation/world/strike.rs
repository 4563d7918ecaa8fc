//! Injects the faults that no hook injects: in queue pairs, lines and processes.

use verbline_verbs::{AsyncEvent, CompletionStatus, QpNum};

use super::super::Fault;
use super::{Pairing, Process, ProcessId, World};
use crate::transport::notices::{LivenessEnd, Notice};

impl World {
    /// Injects the faults that affect connections and processes, at their rates.
    pub fn inject_faults(&self) {
        let (simulation, random) = (&self.simulation, &self.simulation.random);
        if simulation.injects(Fault::Death) {
            let unlucky = random.below(self.processes.len() as u64) as usize;
            tracing::info!(process = unlucky, "is killed between two steps");
            self.processes[unlucky].state.killer.kill();
        }
        let pairings = self.directory.pairings.borrow();
        if pairings.is_empty() {
            return;
        }
        let any = |pairings: &[Pairing]| pairings[random.below(pairings.len() as u64) as usize];
        if simulation.injects(Fault::QueuePairFails) {
            let unlucky = any(&pairings);
            let ((process, qp_num), (peer, _)) = match random.happens(500) {
                true => (unlucky.client, unlucky.server),
                false => (unlucky.server, unlucky.client),
            };
            self.fail_queue_pair(process, qp_num);
            if random.happens(500) {
                // While the peer is slow to notice, the failed side reuses the memory of the
                // messages it sent.
                self.processes[peer.0].stalled[0].set(random.below(60) as u32);
            }
        }
        let mut sockets = self.directory.sockets.borrow_mut();
        if !sockets.is_empty() && simulation.injects(Fault::LineCut) {
            let index = random.below(sockets.len() as u64) as usize;
            let watched = &mut sockets[index];
            for end in &watched.ends {
                // Both processes are affected, because the socket connects them.
                self.processes[end.process].state.is_broken.set(true);
            }
            tracing::info!(index, "a liveness socket is cut");
            if random.happens(700) {
                watched.socket.shut_down();
            } else {
                let end = &watched.ends[random.below(2) as usize];
                let _ = end
                    .notice_sender
                    .send(Notice::Ended(end.key, LivenessEnd::Bytes));
            }
        }
    }

    fn fail_queue_pair(&self, process: ProcessId, qp_num: u32) {
        let random = &self.simulation.random;
        let Process { device, state, .. } = &self.processes[process.0];
        let Some(device) = device.as_ref().filter(|_| !state.killer.has_killed()) else {
            return;
        };
        let qp = QpNum(qp_num);
        let (status, event) = match random.below(4) {
            0 => (Some(CompletionStatus::RetryExceeded), None),
            1 => (None, Some(AsyncEvent::QpFatal { qp_num: qp })),
            2 => (None, Some(AsyncEvent::QpAccessError { qp_num: qp })),
            _ => (None, None),
        };
        tracing::info!(
            process = process.0,
            qp_num,
            ?status,
            ?event,
            "a queue pair fails"
        );
        let failed = self
            .simulation
            .run_in(state, || device.fail_queue_pair(qp, status, event));
        if failed == Some(true) {
            state.broken.borrow_mut().insert(qp_num);
        }
    }
}
