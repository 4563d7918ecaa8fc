//! The table of slots that are posted to one receive queue.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::element::{Element, Elements};
use super::receive_table::{
    CLAIMING, FREE, POSTED, POSTED_LIST, ReceiveEntry, ReceiveTable, is_free, number_in, state,
};
use super::slot::Slot;
use super::types::claim_error::ClaimError;
use super::types::post_error::{PostError, PostErrorReason};
use super::types::verbs_error::VerbsError;
use super::types::work_completion::WorkCompletion;
use super::types::wr_id::{MAX_DEPTH, Numbering, QueueTag, WorkKind, WrId};
use super::work_request::ReceiveRequest;
use crate::provider::{ReceiveList, ReceiveWork, Sge};

/// A table with one entry for each receive that can be posted, plus spare entries.
///
/// Any thread may post; posting takes a lock once per chain. Claiming takes no lock: a completion
/// names its entry, and one compare-and-swap on that entry decides which thread gets the slot.
#[derive(Debug)]
pub(super) struct PostedReceives {
    table: ReceiveTable,
    numbering: Numbering,
    queue: QueueTag,
    /// The id of request 0.
    first_id: WrId,
    posting: Mutex<Posting>,
    /// The elements of multi-element receives, by entry index. Locked after `posting` where both
    /// are held.
    lists: Mutex<HashMap<u32, Elements>>,
    /// Maximum elements per receive.
    max_sge: usize,
}

#[derive(Debug)]
struct Posting {
    /// Capacity of the device's queue, in receives.
    capacity: usize,
    /// Number of entries.
    entry_count: usize,
    /// Where the search for a free entry starts, for receives without an entry of their own.
    cursor: usize,
    /// The chains for the device, kept to reuse their allocations.
    work: Vec<ReceiveWork>,
    work_lists: Vec<ReceiveList>,
    elements: Vec<Sge>,
}

// SAFETY: `slot` is accessed by the holder of the `posting` lock while the phase is FREE, and by
// the one thread whose compare-and-swap changed the phase from POSTED to CLAIMING. The phase's
// Release stores and Acquire loads transfer it from one to the other. Slots are Send.
unsafe impl Sync for PostedReceives {}

impl PostedReceives {
    /// Creates the table of a queue with a capacity of `capacity` receives, each of at most
    /// `max_sge` elements, which may become `growth` times as deep.
    pub(super) fn new(queue: QueueTag, capacity: usize, max_sge: usize, growth: usize) -> Self {
        let entry_count = entries_for(capacity);
        Self {
            table: ReceiveTable::new(entry_count),
            numbering: Numbering::new(entry_count, growth),
            queue,
            first_id: WrId::new(WorkKind::Receive, queue, 0),
            posting: Mutex::new(Posting {
                capacity,
                entry_count,
                cursor: 0,
                work: Vec::with_capacity(capacity),
                work_lists: Vec::new(),
                elements: Vec::new(),
            }),
            lists: Mutex::default(),
            max_sge,
        }
    }

