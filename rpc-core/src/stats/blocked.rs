//! [`BlockedMethods`] says which methods have kept a poller's thread, and [`Counts`] counts them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Methods whose handlers have kept a poller's thread for long, and how often.
///
/// A poll of a handler is counted once when it has lasted for 40 to 60 ms, whatever kept it: a lock, a
/// system call that waits, a long computation, or that the poller's thread was given no processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedMethods {
    /// Of all methods.
    pub total: u64,
    /// Those that were seen to block, in the order of registration.
    pub methods: Vec<BlockedMethod>,
}

impl BlockedMethods {
    /// What was noticed since an earlier look at the same server.
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

/// A method whose handler has kept its poller's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedMethod {
    /// `package.Service/Method`.
    pub path: &'static str,
    /// How many polls of it were seen to block.
    pub count: u64,
}

/// How often each method was seen to block.
pub(crate) struct Counts(pub(crate) Vec<(&'static str, AtomicU64)>);

impl Counts {
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
