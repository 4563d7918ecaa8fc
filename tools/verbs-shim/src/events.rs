//! Completion channels and asynchronous events. A program may wait for the file of either with `poll`,
//! and may make it non-blocking. So each is a counter of events that are there, and a thread for each
//! takes the events from the device.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno as OsError, ReadWriteFlags, preadv2};
use verbline_verbs::AsyncEvent;
use verbline_verbs::for_shim::{CompletionChannel, Context};
use verbline_verbs::for_transport::start_thread;

use crate::abi::{ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_qp, ibv_srq};
use crate::boundary::{Errno, Users, count, lock, number, object, say};
use crate::devices::{Opened, opened};
use crate::queue_pairs::qp_of;
use crate::queues::{cq_of, srq_of};

/// A thread of this library. The child of a fork has neither it nor its files, which are the parent's.
#[derive(Debug)]
struct Taker {
    thread: JoinHandle<()>,
    process: u32,
}

impl Taker {
    fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<Self, Errno> {
        Ok(Self {
            thread: start_thread(name, run)?,
            process: process::id(),
        })
    }

    /// Ends the thread, which `tell` asks to end.
    fn stop(self, tell: impl FnOnce()) {
        if self.process == process::id() {
            tell();
            // It panics only with the device, which has said so.
            let _ = self.thread.join();
        }
    }
}

/// Events, and a file that says how many there are.
#[derive(Debug)]
pub(crate) struct EventFile<T> {
    file: OwnedFd,
    events: Mutex<VecDeque<T>>,
    process: u32,
}

impl<T> EventFile<T> {
    fn new() -> Result<Arc<Self>, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
        let file = eventfd(0, flags).map_err(|errno| Errno(errno.raw_os_error()))?;
        Ok(Arc::new(Self {
            file,
            events: Mutex::default(),
            process: process::id(),
        }))
    }

    fn push(&self, event: T) {
        lock(&self.events).push_back(event);
        // Cannot fail before 2⁶⁴ events wait.
        let _ = rustix::io::write(&self.file, &1_u64.to_ne_bytes());
    }

    /// Returns the next event. Waits for it, unless the program has made the file non-blocking.
    fn next(&self) -> Result<T, Errno> {
        loop {
            let mut one = [0; 8];
            rustix::io::read(&self.file, &mut one).map_err(|errno| Errno(errno.raw_os_error()))?;
            // It is gone if its queue was destroyed after the file had counted it.
            if let Some(event) = lock(&self.events).pop_front() {
                return Ok(event);
            }
        }
    }

    /// Removes events of an object that is gone, so that the file does not count them any more.
    pub(crate) fn retain(&self, is_kept: impl FnMut(&T) -> bool) {
        /// For files without positions.
        const CURRENT: u64 = u64::MAX;
        let mut events = lock(&self.events);
        let before = events.len();
        events.retain(is_kept);
        if self.process != process::id() {
            // The parent's file counts the parent's events.
            return;
        }
        for _ in events.len()..before {
            // Without waiting: a thread of the program may have taken the count, and then finds no event.
            let mut one = [0; 8];
            let places = &mut [IoSliceMut::new(&mut one)];
            let _ = preadv2(&self.file, places, CURRENT, ReadWriteFlags::NOWAIT);
        }
    }

    fn fd(&self) -> c_int {
        self.file.as_raw_fd()
    }
}

/// The events of one object that the program has got and has not acknowledged. Destroying the object
/// waits for them.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Unacknowledged {
    fn add(&self) {
        *lock(&self.count) += 1;
    }

    fn acknowledge(&self, events: u32) {
        let mut count = lock(&self.count);
        *count = count.saturating_sub(events);
        self.changed.notify_all();
    }

    pub(crate) fn wait_for_none(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            count = self
                .changed
                .wait(count)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The asynchronous events of an opened device.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    events: Arc<EventFile<AsyncEvent>>,
    is_closing: Arc<AtomicBool>,
    thread: Mutex<Option<Taker>>,
}

impl AsyncEvents {
    pub(crate) fn new(device: &Context) -> Result<Self, Errno> {
        let (events, is_closing) = (EventFile::new()?, Arc::new(AtomicBool::new(false)));
        let take = {
            let (events, is_closing) = (Arc::clone(&events), Arc::clone(&is_closing));
            let device = device.clone();
            move || {
                while !is_closing.load(Ordering::Acquire) {
                    match device.get_async_event(None) {
                        Ok(Some(event)) => events.push(event),
                        // Interrupted: by `stop`.
                        Ok(None) => {}
                        Err(error) => return say(&error),
                    }
                }
            }
        };
        let thread = Taker::start("shim-async", take)?;
        Ok(Self {
            events,
            is_closing,
            thread: Mutex::new(Some(thread)),
        })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.events.fd()
    }

