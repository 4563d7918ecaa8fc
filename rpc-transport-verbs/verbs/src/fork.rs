//! Registered memory and `fork()`: `ibv_fork_init(3)`.
//!
//! After a fork, parent and child share pages until one of them writes. On kernels before 5.12, a
//! parent that writes to a shared page gets a copy, while its device keeps using the old page.
//! [`fork_init`] makes the library keep registered pages out of children. In the child no verbs
//! object works in either case.

use super::types::fork_status::ForkStatus;
use super::types::verbs_error::VerbsError;
use crate::provider;

/// Keeps registered memory out of the children of forks (`ibv_fork_init(3)`). Without RDMA devices
/// it does nothing; the software device never needs it.
///
/// # Errors
///
/// [`VerbsError::Os`] if memory was registered before the call.
pub fn fork_init() -> Result<(), VerbsError> {
    provider::fork_init()
}

/// Returns whether the process may fork (`ibv_is_fork_initialized(3)`).
pub fn is_fork_initialized() -> ForkStatus {
    provider::is_fork_initialized()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_fork_after_fork_init() {
        // Without libibverbs, or on a kernel that copies pages, forking was already safe.
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
