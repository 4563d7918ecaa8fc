//! What does not allocate, counted, and what memory is kept. The counts are those of the process, so these
//! tests are a program of their own, and run one at a time.

#[path = "../transport_harness/mod.rs"]
mod transport_harness;

mod handler_allocations;
mod idle_connections;
mod stream_allocations;
mod transport_allocations;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The system's allocator, with a count of the process's allocations and their bytes, and of each thread's
/// allocations.
struct Counting;

static OF_PROCESS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged, so its guarantees apply.
// Counting only updates atomics and a thread-local without a destructor, so it neither allocates
// nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        OF_PROCESS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        OF_THREAD.set(OF_THREAD.get() + 1);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc` for `layout`, and
        // `System.alloc` has the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller passes `memory` from `alloc` above with the same `layout`, and
        // `System` allocated it.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Parts of a test's work whose allocations are counted one by one. In some of them a queue may grow,
/// to hold more than ever before, or a poller sleep for the first time, which allocates room for its
/// events; work that allocates shows in all of them.
const SECTIONS: usize = 5;

/// Returns the number of allocations that the process has made.
fn allocations() -> u64 {
    OF_PROCESS.load(Ordering::Relaxed)
}

/// Returns how many bytes are allocated now.
fn bytes_on_heap() -> usize {
    BYTES.load(Ordering::Relaxed)
}

/// Returns the number of allocations that the calling thread has made.
fn allocations_of_this_thread() -> u64 {
    OF_THREAD.get()
}

/// Keeps the other tests waiting until the returned guard is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
