//! The work queues of one context: sends, receives, completions.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use super::channel_events::ChannelEvents;
use super::general_send::GeneralSend;
use crate::provider::work::{ReceiveList, ReceiveWork, SendWork, Sge};
use crate::verbs::types::{
    CompletionOpcode, CompletionStatus, Extras, LocalKey, QpNum, WorkCompletion, WrId,
};

/// A send queue. Requests are numbered from 0 and pass four counters in order.
///
/// ```text
///   freed ≤ acked ≤ started ≤ posted
///     │        │        │        └ next request to be posted
///     │        │        └ next request to be written to the ring
///     │        └ oldest request that the receiver has not acknowledged
///     └ oldest request whose entry of the queue is taken
/// ```
///
/// An entry becomes free only when a completion that covers it has been *polled*. Unsignaled sends
/// that succeed complete nothing, so a queue filled with them is stuck, as on a NIC. This is
/// intended: the mistake then shows on a laptop.
#[derive(Debug)]
pub(crate) struct SendQueue {
    requests: Box<[Option<SendWork>]>,
    capacity: usize,
    pub(crate) posted: u64,
    pub(crate) started: u64,
    pub(crate) acked: u64,
    freed: u64,
    /// Requests in `acked..posted` that complete even if they succeed.
    pub(crate) signaled: usize,
    /// Inline requests before this number are written or staged.
    staged_through: u64,
    /// The bytes of inline requests that had to wait for room, by request number.
    staged: VecDeque<(u64, Box<[u8]>)>,
    /// Details of the requests other than plain messages of one element, in order.
    pub(crate) general: VecDeque<GeneralSend>,
    /// Set if the request at `started` failed locally; it completes after all earlier requests.
    pub(crate) local_failure: Option<CompletionStatus>,
}

impl SendQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            requests: (0..capacity.next_power_of_two()).map(|_| None).collect(),
            capacity,
            posted: 0,
            started: 0,
            acked: 0,
            freed: 0,
            signaled: 0,
            staged_through: 0,
            staged: VecDeque::new(),
            general: VecDeque::new(),
            local_failure: None,
        }
    }

    /// Drops the details of the request with this number, which has completed.
    #[inline]
    pub(crate) fn forget_general(&mut self, number: u64) {
        if self
            .general
            .front()
            .is_some_and(|send| send.number == number)
        {
            self.general.pop_front();
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    fn index_of(&self, number: u64) -> usize {
        number as usize & (self.requests.len() - 1)
    }

    /// Adds a request if an entry is free.
    #[inline]
    pub(crate) fn push(&mut self, work: SendWork) -> bool {
        if self.posted - self.freed == self.capacity as u64 {
            return false;
        }
        let index = self.index_of(self.posted);
        self.signaled += usize::from(work.signaled);
        self.requests[index] = Some(work);
        self.posted += 1;
        true
    }

    #[inline]
    pub(crate) fn request(&self, number: u64) -> Option<&SendWork> {
        self.requests[self.index_of(number)].as_ref()
    }

    /// Copies the bytes of inline requests that could not be written at once.
    ///
    /// # Safety
    ///
    /// The bytes of inline requests posted since the last call still belong to the caller: call
    /// this before the post that accepted them returns.
    pub(crate) unsafe fn stage_inline(&mut self) {
        for number in self.staged_through.max(self.started)..self.posted {
            if let Some(work) = self.request(number)
                && work.inline
            {
                // SAFETY: the caller guarantees this for each request from `staged_through` on.
                let bytes =
                    unsafe { std::slice::from_raw_parts(work.addr.as_ptr(), work.len as usize) };
                let bytes = bytes.into();
                self.staged.push_back((number, bytes));
            }
        }
        self.staged_through = self.posted;
    }

    /// Takes the bytes of a staged request.
    pub(crate) fn staged(&mut self, number: u64) -> Option<Box<[u8]>> {
        match self.staged.front() {
            Some((front, _)) if *front == number => self.staged.pop_front().map(|(_, bytes)| bytes),
            _ => None,
        }
    }

    /// Removes the oldest unacknowledged request, for its completion.
    #[inline]
    pub(crate) fn retire(&mut self) -> Option<(u64, SendWork)> {
        if self.acked == self.posted {
            return None;
        }
        let number = self.acked;
        let index = self.index_of(number);
        let work = self.requests[index].take()?;
        self.acked += 1;
        self.started = self.started.max(self.acked);
        self.signaled -= usize::from(work.signaled);
        Some((number, work))
    }

    /// Frees the entries up to this request, whose completion was polled.
    #[inline]
    pub(crate) fn free_through(&mut self, number: u64) {
        // The bounds make completions from before a reset have no effect.
        self.freed = self.freed.max(number + 1).min(self.acked);
    }

    /// Discards everything that was posted.
    pub(crate) fn reset(&mut self) {
        self.requests.fill(None);
        (self.started, self.acked, self.freed) = (self.posted, self.posted, self.posted);
        self.signaled = 0;
        self.staged.clear();
        self.general.clear();
        self.local_failure = None;
    }
}

/// A receive queue, shared or not: strictly first in, first out.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    posted: VecDeque<ReceiveWork>,
    /// The elements of the receives that do not have exactly one, in order. They are stored apart
    /// so that ordinary receives stay small; such a receive has no address of its own in `posted`.
    lists: VecDeque<(WrId, Box<[Sge]>)>,
    capacity: usize,
    /// The limit of a shared receive queue; 0 if not armed.
    limit: usize,
}

