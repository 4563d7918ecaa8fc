//! Whether a process may fork.

/// Whether a process with registered memory may fork (`enum ibv_fork_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForkStatus {
    /// It may not: [`fork_init`](crate::verbs::fork_init) was not called, and this kernel needs it.
    Disabled,
    /// It may: [`fork_init`](crate::verbs::fork_init) was called.
    Enabled,
    /// It may: this kernel gives the child copies of pages that a device uses.
    Unneeded,
    /// The library says another number, or is too old to say.
    Unknown(Option<u32>),
}
