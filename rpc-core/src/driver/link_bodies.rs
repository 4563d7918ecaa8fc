//! [`LinkBodies`]: the long messages of one connection.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::held_memory::Account;
use super::table::table_key;
use crate::protocol::frame::{CallId, TransferId};

table_key! {
    /// Identifies a long message that this poller sends.
    TransferKey
}
table_key! {
    /// Identifies a long message that this poller receives.
    IncomingKey
}

/// Who has got the last credit of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LastCredit {
    #[default]
    Others,
    Pieces,
}

/// The long messages of one connection.
#[derive(Debug, Default)]
pub(crate) struct LinkBodies {
    /// Those that this side sends.
    pub(super) outgoing: Vec<TransferKey>,
    /// Grows whenever a piece of a message, or a frame of a stream, finds a credit.
    pub(super) credits_seen: u64,
    /// Who has got the last credit.
    pub(super) last_credit: LastCredit,
    /// Those that this side receives, or about which it still owes the sender an entry.
    pub(super) incoming: BTreeMap<TransferId, IncomingKey>,
    /// Of these, the requests, and the responses to unary calls, that are wanted, by the number of their
    /// call. A control frame may cancel hundreds of calls.
    pub(super) by_call: BTreeMap<u32, IncomingKey>,
    /// The latest messages that this side has ended: it has abandoned them, or sent all of their
    /// fragments. Their receiver may have sent an entry before it knew.
    pub(super) ended: VecDeque<TransferId>,
    /// Bytes that the peer may read.
    pub(super) exposed: u64,
    /// The pieces that they are in.
    pub(super) exposed_pieces: usize,
    /// Bytes of messages that are being received, which have memory.
    pub(super) receiving: u64,
    /// Segments that have been read, of all messages. The device executes READs in order, so no READ
    /// that is outstanding makes progress while this stays the same.
    pub(super) segments_read: u64,
    /// Bytes that have arrived, of all messages.
    pub(super) arrived: u64,
    /// Bytes that the peer has sent or described, of all messages.
    pub(super) announced: u64,
    /// Bytes of received messages that the application keeps. `None` before the first message.
    pub(super) account: Option<Arc<Account>>,
    /// Of `receiving` and of `account`, bytes of messages of streams that were fetched ahead of their
    /// readers.
    pub(super) read_ahead: Arc<AtomicU64>,
}

impl LinkBodies {
    /// Returns the request of a call, or the response to a unary call, that this side receives and
    /// wants.
    pub(super) fn incoming_of(&self, call: CallId) -> Option<IncomingKey> {
        self.by_call.get(&call.0).copied()
    }
}
