//! Files that another process made, and sockets through which it can send some.
//!
//! Closing such a file can block for as long as its maker likes: a TCP socket with `SO_LINGER`
//! blocks in `close` until its data is sent. Closing a socket closes the files that wait in it, and
//! so does receiving without a buffer for them. No thread of a user, and not the engine, does any
//! of these. [`PeerFile`] leaves the closing to threads that do nothing else, and
//! [`set_takes_files`] makes the kernel refuse files for a socket that awaits none.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;

use crate::affinity::start_thread;

/// A file that another process made, or a socket that can contain such files. Dropping it does not
/// block.
#[derive(Debug)]
pub(crate) struct PeerFile(Option<OwnedFd>);

impl From<OwnedFd> for PeerFile {
    fn from(file: OwnedFd) -> Self {
        Self(Some(file))
    }
}

impl AsFd for PeerFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Some(file) => file.as_fd(),
            None => unreachable!("only `drop` takes the file"),
        }
    }
}

impl Drop for PeerFile {
    fn drop(&mut self) {
        if let Some(file) = self.0.take() {
            close_later(file);
        }
    }
}

/// Closes a file on another thread.
pub(crate) fn close_later(file: OwnedFd) {
    CLOSER.close_later(file);
}

/// Returns true if so many files wait to be closed that this process should take no more of them.
pub(crate) fn must_take_no_more() -> bool {
    CLOSER.is_full()
}

/// Sets whether other processes can send files through a Unix socket to this end of it. The kernel
/// has this option since Linux 6.16; without it, every socket takes files.
///
/// The sockets that a listener accepts begin with the listener's setting.
pub(crate) fn set_takes_files(socket: impl AsFd, takes_files: bool) -> rustix::io::Result<()> {
    let value = libc::c_int::from(takes_files);
    // SAFETY: the kernel reads an int from the address of `value`, which lives until the call has
    // returned, and whose length is passed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    match Errno::from_io_error(&io::Error::last_os_error()) {
        Some(Errno::NOPROTOOPT) => Ok(()),
        error => Err(error.unwrap_or(Errno::INVAL)),
    }
}

/// The same on every architecture of Linux on which this crate is used.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Maximum number of threads that close files: the others go on when a file blocks one.
const MAX_THREADS: usize = 4;

/// Number of waiting files with which this process accepts no more links. All threads block then.
const MAX_WAITING: usize = 256;

/// Time after which a thread that has nothing to close ends.
const IDLE_TIME: Duration = Duration::from_secs(1);

static CLOSER: Closer = Closer::new(close);

#[derive(Debug)]
struct Closer {
    close: fn(OwnedFd),
    state: Mutex<State>,
    has_file: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    /// Threads that wait for a file.
    idle: usize,
}

fn close(file: OwnedFd) {
    // A file that is no socket does not have the option, and its close does not linger.
    let _ = sockopt::set_socket_linger(&file, None);
    drop(file);
}

