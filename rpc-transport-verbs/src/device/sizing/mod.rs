//! Derives every number of a poller from the user's [`Intents`], and checks it against the device.
//!
//! All lanes of a poller have the same sizes: those that the weakest of its devices can provide. So
//! one [`Limits`] holds for every lane, and the core keeps a single sum: the number of promised
//! receives is at most `posted + reserved` of every lane, whichever lane the frames arrive on.

mod arithmetic;
pub(crate) mod reads;
mod receives;
mod refusals;
mod send_queue;

use rpc_core::transport::FabricError;
use rpc_core::{FRAME_OVERHEAD, Intents, Keepalive, LONGEST_MESSAGE, Limits, SLOT_MESSAGE_LEN};
use verbline_verbs::{DeviceAttributes, LinkLayer};

use self::arithmetic::largest;
use self::reads::ReadSupport;
use self::receives::{Budget, Receives};
use self::refusals::{at_least_one, does_not_fit, sum, too_much, with_advice};
use self::send_queue::SendQueue;
use crate::transport::plan::{LONGEST_INLINE_FRAME, Plan, ReadPlan};

/// Settings for experts and tests: numbers that are otherwise derived from [`Intents`].
///
/// `None` means that the number is derived. The transport's [`Limits`] print the resulting numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizing {
    /// Length in bytes of the longest message that fits a slot. Longer messages travel in pieces.
    /// Default: 4096. At most [`Intents::max_message_len`].
    pub slot_message_len: Option<usize>,
    /// Number of receives kept posted in a poller's shared receive queue.
    pub receives_posted: Option<u32>,
    /// Number of receives held by the async-event thread.
    pub receives_reserved: Option<u32>,
    /// Number of receive slots in addition to the promised ones: for frames between their arrival
    /// and their release, for slots that wait to be posted again, and for a burst that is faster
    /// than the reserve. With fewer of them than `receives_reserved`, a frame may find no receive
    /// if the poller stops in the middle of a burst.
    pub receives_held: Option<u32>,
    /// Number of send slots of a poller, for all its connections.
    pub send_slots: Option<u32>,
    /// Maximum number of work requests in a connection's send queue.
    pub send_queue_depth: Option<u32>,
    /// One send in this many is signaled. At most half of the send queue's depth.
    pub signal_interval: Option<u32>,
    /// Maximum length in bytes of a frame that is sent inline in its work request. 0: never inline.
    pub max_inline_len: Option<usize>,
    /// Bytes of a long message that are copied into registered memory at a time, at most a
    /// sixteenth of [`Intents::message_memory`]. Default: 64 KiB on `soft`, 256 KiB on other
    /// devices.
    pub piece_len: Option<usize>,
    /// RDMA READs that a connection may have outstanding, at most as many as the device and the
    /// peer support. Default: 16. 0: long messages travel in fragments.
    pub read_depth: Option<u8>,
    /// Lets every peer read all memory that is registered for long messages, including the messages
    /// of other peers: set it only if all peers are trusted with them. No memory windows are used,
    /// so long messages are also read on devices whose windows do not protect memory.
    pub trusted_peers: bool,
}

/// Slots are aligned to cache lines.
const SLOT_ALIGN: usize = 64;

/// Number of receives posted with one doorbell: large enough to make the doorbell's cost per
/// receive small, small enough to post them between two frames.
const REFILL_BATCH: u32 = 16;

/// Maximum number of completions per poll: large enough to share the cost of the poll, small enough
/// that the response to the first frame does not wait long for the last one.
const POLL_BATCH: u32 = 32;

/// Maximum length in bytes of a frame that is copied into its work request, if the device supports
/// it. Up to this length, copying is cheaper than keeping a slot until a signaled completion.
const MAX_INLINE_LEN: usize = LONGEST_INLINE_FRAME as usize;

/// The same on a device that is behind a bus. Not measured: no network card has been tried.
const MAX_INLINE_LEN_OF_CARDS: usize = 256;

