//! The pages of the program that are shared memory because regions are registered in them.
//!
//! Regions inside the same pages share these. A region that begins inside and ends outside of them
//! cannot be registered, since the pages of those that are there cannot be replaced: `ENOMEM`.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use verbline_verbs::for_shim::Pages;

use crate::boundary::{Errno, lock, say};

/// Those of all devices of the process, in which a region is.
static SHARED: Mutex<Vec<Pages>> = Mutex::new(Vec::new());

/// How long a fork waits for a thread that changes the pages. It could wait for ever: for its own thread, if a
/// signal's handler forks, or for a thread that waits for a lock of the forking one.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_micros(20);

/// The lock of [`SHARED`], from before a fork to after it.
struct WhileForking {
    /// The thread that has the lock, or 0.
    thread: AtomicI32,
    lock: UnsafeCell<Option<MutexGuard<'static, Vec<Pages>>>>,
}

// SAFETY: only a thread that has locked `SHARED` for its fork touches `lock`, and only that one is named.
unsafe impl Sync for WhileForking {}

// Not a thread-local, which may have been dropped when a process forks while it exits.
static WHILE_FORKING: WhileForking = WhileForking {
    thread: AtomicI32::new(0),
    lock: UnsafeCell::new(None),
};

fn this_thread() -> i32 {
    // SAFETY: it takes nothing, and never fails.
    unsafe { libc::gettid() }
}

/// Waits until no other thread changes the pages: the child would have them half changed for ever.
extern "C" fn before_fork() {
    let began = Instant::now();
    let shared = loop {
        match SHARED.try_lock() {
            Ok(shared) => break shared,
            // See `lock`.
            Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
            // The child shares the pages.
            Err(TryLockError::WouldBlock) if began.elapsed() > LONGEST_WAIT => return,
            Err(TryLockError::WouldBlock) => thread::sleep(LOOK),
        }
    };
    // SAFETY: this thread has the lock, and another one that is named has given it back.
    unsafe { *WHILE_FORKING.lock.get() = Some(shared) };
    WHILE_FORKING.thread.store(this_thread(), Ordering::Release);
}

extern "C" fn after_fork_in_parent() {
    if WHILE_FORKING.thread.load(Ordering::Acquire) == this_thread() {
        WHILE_FORKING.thread.store(0, Ordering::Relaxed);
        // SAFETY: this thread was named.
        drop(unsafe { (*WHILE_FORKING.lock.get()).take() });
    }
}

/// Gives a child of a fork its own copy of the pages, as of other memory: it would write into the
/// parent's heap.
extern "C" fn after_fork_in_child() {
    if WHILE_FORKING.thread.swap(0, Ordering::Acquire) == 0 {
        return;
    }
    // SAFETY: the child has no other thread. That which is named had the lock, and was about to fork, or this
    // is its child: in either case the pages are complete.
    let shared = unsafe { (*WHILE_FORKING.lock.get()).take() };
    for pages in shared.iter().flat_map(|shared| shared.iter()) {
        // SAFETY: a region is in them, so that the program has not unmapped them. If the system does not
        // map them, they stay shared: saying so would use the heap, which may be in them.
        let _ = unsafe { pages.make_private_after_fork() };
    }
}

/// Registers the functions around a fork. Before the program does: so its own run while nothing is locked here,
/// and may register memory.
extern "C" fn register() {
    // SAFETY: they may run around any fork, and never unwind. It fails without memory only: then children share
    // the pages.
    unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
        );
    }
}

// SAFETY: the loader calls what is in this section, once, before the program. The function needs nothing that is
// set up later.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register;

/// Gives pages back to the program in which no region is any more.
fn give_back(shared: &mut Vec<Pages>) {
    shared.retain(|pages| {
        let has_region = pages.holders() > 1;
        if !has_region && let Err(error) = pages.make_private() {
            // They stay shared.
            say(&error);
        }
        has_region
    });
}

/// Is called when a region has gone.
pub(crate) fn region_has_gone() {
    give_back(&mut lock(&SHARED));
}

/// Bytes of a page.
const PAGE: usize = 4096;

/// Returns shared pages that contain the bytes.
///
/// # Safety
///
/// The bytes are the program's, readable and writable, and it does not write into their pages during the
/// call. It does not unmap them as long as the value that is returned is there.
pub(crate) unsafe fn containing(start: NonNull<u8>, len: usize) -> Result<Pages, Errno> {
    let first = start.as_ptr().addr();
    let end = first.checked_add(len).ok_or(Errno::INVALID)?;
    let end_of_pages = end.checked_next_multiple_of(PAGE).ok_or(Errno::INVALID)?;
    let mut shared = lock(&SHARED);
    give_back(&mut shared);
    for pages in shared.iter() {
        let (from, to) = pages.range();
        if from <= first && end <= to {
            return Ok(pages.clone());
        }
        if from < end_of_pages && first / PAGE * PAGE < to {
            say(&"register: the region shares some of its pages with another one, and not all");
            return Err(Errno::NO_MEMORY);
        }
    }
    // SAFETY: the pages are in no other value of the list, which holds all there are. The rest is what
    // the caller has promised.
    let pages = unsafe { Pages::share(start, len) }?;
    shared.push(pages.clone());
    Ok(pages)
}
