//! The slots that are posted to one receive queue: where each waits for its completion.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use super::error::{ClaimError, PostError, PostErrorReason};
use super::slot::Slot;
use super::work_completion::WorkCompletion;
use super::wr_id::{GENERATION_BITS, QueueTag, WorkKind, WrId};
use crate::provider::ReceiveWork;

/// A table with a place for each receive that can be posted, and a few more.
///
/// Posting is for any thread, under a lock that is taken once per list. Claiming takes no lock: a
/// completion names its place, and one compare-and-swap on that place decides who gets the slot.
#[derive(Debug)]
pub(super) struct PostedReceives {
    places: Box<[Place]>,
    queue: QueueTag,
    posting: Mutex<Posting>,
    capacity: usize,
}

#[derive(Debug)]
struct Posting {
    /// Where the next free place is looked for. Receives are consumed nearly in the order in which
    /// they were posted, so the place after the last one taken is nearly always free.
    cursor: usize,
    /// The device's list, kept for its memory.
    work: Vec<ReceiveWork>,
}

struct Place {
    /// `generation << 2 | phase`.
    state: AtomicU32,
    slot: UnsafeCell<MaybeUninit<Slot>>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Place({:#x})", self.state.load(Ordering::Relaxed))
    }
}

/// The place is empty; only the holder of the posting lock may fill it.
const FREE: u32 = 0;
/// It holds a slot that the device has.
const POSTED: u32 = 1;
/// A claimer has won the slot and is moving it out.
const CLAIMING: u32 = 2;
const PHASE_BITS: u32 = 2;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

// SAFETY: `slot` is touched by the holder of `posting` while the phase is FREE, and by the one
// thread whose compare-and-swap took the phase from POSTED to CLAIMING; the phase's Release stores
// and Acquire loads hand it from one to the other. Slots are Send.
unsafe impl Sync for PostedReceives {}

impl PostedReceives {
    /// For a queue that takes `capacity` receives at a time.
    pub(super) fn new(queue: QueueTag, capacity: usize) -> Self {
        // Twice as many places: the cursor then finds a free one within a few steps even when some
        // receives are claimed much later than their neighbours.
        let places = (capacity * 2).max(2);
        Self {
            places: (0..places)
                .map(|_| Place {
                    state: AtomicU32::new(FREE),
                    slot: UnsafeCell::new(MaybeUninit::uninit()),
                })
                .collect(),
            queue,
            posting: Mutex::new(Posting {
                cursor: 0,
                work: Vec::with_capacity(capacity),
            }),
            capacity,
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
        // A thread that panicked under the lock left the table whole: each step below does.
        let mut posting = self.posting.lock().unwrap_or_else(PoisonError::into_inner);
        let Posting { cursor, work } = &mut *posting;
        work.clear();
        let mut full = false;
        for _ in 0..count {
            let Some((index, generation)) = self.find_free(cursor) else {
                full = true;
                break;
            };
            let Some(slot) = slots.pop() else { break };
            work.push(ReceiveWork {
                wr_id: WrId::new(WorkKind::Receive, self.queue, index, generation),
                addr: slot.start(),
                len: slot.len32(),
                local_key: slot.local_key(),
            });
            let place = &self.places[index as usize];
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
                    capacity: self.capacity,
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

    fn find_free(&self, cursor: &mut usize) -> Option<(u32, u32)> {
        for _ in 0..self.places.len() {
            let index = *cursor;
            *cursor = if index + 1 == self.places.len() {
                0
            } else {
                index + 1
            };
            // Acquire: the claimer has moved its slot out before this thread fills the place.
            let state = self.places[index].state.load(Ordering::Acquire);
            if state & ((1 << PHASE_BITS) - 1) == FREE {
                let index = u32::try_from(index).expect("a queue's depth fits 32 bits");
                return Some((index, state >> PHASE_BITS & GENERATION_MASK));
            }
        }
        None
    }

    /// The slot of a receive that has ended, and the bytes that came.
    pub(super) fn claim(&self, completion: WorkCompletion) -> Result<(Slot, usize), ClaimError> {
        let wr_id = completion.wr_id();
        if wr_id.belongs_to(WorkKind::Receive, self.queue)
            && let Some(slot) = self.take(wr_id)
        {
            // A length beyond the slot would be the device's lie; it must not become an index.
            let len = completion.byte_len().min(slot.len());
            return Ok((slot, len));
        }
        Err(ClaimError {
            wr_id,
            qp_num: completion.qp_num(),
        })
    }

    fn take(&self, wr_id: WrId) -> Option<Slot> {
        let place = self.places.get(wr_id.index() as usize)?;
        let generation = wr_id.generation();
        place
            .state
            .compare_exchange(
                generation << PHASE_BITS | POSTED,
                generation << PHASE_BITS | CLAIMING,
                // Acquire: pairs with the Release store of `post`.
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .ok()?;
        // SAFETY: this thread's compare-and-swap took the place from POSTED, so it holds an
        // initialised slot that nobody else can reach until the store below frees it.
        let slot = unsafe { (*place.slot.get()).assume_init_read() };
        let next = generation.wrapping_add(1) & GENERATION_MASK;
        // Release: the slot is out before the place can be filled again.
        place
            .state
            .store(next << PHASE_BITS | FREE, Ordering::Release);
        Some(slot)
    }

    /// Takes every slot out. The device must have given up the queue.
    pub(super) fn drain(&mut self, mut release: impl FnMut(Slot)) {
        for place in &mut self.places {
            let state = *place.state.get_mut();
            if state & ((1 << PHASE_BITS) - 1) == POSTED {
                // SAFETY: POSTED means initialised, and `&mut self` means that nobody is claiming.
                release(unsafe { place.slot.get_mut().assume_init_read() });
                let next = (state >> PHASE_BITS).wrapping_add(1) & GENERATION_MASK;
                *place.state.get_mut() = next << PHASE_BITS | FREE;
            }
        }
    }
}

impl Drop for PostedReceives {
    fn drop(&mut self) {
        self.drain(drop);
    }
}
