//! The limit of locked memory.

use std::fs;

use crate::types::LockedMemory;

/// Returns the bytes that this process has pinned for devices, and those that it may still lock.
pub(crate) fn locked_memory() -> LockedMemory {
    LockedMemory {
        pinned: pinned_len(),
        lockable: lockable_len() as u64,
    }
}

/// Returns the number of bytes that this process may still lock, by the kernel's accounting: the
/// limit minus the bytes that are already pinned. Unlimited if the process may exceed the limit.
pub(super) fn lockable_len() -> usize {
    use rustix::process::{Resource, getrlimit};
    use rustix::thread::{CapabilitySet, capabilities};
    let may_exceed =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    match getrlimit(Resource::Memlock).current {
        Some(limit) if !may_exceed => {
            usize::try_from(limit.saturating_sub(pinned_len())).unwrap_or(usize::MAX)
        }
        _ => usize::MAX,
    }
}

/// Returns the number of bytes that this process has pinned for devices; 0 if the system does not
/// report it.
fn pinned_len() -> u64 {
    pinned_in(&fs::read_to_string("/proc/self/status").unwrap_or_default())
}

/// Reads the number from the text of `/proc/self/status`: "VmPin:\t    1234 kB".
fn pinned_in(status: &str) -> u64 {
    let kib = status.lines().find_map(|line| {
        let value = line.strip_prefix("VmPin:")?;
        value.split_whitespace().next()?.parse::<u64>().ok()
    });
    kib.unwrap_or(0).saturating_mul(1024)
}

pub(super) fn memlock_limit() -> String {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Memlock);
    let words = |limit: Option<u64>| match limit {
        Some(bytes) => format!("{} KiB", bytes / 1024),
        None => "unlimited".to_owned(),
    };
    let mut message = format!(
        "{} (at most {} for this user)",
        words(limit.current),
        words(limit.maximum)
    );
    // Memory that this process has already locked counts against the limit.
    message.push_str(&format!(
        ", of which {} KiB are in use",
        pinned_len() / 1024
    ));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_bytes_are_read_from_the_status_of_the_process() {
        let status = "VmLck:\t       8 kB\nVmPin:\t    1234 kB\nVmHWM:\t    9000 kB\n";
        assert_eq!(pinned_in(status), 1234 * 1024);
        assert_eq!(pinned_in("VmLck:\t 8 kB\n"), 0);
        let own = fs::read_to_string("/proc/self/status").unwrap();
        assert!(own.contains("VmPin:"), "{own}");
    }
}
