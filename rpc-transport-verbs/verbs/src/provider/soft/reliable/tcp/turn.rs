//! Looks at the links of a context: which can be read from, which can be written to again, and which
//! owe an acknowledgement.
//!
//! A look makes one system call for each hot link, and one for all others. A link becomes hot when
//! something arrives, and cold again after many empty reads.

use crate::hooks;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::{Common, State};
use crate::provider::soft::context::tcp_links::ReadyLink;

/// Empty reads after which a link is cold: some 100 µs of polling, longer than a response takes.
const EMPTY_READS: u32 = 256;
/// Reads after which a hot link of a context that is polled without a pause is silent: see
/// [`TcpLink::is_silent`](crate::provider::soft::context::tcp_link::TcpLink::is_silent).
const READS_BEFORE_SILENCE: u32 = 1024;
/// Looks at hot links for each look at the others.
const LOOKS_PER_WAIT: u32 = 4;
/// Bytes that hot links may move before the others are looked at, so that a short message waits for a
/// part of a long one only. To copy them takes far longer than a look.
const MOST_MOVED: usize = 64 * 1024;
/// Looks for which an acknowledgement waits for a message that can carry it: a server that answers
/// at once does so before the second look.
const LOOKS_BEFORE_ACK: u8 = 2;

impl State {
    /// Looks at the links. Returns the number of messages that were executed.
    // Cold, so that polls of contexts without links do not prepare for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_at_tcp_links(&mut self) -> usize {
        self.write_deferred();
        let mut executed = self.read_hot_links();
        // A context that is not polled perhaps makes no second look.
        let is_polled = self.common.is_polled();
        let links = &mut self.common.tcp;
        links.looks = links.looks.wrapping_add(1);
        let is_due = !is_polled
            || links.hot.is_empty()
            || links.looks.is_multiple_of(LOOKS_PER_WAIT)
            || links.moved >= MOST_MOVED;
        if is_due && links.needs_wait() {
            executed += self.read_ready_links();
        }
        if !self.common.tcp.acks_due.is_empty() {
            self.send_due_acks();
        }
        executed
    }

    /// Writes the requests that waited for a look.
    fn write_deferred(&mut self) {
        while let Some(qp_index) = self.common.tcp.deferred.pop() {
            if let Some(qp) = self.queue_pairs.get_mut(qp_index as usize) {
                qp.transmit(&mut self.common);
            }
        }
    }

    fn read_hot_links(&mut self) -> usize {
        let mut executed = 0;
        let mut place = 0;
        let is_polled = self.common.is_polled();
        while let Some(link) = self.common.tcp.hot.get(place) {
            let qp_index = link.qp_index;
            let moved = self.common.tcp.moved;
            let count = self.read_link(qp_index);
            executed += count;
            // A long payload arrives in many reads.
            let is_idle = count == 0 && self.common.tcp.moved == moved;
            // A queue pair that has failed meanwhile has removed its link.
            match self.common.tcp.hot.get_mut(place) {
                Some(link) if link.qp_index == qp_index => {
                    link.empty_reads = if is_idle { link.empty_reads + 1 } else { 0 };
                    // Otherwise a message has to wake the thread, or the engine.
                    link.reads = link.reads.saturating_add(u32::from(is_polled));
                    let is_settled = is_polled && link.reads == READS_BEFORE_SILENCE;
                    // A lone link stays hot: the set would cost as much.
                    if link.empty_reads >= EMPTY_READS && self.common.tcp.has_others() {
                        self.common.tcp.hot.swap_remove(place);
                        self.set_silent(qp_index, false);
                        continue;
                    }
                    if is_settled {
                        self.set_silent(qp_index, true);
                    }
                    place += 1;
                }
                _ => {}
            }
        }
        executed
    }

    fn set_silent(&mut self, qp_index: u32, is_silent: bool) {
        if let Some(qp) = self.queue_pairs.get_mut(qp_index as usize)
            && let Some(link) = qp.link.tcp_mut()
        {
            self.common.tcp.set_silent(link, qp_index, is_silent);
        }
    }

    /// Has the epoll set tell of all links again, before this context is not polled for a while.
    pub(crate) fn end_silence(&mut self) {
        for place in 0..self.common.tcp.hot.len() {
            let link = &mut self.common.tcp.hot[place];
            let was_settled = link.reads >= READS_BEFORE_SILENCE;
            link.reads = 0;
            if was_settled {
                let qp_index = link.qp_index;
                self.set_silent(qp_index, false);
            }
        }
    }

    /// Reads from the links that the epoll set names, and writes to those that can be written to.
    fn read_ready_links(&mut self) -> usize {
        let ready = self.common.tcp.take_ready();
        let mut executed = 0;
        for &ReadyLink {
            qp_index,
            can_be_read,
            can_be_written,
        } in &ready
        {
            if can_be_written && let Some(qp) = self.queue_pairs.get_mut(qp_index as usize) {
                qp.write_again(&mut self.common);
            }
            if !can_be_read || !self.has_link(qp_index) {
                continue;
            }
            executed += self.read_link(qp_index);
            if self.has_link(qp_index) {
                self.common.tcp.make_hot(qp_index);
            }
        }
        self.common.tcp.put_back(ready);
        executed
    }

    /// Returns true if a queue pair has a link to read from: it has not failed, and its link has not
    /// ended.
    fn has_link(&self, qp_index: u32) -> bool {
        let qp = self.queue_pairs.get(qp_index as usize);
        let link = qp.and_then(|qp| qp.link.tcp());
        link.is_some_and(|link| !link.has_ended())
    }

    pub(crate) fn read_link(&mut self, qp_index: u32) -> usize {
        let Self {
            queue_pairs,
            common,
        } = self;
        let Some(qp) = queue_pairs.get_mut(qp_index as usize) else {
            return 0;
        };
        let executed = qp.receive_over_tcp(common);
        qp.write_after_read(common);
        #[cfg(debug_assertions)]
        crate::provider::soft::context::check::check_queue_pair(qp);
        executed
    }

    fn send_due_acks(&mut self) {
        let Self {
            queue_pairs,
            common,
        } = self;
        let mut place = 0;
        while let Some(&qp_index) = common.tcp.acks_due.get(place) {
            let qp = queue_pairs.get_mut(qp_index as usize);
            if qp.is_none_or(|qp| qp.settle_due_ack(common)) {
                // Removed by the queue pair itself if it has failed.
                if common.tcp.acks_due.get(place) == Some(&qp_index) {
                    common.tcp.acks_due.swap_remove(place);
                }
            } else {
                place += 1;
            }
        }
    }

    /// Sends the acknowledgements that nothing waits for; called by the engine.
    pub(crate) fn send_owed_acks(&mut self) {
        let Self {
            queue_pairs,
            common,
        } = self;
        while let Some(qp_index) = common.tcp.acks_owed.pop() {
            if let Some(qp) = queue_pairs.get_mut(qp_index as usize) {
                if let Some(link) = qp.link.tcp_mut() {
                    link.inbound.is_ack_listed = false;
                }
                qp.send_ack(common);
            }
        }
    }
}

