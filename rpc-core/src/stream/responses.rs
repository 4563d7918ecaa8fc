//! [`Responses`]: the server's end of a stream of responses.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::mem;
use std::pin::pin;
use std::sync::Arc;

use futures_core::Stream;

use super::core::StreamCore;
use super::pump::Engine;
use crate::codec::Codec;
use crate::limits::Direction;
use crate::message::Response;
use crate::status::Status;

/// The responses of a call whose handler returns a stream. `S` encodes messages of type `Res`.
///
/// Generated code passes the outcome of the service's method to [`send_all`](Self::send_all).
/// It may be dropped at any time: the handler's outcome ends the call.
pub struct Responses<S, Res> {
    core: Arc<StreamCore>,
    codec: PhantomData<fn(S, Res)>,
}

impl<S, Res> Responses<S, Res> {
    pub(crate) fn new(core: Arc<StreamCore>) -> Self {
        Self {
            core,
            codec: PhantomData,
        }
    }
}

impl<S, Res> Responses<S, Res> {
    pub(crate) fn core(&self) -> &Arc<StreamCore> {
        &self.core
    }
}

impl<S: Codec<Res>, Res> Responses<S, Res> {
    /// Sends the initial metadata and the messages of `outcome`. Returns its trailing metadata, with
    /// which the call ends.
    ///
    /// # Errors
    ///
    /// Returns the status with which the call ends: the one in `outcome`; that of the stream's first
    /// item that is an error; `RESOURCE_EXHAUSTED` if a message is longer than the client permits,
    /// or the metadata does not fit in a frame; `CANCELLED` if the call has ended.
    pub async fn send_all<St>(
        self,
        outcome: Result<Response<St>, Status>,
    ) -> Result<Response<()>, Status>
    where
        St: Stream<Item = Result<Res, Status>>,
    {
        let mut stream = None;
        let mut response = outcome?.map(|messages| stream = Some(messages));
        let metadata = mem::take(response.metadata_mut());
        let mut initial = vec![0; metadata.encoded_len()];
        metadata.encode(&mut initial);
        if let Some(stream) = stream {
            let mut stream = pin!(stream);
            let mut engine = Engine::new(Some(initial));
            let sent = poll_fn(|cx| {
                engine.poll::<S, St>(&self.core, stream.as_mut(), |message| message, cx)
            });
            sent.await
                .map_err(|error| error.into_status(Direction::Response))?;
        }
        Ok(response)
    }
}

impl<S, Res> fmt::Debug for Responses<S, Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responses").finish_non_exhaustive()
    }
}
