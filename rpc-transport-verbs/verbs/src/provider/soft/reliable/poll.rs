//! Polls of completion queues.
//!
//! A poll usually looks for one message in a hot ring and, if there is one, copies it into a posted
//! receive and returns its completion: the straight path. Whatever else there may be to do adds a
//! matter to [`Pending`](crate::provider::soft::context::pending::Pending), which sends polls to the
//! general path. Acknowledgements can wait: while nothing else is pending, a few messages in a row take the
//! straight path.

use super::receive::ReceiveOutcome;
use crate::hooks;
use crate::hooks::inject;
use crate::provider::soft::context::lists::RingPlace;
use crate::provider::soft::context::pending::Matter;
use crate::provider::soft::context::state::{Common, Look, State};
use crate::provider::soft::shared::commit::Commit;
use crate::types::{VerbsError, WorkCompletion};

/// Messages that polls take from rings before they look at acknowledgements, and before they turn to
/// the next hot ring: few, so that no ring and no sender waits for long.
const STREAK: u32 = 16;

/// Announcements that a poll takes at once.
const TAKEN_AT_ONCE: usize = 16;

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
        if !self.common.pending.is_empty() {
            return self.look_while_pending();
        }
        if self.has_work_of_cold_rings() {
            return Look::Unclear;
        }
        match &*self.common.lists.hot {
            [] => Look::Nothing,
            [ring] => ring.next.look().map_or(Look::Nothing, Look::Message),
            _ => Look::Unclear,
        }
    }

    /// Does the same while something is pending.
    #[inline]
    fn look_while_pending(&mut self) -> Look {
        let common = &mut self.common;
        if common.pending.is_only(Matter::Awaiting)
            && common.streak < STREAK
            && common.lists.cold.is_empty()
            && let [ring] = &*common.lists.hot
            && let Some(commit) = ring.next.look()
        {
            common.streak += 1;
            return Look::Message(commit);
        }
        Look::Unclear
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
            if let Some(completion) = qp.receive_straight(common, RingPlace::Hot(0), commit, cq) {
                return Ok(Some(completion));
            }
        }
        self.poll_general(cq)
    }

    /// Ends a poll that has more to do than to look at one hot ring.
    #[inline(never)]
    pub(crate) fn poll_general(&mut self, cq: usize) -> Result<Option<WorkCompletion>, VerbsError> {
        // Acknowledgements are not due for long only after a message that was sent from an arena.
        let common = &self.common;
        if (common.pending.is_empty() || common.polls < common.acks_due)
            && let Some(found) = self.poll_straight(cq)
        {
            return Ok(found);
        }
        if self.common.pending.has(Matter::Unattended) {
            self.mark_attended();
        }
        if inject!(ShortPoll) {
            return Ok(None);
        }
        if self.common.pending.has(Matter::Completions)
            && let Some(completion) = self.pop_completion(cq)
        {
            return Ok(Some(completion));
        }
        self.take_announcements();
        let message = if self.common.lists.cold.is_empty() {
            self.take_from_hot_rings(cq)
        } else if self.common.lists.is_turn_of_cold() {
            self.take_from_announced_ring(cq)
                .or_else(|| self.take_from_hot_rings(cq))
        } else {
            self.take_from_hot_rings(cq)
                .or_else(|| self.take_from_announced_ring(cq))
        };
        // Acknowledgements can wait for a few messages. A sleeping context cannot: the ring of this
        // one may be hot now, and its sender would not notify anyone of the next.
        let can_wait =
            !self.common.pending.is_asleep() && !self.common.completion_queues.has_overrun();
        if message.is_some() && self.common.streak < STREAK && can_wait {
            self.common.streak += 1;
            return Ok(message);
        }
        self.common.streak = 0;
        // Otherwise each message has moved it on.
        if !self.common.lists.cold.has_announced() {
            self.common.lists.first_look += 1;
        }
        self.look_beyond_rings();
        if message.is_some() {
            return Ok(message);
        }
        if self.common.pending.has(Matter::Completions)
            && let Some(completion) = self.pop_completion(cq)
        {
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

    /// Polls the announced rings and the only hot one, if nothing else is to be done: no acknowledgements are
    /// awaited, or they are not due yet and nothing but completions depends on them. Returns `None`, and has
    /// received nothing, if the general path has to be taken.
    #[inline(never)]
    fn poll_straight(&mut self, cq: usize) -> Option<Option<WorkCompletion>> {
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
        if !acks_can_wait || !only_acks || common.lists.hot.len() > 1 {
            return None;
        }
        self.take_announcements();
        if inject!(LateMessage) {
            return Some(None);
        }
        if inject!(ShortPoll) {
            return Some(None);
        }
        let Some((ring, qp_index, commit)) = self.common.lists.look_straight() else {
            return Some(None);
        };
        self.receive_straight(ring, qp_index, commit, cq).map(Some)
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
        for _ in 0..self.common.lists.hot.len() {
            let lists = &mut self.common.lists;
            if lists.first_look >= lists.hot.len() {
                lists.first_look = 0;
            }
            let place = lists.first_look;
            let Some(ring) = lists.hot.get(place) else {
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
            let (ring, qp_index) = (RingPlace::Hot(place), ring.qp_index);
            if self.common.completion_queues.queue(cq).is_quiet() {
                let straight = self.receive_straight(ring, qp_index, commit, cq);
                if straight.is_some() {
                    return straight;
                }
            }
            self.common.lists.taken_from_hot(place);
            let outcome = self.receive_batch(place);
            let lists = &mut self.common.lists;
            if outcome != ReceiveOutcome::Closed && lists.first_look == place {
                lists.first_look += 1;
            }
            if !self.common.completion_queues.queue(cq).is_empty() {
                return None;
            }
        }
        self.common.lists.found_none();
        None
    }

    // ---- what the next polls look at ----

    /// Takes what the next peer has announced, if there are cold rings, and now and then looks at some of these.
    #[inline]
    fn take_announcements(&mut self) {
        if !inject!(LateBell) && self.has_work_of_cold_rings() {
            self.take_more_announcements();
        }
    }

    #[inline(never)]
    fn take_more_announcements(&mut self) {
        let common = &mut self.common;
        if common.lists.cold.is_look_due(common.polls) {
            common.lists.cold.look(common.polls, hooks::now());
        }
        let Common { ready, lists, .. } = common;
        ready.take_next(TAKEN_AT_ONCE, |sender, found| {
            lists.announced(sender, found);
        });
    }

    /// Takes a message of the ring that has been announced for longest.
    fn take_from_announced_ring(&mut self, cq: usize) -> Option<WorkCompletion> {
        let queue = self.common.completion_queues.queue(cq);
        let (is_quiet, is_empty) = (queue.is_quiet(), queue.is_empty());
        if !is_empty {
            // Hot rings have just filled it.
            return None;
        }
        let (ring, qp_index, commit) = self.common.lists.look_at_announced()?;
        if is_quiet {
            let straight = self.receive_straight(ring, qp_index, commit, cq);
            if straight.is_some() {
                return straight;
            }
        }
        // The general way is for hot rings.
        let (qp, common) = self.split(qp_index);
        match qp.link.rings() {
            Some(rings) => common.lists.make_hot(rings, qp_index),
            None => common.lists.remove_ring(qp_index),
        }
        None
    }

    #[cold]
    #[inline(never)]
    fn mark_attended(&mut self) {
        self.common.pending.remove(Matter::Unattended);
        self.common.notes.sleep.set_attended();
        self.common.tcp.set_watched_by_engine(false);
    }

    /// Returns true if a poll has to look for messages in cold rings. Moves on to the next peer otherwise.
    #[inline(always)]
    fn has_work_of_cold_rings(&mut self) -> bool {
        let Common {
            polls,
            lists,
            ready,
            ..
        } = &mut self.common;
        !lists.cold.is_empty()
            && (lists.cold.is_look_due(*polls)
                || lists.cold.has_announced()
                || !ready.pass_if_empty())
    }

    /// Receives a message from a ring, where there are others, if everything about it is usual. Returns its
    /// completion; see [`SoftQueuePair::receive_straight`].
    ///
    /// [`SoftQueuePair::receive_straight`]: crate::provider::soft::context::queue_pair::SoftQueuePair::receive_straight
    #[inline]
    fn receive_straight(
        &mut self,
        ring: RingPlace,
        qp_index: u32,
        commit: Commit,
        cq: usize,
    ) -> Option<WorkCompletion> {
        let (qp, common) = self.split(qp_index);
        let completion = qp
            .receive_straight(common, ring, commit, cq)
            .or_else(|| qp.receive_straight_from_arena(common, ring, commit, cq))?;
        if common.lists.taken(ring)
            && let Some(rings) = qp.link.rings()
        {
            common.lists.make_hot(rings, qp_index);
        }
        Some(completion)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::STREAK;
    use crate::types::{Access, Psn, RemoteEndpoint, RtrAttributes, RtsAttributes};
    use crate::{Context, QueuePairConfig, SendRequest, WorkKind};

    #[test]
    fn a_send_completes_while_each_poll_finds_a_message() {
        const MESSAGES: usize = 24;
        let context = Context::open("soft").unwrap();
        let domain = context.alloc_pd().unwrap();
        let mut cq = context.create_cq(64).unwrap();
        let mut config = QueuePairConfig::new(&cq, &cq);
        (config.max_send_wr, config.max_recv_wr) = (MESSAGES, MESSAGES);
        let mut qp = domain.create_qp(config).unwrap();
        let psn = Psn::new(1);
        let itself = RemoteEndpoint {
            gid: context.query_gid(1, 0).unwrap(),
            lid: 0,
            qp_num: qp.qp_num(),
            psn,
        };
        qp.to_init(1, Access::NONE).unwrap();
        qp.to_rtr(RtrAttributes::new(itself)).unwrap();
        qp.to_rts(RtsAttributes::new(psn)).unwrap();
        let region = domain.register(2 * MESSAGES * 64, Access::LOCAL_WRITE);
        let mut slots = region.unwrap().into_slots(64).unwrap();
        qp.post_recv(&mut slots, MESSAGES).unwrap();
        let mut sends: Vec<_> = slots
            .drain(..MESSAGES)
            .map(|slot| SendRequest::new(slot, 8))
            .collect();
        sends[0].signaled = true;
        qp.post_send(&mut sends, &mut |_| {}).unwrap();
        let is_send = |completion: &crate::WorkCompletion| completion.wr_id().is(WorkKind::Send);
        // The device's thread may still be connecting the queue pair.
        let (start, mut polled) = (Instant::now(), Vec::new());
        while polled.len() <= MESSAGES && start.elapsed() < Duration::from_secs(20) {
            polled.extend(cq.poll_one().unwrap());
        }
        assert_eq!(polled.len(), MESSAGES + 1);
        let messages_before = polled.iter().position(is_send).unwrap();
        assert!(messages_before <= STREAK as usize + 1, "{messages_before}");
    }
}
