//! Pages that the program has mapped already, turned into shared memory where they are.
//!
//! A program that registers its own memory goes on using its addresses. So a file gets a copy of the
//! pages' content, and is mapped over them. What another thread writes into the pages between these
//! two steps is lost: a program must not write into the pages of a buffer while it registers the
//! buffer. Afterwards the pages are ordinary memory of the program, except that they are shared: with a
//! child of a fork, until it makes them private. They stay mapped when no region needs them any more.

use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, io};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::thread::{Pid, gettid};

use super::memory::{Mapping, PAGE, SharedMemory, create_file};

/// Between two looks at a thread that is about to wait.
const LOOK: Duration = Duration::from_micros(20);

/// Turns the pages that contain the bytes into shared memory with the same content.
///
/// # Safety
///
/// The pages are the program's, readable and writable, in no other file that a region uses, and the
/// program neither writes into them during the call nor unmaps them as long as regions in them are
/// registered.
pub(crate) unsafe fn share(start: NonNull<u8>, len: usize) -> io::Result<SharedMemory> {
    let overflow = || io::Error::from(io::ErrorKind::InvalidInput);
    let first = start.as_ptr().addr() / PAGE * PAGE;
    let end = start
        .as_ptr()
        .addr()
        .checked_add(len)
        .ok_or_else(overflow)?;
    let end = end.checked_next_multiple_of(PAGE).ok_or_else(overflow)?;
    let pages = NonNull::new(start.as_ptr().with_addr(first)).ok_or_else(overflow)?;
    let place = Place(pages, end - first);
    // On a thread of its own: the caller's stack may be in these pages, and it must not change between
    // the two steps. A waiting thread's stack does not.
    let (caller, is_joining) = (gettid(), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let replace = move || {
            until_waiting(caller, is_joining)?;
            // SAFETY: what the caller has promised.
            unsafe { replace(place) }
        };
        let thread = std::thread::Builder::new().spawn_scoped(scope, replace)?;
        is_joining.store(true, Ordering::Release);
        thread.join().map_err(|_| io::Error::other("a panic"))?
    })
}

/// Waits until a thread of this process has set the flag, and then waits in the system.
fn until_waiting(thread: Pid, is_about_to: &AtomicBool) -> io::Result<()> {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    loop {
        if is_about_to.load(Ordering::Acquire) {
            // The state follows the name in parentheses, which may have some itself. S: it sleeps.
            let stat = fs::read(&path)?;
            let after = stat.iter().rposition(|byte| *byte == b')').unwrap_or(0);
            if stat[after..].starts_with(b") S") {
                return Ok(());
            }
        }
        std::thread::sleep(LOOK);
    }
}

/// Gives this process a copy of its own of the pages, as far as the file is still mapped there: what
/// is written from then on is in no file, and neither the other side of a fork nor a peer sees it.
///
/// A write at the same time is not lost: the page that it changes is the one that the copy is made of.
pub(crate) fn make_private(memory: &SharedMemory) -> io::Result<()> {
    let inode = fstat(&memory.fd)?.st_ino.to_string();
    // `start-end permissions offset device inode path`, the first three in hexadecimal.
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let fields: Vec<_> = line.split_whitespace().take(6).collect();
        let [range, permissions, offset, _, of, path] = fields[..] else {
            continue;
        };
        if of != inode || !permissions.ends_with('s') || !path.starts_with("/memfd:") {
            continue;
        }
        let number = |text| u64::from_str_radix(text, 16).map_err(io::Error::other);
        let (start, end) = range.split_once('-').unwrap_or_default();
        let (start, end, offset) = (number(start)?, number(end)?, number(offset)?);
        let place = ptr::with_exposed_provenance_mut(start as usize);
        // SAFETY: the file is mapped in this range.
        unsafe { map_private(memory, place, (end - start) as usize, offset) }?;
    }
    Ok(())
}

/// Does the same in the child of a fork, without the heap: this is the parent's until the pages are
/// private.
///
/// # Safety
///
/// The program has not unmapped the pages.
pub(crate) unsafe fn make_private_after_fork(memory: &SharedMemory) -> io::Result<()> {
    let (start, len) = (memory.mapping.start(), memory.mapping.len());
    // SAFETY: the caller has promised.
    unsafe { map_private(memory, start.as_ptr(), len, 0) }
}

