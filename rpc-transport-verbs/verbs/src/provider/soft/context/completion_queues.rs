//! The completion queues of one context.

use std::collections::VecDeque;
use std::sync::Arc;

use slab::Slab;

use super::channel_events::ChannelEvents;
use super::pending::{Matter, Pending};
use crate::types::{CompletionOpcode, CompletionStatus, Extras, QpNum, WorkCompletion, WrId};

/// The completion queues of one context.
#[derive(Debug, Default)]
pub(crate) struct CompletionQueues {
    queues: Slab<CompletionRing>,
    /// Completions in all queues.
    completions: usize,
    /// Queues that are armed or have overrun.
    watched: usize,
    /// Queues that overran and whose queue pairs have not been failed yet.
    overrun: Vec<u32>,
}

/// A completion that has not been polled yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) wr_id: WrId,
    /// The numeric code of a `CompletionStatus`.
    pub(crate) status: u32,
    pub(crate) opcode: CompletionOpcode,
    pub(crate) extras: Extras,
    pub(crate) qp_num: QpNum,
    pub(crate) byte_len: u32,
    /// The immediate, or the key that was invalidated.
    pub(crate) data: u32,
    pub(crate) src_qp: u32,
    /// The queue pair's index in the context, and the number of the send whose entry is freed when
    /// this completion is polled.
    pub(crate) frees: Option<(u32, u64)>,
}

impl Completion {
    /// The completion of a send, whose entry it frees: of a SEND or one that has failed, unless it
    /// says something else.
    #[inline(always)]
    pub(crate) fn of_send(
        wr_id: WrId,
        (qp_index, qp_num): (u32, QpNum),
        number: u64,
        status: CompletionStatus,
    ) -> Self {
        Self {
            opcode: CompletionOpcode::Send,
            frees: Some((qp_index, number)),
            ..Self::of_receive(wr_id, qp_num, status)
        }
    }

    /// The completion of a receive without bytes, unless it says something else.
    #[inline(always)]
    pub(crate) fn of_receive(wr_id: WrId, qp_num: QpNum, status: CompletionStatus) -> Self {
        Self {
            wr_id,
            status: status.code(),
            opcode: CompletionOpcode::Receive,
            extras: Extras::default(),
            qp_num,
            byte_len: 0,
            data: 0,
            src_qp: 0,
            frees: None,
        }
    }

    #[inline]
    pub(crate) fn report(self) -> WorkCompletion {
        WorkCompletion {
            wr_id: self.wr_id,
            status: self.status,
            qp_num: self.qp_num,
            byte_len: self.byte_len,
            data: self.data,
            src_qp: self.src_qp,
            opcode: self.opcode,
            extras: self.extras,
        }
    }
}

/// A completion queue. An overrun is permanent, but completions from before it can still be polled.
#[derive(Debug)]
pub(crate) struct CompletionRing {
    entries: VecDeque<Completion>,
    capacity: usize,
    watch: Watch,
    channel: Option<Arc<ChannelEvents>>,
    pub(crate) number: u32,
}

/// The effect of the next completion. All cases share one field, so that a completion of a queue
/// that no thread waits for pays for one comparison, armed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    Nothing,
    /// The next completion raises an event if it is solicited or unsuccessful.
    Solicited,
    /// The next completion raises an event.
    Next,
    /// The queue has overrun: the next completion is dropped.
    Overrun,
}

impl CompletionQueues {
    pub(crate) fn len(&self) -> usize {
        self.queues.len()
    }

    pub(crate) fn insert(&mut self, queue: CompletionRing) -> usize {
        self.queues.insert(queue)
    }

    pub(crate) fn remove(&mut self, cq: usize) {
        if let Some(queue) = self.queues.try_remove(cq) {
            self.completions -= queue.len();
            self.watched -= usize::from(queue.watch != Watch::Nothing);
        }
        self.overrun.retain(|overrun| *overrun as usize != cq);
    }

    /// Returns a queue that has not been destroyed.
    #[inline]
    pub(crate) fn queue(&self, cq: usize) -> &CompletionRing {
        &self.queues[cq]
    }

    /// Returns what is counted of all queues: completions, and queues that are armed or have overrun.
    pub(super) fn totals(&self) -> (usize, usize) {
        (self.completions, self.watched)
    }

    /// Counts the same anew.
    pub(super) fn count_totals(&self) -> (usize, usize) {
        let queues = || self.queues.iter().map(|(_, queue)| queue);
        let watched = queues().filter(|queue| queue.watch != Watch::Nothing);
        (queues().map(CompletionRing::len).sum(), watched.count())
    }

