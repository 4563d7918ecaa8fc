//! [`Request`] and [`Response`]: a message with its metadata and options.

mod extensions;
mod head;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::extensions::Extensions;
pub(crate) use self::head::Head;
use self::head::{Origin, TimeAllowed};
use crate::metadata::Metadata;
use crate::peer::{Forwarded, LentPeer, Peer};

/// A message to a server, with metadata and an optional deadline.
#[derive(Debug)]
pub struct Request<T> {
    message: T,
    head: Head,
}

impl<T> Request<T> {
    /// Creates a request from a message alone, without allocating.
    pub const fn new(message: T) -> Self {
        Self {
            message,
            head: Head::NEW,
        }
    }

    /// Sets the time limit of the call, on the client. The call fails with `DEADLINE_EXCEEDED` once
    /// this much time has passed since it was first polled. The request carries the remaining time
    /// to the server, in microseconds.
    ///
    /// A call that a handler makes ends at the deadline of the handler's own call at the latest:
    /// see [`CurrentDeadline`](crate::CurrentDeadline).
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.head.time = TimeAllowed::For(timeout);
        self
    }

    /// Sets the deadline of the call, on the client. The call fails with `DEADLINE_EXCEEDED` at
    /// this time, or at the deadline of the handler that makes the call, if that is earlier: see
    /// [`CurrentDeadline`](crate::CurrentDeadline).
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.head.time = TimeAllowed::Until(deadline);
        self
    }

    /// Removes the time limit of the call, on the client. Without this, a call that a handler makes
    /// inherits the handler's deadline: see [`CurrentDeadline`](crate::CurrentDeadline).
    #[must_use]
    pub fn without_deadline(mut self) -> Self {
        self.head.time = TimeAllowed::Unlimited;
        self
    }

    /// Sets whether a call through a [`Channel`](crate::Channel) waits while the channel is not
    /// connected. If true, the call waits up to its deadline; if false, it fails with
    /// `UNAVAILABLE`. A request that does not set it uses the default of the channel's builder. A
    /// [`LocalChannel`](crate::LocalChannel) is a single connection and ignores this option.
    /// Waiting calls count towards `max_in_flight`: when that many calls wait, further calls wait
    /// too.
    #[must_use]
    pub fn wait_for_ready(mut self, waits: bool) -> Self {
        self.head.origin = Origin::Made {
            waits_for_ready: Some(waits),
        };
        self
    }

    /// Returns, in a handler, the time at which the call ends with `DEADLINE_EXCEEDED`, or `None` if
    /// neither the client nor the server's [`DeadlinePolicy`](crate::DeadlinePolicy) limits it.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.head.time.moment()
    }

    /// Returns, in a handler, the process that has made the call, as far as it is known. On a client,
    /// and with transports that do not know it, `None`.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.head.peer.get()
    }

    /// Names, in a gateway or a proxy, the client that the call is made for. A server that trusts this
    /// process says so in [`Peer::forwarded`]; others ignore it. It travels in the metadata, so it comes
    /// after [`with_metadata`](Self::with_metadata).
    #[must_use]
    pub fn with_forwarded(mut self, client: &Forwarded) -> Self {
        client.write(&mut self.head.metadata);
        self
    }

    /// Returns the message.
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// Returns the message for modification.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// Returns the message, and drops the metadata and the extensions.
    #[inline]
    pub fn into_inner(self) -> T {
        self.message
    }

    /// Returns the metadata that is sent with the message. In a handler, it has no keys that begin with
    /// `verbline-`: they are Verbline's own, and a server removes them.
    pub fn metadata(&self) -> &Metadata {
        &self.head.metadata
    }

    /// Returns the metadata for modification.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.head.metadata
    }

    /// Returns the extensions: values that stay in this process.
    pub fn extensions(&self) -> &Extensions {
        &self.head.extensions
    }

    /// Returns the extensions for modification.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.head.extensions
    }

    /// Replaces the metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.head.metadata = metadata;
        self
    }

    /// Returns the metadata, the extensions and the message, and drops the options of the call: its
    /// time limit, and whether it waits for ready. [`map`](Self::map) keeps them.
    pub fn into_parts(self) -> (Metadata, Extensions, T) {
        (self.head.metadata, self.head.extensions, self.message)
    }

    /// Creates a request from its parts, with the default options.
    pub fn from_parts(metadata: Metadata, extensions: Extensions, message: T) -> Self {
        let head = Head {
            metadata,
            extensions,
            ..Head::NEW
        };
        Self { message, head }
    }

    /// Replaces the message by `convert(message)`, and keeps everything else.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Request<U> {
        Request {
            message: convert(self.message),
            head: self.head,
        }
    }

    /// `message_len` is the length of the message as it has arrived.
    #[inline]
    pub(crate) fn received(
        message: T,
        message_len: usize,
        metadata: Metadata,
        deadline: Option<Instant>,
        peer: Option<Arc<Peer>>,
    ) -> Self {
        let head = Head {
            metadata,
            extensions: Extensions::new(),
            peer: LentPeer::new(peer),
            time: deadline.map_or(TimeAllowed::Inherited, TimeAllowed::Until),
            origin: Origin::Received {
                // A frame's header has lengths of 32 bits.
                message_len: message_len as u32,
            },
        };
        Self { message, head }
    }

    /// Returns the length of the message as it has arrived, in a handler; on a client 0.
    pub(crate) fn received_len(&self) -> usize {
        match self.head.origin {
            Origin::Made { .. } => 0,
            Origin::Received { message_len } => message_len as usize,
        }
    }

    /// Returns the request without its message.
    #[inline]
    pub(crate) fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    /// Returns the moment at which the call ends if it begins `now`, or `None` if nothing limits it: for
    /// types that implement [`Caller`](crate::Caller) over something else than a channel. It is that of
    /// the request, or of the handler that makes the call if that is earlier.
    ///
    /// A moment that `Instant` cannot represent is no limit.
    #[must_use]
    pub fn deadline_of_call_at(&self, now: Instant) -> Option<Instant> {
        self.deadline_of_call(|timeout| now.checked_add(timeout))
    }

    pub(crate) fn waits_for_ready(&self) -> Option<bool> {
        match self.head.origin {
            Origin::Made { waits_for_ready } => waits_for_ready,
            Origin::Received { .. } => None,
        }
    }

    /// Returns the deadline of a call that starts now. `after` converts a timeout.
    #[inline]
    pub(crate) fn deadline_of_call(
        &self,
        after: impl FnOnce(Duration) -> Option<Instant>,
    ) -> Option<Instant> {
        self.head.deadline_of_call(after)
    }
}

