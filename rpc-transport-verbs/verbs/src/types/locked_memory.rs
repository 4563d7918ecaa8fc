//! Locked memory of the process.

/// The memory that this process has locked for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// Bytes that are pinned, by the kernel's count (`VmPin`), for all devices.
    pub pinned: u64,
    /// Bytes that may still be locked.
    pub lockable: u64,
}
