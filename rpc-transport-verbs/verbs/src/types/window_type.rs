//! The type of a memory window.

/// The type of a memory window (`enum ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// Bound by [`QueuePair::bind_mw`](crate::QueuePair::bind_mw), which chooses the key.
    /// Usable through any queue pair of the protection domain. It may be bound again at any time;
    /// binding it to zero bytes unbinds it.
    Type1 = 1,
    /// Bound by a work request
    /// ([`WorkRequest::bind_window`](crate::WorkRequest::bind_window)), for which the caller
    /// chooses the key's lower eight bits. Usable only through the queue pair that bound it (type
    /// 2B). Before it is bound again, it must be released by a local invalidate or by a peer's SEND
    /// with invalidate.
    Type2 = 2,
}
