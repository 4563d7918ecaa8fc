//! The slots that are posted to one receive queue: where each waits for its completion.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::element::{Element, Elements};
use super::receive_places::{
    CLAIMING, FREE, PHASE_BITS, PHASE_MASK, POSTED, POSTED_LIST, Place, Places,
};
use super::slot::Slot;
use super::types::error::{ClaimError, PostError, PostErrorReason, VerbsError};
use super::types::work_completion::WorkCompletion;
use super::types::wr_id::{MAX_DEPTH, Numbering, QueueTag, WorkKind, WrId};
use super::work_request::ReceiveRequest;
use crate::provider::{ReceiveList, ReceiveWork, Sge};

/// A table with a place for each receive that can be posted, and a few more.
///
/// Posting is for any thread, under a lock that is taken once per list. Claiming takes no lock: a
/// completion names its place, and one compare-and-swap on that place decides who gets the slot.
#[derive(Debug)]
pub(super) struct PostedReceives {
    places: Places,
    numbering: Numbering,
    queue: QueueTag,
    posting: Mutex<Posting>,
    /// The elements of receives that have several, by place. Taken after `posting`, where both are.
    lists: Mutex<HashMap<u32, Elements>>,
    /// Elements that one receive may have.
    max_sge: usize,
}

#[derive(Debug)]
struct Posting {
    /// Receives that the device takes at a time.
    capacity: usize,
    /// Places that there are.
    place_count: usize,
    /// Where the next free place is looked for. Receives are consumed nearly in the order in which
    /// they were posted, so the place after the last one taken is nearly always free.
    cursor: usize,
    /// The device's lists, kept for their memory.
    work: Vec<ReceiveWork>,
    work_lists: Vec<ReceiveList>,
    elements: Vec<Sge>,
}

// SAFETY: `slot` is touched by the holder of `posting` while the phase is FREE, and by the one
// thread whose compare-and-swap took the phase from POSTED to CLAIMING; the phase's Release stores
// and Acquire loads hand it from one to the other. Slots are Send.
unsafe impl Sync for PostedReceives {}

impl PostedReceives {
    /// For a queue that takes `capacity` receives at a time, each of at most `max_sge` elements, and that may
    /// become `growth` times as deep.
    pub(super) fn new(queue: QueueTag, capacity: usize, max_sge: usize, growth: usize) -> Self {
        let place_count = places_for(capacity);
        Self {
            places: Places::new(place_count),
            numbering: Numbering::new(place_count, growth),
            queue,
            posting: Mutex::new(Posting {
                capacity,
                place_count,
                cursor: 0,
                work: Vec::with_capacity(capacity),
                work_lists: Vec::new(),
                elements: Vec::new(),
            }),
            lists: Mutex::default(),
            max_sge,
        }
    }

    /// Moves up to `count` slots from the end of `slots` into the table and gives them to `post`,
    /// which says how many the device took; the rest comes back to `slots`.
    pub(super) fn post(
        &self,
        slots: &mut Vec<Slot>,
        count: usize,
        post: impl FnOnce(&[ReceiveWork]) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let count = count.min(slots.len());
        if self.max_sge == 0 && count > 0 {
            let (taken, limit) = (0, 0);
            let reason = PostErrorReason::TooManyElements { count: 1, limit };
            return Err(PostError { taken, reason });
        }
        // A thread that panicked under the lock left the table whole: each step below does.
        let mut posting = self.posting.lock().unwrap_or_else(PoisonError::into_inner);
        let Posting {
            capacity,
            place_count,
            cursor,
            work,
            ..
        } = &mut *posting;
        work.clear();
        let mut full = false;
        for _ in 0..count {
            let Some((place, index, generation)) = self.find_free(cursor, *place_count) else {
                full = true;
                break;
            };
            let Some(slot) = slots.pop() else { break };
            work.push(ReceiveWork {
                wr_id: self.wr_id(index, generation),
                addr: slot.start(),
                len: slot.len32(),
                local_key: slot.local_key(),
            });
            // SAFETY: the phase is FREE and the posting lock is held: nobody else touches it.
            unsafe { (*place.slot.get()).write(slot) };
            // Release: whoever claims the place sees the slot. Before the device has the work
            // request, because its completion may be claimed at once.
            place
                .state
                .store(generation << PHASE_BITS | POSTED, Ordering::Release);
        }
        let posted = match post(work) {
            Ok(()) if full => Err(PostError {
                taken: work.len(),
                reason: PostErrorReason::QueueFull {
                    capacity: *capacity,
                },
            }),
            posted => posted,
        };
        if let Err(refused) = &posted {
            // Back in the order in which they came: the first refused was nearest the end.
            for work in work[refused.taken.min(work.len())..].iter().rev() {
                slots.extend(self.take(work.wr_id));
            }
        }
        posted
    }

