//! Calls that are taken back: the client tells the server, which drops the handler.
//!
//! Cancels of many calls share a control frame. A call that is cancelled still ends with exactly one
//! response: `CANCELLED`, or the response that has crossed the cancel.

use super::super::link::LinkKey;
use super::super::request_queue::QueuedRequest;
use super::super::responses::Started;
use super::super::{Driver, State};
use super::{Phase, StreamKey, Streams};
use crate::driver::tasks::TaskKey;
use crate::protocol::frame::CallId;
use crate::status::Status;
use crate::transport::Transport;

impl<T: Transport> Driver<T> {
    /// Ends the calls that a client has cancelled.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn cancel_calls(&self, link: LinkKey, calls: &[CallId]) {
        for &call in calls {
            self.cancel_served(link, call);
        }
    }

    fn cancel_served(&self, link: LinkKey, call: CallId) {
        let cancels = &self.counters.cancels;
        let queued = self.state.borrow_mut().take_queued(link, call);
        if let Some(request) = queued {
            // The request is not decoded, and its handler never begins.
            cancels.before_start.add(1);
            let status = Status::cancelled("the client cancelled the call; it did not run");
            let (header, served) = (request.header, request.served);
            return self.refuse(link, &header, served, request.buf, status, Started::NOT);
        }
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let receiving = &mut state.bodies.receiving;
        let completed = receiving.cancel_request(&mut state.links, link, call);
        drop(borrowed);
        if let Some(completed) = completed {
            return self.conclude(completed);
        }
        let status = || Status::cancelled("the client cancelled the call");
        let stream = self.state.borrow_mut().stream_of(link, call);
        if let Some(key) = stream {
            cancels.running.add(1);
            return self.end_handler(key, status(), Started::Maybe);
        }
        let task = self.tasks.borrow_mut().take_call(link, call);
        let Some(task) = task else {
            // The response has crossed the cancel.
            cancels.too_late.add(1);
            return;
        };
        cancels.running.add(1);
        if let Some(timer) = task.timer {
            self.state.borrow_mut().links.timers.cancel(timer);
        }
        self.discard(&task);
        self.respond_status(&task.call, status());
    }
}

impl<T: Transport> State<T> {
    /// Takes the request of a call whose handler is not to begin, if it waits for its turn.
    pub(super) fn take_queued(
        &mut self,
        link: LinkKey,
        call: CallId,
    ) -> Option<QueuedRequest<T::RecvBuf>> {
        let requests = &mut self.links.table.get_mut(link)?.requests;
        let request = requests.take_call(call)?;
        if requests.is_idle() {
            self.run_queue.remove(link);
        }
        self.run_queue.took_one();
        Some(request)
    }
}

impl Streams {
    /// Takes the handler of a stream, which is then dropped.
    pub(super) fn take_task(&mut self, key: StreamKey) -> Option<TaskKey> {
        match &mut self.get_mut(key)?.phase {
            Phase::Serving(serving) => serving.task.take(),
            _ => None,
        }
    }
}
