//! Sends: puts requests into the send queue, and writes to the link what may be written.
//!
//! A message of one element goes straight into the peer's ring if nothing has to wait. All other requests
//! wait in the send queue until [`transmit`](SoftQueuePair::transmit) writes them, which is mostly before
//! the post returns.
//!
//! The [`initiator`](crate::provider::soft::context::initiator) says whether a request may begin. The
//! carriers, [`rings`](crate::provider::soft::rings) and [`tcp`](crate::provider::soft::tcp), move its
//! bytes.

use std::ptr::NonNull;

use rustix::io::Errno;

use crate::hooks::{accepted, inject};
use crate::provider::soft::context::check::check_queue_pair;
use crate::provider::soft::context::initiator::{Begin, Next};
use crate::provider::soft::context::link::{Link, Rings, Unannounced};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::send_queue::Unwritten;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::context::tcp_link::TcpLink;
use crate::provider::soft::rings::put::{POLLS_BEFORE_ACK, Put};
use crate::provider::soft::shared::ring::{RingSender, in_buffer};
use crate::provider::soft::tcp::batch::{Batch, MAX_MESSAGES};
use crate::provider::soft::tcp::write::{MOST_WRITTEN, Stop};
use crate::provider::work::{SendWork, Sge, Work};
use crate::types::{
    AsyncEvent, CompletionStatus, PostError, QpState, ReadExecution, RemoteOperation, WrId,
};

impl SoftQueuePair {
    // ---- posting ----

    /// Posts an inline send of `bytes` and writes it at once, if nothing has to wait. Returns
    /// `false` and does nothing otherwise. `ring_doorbell` notifies the receiver.
    #[inline]
    pub(crate) fn try_post_inline(
        &mut self,
        common: &mut Common,
        wr_id: WrId,
        bytes: &[u8],
        signaled: bool,
    ) -> bool {
        let Link::Rings(Rings {
            sender: Some(sender),
            unannounced,
            ..
        }) = &mut self.link
        else {
            return false;
        };
        if !self.initiator.may_send(&self.core)
            || !self.initiator.sends.is_written()
            || !self.initiator.sends.make_room()
            || !sender.is_known_to_have_room(in_buffer(0, bytes.len()))
            || inject!(NoRoom)
        {
            return false;
        }
        sender.send(NonNull::from(bytes).cast(), bytes.len(), 0);
        let signaled = signaled || self.core.sq_sig_all;
        self.initiator.sends.add(wr_id, signaled);
        self.initiator.sends.started += 1;
        *unannounced = Unannounced::Messages;
        common.counters.sends += 1;
        if signaled || !common.lists.unacked.contains(&self.listed) {
            self.watch_inline(common);
        }
        check_queue_pair(self);
        true
    }

    /// Posts an inline send that waits for room, for earlier requests, or over TCP for the doorbell.
    #[cold]
    #[inline(never)]
    pub(crate) fn post_inline_in_order(
        &mut self,
        common: &mut Common,
        wr_id: WrId,
        bytes: &[u8],
        signaled: bool,
    ) -> Result<(), PostError> {
        self.initiator
            .post_inline(&self.core, &self.link, wr_id, bytes, signaled)?;
        match &mut self.link {
            // With all that is posted until the doorbell, it costs one system call.
            Link::Tcp(tcp) => {
                tcp.is_doorbell_due = true;
                self.watch_acks(common);
            }
            Link::Rings(_) | Link::Down => self.after_post(common),
        }
        Ok(())
    }

    /// Posts a list of sends and writes as many as there is room for, with one doorbell.
    #[inline]
    pub(crate) fn post_send(
        &mut self,
        common: &mut Common,
        list: &[SendWork],
    ) -> Result<(), PostError> {
        self.core.check_post(list.len())?;
        let mut taken = accepted!(Sends, list.len(), Some(self.core.number.0));
        for (index, work) in list[..taken].iter().enumerate() {
            if !self.initiator.sends.make_room() {
                taken = index;
                break;
            }
            self.initiator
                .sends
                .add(work.wr_id, work.signaled || self.core.sq_sig_all);
            if self.initiator.sends.is_written() && self.try_write(common, work) {
                self.initiator.sends.started += 1;
            } else {
                // SAFETY: the call that posts the request is running, so the bytes of an inline
                // request are readable.
                unsafe { self.initiator.push(work, &self.link) };
            }
        }
        self.after_post(common);
        self.initiator.all_posted(taken, list.len())
    }

