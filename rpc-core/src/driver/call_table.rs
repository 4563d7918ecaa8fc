//! [`CallTable`]: the calls of one connection, from sending to completion.
//!
//! ```text
//!   begin ──▶ InFlight ──complete──▶ Responded ──take, or end──▶ (free)
//!                │  │
//!                │  ├──a long response begins──▶ Receiving ──complete──▶ Responded
//!                │  └──connection ends──▶ Failed ──take──▶ (free)
//!                └──future dropped, or deadline passed──▶ Abandoned ──response, or end──▶ (free)
//! ```
//!
//! The table owns the response, not the future that waits for it: a future may be dropped or leaked
//! at any moment without losing a receive slot. An abandoned call keeps its entry until its only
//! response has arrived. So the promised receive is there for the response, and the response is
//! never mistaken for the response to another call. Once a long response has begun, the promised
//! receive is free again, and the rest of the response is named by another number (`bodies/`).

use std::mem;
use std::task::Waker;

use super::body::{Body, Response};
use super::held_permit::HeldPermit;
use super::link_streams::StreamKey;
use super::timers::TimerKey;
use crate::call_error::CallError;
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{CallId, ResponseHead};

/// Calls by the index in their id. `B` is the transport's receive slot.
#[derive(Debug)]
pub(crate) struct CallTable<B> {
    entries: Vec<CallEntry<B>>,
    free: Vec<u32>,
    has_completed: bool,
}

/// The parts of a call are kept apart from its phase, so that a call moves none but those that change.
#[derive(Debug)]
struct CallEntry<B> {
    id: CallId,
    phase: CallPhase,
    /// Present only in flight.
    timer: Option<TimerKey>,
    /// Set only in flight.
    waiting: WakeTarget,
    /// Present only in [`CallPhase::Responded`].
    response: Option<Response<B>>,
    /// Present only in [`CallPhase::Failed`].
    error: Option<CallError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallPhase {
    Free,
    InFlight,
    /// A long response has begun, and is not complete.
    Receiving,
    Responded,
    Failed,
    Abandoned,
}

/// The target to wake when a call ends.
#[derive(Debug, Default)]
pub(crate) enum WakeTarget {
    /// Nothing: the target was already notified.
    #[default]
    None,
    /// The poller's own `block_on`, which needs no atomic reference count.
    BlockOn,
    /// A task on some executor.
    Task(Waker),
    /// The caller of a shared channel that holds this permit.
    Permit(HeldPermit),
    /// The call is a stream, which has its own entry in the driver.
    Stream(StreamKey),
}

impl WakeTarget {
    /// Records the target to notify of the end of a call, for when nothing is borrowed.
    pub(super) fn collect(
        self,
        block_on_waker: &Waker,
        wakers: &mut Vec<Waker>,
        settled: &mut Vec<HeldPermit>,
    ) {
        match self {
            // A stream is ended by itself.
            Self::None | Self::Stream(_) => {}
            Self::BlockOn => wakers.push(block_on_waker.clone()),
            Self::Task(waker) => wakers.push(waker),
            Self::Permit(permit) => settled.push(permit),
        }
    }
}

/// The effect of a response on its call.
#[derive(Debug)]
pub(crate) enum ResponseOutcome<B> {
    /// The call is complete. The caller must wake `waiting` and cancel the timer.
    Completed {
        waiting: WakeTarget,
        timer: Option<TimerKey>,
    },
    /// The call was abandoned, and has ended now: the caller must release the body at once.
    Abandoned(Body<B>),
    /// No such call is in flight: the peer made up the id.
    UnknownCall(Body<B>),
}

/// The result of polling a call.
#[derive(Debug)]
pub(crate) enum TakeOutcome<B> {
    Pending,
    Responded(Response<B>),
    Failed(CallError),
}

/// What a call leaves behind when its future is dropped or gives up.
#[derive(Debug)]
pub(crate) struct Abandoned<B> {
    /// The response to release.
    pub(crate) response: Option<Response<B>>,
    /// The timer to cancel.
    pub(crate) timer: Option<TimerKey>,
    /// The server has the request, and its response has not arrived.
    pub(crate) was_in_flight: bool,
    /// A long response has begun, and is not complete.
    pub(crate) was_receiving: bool,
    /// To be dropped while nothing is borrowed, because dropping a waker may run application code.
    pub(crate) waiting: WakeTarget,
}

impl<B> Default for CallTable<B> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            has_completed: false,
        }
    }
}

