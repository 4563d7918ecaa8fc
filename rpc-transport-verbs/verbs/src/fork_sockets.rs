//! Sockets that the child of a fork does not keep.
//!
//! A peer learns that this process has ended when the kernel closes its sockets. The child of a fork
//! has copies of them, with which the kernel keeps each connection, and the server's port, until the
//! child has ended too. So the sockets are listed here. In a child, a handler of pthread_atfork(3)
//! puts a socket that leads nowhere in the place of each. The numbers of the files stay taken: an
//! owner that is dropped in the child closes, and shuts down, nothing of its parent, and no file that
//! the child has opened meanwhile.
//!
//! `vfork`, `posix_spawn` and bare system calls run no such handler. What starts a program needs none:
//! the sockets are closed when it does.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::fstat;
use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

/// Numbers of files in a page of the list.
const PAGE: usize = 4096;

/// Pages of the list: for four million files, four times what the kernel lets a process open unless
/// its administrator raises `fs.nr_open`.
const PAGES: usize = 1024;

/// The inode of the socket that was listed last under each number, or 0. An inode is a number that the
/// kernel counts up for each socket, so an entry whose socket has been closed names no other file, and
/// nothing has to be removed from the list.
static LISTED: [OnceLock<Box<[AtomicU32]>>; PAGES] = [const { OnceLock::new() }; PAGES];

/// What a child has in the place of the sockets: a socket at its end.
static NOWHERE: OnceLock<OwnedFd> = OnceLock::new();

/// Lists a socket: the child of a fork will not keep it.
///
/// # Errors
///
/// If the handler cannot be registered, or the system says nothing about the socket.
pub fn keep_from_children(socket: &impl AsFd) -> Result<()> {
    if NOWHERE.get().is_none() {
        register()?;
    }
    let socket = socket.as_fd();
    let number = usize::try_from(socket.as_raw_fd()).map_err(|_| Errno::BADF)?;
    let inode = fstat(socket)?.st_ino;
    // With a number beyond the list, a socket is kept by children.
    if let Some(page) = LISTED.get(number / PAGE) {
        let page = page.get_or_init(|| (0..PAGE).map(|_| AtomicU32::new(0)).collect());
        page[number % PAGE].store(inode as u32, Ordering::Relaxed);
    }
    Ok(())
}

/// Registers the handler, unless another thread has.
#[cold]
fn register() -> Result<()> {
    static REGISTERING: Mutex<()> = Mutex::new(());
    let _registering = REGISTERING.lock().unwrap_or_else(PoisonError::into_inner);
    if NOWHERE.get().is_some() {
        return Ok(());
    }
    let (nowhere, other) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    shutdown(&nowhere, Shutdown::Both)?;
    drop(other);
    // SAFETY: a child of a fork of any thread may call the handler at any time, because it takes no lock,
    // allocates nothing, and reads only statics, which live as long as the process: see `in_child`.
    match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => {}
        error => return Err(Errno::from_raw_os_error(error)),
    }
    let is_first = NOWHERE.set(nowhere).is_ok();
    assert!(is_first, "it is set under the lock only");
    Ok(())
}

/// Replaces the listed sockets. Runs in the child, which may have been forked while another thread
/// held any lock: it takes none, allocates nothing, and calls only functions that signal-safety(7)
/// lists.
extern "C" fn in_child() {
    let Some(nowhere) = NOWHERE.get() else { return };
    for (index, page) in LISTED.iter().enumerate() {
        let Some(page) = page.get() else { continue };
        for (offset, listed) in page.iter().enumerate() {
            let inode = listed.swap(0, Ordering::Relaxed);
            let number = (index * PAGE + offset) as i32;
            if inode != 0 && inode_of_socket(number) == Some(inode) {
                // SAFETY: the number is that of a socket of this library, whose owner keeps it open:
                // from now on it owns the copy. The child runs no other thread.
                unsafe { libc::dup3(nowhere.as_raw_fd(), number, libc::O_CLOEXEC) };
            }
        }
    }
}

fn inode_of_socket(number: i32) -> Option<u32> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel writes a `stat` to the address of `stat`, and fails if no file has the number.
    if unsafe { libc::fstat(number, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call has succeeded, so it has written the value.
    let stat = unsafe { stat.assume_init() };
    (stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino as u32)
}