    /// The same for receives of several elements each, from the front of `requests`; what was not taken
    /// stays there.
    pub(super) fn post_lists(
        &self,
        requests: &mut Vec<ReceiveRequest>,
        post: impl FnOnce(&[ReceiveList], &[Sge]) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let mut posting = self.posting.lock().unwrap_or_else(PoisonError::into_inner);
        let Posting {
            capacity,
            place_count,
            cursor,
            work_lists: work,
            elements,
            ..
        } = &mut *posting;
        work.clear();
        elements.clear();
        let mut refused = None;
        let mut places = Vec::with_capacity(requests.len());
        for request in &*requests {
            let count = request.elements.0.len();
            if count > self.max_sge {
                let limit = self.max_sge;
                refused = Some(PostErrorReason::TooManyElements { count, limit });
                break;
            }
            let Some((place, index, generation)) = self.find_free(cursor, *place_count) else {
                let capacity = *capacity;
                refused = Some(PostErrorReason::QueueFull { capacity });
                break;
            };
            // Kept from being found again in this loop, and by claims of what the device does not have yet.
            place
                .state
                .store(generation << PHASE_BITS | CLAIMING, Ordering::Relaxed);
            places.push((place, index, generation));
            work.push(ReceiveList {
                wr_id: self.wr_id(index, generation),
                first: elements.len(),
                count,
            });
            elements.extend(request.elements.0.iter().map(Element::sge));
        }
        let mut lists = self.lists();
        for (request, (place, index, generation)) in requests.drain(..places.len()).zip(&places) {
            lists.insert(*index, request.elements);
            // Release: as in `post`.
            place
                .state
                .store(generation << PHASE_BITS | POSTED_LIST, Ordering::Release);
        }
        drop(lists);
        let posted = match (post(work, elements), refused) {
            (Ok(()), Some(reason)) => Err(PostError {
                taken: places.len(),
                reason,
            }),
            (posted, _) => posted,
        };
        if let Err(error) = &posted {
            let not_taken = &work[error.taken.min(work.len())..];
            let back = not_taken.iter().filter_map(|work| {
                let elements = self.take_list(work.wr_id)?;
                Some(ReceiveRequest { elements })
            });
            requests.splice(..0, back);
        }
        posted
    }

