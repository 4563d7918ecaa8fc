//! Opens a poller's transport: creates every resource of each lane once, off the data path.
//!
//! A device that cannot be opened, or that is too weak for the intents, is an error, unless it is
//! optional: then it is left out with a warning.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rpc_core::transport::FabricError;
use rpc_core::{Intents, OtherDevice, Waiting};
use verbline_verbs::DeviceAttributes;
use verbline_verbs::for_transport::{MemberList, WindowTrialError};

use super::fabric::in_force;
use super::memory::Claim;
use super::name::Name;
use super::opened::{Opened, Wanted, refused, wanted};
use super::pinned::pinned_by;
use super::sizing::reads::ReadSupport;
use super::sizing::{Sizing, note_locked};
use crate::transport::VerbsTransport;
use crate::transport::buffer_pool::BufferPool;
use crate::transport::connections::Connections;
use crate::transport::counters::DeviceCounterReader;
use crate::transport::endpoint::SOFT;
use crate::transport::events::EventThread;
use crate::transport::lane::Lane;
use crate::transport::long_messages::memory_pool::PoolConfig;
use crate::transport::long_messages::pools::Pools;
use crate::transport::long_messages::process_memory::ProcessMemory;
use crate::transport::long_messages::state::LongMessages;
use crate::transport::notices;
use crate::transport::pending::Pending;
use crate::transport::plan::Plan;
use crate::transport::queue_pairs::{Plaintext, QueuePairs};
use crate::transport::receive_queue::ReceiveQueue;
use crate::transport::reserve::{self, ReserveCounters};
use crate::transport::routes::Routes;
use crate::transport::sleep::Sleep;
use crate::transport::stall_watch::StallWatch;
use crate::transport::wakeup::Wakeup;

/// Opens devices for one poller, each as a lane, and posts their receives.
///
/// Each device has to be usable, unless it is optional.
pub(crate) fn open(
    names: &[Name],
    plaintext: Plaintext,
    intents: &Intents,
    sizing: &Sizing,
) -> Result<VerbsTransport, FabricError> {
    let wanted = wanted(names).into_iter();
    let is_optional = |wanted: &Wanted<'_>| wanted.is_optional;
    let (first, others) = first_and_others(wanted, is_optional, |wanted| {
        let opened = Opened::new(&wanted, plaintext)?;
        // Plan for each device alone, so that an optional one that is too weak is left out and does
        // not weaken the others.
        Plan::new(&opened.name, intents, sizing, &opened.attributes)?;
        Ok(opened)
    })?;
    open_lanes(first, others, intents, sizing)
}

/// Returns the plan of each of `lanes` lanes, which share the memory that the poller may register.
fn plan_of_each(
    device: &str,
    lanes: usize,
    intents: &Intents,
    sizing: &Sizing,
    attributes: &DeviceAttributes,
) -> Result<Plan, FabricError> {
    let share = Intents {
        max_memory: intents.max_memory.map(|bytes| bytes / lanes as u64),
        ..intents.clone()
    };
    Plan::new(device, &share, sizing, attributes).map_err(|mut error| {
        if let FabricError::Intent {
            setting: "max_memory",
            value,
            reason,
        } = &mut error
        {
            *value = intents.max_memory.unwrap_or(*value);
            if lanes > 1 {
                reason.push_str(&format!(
                    "; each of the {lanes} devices has its share of it"
                ));
            }
        }
        error
    })
}

/// Opens a lane for each device. The weakest device determines the sizes of all lanes, so one
/// [`Limits`](rpc_core::Limits) holds for every lane.
pub(crate) fn open_lanes(
    first: Opened,
    others: Vec<Opened>,
    intents: &Intents,
    sizing: &Sizing,
) -> Result<VerbsTransport, FabricError> {
    let weakest = others.iter().fold(first.attributes, |weakest, other| {
        weaker(weakest, other.attributes)
    });
    let plan = plan_of_each(&first.name, 1 + others.len(), intents, sizing, &weakest)?;
    let count = 1 + others.len();
    // Until every lane has registered its slots.
    let slots = plan.limits.registered_len().saturating_mul(count);
    let _claim = Claim::new(slots as u64)?;
    let name = first.name.clone();
    let no_files = |error| refused(&name, "has no files for its poller to sleep at", error);
    let wakeup = Wakeup::new().map_err(no_files)?;
    let mut number = 0;
    let devices = std::iter::once(first).chain(others);
    let is_optional = |device: &Opened| device.is_optional;
    let (first, others) = first_and_others(devices, is_optional, |device| {
        let support = ReadSupport {
            link_layer: device.source.first.address.link_layer,
            why_unprotected: why_unprotected(&device, sizing),
        };
        let address = match device.source.tcp {
            Some(_) => format!("{}, or TCP", device.source.first.address),
            None => device.source.first.address.to_string(),
        };
        let mut plan = plan.on(&device.name, address, sizing, &device.attributes, support);
        plan.limits.fabric = in_force(&device.source.fabric, &device.source.first, device.vector);
        let connections = Connections::for_lane(number, count);
        let lane = open_lane(device, plan, number, connections, &wakeup, intents.waiting)?;
        number += 1;
        Ok(lane)
    })?;
    let mut limits = first.plan.limits.clone();
    limits.others = others.iter().map(other_device).collect();
    tracing::debug!(%limits, "opened a transport");
    let lanes = std::iter::once(&first).chain(&others);
    let sleep = Sleep::new(wakeup, lanes).map_err(no_files)?;
    Ok(VerbsTransport::new(first, others, limits, sleep))
}

