//! What the library `verbs-shim` uses, which offers libibverbs' functions over the software device:
//! the objects below the safe layer, with memory that the program has already, requests that name it by
//! address, and the program's own request ids.
//!
//! No other crate should use it: any release may change it. Nothing here owns the memory of requests.
//! So what posts or registers is unsafe, with the promise that C programs make.

mod device;
mod memory;
mod queue_pair;
mod queues;
mod request;

pub use device::{Context, access, mtu};
pub use memory::{AddressHandle, MemoryRegion, MemoryWindow, Pages, ProtectionDomain};
pub use queue_pair::QueuePair;
pub use queues::{Completion, CompletionChannel, CompletionQueue, SharedReceiveQueue};
pub use request::{Binding, Element, Request};

pub use crate::types::{Operation, RemoteOperation};
