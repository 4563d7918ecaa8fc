//! What other threads tell a poller, and how it hears of it for the price of one load.
//!
//! The control thread and the async-event thread put a [`Notice`] into the poller's [`Inbox`] and
//! raise a flag. The poller looks at the flag on every poll; as nobody writes it between notices, the
//! line stays in the poller's cache.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use rpc_core::transport::Admitted;

use crate::transport::alarm::Alarm;
use crate::transport::device_event::DeviceEvent;
use crate::transport::failure::LaneFailure;
use crate::transport::lifeline::Lifeline;
use crate::transport::queue_pairs::Ready;
use crate::verbs::QpNum;

/// Names one TCP connection of this process for as long as it lives, unlike a file descriptor or a
/// queue pair's number, which are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LineKey(u64);

impl LineKey {
    /// A key that was never given out before.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Only the number must be unique; nothing is published with it.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for LineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.0)
    }
}

/// What a poller is told.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A client was let in and its queue pair stands ready to send; whether the client's does is
    /// not known yet.
    Prepared(Box<Prepared>),
    /// The client of a prepared connection can receive.
    Ready(LineKey),
    /// The TCP connection has ended, or the handshake has failed.
    Ended(LineKey, LineEnd),
    /// The device says that a queue pair has failed, outside any completion.
    QueuePairFailed(QpNum, DeviceEvent),
    /// What all connections of the lane share has failed.
    LaneFailed(Arc<LaneFailure>),
    /// A queue pair in error has taken its last receive from the shared queue, and completed it.
    LastReceiveTaken(QpNum),
}

/// A connection on its way to its poller.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// In ready-to-send.
    pub(crate) ready: Ready,
    /// The longest frame that the client takes.
    pub(crate) remote_frame_len: usize,
    /// What the core decided, with the client's place among the connections.
    pub(crate) admitted: Admitted,
    /// Held open for as long as the connection.
    pub(crate) line: Lifeline,
    /// Its name in later notices.
    pub(crate) key: LineKey,
}

/// How a TCP connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnd {
    /// End of file, or a reset: the peer's process closed it, or ended.
    Gone,
    /// Bytes came where there should be silence, or a keepalive.
    Bytes,
    /// The peer was asked whether it still runs, and has said nothing for this long.
    Silent(Duration),
}

/// Where notices are put, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    notices: Sender<Notice>,
    flag: Arc<Flag>,
    alarm: Arc<Alarm>,
}

/// Where the poller finds them.
#[derive(Debug)]
pub(crate) struct Inbox {
    notices: Receiver<Notice>,
    flag: Arc<Flag>,
}

/// On a cache line of its own: the channel beside it is written by others.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Flag(AtomicBool);

/// A mailbox and its inbox. Unbounded: its notices are bounded by the connections, a few for each, and one for the
/// end of them all.
///
/// Each notice rings the alarm of the poller, which may sleep.
pub(crate) fn mailbox(alarm: Arc<Alarm>) -> (Mailbox, Inbox) {
    let (sender, receiver) = crossbeam_channel::unbounded();
    let flag = Arc::new(Flag::default());
    (
        Mailbox {
            notices: sender,
            flag: Arc::clone(&flag),
            alarm,
        },
        Inbox {
            notices: receiver,
            flag,
        },
    )
}

impl Mailbox {
    /// Tells the poller; gives the notice back if the poller's transport is gone.
    pub(crate) fn put(&self, notice: Notice) -> Result<(), Notice> {
        self.notices.send(notice).map_err(|error| error.0)?;
        // After the notice is in the channel: who sees the flag finds the notice.
        self.flag.0.store(true, Ordering::Release);
        // After the flag: a poller that is woken, or does not fall asleep because of it, looks at the
        // flag next.
        self.alarm.ring();
        Ok(())
    }
}

impl Inbox {
    /// Whether there may be notices. One load of a line that is written for each notice only.
    #[inline]
    pub(crate) fn is_flagged(&self) -> bool {
        self.flag.0.load(Ordering::Relaxed)
    }

    /// The next notice, lowering the flag when there is none.
    pub(crate) fn take(&self) -> Option<Notice> {
        // Lowered before looking: a notice put after the look raises the flag again, so that none
        // is left behind a lowered flag. The Acquire pairs with the Release in `put`.
        self.flag.0.swap(false, Ordering::AcqRel);
        let notice = self.notices.try_recv().ok();
        if notice.is_some() {
            // There may be more behind it.
            self.flag.0.store(true, Ordering::Relaxed);
        }
        notice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(notice: Option<Notice>) -> Option<LineKey> {
        match notice? {
            Notice::Ready(key) => Some(key),
            other => panic!("{other:?} was not put"),
        }
    }

    #[test]
    fn notices_come_in_order_and_the_flag_is_lowered_behind_the_last() {
        let (mailbox, inbox) = mailbox(Alarm::new().unwrap());
        assert!(!inbox.is_flagged());
        let keys = [LineKey::next(), LineKey::next()];
        for key in keys {
            mailbox.put(Notice::Ready(key)).unwrap();
        }
        for key in keys {
            assert!(inbox.is_flagged());
            assert_eq!(key_of(inbox.take()), Some(key));
        }
        assert!(inbox.take().is_none());
        assert!(!inbox.is_flagged());
    }

    #[test]
    fn what_is_put_for_nobody_comes_back() {
        let (mailbox, inbox) = mailbox(Alarm::new().unwrap());
        drop(inbox);
        let key = LineKey::next();
        assert_eq!(key_of(mailbox.put(Notice::Ready(key)).err()), Some(key));
    }

    /// Whenever a notice is put, beside a poller that takes at any moment: the flag never stays low
    /// above a notice.
    #[test]
    fn no_notice_is_left_behind_a_lowered_flag() {
        let (mailbox, inbox) = mailbox(Alarm::new().unwrap());
        const COUNT: u64 = 20_000;
        let sender = std::thread::spawn(move || {
            for number in 0..COUNT {
                mailbox.put(Notice::Ready(LineKey(number))).unwrap();
            }
        });
        let mut next = 0;
        while next < COUNT {
            // Only the flag is asked, as a poller does.
            if inbox.is_flagged() {
                while let Some(key) = key_of(inbox.take()) {
                    assert_eq!(key, LineKey(next));
                    next += 1;
                }
            } else if sender.is_finished() && !inbox.is_flagged() {
                panic!("{next} of {COUNT} notices came, and the flag is low");
            }
        }
        sender.join().unwrap();
    }
}
