//! [`InterceptedStream`]: the interceptors of a client's stream, and [`CallMessages`], which counts the
//! messages of a call for them.

use std::sync::Arc;

use super::core::StreamCore;
use crate::call_error::CallError;
use crate::intercept::{Chain, Ending, Interception, Messages, Replied, Side, Traffic};
use crate::message::Response;
use crate::metadata::Metadata;
use crate::method::{MethodKind, MethodSpec};

/// The messages of a call of any kind.
#[derive(Debug)]
pub(crate) struct CallMessages {
    pub(crate) kind: MethodKind,
    pub(crate) side: Side,
    /// Length of the request, if it is one message.
    pub(crate) request_len: usize,
    /// The stream, if either side sends one. It counts what the application reads.
    pub(crate) stream: Option<Arc<StreamCore>>,
}

impl CallMessages {
    #[inline]
    pub(crate) fn new(kind: MethodKind, side: Side) -> Self {
        Self {
            kind,
            side,
            request_len: 0,
            stream: None,
        }
    }

    /// Returns what the stream has brought or taken away: what `by` has sent.
    fn of_stream(&self, by: Side) -> Traffic {
        match &self.stream {
            Some(stream) if by == self.side => stream.sent(),
            Some(stream) => stream.read().traffic(),
            None => Traffic::default(),
        }
    }
}

impl Messages for CallMessages {
    fn requests(&self) -> Traffic {
        match self.kind.client_streams() {
            true => self.of_stream(Side::Client),
            false => Traffic::one(self.request_len),
        }
    }

    fn responses(&self) -> Traffic {
        self.of_stream(Side::Server)
    }
}

/// The interceptors of a client's stream.
pub(crate) struct InterceptedStream {
    pub(crate) interception: Interception<Arc<Chain>>,
    pub(crate) messages: CallMessages,
}

impl InterceptedStream {
    pub(crate) fn new(chain: Arc<Chain>, method: &'static MethodSpec) -> Self {
        let side = Side::Client;
        Self {
            interception: Interception::new(chain, side, method),
            messages: CallMessages::new(method.kind, side),
        }
    }

    /// Ends a call whose responses were a stream, or would have been.
    pub(crate) fn end(mut self, end: &mut Result<Metadata, CallError>) {
        let ending = match end {
            Ok(trailing) => Ending::Succeeded(trailing),
            Err(error) => Ending::Error(error),
        };
        self.interception.end(ending, &self.messages);
    }

    /// Ends a call with one response, whose message had this length.
    pub(super) fn end_with<T>(mut self, end: &mut Result<Response<T>, CallError>, len: usize) {
        match end {
            Ok(response) => {
                let mut reply = Replied::new(response, |_| len);
                let ending = Ending::Succeeded(&mut reply);
                self.interception.end(ending, &self.messages);
            }
            Err(error) => self.interception.end(Ending::Error(error), &self.messages),
        }
    }
}

impl Drop for InterceptedStream {
    fn drop(&mut self) {
        if self.interception.has_begun() {
            let ending = Ending::Dropped(self.interception.code_of_dropped(None));
            self.interception.end(ending, &self.messages);
        }
    }
}
