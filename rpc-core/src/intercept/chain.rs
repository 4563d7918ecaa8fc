//! [`Chain`]: the interceptors of a server, a service or a channel, in their order.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::Interceptor;
use crate::clock::Clock;

/// Interceptors, in the order in which they begin. Never changed, so that calls only count references.
#[derive(Clone)]
pub(crate) struct Chain {
    interceptors: Box<[Arc<dyn Interceptor>]>,
    /// Any of them measures the time.
    pub(super) measures_time: bool,
    pub(super) clock: Clock,
}

impl Chain {
    /// Returns the interceptors of `chain` and those added, which begin in this order, or `None` if
    /// there are none.
    pub(crate) fn and(
        chain: Option<&Arc<Self>>,
        added: &[Arc<dyn Interceptor>],
        clock: &Clock,
    ) -> Option<Arc<Self>> {
        if added.is_empty() {
            return chain.cloned();
        }
        let before = chain.map_or(&[][..], |chain| chain);
        let interceptors = [before, added].concat();
        Some(Arc::new(Self {
            measures_time: interceptors.iter().any(|it| it.measures_time()),
            interceptors: interceptors.into(),
            clock: clock.clone(),
        }))
    }
}

impl Deref for Chain {
    type Target = [Arc<dyn Interceptor>];

    fn deref(&self) -> &Self::Target {
        &self.interceptors
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({} interceptors)", self.interceptors.len())
    }
}
