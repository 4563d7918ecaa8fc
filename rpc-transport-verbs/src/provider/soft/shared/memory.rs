//! Memory that processes share: sealed memfds and their mappings.
//!
//! A memfd is sealed against shrinking and growing before any other process gets it. The seals of a
//! peer's memfd are checked before it is mapped: a peer that could truncate the file would turn our
//! next access into SIGBUS.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// A mapping of shared memory, unmapped when dropped.
///
/// Other processes may write it at any time (or read it while this one writes), so it exposes a
/// pointer and never a slice. The memory is accessed by atomics, or by raw copies that a commit
/// word or a completion orders.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range of the process and is the same from every thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference to a mapping only gives access to a raw pointer and a length.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn map(
        fd: BorrowedFd<'_>,
        len: usize,
        protection: ProtFlags,
        pages: Pages,
    ) -> io::Result<Self> {
        let flags = match pages {
            Pages::AtOnce => MapFlags::SHARED | MapFlags::POPULATE,
            Pages::WhenTouched => MapFlags::SHARED,
        };
        // SAFETY: the kernel chooses the address of the new mapping, so it replaces no other
        // mapping.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, flags, fd, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, len })
    }

    /// Maps a peer's memory after checking its seals and that it has at least `min_len` bytes.
    pub(crate) fn from_peer(fd: &OwnedFd, min_len: usize, access: PeerAccess) -> io::Result<Self> {
        let (protection, pages) = match access {
            PeerAccess::ReadOnly => (ProtFlags::READ, Pages::AtOnce),
            PeerAccess::ReadWrite => (ProtFlags::READ | ProtFlags::WRITE, Pages::WhenTouched),
        };
        if !fcntl_get_seals(fd)?.contains(SealFlags::SHRINK) {
            return Err(invalid("a peer's memory is not sealed against shrinking"));
        }
        let len = usize::try_from(fstat(fd)?.st_size).unwrap_or(0);
        if len < min_len || len == 0 {
            return Err(invalid("a peer's memory is shorter than it has to be"));
        }
        Self::map(fd.as_fd(), len, protection, pages)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` describe a mapping that this value alone owns; every holder of
        // a pointer into the mapping also keeps this value alive.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.len) } {
            tracing::warn!(%error, "shared memory could not be unmapped");
        }
    }
}

/// When the kernel allocates the pages of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// For arenas: avoids page faults on the data path.
    AtOnce,
    /// For rings: an idle connection keeps only the few pages that it has touched. A busy ring has
    /// touched all its pages after one round.
    WhenTouched,
}

/// How a peer's memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerAccess {
    /// For the peer's arenas.
    ReadOnly,
    /// For the ring that the peer receives from, and for its ready bits.
    ReadWrite,
}

/// Memory of this process that peers map: the file to send to them, and our own mapping.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    pub(crate) mapping: Mapping,
    pub(crate) fd: OwnedFd,
}

/// Bytes of a huge page. For less memory than this, huge pages are not tried.
const HUGE_PAGE: usize = 2 << 20;
/// Bytes of a page.
const PAGE: usize = 4096;

impl SharedMemory {
    /// Creates memory that peers may also write.
    pub(crate) fn for_writers(name: &str, len: usize) -> io::Result<Self> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len.next_multiple_of(PAGE) as u64)?;
        let mapping = Mapping::map(
            fd.as_fd(),
            len.next_multiple_of(PAGE),
            ProtFlags::READ | ProtFlags::WRITE,
            Pages::WhenTouched,
        )?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { mapping, fd })
    }

    /// Creates memory that only this process writes. It uses huge pages if available, and is sealed
    /// so that a peer cannot map it writable.
    pub(crate) fn arena(len: usize) -> io::Result<Self> {
        if len >= HUGE_PAGE
            && let Ok(arena) = Self::arena_of_pages(len, HUGE_PAGE, MemfdFlags::HUGETLB)
        {
            return Ok(arena);
        }
        let arena = Self::arena_of_pages(len, PAGE, MemfdFlags::empty())?;
        // This is only advice: it takes effect on systems that allow transparent huge pages for
        // shared memory.
        // SAFETY: the range is the mapping just created, and this advice changes no contents.
        let _ = unsafe {
            madvise(
                arena.mapping.start().as_ptr().cast(),
                arena.mapping.len(),
                Advice::LinuxHugepage,
            )
        };
        Ok(arena)
    }

    fn arena_of_pages(len: usize, page: usize, flags: MemfdFlags) -> io::Result<Self> {
        let len = len.next_multiple_of(page);
        let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("verbline-arena", flags)?;
        ftruncate(&fd, len as u64)?;
        let mapping = Mapping::map(
            fd.as_fd(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            Pages::AtOnce,
        )?;
        // Only after our own mapping: this seal rejects every later writable mapping.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals)?;
        Ok(Self { mapping, fd })
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_arena_cannot_be_mapped_writable_by_a_peer() {
        let arena = SharedMemory::arena(5000).unwrap();
        assert!(Mapping::from_peer(&arena.fd, 5000, PeerAccess::ReadWrite).is_err());
        assert!(Mapping::from_peer(&arena.fd, 5000, PeerAccess::ReadOnly).is_ok());
    }

    #[test]
    fn unsealed_memory_of_a_peer_is_refused() {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 8192).unwrap();
        assert!(Mapping::from_peer(&fd, 4096, PeerAccess::ReadWrite).is_err());
    }

    #[test]
    fn memory_that_is_too_short_is_refused() {
        let memory = SharedMemory::for_writers("test", 4096).unwrap();
        assert!(Mapping::from_peer(&memory.fd, 4097, PeerAccess::ReadWrite).is_err());
    }

    #[test]
    fn huge_or_not_an_arena_has_at_least_the_bytes_asked_for() {
        let arena = SharedMemory::arena(HUGE_PAGE + 1).unwrap();
        assert!(arena.mapping.len() > HUGE_PAGE);
    }
}
