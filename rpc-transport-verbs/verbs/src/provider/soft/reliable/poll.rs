//! Polls of completion queues.
//!
//! A poll usually looks for one message in a hot ring and, if there is one, copies it into a posted
//! receive and reports its completion: the straight path. Whatever else there may be to do adds a
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
use crate::types::WorkCompletion;

/// Messages that polls take from rings before they look at acknowledgements, and before they turn to
/// the next hot ring: few, so that no ring and no sender waits for long.
const STREAK: u32 = 16;

/// Announcements that a poll takes at once.
const TAKEN_AT_ONCE: usize = 16;

/// The completion queue overran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overrun;

impl State {
    /// Polls a completion queue, as `poll_cq` does, for at most `max` completions.
    pub(crate) fn poll(
        &mut self,
        cq: usize,
        out: &mut Vec<WorkCompletion>,
        max: usize,
    ) -> Result<usize, Overrun> {
        if max == 0 {
            self.progress();
        }
        let mut count = 0;
        while count < max {
            let mut completion = WorkCompletion::EMPTY;
            match self.poll_one(cq, &mut completion) {
                Ok(true) => out.push(completion),
                Err(overrun) if count == 0 => return Err(overrun),
                Ok(false) | Err(_) => break,
            }
            count += 1;
        }
        Ok(count)
    }

    /// Polls a completion queue for one completion. Returns true if there is one, which is then in
    /// `out`, as with `ibv_poll_cq(3)`: a completion is too large to return it in registers.
    fn poll_one(&mut self, cq: usize, out: &mut WorkCompletion) -> Result<bool, Overrun> {
        match self.look() {
            Look::Nothing => Ok(false),
            Look::Message(commit) => self.take_message(cq, commit, out),
            Look::Unclear => self.poll_general(cq, out),
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
    // Never inlined, so that a poll that finds nothing does not prepare for it.
    #[inline(never)]
    pub(crate) fn take_message(
        &mut self,
        cq: usize,
        commit: Commit,
        out: &mut WorkCompletion,
    ) -> Result<bool, Overrun> {
        let Self {
            queue_pairs,
            common,
        } = self;
        if inject!(LateMessage) {
            return Ok(false);
        }
        if inject!(ShortPoll) {
            return Ok(false);
        }
        if let Some(ring) = common.lists.hot.first() {
            let qp = &mut queue_pairs[ring.qp_index];
            if let Some(completion) = qp.receive_straight(common, RingPlace::Hot(0), commit, cq) {
                *out = completion;
                return Ok(true);
            }
        }
        self.poll_general(cq, out)
    }

    /// Ends a poll that has more to do than to look at one hot ring.
    #[inline(never)]
    pub(crate) fn poll_general(
        &mut self,
        cq: usize,
        out: &mut WorkCompletion,
    ) -> Result<bool, Overrun> {
        // `acks_due` is ahead only after a message that was sent from an arena: until then, polls need
        // not look at acknowledgements.
        let common = &self.common;
        if (common.pending.is_empty() || common.polls < common.acks_due)
            && let Some(found) = self.poll_straight(cq, out)
        {
            return Ok(found);
        }
        if self.common.pending.has(Matter::Unattended) {
            self.mark_attended();
        }
        if inject!(ShortPoll) {
            return Ok(false);
        }
        if self.common.pending.has(Matter::Completions) && self.pop_completion(cq, out) {
            return Ok(true);
        }
        self.take_announcements();
        let lists = &mut self.common.lists;
        let has_cold = !lists.cold.is_empty();
        let is_turn_of_cold = has_cold && lists.is_turn_of_cold();
        let has_message = (is_turn_of_cold && self.take_from_announced_ring(cq, out))
            || self.take_from_hot_rings(cq, out)
            || (has_cold && !is_turn_of_cold && self.take_from_announced_ring(cq, out));
        // Acknowledgements can wait for a few messages. A sleeping context cannot: the ring of this
        // one may be hot now, and its sender would not notify anyone of the next.
        let can_wait =
            !self.common.pending.is_asleep() && !self.common.completion_queues.has_overrun();
        if has_message && self.common.streak < STREAK && can_wait {
            self.common.streak += 1;
            return Ok(true);
        }
        self.common.streak = 0;
        // With announced rings, each message that is taken moves `first_look` on.
        if !self.common.lists.cold.has_announced() {
            self.common.lists.first_look += 1;
        }
        self.look_beyond_rings();
        if has_message {
            return Ok(true);
        }
        if self.common.pending.has(Matter::Completions) && self.pop_completion(cq, out) {
            return Ok(true);
        }
        match self.common.completion_queues.queue(cq).is_overrun() {
            true => Err(Overrun),
            false => Ok(false),
        }
    }

    /// Polls the announced rings and the only hot one, if nothing else is to be done: no acknowledgements are
    /// awaited, or they are not due yet and nothing but completions depends on them. Returns `None`, and has
    /// received nothing, if the general path has to be taken.
    #[inline(never)]
    fn poll_straight(&mut self, cq: usize, out: &mut WorkCompletion) -> Option<bool> {
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
            return Some(false);
        }
        if inject!(ShortPoll) {
            return Some(false);
        }
        let Some((ring, qp_index, commit)) = self.common.lists.look_straight() else {
            return Some(false);
        };
        let is_received = self.receive_straight(ring, qp_index, commit, cq, out);
        is_received.then_some(true)
    }

    /// Takes the oldest completion out of a queue. Returns false if the queue is empty.
    fn pop_completion(&mut self, cq: usize, out: &mut WorkCompletion) -> bool {
        let Self {
            queue_pairs,
            common,
        } = self;
        let completion = common.completion_queues.pop(cq);
        if common.completion_queues.are_quiet() {
            common.pending.remove(Matter::Completions);
        }
        let Some(completion) = completion else {
            return false;
        };
        if let Some((qp_index, number)) = completion.frees
            // A queue pair that has been destroyed since has no entry to free.
            && let Some(qp) = queue_pairs.find(qp_index, completion.qp_num)
        {
            qp.initiator.sends.free_through(number);
        }
        *out = completion.report();
        true
    }

    /// Looks at each hot ring until a message has been received. Returns true if its completion is
    /// in `out`; otherwise, it has been added to the completion queue.
    fn take_from_hot_rings(&mut self, cq: usize, out: &mut WorkCompletion) -> bool {
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
            if self.common.completion_queues.queue(cq).is_quiet()
                && self.receive_straight(ring, qp_index, commit, cq, out)
            {
                return true;
            }
            let outcome = self.receive_batch(ring, qp_index);
            let lists = &mut self.common.lists;
            lists.end_hot_turn();
            // Another ring has the place of one that is removed, or goes cold.
            let keeps_place = match outcome {
                ReceiveOutcome::Received(_) => {
                    lists.arrived(place);
                    true
                }
                // A message that waits for its sender's retry: it must not age the other rings.
                ReceiveOutcome::Empty => self.stays_hot(place),
                ReceiveOutcome::Blocked => {
                    self.block_hot(place);
                    false
                }
                ReceiveOutcome::Closed => false,
            };
            if keeps_place {
                self.common.lists.first_look = place + 1;
            }
            if !self.common.completion_queues.queue(cq).is_empty() {
                return false;
            }
        }
        self.common.lists.found_none();
        false
    }

