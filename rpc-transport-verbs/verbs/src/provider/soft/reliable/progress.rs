//! The progress of a context: the loop over everything that may have changed (hot rings, announcements, TCP
//! connections, awaited acknowledgements), and the sleep of a context whose completion queues are armed.
//!
//! A look at the TCP connections makes one system call for each hot one, and one for all others. A link
//! becomes hot when something arrives, and cold again after many empty reads.
//!
//! While a context sleeps, no thread polls its rings until a peer or the engine wakes it. `wake` draws the
//! handshake with the peers.

use super::receive::ReceiveOutcome;
use crate::hooks;
use crate::hooks::inject;
use crate::provider::soft::context::check::check_queue_pair;
use crate::provider::soft::context::link::Link;
use crate::provider::soft::context::lists::RingPlace;
use crate::provider::soft::context::pending::Matter;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::{Common, State};
use crate::provider::soft::context::tcp_link::LinkToken;
use crate::provider::soft::context::tcp_links::HotState;
use crate::provider::soft::shared::ring::SLOT_COUNT;
use crate::types::{AsyncEvent, QpState};

impl State {
    /// Makes one bounded batch of progress on everything. Returns the number of messages received.
    pub(crate) fn progress(&mut self) -> usize {
        let mut received = 0;
        if !inject!(LateAnnouncement) {
            received += self.receive_announced();
        }
        let mut place = 0;
        while place < self.common.lists.hot.len() {
            if inject!(LateMessage) {
                place += 1;
                continue;
            }
            match self.receive_hot(place) {
                ReceiveOutcome::Received(count) => {
                    received += count;
                    self.common.lists.arrived(place);
                    place += 1;
                }
                ReceiveOutcome::Empty => place += usize::from(self.stays_hot(place)),
                ReceiveOutcome::Blocked => self.block_hot(place),
                ReceiveOutcome::Closed => {}
            }
        }
        received + self.look_beyond_rings()
    }

    /// Makes progress on what does not begin with a message in a hot ring. Returns the number of
    /// messages from links over TCP.
    #[inline]
    pub(crate) fn look_beyond_rings(&mut self) -> usize {
        let mut executed = 0;
        if self.common.pending.has(Matter::TcpLinks) {
            executed = self.look_at_tcp_links();
        }
        if self.common.pending.has(Matter::Awaiting) {
            self.process_awaited_acks();
        }
        self.finish_turn();
        executed
    }

    /// Receives a batch of messages from the hot ring at this place.
    fn receive_hot(&mut self, place: usize) -> ReceiveOutcome {
        let qp_index = self.common.lists.hot[place].qp_index;
        self.receive_batch(RingPlace::Hot(place), qp_index)
    }

    /// Receives a batch of messages from a queue pair's ring. If the outcome is `Closed`, the ring is in no
    /// list any more.
    pub(crate) fn receive_batch(&mut self, ring: RingPlace, qp_index: u32) -> ReceiveOutcome {
        let (qp, common) = self.split(qp_index);
        let outcome = qp.receive(common);
        match &qp.link {
            // A queue pair that has failed has removed its ring.
            Link::Rings(rings) if outcome != ReceiveOutcome::Closed => {
                rings.receiver.update(common.lists.next_of(ring));
            }
            _ => common.lists.remove_ring(qp_index),
        }
        outcome
    }

    /// Handles the consequences of what was done inside of the context. Call this before releasing the
    /// lock after anything that may have made a ring hot or announced, or completed requests.
    #[inline]
    pub(crate) fn finish_turn(&mut self) {
        if self.common.pending.is_asleep() {
            self.stay_asleep();
        }
        self.settle_overrun();
    }

    /// Processes the acknowledgements that polls wait for.
    fn process_awaited_acks(&mut self) {
        let Self {
            queue_pairs,
            common,
        } = self;
        let mut place = 0;
        while let Some(&qp_index) = common.lists.awaiting.as_slice().get(place) {
            let Some(qp) = queue_pairs.at(qp_index) else {
                common.lists.await_nobody(&mut common.pending, place);
                continue;
            };
            qp.process_acks(common, hooks::now);
            check_queue_pair(qp);
            // A queue pair that has failed meanwhile has removed itself from the list.
            if common.lists.awaiting.as_slice().get(place) != Some(&qp_index) {
                continue;
            }
            if qp.initiator.awaits_polls(&qp.link) {
                place += 1;
            } else {
                let (lists, pending) = (&mut common.lists, &mut common.pending);
                lists.await_no_more(pending, place, &mut qp.listed);
            }
        }
    }