impl SoftQueuePair {
    /// Writes what the peer waits for after this side has read: responses, and requests that waited
    /// for the responses to earlier ones.
    fn write_after_read(&mut self, common: &mut Common) {
        let Some(link) = self.link.tcp() else { return };
        let was_blocked = link.stream.is_to_itself() && link.outbound.is_blocked;
        if was_blocked {
            self.set_blocked(common, false);
        }
        let Some(link) = self.link.tcp() else { return };
        let outbound = &link.outbound;
        let has_work = !outbound.responses.is_empty()
            || outbound.partial.is_some()
            || self.initiator.sends.started < self.initiator.sends.posted;
        if (has_work || was_blocked) && !outbound.is_blocked {
            self.write_link(common, was_blocked);
        }
        if self.initiator.sends.local_failure.is_some() || self.initiator.draining.is_some() {
            self.process_acks(common, hooks::now);
        }
    }

    /// Sends an acknowledgement that the peer waits for, unless it has been sent with a message, or
    /// may still be. Returns true if none is due any more.
    fn settle_due_ack(&mut self, common: &mut Common) -> bool {
        let Some(link) = self.link.tcp_mut() else {
            return true;
        };
        // A context that is not polled has no second look.
        if link.owes_ack() && common.is_polled() {
            link.inbound.looks_with_ack_due += 1;
            if link.inbound.looks_with_ack_due < LOOKS_BEFORE_ACK {
                return false;
            }
        }
        link.inbound.looks_with_ack_due = 0;
        link.inbound.is_ack_due = false;
        self.send_ack(common);
        true
    }

    fn send_ack(&mut self, common: &mut Common) {
        if self.link.tcp().is_some_and(|link| link.owes_ack()) {
            self.write_link(common, true);
            #[cfg(debug_assertions)]
            crate::provider::soft::context::check::check_queue_pair(self);
        }
    }
}
