//! Derives every number of a poller from the user's [`Intents`], and checks it against the device.

use rpc_core::limits::{FRAME_OVERHEAD, Intents, Keepalive, Limits};
use rpc_core::transport::FabricError;

use crate::transport::plan::Plan;
use crate::verbs::DeviceAttributes;

/// Settings for experts and tests: numbers that are otherwise derived from [`Intents`].
///
/// `None` means that the number is derived. The transport's [`Limits`] print the resulting numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizing {
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
}

/// Slots are aligned to cache lines.
const SLOT_ALIGN: usize = 64;

/// Maximum number of receives posted for one poller, unless there are so many connections that they
/// need more for their minimum. With 4 KiB messages: 4.25 MiB.
const MAX_RECEIVES_POSTED: u32 = 1024;

/// Minimum number of receives for each connection: one for the peer's credit frame and one for a
/// call (the core promises these two), and two so that the window can grow.
const MIN_RECEIVES_PER_CONNECTION: u32 = 4;

/// Maximum number of send slots of a poller. A frame above the inline size occupies a slot until
/// its completion, which takes a network round trip; a smaller frame only while it is written.
const MAX_SEND_SLOTS: u32 = 1024;

/// Minimum number of send slots, so a batch of received requests can be answered in one turn.
const MIN_SEND_SLOTS: u32 = 64;

/// One completion for this many sends. The cost of the completion is then negligible, and the send
/// queue can still be short.
const SIGNAL_INTERVAL: u32 = 32;

/// Number of receives posted with one doorbell: large enough to make the doorbell's cost per
/// receive small, small enough to post them between two frames.
const REFILL_BATCH: u32 = 16;

/// Maximum number of completions per poll: large enough to share the cost of the poll, small enough
/// that the response to the first frame does not wait long for the last one.
const POLL_BATCH: u32 = 32;