    /// Fails the queue pairs of the completion queues that overran. Call this before releasing the
    /// lock after anything that may have completed requests.
    #[inline]
    pub(crate) fn settle_overrun(&mut self) {
        if self.common.completion_queues.has_overrun() {
            self.fail_overrun();
        }
    }

    #[cold]
    #[inline(never)]
    fn fail_overrun(&mut self) {
        // Failing flushes work, which may overrun another queue, so repeat until none is left.
        while let Some(cq) = self.common.completion_queues.take_overrun() {
            let number = self.common.completion_queues.queue(cq as usize).number;
            let event = AsyncEvent::CompletionQueueError { cq: number };
            self.common.events.raise(event);
            for qp in self.queue_pairs.values_mut() {
                let is_attached = qp.core.send_cq == cq as usize || qp.core.recv_cq == cq as usize;
                if is_attached && !matches!(qp.core.state, QpState::Reset | QpState::Error) {
                    self.common.events.raise(AsyncEvent::QpFatal {
                        qp_num: qp.core.number,
                    });
                    qp.fail(&mut self.common, None);
                }
            }
        }
        if self.common.pending.is_asleep() {
            // The completions may have triggered an armed queue.
            self.wake_if_disarmed();
        }
    }

    // ---- hot and cold rings ----

    /// Takes the announcements of all peers, and receives a batch of messages from each ring that is announced.
    /// Returns the number of messages.
    pub(crate) fn receive_announced(&mut self) -> usize {
        let Common { ready, lists, .. } = &mut self.common;
        ready.take_all(|sender, found| lists.announced(sender, found));
        lists.cold.look_at_owed();
        let mut received = 0;
        // A ring with more messages is announced again, behind the others.
        for _ in 0..lists.cold.count_announced() {
            let Some((ring, qp_index, _)) = self.common.lists.look_at_announced() else {
                break;
            };
            received += self.receive_announced_ring(ring, qp_index);
        }
        received
    }

    /// Ends the turn of the ring that `look_at_announced` has returned: receives a batch of messages, and
    /// returns their number. The ring goes hot only after a message: a peer may have many rings without one that
    /// can be received.
    pub(super) fn receive_announced_ring(&mut self, ring: RingPlace, qp_index: u32) -> usize {
        let outcome = self.receive_batch(ring, qp_index);
        let (qp, common) = self.split(qp_index);
        match outcome {
            ReceiveOutcome::Received(count) => {
                common.lists.taken_from(ring, qp_index, &qp.link);
                return count;
            }
            // Its sender announces it when it retries.
            ReceiveOutcome::Empty => common.lists.put_off_announced(),
            ReceiveOutcome::Blocked => {
                common.lists.put_off_announced();
                common.lists.cold.block(qp_index);
            }
            ReceiveOutcome::Closed => common.lists.end_cold_turn(),
        }
        0
    }

    /// Makes a hot ring cold, of which the next message names an arena that has not arrived. The last hot ring
    /// takes its place.
    pub(super) fn block_hot(&mut self, place: usize) {
        let qp_index = self.common.lists.hot[place].qp_index;
        let (qp, common) = self.split(qp_index);
        match qp.link.rings() {
            Some(rings) => {
                rings.receiver.go_cold();
                common.lists.make_cold(place, rings.peer.gid);
                common.lists.cold.block(qp_index);
            }
            None => common.lists.remove_ring(qp_index),
        }
    }

    /// Decides whether a ring stays hot after it was found empty. If not, it is removed from the
    /// list, and the last ring takes its place.
    #[inline]
    pub(crate) fn stays_hot(&mut self, place: usize) -> bool {
        let lists = &self.common.lists;
        let is_recent = lists.is_recent(place) && (lists.hot.len() == 1 || !inject!(GoesCold));
        is_recent || !self.goes_cold(place)
    }

