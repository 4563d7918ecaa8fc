//! The table of slots that are posted to one receive queue.

use std::collections::HashMap;
use std::mem;

use biased_lock::BiasedLock;

use super::element::{Element, Elements};
use super::slot::Slot;
use super::types::claim_error::ClaimError;
use super::types::post_error::{PostError, PostErrorReason};
use super::types::queue_pair_attributes::QpNum;
use super::types::verbs_error::VerbsError;
use super::types::work_completion::WorkCompletion;
use super::types::wr_id::{MAX_DEPTH, Numbering, QueueTag, WorkKind, WrId};
use super::work_request::ReceiveRequest;
use crate::provider::{ReceiveList, ReceiveWork, Sge};

/// A table with one entry for each receive that can be posted, plus spare entries.
///
/// Any thread may post and claim. The lock costs the thread that does most of it next to nothing, and is held
/// while the device is called: another thread that claims meanwhile waits for as long as a post takes.
#[derive(Debug)]
pub(super) struct PostedReceives {
    table: BiasedLock<Table>,
    numbering: Numbering,
    queue: QueueTag,
    /// Maximum elements per receive.
    max_sge: usize,
}

#[derive(Debug)]
struct Table {
    entries: Vec<Entry>,
    /// The elements of multi-element receives, by entry index.
    lists: HashMap<u32, Elements>,
    numbering: Numbering,
    /// The id of request 0.
    first_id: WrId,
    /// Capacity of the device's queue, in receives.
    capacity: usize,
    /// Where the search for a free entry starts, for receives without an entry of their own.
    cursor: usize,
    /// The chains for the device, kept to reuse their allocations.
    work: Vec<ReceiveWork>,
    work_lists: Vec<ReceiveList>,
    elements: Vec<Sge>,
}

/// One entry: free, or with a receive that the device has.
#[derive(Debug)]
struct Entry {
    /// The number of the entry's request, or of its next one.
    number: u32,
    /// The entry stands for a receive of several elements, which are in the table's lists.
    is_list: bool,
    slot: Option<Slot>,
}

