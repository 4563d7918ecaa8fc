//! Dialing: connects a link to the process of a GID and greets it, on the thread that needs the
//! link, for a limited time.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::gid::process_of;
use super::greeting::{Layouts, Limits, LinkError};
use super::link::{LinkSocket, Packet, Sent};
use super::link_message::LinkMessage;
use super::outbound::Link;
use crate::types::Gid;

/// First and longest pause before another attempt to connect to a process whose queue of new links
/// is full.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];

/// Waits until a packet has arrived; given the rest of the time. Returns false at its end.
pub(crate) type Wait<'a> = &'a dyn Fn(&LinkSocket, Duration) -> rustix::io::Result<bool>;

/// Connects to the process of `gid` and greets it as the process of `own`, within `time`. Returns
/// the link's socket and the peer's limits.
pub(crate) fn dial(
    gid: Gid,
    own: Gid,
    time: Duration,
    wait: Wait<'_>,
) -> Result<(LinkSocket, Limits), LinkError> {
    if process_of(gid).is_none() {
        return Err(LinkError::NotLocal);
    }
    let start = Instant::now();
    let socket = connect(gid, start, time)?;
    greet(&socket, own)?;
    let limits = answer(&socket, start, time, wait)?;
    Ok((socket, limits))
}

fn os(action: &'static str) -> impl Fn(Errno) -> LinkError {
    move |errno| LinkError::Os { action, errno }
}

/// Connects, and checks that the listener belongs to the process that the GID names.
fn connect(gid: Gid, start: Instant, time: Duration) -> Result<LinkSocket, LinkError> {
    let [mut pause, longest] = PAUSES;
    let socket = loop {
        match LinkSocket::connect(gid) {
            Ok(socket) => break socket,
            // Too many links wait there to be accepted.
            Err(Errno::AGAIN) if start.elapsed() >= time => {
                return Err(LinkError::Busy(time));
            }
            Err(Errno::AGAIN) => {
                thread::sleep(pause.min(time.saturating_sub(start.elapsed())));
                pause = longest.min(pause * 2);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(os("be connected")(errno)),
        }
    };
    let listener = socket.credentials().map_err(os("be verified"))?;
    if !listener.is_process_of(gid) {
        return Err(LinkError::OtherProcess);
    }
    // The peer sends files as soon as it has welcomed this process.
    socket.take_files().map_err(os("be set up"))?;
    Ok(socket)
}

/// Sends the dialer's greeting, which fits into the buffer of a new socket.
fn greet(socket: &LinkSocket, own: Gid) -> Result<(), LinkError> {
    let hello = LinkMessage::Hello {
        layouts: Layouts::OWN,
        gid: own,
        limits: Limits::OWN,
    };
    match socket.send(hello, &[]) {
        // If the peer has closed the link, it may have said why.
        Ok(Sent::Whole) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Ok(Sent::NoRoom | Sent::TooManyFiles) => Err(os("be greeted")(Errno::AGAIN)),
        Err(errno) => Err(os("be greeted")(errno)),
    }
}

/// Receives the answer to the greeting, and returns the peer's limits.
fn answer(
    socket: &LinkSocket,
    start: Instant,
    time: Duration,
    wait: Wait<'_>,
) -> Result<Limits, LinkError> {
    loop {
        let left = time.saturating_sub(start.elapsed());
        if !wait(socket, left).map_err(os("be waited for"))? || left.is_zero() {
            return Err(LinkError::Silent(time));
        }
        return match socket.receive() {
            Ok(Packet::Empty) => continue,
            Ok(Packet::Message(LinkMessage::Welcome { layout, limits }, _)) => {
                let chosen = Layouts {
                    min: layout,
                    max: layout,
                };
                match Layouts::OWN.choose(chosen) {
                    Some(_) => Ok(limits),
                    None => Err(LinkError::Layout { chosen: layout }),
                }
            }
            Ok(Packet::Message(LinkMessage::Refused(refusal), _)) => {
                Err(LinkError::Refused(refusal))
            }
            Ok(Packet::End) | Err(Errno::PIPE) => Err(LinkError::Closed),
            Ok(Packet::Message(..) | Packet::WithoutFiles(_) | Packet::Garbage) => {
                Err(LinkError::Garbage)
            }
            Err(errno) => Err(os("be received from")(errno)),
        };
    }
}

/// An attempt to dial a process, which every thread that needs the link waits for.
#[derive(Debug, Default)]
pub(crate) struct Attempt {
    result: Mutex<Option<Result<Arc<Link>, LinkError>>>,
    is_done: Condvar,
}

impl Attempt {
    /// Sets the result, unless it has one.
    pub(crate) fn finish(&self, result: Result<Arc<Link>, LinkError>) {
        // The result is set in one step, so a panic under the lock does no harm.
        let mut set = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        set.get_or_insert(result);
        self.is_done.notify_all();
    }

    /// Waits for the result. Returns `None` if there is none after this time.
    pub(crate) fn wait(&self, time: Duration) -> Option<Result<Arc<Link>, LinkError>> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .is_done
            .wait_timeout_while(result, time, |result| result.is_none());
        let (result, _) = waited.unwrap_or_else(PoisonError::into_inner);
        result.clone()
    }
}
