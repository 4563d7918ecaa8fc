//! The registrar: the thread that registers and deregisters memory for messages, for all pools of
//! the process, and gives free memory of the heap back to the system.
//!
//! It is started with the first pool of the process, so that no message finds that no thread can be
//! started, and sleeps while no pool has memory. In a simulation, no thread runs: memory is registered
//! by the thread that asks for it, and stays registered until a limit is reached. A simulated process
//! that does not run asks for nothing: it was killed.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use verbline_verbs::for_transport::{give_back_free_heap, hooks, start_thread};

use rpc_core::transport::PeerMemory;

use super::free_heap::FreeHeap;
use super::process_memory::{Full, ProcessMemory, Purpose};

/// Time after which the registrar ticks, whatever is requested meanwhile: it looks for chunks that
/// have been free for some ticks, and counts the ticks since a refusal.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// Time for which a new chunk is not deregistered to make room for others, so that a message which
/// waits for it takes it in the next turn of its poller. The application may ask for memory to send
/// and not wait for it: nobody takes that chunk.
pub(super) const TIME_TO_TAKE: Duration = Duration::from_millis(100);

/// A pool, as the registrar sees it.
pub(super) trait RegisteringPool: Send + Sync {
    /// Registers one chunk that is wanted, or allocates windows.
    fn grow(&self) -> Growth;

    /// Records whether there is room for what is wanted, now that a limit is reached.
    fn note_room(&self, room: Room);

    /// Deregisters free chunks that are neither reserved nor of a wanted length, until `needed` bytes
    /// are deregistered or none is left. Returns the number of bytes deregistered, and whether a free
    /// chunk is left.
    fn shed(&self, needed: u64) -> (u64, bool);

    /// Deregisters chunks that were free during the last ticks. Returns true if the pool needs
    /// further ticks.
    fn tick(&self) -> bool;

    /// Returns the count of the process.
    fn process_memory(&self) -> &Arc<ProcessMemory>;

    /// Returns the purpose of its memory.
    fn purpose(&self) -> Purpose;

    /// Returns true if it belongs to a simulated process.
    #[cfg(feature = "test-util")]
    fn is_simulated(&self) -> bool;
}

/// The outcome of an attempt to register more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// Nothing was wanted.
    Unneeded,
    /// Memory or windows were registered or refused, or are no longer missing.
    Settled,
    /// A limit is reached: this many bytes have to be deregistered first.
    Short { needed: u64, full: Full },
}

/// Whether there is room for what a pool wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Room {
    /// The limit is not known to be reached, or chunks were deregistered.
    #[default]
    Made,
    /// The limit is reached, and some chunks are free. They are new, and reserved for
    /// [`TIME_TO_TAKE`], or were given back just now.
    Soon,
    /// The limit is reached, and no chunk is free.
    None,
}

static SHARED: Shared = Shared::new();

/// What the thread shares with the pools.
pub(super) struct Shared {
    work: Mutex<Work>,
    asked: Condvar,
}

impl Shared {
    pub(super) const fn new() -> Self {
        Self {
            work: Mutex::new(Work {
                pools: Vec::new(),
                is_running: false,
                is_asked: false,
                heap: FreeHeap::NONE,
            }),
            asked: Condvar::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Work> {
        // A poisoned lock is usable: the fields are each changed in one step.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Work {
    /// The pools that have asked for memory since the thread has slept.
    pools: Vec<Weak<dyn RegisteringPool>>,
    is_running: bool,
    /// True if a pool has asked since the thread last looked.
    is_asked: bool,
    heap: FreeHeap,
}

/// Starts the thread, unless it runs.
///
/// # Errors
///
/// If the system starts no thread.
pub(super) fn start() -> io::Result<()> {
    #[cfg(feature = "test-util")]
    if hooks::is_simulated() {
        return Ok(());
    }
    let mut work = SHARED.lock();
    if !work.is_running {
        start_thread("verbline-memory", run)?;
        work.is_running = true;
        PeerMemory::of_process().on_burst_end(|| {
            let mut work = SHARED.lock();
            work.heap.burst_ended(hooks::now());
            work.is_asked = true;
            SHARED.asked.notify_one();
        });
    }
    Ok(())
}

/// Asks the thread to register what a pool wants, or to deregister what the pool no longer needs
/// and others want.
pub(super) fn request<P: RegisteringPool + 'static>(pool: &Weak<P>) {
    #[cfg(feature = "test-util")]
    if pool.upgrade().is_some_and(|pool| pool.is_simulated()) {
        if hooks::is_simulated() {
            serve_simulated(pool);
        }
        return;
    }
    #[cfg(all(test, feature = "test-util"))]
    if IS_UNHEARD.get() {
        return;
    }
    ask(&mut SHARED.lock(), pool);
    SHARED.asked.notify_one();
}

#[cfg(all(test, feature = "test-util"))]
thread_local! {
    /// Requests of this thread are not heard, as if the registrar had not come to them yet.
    pub(super) static IS_UNHEARD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

pub(super) fn ask<P: RegisteringPool + 'static>(work: &mut Work, pool: &Weak<P>) {
    add(work, pool);
    work.is_asked = true;
}

/// Serves the pools of a simulated process, which are those with the same count of bytes.
#[cfg(feature = "test-util")]
fn serve_simulated<P: RegisteringPool + 'static>(pool: &Weak<P>) {
    let Some(asking) = pool.upgrade() else { return };
    let mut work = SHARED.lock();
    work.pools.retain(|known| known.strong_count() > 0);
    add(&mut work, pool);
    let mut pools = upgrade(&work.pools);
    drop(work);
    pools.retain(|other| Arc::ptr_eq(other.process_memory(), asking.process_memory()));
    serve(&pools);
}

/// Adds a pool if it is not among them.
fn add<P: RegisteringPool + 'static>(work: &mut Work, pool: &Weak<P>) {
    let is_it =
        |known: &Weak<dyn RegisteringPool>| std::ptr::addr_eq(known.as_ptr(), pool.as_ptr());
    if !work.pools.iter().any(is_it) {
        work.pools.push(pool.clone());
    }
}

