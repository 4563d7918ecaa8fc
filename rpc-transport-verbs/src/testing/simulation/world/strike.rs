//! Injects the faults that no hook injects: in queue pairs, lines and processes.

use super::super::Fault;
use super::{Pairing, Process, ProcessId, World};
use crate::transport::mailbox::{LineEnd, Notice};
use crate::verbs::{AsyncEvent, CompletionStatus, QpNum};

impl World {
    /// Injects the faults that affect connections and processes, at their rates.
    pub fn strike(&self) {
        let (simulation, random) = (&self.simulation, &self.simulation.random);
        if simulation.strikes(Fault::Death) {
            let unlucky = random.below(self.processes.len() as u64) as usize;
            tracing::info!(process = unlucky, "is killed between two steps");
            self.processes[unlucky].life.killer.kill();
        }
        let pairings = self.town.pairings.borrow();
        if pairings.is_empty() {
            return;
        }
        let any = |pairings: &[Pairing]| pairings[random.below(pairings.len() as u64) as usize];
        if simulation.strikes(Fault::QueuePairFails) {
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
        let mut lines = self.town.lines.borrow_mut();
        if !lines.is_empty() && simulation.strikes(Fault::LineCut) {
            let index = random.below(lines.len() as u64) as usize;
            let line = &mut lines[index];
            for end in &line.ends {
                // Both processes: the line belongs to both.
                self.processes[end.process].life.is_broken.set(true);
            }
            tracing::info!(index, "a lifeline is cut");
            if random.happens(700) {
                line.line.hang_up();
            } else {
                let end = &line.ends[random.below(2) as usize];
                let _ = end.mailbox.put(Notice::Ended(end.key, LineEnd::Bytes));
            }
        }
    }

    fn fail_queue_pair(&self, process: ProcessId, qp_num: u32) {
        let random = &self.simulation.random;
        let Process { device, life, .. } = &self.processes[process.0];
        let Some(device) = device.as_ref().filter(|_| !life.killer.has_killed()) else {
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
            .as_life(life, || device.fail_queue_pair(qp, status, event));
        if failed == Some(true) {
            life.broken.borrow_mut().insert(qp_num);
        }
    }
}
