//! Sums that have to be right at the end of each turn, in builds with debug assertions.
//!
//! What a connection, a stream or a message holds is also counted for all of them. A count that differs
//! from its sum means that something was lost, or is held for nothing: a receive that no peer is promised
//! any more, memory that nobody frees, a list that names what is gone.

use super::DriverState;
use super::link::Link;
use crate::transport::Transport;

/// Connections, streams and messages up to which the sums are checked at the end of each turn. With more,
/// only at the end of some: tests with thousands of streams would take too long.
const FEW: usize = 16;

/// One in this many turns has its sums checked if there is more.
const TURNS_PER_CHECK: u64 = 32;

impl<T: Transport> DriverState<T> {
    /// Checks the sums.
    ///
    /// # Panics
    ///
    /// Panics if one is wrong.
    pub(super) fn assert_sums(&self, turn: u64) {
        let (sent, received) = self.bodies.counts();
        let things = self.links.table.len() + self.streams.len() + sent + received;
        if things > FEW && !turn.is_multiple_of(TURNS_PER_CHECK) {
            return;
        }
        self.assert_receives();
        self.assert_requests();
        self.assert_lists();
        self.streams.assert_sums(&self.links);
        self.bodies.sending.assert_sums(&self.links);
        self.bodies.receiving.assert_sums(&self.links);
    }

    /// The receives that are promised: those of the windows, and one for each response to a unary call
    /// that has not arrived, or that waits in its slot.
    fn assert_receives(&self) {
        let promised = |link: &Link<_>| {
            let of_calls = link.calls.receives();
            let freed = match link.closed {
                true => 0,
                false => link.connection.freed(),
            };
            link.promised() + of_calls + freed
        };
        let promised: u32 = self.links.table.values().map(promised).sum();
        let promised = promised + self.links.receives_of_code;
        let counted = self.links.budget.promised();
        assert_eq!(
            counted, promised,
            "receives that are counted, and that are promised"
        );
    }

    /// The requests and woken handlers that wait for their turn.
    fn assert_requests(&self) {
        let links = self.links.table.values();
        let waiting: usize = links.map(|link| link.requests.waiting()).sum();
        let counted = self.run_queue.waiting();
        assert_eq!(counted, waiting, "requests that are counted, and that wait");
    }

    /// What waits to be sent is still there.
    fn assert_lists(&self) {
        let (outbox, links) = (&self.links.outbox, &self.links.table);
        assert!(outbox.control.keys().all(|key| links.contains(key)));
        assert!(outbox.calls.keys().all(|key| links.contains(key)));
        assert!(self.endings.links().all(|key| links.contains(key)));
        let any = outbox.control.len() | outbox.calls.len() | outbox.streams.len();
        let any = any | outbox.pieces.len() | outbox.windows.len() | outbox.awaiting_reader.len();
        assert!(
            outbox.any() || any == 0,
            "something waits, and no turn looks"
        );
        let sending = &self.bodies.sending;
        assert!(outbox.pieces.keys().all(|key| sending.is_sending(key)));
    }
}
