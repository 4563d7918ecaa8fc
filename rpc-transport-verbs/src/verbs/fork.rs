//! Memory that is registered, and `fork()`.
//!
//! The child of a fork shares pages with its parent until one of them writes. On kernels before 5.12 the writer,
//! if it is the parent, gets another page, while its device keeps to the old one. [`fork_init`] has the library
//! keep registered pages out of children. In the child no verbs object works, with it or without.

use super::types::error::VerbsError;
use super::types::fork_status::ForkStatus;
use crate::provider;

/// Has registered memory kept out of the children of forks (`ibv_fork_init`). Without RDMA devices there is
/// nothing to do; the software device never needs it.
///
/// # Errors
///
/// It has to come before any memory is registered.
pub fn fork_init() -> Result<(), VerbsError> {
    provider::fork_init()
}

/// Whether the process may fork (`ibv_is_fork_initialized`).
pub fn is_fork_initialized() -> ForkStatus {
    provider::is_fork_initialized()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_fork_after_fork_init() {
        // Without a library of kernel verbs, or on a kernel that copies pages, it was allowed before.
        fork_init().unwrap();
        let status = is_fork_initialized();
        assert!(
            matches!(
                status,
                ForkStatus::Enabled | ForkStatus::Unneeded | ForkStatus::Unknown(None)
            ),
            "{status:?}"
        );
    }
}