    /// Ends the thread.
    pub(crate) fn stop(&self, device: &Context) {
        if let Some(thread) = lock(&self.thread).take() {
            thread.stop(|| {
                self.is_closing.store(true, Ordering::Release);
                device.interrupt_async_events();
            });
        }
    }
}

/// The numbers of the header's `enum ibv_event_type`.
mod event_type {
    pub(super) const CQ_ERR: u32 = 0;
    pub(super) const SRQ_ERR: u32 = 14;
    pub(super) const SRQ_LIMIT_REACHED: u32 = 15;
    pub(super) const QP_LAST_WQE_REACHED: u32 = 16;
    /// Those before this number, and the one above, are of queue pairs.
    pub(super) const DEVICE_FATAL: u32 = 8;
}

/// Returns the number of an event, and the object that it is of. `None` for an object that is gone, and for
/// events that the device does not raise.
fn of_program(opened: &Opened, event: AsyncEvent) -> Option<ibv_async_event> {
    let of_qp = |number: u32, event_type| {
        let known = lock(&opened.queue_pairs);
        let qp = *known.get(&number)?;
        // SAFETY: objects are in the table until they are destroyed, and the table is locked.
        unsafe { qp_of(qp) }.events.add();
        Some(ibv_async_event {
            element: qp.cast(),
            event_type,
        })
    };
    let of_srq = |number: u32, event_type| {
        let known = lock(&opened.shared_receive_queues);
        let srq = *known.get(&number)?;
        // SAFETY: as above.
        unsafe { srq_of(srq) }.events.add();
        Some(ibv_async_event {
            element: srq.cast(),
            event_type,
        })
    };
    match event {
        AsyncEvent::CompletionQueueError { cq } => {
            let known = lock(&opened.completion_queues);
            let cq = *known.get(&cq)?;
            // SAFETY: as above.
            unsafe { cq_of(cq) }.async_events.add();
            Some(ibv_async_event {
                element: cq.cast(),
                event_type: event_type::CQ_ERR,
            })
        }
        AsyncEvent::QpFatal { qp_num } => of_qp(qp_num.0, 1),
        AsyncEvent::QpRequestError { qp_num } => of_qp(qp_num.0, 2),
        AsyncEvent::QpAccessError { qp_num } => of_qp(qp_num.0, 3),
        AsyncEvent::CommunicationEstablished { qp_num } => of_qp(qp_num.0, 4),
        AsyncEvent::SqDrained { qp_num } => of_qp(qp_num.0, 5),
        AsyncEvent::QpLastWqeReached { qp_num } => of_qp(qp_num.0, event_type::QP_LAST_WQE_REACHED),
        AsyncEvent::SrqError { srq } => of_srq(srq.0, event_type::SRQ_ERR),
        AsyncEvent::SrqLimitReached { srq } => of_srq(srq.0, event_type::SRQ_LIMIT_REACHED),
        AsyncEvent::DeviceFatal => Some(ibv_async_event {
            element: ptr::null_mut(),
            event_type: event_type::DEVICE_FATAL,
        }),
        _ => None,
    }
}

/// `ibv_get_async_event(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    out: *mut ibv_async_event,
) -> c_int {
    count(|| {
        // SAFETY: the program's context.
        let opened = unsafe { opened(context) };
        loop {
            if let Some(event) = of_program(opened, opened.async_events.events.next()?) {
                // SAFETY: the program's place for the answer.
                unsafe { *out = event };
                return Ok(0);
            }
        }
    })
}

/// `ibv_ack_async_event(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    number(|| {
        // SAFETY: an event that the program got, with the object that it named then: that is not
        // destroyed before the event is acknowledged.
        let ibv_async_event {
            element,
            event_type,
        } = unsafe { &*event };
        // SAFETY: as above.
        unsafe {
            match *event_type {
                event_type::CQ_ERR => cq_of(element.cast()).async_events.acknowledge(1),
                event_type::SRQ_ERR | event_type::SRQ_LIMIT_REACHED => {
                    srq_of(element.cast::<ibv_srq>()).events.acknowledge(1);
                }
                event_type::QP_LAST_WQE_REACHED => {
                    qp_of(element.cast::<ibv_qp>()).events.acknowledge(1);
                }
                of_qp if of_qp < event_type::DEVICE_FATAL => {
                    qp_of(element.cast::<ibv_qp>()).events.acknowledge(1);
                }
                _ => {}
            }
        }
        Ok(())
    });
}

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    head: ibv_comp_channel,
    pub(crate) inner: Arc<CompletionChannel>,
    /// The numbers of the queues that have raised an event.
    pub(crate) events: Arc<EventFile<u32>>,
    stop: Arc<OwnedFd>,
    thread: Taker,
    pub(crate) users: Users,
}

