//! Whether a process may fork.

/// Whether a process with registered memory may fork (`enum ibv_fork_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForkStatus {
    /// Unsafe to fork: [`fork_init`](crate::fork_init) was not called, and this kernel needs
    /// it.
    Disabled,
    /// Safe to fork: [`fork_init`](crate::fork_init) was called.
    Enabled,
    /// Safe to fork: this kernel gives the child copies of pages that a device uses.
    Unneeded,
    /// The library returned another number, or is too old to report the status.
    Unknown(Option<u32>),
}
