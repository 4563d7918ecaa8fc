//! [`Claim`]: refuses memory that the machine does not have, before it is touched.
//!
//! The pages of a poller's slots are touched when they are registered. A process that touches more
//! than there is gets no error: the kernel ends it, or another process. So the memory is compared
//! with the rest of the machine's memory, and with that of each control group of the process. Swap
//! does not count: registered memory is pinned, and slots that are swapped out are slower than calls.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rpc_core::transport::FabricError;

/// Held from the comparison until the memory has been touched, so that two pollers that start together
/// do not both count on the same memory.
static TOUCHING: Mutex<()> = Mutex::new(());

/// Memory that a poller may touch. Drop it when the memory has been touched: from then on the system
/// counts it.
#[derive(Debug)]
pub(super) struct Claim {
    _touching: MutexGuard<'static, ()>,
}

impl Claim {
    /// Claims memory for the slots of a poller. Waits for other pollers that are being opened.
    ///
    /// # Errors
    ///
    /// Returns [`FabricError::Memory`] if there is less.
    pub(super) fn new(bytes: u64) -> Result<Self, FabricError> {
        // The lock protects nothing that a panic could leave undone.
        let touching = TOUCHING.lock().unwrap_or_else(PoisonError::into_inner);
        // If the system does not say how much memory there is, nothing is refused.
        match available(Path::new("/")) {
            Some(available) if available.bytes < bytes => Err(FabricError::Memory {
                needed: bytes,
                available: available.bytes,
                bound: available.bound.to_string(),
            }),
            _ => Ok(Self {
                _touching: touching,
            }),
        }
    }
}

/// Memory that the process may still use.
#[derive(Debug, PartialEq, Eq)]
struct Available {
    bytes: u64,
    bound: Bound,
}

/// What limits the memory.
#[derive(Debug, PartialEq, Eq)]
enum Bound {
    Machine,
    /// A control group, by the file of its limit.
    ControlGroup(PathBuf),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("the memory of this machine"),
            Self::ControlGroup(file) => {
                write!(f, "the limit of the control group ({})", file.display())
            }
        }
    }
}

/// Returns the least of what the machine and the control groups of this process have left. `root` is
/// the directory that holds `proc` and `sys`.
fn available(root: &Path) -> Option<Available> {
    let of_machine = of_machine(root).map(|bytes| Available {
        bytes,
        bound: Bound::Machine,
    });
    of_control_groups(root)
        .into_iter()
        .chain(of_machine)
        .min_by_key(|available| available.bytes)
}

/// Returns the machine's `MemAvailable`: proc_meminfo(5).
fn of_machine(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Returns the rest of each limit of the process's control group and of those above it: cgroups(7),
/// and "Memory" in the kernel's documentation of both versions.
fn of_control_groups(root: &Path) -> Vec<Available> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for line in groups.lines() {
        // "0::/path" of version 2, "4:memory:/path" of version 1.
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (mount, files) = match controllers {
            "" => ("sys/fs/cgroup", &VERSION_2),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", &VERSION_1)
            }
            _ => continue,
        };
        let mount = root.join(mount);
        // In a container, the path may be that of the host, and the group is mounted at the top.
        let group = mount.join(path.trim_start_matches('/'));
        let groups = group.ancestors();
        let groups = groups.take_while(|group| group.starts_with(&mount));
        found.extend(groups.filter_map(|group| files.rest(group)));
    }
    found
}

/// The files of a control group.
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// The entries of `memory.stat` with memory that the kernel takes back before it ends a process.
    reclaimable: &'static [&'static str],
}

const VERSION_2: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: &["active_file", "inactive_file", "slab_reclaimable"],
};

const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: &["total_active_file", "total_inactive_file"],
};

impl Files {
    /// Returns the rest of a group's limit; `None` if it has no limit ("max", or a huge number) or no
    /// such files.
    fn rest(&self, group: &Path) -> Option<Available> {
        let file = group.join(self.limit);
        let number =
            |path: &Path| -> Option<u64> { fs::read_to_string(path).ok()?.trim().parse().ok() };
        let (limit, usage) = (number(&file)?, number(&group.join(self.usage))?);
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let reclaimable: u64 = stat
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| self.reclaimable.contains(name))
            .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
            .sum();
        let used = usage.saturating_sub(reclaimable);
        Some(Available {
            bytes: limit.saturating_sub(used),
            bound: Bound::ControlGroup(file),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A directory with these files, removed when dropped.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let directory = format!("verbline-memory-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(directory);
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:       8388608 kB\nMemFree:   1 kB\nMemAvailable:    4194304 kB\n",
    );

    #[test]
    fn the_machine_bounds_a_process_without_a_limit() {
        let root = Root::new("machine", &[MEMINFO]);
        let machine = Available {
            bytes: 4 * GIB,
            bound: Bound::Machine,
        };
        assert_eq!(available(&root.0), Some(machine));
        let unlimited = [
            MEMINFO,
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.current", "1\n"),
        ];
        let root = Root::new("unlimited", &unlimited);
        assert_eq!(available(&root.0).unwrap().bound, Bound::Machine);
        assert_eq!(available(Path::new("/nonexistent")), None);
    }

    #[test]
    fn the_least_limit_of_the_groups_counts_without_their_cache() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/slice/service\n"),
            ("sys/fs/cgroup/slice/memory.max", "3221225472\n"),
            ("sys/fs/cgroup/slice/memory.current", "2147483648\n"),
            (
                "sys/fs/cgroup/slice/memory.stat",
                "file 9\nactive_file 536870912\ninactive_file 536870912\nanon 9\n",
            ),
            ("sys/fs/cgroup/slice/service/memory.max", "max\n"),
        ];
        let root = Root::new("groups", &files);
        let found = available(&root.0).unwrap();
        assert_eq!(found.bytes, 2 * GIB);
        let file = root.0.join("sys/fs/cgroup/slice/memory.max");
        assert_eq!(found.bound, Bound::ControlGroup(file));
    }

    #[test]
    fn version_1_of_control_groups_counts_too() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/docker/1\n"),
            // Mounted at the top, as in a container.
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741823\n"),
        ];
        let root = Root::new("version-1", &files);
        assert_eq!(available(&root.0).unwrap().bytes, 1);
    }

    #[test]
    fn more_than_there_is_is_refused_and_claimed_by_nobody() {
        let all = available(Path::new("/")).expect("Linux says how much memory there is");
        drop(Claim::new(1).expect("one byte is there"));
        let error = Claim::new(2 * all.bytes).expect_err("twice of all is not");
        let FabricError::Memory { needed, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*needed, 2 * all.bytes);
        let said = error.to_string();
        assert!(said.contains("`max_memory`"), "{said}");
        Claim::new(1).expect("what was refused is not claimed");
    }
}
