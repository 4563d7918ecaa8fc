//! Memory that processes share: sealed memfds and their mappings; and memory that a process keeps for
//! itself, which is no file.
//!
//! A memfd is sealed against shrinking and growing before any other process gets it, and memory that
//! peers only read also against their writing. The seals of a peer's memfd are checked before it is
//! mapped: a peer that could truncate the file would turn our next access into SIGBUS. So would a
//! peer that could punch a hole into huge pages, which are not replaced when the system's pool is
//! empty: huge pages are accepted only for memory that is sealed against writing, which includes
//! holes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{
    MemfdFlags, SealFlags, Stat, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use crate::system_error::{explained, not_mapped};

/// A mapping of shared memory, unmapped when dropped.
///
/// Other processes may write it at any time (or read it while this one writes), so it exposes a
/// pointer and never a slice. The memory is accessed by atomics, or by raw copies that a commit
/// word or a completion orders.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// True for pages of the program itself, which stay mapped.
    #[cfg(feature = "shim")]
    is_programs: bool,
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

    /// Returns zeroed memory for tests that also run under Miri, which has no memfds: it is then on
    /// the heap.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn for_tests(len: usize) -> Self {
        if cfg!(miri) {
            let layout = std::alloc::Layout::from_size_align(len, PAGE).expect("a small size");
            // SAFETY: no test passes a length of zero, which the layout must not have.
            let start = unsafe { std::alloc::alloc_zeroed(layout) };
            let start = NonNull::new(start).expect("memory");
            return Self::owned(start, len);
        }
        SharedMemory::for_writers("test", len)
            .expect("memory")
            .mapping
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
        let start = unsafe { mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        Self::made(start, len)
    }

    fn made(start: rustix::io::Result<*mut libc::c_void>, len: usize) -> io::Result<Self> {
        let start = start.map_err(|error| not_mapped(error, len))?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self::owned(start, len))
    }

    fn owned(start: NonNull<u8>, len: usize) -> Self {
        Self {
            start,
            len,
            #[cfg(feature = "shim")]
            is_programs: false,
        }
    }

    /// Describes memory that the program has mapped, and goes on using afterwards.
    #[cfg(feature = "shim")]
    pub(crate) fn of_program(start: NonNull<u8>, len: usize) -> Self {
        Self {
            start,
            len,
            is_programs: true,
        }
    }

    /// Creates zeroed memory that no peer maps. It needs no file, uses huge pages if available, and is
    /// populated.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        if len >= HUGE_PAGE {
            // A control group may have fewer huge pages than the machine: these are not there then.
            let huge = Self::anonymous(len.next_multiple_of(HUGE_PAGE), MapFlags::HUGETLB);
            if let Ok(mapping) = huge.and_then(Self::populated) {
                return Ok(mapping);
            }
        }
        let mapping = Self::anonymous(len.next_multiple_of(PAGE), MapFlags::empty())?;
        mapping.prefer_huge_pages();
        mapping.populated()
    }

    fn anonymous(len: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Not private to the process: after a fork, the parent would copy each page that it writes.
        let flags = MapFlags::SHARED | flags;
        // SAFETY: the kernel chooses the address of the new mapping, so it replaces no other
        // mapping.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, flags) };
        Self::made(start, len)
    }

    /// Asks for huge pages, on systems that have them for shared memory without a request by `mmap`.
    fn prefer_huge_pages(&self) {
        // SAFETY: the range is this mapping, and the advice changes no contents.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
    }

    /// Has the kernel allocate the pages now: there are no page faults on the data path.
    fn populated(self) -> io::Result<Self> {
        let advice = Advice::LinuxPopulateWrite;
        // SAFETY: the range is this mapping, and the advice changes no contents.
        match unsafe { madvise(self.start.as_ptr().cast(), self.len, advice) } {
            // Before Linux 5.14, the pages are allocated when they are touched.
            Ok(()) | Err(Errno::INVAL) => Ok(self),
            Err(error) => Err(error.into()),
        }
    }

    /// Maps a peer's memory after checking its seals, its pages, and that it has at least `min_len`
    /// bytes.
    pub(crate) fn from_peer(fd: impl AsFd, min_len: usize, memory: PeerMemory) -> io::Result<Self> {
        let fd = fd.as_fd();
        let seals = fcntl_get_seals(fd)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(invalid(
                "a peer's memory is not sealed against changes of its length (F_SEAL_SHRINK, F_SEAL_GROW)",
            ));
        }
        let protection = match memory {
            PeerMemory::Arena | PeerMemory::ContextNotes => {
                if !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
                    return Err(invalid(
                        "a peer's memory is not sealed against writing (F_SEAL_FUTURE_WRITE)",
                    ));
                }
                ProtFlags::READ
            }
            PeerMemory::Ring | PeerMemory::Announcements => ProtFlags::READ | ProtFlags::WRITE,
        };
        if memory != PeerMemory::Arena && is_huge(fd)? {
            return Err(invalid(
                "a peer's ring, announcements or notes have huge pages: only arenas may",
            ));
        }
        let file = fstat(fd)?;
        let len = usize::try_from(file.st_size).unwrap_or(0);
        if len < min_len || len == 0 {
            return Err(invalid("a peer's memory is shorter than it has to be"));
        }
        // An arena is as long as its owner wants.
        if memory == PeerMemory::ContextNotes && len != min_len.next_multiple_of(PAGE) {
            return Err(invalid("the notes of a peer's context have another length"));
        }
        // This process reads the memory, and a page that it is the first to read would be allocated
        // at its expense. The seals permit no holes afterwards.
        let is_read = matches!(memory, PeerMemory::Arena | PeerMemory::ContextNotes);
        if is_read && has_holes(fd, &file)? {
            return Err(invalid(
                "a peer's arena, or the notes of its context, have holes: they are not populated",
            ));
        }
        // A peer's memory is never populated: the peer alone decides how long it is, and a page
        // that the peer has not written would be allocated at this process's expense.
        Self::map(fd, len, protection, Pages::WhenTouched)
    }
}

