//! [`ProcessId`] and [`Pairing`]: the processes of a world, and the connections between them.

/// Identifies a process of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(pub(super) usize);

impl ProcessId {
    /// Returns the id of the process that was added as number `number`, counted from 0.
    #[must_use]
    pub const fn new(number: usize) -> Self {
        Self(number)
    }
}

/// The two ends of a connection that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// The client, and the number of its queue pair.
    pub client: (ProcessId, u32),
    /// The server, and the number of its queue pair.
    pub server: (ProcessId, u32),
}
