//! Polls of completion queues.
//!
//! A poll usually looks for one message in a hot ring and, if there is one, copies it into a posted
//! receive and returns its completion: the straight path. Whatever else there may be to do adds a
//! matter to [`Pending`](crate::provider::soft::context::pending::Pending), which sends polls to the
//! general path.

use super::progress::make_hot_for;
use super::receive::ReceiveOutcome;
use crate::hooks;
use crate::hooks::inject;
use crate::provider::soft::context::pending::Matter;
use crate::provider::soft::context::state::{Common, Look, State};
use crate::provider::soft::shared::commit::Commit;
use crate::types::{VerbsError, WorkCompletion};

/// Messages that polls take from hot rings before they look at acknowledgements, and before they
/// turn to the next ring: few, so that no ring and no sender waits for long.
const STREAK: u32 = 16;

/// Hot rings for each set of ready bits that a poll looks at, after the first set.
const HOT_PER_LOOK: usize = 4;

impl State {
    /// Polls a completion queue, as `poll_cq` does, for at most `max` completions.
    pub(crate) fn poll(
        &mut self,
        cq: usize,
        out: &mut Vec<WorkCompletion>,
        max: usize,
    ) -> Result<usize, VerbsError> {
        if max == 0 {
            self.progress();
        }
        let mut count = 0;
        while count < max {
            match self.poll_one(cq) {
                Ok(Some(completion)) => out.push(completion),
                Err(error) if count == 0 => return Err(error),
                Ok(None) | Err(_) => break,
            }
            count += 1;
        }
        Ok(count)
    }

    /// Polls a completion queue for one completion.
    fn poll_one(&mut self, cq: usize) -> Result<Option<WorkCompletion>, VerbsError> {
        match self.look() {
            Look::Nothing => Ok(None),
            Look::Message(commit) => self.take_message(cq, commit),
            Look::Unclear => self.poll_general(cq),
        }
    }

    /// Begins a poll: looks where its completion usually comes from.
    #[inline]
    pub(crate) fn look(&mut self) -> Look {
        self.common.polls += 1;
        self.look_again()
    }

    #[inline(always)]
    fn look_again(&mut self) -> Look {
        let common = &mut self.common;
        match &*common.lists.hot {
            [ring] if common.pending.is_empty() && common.ready.pass_if_empty() => {
                ring.next.look().map_or(Look::Nothing, Look::Message)
            }
            _ => Look::Unclear,
        }
    }

    /// Ends a poll that has found a message in the only hot ring.
    // Always inlined: one of its two callers is on the path of every message.
    #[inline(always)]
    pub(crate) fn take_message(
        &mut self,
        cq: usize,
        commit: Commit,
    ) -> Result<Option<WorkCompletion>, VerbsError> {
        let Self {
            queue_pairs,
            common,
        } = self;
        if inject!(LateMessage) {
            return Ok(None);
        }
        if inject!(ShortPoll) {
            return Ok(None);
        }
        if let Some(ring) = common.lists.hot.first() {
            let qp = &mut queue_pairs[ring.qp_index];
            if let Some(completion) = qp.receive_straight(common, 0, commit, cq) {
                return Ok(Some(completion));
            }
        }
        self.poll_general(cq)
    }

    /// Ends a poll that has more to do than to look at one hot ring.
    #[inline(never)]
    pub(crate) fn poll_general(&mut self, cq: usize) -> Result<Option<WorkCompletion>, VerbsError> {
        if self.common.ready.is_round_over() {
            self.begin_round();
            if self.look_again() == Look::Nothing {
                return Ok(None);
            }
        }
        // Acknowledgements are not due for long only after a message that was sent from an arena.
        let common = &self.common;
        if (common.pending.is_empty() || common.polls < common.acks_due)
            && let Some(found) = self.poll_only_ring(cq)
        {
            return Ok(found);
        }
        if self.common.pending.has(Matter::Unattended) {
            self.mark_attended();
        }
        if inject!(ShortPoll) {
            return Ok(None);
        }
        if let Some(completion) = self.pop_completion(cq) {
            return Ok(Some(completion));
        }
        if !inject!(LateBell) {
            self.handle_ready_bits();
        }
        let message = self.take_from_hot_rings(cq);
        // Acknowledgements can wait for a few messages. A sleeping context cannot: the ring of this
        // one may be hot now, and its sender would not notify anyone of the next.
        let can_wait =
            !self.common.pending.is_asleep() && !self.common.completion_queues.has_overrun();
        if message.is_some() && self.common.streak < STREAK && can_wait {
            self.common.streak += 1;
            return Ok(message);
        }
        self.common.streak = 0;
        self.common.lists.first_look += 1;
        self.look_beyond_rings();
        if message.is_some() {
            return Ok(message);
        }
        if let Some(completion) = self.pop_completion(cq) {
            return Ok(Some(completion));
        }
        let queue = self.common.completion_queues.queue(cq);
        if queue.is_overrun() {
            return Err(VerbsError::CompletionQueueOverrun {
                capacity: queue.capacity(),
            });
        }
        Ok(None)
    }

