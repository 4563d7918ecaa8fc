//! The notice queue, on which other threads send notices to a poller.
//!
//! The control thread, its preparer threads and the async-event thread put a [`Notice`] into the
//! poller's [`NoticeReceiver`] and set a bit in the word that the poller reads on every poll
//! ([`Pending`]).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use rpc_core::transport::{Admitted, PeerSentence, RoomWanted};
use verbline_verbs::QpNum;
use verbline_verbs::for_transport::BadRecord;

use crate::transport::device_event::DeviceEvent;
use crate::transport::failure::LaneFailure;
use crate::transport::liveness_socket::LivenessSocket;
use crate::transport::pending::Pending;
use crate::transport::queue_pairs::QpRts;
use crate::transport::wakeup::Wakeup;

/// Identifies one TCP connection of this process. Unlike a file descriptor or a queue pair number,
/// a key is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LivenessKey(u64);

impl LivenessKey {
    /// Returns a key that was never returned before.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Only the number must be unique: it publishes no other data.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for LivenessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "liveness {}", self.0)
    }
}

/// A message to a poller.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A client was admitted and its queue pair on this side is in RTS. Whether the client's queue
    /// pair is in RTS too is not known yet.
    QpRts(Box<ConnectionInRts>),
    /// The client of a connection in RTS can receive, so the connection is open.
    Open(LivenessKey),
    /// The TCP connection has ended, or the handshake has failed.
    Ended(LivenessKey, LivenessEnd),
    /// An asynchronous event of the device reported that a queue pair has failed.
    QueuePairFailed(QpNum, DeviceEvent),
    /// A resource that all connections of the lane share has failed.
    LaneFailed(Arc<LaneFailure>),
    /// A queue pair in the error state has taken its last receive from the shared receive queue,
    /// and that receive has completed.
    LastReceiveTaken(QpNum),
    /// New clients find no connection left.
    RoomWanted(RoomWanted),
}

/// A connection that is handed to its poller.
#[derive(Debug)]
pub(crate) struct ConnectionInRts {
    /// Its queue pair, in RTS.
    pub(crate) qp_rts: QpRts,
    /// The longest frame that the client accepts.
    pub(crate) remote_frame_len: usize,
    /// The core's decision, with the permit that counts the client among the connections.
    pub(crate) admitted: Admitted,
    /// The TCP connection, kept open as long as the connection.
    pub(crate) liveness: LivenessSocket,
    /// The TCP connection's key in later notices.
    pub(crate) key: LivenessKey,
}

/// How a TCP connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LivenessEnd {
    /// End of file or a reset: the peer's process closed the socket or ended.
    Gone,
    /// Bytes other than a keepalive arrived on a connection that should be silent.
    Bytes,
    /// What travels in records could not be read any more.
    Record(BadRecord),
    /// The server has ended the handshake for this reason, while the client's last message was on its
    /// way.
    Refused(PeerSentence),
    /// The peer has not answered keepalives for this long.
    Silent(Duration),
}

/// The sender of notices, for any thread.
#[derive(Clone, Debug)]
pub(crate) struct NoticeSender {
    notices: Sender<Notice>,
    pending: Arc<Pending>,
    wakeup: Arc<Wakeup>,
}

/// The receiver of notices, owned by the poller.
#[derive(Debug)]
pub(crate) struct NoticeReceiver {
    notices: Receiver<Notice>,
    pending: Arc<Pending>,
}

/// Creates the two ends of a notice queue. The queue is unbounded, but the number of notices is
/// bounded: a few for each connection, and one for the failure of the lane.
///
/// Each notice sets a bit in `pending`, and notifies the poller's eventfd, because the poller may
/// sleep.
pub(crate) fn notice_queue(
    wakeup: Arc<Wakeup>,
    pending: Arc<Pending>,
) -> (NoticeSender, NoticeReceiver) {
    let (sender, receiver) = crossbeam_channel::unbounded();
    (
        NoticeSender {
            notices: sender,
            pending: Arc::clone(&pending),
            wakeup,
        },
        NoticeReceiver {
            notices: receiver,
            pending,
        },
    )
}