    /// Makes a hot ring cold unless it holds a message, and returns true if it did. The ring is then
    /// removed from the list, and the last ring takes its place.
    fn goes_cold(&mut self, place: usize) -> bool {
        let Self {
            queue_pairs,
            common,
        } = self;
        let qp = &mut queue_pairs[common.lists.hot[place].qp_index];
        let Some(rings) = qp.link.rings_mut() else {
            return false;
        };
        let is_cold = rings.receiver.try_go_cold();
        if is_cold {
            common.lists.make_cold(place, rings.peer.gid);
        }
        is_cold
    }

    // ---- TCP connections ----

    /// Looks at the links. Returns the number of messages that were executed.
    // Cold, so that polls of contexts without links do not prepare for it.
    #[cold]
    #[inline(never)]
    fn look_at_tcp_links(&mut self) -> usize {
        while let Some(qp_index) = self.common.tcp.deferred.pop() {
            let Some((qp, common)) = self.at(qp_index) else {
                continue;
            };
            if let Some(link) = qp.link.tcp_mut() {
                common.tcp.deferred.taken(&mut link.listed);
            }
            qp.transmit(common);
        }
        let mut executed = self.read_hot_links();
        let is_polled = self.common.pending.is_polled();
        if self.common.tcp.are_others_due(is_polled) {
            executed += self.read_ready_links();
        }
        if !self.common.tcp.acks_due.is_empty() {
            self.send_due_acks();
        }
        executed
    }

    fn read_hot_links(&mut self) -> usize {
        let mut executed = 0;
        let mut place = 0;
        let is_polled = self.common.pending.is_polled();
        while let Some(link) = self.common.tcp.hot.get(place) {
            let qp_index = link.qp_index;
            let moved = self.common.tcp.moved;
            let (qp, common) = self.split(qp_index);
            let count = qp.read_link(common);
            executed += count;
            // A queue pair that has failed meanwhile has removed its link.
            if common.tcp.hot.get(place).map(|link| link.qp_index) != Some(qp_index) {
                continue;
            }
            // A long payload arrives in many reads.
            let is_idle = count == 0 && common.tcp.moved == moved;
            let state = common.tcp.after_read(place, is_idle, is_polled);
            place += usize::from(state != HotState::Cold);
            if state != HotState::Hot
                && let Some(link) = qp.link.tcp_mut()
            {
                common.tcp.set_silent(link, state == HotState::Settled);
            }
        }
        executed
    }

    /// Has the epoll set tell of all links again, before this context is not polled for a while.
    pub(super) fn end_silence(&mut self) {
        for place in 0..self.common.tcp.hot.len() {
            let qp_index = self.common.tcp.hot[place].qp_index;
            let (qp, common) = self.split(qp_index);
            if common.tcp.unsettle(place)
                && let Some(link) = qp.link.tcp_mut()
            {
                common.tcp.set_silent(link, false);
            }
        }
    }

    /// Reads from the links that the epoll set names, and writes to those that can be written to.
    fn read_ready_links(&mut self) -> usize {
        let ready = self.common.tcp.take_ready();
        let is_live = |qp: &SoftQueuePair| qp.link.tcp().is_some_and(|link| !link.has_ended());
        let mut executed = 0;
        for link in &ready {
            // One that was handled before it may have ended it.
            let LinkToken { qp_index, qp_num } = link.token;
            let Some(qp) = self.queue_pairs.find(qp_index, qp_num) else {
                continue;
            };
            // If the socket of one that can be written to has ended, a read finds that.
            if link.can_be_written
                && let Some(tcp) = qp.link.tcp_mut()
                && tcp.stream.flush().is_ok()
            {
                self.common.tcp.set_blocked(tcp, false);
                // An acknowledgement that fell due while the socket was full is in no list.
                qp.write_link(&mut self.common, true);
            }
            if !link.can_be_read || !is_live(qp) {
                continue;
            }
            executed += qp.read_link(&mut self.common);
            if is_live(qp) {
                self.common.tcp.make_hot(qp_index);
            }
        }
        self.common.tcp.put_back(ready);
        executed
    }

