//! Handlers that await are resumed when they are woken.
//!
//! A handler that is woken alone is polled at once, and one that a lone message of its stream wakes needs
//! neither its waker nor a queue for it. Handlers that are woken together wait in their
//! connections' queues, and the connections take turns, as for requests (`run_queue.rs`): so a
//! connection whose streams have many messages takes no more of the poller than one with a few calls.

use std::task::Waker;

use super::Driver;
use super::tasks::{Task, TaskKey};
use crate::service::handler::Served;
use crate::transport::Transport;

impl<T: Transport> Driver<T> {
    /// Resumes the handler that was woken since the last turn, or queues them if there are several.
    pub(super) fn resume_woken(&self) {
        self.ready.enter();
        let Some(woken) = self.tasks.borrow_mut().take_ready() else {
            return;
        };
        let is_alone = woken.len() == 1 && self.state.borrow().run_queue.is_empty();
        for &task in &woken {
            if is_alone {
                self.resume(task);
                continue;
            }
            let link = self.tasks.borrow_mut().link_of(task);
            if let Some(link) = link {
                self.queue_woken(link, task);
            }
        }
        self.tasks.borrow_mut().put_back(woken);
    }

    /// Polls a handler that its waker has queued, unless its call has ended.
    pub(super) fn resume(&self, index: u32) {
        let unparked = self.tasks.borrow_mut().unpark_queued(index);
        if let Some((key, task, waker)) = unparked {
            self.poll_task(key, task, waker);
        }
    }

    /// Polls the handler that reads the message which has just arrived.
    pub(super) fn resume_reader(&self, key: TaskKey) {
        self.ready.enter();
        let unparked = self.tasks.borrow_mut().unpark(key);
        if let Some((key, task, waker)) = unparked {
            self.poll_task(key, task, waker);
        }
    }

    fn poll_task(&self, key: TaskKey, task: Task, waker: Waker) {
        let method = task.call.served.method;
        let Some(handler) = self.methods.borrow().handler(method).cloned() else {
            return;
        };
        let mut frame = self.inline_frame.take();
        let outcome = self.poll_handler(method, &waker, &mut frame, |cx, out| {
            handler.resume(task.handler_key, cx, out)
        });
        if let Served::Pending(_) = outcome {
            self.tasks.borrow_mut().park(key, waker, task);
        } else {
            self.tasks.borrow_mut().complete(key, waker, &task);
            if let Some(timer) = task.timer {
                self.state.borrow_mut().links.timers.cancel(timer);
            }
            match task.call.stream {
                None => self.respond(&task.call, &*handler, outcome, frame.bytes_mut()),
                Some(stream) => {
                    self.answer_stream(stream, outcome, frame.bytes_mut());
                }
            }
        }
        self.inline_frame.put_back(frame);
    }
}
