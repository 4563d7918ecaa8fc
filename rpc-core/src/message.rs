//! [`Request`] and [`Response`]: a message with what travels beside it.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::metadata::Metadata;

/// A message to a server, with its metadata and the time it may take.
#[derive(Debug)]
pub struct Request<T> {
    message: T,
    metadata: Metadata,
    extensions: Extensions,
    time: TimeAllowed,
    waits_for_ready: Option<bool>,
}

/// The time a call may take: a span until it starts, a moment from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeAllowed {
    Unlimited,
    For(Duration),
    Until(Instant),
}

impl<T> Request<T> {
    /// A request with nothing beside its message. Allocates nothing.
    pub const fn new(message: T) -> Self {
        Self {
            message,
            metadata: Metadata::new(),
            extensions: Extensions::new(),
            time: TimeAllowed::Unlimited,
            waits_for_ready: None,
        }
    }

    /// On the client: the call ends with `DEADLINE_EXCEEDED` when this much time has passed since
    /// it was first polled. The server is told, in microseconds.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.time = TimeAllowed::For(timeout);
        self
    }

    /// On the client: the call ends with `DEADLINE_EXCEEDED` at this moment. In a handler, pass on
    /// what [`deadline`](Self::deadline) says to the calls that it makes.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.time = TimeAllowed::Until(deadline);
        self
    }

    /// On the client, with a [`Channel`](crate::Channel): whether the call waits, up to its deadline,
    /// for a connection that is not there at the moment, instead of failing with `UNAVAILABLE`. What
    /// the channel's builder says goes for requests that do not say. A
    /// [`LocalChannel`](crate::LocalChannel) is one connection and nothing to wait for. Calls that wait
    /// are among the `max_in_flight` that may be under way: with so many of them, others wait too.
    #[must_use]
    pub fn wait_for_ready(mut self, waits: bool) -> Self {
        self.waits_for_ready = Some(waits);
        self
    }

    /// In a handler: when the client stops waiting, as far as it said so.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.time {
            TimeAllowed::Until(deadline) => Some(deadline),
            TimeAllowed::For(_) | TimeAllowed::Unlimited => None,
        }
    }

    /// The message.
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// The message, to change.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// The message alone.
    pub fn into_inner(self) -> T {
        self.message
    }

    /// What travels beside it.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// What travels beside it, to change.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Values that stay in this process.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Values that stay in this process, to change.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    pub(crate) fn received(message: T, metadata: Metadata, deadline: Option<Instant>) -> Self {
        let time = deadline.map_or(TimeAllowed::Unlimited, TimeAllowed::Until);
        Self {
            message,
            metadata,
            extensions: Extensions::new(),
            time,
            waits_for_ready: None,
        }
    }

    pub(crate) fn waits_for_ready(&self) -> Option<bool> {
        self.waits_for_ready
    }

    pub(crate) fn time_allowed(&self) -> TimeAllowed {
        self.time
    }
}

/// What a client's stub takes: a [`Request`], or a message to make one of.
pub trait IntoRequest<T> {
    /// The request.
    fn into_request(self) -> Request<T>;
}

impl<T> IntoRequest<T> for T {
    fn into_request(self) -> Request<T> {
        Request::new(self)
    }
}

impl<T> IntoRequest<T> for Request<T> {
    fn into_request(self) -> Request<T> {
        self
    }
}

/// A message to a client, with its metadata.
#[derive(Debug)]
pub struct Response<T> {
    message: T,
    metadata: Metadata,
    extensions: Extensions,
}

impl<T> Response<T> {
    /// A response with nothing beside its message. Allocates nothing.
    pub const fn new(message: T) -> Self {
        Self {
            message,
            metadata: Metadata::new(),
            extensions: Extensions::new(),
        }
    }

    /// The message.
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// The message, to change.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// The message alone.
    pub fn into_inner(self) -> T {
        self.message
    }

    /// What travels beside it.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// What travels beside it, to change.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Values that stay in this process.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Values that stay in this process, to change.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    pub(crate) fn received(message: T, metadata: Metadata) -> Self {
        Self {
            message,
            metadata,
            extensions: Extensions::new(),
        }
    }
}

type AnyMap = HashMap<TypeId, Box<dyn Any + Send + Sync>>;

/// Values by their type, for what one layer of a program tells another. They do not travel.
#[derive(Default)]
pub struct Extensions(
    // As for metadata: none is a null pointer.
    #[allow(clippy::box_collection)] Option<Box<AnyMap>>,
);

impl Extensions {
    /// No values. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(None)
    }

    /// Puts a value in, and returns the one of the same type that was there.
    pub fn insert<V: Send + Sync + 'static>(&mut self, value: V) -> Option<V> {
        let previous = self
            .0
            .get_or_insert_default()
            .insert(TypeId::of::<V>(), Box::new(value));
        previous
            .and_then(|previous| previous.downcast().ok())
            .map(|previous| *previous)
    }

    /// The value of this type.
    #[must_use]
    pub fn get<V: Send + Sync + 'static>(&self) -> Option<&V> {
        self.0.as_ref()?.get(&TypeId::of::<V>())?.downcast_ref()
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Extensions({})",
            self.0.as_ref().map_or(0, |map| map.len())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_travels_beside_a_message_costs_a_null_pointer_each() {
        assert_eq!(size_of::<Response<u64>>(), 3 * size_of::<u64>());
    }

    #[test]
    fn extensions_are_kept_by_type() {
        let mut request = Request::new(());
        assert_eq!(request.extensions_mut().insert(7u32), None);
        assert_eq!(request.extensions_mut().insert(8u32), Some(7));
        assert_eq!(request.extensions().get::<u32>(), Some(&8));
        assert_eq!(request.extensions().get::<u64>(), None);
    }
}
