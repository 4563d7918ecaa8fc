//! What the crate `rpc-core-testing` and the simulation of `rpc-transport-verbs` need of this crate's
//! inside. Requires the feature `test-util`.
//!
//! No other crate should use it: any release may change it. Tests use `rpc_core_testing`, which
//! re-exports what they need of it. [`Random`] and [`Script`] see nothing private, but the library of
//! `rpc-transport-verbs` uses them too, and a published package cannot depend on one that is not.

mod node;
mod random;
mod script;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use crate::codec::enter_poller_thread;
use crate::limits::Limits;
use crate::metadata::{Metadata, MetadataError};
use crate::method::MethodSpec;
use crate::poller::{BlockOnInTurn, LocalPoller};
use crate::server::admission::ServerAdmission;
use crate::stream::outbound::COALESCES;
use crate::transport::Admission;

pub use node::Node;
pub use random::Random;
pub use script::Script;

pub use crate::clock::Clock;
pub use crate::protocol::connection::Connection;
pub use crate::protocol::connection::model::{Plan, Reached};
pub use crate::shared::SteppedPoller;
pub use crate::stream::batch::{PREFIX_LEN, next_message};

/// Runs a future like [`LocalPoller::try_block_on`], and calls `between` after each turn of the poller:
/// for a thread that also steps the node which serves the future's calls.
///
/// # Errors
///
/// Returns [`BlockOnInTurn`] inside a turn of `poller`.
#[inline]
pub fn block_on_between_turns<F: Future>(
    poller: &LocalPoller,
    future: F,
    between: impl FnMut(),
) -> Result<F::Output, BlockOnInTurn> {
    poller.block_on_between_turns(future, between)
}

/// Makes this thread pass on the decodes of long messages that take more work, in picoseconds, as a poller's
/// thread does.
pub fn decode_beside(most_work: u64) {
    let start = |run: fn()| {
        let builder = thread::Builder::new().name(DECODING_THREAD.to_owned());
        builder.spawn(run).map(drop)
    };
    enter_poller_thread(start, most_work);
}

/// The name of the thread on which such messages are decoded.
pub const DECODING_THREAD: &str = "verbline-decode";

/// Makes each message of a stream that is opened from now on, in this process, take a frame of its own:
/// a measurement of what shared frames are worth.
pub fn disable_coalescing() {
    COALESCES.store(false, Ordering::Relaxed);
}

/// Returns a server's side of handshakes, for one poller that serves these methods by number.
#[must_use]
pub fn admission(limits: &Limits, methods: Vec<(u16, &'static MethodSpec)>) -> Arc<dyn Admission> {
    Arc::new(ServerAdmission::new(limits, methods, 1))
}

/// Decodes metadata that a peer sent.
///
/// # Errors
///
/// Returns an error if it is no metadata, or breaks a rule of metadata.
pub fn decode_metadata(bytes: &[u8]) -> Result<Metadata, MetadataError> {
    Metadata::decode(bytes)
}

/// Encodes metadata as a frame carries it.
#[must_use]
pub fn encode_metadata(metadata: &Metadata) -> Vec<u8> {
    let mut encoded = vec![0; metadata.encoded_len()];
    metadata.encode(&mut encoded);
    encoded
}
