//! What to do about an error of the operating system. The number of the error decides, and then what
//! was attempted: a socket that cannot be opened for want of files has nothing to do with its port.

use std::error::Error;
use std::fmt;
use std::io;

use rustix::io::Errno;

/// What failed, as far as the same number means different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Listening at an address.
    Listen,
    /// Looking a name up.
    Resolve,
    /// Connecting to an address.
    Connect,
    /// An operation of this process or of its device.
    Local,
}

/// Returns a limit of this process or of its machine that an error, or one of its sources, says was
/// reached, with its remedy. The limit is nobody's but this side's.
#[must_use]
pub fn limit_reached(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let (errno, text) = first_of_system(error)?;
    // An error that says more than the system has its own advice.
    by_limit(errno).filter(|_| error.to_string().ends_with(&text))
}

/// The limits whose number means the same whichever call returns it. `EAGAIN`, `ENOSPC` and the others do
/// not: an error of theirs says itself what it means, where the call was made.
fn by_limit(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::MFILE => {
            "This process has as many files open as it may: raise its limit (`ulimit -n`; LimitNOFILE= for \
             a service of systemd; --ulimit nofile= for a container)"
        }
        Errno::NFILE => {
            "This machine has as many files open as it may: raise its limit (sysctl fs.file-max)"
        }
        // mmap(2) returns it for any of these.
        Errno::NOMEM => {
            "This process gets no more memory: the machine, its control group (memory.max) or its address \
             space (`ulimit -v`) has none left, or it has as many mappings as it may (sysctl \
             vm.max_map_count)"
        }
        // connect(2), accept(2), sendmsg(2): "the socket buffer limits, not the system memory".
        Errno::NOBUFS => {
            "The system gives this process's sockets no more memory: see sysctl net.ipv4.tcp_mem, and the \
             control group's limit (memory.max)"
        }
        _ => return None,
    })
}

/// What to do about an error, as the sentence that follows its own. Nothing if the error's own sentence
/// goes on after the system's error, because it has its own advice then.
#[derive(Debug)]
pub struct Remedy<'a>(pub Attempt, pub &'a (dyn Error + 'static));

impl fmt::Display for Remedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(attempt, error) = *self;
        let remedy = match first_of_system(error) {
            None => otherwise(attempt),
            Some((errno, text)) if error.to_string().ends_with(&text) => remedy(attempt, errno),
            Some(_) => None,
        };
        match remedy {
            Some(remedy) => write!(f, ". {remedy}"),
            None => Ok(()),
        }
    }
}

fn remedy(attempt: Attempt, errno: Errno) -> Option<&'static str> {
    let by_limit = by_limit(errno);
    if by_limit.is_some() {
        return by_limit;
    }
    match (attempt, errno) {
        (Attempt::Listen, Errno::ADDRINUSE) => Some(
            "Another socket listens there: end its process, or use a free port; with port 0 the system \
             chooses one",
        ),
        (Attempt::Listen, Errno::ADDRNOTAVAIL) => Some(
            "No interface of this machine has this address: use one that it has, or 0.0.0.0 or [::] for \
             all of them",
        ),
        (Attempt::Listen, Errno::ACCESS) => Some(
            "A port below 1024 (sysctl net.ipv4.ip_unprivileged_port_start) needs the capability \
             CAP_NET_BIND_SERVICE: use a higher one. If it is a higher one, a profile of SELinux or \
             AppArmor forbids it to this process",
        ),
        (Attempt::Connect, Errno::ADDRNOTAVAIL) => Some(
            "This machine has no free port, or no address of the same family, to connect from: see sysctl \
             net.ipv4.ip_local_port_range, and `ss -s` for connections that another program leaves open",
        ),
        (Attempt::Connect, Errno::NETUNREACH | Errno::HOSTUNREACH) => {
            Some("No route leads there from this machine: check the address, and `ip route get`")
        }
        (_, Errno::AFNOSUPPORT) => {
            Some("This machine has no addresses of this family: use the other one, IPv4 or IPv6")
        }
        (Attempt::Connect, Errno::ACCESS | Errno::PERM) => Some(
            "A rule of this machine forbids the connection: check its firewall, and the profile of seccomp, \
             SELinux or AppArmor that this process runs under",
        ),
        (Attempt::Listen | Attempt::Local, Errno::ACCESS | Errno::PERM | Errno::NOSYS) => Some(
            "This machine forbids it to this process: check the profile of seccomp, SELinux or AppArmor \
             that it runs under",
        ),
        _ => otherwise(attempt),
    }
}

/// What helps in most other cases.
fn otherwise(attempt: Attempt) -> Option<&'static str> {
    match attempt {
        Attempt::Listen => Some(
            "Use a host:port of this machine with a free port; with port 0 the system chooses one",
        ),
        Attempt::Resolve => Some("Check its spelling and the system's name service"),
        Attempt::Connect => Some("Check that the server is running and that the port is right"),
        Attempt::Local => None,
    }
}

/// Returns the first error of the operating system among an error and its sources, with its text.
fn first_of_system(error: &(dyn Error + 'static)) -> Option<(Errno, String)> {
    let mut next = Some(error);
    while let Some(error) = next {
        let found = match error.downcast_ref::<io::Error>() {
            Some(error) => errno(error),
            None => error.downcast_ref::<Errno>().copied(),
        };
        if let Some(found) = found {
            return Some((found, error.to_string()));
        }
        next = error.source();
    }
    None
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}
