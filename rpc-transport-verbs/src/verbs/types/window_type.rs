//! Kinds of memory windows.

/// Which kind of memory window (`enum ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// Bound by [`QueuePair::bind_mw`](crate::verbs::QueuePair::bind_mw), which chooses the key; usable through
    /// any queue pair of the protection domain; bound again at any time, to no bytes to unbind it.
    Type1 = 1,
    /// Bound by a work request ([`WorkRequest::bind_window`](crate::verbs::WorkRequest::bind_window)) whose author
    /// chooses the key's lower eight bits; usable through the queue pair that bound it (2B); given back by
    /// a local invalidate, or by a peer's SEND with invalidate, before it is bound again.
    Type2 = 2,
}