/// Magic number of the file system of huge pages (statfs(2)).
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;

fn is_huge(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // The magic number has 32 bits; the field is wider on some targets, and signed.
    Ok(fstatfs(fd)?.f_type as u32 == HUGETLBFS_MAGIC)
}

/// Returns true if parts of a file have no memory yet. Huge pages are not concerned: a mapping
/// reserves them from a pool of their own, or fails.
fn has_holes(fd: BorrowedFd<'_>, file: &Stat) -> io::Result<bool> {
    let populated = u64::try_from(file.st_blocks)
        .unwrap_or(0)
        .saturating_mul(512);
    Ok(populated < u64::try_from(file.st_size).unwrap_or(u64::MAX) && !is_huge(fd)?)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(feature = "shim")]
        if self.is_programs {
            return;
        }
        #[cfg(miri)]
        {
            let layout = std::alloc::Layout::from_size_align(self.len, PAGE).expect("a small size");
            // SAFETY: under Miri, `for_tests` is the only constructor; it used this layout.
            return unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) };
        }
        #[cfg(not(miri))]
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
    /// For this process's own arenas: avoids page faults on the data path.
    AtOnce,
    /// For rings: an idle connection keeps only the few pages that it has touched. A busy ring has
    /// touched all its pages after one round. All memory of a peer is mapped so, too.
    WhenTouched,
}

/// What a peer's memory is for. It determines the access of its mapping, and what is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerMemory {
    /// Mapped for reading. The peer has sealed it: no process that gets the file later can write
    /// it. Those that mapped it for writing before still can.
    Arena,
    /// As an arena, with a fixed length.
    ContextNotes,
    /// The ring that the peer receives from: mapped for reading and writing.
    Ring,
    /// Mapped for reading and writing.
    Announcements,
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
pub(super) const PAGE: usize = 4096;

