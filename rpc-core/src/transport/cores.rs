//! Claims of cores: [`CoreClaim`], and the reason that there is none, [`CoreRefusal`].

use std::any::Any;
use std::io;

/// A core of this host that this process has claimed for a poller. Dropping it gives the core back.
pub type CoreClaim = Box<dyn Any + Send + Sync>;

/// The reason that a core cannot be claimed. It prints as part of a sentence, after the core.
#[derive(Debug, thiserror::Error)]
pub enum CoreRefusal {
    /// Another process has claimed it.
    #[error("is claimed by {holder}")]
    Taken {
        /// The process, as part of a sentence: "process 17 (greeter_server, user 1000)".
        holder: String,
    },
    /// The system refused.
    #[error("cannot be claimed: {0}")]
    Os(io::Error),
}
