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

use rpc_core::transport::SlotsByPlace;

use crate::transport::plan::Plan;
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
        let mut slots = region.into_slots(limits.slot_len)?;
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