    /// Posts a list of requests of any kind.
    pub(crate) fn post(
        &mut self,
        common: &mut Common,
        list: &[Work],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        self.core.check_post(list.len())?;
        let taken = self.initiator.post(&self.core, &self.link, list, elements);
        self.after_post(common);
        self.initiator.all_posted(taken, list.len())
    }

    /// Does what follows the posting of requests: writes those that had to wait, or flushes them.
    #[inline]
    fn after_post(&mut self, common: &mut Common) {
        if self.core.state == QpState::Error {
            self.flush_sends(common);
        } else if self.initiator.sends.started == self.initiator.sends.posted {
            self.watch_acks(common);
            self.ring_doorbell(common);
        } else {
            self.transmit(common);
        }
        check_queue_pair(self);
    }

    // ---- writing ----

    /// Notifies the receiver of the messages written since the last doorbell, unless it polls. Over
    /// TCP, writes those that were posted inline.
    #[inline]
    pub(crate) fn ring_doorbell(&mut self, common: &mut Common) {
        // Rings come first: to ask for them takes two instructions, and a `match` takes ten.
        if let Some(rings) = self.link.rings_mut() {
            rings.ring_doorbell(&mut common.counters);
        } else if matches!(&self.link, Link::Tcp(tcp) if tcp.is_doorbell_due) {
            self.transmit_or_defer(common);
        }
    }

    /// Writes as many of the waiting requests as there is room for, and notifies the receiver.
    #[cold]
    #[inline(never)]
    pub(crate) fn transmit(&mut self, common: &mut Common) {
        match self.link {
            Link::Tcp(_) => self.write_link(common, false),
            Link::Rings(_) => self.write_ring(common),
            Link::Down => {}
        }
        self.watch_acks(common);
        check_queue_pair(self);
    }

    /// Adds the queue pair to the lists of those whose acknowledgements are awaited by polls, or
    /// checked by the engine.
    #[inline]
    fn watch_acks(&mut self, common: &mut Common) {
        let lists = &mut common.lists;
        if !lists.awaiting.contains(&self.listed) && self.initiator.awaits_polls(&self.link) {
            lists.await_progress(&mut common.pending, &mut self.listed, self.core.index);
        }
        let is_watched = lists.unacked.contains(&self.listed);
        if !is_watched && self.initiator.sends.acked < self.initiator.sends.posted {
            lists.unacked.insert(&mut self.listed, self.core.index);
        }
    }

    /// Does the same out of the way of an inline post, which mostly needs none of it.
    #[cold]
    #[inline(never)]
    fn watch_inline(&mut self, common: &mut Common) {
        self.watch_acks(common);
    }

    fn write_ring(&mut self, common: &mut Common) {
        while self.initiator.sends.local_failure.is_none()
            && let Some(next) = self.initiator.sends.next_unwritten()
        {
            let is_written = match next {
                Unwritten::General => self.issue(common),
                Unwritten::Inline { bytes, solicited } => match &mut self.link {
                    Link::Rings(rings) if self.initiator.may_send(&self.core) => {
                        let is_written = rings.put_copy(bytes, *solicited);
                        common.counters.sends += u64::from(is_written);
                        is_written
                    }
                    _ => false,
                },
                Unwritten::Plain(work) => {
                    let work = *work;
                    self.try_write(common, &work)
                }
            };
            if !is_written {
                break;
            }
            self.initiator.sends.set_written();
            self.complete_acknowledged(common);
        }
        self.ring_doorbell(common);
    }

    /// Writes a message into the ring if it may be written now. Returns `false` if it has to wait, or if
    /// it failed: then `local_failure` is set.
    #[inline]
    fn try_write(&mut self, common: &mut Common, work: &SendWork) -> bool {
        if !self.initiator.may_send(&self.core) {
            return false;
        }
        let Link::Rings(rings) = &mut self.link else {
            return false;
        };
        match rings.put_plain(work, &self.core, &common.memory) {
            Ok(Put::NoRoom) => return false,
            Ok(Put::InRing) => {}
            Ok(Put::InArena) => {
                if !common.lists.awaiting.contains(&self.listed) {
                    common.acks_due = common.polls + POLLS_BEFORE_ACK;
                }
            }
            Err(status) => {
                // The request completes after all earlier ones: see `process_acks`.
                self.initiator.sends.local_failure = Some(status);
                return false;
            }
        }
        common.counters.sends += 1;
        true
    }