    /// Moves up to `count` slots from the end of `slots` into the table and passes them to `post`,
    /// which returns how many the device accepted. The others are returned to `slots`.
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
        // A poisoned lock is usable: each step below leaves the table consistent.
        let mut posting = self.posting.lock().unwrap_or_else(PoisonError::into_inner);
        let Posting {
            capacity,
            entry_count,
            cursor,
            work,
            ..
        } = &mut *posting;
        // Local values stay in registers.
        let (mut free, mut filled) = (mem::take(slots), mem::take(work));
        filled.clear();
        while filled.len() < count
            && let Some(slot) = free.pop()
        {
            let Some((entry, number)) = self.own_entry(&slot) else {
                free.push(slot);
                break;
            };
            // SAFETY: `own_entry` has just found the entry free, and this thread holds the lock.
            filled.push(unsafe { self.fill(entry, number, slot) });
        }
        (*slots, *work) = (free, filled);
        // The others have no entry of their own, or another slot is in it.
        while work.len() < count
            && let Some((entry, number)) = self.find_free(cursor, *entry_count)
            && let Some(slot) = slots.pop()
        {
            // SAFETY: `find_free` has just found the entry free, and this thread holds the lock.
            work.push(unsafe { self.fill(entry, number, slot) });
        }
        let full = work.len() < count;
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
            // Returned in reverse, to restore their order: the first rejected slot was nearest the
            // end.
            for work in work[refused.taken.min(work.len())..].iter().rev() {
                slots.extend(self.take(work.wr_id));
            }
        }
        posted
    }

    /// Posts receives of several elements each, from the front of `requests`. Those that were not
    /// accepted remain there.
    pub(super) fn post_lists(
        &self,
        requests: &mut Vec<ReceiveRequest>,
        post: impl FnOnce(&[ReceiveList], &[Sge]) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let mut posting = self.posting.lock().unwrap_or_else(PoisonError::into_inner);
        let Posting {
            capacity,
            entry_count,
            cursor,
            work_lists: work,
            elements,
            ..
        } = &mut *posting;
        work.clear();
        elements.clear();
        let mut refused = None;
        let mut entries = Vec::with_capacity(requests.len());
        for request in &*requests {
            let count = request.elements.0.len();
            if count > self.max_sge {
                let limit = self.max_sge;
                refused = Some(PostErrorReason::TooManyElements { count, limit });
                break;
            }
            let Some((entry, number)) = self.find_free(cursor, *entry_count) else {
                let capacity = *capacity;
                refused = Some(PostErrorReason::QueueFull { capacity });
                break;
            };
            // CLAIMING keeps later iterations from finding the entry again, and other threads from
            // claiming a receive that the device does not have yet.
            entry
                .state
                .store(state(number, CLAIMING), Ordering::Relaxed);
            entries.push((entry, number));
            work.push(ReceiveList {
                wr_id: self.first_id.with_number(number),
                first: elements.len(),
                count,
            });
            elements.extend(request.elements.0.iter().map(Element::sge));
        }
        let mut lists = self.lists();
        for (request, (entry, number)) in requests.drain(..entries.len()).zip(&entries) {
            lists.insert(self.numbering.index(*number), request.elements);
            // Release, as in `post`: the claiming thread sees the elements.
            entry
                .state
                .store(state(*number, POSTED_LIST), Ordering::Release);
        }
        drop(lists);
        let posted = match (post(work, elements), refused) {
            (Ok(()), Some(reason)) => Err(PostError {
                taken: entries.len(),
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
        // A poisoned lock is usable: the map is changed in one step.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the largest depth that the queue can grow to: two entries per receive must be
    /// numbered.
    fn max_depth(&self) -> usize {
        (self.numbering.max_entries() / 2).min(MAX_DEPTH as usize)
    }

    /// Returns the entry with the slot's index if it is free. If the slots come from one region,
    /// each slot always has the same entry, so the entry of a slot that was used recently is in the
    /// cache.
    #[inline]
    fn own_entry(&self, slot: &Slot) -> Option<(&ReceiveEntry, u32)> {
        let entry = self.table.get_first(slot.index().0 as usize)?;
        // Acquire: the claiming thread has moved its slot out before this thread fills the entry.
        let state = entry.state.load(Ordering::Acquire);
        is_free(state).then(|| (entry, number_in(state)))
    }

    /// Moves a slot into an entry.
    ///
    /// # Safety
    ///
    /// The caller must hold the posting lock, and have found the entry free under it, with this
    /// number.
    #[inline]
    unsafe fn fill(&self, entry: &ReceiveEntry, number: u32, slot: Slot) -> ReceiveWork {
        let work = ReceiveWork {
            wr_id: self.first_id.with_number(number),
            addr: slot.start(),
            len: slot.len32(),
            local_key: slot.local_key(),
        };
        // SAFETY: the caller guarantees that the phase is FREE and that this thread holds the
        // posting lock, so until the store below no other thread accesses the cell.
        unsafe { (*entry.slot.get()).write(slot) };
        // Release: the thread that claims the entry sees the slot. Stored before the device gets
        // the work request, because its completion may be claimed at once.
        entry.state.store(state(number, POSTED), Ordering::Release);
        work
    }

    /// Finds a free entry from the cursor on, and moves the cursor past it. Returns the entry with
    /// the number of its next request.
    #[cold]
    #[inline(never)]
    fn find_free(&self, cursor: &mut usize, entry_count: usize) -> Option<(&ReceiveEntry, u32)> {
        for _ in 0..entry_count {
            let index = *cursor;
            *cursor = if index + 1 == entry_count {
                0
            } else {
                index + 1
            };
            let entry = self.table.get(index)?;
            // Acquire, as in `own_entry`.
            let state = entry.state.load(Ordering::Acquire);
            if is_free(state) {
                return Some((entry, number_in(state)));
            }
        }
        None
    }

    /// Changes the depth. `resize` calls the device, and returns the depth that it granted. Posting
    /// is blocked meanwhile.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] for fewer receives than are posted, or more than can be numbered.
    /// The device is not called in that case, because some devices then lose the queue.
    pub(super) fn resize(
        &self,
        max_wr: usize,
        resize: impl FnOnce() -> Result<usize, VerbsError>,
    ) -> Result<(), VerbsError> {
        let mut posting = self.posting.lock().unwrap_or_else(PoisonError::into_inner);
        // Receives that have ended and are not claimed yet count as well: only the device can
        // distinguish them from posted ones.
        let (min, max) = (self.table.taken().max(1), self.max_depth());
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
        posting.entry_count = self
            .table
            .grow(entries_for(granted), self.numbering.max_entries());
        Ok(())
    }

    /// Returns the slot of a receive that has ended, and the number of bytes received.
    #[inline]
    pub(super) fn claim(&self, completion: WorkCompletion) -> Result<(Slot, usize), ClaimError> {
        let wr_id = completion.wr_id();
        if wr_id.belongs_to(WorkKind::Receive, self.queue)
            && let Some(slot) = self.take(wr_id)
        {
            // The device must not report more bytes than the slot has; if it does, the length must
            // not become an index.
            let len = completion.len_in_receive().min(slot.len());
            return Ok((slot, len));
        }
        self.claim_only_slot(completion)
    }

    /// Claims a one-slot receive that was posted as a list. A list with other elements cannot be
    /// returned as a slot: it is dropped, and the call fails.
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

    /// Returns the elements of a receive that has ended, whichever way it was posted, and the
    /// number of bytes received.
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
        let entry = self.begin_to_take(wr_id, POSTED_LIST)?;
        let elements = self.lists().remove(&self.numbering.index(wr_id.number()));
        self.end_taking(entry, wr_id);
        elements
    }

    /// Gains exclusive access to the entry for this thread, if it is in `phase`.
    #[inline]
    fn begin_to_take(&self, wr_id: WrId, phase: u64) -> Option<&ReceiveEntry> {
        let number = wr_id.number();
        let entry = self.table.get(self.numbering.index(number) as usize)?;
        entry
            .state
            .compare_exchange(
                state(number, phase),
                state(number, CLAIMING),
                // Acquire: pairs with the Release store in `post`.
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .ok()?;
        Some(entry)
    }

    #[inline]
    fn end_taking(&self, entry: &ReceiveEntry, wr_id: WrId) {
        let next = self.numbering.next(wr_id.number());
        // Release: the entry's content has been moved out before the entry can be filled again.
        entry.state.store(state(next, FREE), Ordering::Release);
    }

    #[inline]
    fn take(&self, wr_id: WrId) -> Option<Slot> {
        let entry = self.begin_to_take(wr_id, POSTED)?;
        // SAFETY: this thread's compare-and-swap changed the phase from POSTED, so the entry holds
        // an initialized slot that no other thread can access until the store in `end_taking` frees
        // it.
        let slot = unsafe { (*entry.slot.get()).assume_init_read() };
        self.end_taking(entry, wr_id);
        Some(slot)
    }

    /// Takes out every slot. The device must have released the queue.
    pub(super) fn drain(&mut self, mut release: impl FnMut(Slot)) {
        let lists = mem::take(&mut *self.lists());
        for slot in lists.into_values().flatten().filter_map(Element::into_slot) {
            release(slot);
        }
        self.table.drain(self.numbering, &mut release);
    }
}

impl Drop for PostedReceives {
    fn drop(&mut self) {
        self.drain(drop);
    }
}

/// Returns twice as many entries as receives. Most slots of a region then have an entry of their
/// own, and the cursor finds a free entry for the others within a few steps, even if some receives
/// are claimed much later than their neighbors.
fn entries_for(capacity: usize) -> usize {
    capacity.saturating_mul(2).max(2)
}