/// Returns the channel of a pointer that a program has.
///
/// # Safety
///
/// `ibv_create_comp_channel` returned it, and it is not destroyed while the reference is used.
pub(crate) unsafe fn channel_of<'a>(channel: *mut ibv_comp_channel) -> &'a Channel {
    // SAFETY: the pointer is to the head of a `Channel`.
    unsafe { &*channel.cast() }
}

/// Takes the events of a channel from the device until `stop` is readable.
fn take_events(channel: &CompletionChannel, events: &EventFile<u32>, stop: &OwnedFd) {
    loop {
        let channel_file = channel.fd();
        let mut files = [
            PollFd::from_borrowed_fd(channel_file, PollFlags::IN),
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
        ];
        match poll(&mut files, None) {
            Ok(_) | Err(OsError::INTR) => {}
            Err(error) => return say(&error),
        }
        if !files[1].revents().is_empty() {
            return;
        }
        loop {
            match channel.wait(Some(Duration::ZERO)) {
                Ok(Some(queue)) => events.push(queue),
                Ok(None) => break,
                Err(error) => return say(&error),
            }
        }
    }
}

/// `ibv_create_comp_channel(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    object(|| {
        // SAFETY: the program's context.
        let opened = unsafe { opened(context) };
        let (inner, events) = (
            Arc::new(opened.device.create_comp_channel()?),
            EventFile::new()?,
        );
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| Errno(errno.raw_os_error()))?;
        let stop = Arc::new(stop);
        let take = {
            let (inner, events, stop) =
                (Arc::clone(&inner), Arc::clone(&events), Arc::clone(&stop));
            move || take_events(&inner, &events, &stop)
        };
        let thread = Taker::start("shim-channel", take)?;
        opened.users.add();
        let head = ibv_comp_channel {
            context,
            fd: events.fd(),
            refcnt: 0,
        };
        Ok(Box::new(Channel {
            head,
            inner,
            events,
            stop,
            thread,
            users: Users::default(),
        }))
    })
}

/// `ibv_destroy_comp_channel(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    number(|| {
        // SAFETY: the program's channel.
        unsafe { channel_of(channel) }.users.check_none()?;
        // SAFETY: `ibv_create_comp_channel` made it from a box, and nothing needs it any more.
        let channel = unsafe { Box::from_raw(channel.cast::<Channel>()) };
        channel.thread.stop(|| {
            // Cannot fail: nobody else writes to the file.
            let _ = rustix::io::write(&channel.stop, &1_u64.to_ne_bytes());
        });
        // SAFETY: the channel's own context.
        unsafe { opened(channel.head.context) }.users.remove();
        Ok(())
    })
}

/// `ibv_get_cq_event(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    out: *mut *mut ibv_cq,
    out_context: *mut *mut c_void,
) -> c_int {
    count(|| {
        // SAFETY: the program's channel.
        let channel = unsafe { channel_of(channel) };
        // SAFETY: the channel's own context.
        let opened = unsafe { opened(channel.head.context) };
        loop {
            let number = channel.events.next()?;
            let known = lock(&opened.completion_queues);
            if let Some(&cq) = known.get(&number) {
                // SAFETY: a queue is in the table until it is destroyed, and the table is locked. The
                // places are the program's.
                unsafe {
                    cq_of(cq).events.add();
                    *out = cq;
                    *out_context = (*cq).cq_context;
                }
                return Ok(0);
            }
        }
    })
}

/// `ibv_ack_cq_events(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32) {
    // SAFETY: the program's queue.
    unsafe { cq_of(cq) }.events.acknowledge(events);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_counts_the_events_that_are_there() {
        let file = EventFile::new().expect("a file");
        let is_readable = || {
            let mut files = [PollFd::new(&file.file, PollFlags::IN)];
            poll(&mut files, Some(&Default::default())).expect("a file") == 1
        };
        for event in [1, 2, 1] {
            file.push(event);
        }
        file.retain(|event| *event != 1);
        assert!(is_readable());
        assert_eq!(file.next(), Ok(2));
        assert!(!is_readable(), "a program would wait for an event");
    }
}
