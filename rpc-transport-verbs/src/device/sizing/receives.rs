//! The receives of a poller, and the send slots that share its memory.

use rpc_core::Intents;
use rpc_core::transport::FabricError;
use verbline_verbs::DeviceAttributes;

use super::arithmetic::{frames_in_flight, largest};
use super::refusals::{NoSharedReceiveQueue, does_not_fit, too_much, with_advice};
use super::{POLL_BATCH, REFILL_BATCH, Sizing};

/// Maximum number of receives posted for one poller, unless there are so many connections that they
/// need more for their minimum. With 4 KiB messages: 4.25 MiB.
const MAX_RECEIVES_POSTED: u32 = 1024;

/// Minimum number of receives for each connection: two for the peer's control frame and
/// acknowledgement, one for a call (the core promises these three), and two so that the window can
/// grow.
const MIN_RECEIVES_PER_CONNECTION: u32 = 5;

/// Maximum number of send slots of a poller. A frame above the inline size occupies a slot until
/// its completion, which takes a network round trip; a smaller frame only while it is written.
const MAX_SEND_SLOTS: u32 = 1024;

/// Minimum number of send slots, so a batch of received requests can be answered in one turn.
const MIN_SEND_SLOTS: u32 = 64;

/// Receive slots of one poller, by purpose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receives {
    pub(super) posted: u32,
    pub(super) reserved: u32,
    pub(super) held: u32,
    /// The number `posted` would have on a device without limits.
    pub(super) wanted: u32,
}

impl Receives {
    /// Determines the number of receives. A derived number is reduced until it fits, but not below
    /// the minimum of each connection. A number set by an expert is not reduced.
    fn choose(
        connections: u32,
        max_in_flight: u32,
        sizing: &Sizing,
        fits: impl Fn(&Self) -> bool,
    ) -> Self {
        if let Some(posted) = sizing.receives_posted {
            return Self::around(posted.max(1), sizing);
        }
        // All frames that the clients may have in flight, up to a reasonable amount of memory. The
        // credits never exceed the posted receives.
        let least = connections
            .saturating_mul(MIN_RECEIVES_PER_CONNECTION)
            .max(1);
        let wanted = frames_in_flight(connections, max_in_flight)
            .min(MAX_RECEIVES_POSTED)
            .max(least);
        let of = |posted| Self {
            wanted,
            ..Self::around(posted, sizing)
        };
        of(largest(wanted, |posted| fits(&of(posted))).max(least))
    }

    pub(super) fn around(posted: u32, sizing: &Sizing) -> Self {
        // A quarter, because the reserve is posted when three quarters have been used: before the
        // next event, the peers may then use as many receives as they used before this one.
        let reserved = sizing.receives_reserved.unwrap_or((posted / 4).max(1));
        // One batch owned by the driver, two batches that wait to be posted again, and as many as
        // the reserve. `receive_queue` explains why no frame then finds the queue empty.
        let held = sizing
            .receives_held
            .unwrap_or_else(|| reserved.saturating_add(POLL_BATCH + 2 * REFILL_BATCH))
            .max(1);
        Self {
            posted,
            reserved,
            held,
            wanted: posted,
        }
    }

    /// Returns the depth of the shared receive queue, in which all receive slots may be posted at
    /// once.
    pub(super) fn srq_depth(&self) -> u64 {
        u64::from(self.posted) + u64::from(self.reserved) + u64::from(self.held)
    }
}

/// The queue entries and the memory that the slots of one poller may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget<'a> {
    connections: u32,
    max_in_flight: u32,
    slot_len: usize,
    sizing: &'a Sizing,
    /// Largest depth of a shared receive queue.
    pub(super) deepest_srq: u64,
    /// Bytes that may be locked for slots.
    lockable: u64,
    /// Bytes that the user allows.
    pub(super) max_memory: u64,
}

impl<'a> Budget<'a> {
    /// Reads the limits of the device and of the user.
    ///
    /// # Errors
    ///
    /// Returns an error if the device has no shared receive queues.
    pub(super) fn new(
        device: &str,
        intents: &Intents,
        slot_len: usize,
        sizing: &'a Sizing,
        attributes: &DeviceAttributes,
    ) -> Result<Self, FabricError> {
        if attributes.max_srq == 0 {
            return Err(FabricError::Device {
                device: device.to_owned(),
                action: "cannot be used".to_owned(),
                source: Box::new(NoSharedReceiveQueue),
            });
        }
        Ok(Self {
            connections: intents.connections,
            max_in_flight: intents.max_in_flight,
            slot_len,
            sizing,
            deepest_srq: (attributes.max_srq_wr as u64).min(u32::MAX.into()),
            // Half of the limit, because the device's queues may also be locked.
            lockable: (attributes.max_locked_len / 2) as u64,
            max_memory: intents.max_memory.unwrap_or(u64::MAX),
        })
    }