    /// Sends the acknowledgements that a peer waits for, unless they were sent with messages, or may still
    /// be.
    fn send_due_acks(&mut self) {
        let Self {
            queue_pairs,
            common,
        } = self;
        let is_polled = common.pending.is_polled();
        let mut place = 0;
        while let Some(&qp_index) = common.tcp.acks_due.as_slice().get(place) {
            let Some(qp) = queue_pairs.at(qp_index) else {
                common.tcp.acks_due.discard_at(place);
                continue;
            };
            let Some(link) = qp.link.tcp_mut() else {
                debug_assert!(
                    false,
                    "queue pair {qp_index} is in a list of links without one"
                );
                common.tcp.acks_due.discard_at(place);
                continue;
            };
            if link.is_ack_overdue(is_polled) {
                common.tcp.acks_due.remove_at(place, &mut link.listed);
                qp.write_link(common, true);
            } else {
                place += 1;
            }
        }
    }

    /// Sends the acknowledgements that nothing waits for.
    pub(super) fn send_owed_acks(&mut self) {
        while let Some(qp_index) = self.common.tcp.acks_owed.pop() {
            let Some((qp, common)) = self.at(qp_index) else {
                continue;
            };
            if let Some(link) = qp.link.tcp_mut() {
                common.tcp.acks_owed.taken(&mut link.listed);
            }
            qp.write_link(common, true);
        }
    }

    // ---- sleep ----

    /// Arms a queue, as `req_notify_cq` does: its next completion raises an event; earlier ones
    /// raise none.
    pub(crate) fn arm(&mut self, cq: usize, solicited_only: bool) {
        self.end_silence();
        // Messages sent so far precede the arming and complete without an event, as on a device
        // that does not depend on being polled. The loop is bounded by what fits a ring: anything
        // beyond that counts as sent after the arming.
        for _ in 0..SLOT_COUNT {
            if self.progress() == 0 {
                break;
            }
        }
        self.common.completion_queues.arm(cq, solicited_only);
        self.common.pending.add(Matter::Completions);
        if !self.common.pending.is_asleep() {
            self.common.pending.add(Matter::Asleep);
            self.common.notes.sleep.fall_asleep();
        }
        self.finish_turn();
    }

    /// Receives what has arrived and leaves every ring cold, so that the sender of the next message
    /// notifies this context; or wakes up if no queue is armed any more. Call this before releasing
    /// the context's lock whenever a ring may have become hot or announced during sleep.
    #[cold]
    #[inline(never)]
    fn stay_asleep(&mut self) {
        if self.wake_if_disarmed() {
            return;
        }
        // Bounded, as in `arm`. The engine looks again at its next tick at a ring that stays announced or
        // hot, unless a completion from this loop has woken the context.
        for _ in 0..SLOT_COUNT {
            if self.receive_announced() == 0 {
                break;
            }
        }
        let mut place = 0;
        let mut found_nothing = false;
        let mut patience = SLOT_COUNT * (1 + self.common.lists.hot.len() as u64);
        while place < self.common.lists.hot.len() {
            match self.receive_hot(place) {
                ReceiveOutcome::Received(_) if patience > 0 => {
                    patience -= 1;
                    found_nothing = false;
                }
                ReceiveOutcome::Closed => {}
                ReceiveOutcome::Blocked => {
                    self.block_hot(place);
                    found_nothing = false;
                }
                ReceiveOutcome::Empty if self.goes_cold(place) => found_nothing = false,
                // A message arrived between the two looks.
                ReceiveOutcome::Empty if !found_nothing => found_nothing = true,
                // The patience is used up. The ring stays hot, so the context is not at rest, and the
                // engine retries at its next tick.
                ReceiveOutcome::Empty | ReceiveOutcome::Received(_) => {
                    place += 1;
                    found_nothing = false;
                }
            }
        }
        self.wake_if_disarmed();
    }

    /// Wakes the context unless a queue is armed, and clears the sleep note for the peers. Returns
    /// true if the context is awake.
    fn wake_if_disarmed(&mut self) -> bool {
        let is_awake = !self.common.completion_queues.has_armed();
        if is_awake {
            self.common.pending.remove(Matter::Asleep);
            self.common.notes.sleep.wake_up();
        }
        is_awake
    }
}