impl Plan {
    /// Derives all numbers.
    ///
    /// # Errors
    ///
    /// Returns an error that names the setting to change if the device cannot provide them.
    pub(crate) fn new(
        device: &str,
        intents: &Intents,
        sizing: &Sizing,
        attributes: &DeviceAttributes,
    ) -> Result<Self, FabricError> {
        let connections = at_least_one("connections", intents.connections)?;
        let max_in_flight = at_least_one("max_in_flight", intents.max_in_flight)?;
        let max_streams = at_least_one("max_streams", intents.max_streams)?;
        let slot_len = slot_len(intents.max_message_len, sizing)?;
        let send_queue = SendQueue::choose(max_in_flight, sizing)?;
        let budget = Budget::new(device, intents, slot_len, sizing, attributes)?;
        let receives = budget.receives()?;
        let completions = completions(connections, send_queue.depth, &budget, attributes)?;

        let send_slots = budget.send_slots(&receives);
        let Receives {
            posted,
            reserved,
            held,
            ..
        } = receives;
        let slack = held.saturating_sub(reserved);
        let slots = sum([posted, reserved, held, send_slots], "send_slots")?;
        let registered = u64::from(slots).saturating_mul(slot_len as u64);
        check_device(intents, send_queue.depth, registered, attributes)?;

        let max_inline_len = sizing.max_inline_len.unwrap_or(MAX_INLINE_LEN);
        Ok(Self {
            limits: Limits {
                device: device.to_owned(),
                address: String::new(),
                fabric: String::new(),
                max_message_len: intents.max_message_len,
                max_send_message_len: intents.max_send_message_len.min(LONGEST_MESSAGE),
                message_memory: intents.message_memory,
                connection_memory: (intents.message_memory / 4).max(intents.max_message_len as u64),
                waits_for_memory: intents.waits_for_memory,
                piece_len: slot_len,
                read_depth: 0,
                long_messages: "fragments".to_owned(),
                slot_len,
                max_inline_len: max_inline_len.min(slot_len),
                receives_posted: posted,
                receives_reserved: reserved,
                receives_held: held,
                send_slots,
                send_queue_depth: send_queue.depth,
                signal_interval: send_queue.signal_interval,
                completion_queue_depth: completions,
                max_connections: connections,
                max_in_flight,
                max_streams,
                locked_per_connection: 0,
                keepalive: intents.keepalive.map(Keepalive::effective),
                cores: Vec::new(),
                latency_sampling: intents.latency_sampling,
                clamped: budget.clamp(&receives, attributes).into_iter().collect(),
                others: Vec::new(),
            },
            reads: ReadPlan::default(),
            // Fits in 32 bits: `Budget::receives` has checked it against the device's limit.
            srq_depth: receives.srq_depth() as u32,
            // An idle poller has `posted + held` receives in the queue. The limit is reached when
            // three quarters of `posted` and a number equal to the reserve have been used and not
            // posted again.
            srq_limit: slack.saturating_add(posted / 4).max(1),
            refill_batch: REFILL_BATCH.min(slack / 4).max(1),
            poll_batch: POLL_BATCH.min(slack / 2).max(1),
        })
    }

    /// Returns the plan for the lane of one device: sets its name and address, and the numbers that
    /// may differ between lanes because they do not matter outside the lane.
    pub(crate) fn on(
        &self,
        device: &str,
        address: String,
        sizing: &Sizing,
        attributes: &DeviceAttributes,
        support: ReadSupport,
    ) -> Self {
        let mut plan = self.clone();
        let is_soft = matches!(support.link_layer, LinkLayer::Memory | LinkLayer::Tcp);
        plan.reads = reads::choose(&mut plan.limits, sizing, attributes, support);
        let limits = &mut plan.limits;
        limits.device = device.to_owned();
        limits.address = address;
        if !is_soft && sizing.max_inline_len.is_none() {
            limits.max_inline_len = limits.max_inline_len.min(MAX_INLINE_LEN_OF_CARDS);
        }
        let (wanted, most) = (limits.max_inline_len, attributes.max_inline_data);
        if wanted > most {
            limits.max_inline_len = most;
            if sizing.max_inline_len.is_some() {
                limits.clamped.push(format!(
                    "frames inline up to {most} bytes instead of {wanted}: the device takes no more"
                ));
            }
        }
        plan
    }
}