/// Maximum length in bytes of a frame that is copied into its work request, if the device supports
/// it. Up to this length, copying is cheaper than keeping a slot until a signaled completion.
const MAX_INLINE_LEN: usize = 256;

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

        if intents.max_message_len == 0 {
            return Err(does_not_fit("max_message_len", 0, "it must be at least 1"));
        }
        let slot_len = intents
            .max_message_len
            .checked_add(FRAME_OVERHEAD)
            .and_then(|len| len.checked_next_multiple_of(SLOT_ALIGN))
            .ok_or_else(|| does_not_fit("max_message_len", usize::MAX as u64, "it is too long"))?;

        let interval = sizing.signal_interval.unwrap_or(SIGNAL_INTERVAL).max(1);
        // Every call in flight may have a frame queued, in addition to one credit frame and one
        // cancellation. Entries are freed one interval at a time, and the next interval fills while
        // the completion of the previous one is in flight: add twice the interval.
        let queue_depth = sizing.send_queue_depth.unwrap_or_else(|| {
            max_in_flight
                .saturating_add(2 * interval + 2)
                .checked_next_power_of_two()
                .unwrap_or(u32::MAX)
        });
        // If unsignaled sends took all entries of the queue, it would be stuck forever.
        if interval > queue_depth / 2 {
            return Err(does_not_fit(
                "signal_interval",
                interval.into(),
                format!("it is more than half of the send queue's depth of {queue_depth}"),
            ));
        }

        if attributes.max_srq == 0 {
            return Err(FabricError::Device {
                device: device.to_owned(),
                action: "cannot be used".to_owned(),
                source: Box::new(NoSharedReceiveQueue),
            });
        }
        let deepest_srq = (attributes.max_srq_wr as u64).min(u32::MAX.into());
        // Half of it, because the device's queues may have to be locked too.
        let lockable = (attributes.max_locked_len / 2) as u64;
        let send_slots = |receives: &Receives| match sizing.send_slots {
            Some(slots) => slots.max(1),
            None => {
                let wanted = frames_under_way(connections, max_in_flight)
                    .clamp(MIN_SEND_SLOTS, MAX_SEND_SLOTS);
                // If the number of receives was reduced, reduce the send slots too.
                match receives.posted < receives.wanted {
                    true => wanted.min(receives.posted.max(MIN_SEND_SLOTS)),
                    false => wanted,
                }
            }
        };
        let locked = |receives: &Receives| {
            (receives.srq_depth() + u64::from(send_slots(receives))) * slot_len as u64
        };
        let max_memory = intents.max_memory.unwrap_or(u64::MAX);
        let fits = |receives: &Receives| {
            receives.srq_depth() <= deepest_srq && locked(receives) <= lockable.min(max_memory)
        };
        let receives_for =
            |connections: u32| Receives::of(connections, max_in_flight, sizing, fits);
        let receives = receives_for(connections);
        let srq_depth = receives.srq_depth();
        if srq_depth > deepest_srq {
            let what = "receives in a shared receive queue";
            if let Some(posted) = sizing.receives_posted {
                return Err(too_much(
                    "receives_posted",
                    posted,
                    srq_depth,
                    what,
                    deepest_srq,
                ));
            }
            let most = largest(connections, |fewer| {
                receives_for(fewer).srq_depth() <= deepest_srq
            });
            let refused = too_much("connections", connections, srq_depth, what, deepest_srq);
            return Err(with_advice(
                refused,
                most,
                "receives_reserved or receives_held",
            ));
        }
        let needed = locked(&receives);
        if needed > max_memory {
            let most = largest(connections, |fewer| {
                locked(&receives_for(fewer)) <= max_memory
            });
            let reason = format!(
                "{connections} connections, with messages of up to {} bytes, need {needed} bytes at least",
                intents.max_message_len
            );
            let refused = does_not_fit("max_memory", max_memory, reason);
            return Err(with_advice(refused, most, "max_message_len"));
        }
        // A flush also completes unsignaled sends, so every entry of every queue may need a
        // completion entry.
        let completions = |connections: u32| {
            u64::from(connections) * u64::from(queue_depth) + receives_for(connections).srq_depth()
        };
        let deepest_cq = (attributes.max_cqe as u64).min(u32::MAX.into());
        if completions(connections) > deepest_cq {
            let most = largest(connections, |fewer| completions(fewer) <= deepest_cq);
            let needed = completions(connections);
            let what = "entries in a completion queue";
            let refused = too_much("connections", connections, needed, what, deepest_cq);
            return Err(with_advice(refused, most, "max_in_flight"));
        }

        let send_slots = send_slots(&receives);
        let Receives {
            posted,
            reserved,
            held,
            wanted,
        } = receives;
        let slack = held.saturating_sub(reserved);
        let refill_batch = REFILL_BATCH.min(slack / 4).max(1);
        let poll_batch = POLL_BATCH.min(slack / 2).max(1);
        // An idle poller has `posted + held` receives in the queue. The limit is reached when three
        // quarters of `posted` and a number equal to the reserve have been used and not posted
        // again.
        let srq_limit = slack.saturating_add(posted / 4).max(1);
        let slots = sum([posted, reserved, held, send_slots], "send_slots")?;

        let registered = u64::from(slots).saturating_mul(slot_len as u64);
        // Setting, its value, the amount it needs, the available amount, and the unit of both.
        let checks: [(&'static str, u64, u64, u64, &str); 3] = [
            (
                "connections",
                connections.into(),
                connections.into(),
                attributes.max_qp as u64,
                "queue pairs",
            ),
            (
                "max_in_flight",
                max_in_flight.into(),
                queue_depth.into(),
                attributes.max_qp_wr as u64,
                "places in a send queue",
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

        let mut clamped = Vec::new();
        if posted < wanted {
            let next = Receives {
                wanted,
                ..Receives::around(posted + 1, sizing)
            };
            let why = if next.srq_depth() > deepest_srq {
                format!(
                    "the device's shared receive queues hold {deepest_srq}, with those in reserve and held"
                )
            } else if locked(&next) > max_memory {
                format!("`max_memory` allows {max_memory} bytes")
            } else {
                format!(
                    "{} KiB may be locked here, and the device's queues need some of it; raise the limit (ulimit -l) for more",
                    attributes.max_locked_len / 1024
                )
            };
            clamped.push(format!(
                "{posted} receives posted instead of {wanted}: {why}"
            ));
        }
        let max_inline_len = sizing.max_inline_len.unwrap_or(MAX_INLINE_LEN);
        Ok(Self {
            limits: Limits {
                device: device.to_owned(),
                address: String::new(),
                slot_len,
                max_inline_len: max_inline_len.min(slot_len),
                receives_posted: posted,
                receives_reserved: reserved,
                receives_held: held,
                send_slots,
                send_queue_depth: queue_depth,
                signal_interval: interval,
                // Fits in 32 bits: at most `deepest_cq`. The same holds for `srq_depth`.
                completion_queue_depth: completions(connections) as u32,
                max_connections: connections,
                max_in_flight,
                keepalive: intents.keepalive.map(Keepalive::effective),
                clamped,
                others: Vec::new(),
            },
            srq_depth: srq_depth as u32,
            srq_limit,
            refill_batch,
            poll_batch,
        })
    }

    /// Returns the plan for the lane of one device: sets its name and address, and the numbers that
    /// may differ between lanes because they do not matter outside the lane.
    pub(crate) fn on(&self, device: &str, address: String, attributes: &DeviceAttributes) -> Self {
        let mut plan = self.clone();
        let limits = &mut plan.limits;
        limits.device = device.to_owned();
        limits.address = address;
        let (wanted, most) = (limits.max_inline_len, attributes.max_inline_data);
        if wanted > most {
            limits.max_inline_len = most;
            limits.clamped.push(format!(
                "frames inline up to {most} bytes instead of {wanted}: the device takes no more"
            ));
        }
        plan
    }
}

/// Receive slots of one poller, by purpose.
struct Receives {
    posted: u32,
    reserved: u32,
    held: u32,
    /// The number `posted` would have on a device without limits.
    wanted: u32,
}

impl Receives {
    /// Determines the number of receives. A derived number is reduced until it fits, but not below
    /// the minimum of each connection. A number set by an expert is not reduced.
    fn of(
        connections: u32,
        max_in_flight: u32,
        sizing: &Sizing,
        fits: impl Fn(&Self) -> bool,
    ) -> Self {
        if let Some(posted) = sizing.receives_posted {
            return Self::around(posted.max(1), sizing);
        }
        // All frames that the clients may have in flight, up to a reasonable amount of memory. The
        // credits are limited to what is posted.
        let least = connections
            .saturating_mul(MIN_RECEIVES_PER_CONNECTION)
            .max(1);
        let wanted = frames_under_way(connections, max_in_flight)
            .min(MAX_RECEIVES_POSTED)
            .max(least);
        let of = |posted| Self {
            wanted,
            ..Self::around(posted, sizing)
        };
        of(largest(wanted, |posted| fits(&of(posted))).max(least))
    }

    fn around(posted: u32, sizing: &Sizing) -> Self {
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
    fn srq_depth(&self) -> u64 {
        u64::from(self.posted) + u64::from(self.reserved) + u64::from(self.held)
    }
}

/// Returns the number of calls that the connections may have in flight, plus a credit frame for
/// each connection.
fn frames_under_way(connections: u32, max_in_flight: u32) -> u32 {
    connections.saturating_mul(max_in_flight.saturating_add(1))
}

/// Returns the largest number from 1 to `most` for which `fits` is true, or 0 if there is none.
/// `fits` must be monotonic: once false, it is false for all larger numbers.
fn largest(most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut fitting, mut end) = (0, most);
    while fitting < end {
        // Rounded up, so `middle` is larger than the largest number that is known to fit.
        let middle = fitting + (end - fitting).div_ceil(2);
        if fits(middle) {
            fitting = middle;
        } else {
            end = middle - 1;
        }
    }
    fitting
}

/// Why a device can never be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "it has no shared receive queues, and the connections of a poller share their receives through one; use another device ('soft' is there everywhere)"
)]
struct NoSharedReceiveQueue;

