//! [`Role`]: what this program does when another process of a measurement has started it.

use std::env;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::bandwidth::SourceArgs;
use crate::raw::RawArgs;
use crate::service::ServerArgs;
use crate::sockets::SocketArgs;

/// The first argument of a process that has a role. The second one is the role, as JSON.
const AS: &str = "as";

/// The other sides of measurements, and the processes that are measured from outside.
#[derive(Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Role {
    Calls(ServerArgs),
    Frames(RawArgs),
    Memory(SourceArgs),
    Socket(SocketArgs),
    Channels(crate::measurements::channels::RowArgs),
    Exchange(crate::measurements::rdma::ExchangeArgs),
    #[cfg(feature = "stream")]
    Tonic(crate::peers::tonic::TonicArgs),
    #[cfg(feature = "peers")]
    Iceoryx(crate::peers::iceoryx2::IceoryxArgs),
}

/// Returns the arguments of a process in a role.
///
/// # Errors
///
/// Fails if a path in them is not Unicode.
pub fn to_args(role: &impl Serialize) -> Outcome<[String; 2]> {
    Ok([AS.to_owned(), serde_json::to_string(role)?])
}

/// Returns the role that this process was started for, or `None` if a user has started it.
#[must_use]
pub fn played<R: DeserializeOwned>() -> Option<Outcome<R>> {
    let mut args = env::args().skip(1);
    let role = args.next().filter(|first| first == AS).and(args.next())?;
    Some(serde_json::from_str(&role).map_err(|error| format!("{role}: {error}").into()))
}

impl Role {
    /// Plays the role up to its end.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be played.
    pub fn run(self) -> Outcome<()> {
        match self {
            Self::Calls(args) => args.serve(),
            Self::Frames(args) => args.serve(),
            Self::Memory(args) => args.serve(),
            Self::Socket(args) => args.serve(),
            Self::Channels(args) => args.measure(),
            Self::Exchange(args) => args.run(),
            #[cfg(feature = "stream")]
            Self::Tonic(args) => args.serve(),
            #[cfg(feature = "peers")]
            Self::Iceoryx(args) => args.serve(),
        }
    }
}
