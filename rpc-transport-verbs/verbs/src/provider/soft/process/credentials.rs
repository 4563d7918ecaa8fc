//! Who is at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use rustix::io::Errno;

use super::gid::process_of;
use crate::types::Gid;

/// The process at the other end of a socket, as the kernel knows it: the one that called `connect`
/// or `listen`. It may have ended since, or have passed the socket on, and its id may be another
/// process's by now. A process can only do this with a socket of its own, so whoever holds the
/// socket now got it from a process of this user that had this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process id. 0 if this process's PID namespace does not contain the process.
    pub pid: u32,
    /// The user id.
    pub uid: u32,
}

impl Credentials {
    /// Returns the credentials of the process at the other end of a Unix socket.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call.
    pub fn of_peer(socket: impl AsFd) -> rustix::io::Result<Self> {
        let mut peer = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut len = size_of_val(&peer) as libc::socklen_t;
        // Not by rustix: its type of process ids has no 0, and the kernel's answer may be 0.
        //
        // SAFETY: the kernel writes at most `len` bytes, the length of `peer`, to the address of
        // `peer`, and the length written to the address of `len`. Both live until the call has
        // returned, and every value of their integers is valid.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut len,
            )
        };
        if result != 0 {
            let error = Errno::from_io_error(&io::Error::last_os_error());
            return Err(error.unwrap_or(Errno::INVAL));
        }
        Ok(Self {
            // The kernel's process ids are not negative.
            pid: u32::try_from(peer.pid).unwrap_or(0),
            uid: peer.uid,
        })
    }

    /// Returns true if the process belongs to the user of this process.
    pub(crate) fn is_our_user(self) -> bool {
        self.uid == rustix::process::geteuid().as_raw() && !may_be_any_user(self.uid)
    }

    /// Returns true if this is the process that a GID names, of the user of this process.
    pub(crate) fn is_process_of(self, gid: Gid) -> bool {
        self.pid != 0 && self.is_our_user() && process_of(gid) == Some(self.pid)
    }
}

/// Returns true if the kernel gives this id to every user that this process's user namespace does
/// not contain.
fn may_be_any_user(uid: u32) -> bool {
    static ID_OF_OTHERS: OnceLock<Option<u32>> = OnceLock::new();
    let id_of_others = ID_OF_OTHERS.get_or_init(|| {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        id_of_others(
            &read("/proc/self/uid_map"),
            &read("/proc/sys/kernel/overflowuid"),
        )
    });
    *id_of_others == Some(uid)
}

/// Returns the id of users that are not in the user namespace; `None` if it contains all.
fn id_of_others(uid_map: &str, overflow_uid: &str) -> Option<u32> {
    let mapping: Vec<_> = uid_map.split_whitespace().collect();
    let contains_all = mapping == ["0", "0", "4294967295"];
    (!contains_all).then(|| overflow_uid.trim().parse().unwrap_or(DEFAULT_OVERFLOW_UID))
}

const DEFAULT_OVERFLOW_UID: u32 = 65_534;

#[cfg(test)]
mod tests {
    use super::super::gid::new_gid;
    use super::super::link::tests::pair;
    use super::*;

    #[test]
    fn the_credentials_are_this_process() {
        let (here, _there) = pair();
        let credentials = here.credentials().unwrap();
        assert_eq!(credentials.pid, std::process::id());
        assert!(credentials.is_our_user());
        let other = Credentials {
            uid: credentials.uid ^ 1,
            ..credentials
        };
        assert!(!other.is_our_user());
    }

    #[test]
    fn a_process_of_another_namespace_is_no_process_of_a_gid() {
        let (here, _there) = pair();
        let credentials = here.credentials().unwrap();
        let mut gid = new_gid().unwrap();
        assert!(credentials.is_process_of(gid));
        gid.0[6..10].fill(0);
        let outside = Credentials {
            pid: 0,
            ..credentials
        };
        assert_eq!(process_of(gid), Some(outside.pid));
        assert!(!outside.is_process_of(gid));
    }

    #[test]
    fn the_id_of_users_outside_of_the_namespace_is_nobodys_in_particular() {
        let all = "         0          0 4294967295\n";
        assert_eq!(id_of_others(all, "65534\n"), None);
        let container = "         0     100000      65536\n";
        assert_eq!(id_of_others(container, "65534\n"), Some(65_534));
        assert_eq!(id_of_others(container, "1000\n"), Some(1000));
        assert_eq!(id_of_others("", ""), Some(65_534));
    }
}
