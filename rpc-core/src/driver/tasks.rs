//! [`Tasks`]: the futures of handlers that have been started, each with a waker that is created
//! once.
//!
//! A handler that completes in its first poll only borrows an entry here, for its waker. A handler
//! that awaits is parked in its entry until its waker, on any thread, pushes the entry's index to
//! the ready queue. The poller drains the queue once per turn.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use super::link::LinkKey;
use super::link_streams::StreamKey;
use super::ready::ReadyQueue;
use super::timers::TimerKey;
use super::wakeup::Wakeup;
use crate::protocol::frame::CallId;
use crate::service::handler::HandlerKey;
use crate::stats::ServedCall;

/// A call that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IncomingCall {
    pub(crate) link: LinkKey,
    pub(crate) call: CallId,
    /// The call's method, and how the call is counted.
    pub(crate) served: ServedCall,
    /// The call's stream, unless it is unary.
    pub(crate) stream: Option<StreamKey>,
}

/// A handler that processes a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) call: IncomingCall,
    /// Identifies the handler's future in its method.
    pub(crate) handler_key: HandlerKey,
    pub(crate) timer: Option<TimerKey>,
}

/// Index of an entry in [`Tasks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskKey(pub(super) u32);

/// The tasks of one poller.
#[derive(Debug)]
pub(crate) struct Tasks {
    cells: Vec<TaskCell>,
    free: Vec<u32>,
    /// The parked tasks of unary calls, for cancels. An entry stays while its task is polled.
    by_call: HashMap<(u32, CallId), TaskKey>,
    ready: Arc<ReadyQueue>,
    /// Swapped with the ready queue, so that neither allocates after warm-up.
    running: Vec<u32>,
    parked: u32,
    /// Number of parked tasks at which no further handler is started.
    max_parked: u32,
}

#[derive(Debug)]
struct TaskCell {
    /// `None` while the task is being polled with the waker.
    waker: Option<Waker>,
    signal: Arc<TaskWaker>,
    parked: Option<Task>,
}

impl Tasks {
    /// Creates an empty table for at most `max_parked` parked tasks. `wakeup` is notified when a
    /// task is woken.
    pub(crate) fn new(wakeup: Arc<Wakeup>, max_parked: u32) -> Self {
        Self {
            cells: Vec::new(),
            free: Vec::new(),
            by_call: HashMap::new(),
            ready: Arc::new(ReadyQueue::new(wakeup)),
            running: Vec::new(),
            parked: 0,
            max_parked,
        }
    }

    /// Returns the queue to which wakers push their tasks.
    pub(crate) fn ready(&self) -> Arc<ReadyQueue> {
        Arc::clone(&self.ready)
    }