/// Records the bytes that a device locks for the queues of each connection. If `lockable` bytes do not
/// suffice for all of them, says for how many: a later connection is refused.
pub(super) fn note_locked(limits: &mut Limits, each: u64, lockable: u64) {
    limits.locked_per_connection = each;
    let (wanted, room) = (
        u64::from(limits.max_connections),
        lockable.checked_div(each),
    );
    if let Some(room) = room.filter(|room| *room < wanted) {
        let clamped = format!(
            "room for the queues of {room} connections instead of {wanted}: the device locks {} KiB for \
             each, and {} KiB may still be locked; raise the limit (ulimit -l) for more",
            each.div_ceil(1024),
            lockable / 1024
        );
        tracing::warn!(device = %limits.device, "{clamped}");
        limits.clamped.push(clamped);
    }
}

/// Returns the length of the slots in bytes. It depends on `max_message_len` only if all messages
/// fit a shorter slot than the default.
fn slot_len(max_message_len: usize, sizing: &Sizing) -> Result<usize, FabricError> {
    if max_message_len == 0 {
        return Err(does_not_fit("max_message_len", 0, "it must be at least 1"));
    }
    if max_message_len > LONGEST_MESSAGE {
        let reason = format!("a message has at most {LONGEST_MESSAGE} bytes");
        return Err(does_not_fit(
            "max_message_len",
            max_message_len as u64,
            reason,
        ));
    }
    let message_len = sizing.slot_message_len.unwrap_or(SLOT_MESSAGE_LEN);
    message_len
        .max(1)
        .min(max_message_len)
        .checked_add(FRAME_OVERHEAD)
        .map(|len| len.max(LONGEST_INLINE_FRAME as usize))
        .and_then(|len| len.checked_next_multiple_of(SLOT_ALIGN))
        .ok_or_else(|| does_not_fit("max_message_len", usize::MAX as u64, "it is too long"))
}

/// Returns the depth of the completion queue. A flush also completes unsignaled sends, so every
/// entry of every queue may need a completion entry.
fn completions(
    connections: u32,
    queue_depth: u32,
    budget: &Budget<'_>,
    attributes: &DeviceAttributes,
) -> Result<u32, FabricError> {
    let entries = |connections: u32| {
        let receives = budget.receives_for(connections);
        u64::from(connections) * u64::from(queue_depth) + receives.srq_depth()
    };
    let deepest_cq = (attributes.max_cqe as u64).min(u32::MAX.into());
    let needed = entries(connections);
    if needed > deepest_cq {
        let most = largest(connections, |fewer| entries(fewer) <= deepest_cq);
        let what = "entries in a completion queue";
        let refused = too_much("connections", connections, needed, what, deepest_cq);
        return Err(with_advice(refused, most, "max_in_flight"));
    }
    // Fits in 32 bits: at most `deepest_cq`.
    Ok(needed as u32)
}

/// Checks the numbers that no other function has compared with the device's limits.
fn check_device(
    intents: &Intents,
    queue_depth: u32,
    registered: u64,
    attributes: &DeviceAttributes,
) -> Result<(), FabricError> {
    // Setting, its value, the amount it needs, the available amount, and the unit of both.
    let checks: [(&'static str, u64, u64, u64, &str); 3] = [
        (
            "connections",
            intents.connections.into(),
            intents.connections.into(),
            attributes.max_qp as u64,
            "queue pairs",
        ),
        (
            "max_in_flight",
            intents.max_in_flight.into(),
            queue_depth.into(),
            attributes.max_qp_wr as u64,
            "entries in a send queue",
        ),
        (
            "max_message_len",
            intents.max_message_len as u64,
            registered,
            attributes.max_mr_len as u64,
            "bytes in one registration",
        ),
    ];
    for (setting, value, needed, limit, what) in checks {
        if needed > limit {
            return Err(too_much(setting, value, needed, what, limit));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