/// The argument of a client stub: a [`Request`], or a bare message to convert into one.
pub trait IntoRequest<T> {
    /// Converts `self` into a request.
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
///
/// The initial metadata ([`metadata`](Self::metadata)) precedes the message, and the
/// [trailing metadata](Self::trailing_metadata) follows it. For a unary call both arrive together;
/// a stream sends the first before its first message, and the second after its last.
#[derive(Debug)]
pub struct Response<T> {
    message: T,
    metadata: Metadata,
    /// Boxed together, so that a response without them contains a null pointer.
    extras: Option<Box<ResponseExtras>>,
}

/// The parts that few responses have.
#[derive(Debug)]
struct ResponseExtras {
    trailing_metadata: Metadata,
    extensions: Extensions,
}

static NO_EXTRAS: ResponseExtras = ResponseExtras::new();

impl ResponseExtras {
    const fn new() -> Self {
        Self {
            trailing_metadata: Metadata::new(),
            extensions: Extensions::new(),
        }
    }
}

impl<T> Response<T> {
    /// Creates a response from a message alone, without allocating.
    pub const fn new(message: T) -> Self {
        Self {
            message,
            metadata: Metadata::new(),
            extras: None,
        }
    }

    /// Returns the message.
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// Returns the message for modification.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// Returns the message, and drops the metadata and the extensions.
    #[inline]
    pub fn into_inner(self) -> T {
        self.message
    }

    /// Returns the initial metadata, which is sent with the message or before the first message.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the initial metadata for modification.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Returns the trailing metadata, which is sent after the last message. On a client it is
    /// complete in the response to a call with one response message; a stream of responses returns
    /// it from [`Streaming::trailers`](crate::Streaming::trailers).
    pub fn trailing_metadata(&self) -> &Metadata {
        &self.extras().trailing_metadata
    }

    /// Returns the trailing metadata for modification.
    pub fn trailing_metadata_mut(&mut self) -> &mut Metadata {
        &mut self.extras_mut().trailing_metadata
    }

    /// Returns the extensions: values that stay in this process.
    pub fn extensions(&self) -> &Extensions {
        &self.extras().extensions
    }

    /// Returns the extensions for modification.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extras_mut().extensions
    }

    /// Replaces the initial metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// Replaces the trailing metadata.
    #[must_use]
    pub fn with_trailing_metadata(mut self, metadata: Metadata) -> Self {
        *self.trailing_metadata_mut() = metadata;
        self
    }

    /// Returns the initial metadata, the message and the extensions, and drops the trailing
    /// metadata.
    pub fn into_parts(mut self) -> (Metadata, T, Extensions) {
        let extensions = self.extras.take().map(|extras| extras.extensions);
        (self.metadata, self.message, extensions.unwrap_or_default())
    }

    /// Creates a response from its parts, without trailing metadata.
    pub fn from_parts(metadata: Metadata, message: T, extensions: Extensions) -> Self {
        let mut response = Self::new(message).with_metadata(metadata);
        if !extensions.is_empty() {
            *response.extensions_mut() = extensions;
        }
        response
    }

