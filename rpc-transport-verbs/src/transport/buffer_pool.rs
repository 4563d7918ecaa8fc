//! The slots of one poller: one memory region, cut into slots at startup, and the counts of where
//! the slots are.
//!
//! A slot is always in exactly one of these states. Each state has a bound, and the size of the
//! pool is the sum of the bounds:
//!
//! | state | owner | how a slot leaves it |
//! | --- | --- | --- |
//! | receive: free | this pool | posted in a batch, or returned to the reserve |
//! | receive: posted | the device, in the shared receive queue | a completion |
//! | receive: reserve | the async-event thread | posted when the poller lags |
//! | receive: held | the driver, as a `RecvBuf` | `release` |
//! | send: free | this pool | `reserve` |
//! | send: reserved | the driver, as a `SendBuf` | `send` (to free if inline), `cancel` |
//! | send: in flight | a connection's chain, then its queue pair | a completion |
//!
//! Receives and sends have separate free lists, so a burst of responses can never use up the
//! receives that the credits have promised.

use rpc_core::transport::SlotsByState;
use verbline_verbs::{Access, ProtectionDomain, Slot, VerbsError};

use crate::transport::plan::Plan;
use crate::transport::send_queue::CHAIN_LEN;

/// A connection that holds more slots than its floor may take another one while it holds less than
/// a quarter of the number that is free. If no other connection holds any, this allows it a fifth
/// of all slots.
const SHARE: usize = 4;

/// The free slots, and counts of the slots that the driver owns.
///
/// The free lists are stacks: the slot that was freed last has the warmest cache lines. Each list
/// has capacity for all its slots from the start, so no path allocates.
#[derive(Debug)]
pub(crate) struct BufferPool {
    /// Slots that wait to be posted.
    pub(crate) receives: Vec<Slot>,
    sends: Vec<Slot>,
    /// Number of send slots that a connection may hold, however few are free: its part of all of
    /// them, and at least a chain.
    floor: usize,
    held: u32,
    reserved: u32,
    in_flight: u32,
}

impl BufferPool {
    /// Registers the poller's memory and cuts it into slots. Returns the reserve's slots
    /// separately.
    pub(crate) fn register(
        domain: &ProtectionDomain,
        plan: &Plan,
    ) -> Result<(Self, Vec<Slot>), VerbsError> {
        let limits = &plan.limits;
        // No remote access flags: peers reach these bytes through posted receives only, so it is
        // sound to hand out a slot as a plain byte slice.
        let region = domain.register(limits.registered_len(), Access::LOCAL_WRITE)?;
        let mut slots = region.into_slots(limits.slot_len)?;
        // The provider may have rounded the region up. The pool does not use slots beyond the
        // planned number.
        slots.truncate(limits.slots() as usize);
        // The receives come first: a slot's index is also that of its entry in the table of posted
        // receives.
        let sends = slots.split_off(slots.len() - limits.send_slots as usize);
        let reserve = slots.split_off(slots.len() - limits.receives_reserved as usize);
        let mut pool = Self {
            receives: Vec::with_capacity(plan.srq_depth as usize),
            sends: Vec::with_capacity(sends.len()),
            floor: CHAIN_LEN.max(sends.len() / (limits.max_connections as usize).max(1)),
            held: 0,
            reserved: 0,
            in_flight: 0,
        };
        pool.receives.extend(slots);
        // Reversed, so that the first slots to be used are the first ones in the region.
        pool.sends.extend(sends.into_iter().rev());
        Ok((pool, reserve))
    }

    /// Returns true if a connection that holds `count` send slots may take another one. Asked only
    /// if there are several connections: a single one may hold all slots.
    ///
    /// A connection may hold as many slots as the sizing counts for it, and a chain at least. It
    /// may hold a quarter of the number that is free ([`SHARE`]) if that is more. A peer that
    /// acknowledges nothing, or is never ready to receive, therefore leaves most slots to the other
    /// connections, and the next such peer leaves them most of the rest.
    #[inline]
    pub(crate) fn has_share_for(&self, count: usize) -> bool {
        count < self.floor.max(self.sends.len() / SHARE)
    }

    /// Returns true if a send slot is free.
    #[inline]
    pub(crate) fn has_send(&self) -> bool {
        !self.sends.is_empty()
    }

    /// Takes a free send slot for the driver to fill.
    #[inline]
    pub(crate) fn take_send(&mut self) -> Option<Slot> {
        let slot = self.sends.pop()?;
        self.reserved += 1;
        Some(slot)
    }

    /// Counts a send slot that moves from the driver to its connection's chain.
    #[inline]
    pub(crate) fn queue_send(&mut self) {
        self.reserved -= 1;
        self.in_flight += 1;
    }

    /// Takes back a send slot that the driver did not send, or that was sent inline.
    #[inline]
    pub(crate) fn return_send(&mut self, slot: Slot) {
        self.reserved -= 1;
        self.sends.push(slot);
    }

    /// Takes back a send slot from its connection's chain or from the device.
    #[inline]
    pub(crate) fn complete_send(&mut self, slot: Slot) {
        self.in_flight -= 1;
        self.sends.push(slot);
    }

    /// Counts a receive slot that is handed to the driver.
    #[inline]
    pub(crate) fn hold_receive(&mut self) {
        self.held += 1;
    }

    /// Takes back a receive slot from the driver.
    #[inline]
    pub(crate) fn release_receive(&mut self, slot: Slot) {
        self.held -= 1;
        self.receives.push(slot);
    }

    /// Returns the number of receive slots that the driver has.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// Returns the counts that this pool keeps. The owners of the others (receives posted to the
    /// device, and receives of the async-event thread) add theirs.
    pub(crate) fn by_state(&self) -> SlotsByState {
        SlotsByState {
            receives_free: self.receives.len() as u32,
            receives_held: self.held,
            sends_free: self.sends.len() as u32,
            sends_reserved: self.reserved,
            sends_in_flight: self.in_flight,
            ..SlotsByState::default()
        }
    }
}