impl SharedMemory {
    /// Creates memory that peers may also write.
    pub(crate) fn for_writers(name: &str, len: usize) -> io::Result<Self> {
        let fd = create_file(name, len.next_multiple_of(PAGE), MemfdFlags::empty())?;
        let mapping = Mapping::map(
            fd.as_fd(),
            len.next_multiple_of(PAGE),
            ProtFlags::READ | ProtFlags::WRITE,
            Pages::WhenTouched,
        )?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { mapping, fd })
    }

    /// Creates memory that only this process writes and that is not an arena: it never has huge
    /// pages. It is populated, and sealed so that a peer cannot map it writable.
    pub(crate) fn for_readers(name: &str, len: usize) -> io::Result<Self> {
        Self::sealed_of_pages(name, len, PAGE, MemfdFlags::empty(), Pages::AtOnce)
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
        arena.mapping.prefer_huge_pages();
        Ok(arena)
    }

    fn arena_of_pages(len: usize, page: usize, flags: MemfdFlags) -> io::Result<Self> {
        Self::sealed_of_pages("verbline-arena", len, page, flags, Pages::AtOnce)
    }

    fn sealed_of_pages(
        name: &str,
        len: usize,
        page: usize,
        flags: MemfdFlags,
        pages: Pages,
    ) -> io::Result<Self> {
        let len = len.next_multiple_of(page);
        let fd = create_file(name, len, flags)?;
        let mapping = Mapping::map(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE, pages)?;
        // The kernel does not say if it could not populate a mapping, and peers refuse holes.
        if pages == Pages::AtOnce && has_holes(fd.as_fd(), &fstat(&fd)?)? {
            return Err(Errno::NOMEM.into());
        }
        // Only after our own mapping: this seal rejects every later writable mapping, and holes.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals)?;
        Ok(Self { mapping, fd })
    }
}