impl PostedReceives {
    /// Creates the table of a queue with a capacity of `capacity` receives, each of at most
    /// `max_sge` elements, which may become `growth` times as deep.
    pub(super) fn new(queue: QueueTag, capacity: usize, max_sge: usize, growth: usize) -> Self {
        let numbering = Numbering::new(entries_for(capacity), growth);
        let mut table = Table {
            entries: Vec::new(),
            lists: HashMap::new(),
            numbering,
            first_id: WrId::new(WorkKind::Receive, queue, 0),
            capacity,
            cursor: 0,
            work: Vec::with_capacity(capacity),
            work_lists: Vec::new(),
            elements: Vec::new(),
        };
        table.grow(entries_for(capacity));
        Self {
            table: BiasedLock::new(table),
            numbering,
            queue,
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
        let table = &mut *self.table.enter();
        table.work.clear();
        while table.work.len() < count
            && let Some(slot) = slots.pop()
        {
            // The same entry each time, if the slots come from one region: it is in the cache.
            let own = slot.index().0 as usize;
            let index = match table.entries.get(own) {
                Some(entry) if entry.is_free() => own,
                // It has none, or another region's slot is in it.
                _ => match table.find_free() {
                    Some(index) => index,
                    None => {
                        slots.push(slot);
                        break;
                    }
                },
            };
            table.fill(index, slot);
        }
        let posted = match post(&table.work) {
            Ok(()) if table.work.len() < count => Err(PostError {
                taken: table.work.len(),
                reason: table.full(),
            }),
            posted => posted,
        };
        if let Err(refused) = &posted {
            let refused = refused.taken.min(table.work.len());
            // Returned in reverse, to restore their order: the first rejected slot was nearest the
            // end.
            for refused in (refused..table.work.len()).rev() {
                slots.extend(table.take(table.work[refused].wr_id));
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
        let table = &mut *self.table.enter();
        table.work_lists.clear();
        table.elements.clear();
        let mut refused = None;
        for request in &mut *requests {
            let count = request.elements.0.len();
            if count > self.max_sge {
                let limit = self.max_sge;
                refused = Some(PostErrorReason::TooManyElements { count, limit });
                break;
            }
            let Some(index) = table.find_free() else {
                refused = Some(table.full());
                break;
            };
            table.fill_with_list(index, mem::take(&mut request.elements));
        }
        let filled = table.work_lists.len();
        let posted = match (post(&table.work_lists, &table.elements), refused) {
            (Ok(()), Some(reason)) => Err(PostError {
                taken: filled,
                reason,
            }),
            (posted, _) => posted,
        };
        let accepted = match &posted {
            Ok(()) => filled,
            Err(error) => error.taken.min(filled),
        };
        for (index, request) in requests[..filled].iter_mut().enumerate().skip(accepted) {
            let back = table.take_elements(table.work_lists[index].wr_id);
            request.elements = back.expect("this call has filled the entry");
        }
        requests.drain(..accepted);
        posted
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
        let table = &mut *self.table.enter();
        // Receives that have ended and are not claimed yet count as well: only the device can
        // distinguish them from posted ones.
        let taken = table
            .entries
            .iter()
            .filter(|entry| !entry.is_free())
            .count();
        let (min, max) = (taken.max(1), self.max_depth());
        if !(min..=max).contains(&max_wr) {
            return Err(VerbsError::OutOfRange {
                call: "modify_srq",
                parameter: "max_wr",
                value: max_wr as u64,
                min: min as u64,
                max: max as u64,
            });
        }
        table.capacity = resize()?;
        table.grow(entries_for(table.capacity));
        Ok(())
    }

    /// Returns the largest depth that the queue can grow to: two entries per receive must be
    /// numbered.
    fn max_depth(&self) -> usize {
        (self.numbering.max_entries() / 2).min(MAX_DEPTH as usize)
    }

    /// Returns the slot of a receive that has ended, and the number of bytes received.
    #[inline]
    pub(super) fn claim(&self, completion: WorkCompletion) -> Result<(Slot, usize), ClaimError> {
        let (wr_id, qp_num) = (completion.wr_id(), completion.qp_num());
        let len = completion.len_in_receive();
        if wr_id.belongs_to(WorkKind::Receive, self.queue)
            && let Some(slot) = self.table.enter().take(wr_id)
        {
            // The device must not report more bytes than the slot has; if it does, the length must
            // not become an index.
            let len = len.min(slot.len());
            return Ok((slot, len));
        }
        self.claim_only_slot(wr_id, qp_num, len)
    }

    /// Claims a one-slot receive that was posted as a list. A list with other elements cannot be
    /// returned as a slot: it is dropped, and the call fails.
    #[cold]
    fn claim_only_slot(
        &self,
        wr_id: WrId,
        qp_num: QpNum,
        len: usize,
    ) -> Result<(Slot, usize), ClaimError> {
        let (elements, len) = self.claim_elements_of(wr_id, qp_num, len)?;
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
        let (wr_id, qp_num) = (completion.wr_id(), completion.qp_num());
        self.claim_elements_of(wr_id, qp_num, completion.len_in_receive())
    }

    fn claim_elements_of(
        &self,
        wr_id: WrId,
        qp_num: QpNum,
        len: usize,
    ) -> Result<(Elements, usize), ClaimError> {
        if wr_id.belongs_to(WorkKind::Receive, self.queue)
            && let Some(elements) = self.table.enter().take_elements(wr_id)
        {
            let len = len.min(elements.total_len());
            return Ok((elements, len));
        }
        Err(ClaimError { wr_id, qp_num })
    }

    /// Takes out every slot. The device must have released the queue. If `release` panics, it owns the slot
    /// that it was passed, and the others remain here.
    pub(super) fn drain(&mut self, mut release: impl FnMut(Slot)) {
        let table = self.table.get_mut();
        let lists = mem::take(&mut table.lists);
        for slot in lists.into_values().flatten().filter_map(Element::into_slot) {
            release(slot);
        }
        for entry in &mut table.entries {
            if !entry.is_free() {
                entry.end(self.numbering);
            }
            if let Some(slot) = entry.slot.take() {
                release(slot);
            }
        }
    }
}

impl Table {
    fn full(&self) -> PostErrorReason {
        PostErrorReason::QueueFull {
            capacity: self.capacity,
        }
    }

    /// Grows to at least `count` entries, but to no more than can be numbered.
    fn grow(&mut self, count: usize) {
        let count = count.min(self.numbering.max_entries());
        // Cannot truncate: numbers have 32 bits. The first generation is 0.
        let added = (self.entries.len()..count).map(|index| Entry {
            number: index as u32,
            is_list: false,
            slot: None,
        });
        self.entries.extend(added);
    }

    /// Finds a free entry from the cursor on, and moves the cursor past it.
    #[cold]
    #[inline(never)]
    fn find_free(&mut self) -> Option<usize> {
        let (before, from) = self.entries.split_at(self.cursor);
        let free = |entries: &[Entry]| entries.iter().position(Entry::is_free);
        let index = match free(from) {
            Some(index) => self.cursor + index,
            None => free(before)?,
        };
        self.cursor = if index + 1 == self.entries.len() {
            0
        } else {
            index + 1
        };
        Some(index)
    }

    /// Moves a slot into a free entry, and adds its receive to the chain for the device.
    #[inline]
    fn fill(&mut self, index: usize, slot: Slot) {
        let entry = &mut self.entries[index];
        self.work.push(ReceiveWork {
            wr_id: self.first_id.with_number(entry.number),
            addr: slot.start(),
            len: slot.len32(),
            local_key: slot.local_key(),
        });
        entry.slot = Some(slot);
    }

    /// The same with a list of elements.
    fn fill_with_list(&mut self, index: usize, elements: Elements) {
        let entry = &mut self.entries[index];
        self.work_lists.push(ReceiveList {
            wr_id: self.first_id.with_number(entry.number),
            first: self.elements.len(),
            count: elements.0.len(),
        });
        self.elements.extend(elements.0.iter().map(Element::sge));
        entry.is_list = true;
        // The cast is lossless: indices can be numbered.
        self.lists.insert(index as u32, elements);
    }

    /// Returns the entry of a request that has not been taken back yet.
    #[inline]
    fn entry(&mut self, number: u32) -> Option<&mut Entry> {
        let entry = self
            .entries
            .get_mut(self.numbering.index(number) as usize)?;
        (entry.number == number).then_some(entry)
    }

    /// Takes the slot of a receive out of its entry.
    #[inline]
    fn take(&mut self, wr_id: WrId) -> Option<Slot> {
        let numbering = self.numbering;
        let entry = self.entry(wr_id.number())?;
        let slot = entry.slot.take()?;
        entry.end(numbering);
        Some(slot)
    }

    /// Takes the elements of a receive out of its entry, whichever way it was posted.
    fn take_elements(&mut self, wr_id: WrId) -> Option<Elements> {
        if let Some(slot) = self.take(wr_id) {
            return Some(slot.into());
        }
        let number = wr_id.number();
        let is_list = self.entry(number)?.is_list;
        is_list.then(|| {
            let numbering = self.numbering;
            self.entries[numbering.index(number) as usize].end(numbering);
            let elements = self.lists.remove(&numbering.index(number));
            elements.expect("a list has its elements while its entry says that there is one")
        })
    }
}

impl Entry {
    #[inline]
    fn is_free(&self) -> bool {
        self.slot.is_none() && !self.is_list
    }

    /// Frees the entry for its next request.
    #[inline]
    fn end(&mut self, numbering: Numbering) {
        self.number = numbering.next(self.number);
        self.is_list = false;
    }
}

/// Returns twice as many entries as receives. Most slots of a region then have an entry of their
/// own, and the cursor finds a free entry for the others within a few steps, even if some receives
/// are claimed much later than their neighbors.
fn entries_for(capacity: usize) -> usize {
    capacity.saturating_mul(2).max(2)
}