    /// Borrows an entry with its waker, to poll a future with.
    pub(crate) fn borrow_cell(&mut self) -> (TaskKey, Waker) {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = self.cells.len() as u32;
            let signal = Arc::new(TaskWaker {
                index,
                queued: AtomicBool::new(false),
                ready: Arc::clone(&self.ready),
            });
            let waker = Some(Waker::from(Arc::clone(&signal)));
            self.cells.push(TaskCell {
                waker,
                signal,
                parked: None,
            });
            index
        });
        let cell = &mut self.cells[index as usize];
        let waker = cell
            .waker
            .take()
            .unwrap_or_else(|| Waker::from(Arc::clone(&cell.signal)));
        (TaskKey(index), waker)
    }

    /// Frees the entry of a task that has completed.
    pub(crate) fn complete(&mut self, key: TaskKey, waker: Waker, task: &Task) {
        self.forget(task);
        self.cells[key.0 as usize].waker = Some(waker);
        self.free.push(key.0);
    }

    /// Parks a future that is pending for the first time, until its waker is called.
    pub(crate) fn park_new(&mut self, key: TaskKey, waker: Waker, task: Task) {
        if task.call.stream.is_none() {
            self.by_call.insert(id_of(&task.call), key);
        }
        self.park(key, waker, task);
    }

    /// Parks a future that is pending, until its waker is called.
    pub(crate) fn park(&mut self, key: TaskKey, waker: Waker, task: Task) {
        let cell = &mut self.cells[key.0 as usize];
        cell.waker = Some(waker);
        cell.parked = Some(task);
        self.parked += 1;
    }

    /// Takes the indices of the tasks that were woken since the last call; `None` in most turns.
    /// The caller must return the vector with [`put_back`](Self::put_back).
    pub(crate) fn take_ready(&mut self) -> Option<Vec<u32>> {
        if !self.ready.has_any() {
            return None;
        }
        let mut running = mem::take(&mut self.running);
        self.ready.take_tasks(&mut running);
        Some(running)
    }

    pub(crate) fn put_back(&mut self, mut running: Vec<u32>) {
        running.clear();
        self.running = running;
    }

    /// Returns the connection of a woken task. A task that has ended has none, and can be woken again.
    pub(crate) fn link_of(&mut self, index: u32) -> Option<LinkKey> {
        let cell = &mut self.cells[index as usize];
        if cell.parked.is_none() {
            // As in `unpark_queued`.
            cell.signal.queued.swap(false, Ordering::AcqRel);
        }
        cell.parked.as_ref().map(|task| task.call.link)
    }

    /// Forgets that a task of a connection that has ended was woken. Returns the connection of the task
    /// that has the number now, if it is another one: that task has to be resumed.
    pub(crate) fn forget_wake(&mut self, index: u32, ended: LinkKey) -> Option<LinkKey> {
        let link = self.link_of(index)?;
        if link == ended {
            self.cells[index as usize]
                .signal
                .queued
                .swap(false, Ordering::AcqRel);
            return None;
        }
        Some(link)
    }

    /// Resumes a task that its waker has queued. Returns `None` if the task has ended in the meantime.
    pub(crate) fn unpark_queued(&mut self, index: u32) -> Option<(TaskKey, Task, Waker)> {
        let cell = &mut self.cells[index as usize];
        // Cleared before the future is polled, so that a wake from now on queues the task again. A
        // thread that found the task already queued has not queued it again. This swap reads the
        // flag that it set, so the poll sees the writes that preceded that wake. With a plain store
        // the poll could read older values, and the wake would be lost.
        cell.signal.queued.swap(false, Ordering::AcqRel);
        self.unpark(TaskKey(index))
    }

    /// Resumes a task without its waker. If the waker has queued the task as well, it is resumed once
    /// more from there, and sees what the waking thread wrote.
    pub(crate) fn unpark(&mut self, key: TaskKey) -> Option<(TaskKey, Task, Waker)> {
        let cell = &mut self.cells[key.0 as usize];
        let task = cell.parked.take()?;
        self.parked -= 1;
        let waker = cell.waker.take()?;
        Some((key, task, waker))
    }

    /// Returns the waker of a task that is not being polled.
    #[inline]
    pub(crate) fn waker(&self, key: TaskKey) -> Option<&Waker> {
        self.cells[key.0 as usize].waker.as_ref()
    }

    /// Takes the parked task whose deadline has passed, if it is still parked.
    pub(crate) fn expire(&mut self, key: TaskKey) -> Option<Task> {
        let task = self.cells[key.0 as usize].parked.take()?;
        self.free.push(key.0);
        self.parked -= 1;
        self.forget(&task);
        Some(task)
    }

    /// Returns true if the task of a unary call is parked.
    pub(crate) fn has_call(&self, link: LinkKey, call: CallId) -> bool {
        self.by_call.contains_key(&(link.number(), call))
    }

    /// Takes the parked task of a unary call that its client has cancelled.
    pub(crate) fn take_call(&mut self, link: LinkKey, call: CallId) -> Option<Task> {
        let key = *self.by_call.get(&(link.number(), call))?;
        self.expire(key)
    }

    fn forget(&mut self, task: &Task) {
        if task.call.stream.is_none() {
            self.by_call.remove(&id_of(&task.call));
        }
    }

    /// Takes the parked tasks for which `select` returns true, at most `most` of them.
    pub(crate) fn remove_where(
        &mut self,
        select: impl Fn(&Task) -> bool,
        most: usize,
    ) -> Vec<Task> {
        let mut removed = Vec::new();
        for (index, cell) in (0..).zip(&mut self.cells) {
            if removed.len() == most {
                break;
            }
            if let Some(task) = cell.parked.take_if(|task| select(task)) {
                self.free.push(index);
                removed.push(task);
            }
        }
        self.parked -= removed.len() as u32;
        for task in &removed {
            self.forget(task);
        }
        removed
    }

    /// Returns the number of entries in use.
    #[cfg(feature = "test-util")]
    pub(crate) fn in_use(&self) -> usize {
        self.cells.len() - self.free.len()
    }

    /// Returns the number of parked futures.
    pub(crate) fn parked(&self) -> u32 {
        self.parked
    }

    /// Returns true if another handler may be started.
    #[inline]
    pub(crate) fn has_capacity(&self) -> bool {
        self.parked < self.max_parked
    }

    /// Prevents any further handler from being started.
    pub(crate) fn stop_starting(&mut self) {
        self.max_parked = 0;
    }

    /// Returns the number of parked futures at which no further handler is started.
    pub(crate) fn max_parked(&self) -> u32 {
        self.max_parked
    }
}

