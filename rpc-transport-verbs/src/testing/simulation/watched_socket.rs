//! Simulated liveness sockets, as the world watches them.

use crate::transport::liveness_socket::SimulatedSocket;
use crate::transport::notices::{LivenessEnd, LivenessKey, Notice, NoticeSender};

/// A liveness socket as the world watches it, on behalf of the control threads of both sides.
pub(super) struct WatchedSocket {
    pub(super) socket: SimulatedSocket,
    pub(super) ends: [End; 2],
    /// True while the server has not been notified that its client is ready.
    pub(super) awaits_ready: bool,
}

/// One side of a liveness socket.
pub(super) struct End {
    pub(super) process: usize,
    pub(super) key: LivenessKey,
    pub(super) notice_sender: NoticeSender,
    pub(super) is_notified: bool,
}

impl WatchedSocket {
    /// Returns true if nothing remains to be reported.
    pub(super) fn is_done(&self) -> bool {
        self.ends.iter().all(|end| end.is_notified)
    }

    /// Reports pending notices to each side that is not delayed by a fault.
    pub(super) fn step(
        &mut self,
        is_alive: impl Fn(usize) -> bool,
        is_late: impl Fn(bool) -> bool,
    ) {
        if self.ends.iter().any(|end| !is_alive(end.process)) {
            self.socket.shut_down();
        }
        if self.awaits_ready && !is_late(true) {
            self.awaits_ready = false;
            let [_, server] = &self.ends;
            // If the transport is gone, there is nothing to notify. The same holds below.
            let _ = server.notice_sender.send(Notice::Open(server.key));
        }
        if !self.socket.has_ended() {
            return;
        }
        for end in &mut self.ends {
            if !end.is_notified && (!is_alive(end.process) || !is_late(false)) {
                end.is_notified = true;
                let _ = end
                    .notice_sender
                    .send(Notice::Ended(end.key, LivenessEnd::Gone));
            }
        }
    }
}