    fn lists(&self) -> MutexGuard<'_, HashMap<u32, Elements>> {
        // A map is changed in one step.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn wr_id(&self, index: u32, generation: u32) -> WrId {
        let number = self.numbering.number(index, generation);
        WrId::new(WorkKind::Receive, self.queue, number)
    }

    /// Receives that it can be made to take: as many as there are numbers for, at two places for each.
    fn max_depth(&self) -> usize {
        (self.numbering.max_places() / 2).min(MAX_DEPTH as usize)
    }

    /// A free place with its number and generation, from the cursor on, which moves behind it.
    #[inline]
    fn find_free(&self, cursor: &mut usize, place_count: usize) -> Option<(&Place, u32, u32)> {
        for _ in 0..place_count {
            let index = *cursor;
            *cursor = if index + 1 == place_count {
                0
            } else {
                index + 1
            };
            let place = self.places.get(index)?;
            // Acquire: the claimer has moved its slot out before this thread fills the place.
            let state = place.state.load(Ordering::Acquire);
            if state & PHASE_MASK == FREE {
                // Fewer than the numbers in 32 bits.
                return Some((place, index as u32, state >> PHASE_BITS));
            }
        }
        None
    }

    /// Another depth, which `resize` asks the device for, and which it says what it has granted of. Nothing
    /// is posted meanwhile.
    ///
    /// # Errors
    ///
    /// For fewer than are posted, or more than can be numbered: the device is not asked, since some lose the
    /// queue over it.
    pub(super) fn resize(
        &self,
        max_wr: usize,
        resize: impl FnOnce() -> Result<usize, VerbsError>,
    ) -> Result<(), VerbsError> {
        let mut posting = self.posting.lock().unwrap_or_else(PoisonError::into_inner);
        // Receives that have ended and are not claimed yet count as well: the device alone knows of them.
        let (min, max) = (self.places.taken().max(1), self.max_depth());
        if !(min..=max).contains(&max_wr) {
            return Err(VerbsError::OutOfRange {
                call: "modify_srq",
                parameter: "max_wr",
                value: max_wr as u64,
                min: min as u64,
                max: max as u64,
            });
        }
        let granted = resize()?;
        posting.capacity = granted;
        posting.place_count = self
            .places
            .grow(places_for(granted), self.numbering.max_places());
        Ok(())
    }

    /// The slot of a receive that has ended, and the bytes that came.
    #[inline]
    pub(super) fn claim(&self, completion: WorkCompletion) -> Result<(Slot, usize), ClaimError> {
        let wr_id = completion.wr_id();
        if wr_id.belongs_to(WorkKind::Receive, self.queue)
            && let Some(slot) = self.take(wr_id)
        {
            // A length beyond the slot would be the device's lie; it must not become an index.
            let len = completion.len_in_receive().min(slot.len());
            return Ok((slot, len));
        }
        self.claim_only_slot(completion)
    }

    /// The same of a receive that was posted as a list, of one slot. A list of others is not for `claim`: it is
    /// given up, as if it had been dropped.
    #[cold]
    fn claim_only_slot(&self, completion: WorkCompletion) -> Result<(Slot, usize), ClaimError> {
        let (wr_id, qp_num) = (completion.wr_id(), completion.qp_num());
        let (elements, len) = self.claim_elements(completion)?;
        let mut slots = elements.into_iter().map(Element::into_slot);
        match (slots.next().flatten(), slots.next()) {
            (Some(slot), None) => Ok((slot, len)),
            _ => Err(ClaimError { wr_id, qp_num }),
        }
    }

    /// The elements of a receive that has ended, whichever way it was posted, and the bytes that came.
    pub(super) fn claim_elements(
        &self,
        completion: WorkCompletion,
    ) -> Result<(Elements, usize), ClaimError> {
        let wr_id = completion.wr_id();
        if wr_id.belongs_to(WorkKind::Receive, self.queue) {
            let elements = self
                .take_list(wr_id)
                .or_else(|| self.take(wr_id).map(Elements::from));
            if let Some(elements) = elements {
                let len = completion.len_in_receive().min(elements.total_len());
                return Ok((elements, len));
            }
        }
        Err(ClaimError {
            wr_id,
            qp_num: completion.qp_num(),
        })
    }

    fn take_list(&self, wr_id: WrId) -> Option<Elements> {
        let place = self.begin_to_take(wr_id, POSTED_LIST)?;
        let elements = self.lists().remove(&self.numbering.index(wr_id));
        self.end_taking(place, wr_id);
        elements
    }

    /// Wins the place for this thread, if it is in `phase`.
    #[inline]
    fn begin_to_take(&self, wr_id: WrId, phase: u32) -> Option<&Place> {
        let place = self.places.get(self.numbering.index(wr_id) as usize)?;
        let generation = self.numbering.generation(wr_id);
        place
            .state
            .compare_exchange(
                generation << PHASE_BITS | phase,
                generation << PHASE_BITS | CLAIMING,
                // Acquire: pairs with the Release store of `post`.
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .ok()?;
        Some(place)
    }

    #[inline]
    fn end_taking(&self, place: &Place, wr_id: WrId) {
        let generation = self.numbering.generation(wr_id);
        let next = generation.wrapping_add(1) & self.numbering.generation_mask();
        // Release: what was there is out before the place can be filled again.
        place
            .state
            .store(next << PHASE_BITS | FREE, Ordering::Release);
    }

    #[inline]
    fn take(&self, wr_id: WrId) -> Option<Slot> {
        let place = self.begin_to_take(wr_id, POSTED)?;
        // SAFETY: this thread's compare-and-swap took the place from POSTED, so it holds an
        // initialised slot that nobody else can reach until the store below frees it.
        let slot = unsafe { (*place.slot.get()).assume_init_read() };
        self.end_taking(place, wr_id);
        Some(slot)
    }

    /// Takes every slot out. The device must have given up the queue.
    pub(super) fn drain(&mut self, mut release: impl FnMut(Slot)) {
        let lists = std::mem::take(&mut *self.lists());
        for slot in lists.into_values().flatten().filter_map(Element::into_slot) {
            release(slot);
        }
        self.places
            .drain(self.numbering.generation_mask(), &mut release);
    }
}

impl Drop for PostedReceives {
    fn drop(&mut self) {
        self.drain(drop);
    }
}

/// Twice as many places as receives: the cursor then finds a free one within a few steps even when some receives
/// are claimed much later than their neighbours.
fn places_for(capacity: usize) -> usize {
    capacity.saturating_mul(2).max(2)
}