/// Returns why the device's memory windows are not used, if they are needed and do not protect memory.
fn why_unprotected(device: &Opened, sizing: &Sizing) -> Option<String> {
    // Trusted peers need no windows.
    if sizing.trusted_peers || sizing.read_depth == Some(0) {
        return None;
    }
    let why = device
        .context
        .why_windows_do_not_protect(&device.source.first.address)?;
    let device = &*device.name;
    match why {
        WindowTrialError::Unsuitable(why) => {
            tracing::info!(device, why, "long messages travel in fragments");
        }
        _ => tracing::warn!(
            device,
            %why,
            "the memory windows that a device announces are not used: long messages travel in fragments, which \
             is slower and otherwise the same. Nothing has to be done; if all peers are trusted, \
             `Sizing::trusted_peers` has their long messages read without windows"
        ),
    }
    Some(why.to_string())
}

fn other_device(lane: &Lane) -> OtherDevice {
    OtherDevice {
        device: lane.plan.limits.device.clone(),
        address: lane.plan.limits.address.clone(),
        fabric: lane.plan.limits.fabric.clone(),
        max_inline_len: lane.plan.limits.max_inline_len,
        locked_per_connection: lane.plan.limits.locked_per_connection,
    }
}

/// Applies `make` to each device. Leaves an optional device out for which it fails, with a warning.
/// Fails if it fails for any other device, or for all.
fn first_and_others<T, U>(
    devices: impl Iterator<Item = T>,
    is_optional: impl Fn(&T) -> bool,
    mut make: impl FnMut(T) -> Result<U, FabricError>,
) -> Result<(U, Vec<U>), FabricError> {
    let (mut first, mut others) = (None, Vec::new());
    let mut latest = None;
    for device in devices {
        let is_optional = is_optional(&device);
        match make(device) {
            Ok(made) if first.is_none() => first = Some(made),
            Ok(made) => others.push(made),
            Err(error) if is_optional => {
                tracing::warn!(%error, "a device cannot be opened and is left out");
                latest = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    match (first, latest) {
        (Some(first), _) => Ok((first, others)),
        (None, Some(error)) => Err(error),
        (None, None) => unreachable!("a device has a name"),
    }
}

/// Returns the minimum of both devices for each attribute that the plan uses.
fn weaker(one: DeviceAttributes, other: DeviceAttributes) -> DeviceAttributes {
    DeviceAttributes {
        max_qp: one.max_qp.min(other.max_qp),
        max_qp_wr: one.max_qp_wr.min(other.max_qp_wr),
        max_cqe: one.max_cqe.min(other.max_cqe),
        max_srq: one.max_srq.min(other.max_srq),
        max_srq_wr: one.max_srq_wr.min(other.max_srq_wr),
        max_mr_len: one.max_mr_len.min(other.max_mr_len),
        max_locked_len: one.max_locked_len.min(other.max_locked_len),
        max_inline_data: one.max_inline_data.min(other.max_inline_data),
        ..one
    }
}

fn open_lane(
    device: Opened,
    mut plan: Plan,
    number: u32,
    connections: Connections,
    wakeup: &Arc<Wakeup>,
    waiting: Waiting,
) -> Result<Lane, FabricError> {
    let Opened {
        name,
        context,
        attributes,
        source,
        vector,
        plaintext,
        is_optional: _,
    } = device;
    let max_region_len = attributes.max_mr_len;
    let name = &*name;
    let limits = &plan.limits;
    let domain = context
        .alloc_pd()
        .map_err(|e| refused(name, "has no protection domain left", e))?;
    let (mut pool, reserved) = BufferPool::register(&domain, &plan)
        .map_err(|e| refused(name, "has no memory for its slots (smaller 'connections' and 'max_message_len' need less, and the device soft needs no locked memory)", e))?;
    let channel = match waiting {
        Waiting::Busy => None,
        Waiting::Adaptive | Waiting::Event => Some(
            context
                .create_comp_channel()
                .map_err(|e| refused(name, "cannot create a completion channel", e))?,
        ),
    };
    let depth = limits.completion_queue_depth as usize;
    let completion_queue = context
        .create_cq_on(depth, channel.as_ref(), vector.number)
        .map_err(|e| refused(name, "cannot create a completion queue", e))?;
    let srq = domain
        .create_srq(plan.srq_depth as usize, 1)
        .map_err(|e| refused(name, "cannot create a shared receive queue", e))?;

    let pending = Arc::new(Pending::default());
    pending.set(Pending::NO_CONNECTIONS | Pending::IDLE);
    let (notice_sender, notice_receiver) =
        notices::notice_queue(Arc::clone(wakeup), Arc::clone(&pending));
    let counters = Arc::new(ReserveCounters::default());
    let mut receives = ReceiveQueue::new(srq.clone(), Arc::clone(&counters), &plan);
    receives
        .post_all(&mut pool)
        .map_err(|e| refused(name, "cannot post its receives", e))?;
    let (reserve, reserve_poster) = reserve::reserve(
        context.clone(),
        srq.clone(),
        plan.srq_limit,
        reserved,
        Arc::clone(&counters),
    );
    let queue_pairs = Arc::new(QueuePairs::new(
        source,
        plaintext,
        domain,
        completion_queue.handle(),
        srq,
        plan.clone(),
    ));
    if context.locked_memory().is_some() {
        let pinned = || context.locked_memory().map_or(0, |memory| memory.pinned);
        let each = pinned_by(|| queue_pairs.create(), pinned)
            .map_err(|e| refused(name, "cannot create the queues of a connection", e))?;
        let lockable = context
            .locked_memory()
            .map_or(u64::MAX, |memory| memory.lockable);
        note_locked(&mut plan.limits, each, lockable);
    }
    let limits = &plan.limits;
    // Start the thread after the receives are posted: it arms the limit first, and a limit above
    // the number of posted receives would fire at once on some devices.
    let events = EventThread::start(
        context.clone(),
        Arc::clone(&queue_pairs),
        reserve_poster,
        notice_sender.clone(),
    )
    .map_err(|e| refused(name, "has no thread for its events", e))?;

    let pools = Pools::new(
        &PoolConfig {
            domain: queue_pairs.domain().clone(),
            wakeup: Arc::clone(wakeup),
            process_memory: ProcessMemory::of_this_process(),
            limit: limits.message_memory,
            max_region_len,
            is_readable: plan.reads.depth > 0 && !plan.reads.uses_windows,
        },
        limits.piece_len,
    )
    .map_err(|e| refused(name, "has no thread that registers memory for messages", e))?;
    if plan.reads.uses_windows {
        pools.allocate_first_windows();
    }
    let lane_mask = connections.lane_mask();
    let long_messages =
        LongMessages::new(pools, &plan.reads, limits.piece_len, (number, lane_mask));
    let max_connections = limits.max_connections as usize;
    let mut addresses = queue_pairs.device_addresses();
    let is_on_one_host = addresses.all(|address| address.kind == SOFT);
    drop(addresses);
    Ok(Lane {
        number,
        is_on_one_host,
        pending,
        is_armed: false,
        pool,
        connections,
        routes: Routes::with_capacity(max_connections),
        completion_queue,
        channel,
        queued: VecDeque::new(),
        has_queued_call: false,
        receives,
        dirty: MemberList::with_capacity(max_connections),
        long_messages,
        send_watch: StallWatch::new(max_connections),
        stall_watch: StallWatch::new(0),
        counters: Arc::default(),
        device_counters: Arc::new(DeviceCounterReader {
            context: context.clone(),
            queue_pairs: Arc::clone(&queue_pairs),
        }),
        notice_receiver,
        closing: Vec::new(),
        liveness_index: HashMap::new(),
        queue_pairs,
        notice_sender,
        reserve_counters: counters,
        reserve,
        events,
        context,
        plan,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device may go between its opening by the program and that by a poller.
    #[test]
    fn a_poller_leaves_out_only_the_optional_ones_of_the_devices_that_are_gone() {
        let open_list = |list: &str| {
            let names = list.split(',').map(Name::parse);
            let names: Vec<_> = names.collect::<Result<_, _>>().unwrap();
            let plaintext = Plaintext::Refused;
            let opened = open(&names, plaintext, &Intents::default(), &Sizing::default());
            opened.map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(open_list("soft,?gone_0"), Ok(()));
        let error = open_list("soft,gone_0").unwrap_err();
        assert!(error.contains("gone_0"), "{error}");
    }

    /// A device that lacks something was left out, whoever had named it.
    #[test]
    fn only_an_optional_device_is_left_out() {
        type Device = (&'static str, bool, bool);
        let lack = |device| FabricError::Intent {
            setting: device,
            value: 1,
            reason: "it is too weak".to_owned(),
        };
        let make = |(name, _, works): Device| match works {
            true => Ok(name),
            false => Err(lack(name)),
        };
        let opened = |devices: &[Device]| {
            let is_optional = |(_, is_optional, _): &Device| *is_optional;
            first_and_others(devices.iter().copied(), is_optional, make)
                .map_err(|error| error.to_string())
        };
        let (works, lacks) = (("a", false, true), ("b", false, false));
        let (optional, absent) = (("c", true, true), ("d", true, false));
        assert_eq!(opened(&[works, absent, optional]), Ok(("a", vec!["c"])));
        assert_eq!(opened(&[absent, optional, works]), Ok(("c", vec!["a"])));
        for devices in [&[works, lacks][..], &[lacks, works], &[optional, lacks]] {
            assert!(opened(devices).unwrap_err().starts_with("b = 1"));
        }
        assert!(opened(&[absent]).unwrap_err().starts_with("d = 1"));
    }
}
