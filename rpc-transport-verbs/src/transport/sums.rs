//! The sums that a lane maintains, asserted under test (`debug_assertions`) before each poll and after
//! each flush.
//!
//! | sum | each of its terms |
//! | --- | --- |
//! | receive slots | free, posted, in the reserve, or held by the driver |
//! | send slots | free, reserved by the driver, or in flight: in a chain or in a queue pair |
//! | entries of a send queue | free and reserved, free, or in flight |
//! | one-sided requests, and READs among them | in the send queue; of a fetch and of a connection |
//! | bytes of long messages | of an exposed piece, or of a message that is fetched |
//! | connections | with a queue pair number and a TCP connection of their own; in lists by their bits |
//! | tasks | a list or a queue that is not empty, and the bit of [`Pending`] that has it looked at |
//!
//! Each of these is counted where one of its terms changes, in one place for each change. What these
//! places forget would show much later: as a slot, a window or a turn that nobody has.
//!
//! For the sum of the promised receives, see
//! [`ReceiveQueue`](crate::transport::receive_queue::ReceiveQueue).

use std::thread;
use std::time::Duration;

use rpc_core::transport::ConnectionId;

use crate::transport::connection::{Connection, Phase};
use crate::transport::lane::Lane;
use crate::transport::pending::Pending;

/// A lane with more connections, or with more pieces and fetches, asserts the sums over all of them at no
/// flush.
const FEW: usize = 16;

/// How often the sum of the receives is looked at again, each millisecond, while the async-event thread
/// posts its reserve: it counts them in two steps.
const LOOKS: usize = 10_000;

impl Lane {
    /// Asserts the sums of the lane, and those of a connection: at each poll of another one.
    pub(crate) fn assert_sums(&mut self) {
        self.assert_slots();
        self.assert_tasks();
        if let Some(id) = self.connections.next_in_turn()
            && let Some(connection) = self.connections.get_ref(id)
        {
            self.assert_connection(id, connection);
        }
    }

    fn assert_slots(&self) {
        let limits = &self.plan.limits;
        let slots = self.slots_by_state();
        let sends = slots.sends_free + slots.sends_reserved + slots.sends_in_flight;
        assert_eq!(sends, limits.send_slots, "send slots: {slots}");
        let receives = limits.slots() - limits.send_slots;
        let is_right = (0..LOOKS).any(|look| {
            if look > 0 {
                thread::sleep(Duration::from_millis(1));
            }
            let slots = self.slots_by_state();
            let posted = slots.receives_posted + slots.receives_reserved;
            receives == posted + slots.receives_free + slots.receives_held
        });
        let slots = self.slots_by_state();
        assert!(is_right, "receive slots, of {receives}: {slots}");
    }

    fn assert_tasks(&self) {
        let pending = |task| self.pending.has(task);
        if !self.queued.is_empty() || self.connections.has_closed() {
            assert!(pending(Pending::EVENTS), "nobody looks at the events");
        }
        let is_closing = !self.closing.is_empty();
        assert_eq!(pending(Pending::CLOSING), is_closing, "{:?}", self.closing);
        let has_none = self.connections.len() == 0;
        assert_eq!(pending(Pending::NO_CONNECTIONS), has_none);
        if self.long_messages.has_task() {
            assert!(pending(Pending::LONG_MESSAGES), "nobody takes turns");
        }
        let counts = (self.routes.len(), self.liveness_index.len());
        let len = self.connections.len();
        assert_eq!(counts, (len, len), "routes and TCP connections");
    }

    fn assert_connection(&self, id: ConnectionId, connection: &Connection) {
        let index = id.index;
        self.dirty.assert_member(index, &connection.listed);
        self.long_messages
            .ring
            .assert_member(index, &connection.listed);
        let places = self.closing.iter().filter(|&&other| other == index);
        let is_closing = matches!(connection.phase(), Phase::Closing(_));
        assert_eq!(places.count(), usize::from(is_closing), "closing {id}");
        assert_eq!(self.routes.get(connection.queue_pair.qp_num()), Some(index));
        connection.assert_sums(self.dirty.contains(&connection.listed));
    }

    /// Asserts the sums over all connections too, if they are few.
    pub(crate) fn assert_all_sums(&mut self) {
        self.assert_sums();
        if self.connections.len() > FEW || self.long_messages.count() > FEW {
            return;
        }
        let (mut slots, mut reserved) = (0, 0);
        for (id, connection) in self.connections.iter() {
            self.assert_connection(id, connection);
            slots += connection.sends.slots();
            reserved += connection.sends.reserved();
        }
        let members = || {
            let all = self.connections.iter();
            all.map(|(id, connection)| (id.index, &connection.listed))
        };
        self.dirty.assert_members(members());
        self.long_messages.ring.assert_members(members());
        let states = self.slots_by_state();
        // The driver may have slots that it has reserved for connections which are gone.
        let most = states.sends_reserved as usize;
        assert!(
            reserved <= most,
            "{reserved} entries are reserved: {states}"
        );
        let in_flight = states.sends_in_flight as usize;
        // A queue pair that cannot be destroyed keeps its slots.
        if !self.long_messages.has_leaked {
            assert_eq!(slots, in_flight, "slots of connections, and in flight");
        }
        self.long_messages.assert_sums(&self.connections);
    }
}
