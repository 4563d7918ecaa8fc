//! Claims of cores: which process of this host has pinned a poller to which core.
//!
//! A claim is an abstract Unix socket with the name of the core: only one socket can have the name.
//! The kernel frees the name when the socket is closed, so the claim ends with its process, however
//! that ends, and nothing is left in a file system. It also says which process listens.
//!
//! Its scope is a network namespace, as for the links of `soft`. A lock of a file would have the scope
//! of a mount namespace, which containers do not share either, would leave the file behind, and would
//! depend on who may open the file. Claims of other users count. A hostile user can claim cores that it
//! does not use, and the pollers of others are then not pinned: nothing else depends on a claim.
//!
//! The child of a fork does not keep it.

use std::fmt;
use std::fs;

use rpc_core::transport::{CoreClaim, CoreRefusal};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use verbline_verbs::for_transport::{Credentials, keep_from_children};

/// Sockets of processes that have asked who has the core, and that wait in the queue. Nobody takes them
/// out, so so many processes get an answer. The system's limit (`net.core.somaxconn`) is usually the
/// same.
const BACKLOG: i32 = 4096;

/// Claims a core for this process.
pub(super) fn claim(core: usize) -> Result<CoreClaim, CoreRefusal> {
    claim_name(&format!("verbline-core-{core}"))
}

fn claim_name(name: &str) -> Result<CoreClaim, CoreRefusal> {
    let failed = |error: Errno| CoreRefusal::Os(error.into());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
    // Without blocking: the listener's queue may be full.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let claim = socket().map_err(failed)?;
    match bind(&claim, &address) {
        Ok(()) => {
            keep_from_children(&claim).map_err(failed)?;
            listen(&claim, BACKLOG).map_err(failed)?;
            Ok(Box::new(claim))
        }
        Err(Errno::ADDRINUSE) => {
            let holder = socket().and_then(|socket| {
                connect(&socket, &address)?;
                Credentials::of_peer(&socket)
            });
            Err(CoreRefusal::Taken {
                holder: Holder(holder.ok()).to_string(),
            })
        }
        Err(error) => Err(failed(error)),
    }
}

/// The process that has a core, as part of a sentence. `None` if it did not say.
struct Holder(Option<Credentials>);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("a process that does not say which it is"),
            Some(Credentials { pid: 0, uid }) => {
                write!(f, "a process of another PID namespace (user {uid})")
            }
            Some(Credentials { pid, uid }) => {
                write!(f, "process {pid} (")?;
                if let Ok(name) = fs::read(format!("/proc/{pid}/comm")) {
                    // The process chooses its name, which may contain anything.
                    write!(f, "{}, ", name.trim_ascii_end().escape_ascii())?;
                }
                write!(f, "user {uid})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};

    use super::*;

    fn holder(name: &str) -> String {
        match claim_name(name) {
            Err(CoreRefusal::Taken { holder }) => holder,
            other => panic!("{:?}", other.map(drop)),
        }
    }

    #[test]
    fn a_core_is_claimed_once_and_whoever_asks_is_told_by_which_process() {
        let name = format!("verbline-test-core-{}", std::process::id());
        let claim = claim_name(&name).unwrap();
        let said = holder(&name);
        let this = format!("process {} (", std::process::id());
        assert!(said.starts_with(&this), "{said}");
        assert!(said.contains("user "), "{said}");
        drop(claim);
        drop(claim_name(&name).unwrap());
    }

    /// Set for [`claiming_process`].
    const NAME: &str = "VERBLINE_TEST_CORE";

    #[test]
    #[ignore = "the process of another test"]
    #[allow(clippy::print_stdout, reason = "its parent waits for the line")]
    fn claiming_process() {
        let _claim = claim_name(&env::var(NAME).unwrap()).unwrap();
        println!("\nclaimed");
        // Until it is killed, or its parent ends.
        let _ = std::io::stdin().read(&mut [0]);
    }

    #[test]
    fn a_claim_ends_with_its_process_however_that_ends() {
        let name = format!("verbline-test-killed-{}", std::process::id());
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--nocapture", "claiming_process"])
            .env(NAME, &name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let claimed = lines.map_while(Result::ok).any(|line| line == "claimed");
        let said = holder(&name);
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(claimed);
        assert!(
            said.starts_with(&format!("process {} (", process.id())),
            "{said}"
        );
        drop(claim_name(&name).unwrap());
    }

    #[test]
    fn a_core_whose_holder_does_not_answer_is_taken_and_nothing_waits_for_it() {
        let name = format!("verbline-test-silent-{}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let hostile = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        bind(&hostile, &address).unwrap();
        // It does not listen.
        assert!(holder(&name).contains("does not say"));
        listen(&hostile, 0).unwrap();
        // Its queue has room for one.
        assert!(holder(&name).starts_with("process "));
        assert!(holder(&name).contains("does not say"));
    }
}
