//! Pages that the program has mapped already, turned into shared memory where they are.
//!
//! A program that registers its own memory goes on using its addresses. So a file gets a copy of the
//! pages' content, and is mapped over them. What another thread writes into the pages between these
//! two steps is lost: a program must not write into the pages of a buffer while it registers the
//! buffer. Afterwards the pages are ordinary memory of the program, except that a child of a fork
//! shares them. They stay mapped when no region needs them any more.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::memory::{Mapping, PAGE, SharedMemory, create_file};

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
    std::thread::scope(|scope| {
        let replace = move || {
            // SAFETY: what the caller has promised.
            unsafe { replace(place) }
        };
        let thread = std::thread::Builder::new().spawn_scoped(scope, replace)?;
        thread.join().map_err(|_| io::Error::other("a panic"))?
    })
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
}