    /// Replaces the message by `convert(message)`, and keeps everything else.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Response<U> {
        Response {
            message: convert(self.message),
            metadata: self.metadata,
            extras: self.extras,
        }
    }

    #[inline]
    pub(crate) fn received(message: T, metadata: Metadata) -> Self {
        Self {
            message,
            metadata,
            extras: None,
        }
    }

    /// Returns false if there is no trailing metadata; true if there may be some. Only compares a
    /// pointer.
    #[inline]
    pub(crate) fn may_have_trailing_metadata(&self) -> bool {
        self.extras.is_some()
    }

    fn extras(&self) -> &ResponseExtras {
        self.extras.as_deref().unwrap_or(&NO_EXTRAS)
    }

    fn extras_mut(&mut self) -> &mut ResponseExtras {
        let new = || Box::new(ResponseExtras::new());
        self.extras.get_or_insert_with(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline;

    #[test]
    fn what_travels_beside_a_message_costs_a_null_pointer_each() {
        assert_eq!(size_of::<Response<u64>>(), 3 * size_of::<u64>());
    }

    #[test]
    fn a_response_keeps_both_metadata_and_its_extensions_when_its_message_is_mapped() {
        let mut response = Response::new(3u8);
        assert!(response.trailing_metadata().is_empty());
        assert_eq!(response.extensions().get::<u32>(), None);
        response.metadata_mut().insert("initial", "1").unwrap();
        let trailing = response.trailing_metadata_mut();
        trailing.insert("trailing", "2").unwrap();
        response.extensions_mut().insert(7u32);
        let response = response.map(u64::from);
        assert_eq!(*response.get_ref(), 3u64);
        assert_eq!(response.metadata().get("initial"), Some("1"));
        assert_eq!(response.trailing_metadata().get("trailing"), Some("2"));
        assert_eq!(response.extensions().get::<u32>(), Some(&7));
    }

    #[test]
    fn a_request_has_at_most_the_time_of_the_handler_that_makes_the_call() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let (early, late) = (now + second, now + 3 * second);
        let after = |timeout| Some(now + timeout);
        let deadline = |request: Request<()>| request.deadline_of_call(after);
        let new = || Request::new(());
        let _scope = deadline::enter(Some(now + 2 * second));
        assert_eq!(deadline(new()), Some(now + 2 * second));
        assert_eq!(deadline(new().without_deadline()), None);
        assert_eq!(deadline(new().with_deadline(early)), Some(early));
        assert_eq!(deadline(new().with_deadline(late)), Some(now + 2 * second));
        assert_eq!(deadline(new().with_timeout(second)), Some(early));
        assert_eq!(
            deadline(new().with_timeout(3 * second)),
            Some(now + 2 * second)
        );
        assert_eq!(deadline(new().with_deadline(late).without_deadline()), None);
    }

    #[test]
    fn extensions_are_kept_by_type() {
        let mut request = Request::new(());
        assert_eq!(request.extensions_mut().insert(7u32), None);
        assert_eq!(request.extensions_mut().insert(8u32), Some(7));
        assert_eq!(request.extensions().get::<u32>(), Some(&8));
        assert_eq!(request.extensions().get::<u64>(), None);
        *request.extensions_mut().get_mut::<u32>().unwrap() += 1;
        assert_eq!(request.extensions_mut().remove::<u32>(), Some(9));
        assert_eq!(request.extensions_mut().remove::<u32>(), None);
        assert!(request.extensions().is_empty());
    }

    #[test]
    fn a_message_and_its_parts_are_taken_apart_and_put_together() {
        let mut metadata = Metadata::new();
        metadata.insert("a", "1").unwrap();
        let mut request = Request::new(3u8).with_metadata(metadata.clone());
        request.extensions_mut().insert(7u32);
        let (parts, extensions, message) = request.into_parts();
        assert_eq!((parts.get("a"), message), (Some("1"), 3));
        let request = Request::from_parts(parts, extensions, "text");
        assert_eq!(*request.get_ref(), "text");
        assert_eq!(request.metadata(), &metadata);
        assert_eq!(request.extensions().get::<u32>(), Some(&7));

        let mut response = Response::new(3u8).with_trailing_metadata(metadata.clone());
        assert_eq!(response.trailing_metadata(), &metadata);
        response.extensions_mut().insert(7u32);
        let (parts, message, extensions) = response.with_metadata(metadata.clone()).into_parts();
        let response = Response::from_parts(parts, message, extensions);
        assert_eq!(response.metadata(), &metadata);
        assert_eq!(response.extensions().get::<u32>(), Some(&7));
        assert!(response.trailing_metadata().is_empty());
    }
}