impl NoticeSender {
    /// Sends a notice to the poller.
    ///
    /// # Errors
    ///
    /// Returns the notice if the poller's transport has been dropped.
    pub(crate) fn send(&self, notice: Notice) -> Result<(), Notice> {
        self.notices.send(notice).map_err(|error| error.0)?;
        // After the notice is in the channel, so a poller that sees the bit finds the notice.
        self.pending.announce_notice();
        // After the bit, because the poller checks the bit next when it is woken or kept from
        // sleeping.
        self.wakeup.notify();
        Ok(())
    }
}

impl NoticeSender {
    /// Asks the poller to look whether its sends are stuck. However often it is asked before it looks,
    /// it looks once.
    pub(crate) fn request_look_at_sends(&self) {
        self.pending.set(Pending::SENDS);
        self.wakeup.notify();
    }
}

impl NoticeReceiver {
    /// Takes the next notice. Clears the bit if there is none.
    pub(crate) fn take(&self) -> Option<Notice> {
        // Clear the bit before the check: a notice sent after the check sets the bit again, so no
        // notice remains in the queue under a cleared bit.
        self.pending.begin_to_read_notices();
        let notice = self.notices.try_recv().ok();
        if notice.is_some() {
            // There may be more notices.
            self.pending.set(Pending::NOTICES);
        }
        notice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> (NoticeSender, NoticeReceiver, Arc<Pending>) {
        let pending = Arc::new(Pending::default());
        let (sender, receiver) = notice_queue(Wakeup::new().unwrap(), Arc::clone(&pending));
        (sender, receiver, pending)
    }

    fn key_of(notice: Option<Notice>) -> Option<LivenessKey> {
        match notice? {
            Notice::Open(key) => Some(key),
            other => panic!("{other:?} was not put"),
        }
    }

    #[test]
    fn notices_come_in_order_and_the_bit_is_cleared_after_the_last() {
        let (notice_sender, notice_receiver, pending) = queue();
        assert!(!pending.has(Pending::NOTICES));
        let keys = [LivenessKey::next(), LivenessKey::next()];
        for key in keys {
            notice_sender.send(Notice::Open(key)).unwrap();
        }
        for key in keys {
            assert!(pending.has(Pending::NOTICES));
            assert_eq!(key_of(notice_receiver.take()), Some(key));
        }
        assert!(notice_receiver.take().is_none());
        assert!(!pending.has(Pending::NOTICES));
    }

    #[test]
    fn what_is_put_for_nobody_comes_back() {
        let (notice_sender, notice_receiver, _) = queue();
        drop(notice_receiver);
        let key = LivenessKey::next();
        assert_eq!(
            key_of(notice_sender.send(Notice::Open(key)).err()),
            Some(key)
        );
    }

    /// While one thread sends notices, a poller takes them with arbitrary timing: the bit never
    /// stays clear while a notice is queued.
    #[test]
    fn no_notice_is_left_behind_a_cleared_bit() {
        let (notice_sender, notice_receiver, pending) = queue();
        const COUNT: u64 = 20_000;
        let sender = std::thread::spawn(move || {
            for number in 0..COUNT {
                notice_sender
                    .send(Notice::Open(LivenessKey(number)))
                    .unwrap();
            }
        });
        let mut next = 0;
        while next < COUNT {
            // Check only the bit, as a poller does.
            if pending.has(Pending::NOTICES) {
                while let Some(key) = key_of(notice_receiver.take()) {
                    assert_eq!(key, LivenessKey(next));
                    next += 1;
                }
            } else if sender.is_finished() && !pending.has(Pending::NOTICES) {
                panic!("{next} of {COUNT} notices came, and the bit is clear");
            }
        }
        sender.join().unwrap();
    }
}