    /// Returns the number of send slots that go with these receives.
    pub(super) fn send_slots(&self, receives: &Receives) -> u32 {
        match self.sizing.send_slots {
            Some(slots) => slots.max(1),
            None => {
                let wanted = frames_in_flight(self.connections, self.max_in_flight)
                    .clamp(MIN_SEND_SLOTS, MAX_SEND_SLOTS);
                // If the number of receives was reduced, reduce the send slots too.
                match receives.posted < receives.wanted {
                    true => wanted.min(receives.posted.max(MIN_SEND_SLOTS)),
                    false => wanted,
                }
            }
        }
    }

    /// Returns the bytes that are locked for these receives and their send slots.
    pub(super) fn locked(&self, receives: &Receives) -> u64 {
        (receives.srq_depth() + u64::from(self.send_slots(receives))) * self.slot_len as u64
    }

    fn fits(&self, receives: &Receives) -> bool {
        receives.srq_depth() <= self.deepest_srq
            && self.locked(receives) <= self.lockable.min(self.max_memory)
    }

    /// Returns the receives of a poller with `connections`, which may be fewer than intended.
    pub(super) fn receives_for(&self, connections: u32) -> Receives {
        Receives::choose(connections, self.max_in_flight, self.sizing, |receives| {
            self.fits(receives)
        })
    }

    /// Returns the receives of a poller with all intended connections.
    ///
    /// # Errors
    ///
    /// Returns an error if the device's shared receive queues are too short for them, or if they
    /// need more memory than the user allows.
    pub(super) fn receives(&self) -> Result<Receives, FabricError> {
        let receives = self.receives_for(self.connections);
        self.check_srq_depth(&receives)?;
        self.check_memory(&receives)?;
        Ok(receives)
    }

    fn check_srq_depth(&self, receives: &Receives) -> Result<(), FabricError> {
        let (srq_depth, deepest) = (receives.srq_depth(), self.deepest_srq);
        if srq_depth <= deepest {
            return Ok(());
        }
        let what = "receives in a shared receive queue";
        if let Some(posted) = self.sizing.receives_posted {
            let refused = too_much("receives_posted", posted, srq_depth, what, deepest);
            return Err(refused);
        }
        let most = largest(self.connections, |fewer| {
            self.receives_for(fewer).srq_depth() <= deepest
        });
        let refused = too_much("connections", self.connections, srq_depth, what, deepest);
        Err(with_advice(
            refused,
            most,
            "receives_reserved or receives_held",
        ))
    }

    fn check_memory(&self, receives: &Receives) -> Result<(), FabricError> {
        let (needed, connections) = (self.locked(receives), self.connections);
        if needed <= self.max_memory {
            return Ok(());
        }
        let most = largest(connections, |fewer| {
            self.locked(&self.receives_for(fewer)) <= self.max_memory
        });
        let reason = format!(
            "{connections} connections, with slots of {} bytes, need {needed} bytes at least",
            self.slot_len
        );
        let refused = does_not_fit("max_memory", self.max_memory, reason);
        Err(with_advice(refused, most, "slot_message_len"))
    }

    /// Describes why fewer receives are posted than wanted; `None` if they are not fewer.
    pub(super) fn clamp(
        &self,
        receives: &Receives,
        attributes: &DeviceAttributes,
    ) -> Option<String> {
        let Receives { posted, wanted, .. } = *receives;
        if posted >= wanted {
            return None;
        }
        let next = Receives {
            wanted,
            ..Receives::around(posted + 1, self.sizing)
        };
        let why = if next.srq_depth() > self.deepest_srq {
            format!(
                "the device's shared receive queues hold {}, with those in reserve and held",
                self.deepest_srq
            )
        } else if self.locked(&next) > self.max_memory {
            format!("`max_memory` allows {} bytes", self.max_memory)
        } else {
            format!(
                "{} KiB may be locked here, and the device's queues need some of it; raise the limit (ulimit -l) for more",
                attributes.max_locked_len / 1024
            )
        };
        Some(format!(
            "{posted} receives posted instead of {wanted}: {why}"
        ))
    }
}
