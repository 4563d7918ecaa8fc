//! Fork support of libibverbs (`ibv_fork_init(3)`).

use std::io;

use super::library::library;
use crate::types::{ForkStatus, VerbsError};

pub(crate) fn fork_init() -> Result<(), VerbsError> {
    // Without the library no memory can have been registered.
    let Ok(library) = library() else {
        return Ok(());
    };
    // SAFETY: the function takes no arguments and has no preconditions.
    let returned = unsafe { (library.ibv_fork_init)() };
    if returned == 0 {
        return Ok(());
    }
    let source = io::Error::from_raw_os_error(returned.saturating_abs());
    Err(VerbsError::Os {
        call: "fork_init",
        source: match source.kind() {
            io::ErrorKind::InvalidInput => io::Error::new(
                io::ErrorKind::InvalidInput,
                "it has to come before any memory is registered",
            ),
            _ => source,
        },
    })
}

pub(crate) fn is_fork_initialized() -> ForkStatus {
    let Ok(library) = library() else {
        return ForkStatus::Unneeded;
    };
    let Some(is_fork_initialized) = library.is_fork_initialized else {
        return ForkStatus::Unknown(None);
    };
    // SAFETY: the function takes no arguments and has no preconditions.
    match unsafe { is_fork_initialized() } {
        0 => ForkStatus::Disabled,
        1 => ForkStatus::Enabled,
        2 => ForkStatus::Unneeded,
        other => ForkStatus::Unknown(Some(other)),
    }
}