    /// Begins the next request in the ring, which is not a plain message, or goes on with it. Returns
    /// `false` if it has to wait, or if it failed: then `local_failure` is set.
    fn issue(&mut self, common: &mut Common) -> bool {
        let Some(unit) = self.link.sender().map(RingSender::next) else {
            return false;
        };
        let next = Next {
            number: self.initiator.sends.started,
            unit,
            reads: self.initiator.outstanding.reads,
            is_first: true,
        };
        let begin = self.initiator.begin(&self.core, &mut common.memory, next);
        let issued = begin.and_then(|begin| match begin {
            Begin::Wait => Ok(false),
            Begin::Done => Ok(true),
            Begin::Send {
                operation,
                outstanding,
            } => self.put(common, next, operation, outstanding),
        });
        issued.unwrap_or_else(|status| {
            // The request completes after all earlier ones: see `process_acks`.
            self.initiator.sends.local_failure = Some(status);
            false
        })
    }

    /// Writes a request that may begin into the ring, as far as there is room. Returns true if that is
    /// all of it. An error is the status that it completes with.
    fn put(
        &mut self,
        common: &mut Common,
        Next { number, unit, .. }: Next,
        operation: RemoteOperation,
        outstanding: u8,
    ) -> Result<bool, CompletionStatus> {
        let (Link::Rings(rings), Some(send)) =
            (&mut self.link, self.initiator.sends.general_at(number))
        else {
            return Ok(false);
        };
        if let RemoteOperation::Read(from) = operation {
            let may = common.options.read_execution != ReadExecution::ByTarget
                && self.initiator.may_overtake(send);
            if may && rings.try_read_in_place(send, from, outstanding, &self.core, &common.memory) {
                common.counters.reads_in_place += 1;
                self.initiator.executed_here(number, unit);
                return Ok(true);
            }
            let requested = rings.request_read(send, from, outstanding);
            if requested.slots.is_empty() {
                return Ok(false);
            }
            common.counters.sends += requested.slots.end - requested.slots.start;
            self.initiator
                .begun(number, requested.slots, requested.bytes);
            return Ok(requested.is_all);
        }
        let (core, memory) = (&self.core, &common.memory);
        let Some(slot) = rings.put_request(send, operation, outstanding, core, memory)? else {
            return Ok(false);
        };
        common.counters.sends += 1;
        self.initiator.begun(number, slot..slot + 1, 0);
        Ok(true)
    }

    /// Writes what was posted inline over TCP. If the application has completions to poll first, which may
    /// lead to more requests, the next look at the links does: one system call writes all of them.
    #[cold]
    fn transmit_or_defer(&mut self, common: &mut Common) {
        let unsent = self.initiator.sends.posted - self.initiator.sends.started;
        let has_completions = !common.completion_queues.queue(self.core.recv_cq).is_empty();
        if unsent < MAX_MESSAGES as u64
            && has_completions
            && let Link::Tcp(tcp) = &mut self.link
            && let Some(link) = &mut tcp.connection
            && link.is_open()
        {
            tcp.is_doorbell_due = false;
            common.tcp.defer(link);
        } else {
            self.transmit(common);
        }
    }

