//! Page-aligned memory for devices.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::system_error::not_mapped;

/// Size of a huge page in bytes, on processors that have huge pages of this size.
const HUGE_PAGE: usize = 2 << 20;

/// A private anonymous mapping, in huge pages if the system has enough of them reserved.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) start: NonNull<u8>,
    /// 0 if the pages must stay mapped forever.
    pub(super) mapped_len: usize,
    pub(super) are_huge: bool,
}

// SAFETY: the mapping is plain memory, valid on any thread; the layers above determine which code
// may access which byte (see `provider`).
unsafe impl Send for Pages {}
// SAFETY: a shared reference gives only the address and lengths, no access to the bytes.
unsafe impl Sync for Pages {}

impl Pages {
    pub(super) fn map(len: usize) -> io::Result<Self> {
        if len >= HUGE_PAGE
            && let Some(huge_len) = len.checked_next_multiple_of(HUGE_PAGE)
            // Fails unless enough huge pages are free.
            && let Ok(mut pages) =
                Self::map_with(huge_len, MapFlags::HUGETLB | MapFlags::HUGE_2MB)
        {
            pages.are_huge = true;
            return Ok(pages);
        }
        Self::map_small(len)
    }

    pub(super) fn map_small(len: usize) -> io::Result<Self> {
        let pages = Self::map_with(len, MapFlags::empty())?;
        if len >= HUGE_PAGE {
            // SAFETY: the range is exactly the mapping made above. The call is advice: if it fails,
            // the pages stay small.
            let _ = unsafe { madvise(pages.start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        Ok(pages)
    }

    fn map_with(len: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address chosen by the kernel replaces no other mapping.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE | flags) };
        let start = start.map_err(|errno| not_mapped(errno, len))?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self {
            start,
            mapped_len: len,
            are_huge: false,
        })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.mapped_len == 0 {
            return;
        }
        // SAFETY: mapped with this length in `map_with`. The region over it has already been
        // deregistered, so neither the device nor this process accesses it any more.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.mapped_len) } {
            tracing::error!(%error, "registered memory cannot be unmapped");
        }
    }
}