/// Creates a file of this length for shared memory.
pub(super) fn create_file(name: &str, len: usize, flags: MemfdFlags) -> io::Result<OwnedFd> {
    // The kernel ends a process that makes a file longer than its limit (SIGXFSZ: setrlimit(2)).
    if let Some(limit) = getrlimit(Resource::Fsize).current
        && (len as u64) > limit
    {
        let error = format!(
            "shared memory of {len} bytes is a file, and exceeds the {limit} bytes that a file of this \
             process may have (RLIMIT_FSIZE): raise the limit (ulimit -f, LimitFSIZE=), or use the device \
             tcp"
        );
        return Err(explained(Errno::FBIG, error));
    }
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags).or_else(|errno| match errno {
        // The system wants it said that nobody executes the file (sysctl vm.memfd_noexec, since Linux 6.3).
        Errno::ACCESS => rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL),
        _ => Err(errno),
    });
    let fd = fd.map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => {
            let sentence = "the system refuses memfd_create, with which shared memory is made: permit the \
                call (a seccomp filter of the container or the service may forbid it), or use the device \
                tcp";
            explained(errno, sentence)
        }
        _ => errno.into(),
    })?;
    ftruncate(&fd, len as u64)?;
    Ok(fd)
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;

    const ALL: [PeerMemory; 4] = [
        PeerMemory::Arena,
        PeerMemory::ContextNotes,
        PeerMemory::Ring,
        PeerMemory::Announcements,
    ];

    fn file(seals: SealFlags, flags: MemfdFlags, len: usize) -> OwnedFd {
        let flags = flags | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("test", flags).unwrap();
        ftruncate(&fd, len as u64).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    #[test]
    fn what_peers_only_read_cannot_be_mapped_writable_by_a_peer_nor_punched() {
        for (memory, kind) in [
            (SharedMemory::arena(5000), PeerMemory::Arena),
            (
                SharedMemory::for_readers("test", 5000),
                PeerMemory::ContextNotes,
            ),
        ] {
            let memory = memory.unwrap();
            assert!(Mapping::from_peer(&memory.fd, 5000, PeerMemory::Ring).is_err());
            assert!(Mapping::from_peer(&memory.fd, 5000, PeerMemory::Announcements).is_err());
            assert!(Mapping::from_peer(&memory.fd, 5000, kind).is_ok());
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            assert!(fallocate(&memory.fd, hole, 0, 4096).is_err());
        }
    }

    #[test]
    fn memory_of_a_peer_without_its_seals_is_refused_with_their_names() {
        let len = SealFlags::SHRINK | SealFlags::GROW;
        for memory in ALL {
            let unsealed = file(SealFlags::empty(), MemfdFlags::empty(), 8192);
            let error = Mapping::from_peer(&unsealed, 4096, memory).unwrap_err();
            assert!(error.to_string().contains("F_SEAL_SHRINK"), "{error}");
            let growing = file(SealFlags::SHRINK, MemfdFlags::empty(), 8192);
            assert!(Mapping::from_peer(&growing, 4096, memory).is_err());
            let writable = file(len, MemfdFlags::empty(), 8192);
            let mapped = Mapping::from_peer(&writable, 4096, memory);
            if matches!(memory, PeerMemory::Ring | PeerMemory::Announcements) {
                assert!(mapped.is_ok());
            } else {
                let error = mapped.unwrap_err();
                assert!(error.to_string().contains("F_SEAL_FUTURE_WRITE"), "{error}");
            }
        }
    }

    /// Such a file needs no huge page: nothing is mapped before the check.
    #[test]
    fn huge_pages_of_a_peer_are_accepted_for_sealed_arenas_only() {
        let seals = SealFlags::SHRINK | SealFlags::GROW;
        let flags = MemfdFlags::HUGETLB;
        let unsealed = file(seals, flags, HUGE_PAGE);
        let sealed = file(seals | SealFlags::FUTURE_WRITE, flags, HUGE_PAGE);
        assert!(is_huge(sealed.as_fd()).unwrap());
        for memory in ALL {
            let refused = |fd| {
                Mapping::from_peer(fd, 4096, memory)
                    .unwrap_err()
                    .to_string()
            };
            if memory == PeerMemory::Arena {
                assert!(refused(&unsealed).contains("F_SEAL_FUTURE_WRITE"));
                // Accepted, and then mapped if this machine has a huge page.
                let accepted = Mapping::from_peer(&sealed, 4096, memory);
                assert!(accepted.is_ok_and(|_| true) || !has_free_huge_page());
            } else {
                assert!(refused(&sealed).contains("huge pages"), "{memory:?}");
            }
        }
    }

    fn has_free_huge_page() -> bool {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("HugePages_Free:"));
        line.is_some_and(|line| !line.ends_with(" 0"))
    }

    /// Reading a hole would allocate its page at the reader's expense.
    #[test]
    fn an_arena_with_a_hole_is_refused() {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
        let arena = |populated| {
            let fd = file(SealFlags::empty(), MemfdFlags::empty(), 3 * PAGE);
            fallocate(&fd, FallocateFlags::empty(), 0, populated).unwrap();
            fcntl_add_seals(&fd, seals).unwrap();
            Mapping::from_peer(&fd, 1, PeerMemory::Arena)
        };
        for populated in [1, 2 * PAGE as u64] {
            let error = arena(populated).unwrap_err();
            assert!(error.to_string().contains("holes"), "{error}");
        }
        assert!(arena(3 * PAGE as u64).is_ok());
    }

    /// Peers refuse others.
    #[test]
    fn an_arena_is_populated_before_it_is_used() {
        for len in [1, PAGE + 1, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 1] {
            let arena = SharedMemory::arena(len).unwrap();
            let file = fstat(&arena.fd).unwrap();
            assert!(file.st_blocks * 512 >= file.st_size, "{len}: {file:?}");
        }
    }

    #[test]
    fn memory_that_is_too_short_is_refused() {
        let memory = SharedMemory::for_writers("test", 4096).unwrap();
        assert!(Mapping::from_peer(&memory.fd, 4097, PeerMemory::Ring).is_err());
    }

    #[test]
    fn huge_or_not_an_arena_has_at_least_the_bytes_asked_for() {
        let arena = SharedMemory::arena(HUGE_PAGE + 1).unwrap();
        assert!(arena.mapping.len() > HUGE_PAGE);
    }
}