impl ReceiveQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            posted: VecDeque::with_capacity(capacity),
            lists: VecDeque::new(),
            capacity,
            limit: 0,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Adds receives in order. Returns how many fit.
    pub(crate) fn push(&mut self, work: &[ReceiveWork]) -> usize {
        let taken = work
            .len()
            .min(self.capacity.saturating_sub(self.posted.len()));
        self.posted.extend(&work[..taken]);
        taken
    }

    /// Adds receives of any number of elements in order. Returns how many fit.
    pub(crate) fn push_lists(&mut self, work: &[ReceiveList], elements: &[Sge]) -> usize {
        let taken = work
            .len()
            .min(self.capacity.saturating_sub(self.posted.len()));
        for work in &work[..taken] {
            let list = work.elements(elements);
            let wr_id = work.wr_id;
            if let [only] = list {
                self.posted.push_back(ReceiveWork {
                    wr_id,
                    addr: only.addr,
                    len: only.len,
                    local_key: only.local_key,
                });
                continue;
            }
            let total: u64 = list.iter().map(|element| u64::from(element.len)).sum();
            self.posted.push_back(ReceiveWork {
                wr_id,
                addr: NonNull::dangling(),
                len: u32::try_from(total).unwrap_or(u32::MAX),
                local_key: LocalKey(0),
            });
            self.lists.push_back((wr_id, list.into()));
        }
        taken
    }

    /// Returns true if any receive does not have exactly one element.
    #[inline]
    pub(crate) fn has_lists(&self) -> bool {
        !self.lists.is_empty()
    }

    /// Returns the elements of the oldest receive, if it does not have exactly one.
    #[inline]
    pub(crate) fn front_list(&self) -> Option<&[Sge]> {
        if self.lists.is_empty() {
            return None;
        }
        let (wr_id, list) = self.lists.front()?;
        (self.posted.front()?.wr_id == *wr_id).then_some(&**list)
    }

    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<ReceiveWork> {
        self.posted.front().copied()
    }

    /// Removes the oldest receive. Returns `true` if fewer receives than the limit are left, for
    /// the first time since it was armed.
    #[inline]
    pub(crate) fn consume(&mut self) -> bool {
        let consumed = self.posted.pop_front();
        if !self.lists.is_empty()
            && let (Some(consumed), Some((wr_id, _))) = (consumed, self.lists.front())
            && consumed.wr_id == *wr_id
        {
            self.lists.pop_front();
        }
        let reached = self.posted.len() < self.limit;
        if reached {
            self.limit = 0;
        }
        reached
    }

    pub(crate) fn clear(&mut self) {
        self.posted.clear();
        self.lists.clear();
    }
}

/// A completion that has not been polled yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) wr_id: WrId,
    /// The numeric code of a [`CompletionStatus`].
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

    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_overrun(&self) -> bool {
        self.watch == Watch::Overrun
    }

    /// Arms the queue, as `req_notify_cq` does: arming for the next completion overrides arming for
    /// solicited ones, in either order.
    pub(crate) fn arm(&mut self, solicited_only: bool) {
        self.watch = match (self.watch, solicited_only) {
            (Watch::Overrun, _) => Watch::Overrun,
            (Watch::Nothing | Watch::Solicited, true) => Watch::Solicited,
            (Watch::Next, true) | (_, false) => Watch::Next,
        };
    }

    pub(crate) fn is_armed(&self) -> bool {
        matches!(self.watch, Watch::Solicited | Watch::Next)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a completion. Returns `true` if it overran the queue.
    #[inline]
    pub(crate) fn push(&mut self, completion: Completion) -> bool {
        if self.watch != Watch::Nothing {
            return self.push_watched(completion);
        }
        if self.entries.len() == self.capacity {
            self.watch = Watch::Overrun;
            return true;
        }
        self.entries.push_back(completion);
        false
    }

    #[cold]
    fn push_watched(&mut self, completion: Completion) -> bool {
        if self.is_overrun() {
            return false;
        }
        if self.entries.len() == self.capacity {
            self.watch = Watch::Overrun;
            return true;
        }
        let is_solicited = completion.extras.0 & Extras::SOLICITED != 0 || completion.status != 0;
        self.entries.push_back(completion);
        if self.watch == Watch::Next || is_solicited {
            self.watch = Watch::Nothing;
            if let Some(channel) = &self.channel {
                channel.raise(self.number);
            }
        }
        false
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        let completion = self.entries.pop_front();
        if self.entries.is_empty() {
            // Restart at the first entry: the queue is sized for the worst case, and one that is
            // polled in time should not cycle through all of that memory.
            self.entries.clear();
        }
        completion
    }
}
