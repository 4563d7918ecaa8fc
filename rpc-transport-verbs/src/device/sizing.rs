//! From what a user says of the work ([`Intents`]) to every number of a poller, each with its
//! reason, checked against what the device can do.

use rpc_core::limits::{FRAME_OVERHEAD, Intents, Keepalive, Limits};
use rpc_core::transport::FabricError;

use crate::transport::plan::Plan;
use crate::verbs::DeviceAttributes;

/// What remains for experts and tests: numbers that are otherwise derived from [`Intents`].
///
/// `None` leaves a number to the derivation. What was made of all of them is printed by the
/// transport's [`Limits`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizing {
    /// Receives kept posted in the shared receive queue of a poller.
    pub receives_posted: Option<u32>,
    /// Receives in the hands of the async-event thread.
    pub receives_reserved: Option<u32>,
    /// Receive slots beyond those that are promised: for frames between their arrival and their
    /// release, for those that wait to be posted again, and for a burst that is quicker than the
    /// reserve. With fewer than `receives_reserved` of them, a poller that stops in the middle of a
    /// burst may let a frame find no receive.
    pub receives_held: Option<u32>,
    /// Send slots of a poller, for all of its connections.
    pub send_slots: Option<u32>,
    /// Work requests that one connection may have in its send queue.
    pub send_queue_depth: Option<u32>,
    /// One send in this many asks for a completion: at most half of the send queue's depth.
    pub signal_interval: Option<u32>,
    /// Bytes up to which a frame travels inside its work request: 0 for never.
    pub max_inline_len: Option<usize>,
}

/// A frame's slot begins on a cache line of its own.
const SLOT_ALIGN: usize = 64;

/// Receives that are kept posted for one poller at most, unless there are so many connections that
/// each could not have its few. With 4 KiB messages: 4.25 MiB.
const MAX_RECEIVES_POSTED: u32 = 1024;

/// Receives for each connection at least: one for a credit frame of the peer, one for a call (the
/// core promises these two), and two to grow.
const MIN_RECEIVES_PER_CONNECTION: u32 = 4;

/// Send slots of one poller at most: frames above the inline size wait in them for their
/// completion, which is a network round trip, and small ones only while they are written.
const MAX_SEND_SLOTS: u32 = 1024;

/// The fewest send slots: a batch of received requests can be answered in one turn.
const MIN_SEND_SLOTS: u32 = 64;

/// One completion for this many sends: its cost is then lost beside theirs, and the send queue is
/// still short.
const SIGNAL_INTERVAL: u32 = 32;

/// Receives posted with one doorbell: enough that the doorbell is cheap for each, few enough to
/// fit between two frames.
const REFILL_BATCH: u32 = 16;

/// Completions taken in one poll: enough to share the poll's cost, few enough that the first
/// frame's answer does not wait long for the last frame's arrival.
const POLL_BATCH: u32 = 32;

/// Bytes up to which a frame is copied into its work request, where the device can: what costs less
/// to copy than to keep a slot and to signal for it.
const MAX_INLINE_LEN: usize = 256;