    // ---- what the next polls look at ----

    /// Takes what the next peer has announced, if there are cold rings, and now and then looks at some of these.
    #[inline]
    fn take_announcements(&mut self) {
        if !inject!(LateAnnouncement) && self.has_work_of_cold_rings() {
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

    /// Takes a message of the ring that has been announced for longest. Returns true if its
    /// completion is in `out`.
    fn take_from_announced_ring(&mut self, cq: usize, out: &mut WorkCompletion) -> bool {
        let queue = self.common.completion_queues.queue(cq);
        let (is_quiet, is_empty) = (queue.is_quiet(), queue.is_empty());
        if !is_empty {
            // Hot rings have just filled it.
            return false;
        }
        let Some((ring, qp_index, commit)) = self.common.lists.look_at_announced() else {
            return false;
        };
        if is_quiet && self.receive_straight(ring, qp_index, commit, cq, out) {
            return true;
        }
        self.receive_announced_ring(ring, qp_index);
        false
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

    /// Receives a message from a ring, where there are others, if everything about it is usual. Returns
    /// true if its completion is in `out`; see [`SoftQueuePair::receive_straight`].
    ///
    /// [`SoftQueuePair::receive_straight`]: crate::provider::soft::context::queue_pair::SoftQueuePair::receive_straight
    #[inline]
    fn receive_straight(
        &mut self,
        ring: RingPlace,
        qp_index: u32,
        commit: Commit,
        cq: usize,
        out: &mut WorkCompletion,
    ) -> bool {
        let (qp, common) = self.split(qp_index);
        if let Some(completion) = qp.receive_straight(common, ring, commit, cq) {
            *out = completion;
        } else if let Some(completion) = qp.receive_straight_from_arena(common, ring, commit, cq) {
            *out = completion;
        } else {
            return false;
        }
        common.lists.taken_from(ring, qp_index, &qp.link);
        true
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
