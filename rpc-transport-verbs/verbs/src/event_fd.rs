//! [`EventFd`]: a file through which a thread wakes another thread of its process. Processes wake each
//! other by other means: the flag that makes an eventfd non-blocking belongs to the open file, so a
//! process that has the file could clear it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that never blocks: it is readable from the first write until it is emptied.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Creates an eventfd that nobody has written.
    ///
    /// # Errors
    ///
    /// If the process or the system has no file left.
    pub fn new() -> io::Result<Self> {
        let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(file))
    }

    /// Creates an eventfd that counts its writes: each [`take`](Self::take) consumes one write.
    ///
    /// # Errors
    ///
    /// If the process or the system has no file left.
    pub fn semaphore() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        Ok(Self(eventfd(0, flags)?))
    }

    /// Makes the file readable.
    pub fn write(&self) {
        // This fails only when the counter is at its maximum: then the file is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Empties the file, so that it is no longer readable.
    pub fn empty(&self) {
        // This fails only when the file was already empty.
        let _ = self.take();
    }

    /// Consumes all writes, or a single write of a [`semaphore`](Self::semaphore). Returns false if
    /// there was none.
    pub fn take(&self) -> bool {
        rustix::io::read(&self.0, &mut [0_u8; 8]).is_ok()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(file: &EventFd) -> bool {
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    }

    #[test]
    fn writing_makes_it_readable_until_it_is_emptied() {
        let file = EventFd::new().unwrap();
        assert!(!is_readable(&file));
        file.write();
        file.write();
        assert!(is_readable(&file));
        file.empty();
        assert!(!is_readable(&file));
        file.empty();
    }

    #[test]
    fn a_full_counter_does_not_block_the_writer() {
        let file = EventFd::new().unwrap();
        rustix::io::write(&file, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        file.write();
        assert!(is_readable(&file));
    }
}
