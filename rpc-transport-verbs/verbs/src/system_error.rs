//! Errors of the system, with the sentence for users where the number alone does not say what helps.
//!
//! Which limit a number stands for depends on the call that returned it. `EAGAIN` is a lack of tasks from
//! clone(2), and of locked memory from mmap(2). `ENOSPC` is a limit of watches from epoll_ctl(2), and
//! whatever the driver means from a verb. So each such call has its function here.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// An error of the system that says what helps.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
struct Explained {
    sentence: String,
    #[source]
    errno: Errno,
}

/// Makes an error of the system say this sentence. Its number is kept.
pub(crate) fn explained(errno: Errno, sentence: impl Into<String>) -> io::Error {
    let sentence = sentence.into();
    let kind = io::Error::from(errno).kind();
    io::Error::new(kind, Explained { sentence, errno })
}

/// Returns the number of an error of the system, whether or not it was explained.
pub(crate) fn errno(error: &io::Error) -> Option<Errno> {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(Explained { errno, .. }) => Some(*errno),
        None => Errno::from_io_error(error),
    }
}

/// Explains why a thread could not be started: pthread_create(3), clone(2). The library also says
/// `EAGAIN` if the stack could not be mapped.
pub(crate) fn no_thread(error: io::Error) -> io::Error {
    match errno(&error) {
        Some(Errno::AGAIN) => explained(
            Errno::AGAIN,
            "this process may start no more threads: raise the limit of its user (`ulimit -u`), of its \
             control group (pids.max; TasksMax= for a service of systemd; --pids-limit for a container) or \
             of the machine (sysctl kernel.threads-max, kernel.pid_max); or its address space (`ulimit -v`) \
             or its locked memory (`ulimit -l`, after mlockall) has no room for a stack",
        ),
        _ => error,
    }
}

/// Explains why `len` bytes could not be mapped: mmap(2).
pub(crate) fn not_mapped(errno: Errno, len: usize) -> io::Error {
    let limit_of = |resource| getrlimit(resource).current;
    match errno {
        Errno::NOMEM => match limit_of(Resource::As) {
            Some(limit) if mapped_len().saturating_add(len as u64) > limit => explained(
                errno,
                format!(
                    "{len} bytes of memory do not fit into the address space of this process, which is \
                     limited to {limit} bytes (RLIMIT_AS): raise the limit (ulimit -v, LimitAS=), or lower \
                     `connections` and `max_message_len`"
                ),
            ),
            _ => errno.into(),
        },
        // The process has called mlockall(MCL_FUTURE), which locks each new mapping.
        Errno::AGAIN => {
            let limit = limit_of(Resource::Memlock).unwrap_or(u64::MAX);
            let sentence = format!(
                "{len} bytes of memory cannot be locked, as this process wants for all of its memory \
                 (mlockall): it may lock {limit} bytes (RLIMIT_MEMLOCK). Raise the limit (ulimit -l, \
                 LimitMEMLOCK=, --ulimit memlock= for a container), or do not lock memory of the future"
            );
            explained(errno, sentence)
        }
        _ => errno.into(),
    }
}

/// Returns the bytes of this process's address space that are in use. All of them if the system does not
/// say so. Allocates nothing: there may be no memory left.
fn mapped_len() -> u64 {
    // "VmSize:" is among the first lines: proc_pid_status(5).
    let mut status = [0; 2048];
    let read = File::open("/proc/self/status").and_then(|mut file| file.read(&mut status));
    let status = str::from_utf8(&status[..read.unwrap_or(0)]).unwrap_or_default();
    let mut lines = status.lines();
    let size = lines.find_map(|line| line.strip_prefix("VmSize:"));
    let kib = size.and_then(|size| size.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024))
}

/// Explains why a file was not added to an epoll set: epoll_ctl(2).
pub(crate) fn not_watched(errno: Errno) -> io::Error {
    match errno {
        Errno::NOSPC => explained(
            errno,
            "the processes of this user watch as many files as they may: raise the limit (sysctl \
             fs.epoll.max_user_watches)",
        ),
        _ => errno.into(),
    }
}

/// Adds a file to an epoll set.
///
/// # Errors
///
/// Returns the error of the system call, explained.
pub fn epoll_add(
    set: impl AsFd,
    file: impl AsFd,
    data: epoll::EventData,
    flags: epoll::EventFlags,
) -> io::Result<()> {
    epoll::add(set, file, data, flags).map_err(not_watched)
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn an_explained_error_keeps_its_number_and_says_its_sentence_once() {
        let error = no_thread(Errno::AGAIN.into());
        assert_eq!(errno(&error), Some(Errno::AGAIN));
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let below = error.source().expect("the system's error").to_string();
        assert!(!error.to_string().contains(&below), "{error}");
        // Other errors are as the system says them.
        let forbidden = no_thread(Errno::PERM.into());
        assert_eq!(
            (errno(&forbidden), forbidden.raw_os_error()),
            (Some(Errno::PERM), Some(Errno::PERM.raw_os_error()))
        );
    }

    #[test]
    fn memory_that_is_not_mapped_names_the_limit_that_was_reached() {
        // These tests run without a limit of addresses: it is not the culprit then, and neither if
        // there is room below it.
        let none = not_mapped(Errno::NOMEM, 1).to_string();
        assert!(!none.contains("RLIMIT_AS"), "{none}");
        let locked = not_mapped(Errno::AGAIN, 4711).to_string();
        for word in ["4711", "mlockall", "RLIMIT_MEMLOCK", "ulimit -l"] {
            assert!(locked.contains(word), "{locked}");
        }
        assert!(mapped_len() > 1 << 20 && mapped_len() < u64::MAX);
    }
}
