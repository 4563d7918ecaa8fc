//! Detects, at the cost of one load, that this is not the process that opened the device.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::system_error::not_mapped;
use crate::types::Forked;

/// A page that the kernel zeroes in the child of a fork. It lives as long as the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkGuard(&'static AtomicU32);

const PAGE: usize = 4096;
const NOT_FORKED: u32 = 1;

/// The guard of the process, which all devices share: each guard occupies a page forever.
static OF_PROCESS: OnceLock<ForkGuard> = OnceLock::new();

/// Returns true in the child of a fork, if its parent had opened a device.
#[inline]
pub fn is_forked() -> bool {
    OF_PROCESS.get().is_some_and(|guard| guard.check().is_err())
}

impl ForkGuard {
    /// Returns the guard of the process. The first call makes it.
    pub(crate) fn of_process() -> io::Result<Self> {
        if let Some(guard) = OF_PROCESS.get() {
            return Ok(*guard);
        }
        let made = Self::new()?;
        Ok(*OF_PROCESS.get_or_init(|| made))
    }

    fn new() -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the new mapping, so it replaces no other
        // mapping.
        let page = unsafe { mmap_anonymous(ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE) };
        let page = page.map_err(|errno| not_mapped(errno, PAGE))?;
        // SAFETY: the range is the page just mapped, and nothing is in it yet.
        unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }?;
        let word: NonNull<AtomicU32> =
            NonNull::new(page.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        // SAFETY: the mapping is aligned to a page, zeroed, and never unmapped, so the reference is
        // valid for `'static`.
        let word = unsafe { word.as_ref() };
        word.store(NOT_FORKED, Ordering::Relaxed);
        Ok(Self(word))
    }

    /// Fails in the child of a fork.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Forked> {
        // Relaxed: the kernel wipes the page before the child runs, and a child has one thread.
        if self.0.load(Ordering::Relaxed) == NOT_FORKED {
            Ok(())
        } else {
            Err(Forked)
        }
    }
}
