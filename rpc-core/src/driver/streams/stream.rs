//! [`Stream`]: the driver's end of one stream.

use std::fmt;
use std::mem;
use std::sync::Arc;

use super::super::bodies::Receiving;
use super::super::bodies::Sending;
use super::super::handle::StreamRequest;
use super::super::link::LinkKey;
use super::super::link_bodies::{IncomingKey, TransferKey};
use super::super::links::Links;
use super::super::responses::BlockedResponse;
use super::super::tasks::TaskKey;
use super::super::timers::TimerKey;
use crate::protocol::frame::CallId;
use crate::stats::{CalledStream, ServedCall};
use crate::stream::core::StreamCore;
use crate::stream::end::StreamEnd;
use crate::transport::Transport;

/// The driver's end of a stream.
pub(super) struct Stream {
    pub(super) core: Arc<StreamCore>,
    pub(super) link: LinkKey,
    pub(super) phase: StreamPhase,
    /// The most bytes of a message that this side receives, if the method has a limit.
    pub(super) longest: Option<u32>,
    pub(super) timer: Option<TimerKey>,
    /// Server: it has got the memory that each needs.
    pub(super) has_memory: bool,
    /// Since the latest check of its memory.
    pub(super) was_used: bool,
    /// Long messages that are under way to the peer.
    pub(super) sending: Vec<TransferKey>,
    /// Long messages that are under way from the peer, by the numbers that its `core` has for them.
    pub(super) receiving: Vec<IncomingKey>,
}

/// How far a stream has got.
pub(super) enum StreamPhase {
    /// Client: the request waits to be sent.
    Opening(Box<StreamRequest>),
    /// Client: the server has the request.
    Sent {
        call: CallId,
        counters: CalledStream,
    },
    /// Client: the server has responded, and long messages are under way that precede the end.
    Answered {
        call: CallId,
        counters: CalledStream,
        /// The status code.
        code: u16,
    },
    /// Client: the call has ended here. Its response is still to come.
    Abandoned { call: CallId },
    /// Server.
    Serving(ServedStream),
}

/// The server's part of a stream.
#[derive(Debug)]
pub(super) struct ServedStream {
    pub(super) call: CallId,
    /// Known once the request has been counted.
    pub(super) served: Option<ServedCall>,
    /// The handler, while it awaits.
    pub(super) task: Option<TaskKey>,
    /// The outcome of the handler, which follows its messages.
    pub(super) answer: Option<BlockedResponse>,
}

impl StreamPhase {
    pub(super) fn is_client(&self) -> bool {
        !matches!(self, Self::Serving(_))
    }

    /// Returns the id of a call that the peer knows.
    pub(super) fn call(&self) -> Option<CallId> {
        match self {
            Self::Opening(_) => None,
            Self::Sent { call, .. } | Self::Answered { call, .. } | Self::Abandoned { call } => {
                Some(*call)
            }
            Self::Serving(serving) => Some(serving.call),
        }
    }
}

impl Stream {
    pub(super) fn new(
        core: Arc<StreamCore>,
        link: LinkKey,
        phase: StreamPhase,
        longest: Option<u32>,
    ) -> Self {
        Self {
            core,
            link,
            phase,
            longest,
            has_memory: false,
            timer: None,
            was_used: true,
            sending: Vec::new(),
            receiving: Vec::new(),
        }
    }

    /// Returns the server's part of a stream.
    pub(super) fn serving(&mut self) -> Option<&mut ServedStream> {
        match &mut self.phase {
            StreamPhase::Serving(serving) => Some(serving),
            _ => None,
        }
    }

    pub(super) fn is_served(&self) -> bool {
        matches!(self.phase, StreamPhase::Serving(_))
    }

    /// Returns the request of a stream that has not been sent.
    pub(super) fn opening(&mut self) -> &mut StreamRequest {
        match &mut self.phase {
            StreamPhase::Opening(request) => request,
            _ => unreachable!("a stream is opened once"),
        }
    }

    /// Ends both directions for the application. Collects the wakers.
    pub(super) fn end_core<T: Transport>(
        &self,
        links: &mut Links<T>,
        sending: &mut Sending,
        end: StreamEnd,
    ) {
        let mut core = self.core.lock();
        let [reader, sender] = core.end(end);
        let left = core.outbound.take_left();
        drop(core);
        if let Some(reader) = reader {
            links.wakers.push(reader);
        }
        if let Some(sender) = sender {
            links.wakers.push(sender);
        }
        for message in left {
            sending.discard(message);
        }
    }

    /// Gives up the long messages of this side that are under way.
    pub(super) fn abandon_sending<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        sending: &mut Sending,
    ) {
        for key in mem::take(&mut self.sending) {
            sending.abandon_transfer(links, key);
        }
    }

    /// Stops the long messages that are under way to a stream. Its reader, if there is one, gets those
    /// before them. Collects its waker.
    pub(super) fn stop_receiving<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        receiving: &mut Receiving<T>,
    ) {
        if self.receiving.is_empty() {
            return;
        }
        let mut core = self.core.lock();
        // Their numbers are used again.
        core.inbound.cut_incomplete();
        links.wakers.extend(core.inbound.reader.wake());
        drop(core);
        for incoming in mem::take(&mut self.receiving) {
            receiving.stop_incoming(links, incoming);
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream of {:?}", self.link)
    }
}