fn at_least_one(setting: &'static str, value: u32) -> Result<u32, FabricError> {
    if value == 0 {
        return Err(does_not_fit(setting, 0, "it must be at least 1"));
    }
    Ok(value)
}

fn sum<const N: usize>(terms: [u32; N], setting: &'static str) -> Result<u32, FabricError> {
    terms
        .into_iter()
        .try_fold(0u32, u32::checked_add)
        .ok_or_else(|| {
            let value = terms.iter().map(|&term| u64::from(term)).sum();
            does_not_fit(
                setting,
                value,
                "there would be more than 4,294,967,295 slots",
            )
        })
}

fn too_much(
    setting: &'static str,
    value: impl Into<u64>,
    needed: u64,
    what: &str,
    limit: u64,
) -> FabricError {
    let reason = format!("it needs {needed} {what}, and the device has {limit}");
    does_not_fit(setting, value.into(), reason)
}

/// Adds the number of connections that would fit or, if not even one fits, another setting to
/// lower.
fn with_advice(mut refused: FabricError, most: u32, instead: &str) -> FabricError {
    if let FabricError::Intent { reason, .. } = &mut refused {
        reason.push_str(&match most {
            0 => format!("; not even one connection fits, so lower {instead}"),
            most => format!("; {most} connections would fit"),
        });
    }
    refused
}

