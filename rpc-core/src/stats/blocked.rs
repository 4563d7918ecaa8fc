//! [`BlockedMethods`]: the methods that have blocked a poller's thread, counted by
//! [`BlockedCounters`].

use std::sync::atomic::{AtomicU64, Ordering};

/// Methods whose handlers have blocked a poller's thread for long, and how often.
///
/// A handler's poll is counted once when it has lasted for 40 to 60 ms, whatever the cause: a lock,
/// a blocking system call, a long computation, or a poller's thread that was not scheduled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedMethods {
    /// Sum over all methods.
    pub total: u64,
    /// The methods that were seen to block, in the order of registration.
    pub methods: Vec<BlockedMethod>,
}

impl BlockedMethods {
    /// Returns the difference to an earlier snapshot of the same server.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let before = |path| {
            let earlier = earlier.methods.iter().find(|method| method.path == path);
            earlier.map_or(0, |method| method.count)
        };
        let methods: Vec<_> = self
            .methods
            .iter()
            .map(|method| BlockedMethod {
                path: method.path,
                count: method.count.saturating_sub(before(method.path)),
            })
            .filter(|method| method.count > 0)
            .collect();
        Self {
            total: methods.iter().map(|method| method.count).sum(),
            methods,
        }
    }
}

/// A method whose handler has blocked its poller's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedMethod {
    /// `package.Service/Method`: the method's name between peers.
    pub path: &'static str,
    /// Number of polls that were seen to block.
    pub count: u64,
}

/// Number of times that each method was seen to block.
pub(crate) struct BlockedCounters(pub(crate) Vec<(&'static str, AtomicU64)>);

impl BlockedCounters {
    pub(crate) fn snapshot(&self) -> BlockedMethods {
        let methods: Vec<_> = self
            .0
            .iter()
            .map(|(path, count)| BlockedMethod {
                path,
                count: count.load(Ordering::Relaxed),
            })
            .filter(|method| method.count > 0)
            .collect();
        BlockedMethods {
            total: methods.iter().map(|method| method.count).sum(),
            methods,
        }
    }
}