/// Returns true if the thread ticks for a pool.
#[cfg(test)]
pub(super) fn does_tick<P: RegisteringPool + 'static>(pool: &Weak<P>) -> bool {
    let work = SHARED.lock();
    let mut ticking = work.pools.iter();
    ticking.any(|known| std::ptr::addr_eq(known.as_ptr(), pool.as_ptr()))
}

fn run() {
    loop {
        let asked = SHARED
            .asked
            .wait_while(SHARED.lock(), |work| !work.is_asked);
        drop(asked);
        let mut next_tick = hooks::now() + TICK;
        while round(&SHARED, &mut next_tick, &mut hooks::now) {}
    }
}

/// Serves the pools, waits until one of them asks or it is time to tick, and ticks if it is. Returns
/// false if no pool needs the thread for now.
pub(super) fn round(
    shared: &Shared,
    next_tick: &mut Instant,
    now: &mut impl FnMut() -> Instant,
) -> bool {
    let mut work = shared.lock();
    work.pools.retain(|pool| pool.strong_count() > 0);
    work.is_asked = false;
    let pools = work.pools.clone();
    drop(work);
    let is_postponed = serve(&upgrade(&pools));

    let mut left = next_tick.saturating_duration_since(now());
    if is_postponed {
        left = left.min(TIME_TO_TAKE);
    }
    let waited = shared
        .asked
        .wait_timeout_while(shared.lock(), left, |work| !work.is_asked);
    drop(waited);
    let now = now();
    let is_heap_due = shared.lock().heap.is_due(now);
    if is_heap_due {
        give_back_free_heap();
    }
    if now < *next_tick {
        return true;
    }
    *next_tick = now + TICK;
    let mut is_used = false;
    for pool in upgrade(&pools) {
        is_used |= pool.tick();
    }
    let mut work = shared.lock();
    if is_used || work.is_asked || work.heap.is_awaited() {
        return true;
    }
    work.pools.clear();
    false
}

/// Returns the pools whose pollers still run.
fn upgrade(pools: &[Weak<dyn RegisteringPool>]) -> Vec<Arc<dyn RegisteringPool>> {
    pools.iter().filter_map(Weak::upgrade).collect()
}

/// Registers what the pools want, in turn, and makes room where a limit is reached. Returns true if it
/// is to be called again after [`TIME_TO_TAKE`].
fn serve(pools: &[Arc<dyn RegisteringPool>]) -> bool {
    for pool in pools {
        pool.process_memory().set_short(false);
    }
    let mut is_busy = true;
    let mut is_postponed = false;
    while is_busy {
        is_busy = false;
        is_postponed = false;
        for pool in pools {
            is_busy |= match pool.grow() {
                Growth::Unneeded => false,
                Growth::Settled => true,
                Growth::Short { needed, full } => {
                    let room = make_room(pool, pools, needed, full);
                    pool.note_room(room);
                    is_postponed |= room == Room::Soon;
                    room == Room::Made
                }
            };
        }
    }
    is_postponed
}

/// Lets the pools deregister free chunks, `pool` first, until `needed` bytes are deregistered.
fn make_room(
    pool: &Arc<dyn RegisteringPool>,
    pools: &[Arc<dyn RegisteringPool>],
    needed: u64,
    full: Full,
) -> Room {
    // Before the pools are searched: see `ProcessMemory::set_short`.
    pool.process_memory().set_short(true);
    let others = pools.iter().filter(|other| {
        !Arc::ptr_eq(other, pool)
            && Arc::ptr_eq(other.process_memory(), pool.process_memory())
            && (full == Full::Limit || other.purpose() == pool.purpose())
    });
    let mut freed = 0;
    let mut is_some_free = false;
    for pool in std::iter::once(pool).chain(others) {
        let (of_pool, is_free) = pool.shed(needed.saturating_sub(freed));
        freed += of_pool;
        is_some_free |= is_free;
    }
    match (freed, is_some_free) {
        (1.., _) => Room::Made,
        (0, true) => Room::Soon,
        (0, false) => Room::None,
    }
}