    pub(crate) fn set_capacity(&mut self, cq: usize, capacity: usize) {
        self.queues[cq].capacity = capacity;
    }

    /// Returns true if any queue is armed.
    pub(crate) fn has_armed(&self) -> bool {
        self.watched > 0 && self.queues.iter().any(|(_, queue)| queue.is_armed())
    }

    /// Returns true if any queue overran and its queue pairs have not been failed yet.
    #[inline]
    pub(crate) fn has_overrun(&self) -> bool {
        !self.overrun.is_empty()
    }

    pub(crate) fn take_overrun(&mut self) -> Option<u32> {
        self.overrun.pop()
    }

    #[inline]
    pub(crate) fn pop(&mut self, cq: usize) -> Option<Completion> {
        let entries = &mut self.queues[cq].entries;
        let completion = entries.pop_front()?;
        if entries.is_empty() {
            // Restart at the first entry: the queue is sized for the worst case, and one that is
            // polled in time should not cycle through all of that memory.
            entries.clear();
        }
        self.completions -= 1;
        Some(completion)
    }

    /// Adds a completion to a queue, and has polls look for it.
    #[inline]
    pub(crate) fn push(&mut self, pending: &mut Pending, cq: usize, completion: Completion) {
        pending.add(Matter::Completions);
        let queue = &mut self.queues[cq];
        if queue.watch != Watch::Nothing || queue.entries.len() == queue.capacity {
            return self.push_watched(cq, completion);
        }
        queue.entries.push_back(completion);
        self.completions += 1;
    }

    #[cold]
    #[inline(never)]
    fn push_watched(&mut self, cq: usize, completion: Completion) {
        let queue = &mut self.queues[cq];
        let was_watched = queue.watch != Watch::Nothing;
        match queue.push_watched(completion) {
            Pushed::Added => self.completions += 1,
            Pushed::Dropped => {}
            Pushed::Overran => self.overrun.push(cq as u32),
        }
        self.watched -= usize::from(was_watched);
        self.watched += usize::from(queue.watch != Watch::Nothing);
    }

    /// Arms a queue, as `req_notify_cq` does.
    pub(crate) fn arm(&mut self, cq: usize, solicited_only: bool) {
        let queue = &mut self.queues[cq];
        self.watched += usize::from(queue.watch == Watch::Nothing);
        queue.arm(solicited_only);
    }

    /// Returns true if all queues are empty, and none is armed or has overrun.
    #[inline]
    pub(crate) fn are_quiet(&self) -> bool {
        self.completions == 0 && self.watched == 0
    }
}

enum Pushed {
    Added,
    Dropped,
    Overran,
}

impl CompletionRing {
    pub(crate) fn new(capacity: usize, number: u32, channel: Option<Arc<ChannelEvents>>) -> Self {
        Self {
            entries: VecDeque::with_capacity(capacity),
            capacity,
            watch: Watch::Nothing,
            channel,
            number,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_overrun(&self) -> bool {
        self.watch == Watch::Overrun
    }

    /// Arms the queue, as `req_notify_cq` does: arming for the next completion overrides arming for
    /// solicited ones, in either order.
    fn arm(&mut self, solicited_only: bool) {
        self.watch = match (self.watch, solicited_only) {
            (Watch::Overrun, _) => Watch::Overrun,
            (Watch::Nothing | Watch::Solicited, true) => Watch::Solicited,
            (Watch::Next, true) | (_, false) => Watch::Next,
        };
    }

    fn is_armed(&self) -> bool {
        matches!(self.watch, Watch::Solicited | Watch::Next)
    }

    /// Returns true if the queue is empty and no event or error is to follow from a completion.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.entries.is_empty() && self.watch == Watch::Nothing
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn push_watched(&mut self, completion: Completion) -> Pushed {
        if self.is_overrun() {
            return Pushed::Dropped;
        }
        if self.entries.len() == self.capacity {
            self.watch = Watch::Overrun;
            return Pushed::Overran;
        }
        let is_solicited = completion.extras.0 & Extras::SOLICITED != 0 || completion.status != 0;
        self.entries.push_back(completion);
        if self.watch == Watch::Next || is_solicited {
            self.watch = Watch::Nothing;
            if let Some(channel) = &self.channel {
                channel.raise(self.number);
            }
        }
        Pushed::Added
    }
}
