//! [`MessageSource`]: messages of a [`Streaming`](super::streaming::Streaming) that no connection
//! brings.

use std::mem;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::call_error::{CallError, Execution};
use crate::metadata::Metadata;
use crate::status::Status;

/// A source of messages for a [`Streaming`](crate::Streaming) that is not a connection's: of a channel
/// over another protocol, or of a mock.
///
/// The stream polls it where the application polls the stream, on any thread. After the end or an
/// error it polls the source no more, and drops it.
///
/// A mock of a channel streams three messages, and the generated client takes it for a channel:
///
/// ```
/// use std::marker::PhantomData;
/// use std::task::{Context, Poll};
///
/// use proto::routeguide::{Feature, Rectangle, RouteGuideClient};
/// use rpc_core::prost::Message;
/// use rpc_core::{
///     CallError, Codec, Execution, MessageSource, MethodSpec, Request, Response, SendCaller, Status,
///     Stream, Streaming, block_on,
/// };
///
/// /// Returns the same messages to each call of a method that streams responses.
/// struct Mock(Vec<Vec<u8>>);
///
/// /// The messages, encoded, and the codec of the method.
/// struct Encoded<S>(std::vec::IntoIter<Vec<u8>>, PhantomData<fn(S)>);
///
/// impl<S: Codec<T>, T> MessageSource<T> for Encoded<S> {
///     fn poll_message(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<T>, CallError>> {
///         let message = self.0.next().map(|message| S::decode(&message).unwrap());
///         Poll::Ready(Ok(message))
///     }
/// }
///
/// fn refused() -> CallError {
///     CallError::from_status(Status::unimplemented("not mocked"), Execution::NeverSent)
/// }
///
/// impl SendCaller for Mock {
///     async fn server_streaming_with<Q, S, Req, Res>(
///         &self,
///         _: &'static MethodSpec,
///         _: Request<Req>,
///         _: Q,
///         _: S,
///     ) -> Result<Response<Streaming<Res>>, CallError>
///     where
///         Q: Codec<Req>,
///         S: Codec<Res>,
///         Req: Send,
///         Res: Send,
///     {
///         let messages = Encoded::<S>(self.0.clone().into_iter(), PhantomData);
///         Ok(Response::new(Streaming::from_source(messages)))
///     }
/// #   async fn unary_with<Q, S, Req, Res>(
/// #       &self,
/// #       _: &'static MethodSpec,
/// #       _: Request<Req>,
/// #       _: Q,
/// #       _: S,
/// #   ) -> Result<Response<Res>, CallError>
/// #   where
/// #       Q: Codec<Req>,
/// #       S: Codec<Res>,
/// #       Req: Send,
/// #       Res: Send,
/// #   {
/// #       Err(refused())
/// #   }
/// #   async fn client_streaming_with<Q, S, Req, Res>(
/// #       &self,
/// #       _: &'static MethodSpec,
/// #       _: Request<impl Stream<Item = Req> + Send + 'static>,
/// #       _: Q,
/// #       _: S,
/// #   ) -> Result<Response<Res>, CallError>
/// #   where
/// #       Q: Codec<Req>,
/// #       S: Codec<Res>,
/// #       Req: Send + 'static,
/// #       Res: Send,
/// #   {
/// #       Err(refused())
/// #   }
/// #   async fn streaming_with<Q, S, Req, Res>(
/// #       &self,
/// #       _: &'static MethodSpec,
/// #       _: Request<impl Stream<Item = Req> + Send + 'static>,
/// #       _: Q,
/// #       _: S,
/// #   ) -> Result<Response<Streaming<Res>>, CallError>
/// #   where
/// #       Q: Codec<Req>,
/// #       S: Codec<Res>,
/// #       Req: Send + 'static,
/// #       Res: Send,
/// #   {
/// #       Err(refused())
/// #   }
///     // The other three methods return `Err(refused())`.
/// }
///
/// let feature = |name: &str| Feature { name: name.to_owned(), location: None };
/// let expected = ["bridge", "mill", "tower"].map(feature);
/// let mock = Mock(expected.iter().map(Feature::encode_to_vec).collect());
/// let client = RouteGuideClient::new(mock);
/// block_on(async {
///     let mut features = client.list_features(Rectangle::default()).await?.into_inner();
///     for expected in expected {
///         assert_eq!(features.message().await?, Some(expected));
///     }
///     assert_eq!(features.message().await?, None);
///     Ok::<_, CallError>(())
/// })?;
/// # Ok::<(), CallError>(())
/// ```
pub trait MessageSource<T>: Send {
    /// Returns the next message, or `None` at the end. If there is none yet, the waker in `cx` is woken
    /// when there may be one.
    ///
    /// # Errors
    ///
    /// Returns the error with which the call has ended.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<T>, CallError>>;

    /// Returns the metadata with which the call has ended: the result of
    /// [`Streaming::trailers`](crate::Streaming::trailers). Called once, after the end.
    fn trailers(&mut self) -> Metadata {
        Metadata::new()
    }
}

/// The source of a stream. The mutex is never locked: it makes the source be `Sync`.
pub(super) struct Source<T>(Mutex<Box<dyn MessageSource<T>>>);

impl<T> Source<T> {
    pub(super) fn new(source: impl MessageSource<T> + 'static) -> Self {
        Self(Mutex::new(Box::new(source)))
    }

    fn get_mut(&mut self) -> &mut dyn MessageSource<T> {
        &mut **self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The items of a stream.
pub(super) struct Items<S>(pub(super) Pin<Box<S>>);

impl<T, S: Stream<Item = Result<T, CallError>> + Send> MessageSource<T> for Items<S> {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<T>, CallError>> {
        self.0.as_mut().poll_next(cx).map(Option::transpose)
    }
}

/// Waits for the next message of a stream's source, if it has one, after the end of what a connection
/// brings. Notes the end of the stream.
#[cold]
pub(super) fn poll_source<T>(
    place: &mut Option<Source<T>>,
    ended: &mut Option<Result<Metadata, CallError>>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<T, CallError>>> {
    // It is dropped if it panics, and at the end, which is noted before.
    let Some(mut source) = place.take() else {
        return Poll::Ready(None);
    };
    let guard = FailOnPanic(ended);
    let polled = source.get_mut().poll_message(cx);
    let end = match &polled {
        Poll::Ready(Ok(None)) => Some(Ok(source.get_mut().trailers())),
        Poll::Ready(Err(error)) => Some(Err(error.clone())),
        Poll::Pending | Poll::Ready(Ok(Some(_))) => None,
    };
    mem::forget(guard);
    match end {
        Some(_) => *ended = end,
        None => *place = Some(source),
    }
    polled.map(Result::transpose)
}

/// Notes, when dropped, that the source has panicked.
struct FailOnPanic<'a>(&'a mut Option<Result<Metadata, CallError>>);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        *self.0 = Some(Err(panicked()));
    }
}

/// Returns the error with which a stream ends whose source has panicked.
#[cold]
fn panicked() -> CallError {
    let status = Status::internal("the source of the stream has panicked");
    CallError::from_status(status, Execution::MayHaveRun)
}