    /// Writes to the TCP connection as much as there is and as the socket takes. An acknowledgement is
    /// written with every message; alone only if it is due.
    pub(crate) fn write_link(&mut self, common: &mut Common, is_ack_due: bool) {
        let Link::Tcp(tcp) = &mut self.link else {
            return;
        };
        tcp.is_doorbell_due = false;
        let mut left = MOST_WRITTEN;
        loop {
            let Some(link) = self.link.tcp() else { return };
            let has_requests = self.initiator.sends.started < self.initiator.sends.posted;
            let owes_ack = is_ack_due && link.owes_ack();
            if !link.takes_more() || !(has_requests || link.has_unsent() || owes_ack) {
                return;
            }
            let mut batch = Batch::new();
            if link.has_unsent() {
                let next = self.initiator.sends.next_general();
                let (core, memory) = (&self.core, &common.memory);
                if let Err(stop) = link.gather(&mut batch, core, memory, next, has_requests) {
                    return self.stop_writing(common, stop);
                }
            }
            self.gather_requests(common, &mut batch);
            let Some(link) = self.link.tcp_mut() else {
                return;
            };
            if batch.is_empty() && owes_ack {
                link.add_ack(&mut batch);
            }
            if batch.is_empty() {
                return;
            }
            common.counters.doorbells += 1;
            // SAFETY: `gather` and `gather_requests` have found every payload in registered memory, which
            // stays registered while the context's lock is held, or in memory of a request that has not
            // completed or of a response, which this queue pair holds.
            match unsafe { link.write(&batch) } {
                Ok(written) => {
                    common.tcp.moved += written.bytes;
                    left = left.saturating_sub(written.bytes);
                    // With nothing left, other links have their turn: the epoll set tells at once
                    // that this one can be written to.
                    let is_over = written.is_full || left == 0;
                    common.counters.sends += written.whole;
                    self.initiator
                        .sent(written.first, written.begun, written.whole);
                    // A request that found no receive is sent again, once none is being written.
                    if let Some(unit) = link.take_rewind() {
                        self.initiator.go_back(unit);
                    }
                    if !is_over {
                        continue;
                    }
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                // A part of a payload is not there, such as the end of a file that was cut short; or
                // the record layer seals nothing more.
                Err(Errno::FAULT | Errno::BADMSG) => return self.end_link(common),
                Err(error) => {
                    // What the peer has sent before the end, such as a fatal NAK, is still to be
                    // read, and the end itself is found by a read.
                    tracing::debug!(%error, qp_num = %self.core.number, "a link cannot be written to");
                }
            }
            if let Some(link) = self.link.tcp_mut() {
                common.tcp.set_blocked(link, true);
            }
            return;
        }
    }

    /// Adds requests to a batch, as many as may begin.
    fn gather_requests(&mut self, common: &mut Common, batch: &mut Batch) {
        let Some(link) = self.link.tcp() else { return };
        // Those that are sent again come first.
        if self.initiator.retry.rnr_until.is_some() || link.outbound.rewind_to.is_some() {
            return;
        }
        // The rest of the request that was begun counts among the READs already.
        let is_begun = u64::from(link.outbound.is_writing_request());
        let mut next = Next {
            number: self.initiator.sends.started + is_begun,
            unit: link.outbound.next + is_begun,
            reads: self.initiator.outstanding.reads,
            is_first: batch.is_empty(),
        };
        while next.number < self.initiator.sends.posted && TcpLink::has_room_in(batch) {
            next.is_first = batch.is_empty();
            match self.initiator.begin(&self.core, &mut common.memory, next) {
                Ok(Begin::Wait) => return,
                Ok(Begin::Done) => {
                    self.initiator.sends.started += 1;
                    self.complete_acknowledged(common);
                }
                Ok(Begin::Send {
                    operation,
                    outstanding,
                }) => {
                    let is_ack_requested = self.initiator.sends.is_signaled(next.number)
                        || self.initiator.is_half_unacked();
                    let (Some(link), Some(send)) = (
                        self.link.tcp(),
                        self.initiator.sends.general_at_mut(next.number),
                    ) else {
                        return;
                    };
                    let what = (operation, outstanding);
                    link.add_request(batch, send, next.unit, what, is_ack_requested);
                    next.reads = outstanding;
                    next.unit += 1;
                }
                Err(status) => {
                    // The request completes after all earlier ones, which have to be sent first.
                    if next.number == self.initiator.sends.started {
                        self.initiator.sends.local_failure = Some(status);
                        self.await_progress(common);
                    }
                    return;
                }
            }
            next.number += 1;
        }
    }

    /// Handles what keeps a link from being written to.
    #[cold]
    fn stop_writing(&mut self, common: &mut Common, stop: Stop) {
        let link = self.link.tcp_mut();
        let qp_num = self.core.number;
        match stop {
            Stop::TornRequest => {
                let status = CompletionStatus::LocalProtection;
                if link.is_some_and(|link| link.outbound.rewind_to.is_some()) {
                    // Those before it were to be sent again behind it, which is impossible now.
                    return self.fail(common, Some(status));
                }
                // It completes after those before it, whose acknowledgements may still come.
                self.initiator.sends.local_failure.get_or_insert(status);
                self.await_progress(common);
            }
            // The peer finds the end of the connection in the middle of the response.
            Stop::TornResponse => {
                common.events.raise(AsyncEvent::QpAccessError { qp_num });
                self.fail_gently(common);
            }
            Stop::Revoked { sequence } => {
                if let Some(link) = link {
                    link.outbound.responses.clear();
                }
                common.events.raise(AsyncEvent::QpAccessError { qp_num });
                self.refuse(common, Some(sequence), CompletionStatus::RemoteAccess);
            }
        }
    }
}
