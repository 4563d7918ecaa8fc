//! [`MethodDeadlines`]: the longest time of a call, by its method.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rpc_core::intercept::{Begin, Call, Interceptor};

/// Limits the time of calls by their method. A call has the earliest of this limit, its own deadline,
/// and that of the handler that makes it.
///
/// On a client, the limit travels with the call. On a server, it ends the handler if that runs on the
/// poller; one on an executor goes on, and the calls that it makes have the limit.
/// [`DeadlinePolicy`](crate::server::DeadlinePolicy) limits all calls of a server, wherever their handlers
/// run.
///
/// ```
/// use std::time::Duration;
/// use verbline::intercept::MethodDeadlines;
///
/// let deadlines = MethodDeadlines::new()
///     .method("shop.Cart/Checkout", Duration::from_millis(200))
///     .service("shop.Cart", Duration::from_millis(50))
///     .others(Duration::from_secs(1));
/// # let _ = deadlines;
/// ```
#[derive(Clone, Debug, Default)]
pub struct MethodDeadlines {
    methods: HashMap<String, Duration>,
    services: HashMap<String, Duration>,
    others: Option<Duration>,
}

impl MethodDeadlines {
    /// Limits nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the calls of the method `package.Service/Method`.
    #[must_use]
    pub fn method(mut self, path: &str, limit: Duration) -> Self {
        self.methods.insert(path.to_owned(), limit);
        self
    }

    /// Limits the calls of the other methods of `package.Service`.
    #[must_use]
    pub fn service(mut self, name: &str, limit: Duration) -> Self {
        self.services.insert(name.to_owned(), limit);
        self
    }

    /// Limits the calls of all other methods.
    #[must_use]
    pub fn others(mut self, limit: Duration) -> Self {
        self.others = Some(limit);
        self
    }

    fn limit_of(&self, path: &str) -> Option<Duration> {
        let of_method = self.methods.get(path);
        let of_service = || {
            let (service, _) = path.split_once('/')?;
            self.services.get(service)
        };
        of_method.or_else(of_service).copied().or(self.others)
    }
}

impl Interceptor for MethodDeadlines {
    fn begin(&self, call: &mut Call<'_>) -> Begin {
        let limit = self.limit_of(call.method().path);
        // A moment that the clock cannot represent limits nothing.
        if let Some(moment) = limit.and_then(|limit| Instant::now().checked_add(limit)) {
            call.limit_deadline(moment);
        }
        Begin::PASS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_limit_counts() {
        let ms = Duration::from_millis;
        let deadlines = MethodDeadlines::new()
            .method("shop.Cart/Checkout", ms(1))
            .service("shop.Cart", ms(2));
        assert_eq!(deadlines.limit_of("shop.Cart/Checkout"), Some(ms(1)));
        assert_eq!(deadlines.limit_of("shop.Cart/Add"), Some(ms(2)));
        assert_eq!(deadlines.limit_of("shop.CartAdmin/Add"), None);
        let deadlines = deadlines.others(ms(3));
        assert_eq!(deadlines.limit_of("shop.CartAdmin/Add"), Some(ms(3)));
    }
}