/// Maps a part of the file where it is mapped already, but privately.
///
/// # Safety
///
/// It is mapped there, so that the bytes stay the same.
unsafe fn map_private(
    memory: &SharedMemory,
    start: *mut u8,
    len: usize,
    offset: u64,
) -> io::Result<()> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    let fd = memory.fd.as_fd();
    // SAFETY: the caller has promised.
    unsafe { mmap(start.cast(), len, protection, flags, fd, offset) }?;
    Ok(())
}

/// Whole pages: the first byte, and the length.
#[derive(Clone, Copy)]
struct Place(NonNull<u8>, usize);

// SAFETY: an address range of the process, which is the same from every thread.
unsafe impl Send for Place {}

/// Copies and maps.
///
/// # Safety
///
/// As for [`share`], and no byte of the pages is on this thread's stack.
unsafe fn replace(place: Place) -> io::Result<SharedMemory> {
    let Place(start, len) = place;
    let fd = create_file("verbline-arena", len, MemfdFlags::empty())?;
    let mut written = 0;
    while written < len {
        // SAFETY: the caller has these pages mapped, so that the kernel may read them. It answers with
        // EFAULT where they are not. Nothing here reads them.
        let rest =
            unsafe { std::slice::from_raw_parts(start.as_ptr().add(written), len - written) };
        written += rustix::io::pwrite(&fd, rest, written as u64)?;
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
    // SAFETY: the pages are the program's, and get the content that they had: the caller promises that
    // nobody has written to them meanwhile. Nothing was allocated since the copy, either.
    unsafe { mmap(start.as_ptr().cast(), len, protection, flags, fd.as_fd(), 0) }?;
    // Only after our own mapping: this seal rejects every later writable mapping.
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    fcntl_add_seals(&fd, seals)?;
    let mapping = Mapping::of_program(start, len);
    Ok(SharedMemory { mapping, fd })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The middle of a page, on the stack, keeps its content, and so do its neighbours.
    #[test]
    fn bytes_on_the_stack_stay_what_they_were() {
        let mut bytes: [u8; 3 * PAGE] = std::array::from_fn(|at| (at * 131 + at / 251) as u8);
        let whole = bytes;
        let start = NonNull::new(bytes[PAGE / 2..].as_mut_ptr()).expect("an address");
        // SAFETY: nobody else has these pages, and this thread waits meanwhile.
        let memory = unsafe { share(start, PAGE) }.expect("a file");
        assert_eq!(bytes, whole);
        let offset = start.as_ptr().addr() - memory.mapping.start().as_ptr().addr();
        assert!(offset < PAGE && memory.mapping.len() >= offset + PAGE);
        // What the program writes is in the file.
        bytes[PAGE / 2] ^= 0xff;
        let mut read = [0; 2];
        rustix::io::pread(&memory.fd, &mut read, offset as u64).expect("the file is readable");
        assert_eq!(read, [whole[PAGE / 2] ^ 0xff, whole[PAGE / 2 + 1]]);
        assert_eq!(std::hint::black_box(bytes)[PAGE / 2], read[0]);
    }
    /// The bytes stay, and what is written later is in no file.
    #[test]
    fn private_again_is_private() {
        let mut bytes: Vec<u8> = (0..3 * PAGE)
            .map(|at| (at * 131 + at / 251) as u8)
            .collect();
        let whole = bytes.clone();
        let start = NonNull::new(bytes[PAGE..].as_mut_ptr()).expect("an address");
        // SAFETY: nobody else has these pages.
        let memory = unsafe { share(start, PAGE) }.expect("a file");
        make_private(&memory).expect("a mapping");
        assert_eq!(bytes, whole);
        bytes[PAGE] ^= 0xff;
        let offset = start.as_ptr().addr() - memory.mapping.start().as_ptr().addr();
        let mut read = [0];
        rustix::io::pread(&memory.fd, &mut read, offset as u64).expect("the file is readable");
        assert_eq!((read[0], bytes[PAGE]), (whole[PAGE], whole[PAGE] ^ 0xff));
        assert_eq!(bytes[PAGE + 1..], whole[PAGE + 1..]);
    }
}
