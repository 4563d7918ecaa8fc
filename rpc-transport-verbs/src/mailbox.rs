//! What other threads tell a poller, and how it hears of it for the price of one load.
//!
//! The control thread and the async-event thread put a [`Notice`] into the poller's [`Inbox`] and
//! raise a flag. The poller looks at the flag on every poll; as nobody writes it between notices, the
//! line stays in the poller's cache.

use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};
use rpc_core::transport::Admitted;

use crate::queue_pairs::Ready;
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
    QueuePairFailed(QpNum),
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
    pub(crate) line: Arc<TcpStream>,
    /// Its name in later notices.
    pub(crate) key: LineKey,
}

/// How a TCP connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnd {
    /// End of file, or a reset: the peer's process closed it, or ended.
    Gone,
    /// Bytes came where there should be silence.
    Bytes,
}

/// A byte came on the liveness channel, where the protocol wants silence.
#[derive(Debug, thiserror::Error)]
#[error("the peer sent bytes on its TCP connection after the handshake, where silence is kept")]
pub(crate) struct BytesOutOfPlace;

/// Where notices are put, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    notices: Sender<Notice>,
    flag: Arc<Flag>,
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

/// A mailbox and its inbox. Unbounded: its notices are bounded by the connections, a few for each.
pub(crate) fn mailbox() -> (Mailbox, Inbox) {
    let (sender, receiver) = crossbeam_channel::unbounded();
    let flag = Arc::new(Flag::default());
    (
        Mailbox {
            notices: sender,
            flag: Arc::clone(&flag),
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
