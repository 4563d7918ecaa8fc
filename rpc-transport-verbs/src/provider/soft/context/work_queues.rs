//! The queues of work of one context: sends, receives, completions.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use super::channel_events::ChannelEvents;
use super::general_send::GeneralSend;
use crate::provider::{ReceiveList, ReceiveWork, SendWork, Sge};
use crate::verbs::types::{
    CompletionOpcode, CompletionStatus, Extras, LocalKey, QpNum, WorkCompletion, WrId,
};

/// A send queue: requests are numbered from 0 and pass through three marks in order.
///
/// ```text
///   freed ≤ acked ≤ started ≤ posted
///     │        │        │        └ next request to be posted
///     │        │        └ next request to be written to the ring
///     │        └ oldest request that the receiver has not acknowledged
///     └ oldest request whose slot of the queue is taken
/// ```
///
/// A slot becomes free only when a completion that covers it has been *polled*. Unsignaled
/// successes complete nothing, so a queue filled with them is stuck: as on a NIC, and as it must be
/// here so that the mistake shows on a laptop.
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
    /// Inline requests before this one are written or staged.
    staged_through: u64,
    /// The bytes of inline requests that had to wait for room, by number.
    staged: VecDeque<(u64, Box<[u8]>)>,
    /// What there is of requests that are more than a piece of memory, in their order.
    pub(crate) general: VecDeque<GeneralSend>,
    /// The request at `started` failed here; it completes once all before it have.
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

    /// The request with this number has completed.
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
    fn place(&self, number: u64) -> usize {
        number as usize & (self.requests.len() - 1)
    }

    /// Takes a request, if a slot is free.
    #[inline]
    pub(crate) fn push(&mut self, work: SendWork) -> bool {
        if self.posted - self.freed == self.capacity as u64 {
            return false;
        }
        let place = self.place(self.posted);
        self.signaled += usize::from(work.signaled);
        self.requests[place] = Some(work);
        self.posted += 1;
        true
    }

    #[inline]
    pub(crate) fn request(&self, number: u64) -> Option<&SendWork> {
        self.requests[self.place(number)].as_ref()
    }

    /// Keeps the bytes of inline requests that could not be written at once.
    ///
    /// # Safety
    ///
    /// The bytes of inline requests that were posted since the last call must still be the caller's:
    /// it has to be called before the post that took them returns.
    pub(crate) unsafe fn stage_inline(&mut self) {
        for number in self.staged_through.max(self.started)..self.posted {
            if let Some(work) = self.request(number)
                && work.inline
            {
                // SAFETY: the caller's promise, for each request from `staged_through` on.
                let bytes =
                    unsafe { std::slice::from_raw_parts(work.addr.as_ptr(), work.len as usize) };
                let bytes = bytes.into();
                self.staged.push_back((number, bytes));
            }
        }
        self.staged_through = self.posted;
    }

    /// The bytes of a staged request.
    pub(crate) fn staged(&mut self, number: u64) -> Option<Box<[u8]>> {
        match self.staged.front() {
            Some((front, _)) if *front == number => self.staged.pop_front().map(|(_, bytes)| bytes),
            _ => None,
        }
    }

    /// Takes the oldest unacknowledged request off, for its completion.
    #[inline]
    pub(crate) fn retire(&mut self) -> Option<(u64, SendWork)> {
        if self.acked == self.posted {
            return None;
        }
        let number = self.acked;
        let place = self.place(number);
        let work = self.requests[place].take()?;
        self.acked += 1;
        self.started = self.started.max(self.acked);
        self.signaled -= usize::from(work.signaled);
        Some((number, work))
    }

    /// A completion of this request was polled.
    #[inline]
    pub(crate) fn free_through(&mut self, number: u64) {
        // After a reset, completions of before come too late to mean anything.
        self.freed = self.freed.max(number + 1).min(self.acked);
    }

    /// Forgets everything that was posted.
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
    /// The elements of those that have other than one, in their order. Beside the queue, so that the usual
    /// ones stay small: these have no address of their own.
    lists: VecDeque<(WrId, Box<[Sge]>)>,
    capacity: usize,
    /// 0 if not armed.
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

    /// Takes requests in order; how many there was room for.
    pub(crate) fn push(&mut self, work: &[ReceiveWork]) -> usize {
        let taken = work
            .len()
            .min(self.capacity.saturating_sub(self.posted.len()));
        self.posted.extend(&work[..taken]);
        taken
    }

    /// The same for receives of any number of elements.
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

    /// Whether any receive has other than one element.
    #[inline]
    pub(crate) fn has_lists(&self) -> bool {
        !self.lists.is_empty()
    }

    /// The elements of the oldest receive, if it has other than one.
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

    /// Takes the oldest off. `true`: fewer than the limit are left now, for the first time since it
    /// was armed.
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

/// A completion, before it is polled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) wr_id: WrId,
    /// The number of a [`CompletionStatus`].
    pub(crate) status: u32,
    pub(crate) opcode: CompletionOpcode,
    pub(crate) extras: Extras,
    pub(crate) qp_num: QpNum,
    pub(crate) byte_len: u32,
    /// The immediate, or the key that was invalidated.
    pub(crate) data: u32,
    pub(crate) src_qp: u32,
    /// The queue pair's place in the context, and the number of the send that this frees when it is
    /// polled.
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

/// A completion queue. It overruns once and for all; what it held then can still be polled.
#[derive(Debug)]
pub(crate) struct CompletionRing {
    entries: VecDeque<Completion>,
    capacity: usize,
    watch: Watch,
    channel: Option<Arc<ChannelEvents>>,
    pub(crate) number: u32,
}

/// What the next completion sets off. One word for all of it, so that a completion of a queue that
/// nobody waits for pays for one look, armed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    Nothing,
    /// An event, if it is solicited or unsuccessful.
    Solicited,
    /// An event.
    Next,
    /// It is dropped: the queue has overrun.
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

    /// `req_notify_cq`: "next" goes over "solicited", whichever came first.
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

    /// `true`: this was the one too many.
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
            // Back to the first entry: a queue is as long as its worst case, and one that is polled
            // in time should not walk through all of that memory.
            self.entries.clear();
        }
        completion
    }
}
