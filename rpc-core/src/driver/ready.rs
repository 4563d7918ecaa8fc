//! [`ReadyQueue`]: woken tasks, and streams that have work, until their driver takes them.
//!
//! Most of them come from the driver's own thread: a message wakes the handler that reads it, and the
//! handler's messages are for the driver to send. Those wait in a variable of the thread, without a
//! lock or a fence. The others come from other threads through a mutex, and end the poller's sleep.

use std::cell::{Cell, RefCell};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::wakeup::Wakeup;
use crate::stream::core::SignalQueue;

/// The number of the next queue. A number is never used again; 0 is none.
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The number of the queue that the thread's variable belongs to. It has no destructor, so reading
    /// it is one instruction.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static LOCAL: Local = const { Local {
        queue: RefCell::new(None),
        ready: RefCell::new(Ready::new()),
    } };
}

/// What this thread has for the driver whose turn it took last.
struct Local {
    queue: RefCell<Option<Arc<ReadyQueue>>>,
    ready: RefCell<Ready>,
}

/// What the application has for a driver.
#[derive(Debug)]
pub(crate) struct ReadyQueue {
    number: u64,
    /// True if the driver's own thread has queued something, in its variable. Only that thread
    /// accesses it.
    has_local: AtomicBool,
    /// True if another thread has queued something, which a turn checks without the lock. Set after
    /// the push, under the lock.
    has_remote: AtomicBool,
    remote: Mutex<Ready>,
    wakeup: Arc<Wakeup>,
}

/// The numbers of woken tasks, and of streams that have work.
#[derive(Debug, Default)]
struct Ready {
    tasks: Vec<u32>,
    streams: Vec<u32>,
}

impl Ready {
    const fn new() -> Self {
        Self {
            tasks: Vec::new(),
            streams: Vec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.streams.is_empty()
    }
}

impl ReadyQueue {
    /// Creates an empty queue. `wakeup` is notified when another thread queues something.
    pub(super) fn new(wakeup: Arc<Wakeup>) -> Self {
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            has_local: AtomicBool::new(false),
            has_remote: AtomicBool::new(false),
            remote: Mutex::default(),
            wakeup,
        }
    }

    /// Makes this thread's variable the queue's. Called on the driver's thread, before tasks are resumed
    /// and streams are looked at: calls that do neither need no queue.
    #[inline]
    pub(super) fn enter(self: &Arc<Self>) {
        if NUMBER.get() != self.number {
            // A driver may take turns while the thread's variables are destroyed: what it queues then
            // goes through the mutex.
            let _ = LOCAL.try_with(|local| self.replace(local));
        }
    }

    /// Gives what this thread has for another driver, also of this thread, to that driver's queue.
    #[cold]
    #[inline(never)]
    fn replace(self: &Arc<Self>, local: &Local) {
        let before = local.queue.replace(Some(Arc::clone(self)));
        NUMBER.set(self.number);
        if local.ready.borrow().is_empty() {
            return;
        }
        let Some(before) = before else {
            return;
        };
        before.has_local.store(false, Ordering::Relaxed);
        // The lists keep their memory, since drivers that share a thread come here often.
        before.push_remote(|remote| {
            let mut ready = local.ready.borrow_mut();
            remote.tasks.append(&mut ready.tasks);
            remote.streams.append(&mut ready.streams);
        });
    }

    /// Returns true if something is queued.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.has_local.load(Ordering::Relaxed) | self.has_remote.load(Ordering::Relaxed)
    }

    /// Queues a woken task.
    pub(super) fn push_task(&self, index: u32) {
        self.push(|ready| ready.tasks.push(index));
    }

    #[inline(always)]
    fn push(&self, push: impl Fn(&mut Ready)) {
        // A waker may be called while the thread's variables are destroyed.
        let is_pushed = NUMBER.get() == self.number
            && LOCAL
                .try_with(|local| {
                    push(&mut local.ready.borrow_mut());
                    self.has_local.store(true, Ordering::Relaxed);
                })
                .is_ok();
        if !is_pushed {
            self.push_remote(push);
        }
    }

    fn push_remote(&self, push: impl FnOnce(&mut Ready)) {
        let mut remote = self.remote();
        push(&mut remote);
        self.has_remote.store(true, Ordering::Relaxed);
        drop(remote);
        self.wakeup.notify();
    }

    /// Takes the numbers of the woken tasks. `into` is empty.
    pub(super) fn take_tasks(&self, into: &mut Vec<u32>) {
        self.take(|ready| &mut ready.tasks, into);
    }

    /// Takes the numbers of the streams that have work. `into` is empty.
    pub(super) fn take_streams(&self, into: &mut Vec<u32>) {
        self.take(|ready| &mut ready.streams, into);
    }

    fn take(&self, list: impl Fn(&mut Ready) -> &mut Vec<u32>, into: &mut Vec<u32>) {
        if self.has_remote.load(Ordering::Relaxed) {
            let mut remote = self.remote();
            mem::swap(list(&mut remote), into);
            self.has_remote.store(!remote.is_empty(), Ordering::Relaxed);
        }
        if !self.has_local.load(Ordering::Relaxed) || NUMBER.get() != self.number {
            return;
        }
        // While the thread's variables are destroyed, nothing of them is left to take.
        let _ = LOCAL.try_with(|local| {
            let mut ready = local.ready.borrow_mut();
            match into.is_empty() {
                true => mem::swap(list(&mut ready), into),
                false => into.append(list(&mut ready)),
            }
            self.has_local.store(!ready.is_empty(), Ordering::Relaxed);
        });
    }

    fn remote(&self) -> MutexGuard<'_, Ready> {
        // Under this lock only the allocator can panic.
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SignalQueue for ReadyQueue {
    fn push_stream(&self, index: u32) {
        self.push(|ready| ready.streams.push(index));
    }
}
