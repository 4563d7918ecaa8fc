//! Chooses the cores that the two sides run on.

use std::fmt;
use std::fs;
use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;

use rpc_core::Intents;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A core for each side, or one core that both share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The core that the client's thread is pinned to.
    pub client: usize,
    /// The core that the server's poller is pinned to.
    pub server: usize,
    /// True if the two are hardware threads of one physical core.
    pub are_siblings: bool,
}

impl Cores {
    /// Chooses two cores that this process may use. Prefers two cores of one package, and avoids
    /// two hardware threads of one physical core where possible.
    ///
    /// # Errors
    ///
    /// Fails if the system does not report which cores this process may use.
    pub fn choose() -> io::Result<Self> {
        let allowed = allowed()?;
        let allowed: Vec<Core> = (0..CpuSet::MAX_CPU)
            .filter(|&core| allowed.is_set(core))
            .map(Core::read)
            .collect();
        Self::among(&allowed).ok_or_else(|| io::Error::other("this process may not use any core"))
    }

    /// Returns the intents of a poller that is pinned to the client's core.
    #[must_use]
    pub fn on_client_core(self, intents: &Intents) -> Intents {
        Intents {
            cores: Some(vec![self.client]),
            ..intents.clone()
        }
    }

    fn among(allowed: &[Core]) -> Option<Self> {
        let client = allowed.first()?;
        let server = allowed[1..]
            .iter()
            // Of equally distant cores, `min_by_key` returns the first.
            .min_by_key(|core| core.distance_for_measuring(client))
            .unwrap_or(client);
        Some(Self {
            client: client.number,
            server: server.number,
            are_siblings: server.number != client.number && server.physical() == client.physical(),
        })
    }

    /// Returns true if there is only one core, so that the two sides compete for its time slices.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.client == self.server
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_shared() {
            return write!(
                f,
                "!!! ONE CORE ONLY: client and server share core {}. These numbers measure the \
                 system's scheduler, not the device. Allow this process a second core.",
                self.client
            );
        }
        write!(
            f,
            "client pinned to core {}, server to core {}",
            self.client, self.server
        )?;
        if self.are_siblings {
            f.write_str(" (two threads of one physical core: each slows the other down)")?;
        }
        Ok(())
    }
}

/// Returns the cores that this process may use: those of the thread that asks first, before it is
/// pinned.
fn allowed() -> io::Result<CpuSet> {
    static ALLOWED: OnceLock<CpuSet> = OnceLock::new();
    match ALLOWED.get() {
        Some(cores) => Ok(*cores),
        None => {
            let cores = sched_getaffinity(None)?;
            Ok(*ALLOWED.get_or_init(|| cores))
        }
    }
}

/// Pins the calling thread to a core.
///
/// # Errors
///
/// Fails if this process may not use the core.
pub fn pin_current_thread(core: usize) -> io::Result<()> {
    allowed()?;
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Lets the calling thread use all cores that this process may use.
///
/// # Errors
///
/// Fails if the system call fails.
pub fn unpin_current_thread() -> io::Result<()> {
    Ok(sched_setaffinity(None, &allowed()?)?)
}

/// Starts a process that may use all cores that this process may use, even if the calling thread is
/// pinned. A child inherits the affinity of the thread that starts it. With one core, Verbline
/// yields that core to the thread that it waits for, which makes a system call in every few turns.
///
/// # Errors
///
/// Fails if the process cannot be started.
pub fn spawn_unpinned(command: &mut Command) -> io::Result<Child> {
    let own = sched_getaffinity(None)?;
    sched_setaffinity(None, &allowed()?)?;
    let child = command.spawn();
    sched_setaffinity(None, &own)?;
    child
}

/// A core and the parts of its position that the system reports.
#[derive(Clone, Copy, Debug)]
struct Core {
    number: usize,
    package: Option<usize>,
    core_of_package: Option<usize>,
}

impl Core {
    fn read(number: usize) -> Self {
        let topology = |file: &str| {
            let path = format!("/sys/devices/system/cpu/cpu{number}/topology/{file}");
            fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        Self {
            number,
            package: topology("physical_package_id"),
            core_of_package: topology("core_id"),
        }
    }

    /// Returns a value that is equal for two hardware threads of one physical core. If the system
    /// does not report the topology, each number counts as a separate core.
    fn physical(&self) -> (Option<usize>, usize) {
        (self.package, self.core_of_package.unwrap_or(self.number))
    }

    /// Returns 0 for another core of the same package, 1 for another package, and 2 for the other
    /// hardware thread of the same core.
    fn distance_for_measuring(&self, other: &Self) -> u8 {
        if self.physical() == other.physical() {
            2
        } else {
            u8::from(self.package != other.package)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(number: usize, package: usize, core_of_package: usize) -> Core {
        Core {
            number,
            package: Some(package),
            core_of_package: Some(core_of_package),
        }
    }

    #[test]
    fn another_core_of_the_same_package_is_preferred() {
        // 0 and 1 are siblings, 2 is in another package.
        let allowed = [core(0, 0, 0), core(1, 0, 0), core(2, 1, 0), core(4, 0, 1)];
        let cores = Cores::among(&allowed).expect("there are some");
        assert_eq!((cores.client, cores.server), (0, 4));
        assert!(!cores.are_siblings);
    }

    #[test]
    fn siblings_are_said_to_be_siblings() {
        let cores = Cores::among(&[core(3, 0, 1), core(7, 0, 1)]).expect("there are some");
        assert!(cores.are_siblings && !cores.is_shared());
        assert!(cores.to_string().contains("one physical core"), "{cores}");
    }

    #[test]
    fn a_child_of_a_pinned_thread_may_use_all_cores() {
        use std::process::Stdio;

        let all = allowed().expect("the system reports them");
        // Threads of other tests are not pinned.
        let cores = Cores::choose().expect("there is a core");
        pin_current_thread(cores.client).expect("it is allowed");
        let mut command = Command::new("nproc");
        let child = spawn_unpinned(command.stdout(Stdio::piped())).expect("it can be started");
        let output = child.wait_with_output().expect("it ends");
        let counted = String::from_utf8_lossy(&output.stdout);
        assert_eq!(counted.trim(), all.count().to_string());
        let own = sched_getaffinity(None).expect("the system reports them");
        assert_eq!(own.count(), 1, "the calling thread stays pinned");
    }

    #[test]
    fn a_single_core_is_said_loudly() {
        let cores = Cores::among(&[core(5, 0, 0)]).expect("there is one");
        assert!(cores.is_shared());
        assert!(cores.to_string().contains("ONE CORE ONLY"), "{cores}");
        assert_eq!(Cores::among(&[]), None);
    }
}
