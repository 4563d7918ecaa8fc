//! What comes to a context from outside of its polls: transitions of its queue pairs, their links, which
//! peers or the layer above bring, and the engine's ticks.

use std::time::{Duration, Instant};

use super::connect::Ready;
use crate::hooks;
use crate::provider::soft::context::check::check_queue_pair;
use crate::provider::soft::context::link::{Link, NewRing, NewTcpLink, Tcp};
use crate::provider::soft::context::link_stream::LinkStream;
use crate::provider::soft::context::pending::Matter;
use crate::provider::soft::context::ready_peers::ReadyPeer;
use crate::provider::soft::context::state::State;
use crate::provider::soft::context::tcp_link::TcpLink;
use crate::types::{CompletionStatus, Gid, ModifyError, QpAttributes, QpNum, QpState};

/// Maximum number of batches that the engine does for a context when a peer wakes it, before it
/// turns to other contexts.
const PEER_WAKE_BATCHES: usize = 64;

/// The most time that counts between two looks at the timers. While this process was stopped, answers
/// may have come, which are read only afterwards.
const MAX_TICK: Duration = Duration::from_secs(1);

impl State {
    // ---- queue pairs ----

    /// Makes a transition whose attributes were checked, if the queue pair is still in the state `from`.
    /// INIT→RTR needs `ready`.
    pub(crate) fn modify(
        &mut self,
        qp_index: u32,
        (from, to): (QpState, QpState),
        attributes: &QpAttributes,
        ready: Option<Ready>,
    ) -> Result<(), ModifyError> {
        self.write_posted(qp_index);
        let (qp, common) = self.split(qp_index);
        let now = qp.core.state;
        let changed = if now == from || matches!(to, QpState::Reset | QpState::Error) {
            qp.modify(common, to, attributes, ready)
        } else {
            // It has failed since the caller looked.
            Err(ModifyError::Transition { from: now, to })
        };
        qp.resume(common);
        common.memory.publish_queue_pair(&qp.core, &qp.link);
        // The new ring may be hot.
        self.finish_turn();
        changed
    }

    /// Writes what was posted before the queue pair changes or goes, and rings the doorbell.
    fn write_posted(&mut self, qp_index: u32) {
        let (qp, common) = self.split(qp_index);
        match qp.link {
            Link::Tcp(_) => qp.transmit(common),
            Link::Rings(_) | Link::Down => qp.ring_doorbell(common),
        }
    }

    /// Destroys a queue pair.
    pub(crate) fn destroy(&mut self, qp_index: u32) {
        self.write_posted(qp_index);
        let (qp, common) = self.split(qp_index);
        qp.disconnect(common);
        self.queue_pairs.remove(qp_index);
        self.finish_turn();
    }

    /// Handles a ring that arrived for a queue pair.
    pub(crate) fn attach(&mut self, qp_index: u32, number: u32, ring: NewRing) {
        // A ring of a previous connection may arrive late.
        if let Some((qp, common)) = self.find(qp_index, QpNum(number))
            && !ring.sender.is_receiver_closed()
        {
            if qp.attach(ring) {
                qp.resume(common);
            }
            self.finish_turn();
        }
    }

    /// Handles a TCP connection that arrived for a queue pair. Returns false if the queue pair is
    /// gone, and the connection is closed.
    pub(crate) fn attach_tcp(&mut self, qp_index: u32, number: u32, link: NewTcpLink) -> bool {
        let Some((qp, common)) = self.find(qp_index, QpNum(number)) else {
            return false;
        };
        qp.attach_tcp(common, link);
        qp.resume(common);
        self.finish_turn();
        true
    }

    /// Hands a queue pair the connection that its peer has dialed for it, as both had agreed: nothing
    /// was sent, so the peer expects this side's first request. Returns false if the queue pair is
    /// gone or has a connection.
    pub(crate) fn accept_agreed_link(
        &mut self,
        qp_index: u32,
        number: QpNum,
        stream: LinkStream,
    ) -> bool {
        let Some((qp, common)) = self.find(qp_index, number) else {
            return false;
        };
        let waits = matches!(
            qp.link,
            Link::Tcp(Tcp {
                connection: None,
                ..
            })
        );
        if !waits || !qp.core.receives_now() {
            return false;
        }
        let peer_psn = qp.core.attributes.sq_psn.unwrap_or_default().get();
        qp.accept_link(common, stream, peer_psn);
        self.begin_link(qp_index);
        true
    }

    /// Hands a queue pair the connection that this side has dialed, whose answer has not been read.
    pub(crate) fn adopt_agreed_link(&mut self, qp_index: u32, stream: LinkStream) {
        let (qp, common) = self.split(qp_index);
        // It may have failed since the connection was dialed.
        if !qp.core.receives_now() {
            return;
        }
        let expected_psn = qp.core.attributes.rq_psn.unwrap_or_default().get();
        let link = TcpLink::new(stream, None, expected_psn);
        qp.adopt_link(common, Box::new(link));
        self.begin_link(qp_index);
    }

    /// Writes to a new link what waits, and reads what its stream holds: nothing else tells of it.
    fn begin_link(&mut self, qp_index: u32) {
        let (qp, common) = self.split(qp_index);
        qp.resume(common);
        let link = qp.link.tcp();
        if link.is_some_and(|link| !link.has_ended() && link.stream.holds_unread()) {
            qp.read_link(common);
        }
        self.finish_turn();
    }