fn does_not_fit(setting: &'static str, value: u64, reason: impl Into<String>) -> FabricError {
    FabricError::Intent {
        setting,
        value,
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the attributes of a device that exceeds all requirements of these tests.
    fn device() -> DeviceAttributes {
        DeviceAttributes {
            max_qp: 1 << 16,
            max_qp_wr: 1 << 16,
            max_sge: 1,
            max_cq: 1 << 16,
            max_cqe: 1 << 22,
            max_srq: 1 << 16,
            max_srq_wr: 1 << 20,
            max_mr: 1 << 16,
            max_mr_len: 1 << 40,
            max_locked_len: usize::MAX,
            max_inline_data: 220,
            port_count: 1,
            ..DeviceAttributes::default()
        }
    }

    fn plan(intents: &Intents, sizing: &Sizing) -> Result<Plan, FabricError> {
        let plan = Plan::new("soft", intents, sizing, &device())?;
        Ok(plan.on("soft", "port 1".to_owned(), &device()))
    }

    #[test]
    fn the_defaults_fit_in_twelve_mebibytes() {
        let plan = plan(&Intents::default(), &Sizing::default()).unwrap();
        let limits = &plan.limits;
        assert_eq!(
            (limits.receives_posted, limits.receives_reserved),
            (1024, 256)
        );
        assert_eq!((limits.send_queue_depth, limits.signal_interval), (256, 32));
        assert_eq!(limits.max_inline_len, 220);
        assert!(limits.registered_len() < 12 << 20, "{limits}");
    }

    #[test]
    fn what_does_not_fit_names_the_setting_and_the_limit() {
        type Change = fn(&mut Intents, &mut Sizing, &mut DeviceAttributes);
        let cases: [(&str, &str, Change); 8] = [
            ("connections", "at least 1", |i, _, _| i.connections = 0),
            ("max_in_flight", "at least 1", |i, _, _| i.max_in_flight = 0),
            ("max_message_len", "too long", |i, _, _| {
                i.max_message_len = usize::MAX
            }),
            ("connections", "device has 8", |_, _, d| d.max_qp = 8),
            ("max_in_flight", "device has 64", |_, _, d| d.max_qp_wr = 64),
            ("connections", "device has 100", |_, _, d| d.max_cqe = 100),
            ("max_message_len", "device has 4096", |_, _, d| {
                d.max_mr_len = 4096
            }),
            ("signal_interval", "half", |_, s, _| {
                s.send_queue_depth = Some(32);
                s.signal_interval = Some(17);
            }),
        ];
        for (name, hint, change) in cases {
            let (mut intents, mut sizing, mut device) =
                (Intents::default(), Sizing::default(), device());
            change(&mut intents, &mut sizing, &mut device);
            let error = Plan::new("soft", &intents, &sizing, &device).unwrap_err();
            assert!(error.to_string().contains(hint), "{name}: {error}");
            match error {
                FabricError::Intent { setting, .. } => assert_eq!(setting, name),
                other => panic!("{name}: {other}"),
            }
        }
    }

    #[test]
    fn a_device_without_shared_receive_queues_is_refused_with_what_to_do() {
        let device = DeviceAttributes {
            max_srq: 0,
            ..device()
        };
        let error =
            Plan::new("efa_0", &Intents::default(), &Sizing::default(), &device).unwrap_err();
        let said = error.to_string();
        assert!(
            said.starts_with("the device 'efa_0' cannot be used"),
            "{said}"
        );
        assert!(said.contains("share their receives"), "{said}");
        assert!(said.contains("'soft'"), "{said}");
    }

    /// Returns the number of connections that would fit according to the error.
    fn would_fit(error: &FabricError) -> u32 {
        let FabricError::Intent {
            setting: "connections",
            reason,
            ..
        } = error
        else {
            panic!("{error}");
        };
        let (_, rest) = reason.split_once("; ").unwrap();
        rest.split(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn the_connections_that_would_fit_do_and_one_more_does_not() {
        type Weaken = fn(&mut DeviceAttributes);
        let cases: [Weaken; 4] = [
            |d| d.max_cqe = 32_767,
            |d| d.max_cqe = 2_000,
            |d| d.max_srq_wr = 900,
            |d| d.max_srq_wr = 80,
        ];
        for weaken in cases {
            let mut device = device();
            weaken(&mut device);
            let plan = |connections| {
                let intents = Intents {
                    connections,
                    ..Intents::default()
                };
                Plan::new("rxe0", &intents, &Sizing::default(), &device)
            };
            let most = would_fit(&plan(1_000).unwrap_err());
            assert!(plan(most).is_ok(), "{most} of {device:?}");
            assert_eq!(would_fit(&plan(most + 1).unwrap_err()), most);
        }
    }

    #[test]
    fn where_not_even_one_connection_fits_another_setting_is_named() {
        let device = DeviceAttributes {
            max_cqe: 100,
            ..device()
        };
        let error =
            Plan::new("rxe0", &Intents::default(), &Sizing::default(), &device).unwrap_err();
        assert!(error.to_string().contains("lower max_in_flight"), "{error}");
    }

    #[test]
    fn derived_receives_give_way_to_the_device_and_an_experts_do_not() {
        let device = DeviceAttributes {
            max_srq_wr: 1000,
            ..device()
        };
        let plan = Plan::new("rxe0", &Intents::default(), &Sizing::default(), &device).unwrap();
        let limits = &plan.limits;
        assert!(plan.srq_depth <= 1000 && plan.srq_depth > 995, "{limits}");
        assert_eq!(
            (limits.receives_posted, limits.receives_reserved),
            (624, 156)
        );
        assert!(
            limits
                .to_string()
                .contains("624 receives posted instead of 1024"),
            "{limits}"
        );

        let sizing = Sizing {
            receives_posted: Some(1024),
            ..Sizing::default()
        };
        let error = Plan::new("rxe0", &Intents::default(), &sizing, &device).unwrap_err();
        let said = error.to_string();
        assert!(said.starts_with("receives_posted = 1024"), "{said}");
        assert!(said.contains("the device has 1000"), "{said}");
    }

    #[test]
    fn each_device_has_its_own_inline_length() {
        let plan = Plan::new("rxe0", &Intents::default(), &Sizing::default(), &device()).unwrap();
        let strong = DeviceAttributes {
            max_inline_data: 1024,
            ..device()
        };
        let weak = plan
            .on("rxe0", "port 1, GID 1".to_owned(), &device())
            .limits;
        assert_eq!(weak.max_inline_len, 220);
        assert!(
            weak.to_string().contains("220 bytes instead of 256"),
            "{weak}"
        );
        assert!(weak.to_string().contains("port 1, GID 1"), "{weak}");
        let strong = plan.on("mlx5_0", "port 2".to_owned(), &strong).limits;
        assert_eq!((strong.max_inline_len, &*strong.device), (256, "mlx5_0"));
        assert!(strong.clamped.is_empty(), "{strong}");
        assert_eq!(strong.slots(), weak.slots());
    }

    #[test]
    fn the_defaults_fit_where_little_memory_may_be_locked() {
        for lockable in [8 << 20, 16 << 20] {
            let device = DeviceAttributes {
                max_locked_len: lockable,
                ..device()
            };
            let plan =
                Plan::new("mlx5_0", &Intents::default(), &Sizing::default(), &device).unwrap();
            let limits = &plan.limits;
            assert!(limits.registered_len() <= lockable / 2, "{limits}");
            // The limit is used up: a few more slots would not fit.
            assert!(
                limits.registered_len() + 8 * limits.slot_len > lockable / 2,
                "{limits}"
            );
            assert!(
                limits.receives_posted >= 4 * limits.max_connections,
                "{limits}"
            );
            assert!(limits.clamped[0].contains("may be locked"), "{limits}");
        }
        // The minimum for each connection is kept: registering the memory will fail on the device.
        let device = DeviceAttributes {
            max_locked_len: 64 << 10,
            ..device()
        };
        let plan = Plan::new("mlx5_0", &Intents::default(), &Sizing::default(), &device).unwrap();
        assert_eq!(plan.limits.receives_posted, 4 * 64);
    }

    #[test]
    fn a_poller_makes_do_with_the_memory_that_it_may_register_or_says_what_it_needs() {
        let with = |max_memory| {
            let intents = Intents {
                max_memory: Some(max_memory),
                ..Intents::default()
            };
            plan(&intents, &Sizing::default()).map(|plan| plan.limits)
        };
        let ample = with(1 << 30).unwrap();
        assert!(
            ample
                .clamped
                .iter()
                .all(|said| !said.contains("max_memory"))
        );
        for max_memory in [4 << 20, 8 << 20] {
            let limits = with(max_memory).unwrap();
            let registered = limits.registered_len() as u64;
            assert!(registered <= max_memory, "{limits}");
            // The limit is used up: a few more slots would not fit.
            assert!(
                registered + 8 * limits.slot_len as u64 > max_memory,
                "{limits}"
            );
            let said = &limits.clamped[0];
            assert!(
                said.contains(&format!("`max_memory` allows {max_memory}")),
                "{said}"
            );
        }
        let FabricError::Intent {
            setting: "max_memory",
            value: 1_000_000,
            reason,
        } = with(1_000_000).unwrap_err()
        else {
            panic!("another error");
        };
        assert!(
            reason.contains("64 connections, with messages of up to 4096 bytes"),
            "{reason}"
        );
        // The amount in the message is sufficient, and one byte less is not.
        let needed: u64 = reason
            .split(' ')
            .find_map(|word| word.parse().ok().filter(|&number| number > 1_000_000))
            .unwrap();
        assert_eq!(with(needed).unwrap().registered_len() as u64, needed);
        assert!(with(needed - 1).is_err());
        // The number of connections in the message fits.
        let fewer: Vec<u32> = reason
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let intents = Intents {
            connections: *fewer.last().unwrap(),
            max_memory: Some(1_000_000),
            ..Intents::default()
        };
        assert!(plan(&intents, &Sizing::default()).is_ok(), "{reason}");
        let error = with(1000).unwrap_err().to_string();
        assert!(error.contains("lower max_message_len"), "{error}");
    }

    proptest! {
        /// For any intents and sizing: either an error is returned, or all relations hold that the
        /// rest of the crate relies on.
        #[test]
        fn every_plan_keeps_its_relations(
            max_message_len in 0usize..1 << 20,
            max_in_flight in 0u32..100_000,
            connections in 0u32..20_000,
            signal_interval in prop::option::of(0u32..200),
            receives_posted in prop::option::of(0u32..5000),
            receives_held in prop::option::of(0u32..300),
            max_memory in prop::option::of(0u64..1 << 32),
        ) {
            let intents = Intents { max_message_len, max_in_flight, connections, max_memory, ..Intents::default() };
            let sizing = Sizing {
                signal_interval,
                receives_posted,
                receives_held,
                ..Sizing::default()
            };
            if let Ok(plan) = plan(&intents, &sizing) {
                let limits = &plan.limits;
                prop_assert!(limits.signal_interval >= 1);
                prop_assert!(limits.signal_interval * 2 <= limits.send_queue_depth);
                prop_assert!(limits.send_queue_depth >= max_in_flight + 2);
                prop_assert!(limits.slot_len % 64 == 0);
                prop_assert!(limits.max_message_len() >= max_message_len);
                prop_assert!(plan.poll_batch >= 1 && plan.refill_batch >= 1);
                prop_assert!(limits.registered_len() as u64 <= max_memory.unwrap_or(u64::MAX));
                // Required so that no burst empties the queue; see `receive_queue`.
                prop_assert!(
                    receives_held.is_some()
                        || limits.receives_held
                            >= limits.receives_reserved + 2 * plan.refill_batch
                );
                // An idle queue is above its limit.
                prop_assert!(plan.srq_limit <= limits.receives_posted + limits.receives_held);
                prop_assert!(
                    plan.srq_depth
                        == limits.promisable_receives() + limits.receives_held
                );
            }
        }
    }
}
