//! Opening a poller's transport: every resource of it, made once, off the data path.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use rpc_core::limits::Intents;
use rpc_core::transport::FabricError;

use crate::buffer_pool::BufferPool;
use crate::connection::Connections;
use crate::mailbox;
use crate::queue_pairs::QueuePairs;
use crate::receive_queue::ReceiveQueue;
use crate::reserve::{Reserve, ReserveCounts};
use crate::routes::Routes;
use crate::sizing::{Plan, Sizing};
use crate::transport::{Tally, VerbsTransport};
use crate::verbs::Context;

/// Opens the device for one poller, and posts its receives.
pub(crate) fn open(
    name: &str,
    intents: &Intents,
    sizing: &Sizing,
) -> Result<VerbsTransport, FabricError> {
    let context = Context::open(name).map_err(|e| refused(name, "cannot be opened", e))?;
    let plan = Plan::new(name, intents, sizing, &context.query_device())?;
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
        &context,
        domain,
        completion_queue.handle(),
        srq,
        plan.clone(),
    )
    .map_err(|e| refused(name, "does not say its address", e))?;

    tracing::debug!(%limits, "a transport is open");
    let connections = limits.max_connections as usize;
    Ok(VerbsTransport {
        pool,
        connections: Connections::default(),
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