impl<B> CallTable<B> {
    /// Allocates an entry for a call that is about to be sent, and takes the target that waits for
    /// it. Returns `None` if call ids can distinguish no more calls. Responses that leaked futures
    /// never took also occupy entries.
    #[inline]
    pub(crate) fn begin(&mut self, waiting: &mut WakeTarget) -> Option<CallId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow()?,
        };
        let entry = &mut self.entries[index as usize];
        entry.phase = CallPhase::InFlight;
        // What the entry holds is nothing: it is free. The caller drops it.
        mem::swap(&mut entry.waiting, waiting);
        Some(entry.id)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> Option<u32> {
        let index = u32::try_from(self.entries.len()).ok()?;
        if index > CallId::MAX_INDEX {
            return None;
        }
        self.entries.push(CallEntry {
            id: CallId::new(index, 0),
            phase: CallPhase::Free,
            timer: None,
            waiting: WakeTarget::None,
            response: None,
            error: None,
        });
        Some(index)
    }

    /// Returns the entry of a call, unless the call has ended.
    #[inline]
    fn entry(&mut self, id: CallId) -> Option<&mut CallEntry<B>> {
        let entry = self.entries.get_mut(id.index());
        entry.filter(|entry| entry.id == id)
    }

    /// Returns true if a call has ended.
    pub(crate) fn has_completed(&self) -> bool {
        self.has_completed
    }

    /// Returns true if a call has not ended, or has not been taken.
    pub(crate) fn contains(&self, id: CallId) -> bool {
        let entry = self.entries.get(id.index());
        entry.is_some_and(|entry| entry.id == id)
    }

    /// Stores the timer of a call in flight that has a deadline.
    pub(crate) fn set_timer(&mut self, id: CallId, timer: TimerKey) {
        self.entries[id.index()].timer = Some(timer);
    }

    /// Handles a response. `id` comes from the peer and is not trusted.
    #[inline(always)]
    pub(crate) fn complete(
        &mut self,
        id: CallId,
        head: ResponseHead,
        body: Body<B>,
    ) -> ResponseOutcome<B> {
        let Some(entry) = self.entry(id) else {
            return ResponseOutcome::UnknownCall(body);
        };
        let awaited = match body {
            Body::Long(_) => CallPhase::Receiving,
            Body::Slot(_) | Body::Copied(_) => CallPhase::InFlight,
        };
        if entry.phase == awaited {
            entry.phase = CallPhase::Responded;
            entry.response = Some(Response { head, body });
            ResponseOutcome::Completed {
                waiting: mem::take(&mut entry.waiting),
                timer: entry.timer.take(),
            }
        } else if entry.phase == CallPhase::Abandoned {
            self.release(id);
            ResponseOutcome::Abandoned(body)
        } else {
            // A second response to the same call, or a response to a call that was never started.
            ResponseOutcome::UnknownCall(body)
        }
    }

    /// Handles the first frame of a long response. Returns whether the call is wanted: one that was
    /// abandoned has ended now. `id` comes from the peer and is not trusted.
    ///
    /// # Errors
    ///
    /// Returns an error if no such call is in flight: the peer made up the id.
    pub(crate) fn begin_long(&mut self, id: CallId) -> Result<bool, ProtocolError> {
        let unknown = ProtocolError::UnknownCall { call: id };
        let entry = self.entry(id).ok_or(unknown)?;
        match entry.phase {
            CallPhase::InFlight if !matches!(entry.waiting, WakeTarget::Stream(_)) => {
                entry.phase = CallPhase::Receiving;
                Ok(true)
            }
            CallPhase::Abandoned => {
                self.release(id);
                Ok(false)
            }
            _ => Err(ProtocolError::UnknownCall { call: id }),
        }
    }

    /// Fails a call whose long response is not received. The caller must wake the target and cancel the
    /// timer.
    pub(crate) fn fail(&mut self, id: CallId, error: CallError) -> (WakeTarget, Option<TimerKey>) {
        let entry = self.entry(id);
        let Some(entry) = entry.filter(|entry| entry.phase == CallPhase::Receiving) else {
            unreachable!("the response of {id:?} is wanted until the call has ended");
        };
        entry.phase = CallPhase::Failed;
        entry.error = Some(error);
        (mem::take(&mut entry.waiting), entry.timer.take())
    }

    /// Returns true if no response to a call has begun to arrive.
    pub(crate) fn is_in_flight(&self, id: CallId) -> bool {
        let entry = self.entries.get(id.index());
        entry.is_some_and(|entry| entry.id == id && entry.phase == CallPhase::InFlight)
    }

    /// Returns the head of a call's response and its metadata and message, if they are in a frame and
    /// have at most `longest` bytes. The response stays until [`end`](Self::end).
    #[inline]
    pub(crate) fn short_response(&self, id: CallId, longest: usize) -> Option<(ResponseHead, &[u8])>
    where
        B: AsRef<[u8]>,
    {
        let response = self.response(id)?;
        let body = response.short_body(longest)?;
        Some((response.head, body))
    }

    /// Returns true if the response of a call has arrived.
    pub(crate) fn has_responded(&self, id: CallId) -> bool {
        self.response(id).is_some()
    }

    #[inline]
    fn response(&self, id: CallId) -> Option<&Response<B>> {
        let entry = self.entries.get(id.index())?;
        let response = entry.response.as_ref();
        response.filter(|_| entry.id == id)
    }

    /// Ends a call whose response has arrived. Returns the body of the response.
    #[inline]
    pub(crate) fn end(&mut self, id: CallId) -> Option<Body<B>> {
        let response = self.entry(id)?.response.take()?;
        self.release(id);
        Some(response.body)
    }

    /// Takes the error of a call, or its response.
    pub(crate) fn take(&mut self, id: CallId) -> TakeOutcome<B> {
        let Some(entry) = self.entry(id) else {
            debug_assert!(false, "polled a call that is not in the call table");
            return TakeOutcome::Pending;
        };
        if let Some(response) = entry.response.take() {
            self.release(id);
            return TakeOutcome::Responded(response);
        }
        if let Some(error) = entry.error.take() {
            self.release(id);
            return TakeOutcome::Failed(error);
        }
        TakeOutcome::Pending
    }

    /// Sets the target to wake when a pending call ends. Returns the target that this one replaces.
    pub(crate) fn set_wake_target(&mut self, id: CallId, target: WakeTarget) -> WakeTarget {
        match self.entry(id) {
            Some(entry) if matches!(entry.phase, CallPhase::InFlight | CallPhase::Receiving) => {
                mem::replace(&mut entry.waiting, target)
            }
            _ => target,
        }
    }

    /// Abandons a call whose future is dropped or gives up.
    pub(crate) fn abandon(&mut self, id: CallId) -> Abandoned<B> {
        let Some(entry) = self.entry(id) else {
            return Abandoned {
                response: None,
                timer: None,
                was_in_flight: false,
                was_receiving: false,
                waiting: WakeTarget::None,
            };
        };
        let abandoned = Abandoned {
            response: entry.response.take(),
            timer: entry.timer.take(),
            was_in_flight: entry.phase == CallPhase::InFlight,
            was_receiving: entry.phase == CallPhase::Receiving,
            waiting: mem::take(&mut entry.waiting),
        };
        entry.error = None;
        if entry.phase == CallPhase::InFlight {
            entry.phase = CallPhase::Abandoned;
        } else if entry.phase != CallPhase::Abandoned {
            self.release(id);
        }
        abandoned
    }

    /// Returns the stream that a call is. `id` comes from the peer and is not trusted.
    pub(crate) fn stream_of(&self, id: CallId) -> Option<StreamKey> {
        let entry = self.entries.get(id.index())?;
        match entry.waiting {
            WakeTarget::Stream(key) if entry.id == id => Some(key),
            _ => None,
        }
    }

    /// Removes a call that is a stream, which has ended.
    pub(crate) fn end_stream(&mut self, id: CallId) {
        if let Some(entry) = self.entry(id)
            && entry.phase == CallPhase::InFlight
        {
            entry.waiting = WakeTarget::None;
            self.release(id);
        }
    }

    /// Returns the target that waits for a call whose deadline has passed. The call's timer has
    /// fired.
    pub(crate) fn expire(&mut self, id: CallId) -> WakeTarget {
        match self.entry(id) {
            Some(entry) if matches!(entry.phase, CallPhase::InFlight | CallPhase::Receiving) => {
                entry.timer = None;
                mem::take(&mut entry.waiting)
            }
            _ => WakeTarget::None,
        }
    }

    /// Fails every call in flight, because the connection has ended. Passes the waiting target and
    /// the timer of each to `left`. Returns the number of promised receives that no response will
    /// use any more.
    pub(crate) fn fail_all(
        &mut self,
        error: &CallError,
        mut left: impl FnMut(WakeTarget, Option<TimerKey>),
    ) -> u32 {
        let mut unanswered = 0;
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            match entry.phase {
                // The driver ends it by itself.
                CallPhase::InFlight if matches!(entry.waiting, WakeTarget::Stream(_)) => {}
                CallPhase::InFlight | CallPhase::Receiving => {
                    // A long response that has begun has used its receive.
                    unanswered += u32::from(entry.phase == CallPhase::InFlight);
                    entry.phase = CallPhase::Failed;
                    entry.error = Some(error.clone());
                    left(mem::take(&mut entry.waiting), entry.timer.take());
                }
                CallPhase::Abandoned => {
                    let id = entry.id;
                    unanswered += 1;
                    self.release(id);
                }
                CallPhase::Free | CallPhase::Responded | CallPhase::Failed => {}
            }
        }
        unanswered
    }

    /// Copies every response that has not been taken yet out of its slot, and passes the slots to
    /// `slots`.
    pub(crate) fn copy_responses_out(&mut self, mut slots: impl FnMut(B))
    where
        B: AsRef<[u8]>,
    {
        for entry in &mut self.entries {
            if let Some(response) = &mut entry.response
                && let Body::Slot(frame) = &response.body
            {
                let copy = Body::Copied(frame.as_ref().to_vec());
                if let Body::Slot(frame) = mem::replace(&mut response.body, copy) {
                    slots(frame);
                }
            }
        }
    }

    /// Returns the number of entries in use: calls whose response has not arrived, or whose future
    /// has not taken it.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Frees an entry, which holds nothing any more.
    #[inline]
    fn release(&mut self, id: CallId) {
        let entry = &mut self.entries[id.index()];
        entry.phase = CallPhase::Free;
        // The next call in this entry gets another id, so that a late response to this call matches
        // nothing.
        let index = id.index() as u32;
        entry.id = CallId::new(index, id.generation().wrapping_add(1));
        self.free.push(index);
        self.has_completed = true;
    }

    /// Returns the number of receives that are promised to unary calls, or hold their responses.
    #[cfg(debug_assertions)]
    pub(crate) fn receives(&self) -> u32 {
        let holds = |entry: &&CallEntry<B>| match entry.phase {
            // A stream's response takes a receive of the window.
            CallPhase::InFlight => !matches!(entry.waiting, WakeTarget::Stream(_)),
            CallPhase::Abandoned => true,
            CallPhase::Responded => matches!(
                entry.response,
                Some(Response {
                    body: Body::Slot(_),
                    ..
                })
            ),
            CallPhase::Free | CallPhase::Receiving | CallPhase::Failed => false,
        };
        self.entries.iter().filter(holds).count() as u32
    }
}

#[cfg(test)]
mod tests;
