//! The pages of the program that are shared memory because regions are registered in them.
//!
//! Regions inside the same pages share these. A region that begins inside and ends outside of them
//! cannot be registered, since the pages of those that are there cannot be replaced: `ENOMEM`.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, Once};

use verbline_verbs::for_shim::Pages;

use crate::boundary::{Errno, lock, say};

/// Those of all devices of the process, in which a region is.
static SHARED: Mutex<Vec<Pages>> = Mutex::new(Vec::new());

thread_local! {
    /// The lock of [`SHARED`], while this thread forks.
    static WHILE_FORKING: Cell<Option<MutexGuard<'static, Vec<Pages>>>> = const { Cell::new(None) };
}

/// Waits until no other thread changes the pages: in the child, it would be in the middle of it for ever.
extern "C" fn before_fork() {
    WHILE_FORKING.set(Some(lock(&SHARED)));
}

extern "C" fn after_fork_in_parent() {
    drop(WHILE_FORKING.take());
}

/// Gives a child of a fork its own copy of the pages, as of other memory: it would write into the
/// parent's heap.
extern "C" fn after_fork_in_child() {
    // `before_fork` has set it, in the only thread that the child has.
    for pages in WHILE_FORKING.take().iter().flat_map(|shared| shared.iter()) {
        // SAFETY: a region is in them, so that the program has not unmapped them. If the system does not
        // map them, they stay shared: saying so would use the heap, which may be in them.
        let _ = unsafe { pages.make_private_after_fork() };
    }
}

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
    static AT_FORK: Once = Once::new();
    // SAFETY: the functions may run around a fork, and never unwind. It fails without memory only: then the
    // child shares the pages.
    AT_FORK.call_once(|| unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
        );
    });
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
