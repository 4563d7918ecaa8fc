//! Asynchronous events of one context (`ibv_get_async_event(3)`): non-blocking reads behind an
//! interruptible wait.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::raw::c_void;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::handle::Handle;
use super::raw_structs::{Element, RawAsyncEvent};
use crate::types::{AsyncEvent, QpNum, SrqNum, VerbsError};

/// Makes the context's event file non-blocking.
pub(super) fn do_not_block(events: BorrowedFd<'_>) -> io::Result<()> {
    let flags = fcntl_getfl(events)?;
    Ok(fcntl_setfl(events, flags | OFlags::NONBLOCK)?)
}

/// Waits for the next event; `None` after `timeout` or an interruption. Pending events take
/// precedence over interruptions.
pub(super) fn next(
    handle: &Handle,
    timeout: Option<Duration>,
) -> Result<Option<AsyncEvent>, VerbsError> {
    let failed = |source: io::Error| VerbsError::Os {
        call: "get_async_event",
        source,
    };
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        if let Some(event) = read(handle).map_err(failed)? {
            return Ok(Some(event));
        }
        if handle.interruption.take() {
            return Ok(None);
        }
        let left = match deadline {
            None => None,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(None);
                }
                Some(Timespec::try_from(left).map_err(|e| failed(io::Error::other(e)))?)
            }
        };
        let events = handle.async_fd();
        let mut files = [
            PollFd::from_borrowed_fd(events, PollFlags::IN),
            PollFd::from_borrowed_fd(handle.interruption.0.as_fd(), PollFlags::IN),
        ];
        match poll(&mut files, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
        // The device was removed from the machine: no event will arrive, and waiting would not end.
        if files[0]
            .revents()
            .intersects(PollFlags::ERR | PollFlags::NVAL)
            && !files[0].revents().contains(PollFlags::IN)
        {
            tracing::debug!(fd = events.as_raw_fd(), "the event file has failed");
            return Err(failed(Errno::NODEV.into()));
        }
    }
}

/// Takes and acknowledges one event, if there is one.
fn read(handle: &Handle) -> io::Result<Option<AsyncEvent>> {
    let mut raw = RawAsyncEvent {
        element: Element {
            cq: std::ptr::null_mut(),
        },
        event_type: -1,
    };
    // SAFETY: the context is open for as long as `handle` lives; the struct has the header's
    // layout.
    let returned = unsafe { (handle.library.ibv_get_async_event)(handle.raw(), &mut raw) };
    if returned != 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    }
    // SAFETY: the event was taken just now and is not acknowledged yet.
    let event = unsafe { interpret(&raw) };
    // SAFETY: the event is acknowledged once. From here on, the object that it names may be
    // destroyed.
    unsafe { (handle.library.ibv_ack_async_event)(&mut raw) };
    Ok(Some(event))
}

/// Converts an event, with the numbers of `enum ibv_event_type`.
///
/// # Safety
///
/// The event must not have been acknowledged. Destroying the object that it names waits for the
/// acknowledgement, so until then the pointer to the object is valid.
unsafe fn interpret(raw: &RawAsyncEvent) -> AsyncEvent {
    // SAFETY: each field is read only for the event types whose element is of that kind
    // (ibv_get_async_event(3)). The caller guarantees that the event is not acknowledged, so the
    // object is alive.
    let (cq, qp, srq, port) = unsafe {
        (
            || number((*raw.element.cq).cq_context),
            || QpNum((*raw.element.qp).qp_num),
            || SrqNum(number((*raw.element.srq).srq_context)),
            || u8::try_from(raw.element.port_num).unwrap_or(0),
        )
    };
    match raw.event_type {
        0 => AsyncEvent::CompletionQueueError { cq: cq() },
        1 => AsyncEvent::QpFatal { qp_num: qp() },
        2 => AsyncEvent::QpRequestError { qp_num: qp() },
        3 => AsyncEvent::QpAccessError { qp_num: qp() },
        4 => AsyncEvent::CommunicationEstablished { qp_num: qp() },
        5 => AsyncEvent::SqDrained { qp_num: qp() },
        6 => AsyncEvent::PathMigrated { qp_num: qp() },
        7 => AsyncEvent::PathMigrationError { qp_num: qp() },
        8 => AsyncEvent::DeviceFatal,
        9 => AsyncEvent::PortActive { port: port() },
        10 => AsyncEvent::PortError { port: port() },
        11 => AsyncEvent::LidChange { port: port() },
        12 => AsyncEvent::PkeyChange { port: port() },
        13 => AsyncEvent::SmChange { port: port() },
        14 => AsyncEvent::SrqError { srq: srq() },
        15 => AsyncEvent::SrqLimitReached { srq: srq() },
        16 => AsyncEvent::QpLastWqeReached { qp_num: qp() },
        17 => AsyncEvent::ClientReregister { port: port() },
        18 => AsyncEvent::GidChange { port: port() },
        19 => AsyncEvent::WorkQueueFatal,
        20 => AsyncEvent::DeviceSpeedChange { port: port() },
        unknown => AsyncEvent::Unknown(unknown),
    }
}

/// Returns the number that was stored in the queue's context when it was created.
fn number(context: *mut c_void) -> u32 {
    context.addr() as u32
}
