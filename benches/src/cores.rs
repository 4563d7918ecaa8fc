//! Which cores the two sides run on.

use std::fmt;
use std::fs;
use std::io;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// A core for each side, or the one that both must share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Where the client's thread is pinned.
    pub client: usize,
    /// Where the server's poller is pinned.
    pub server: usize,
    /// Whether the two are threads of one physical core.
    pub are_siblings: bool,
}

impl Cores {
    /// Two cores that this process may use, of one package if possible, and not two threads of one
    /// physical core if there is a choice.
    ///
    /// # Errors
    ///
    /// If the system does not say which cores there are.
    pub fn choose() -> io::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let allowed: Vec<Core> = (0..CpuSet::MAX_CPU)
            .filter(|&core| allowed.is_set(core))
            .map(Core::read)
            .collect();
        Self::among(&allowed).ok_or_else(|| io::Error::other("this process may use no core at all"))
    }

    fn among(allowed: &[Core]) -> Option<Self> {
        let client = allowed.first()?;
        let server = allowed[1..]
            .iter()
            // The first of the least distance: the order is kept among equals.
            .min_by_key(|core| core.distance_for_measuring(client))
            .unwrap_or(client);
        Some(Self {
            client: client.number,
            server: server.number,
            are_siblings: server.number != client.number && server.physical() == client.physical(),
        })
    }

    /// Whether there is only one, so that the two sides wait for each other's time slices.
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
                "!!! ONE CORE ONLY: client and server share core {}. These numbers are those of the \
                 system's scheduler, not of the device.",
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

/// Pins the calling thread.
///
/// # Errors
///
/// If this process may not use the core.
pub fn pin_current_thread(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    let this_thread: Option<Pid> = None;
    Ok(sched_setaffinity(this_thread, &cores)?)
}

/// A core, and where it sits as far as the system says.
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

    /// Equal for two threads of one physical core. Where the system says nothing, each number
    /// counts as a core of its own.
    fn physical(&self) -> (Option<usize>, usize) {
        (self.package, self.core_of_package.unwrap_or(self.number))
    }

    /// The nearest is another core of the same package; then comes another package; last, the same
    /// core's other thread.
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
    fn a_single_core_is_said_loudly() {
        let cores = Cores::among(&[core(5, 0, 0)]).expect("there is one");
        assert!(cores.is_shared());
        assert!(cores.to_string().contains("ONE CORE ONLY"), "{cores}");
        assert_eq!(Cores::among(&[]), None);
    }
}
