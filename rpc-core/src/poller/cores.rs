//! [`PollerCore`]: the core that a poller's thread is pinned to.
//!
//! Two busy pollers on one core take its time slices in turn, whichever processes they belong to. So a
//! poller is pinned unasked only if it never sleeps, and only to a core that no other process has
//! claimed on this host. A poller that sleeps is better placed by the system, which knows all threads.
//! The thread of a [`LocalPoller`](super::LocalPoller) is the application's, and is pinned only to a
//! core that was named.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::codec::{MOST_WORK, enter_poller_thread};
use crate::limits::{Intents, Waiting};
use crate::transport::{CoreClaim, CoreRefusal, Fabric, FabricError};

/// A core for a poller's thread.
#[derive(Clone)]
pub(crate) struct PollerCore {
    core: usize,
    /// The application has named it.
    is_named: bool,
    /// `None` if it was named and another process has it.
    claim: Option<Arc<CoreClaim>>,
}

/// Returns a core for each poller of a server, channel or [`Pollers`](crate::Pollers). `None`: the poller
/// is not pinned.
pub(crate) fn choose<F: Fabric>(
    fabric: &F,
    intents: &Intents,
    pollers: usize,
) -> Vec<Option<PollerCore>> {
    match &intents.cores {
        Some(_) => choose_named(fabric, intents, pollers),
        None if intents.waiting == Waiting::Busy => choose_free(fabric, pollers),
        None => vec![None; pollers],
    }
}

/// Returns the cores that were named, cyclically. A core that another process has claimed is used all
/// the same, with a warning.
pub(super) fn choose_named<F: Fabric>(
    fabric: &F,
    intents: &Intents,
    pollers: usize,
) -> Vec<Option<PollerCore>> {
    let named = intents.cores.as_deref().unwrap_or_default();
    let mut claims = Claims::of_this_process();
    let mut taken = Vec::new();
    let cores = named.iter().cycle().take(pollers).map(|&core| {
        let claim = match claims.get(core) {
            Some(claim) => Some(claim),
            None => match claims.claim(fabric, core) {
                Ok(claim) => Some(claim),
                Err(refusal) => {
                    taken.push((core, refusal));
                    None
                }
            },
        };
        Some(PollerCore {
            core,
            is_named: true,
            claim,
        })
    });
    let mut cores: Vec<_> = cores.collect();
    cores.resize_with(pollers, || None);
    // A subscriber to the log is code of the application, which may open a poller.
    drop(claims);
    for (core, refusal) in taken {
        match refusal {
            CoreRefusal::Taken { .. } => tracing::warn!(
                "a poller is pinned to core {core}, which {refusal}: their pollers take its time slices \
                 in turn. Set `cores` of one of the two to other cores"
            ),
            CoreRefusal::Os(_) => tracing::debug!("core {core} {refusal}"),
        }
    }
    cores
}

/// Claims a core for each poller: the highest that are free, because interrupts arrive at the lowest.
/// One core of those that the process may use is left to its other threads.
fn choose_free<F: Fabric>(fabric: &F, pollers: usize) -> Vec<Option<PollerCore>> {
    let allowed = fabric.allowed_cores();
    let mut claims = Claims::of_this_process();
    let own = allowed.iter().filter(|core| claims.get(**core).is_some());
    let own = own.count();
    let mut cores = Vec::new();
    let mut refusals = Refusals::default();
    if allowed.len() <= own + pollers {
        drop(claims);
        tracing::info!(
            allowed = allowed.len(),
            pinned = own,
            pollers,
            "busy pollers are not pinned: one core at least is left to the other threads of the process"
        );
        cores.resize_with(pollers, || None);
        return cores;
    }
    for &core in allowed.iter().rev() {
        if cores.len() == pollers {
            break;
        }
        if claims.get(core).is_some() {
            continue;
        }
        match claims.claim(fabric, core) {
            Ok(claim) => cores.push(Some(PollerCore {
                core,
                is_named: false,
                claim: Some(claim),
            })),
            Err(refusal) => refusals.0.push((core, refusal)),
        }
    }
    drop(claims);
    if cores.len() < pollers {
        tracing::warn!(
            pollers = pollers - cores.len(),
            "no core is free for busy pollers, which are not pinned: {refusals}. Give the processes \
             different cores (`cores`, or a control group), or set `Waiting::Adaptive`"
        );
        cores.resize_with(pollers, || None);
    }
    cores
}

/// Why cores are not free.
#[derive(Default)]
struct Refusals(Vec<(usize, CoreRefusal)>);

/// Processes that a warning names. One is enough to look for the reason.
const NAMED: usize = 4;

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (core, refusal)) in self.0.iter().take(NAMED).enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}core {core} {refusal}")?;
        }
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// The claims of this process, by core. Several of its pollers may be pinned to one core by name.
struct Claims(MutexGuard<'static, BTreeMap<usize, Weak<CoreClaim>>>);

static CLAIMS: Mutex<BTreeMap<usize, Weak<CoreClaim>>> = Mutex::new(BTreeMap::new());

impl Claims {
    fn of_this_process() -> Self {
        // Under this lock only the allocator can panic.
        Self(CLAIMS.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn get(&self, core: usize) -> Option<Arc<CoreClaim>> {
        self.0.get(&core)?.upgrade()
    }

    fn claim<F: Fabric>(&mut self, fabric: &F, core: usize) -> Result<Arc<CoreClaim>, CoreRefusal> {
        let claim = Arc::new(fabric.claim_core(core)?);
        self.0.insert(core, Arc::downgrade(&claim));
        Ok(claim)
    }
}

impl PollerCore {
    /// Pins the calling thread. If the system refuses a core that nobody has named, the poller works
    /// without.
    ///
    /// # Errors
    ///
    /// Returns the system's error for a core that was named.
    fn pin<F: Fabric>(self, fabric: &F) -> Result<Option<PinnedThread>, FabricError> {
        let core = self.core;
        match fabric.pin_current_thread(core) {
            Ok(()) => {
                let fabric = fabric.clone();
                Ok(Some(PinnedThread {
                    core,
                    unpin: Box::new(move || fabric.unpin_current_thread()),
                    _claim: self.claim,
                    _of_one_thread: PhantomData,
                }))
            }
            Err(source) if self.is_named => Err(FabricError::Pin { core, source }),
            Err(error) => {
                tracing::warn!(core, %error, "the system refuses to pin a busy poller, which works without");
                Ok(None)
            }
        }
    }
}

/// Pins the calling thread, if there is a core for its poller, and opens the device. In this order, so
/// that memory is allocated on the core's own NUMA node.
///
/// # Errors
///
/// Returns the error of the device, or the system's for a core that was named.
pub(crate) fn open_on<F: Fabric>(
    fabric: &F,
    core: Option<PollerCore>,
    intents: &Intents,
) -> Result<(F::Transport, Option<PinnedThread>), FabricError> {
    let pinned = match core {
        Some(core) => core.pin(fabric)?,
        None => None,
    };
    let start = |run: fn()| F::start_thread_of_process("verbline-decode", run);
    enter_poller_thread(start, MOST_WORK);
    Ok((fabric.open(intents)?, pinned))
}

/// A thread that is pinned until this is dropped.
pub(crate) struct PinnedThread {
    pub(crate) core: usize,
    unpin: Box<dyn Fn()>,
    _claim: Option<Arc<CoreClaim>>,
    _of_one_thread: PhantomData<*const ()>,
}

impl Drop for PinnedThread {
    fn drop(&mut self) {
        (self.unpin)();
    }
}