    /// Polls the only hot ring, if nothing else is to be done: no acknowledgements are awaited, or
    /// they are not due yet and nothing but completions depends on them. Returns `None`, and has done
    /// nothing, if the general path has to be taken.
    #[inline(never)]
    fn poll_only_ring(&mut self, cq: usize) -> Option<Option<WorkCompletion>> {
        let Self {
            queue_pairs,
            common,
        } = self;
        let acks_can_wait = match *common.lists.awaiting.as_slice() {
            [] => true,
            [only] if common.polls < common.acks_due => {
                queue_pairs[only].initiator.awaits_plain_sends()
            }
            _ => false,
        };
        let only_acks = common.pending.is_empty() || common.pending.is_only(Matter::Awaiting);
        let [ring] = &*common.lists.hot else {
            return None;
        };
        if !acks_can_wait || !only_acks || !common.ready.pass_if_empty() {
            return None;
        }
        if inject!(LateMessage) {
            return Some(None);
        }
        if inject!(ShortPoll) {
            return Some(None);
        }
        let Some(commit) = ring.next.look() else {
            return Some(None);
        };
        let qp = &mut queue_pairs[ring.qp_index];
        let straight = qp.receive_straight(common, 0, commit, cq);
        straight
            .or_else(|| qp.receive_straight_from_arena(common, 0, commit, cq))
            .map(Some)
    }

    /// Takes the oldest completion out of a queue.
    fn pop_completion(&mut self, cq: usize) -> Option<WorkCompletion> {
        let Self {
            queue_pairs,
            common,
        } = self;
        let completion = common.completion_queues.pop(cq);
        if common.completion_queues.are_quiet() {
            common.pending.remove(Matter::Completions);
        }
        let completion = completion?;
        if let Some((qp_index, number)) = completion.frees
            // A queue pair that has been destroyed since has no entry to free.
            && let Some(qp) = queue_pairs.find(qp_index, completion.qp_num)
        {
            qp.initiator.sends.free_through(number);
        }
        Some(completion.report())
    }

    /// Looks at each hot ring until a message has been received. Returns its completion, or adds it
    /// to the completion queue.
    fn take_from_hot_rings(&mut self, cq: usize) -> Option<WorkCompletion> {
        let is_quiet = self.common.completion_queues.queue(cq).is_quiet();
        for _ in 0..self.common.lists.hot.len() {
            let Self {
                queue_pairs,
                common,
            } = self;
            if common.lists.first_look >= common.lists.hot.len() {
                common.lists.first_look = 0;
            }
            let place = common.lists.first_look;
            let Some(ring) = common.lists.hot.get_mut(place) else {
                break;
            };
            let commit = ring.next.look().filter(|_| !inject!(LateMessage));
            let Some(commit) = commit else {
                // A ring that goes cold is replaced by another, at the same place.
                if self.stays_hot(place) {
                    self.common.lists.first_look += 1;
                }
                continue;
            };
            ring.empty_polls = 0;
            if is_quiet {
                let qp = &mut queue_pairs[ring.qp_index];
                if let Some(completion) = qp.receive_straight(common, place, commit, cq) {
                    return Some(completion);
                }
            }
            if self.receive_batch(place) != ReceiveOutcome::Closed {
                self.common.lists.first_look += 1;
            }
            if !self.common.completion_queues.queue(cq).is_empty() {
                break;
            }
        }
        None
    }

    // ---- what the next polls look at ----

    /// Makes the cold rings hot that the next peer has set bits for: at most one word of them, of
    /// one peer, and of a few more peers if many rings are hot.
    #[inline]
    fn handle_ready_bits(&mut self) {
        let common = &mut self.common;
        let is_simple =
            common.lists.hot.len() < HOT_PER_LOOK && !common.pending.has(Matter::ManyQueuePairs);
        if !is_simple || !common.ready.pass_if_empty() {
            self.handle_more_ready_bits();
        }
    }

    #[inline(never)]
    fn handle_more_ready_bits(&mut self) {
        for _ in 0..1 + self.common.lists.hot.len() / HOT_PER_LOOK {
            if self.common.ready.is_round_over() {
                self.begin_round();
            }
            let State {
                queue_pairs,
                common,
            } = self;
            let Common { ready, lists, .. } = common;
            ready.take_next(common.qp_index_end, |gid, qp_index| {
                make_hot_for(queue_pairs, lists, gid, qp_index);
            });
        }
    }

    /// Begins another round of looks at ready bits, after looks at cold rings.
    #[cold]
    #[inline(never)]
    fn begin_round(&mut self) {
        self.common.ready.begin_round();
        if !self.common.lists.cold.is_empty() {
            self.look_at_cold_rings(hooks::now());
        }
    }

    #[cold]
    #[inline(never)]
    fn mark_attended(&mut self) {
        self.common.pending.remove(Matter::Unattended);
        self.common.notes.sleep.set_attended();
        self.common.tcp.set_watched_by_engine(false);
    }
}
