//! Memory that suits devices: pages of their own.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a huge page, on the processors that have any of this size.
const HUGE_PAGE: usize = 2 << 20;

/// Anonymous memory of its own pages, huge ones if the system has some set aside.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) start: NonNull<u8>,
    /// 0 if they are to stay mapped for ever.
    pub(super) mapped_len: usize,
    pub(super) are_huge: bool,
}

// SAFETY: plain memory; who may touch which byte of it is the layers' above (see `provider`).
unsafe impl Send for Pages {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pages {}

impl Pages {
    pub(super) fn map(len: usize) -> io::Result<Self> {
        if len >= HUGE_PAGE
            && let Some(huge_len) = len.checked_next_multiple_of(HUGE_PAGE)
            // Refused unless that many are free.
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
            // SAFETY: the range is the mapping. It is advice: without it the pages are small.
            let _ = unsafe { madvise(pages.start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        Ok(pages)
    }

    fn map_with(len: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE | flags) }?;
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
        // SAFETY: mapped with this length; the region over it has been deregistered before, so
        // neither the device nor anybody here uses it any more.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.mapped_len) } {
            tracing::error!(%error, "registered memory cannot be unmapped");
        }
    }
}