impl Plan {
    /// Derives all numbers, and refuses what the device cannot do, naming the setting to change.
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
        // Every call in flight may have a frame queued, beside one credit frame and a cancellation.
        // Places come back an interval at a time, and while one interval's completion is under way
        // the next one fills: twice the interval on top.
        let queue_depth = sizing.send_queue_depth.unwrap_or_else(|| {
            max_in_flight
                .saturating_add(2 * interval + 2)
                .checked_next_power_of_two()
                .unwrap_or(u32::MAX)
        });
        // A queue whose places are all taken by unsignaled sends would be stuck for ever.
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
        // Half of it: the device's queues may have to be locked, too.
        let lockable = (attributes.max_locked_len / 2) as u64;
        let send_slots = |receives: &Receives| match sizing.send_slots {
            Some(slots) => slots.max(1),
            None => {
                let wanted = frames_under_way(connections, max_in_flight)
                    .clamp(MIN_SEND_SLOTS, MAX_SEND_SLOTS);
                // Where receives had to give way, these do so with them.
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
        // A flush completes unsignaled sends too, so every place of every queue may need an entry.
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
        // An idle poller has `posted + held` in the queue. The alarm comes when three quarters of
        // `posted`, and as many as the reserve, have been used and not posted again.
        let srq_limit = slack.saturating_add(posted / 4).max(1);
        let slots = sum([posted, reserved, held, send_slots], "send_slots")?;

        let registered = u64::from(slots).saturating_mul(slot_len as u64);
        // Setting, its value, what that needs, what there is, of what.
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
                // Within `deepest_cq`, and so is `srq_depth`: 32 bits.
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

    /// The plan for the lane of one device: its name and address, and what may differ between
    /// lanes since it is nobody's concern outside of the lane.
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

/// Receive slots of one poller, by their purpose.
struct Receives {
    posted: u32,
    reserved: u32,
    held: u32,
    /// What `posted` would be on a device without limits.
    wanted: u32,
}

impl Receives {
    /// What is derived gives way until it fits, as far as each connection still has its few; what an
    /// expert says does not.
    fn of(
        connections: u32,
        max_in_flight: u32,
        sizing: &Sizing,
        fits: impl Fn(&Self) -> bool,
    ) -> Self {
        if let Some(posted) = sizing.receives_posted {
            return Self::around(posted.max(1), sizing);
        }
        // All that the clients may have under way, as far as that is a sensible amount of memory:
        // the credits are made to fit what is posted.
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
        // A quarter, as it is posted when three quarters have been used up: the peers may then use
        // as much again as they had just used before the alarm comes a second time.
        let reserved = sizing.receives_reserved.unwrap_or((posted / 4).max(1));
        // One batch in the driver's hands, two batches that wait to be posted again, and as many as
        // the reserve: see `receive_queue` for why no frame then finds the queue empty.
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

    /// Every receive slot may be posted at a time.
    fn srq_depth(&self) -> u64 {
        u64::from(self.posted) + u64::from(self.reserved) + u64::from(self.held)
    }
}

/// All calls that the connections may have under way, and a credit frame of each.
fn frames_under_way(connections: u32, max_in_flight: u32) -> u32 {
    connections.saturating_mul(max_in_flight.saturating_add(1))
}

/// The largest of the numbers from 1 to `most` that fit, of which there is none above one that does
/// not; 0 if none does.
fn largest(most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut fitting, mut end) = (0, most);
    while fitting < end {
        // Rounded up, so that it is above what is known to fit.
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

/// Says with how many connections it would fit; with none, what else to lower.
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

    /// A device that can do more than anybody asks for here.
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

    /// The number of connections that a refusal says would fit.
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
            // As much as fits: a few slots more would not.
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
        // What each connection needs is kept: the device will say that it is too much.
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
            // As much as fits.
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
        // What it says is enough, and no less is.
        let needed: u64 = reason
            .split(' ')
            .find_map(|word| word.parse().ok().filter(|&number| number > 1_000_000))
            .unwrap();
        assert_eq!(with(needed).unwrap().registered_len() as u64, needed);
        assert!(with(needed - 1).is_err());
        // The number of connections that would fit does.
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
        /// Whatever is asked for: it is refused, or every relation holds that the rest of the crate
        /// relies on.
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
                // What no burst can outrun: see `receive_queue`.
                prop_assert!(
                    receives_held.is_some()
                        || limits.receives_held
                            >= limits.receives_reserved + 2 * plan.refill_batch
                );
                // An idle queue is above its alarm.
                prop_assert!(plan.srq_limit <= limits.receives_posted + limits.receives_held);
                prop_assert!(
                    plan.srq_depth
                        == limits.promisable_receives() + limits.receives_held
                );
            }
        }
    }
}