impl Closer {
    const fn new(close: fn(OwnedFd)) -> Self {
        Self {
            close,
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                threads: 0,
                idle: 0,
            }),
            has_file: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&'static self) -> bool {
        let mut state = self.state();
        // At the last attempt, the process may have had no memory for a thread.
        self.start_thread_if_needed(&mut state);
        state.waiting.len() >= MAX_WAITING
    }

    fn close_later(&'static self, file: OwnedFd) {
        // Peers see when a socket is closed: in a simulation, this must not depend on another thread.
        #[cfg(feature = "test-util")]
        if crate::hooks::has_simulation() {
            return (self.close)(file);
        }
        let mut state = self.state();
        state.waiting.push_back(file);
        self.start_thread_if_needed(&mut state);
        self.has_file.notify_one();
    }

    /// Starts a thread if files wait and all threads may be blocked.
    fn start_thread_if_needed(&'static self, state: &mut State) {
        if state.waiting.is_empty() || state.idle > 0 || state.threads >= MAX_THREADS {
            return;
        }
        // If no thread can be started, the file waits until the next attempt.
        if start_thread("verbline-close", move || self.run()).is_ok() {
            state.threads += 1;
        }
    }

    fn run(&'static self) {
        let mut state = self.state();
        loop {
            if let Some(file) = state.waiting.pop_front() {
                // The threads that were idle when the files came may be fewer than the files.
                self.start_thread_if_needed(&mut state);
                drop(state);
                (self.close)(file);
                state = self.state();
                continue;
            }
            state.idle += 1;
            let waited = self.has_file.wait_timeout(state, IDLE_TIME);
            let is_timeout;
            (state, is_timeout) = match waited {
                Ok((state, result)) => (state, result.timed_out()),
                Err(poisoned) => {
                    let (state, result) = poisoned.into_inner();
                    (state, result.timed_out())
                }
            };
            state.idle -= 1;
            if is_timeout && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{ErrorKind, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// A file whose close blocks for `time`, and what keeps it so.
    pub(crate) fn lingering(time: Duration) -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).expect("it listens");
        let (other, _) = listener.accept().expect("it has connected");
        socket.set_nonblocking(true).unwrap();
        loop {
            match socket.write(&[0; 1 << 16]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        sockopt::set_socket_linger(&socket, Some(time)).unwrap();
        (socket.into(), other)
    }

    fn pipe_end() -> OwnedFd {
        rustix::pipe::pipe().expect("a pipe").0
    }

    #[test]
    fn a_file_that_lingers_blocks_nobody() {
        let (file, mut other) = lingering(Duration::from_secs(20));
        let start = Instant::now();
        drop(PeerFile::from(file));
        assert!(start.elapsed() < Duration::from_secs(2));
        // The kernel sends the rest, and the end, after the file was closed.
        other
            .set_read_timeout(Some(Duration::from_secs(15)))
            .unwrap();
        io::copy(&mut other, &mut io::sink()).expect("the end of the data");
    }

    #[test]
    fn when_all_threads_block_files_wait_and_are_closed_later() {
        static BLOCKER: Mutex<()> = Mutex::new(());
        static CLOSED: AtomicUsize = AtomicUsize::new(0);
        static CLOSER: Closer = Closer::new(|file| {
            drop(BLOCKER.lock());
            drop(file);
            CLOSED.fetch_add(1, Ordering::Relaxed);
        });
        let blocked = BLOCKER.lock();
        let start = Instant::now();
        let count = MAX_THREADS + MAX_WAITING;
        let until = |what: &dyn Fn() -> bool| {
            while !what() {
                assert!(start.elapsed() < Duration::from_secs(20));
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for _ in 0..MAX_THREADS {
            CLOSER.close_later(pipe_end());
        }
        until(&|| CLOSER.state().waiting.is_empty());
        for _ in 0..MAX_WAITING {
            assert!(!CLOSER.is_full());
            CLOSER.close_later(pipe_end());
        }
        assert!(CLOSER.is_full());
        assert_eq!(CLOSER.state().threads, MAX_THREADS);
        drop(blocked);
        until(&|| CLOSED.load(Ordering::Relaxed) == count);
        assert!(!CLOSER.is_full());
        until(&|| CLOSER.state().threads == 0);
    }

    #[test]
    fn a_socket_that_takes_no_files_says_so_to_the_sender() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (here, there) = pair.expect("a pair of sockets");
        let send = || {
            let file = pipe_end();
            let files = [file.as_fd()];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
            let bytes = [io::IoSlice::new(b"a")];
            sendmsg(&there, &bytes, &mut ancillary, SendFlags::DONTWAIT)
        };
        set_takes_files(&here, false).expect("a kernel without the option is no error");
        // Before Linux 6.16, the option has no effect.
        let refused = send();
        assert!(refused == Err(Errno::PERM) || refused == Ok(1));
        set_takes_files(&here, true).expect("as before");
        assert_eq!(send(), Ok(1));
        assert!(set_takes_files(pipe_end(), false).is_err(), "no socket");
    }
}