/// Returns the call's connection and id.
fn id_of(call: &IncomingCall) -> (u32, CallId) {
    (call.link.number(), call.call)
}

/// The state shared by a task's wakers.
#[derive(Debug)]
struct TaskWaker {
    index: u32,
    queued: AtomicBool,
    ready: Arc<ReadyQueue>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Acquire and release: the poll that follows sees the writes of the waking thread, even if
        // an earlier wake has already queued the task.
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.push_task(self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{Key, Place};
    use super::*;

    #[test]
    fn a_task_is_queued_once_however_often_it_is_woken_and_again_after_it_ran() {
        let mut tasks = Tasks::new(Arc::new(Wakeup::new(Waker::noop().clone())), u32::MAX);
        let (key, waker) = tasks.borrow_cell();
        let remote = waker.clone();
        let task = Task {
            call: IncomingCall {
                link: LinkKey::at(Place::test(0)),
                call: CallId(0),
                served: ServedCall::test(),
                stream: None,
            },
            handler_key: HandlerKey::test(0),
            timer: None,
        };
        tasks.park(key, waker, task);
        assert!(tasks.take_ready().is_none());
        std::thread::spawn(move || {
            remote.wake_by_ref();
            remote.wake();
        })
        .join()
        .unwrap();
        let ready = tasks.take_ready().unwrap();
        assert_eq!(ready.len(), 1);
        let (key, task, waker) = tasks.unpark_queued(ready[0]).unwrap();
        tasks.put_back(ready);
        waker.wake_by_ref();
        tasks.park(key, waker, task);
        assert_eq!(tasks.take_ready().unwrap().len(), 1);
        assert_eq!(tasks.parked(), 1);
        assert_eq!(tasks.remove_where(|_| true, usize::MAX).len(), 1);
        assert_eq!(tasks.parked(), 0);
    }

    /// Another thread writes and wakes; a poll that sees an old value must be followed by another.
    /// An optimized build (`cargo test --release`) reorders whatever a plain store would permit.
    #[test]
    fn a_wake_that_finds_its_task_queued_is_not_lost() {
        use std::sync::atomic::AtomicU32;

        const ROUNDS: u32 = 20_000;
        let mut tasks = Tasks::new(Arc::new(Wakeup::new(Waker::noop().clone())), u32::MAX);
        let (key, waker) = tasks.borrow_cell();
        let remote = waker.clone();
        let (written, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (write, see) = (Arc::clone(&written), Arc::clone(&seen));
        let task = Task {
            call: IncomingCall {
                link: LinkKey::at(Place::test(0)),
                call: CallId(0),
                served: ServedCall::test(),
                stream: None,
            },
            handler_key: HandlerKey::test(0),
            timer: None,
        };
        tasks.park(key, waker, task);
        let writer = std::thread::spawn(move || {
            for round in 1..=ROUNDS {
                // The first wake queues the task. The second may find it queued or being polled.
                remote.wake_by_ref();
                for _ in 0..round % 64 {
                    std::hint::spin_loop();
                }
                write.store(round, Ordering::Relaxed);
                remote.wake_by_ref();
                let mut spins = 0u32;
                while see.load(Ordering::Relaxed) != round {
                    spins += 1;
                    if spins.is_multiple_of(1000) {
                        std::thread::yield_now();
                    }
                    if spins > 50_000_000 {
                        return Err(round);
                    }
                }
            }
            Ok(())
        });
        while !writer.is_finished() {
            let Some(ready) = tasks.take_ready() else {
                std::thread::yield_now();
                continue;
            };
            for &index in &ready {
                if let Some((key, task, waker)) = tasks.unpark_queued(index) {
                    seen.store(written.load(Ordering::Relaxed), Ordering::Relaxed);
                    tasks.park(key, waker, task);
                }
            }
            tasks.put_back(ready);
        }
        assert_eq!(
            writer.join().unwrap(),
            Ok(()),
            "the round whose wake was lost"
        );
    }
}