    /// Handles the refusal of this side's ring by the process of the remote queue pair: it never
    /// sends, so the queue pair fails.
    pub(crate) fn attach_refused(&mut self, qp_index: u32, number: u32, remote: (Gid, u32)) {
        // The refusal of a previous connection may arrive late.
        if let Some((qp, common)) = self.find(qp_index, QpNum(number)) {
            qp.attach_refused(common, remote);
            self.finish_turn();
        }
    }

    // ---- the engine ----

    /// Looks at the blocked rings, because an arena has arrived, or has polls do so.
    pub(crate) fn arena_arrived(&mut self) {
        self.common.lists.unblock();
        self.handle_unattended();
        self.finish_turn();
    }

    /// Adds the page of a peer. Returns the one that it replaces.
    pub(crate) fn add_ready_peer(&mut self, peer: ReadyPeer) -> Option<ReadyPeer> {
        let old = self.forget_ready_peer(&peer.gid);
        self.common.ready.add(peer);
        old
    }

    /// Removes the announcements of a peer that has gone, and looks at its rings: its last messages may lie in
    /// cold ones, announced or not.
    pub(crate) fn forget_ready_peer(&mut self, gid: &Gid) -> Option<ReadyPeer> {
        let gone = self.common.ready.remove(gid)?;
        self.common.lists.cold.owe(gid);
        self.receive_announced();
        self.finish_turn();
        Some(gone)
    }

    /// Handles peers' requests for a context that no thread polls, until nothing is left for the
    /// moment. While this runs, peers need not wake the engine.
    pub(crate) fn handle_unattended(&mut self) {
        if !self.common.pending.has(Matter::Unattended) {
            return;
        }
        self.common.notes.sleep.set_attended();
        for _ in 0..PEER_WAKE_BATCHES {
            if self.progress() == 0 {
                break;
            }
        }
        self.common.notes.sleep.set_unattended();
        self.progress();
        // A thread that sleeps on a completion channel waits for the links itself.
        if !self.common.pending.is_asleep() {
            self.common.tcp.set_watched_by_engine(true);
        }
    }

    /// Does the work that the application has not done since the last call, and expires timers.
    /// Returns `true` if there may be more work.
    pub(crate) fn progress_while_idle(&mut self, now: Instant) -> bool {
        let common = &mut self.common;
        let is_polled = common.polls != common.polls_at_tick;
        common.polls_at_tick = common.polls;
        if !is_polled && !common.pending.has(Matter::Unattended) {
            common.pending.add(Matter::Unattended);
            // This precedes the check of the rings below.
            common.notes.sleep.set_unattended();
            if !common.pending.is_asleep() {
                self.end_silence();
            }
        }
        let common = &mut self.common;
        // A thread that sleeps on a completion channel waits for the links itself. The engine is told
        // once, so it is asked for at each tick: it may have found the context's lock taken.
        if !is_polled && common.pending.has(Matter::TcpLinks) && !common.pending.is_asleep() {
            common.tcp.set_watched_by_engine(true);
        }
        let received = if is_polled {
            0
        } else {
            let polls = self.common.polls;
            self.common.lists.cold.look(polls, now);
            self.progress()
        };
        self.expire_timers(now);
        self.settle_overrun();
        received > 0
    }

    /// Returns true if the context needs no work until it is woken or used.
    pub(crate) fn is_idle(&self) -> bool {
        let common = &self.common;
        (common.pending.is_asleep() || self.queue_pairs.is_empty())
            && common.lists.hot.is_empty()
            && !common.lists.cold.has_announced()
            && common.lists.awaiting.is_empty()
            && common.lists.unacked.is_empty()
            && common.tcp.acks_owed.is_empty()
            && common.tcp.acks_due.is_empty()
            && common.tcp.deferred.is_empty()
            && !common.tcp.has_lingering()
    }

    /// Checks all queue pairs with unacknowledged sends, signaled or not; called by the engine.
    pub(crate) fn expire_timers(&mut self, now: Instant) {
        self.send_owed_acks();
        if self.common.tcp.has_lingering() {
            self.common.tcp.end_lingering(now);
        }
        let Self {
            queue_pairs,
            common,
        } = self;
        let since_last = common.timers_expired_at.replace(now);
        let step = since_last.map_or(Duration::ZERO, |last| {
            now.saturating_duration_since(last).min(MAX_TICK)
        });
        let mut index = 0;
        while let Some(&qp_index) = common.lists.unacked.as_slice().get(index) {
            let Some(qp) = queue_pairs.at(qp_index) else {
                common.lists.unacked.discard_at(index);
                continue;
            };
            qp.process_acks(common, hooks::now);
            check_queue_pair(qp);
            if common.lists.unacked.as_slice().get(index) != Some(&qp_index) {
                continue;
            }
            let instantly = common.options.detect_death_at_once;
            if qp.initiator.sends.acked == qp.initiator.sends.posted {
                common.lists.unacked.remove_at(index, &mut qp.listed);
            } else if qp
                .initiator
                .has_retried_enough(&qp.core, &qp.link, (now, step), instantly)
            {
                qp.fail(common, Some(CompletionStatus::RetryExceeded));
            } else {
                index += 1;
            }
        }
    }
}
