//! Why an object was not destroyed.

use std::fmt;
use std::sync::Arc;

/// An object is still in use and was not destroyed (`EBUSY`).
///
/// You need not destroy objects explicitly: they may be dropped in any order, and each is destroyed
/// once nothing uses it. The explicit calls exist to find out whether an object is still in use.
#[derive(thiserror::Error)]
#[error(
    "{call}: the object is in use: a clone of it, an object created from it, or a request in flight exists"
)]
pub struct Busy<T> {
    /// The verb.
    pub call: &'static str,
    /// The object, unchanged.
    pub object: T,
}

impl<T> fmt::Debug for Busy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Busy")
            .field("call", &self.call)
            .finish_non_exhaustive()
    }
}

impl<T> Busy<T> {
    /// Drops `shared` if this is its only owner. Otherwise returns the error with the object that
    /// `whole` restores.
    pub(crate) fn unless_sole<S>(
        call: &'static str,
        shared: Arc<S>,
        whole: impl FnOnce(Arc<S>) -> T,
    ) -> Result<(), Self> {
        match Arc::try_unwrap(shared) {
            Ok(sole) => {
                drop(sole);
                Ok(())
            }
            Err(shared) => Err(Self {
                call,
                object: whole(shared),
            }),
        }
    }
}
