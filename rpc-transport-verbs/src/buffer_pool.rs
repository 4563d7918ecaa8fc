//! The slots of one poller: one registration, cut once, and where each slot is.
//!
//! A slot is always in exactly one place, and each place has a bound; the pool's size is their sum:
//!
//! | place | who has it | how it leaves |
//! | --- | --- | --- |
//! | receive: free | this pool | posted in a batch, or given back to the reserve |
//! | receive: posted | the device, in the shared receive queue | a completion |
//! | receive: reserve | the async-event thread | posted when the poller lags |
//! | receive: held | the driver, as a `RecvBuf` | `release` |
//! | send: free | this pool | `reserve` |
//! | send: in hand | the driver, as a `SendBuf` | `send`, `cancel` |
//! | send: in flight | a connection's chain, then its queue pair | inline: the doorbell; else a completion |
//!
//! Receives and sends do not share free slots: a burst of answers can then never use up what the
//! credits have promised.

use std::fmt;
use std::iter::Sum;

use crate::sizing::Plan;
use crate::verbs::{Access, ProtectionDomain, Slot, VerbsError};

/// The free slots, and how many are in the driver's hands.
///
/// The free lists are stacks: the slot that came back last is the one whose cache lines are warm.
/// They have room for all their slots from the beginning, so that no path allocates.
#[derive(Debug)]
pub(crate) struct BufferPool {
    /// Waiting to be posted.
    pub(crate) receives: Vec<Slot>,
    sends: Vec<Slot>,
    held: u32,
    in_hand: u32,
    in_flight: u32,
}

impl BufferPool {
    /// Registers the poller's memory and cuts it. Gives the reserve's slots apart.
    pub(crate) fn register(
        domain: &ProtectionDomain,
        plan: &Plan,
    ) -> Result<(Self, Vec<Slot>), VerbsError> {
        let limits = &plan.limits;
        // No remote flags: peers reach these bytes through posted receives only, so plain byte
        // slices of a slot in hand are sound.
        let region = domain.register(limits.registered_len(), Access::LOCAL_WRITE)?;
        let mut slots = region.into_slots(limits.slot_len);
        // The provider may have rounded the region up; what is beyond the sum has no place.
        slots.truncate(limits.slots() as usize);
        let reserve = slots.split_off(slots.len() - limits.receives_reserved as usize);
        let receives = slots.split_off(limits.send_slots as usize);
        let mut pool = Self {
            receives: Vec::with_capacity(plan.srq_depth as usize),
            sends: Vec::with_capacity(slots.len()),
            held: 0,
            in_hand: 0,
            in_flight: 0,
        };
        pool.receives.extend(receives);
        // Turned round, so that the first slots to be used are the first of the region.
        pool.sends.extend(slots.into_iter().rev());
        Ok((pool, reserve))
    }

    /// Takes a send slot to be written.
    #[inline]
    pub(crate) fn take_send(&mut self) -> Option<Slot> {
        let slot = self.sends.pop()?;
        self.in_hand += 1;
        Some(slot)
    }

    /// A send slot has gone from the driver's hands to its connection's queue.
    #[inline]
    pub(crate) fn queue_send(&mut self) {
        self.in_hand -= 1;
        self.in_flight += 1;
    }

    /// A send slot has come back from the driver's hands.
    #[inline]
    pub(crate) fn cancel_send(&mut self, slot: Slot) {
        self.in_hand -= 1;
        self.sends.push(slot);
    }

    /// A send slot has come back from its connection's queue, or from the device.
    #[inline]
    pub(crate) fn complete_send(&mut self, slot: Slot) {
        self.in_flight -= 1;
        self.sends.push(slot);
    }

    /// A receive slot has gone to the driver.
    #[inline]
    pub(crate) fn hold_receive(&mut self) {
        self.held += 1;
    }

    /// A receive slot has come back from the driver.
    #[inline]
    pub(crate) fn release_receive(&mut self, slot: Slot) {
        self.held -= 1;
        self.receives.push(slot);
    }

    /// The places that this pool counts; those of receives that are with the device or with the
    /// async-event thread are added by their owners.
    pub(crate) fn by_place(&self) -> SlotsByPlace {
        SlotsByPlace {
            receives_free: self.receives.len() as u32,
            receives_held: self.held,
            sends_free: self.sends.len() as u32,
            sends_in_hand: self.in_hand,
            sends_in_flight: self.in_flight,
            ..SlotsByPlace::default()
        }
    }
}

/// How many slots are in each place at one moment.
///
/// The free ones are counted by looking, the others when a slot changes its place, so that the sum is
/// a check: it is [`Limits::slots`](rpc_core::limits::Limits::slots) as long as none was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotsByPlace {
    /// Waiting to be posted.
    pub receives_free: u32,
    /// In the shared receive queue, or consumed by the device and not polled yet.
    pub receives_posted: u32,
    /// In the hands of the async-event thread.
    pub receives_reserved: u32,
    /// In the driver's hands.
    pub receives_held: u32,
    /// Waiting to be reserved.
    pub sends_free: u32,
    /// In the driver's hands.
    pub sends_in_hand: u32,
    /// Queued for the device, or in flight.
    pub sends_in_flight: u32,
}

impl SlotsByPlace {
    /// The sum of all places.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.receives_free
            + self.receives_posted
            + self.receives_reserved
            + self.receives_held
            + self.sends_free
            + self.sends_in_hand
            + self.sends_in_flight
    }
}

/// Place by place.
impl Sum for SlotsByPlace {
    fn sum<I: Iterator<Item = Self>>(pools: I) -> Self {
        pools.fold(Self::default(), |sum, pool| Self {
            receives_free: sum.receives_free + pool.receives_free,
            receives_posted: sum.receives_posted + pool.receives_posted,
            receives_reserved: sum.receives_reserved + pool.receives_reserved,
            receives_held: sum.receives_held + pool.receives_held,
            sends_free: sum.sends_free + pool.sends_free,
            sends_in_hand: sum.sends_in_hand + pool.sends_in_hand,
            sends_in_flight: sum.sends_in_flight + pool.sends_in_flight,
        })
    }
}

impl fmt::Display for SlotsByPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} slots: receives {} free + {} posted + {} in reserve + {} held; sends {} free + {} in hand + {} in flight",
            self.total(),
            self.receives_free,
            self.receives_posted,
            self.receives_reserved,
            self.receives_held,
            self.sends_free,
            self.sends_in_hand,
            self.sends_in_flight
        )
    }
}
