//! The pages of the program that are shared memory because regions are registered in them.
//!
//! Regions inside the same pages share these. A region that begins inside and ends outside of them
//! cannot be registered, since the pages of those that are there cannot be replaced: `ENOMEM`.

use std::ptr::NonNull;
use std::sync::Mutex;

use verbline_verbs::for_shim::Pages;

use crate::boundary::{Errno, lock, say};

/// Those of all devices of the process.
static SHARED: Mutex<Vec<Pages>> = Mutex::new(Vec::new());

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
    // What only the list holds is no region's any more. The program may have unmapped it.
    shared.retain(|pages| pages.holders() > 1);
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
