//! Opening a poller's transport: every resource of each lane, made once, off the data path.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use rpc_core::limits::{Intents, OtherDevice};
use rpc_core::transport::FabricError;

use crate::buffer_pool::BufferPool;
use crate::connection::{Connections, Fold};
use crate::lane::{Lane, Tally};
use crate::mailbox;
use crate::queue_pairs::{Address, QueuePairs};
use crate::receive_queue::ReceiveQueue;
use crate::reserve::{Reserve, ReserveCounts};
use crate::routes::Routes;
use crate::sizing::{Plan, Sizing};
use crate::transport::VerbsTransport;
use crate::verbs::{Context, DeviceAttributes};

/// Opens devices for one poller, each as a lane, and posts their receives. The names have commas
/// between them.
///
/// The first has to be there; one of the others that cannot be used is left out, with a warning.
pub(crate) fn open(
    names: &str,
    intents: &Intents,
    sizing: &Sizing,
) -> Result<VerbsTransport, FabricError> {
    let mut names = names.split(',');
    let first = names.next().unwrap_or_default();
    let (first, others) = first_and_others(first, names, |name| {
        let opened = Opened::new(name)?;
        // By itself: one that is too weak is left out, and does not weaken the others.
        Plan::new(name, intents, sizing, &opened.attributes)?;
        Ok(opened)
    })?;
    open_lanes(first, others, intents, sizing)
}

/// A device that has been opened for a poller, and what it says of itself.
pub(crate) struct Opened {
    name: Box<str>,
    context: Context,
    attributes: DeviceAttributes,
    pub(crate) address: Address,
}

impl Opened {
    pub(crate) fn new(name: &str) -> Result<Self, FabricError> {
        let context = Context::open(name).map_err(|e| refused(name, "cannot be opened", e))?;
        Ok(Self {
            name: name.into(),
            attributes: context.query_device(),
            address: Address::of(&context)
                .map_err(|e| refused(name, "does not say its address", e))?,
            context,
        })
    }
}

/// A lane for each device, all sized alike, so that one [`Limits`](rpc_core::limits::Limits) holds
/// for every lane: what the weakest of the devices can do.
pub(crate) fn open_lanes(
    first: Opened,
    others: Vec<Opened>,
    intents: &Intents,
    sizing: &Sizing,
) -> Result<VerbsTransport, FabricError> {
    let weakest = others.iter().fold(first.attributes, |weakest, other| {
        weaker(weakest, other.attributes)
    });
    let plan = Plan::new(&first.name, intents, sizing, &weakest)?;
    let count = 1 + others.len();
    let mut number = 0;
    let (first, others) = first_and_others(first, others, |device| {
        let plan = plan.on(&device.name, device.address.to_string(), &device.attributes);
        let lane = open_lane(device, plan, Fold::new(number, count))?;
        number += 1;
        Ok(lane)
    })?;
    let mut limits = first.plan.limits.clone();
    limits.others = others.iter().map(other_device).collect();
    tracing::debug!(%limits, "a transport is open");
    Ok(VerbsTransport::new(first, others, limits))
}

fn other_device(lane: &Lane) -> OtherDevice {
    OtherDevice {
        device: lane.plan.limits.device.clone(),
        address: lane.plan.limits.address.clone(),
        max_inline_len: lane.plan.limits.max_inline_len,
    }
}

/// Does something with each device. With the first it has to succeed; another one that it fails
/// with is left out, with a warning.
fn first_and_others<T, U>(
    first: T,
    others: impl IntoIterator<Item = T>,
    mut make: impl FnMut(T) -> Result<U, FabricError>,
) -> Result<(U, Vec<U>), FabricError> {
    let first = make(first)?;
    let others = others.into_iter().filter_map(|other| {
        make(other)
            .inspect_err(|error| tracing::warn!(%error, "a device is left out"))
            .ok()
    });
    Ok((first, others.collect()))
}

/// The smaller of each number that is planned with.
fn weaker(one: DeviceAttributes, other: DeviceAttributes) -> DeviceAttributes {
    DeviceAttributes {
        max_qp: one.max_qp.min(other.max_qp),
        max_qp_wr: one.max_qp_wr.min(other.max_qp_wr),
        max_cqe: one.max_cqe.min(other.max_cqe),
        max_srq: one.max_srq.min(other.max_srq),
        max_srq_wr: one.max_srq_wr.min(other.max_srq_wr),
        max_mr_len: one.max_mr_len.min(other.max_mr_len),
        max_inline_data: one.max_inline_data.min(other.max_inline_data),
        ..one
    }
}

fn open_lane(device: Opened, plan: Plan, fold: Fold) -> Result<Lane, FabricError> {
    let Opened {
        name,
        context,
        address,
        ..
    } = device;
    let name = &*name;
    let limits = &plan.limits;
    let domain = context
        .alloc_pd()
        .map_err(|e| refused(name, "has no protection domain left", e))?;
    let (mut pool, reserved) = BufferPool::register(&domain, &plan).map_err(|e| {
        let action = format!("cannot register {} KiB", limits.registered_len() / 1024);
        refused(name, action, e)
    })?;
    let completion_queue = context
        .create_cq(limits.completion_queue_depth as usize)
        .map_err(|e| refused(name, "cannot create a completion queue", e))?;
    let srq = domain
        .create_srq(plan.srq_depth as usize, 1)
        .map_err(|e| refused(name, "cannot create a shared receive queue", e))?;

    let (mailbox, inbox) = mailbox::mailbox();
    let counts = Arc::new(ReserveCounts::default());
    let mut receives = ReceiveQueue::new(srq.clone(), Arc::clone(&counts), &plan);
    receives
        .post_all(&mut pool)
        .map_err(|e| refused(name, "cannot post its receives", e))?;
    // After the receives: the thread arms the limit first of all, and a limit above what is posted
    // would fire at once on some devices.
    let reserve = Reserve::start(
        context.clone(),
        srq.clone(),
        plan.srq_limit,
        reserved,
        Arc::clone(&counts),
        mailbox.clone(),
    )
    .map_err(|e| refused(name, "has no thread for its events", e))?;
    let queue_pairs = QueuePairs::new(
        address,
        domain,
        completion_queue.handle(),
        srq,
        plan.clone(),
    );

    let connections = limits.max_connections as usize;
    Ok(Lane {
        number: fold.lane(),
        is_idle: true,
        pool,
        connections: Connections::new(fold),
        routes: Routes::with_capacity(connections),
        completion_queue,
        completions: Vec::with_capacity(plan.poll_batch as usize),
        receives,
        dirty: Vec::with_capacity(connections),
        tally: Tally::default(),
        inbox,
        closing: Vec::new(),
        lines: HashMap::new(),
        queue_pairs: Arc::new(queue_pairs),
        mailbox,
        reserve_counts: counts,
        reserve,
        context,
        plan,
    })
}

fn refused(
    device: &str,
    action: impl Into<String>,
    source: impl Error + Send + Sync + 'static,
) -> FabricError {
    FabricError::Device {
        device: device.to_owned(),
        action: action.into(),
        source: Box::new(source),
    }
}
