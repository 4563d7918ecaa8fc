//! A queue pair's TCP connection: how far each of its two streams of bytes has come.
//!
//! The link works as a reliable connection of verbs does, without what TCP does already. Requests
//! have sequence numbers and are acknowledged. If a request finds no receive, its bytes are
//! discarded, an RNR NAK answers it, and it is sent again later with all requests behind it. So a
//! receiver never stops reading, and responses and acknowledgements never wait behind a message
//! that has no receive.

use std::collections::VecDeque;

use super::link_stream::LinkStream;
use super::responder::Placement;
use crate::member_list::Listed;
use crate::provider::soft::wire::header::{EncodedHeader, MAX_LEN};
use crate::types::{QpNum, RemoteMemory};

/// A queue pair's TCP connection.
#[derive(Debug)]
pub(crate) struct TcpLink {
    pub(crate) stream: LinkStream,
    pub(crate) phase: Phase,
    /// What the context's epoll set calls it, once it has the link.
    pub(super) token: LinkToken,
    /// Which lists of [`TcpLinks`](super::tcp_links::TcpLinks) it is in.
    pub(crate) listed: Listed,
    /// The context's epoll set does not tell when the link can be read from, because polls read it
    /// in any case. Every message would be told to the set otherwise, at the cost of its sender.
    pub(crate) is_silent: bool,
    pub(crate) outbound: Outbound,
    pub(crate) inbound: Inbound,
}

/// The queue pair of a link, as the context's epoll set names it. The index may belong to another queue
/// pair when an event is read; a number is used again only after a long time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkToken {
    pub(crate) qp_index: u32,
    pub(crate) qp_num: QpNum,
}

/// How far the set-up of a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// This side has dialed, and the answer has not arrived completely.
    Dialed,
    Open {
        /// The sequence number of the first request that the peer expects.
        expected_psn: u32,
    },
    /// The connection has ended. The queue pair fails when its retries are used up, as with a peer
    /// that does not respond.
    Ended,
}

/// The messages to the peer.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    /// The sequence number of the first request.
    first: u64,
    /// The sequence number of the next request to begin.
    pub(crate) next: u64,
    /// The oldest request that the peer has not acknowledged.
    pub(crate) acked: u64,
    /// The message of which the socket has taken only a part.
    pub(crate) partial: Option<Partial>,
    /// Responses that the peer waits for, in the order of its requests.
    pub(crate) responses: VecDeque<Response>,
    /// The socket takes no more at the moment.
    pub(crate) is_blocked: bool,
    /// The request from which on all are to be sent again, once the one is whole that is being sent.
    pub(crate) rewind_to: Option<u64>,
}

/// A message of which the socket has taken a part.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) kind: PartialKind,
    pub(crate) header: EncodedHeader,
    /// Bytes of header and payload that the socket has taken.
    pub(crate) written: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartialKind {
    /// The next request to begin.
    Request,
    /// The first of the responses.
    Response,
    Ack,
}

/// A response that the peer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    /// Bytes of this memory, of which the socket has taken `sent`.
    Read {
        sequence: u32,
        memory: RemoteMemory,
        len: u32,
        sent: u32,
    },
    Atomic {
        sequence: u32,
        was: [u8; 8],
    },
    ReceiverNotReady {
        sequence: u32,
        timer: u8,
    },
    Refused {
        sequence: u32,
        status: u8,
    },
}

/// The messages of the peer.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// The sequence number of the first request.
    first: u64,
    /// The sequence number of the request that is to come next.
    pub(crate) expected: u64,
    /// The value of `expected` that the peer knows.
    pub(crate) acknowledged: u64,
    /// The peer waits for the acknowledgement.
    pub(crate) is_ack_requested: bool,
    /// Looks at the links since an acknowledgement is due.
    pub(crate) looks_with_ack_due: u8,
    /// The request at `expected` was answered by an RNR NAK: those behind it are discarded.
    pub(crate) is_refusing: bool,
    /// The payload of the last message was long.
    pub(crate) was_long: bool,
    /// A header of which only a part has arrived.
    pub(crate) stash: [u8; MAX_LEN],
    pub(crate) stash_len: usize,
    /// The message whose payload is arriving.
    pub(crate) arriving: Option<Arriving>,
}

/// A message whose header has arrived, and not all of its payload.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) len: u32,
    pub(crate) arrived: u32,
    pub(crate) target: Target,
}

/// What a payload belongs to.
#[derive(Debug)]
pub(crate) enum Target {
    /// A request of the peer.
    Request(Placement),
    /// The destination of a READ or atomic, by its number in the send queue.
    Response { number: u64 },
    /// The message is not executed.
    Nowhere,
}

impl LinkToken {
    pub(super) fn encode(self) -> u64 {
        u64::from(self.qp_num.0) << 32 | u64::from(self.qp_index)
    }

    pub(super) fn decode(data: u64) -> Self {
        Self {
            // The cast takes the lower half.
            qp_index: data as u32,
            qp_num: QpNum((data >> 32) as u32),
        }
    }
}

impl Inbound {
    /// Returns the number of the request of which only a part has arrived. What this side has asked
    /// for, such as the bytes of a READ, may be long.
    pub(crate) fn arriving_request(&self) -> Option<u64> {
        let arriving = self.arriving.as_ref();
        let is_response =
            arriving.is_some_and(|arriving| matches!(arriving.target, Target::Response { .. }));
        let is_partial = self.stash_len > 0 || arriving.is_some();
        (is_partial && !is_response).then_some(self.expected)
    }
}

impl Outbound {
    /// Returns the sequence number of the first request.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Returns true if the socket has taken a part of a request.
    pub(crate) fn is_writing_request(&self) -> bool {
        let partial = self.partial.as_ref();
        partial.is_some_and(|partial| partial.kind == PartialKind::Request)
    }

    /// Returns true if bytes of requested READs have not been taken from memory yet.
    pub(crate) fn awaits_reads(&self) -> bool {
        let is_read = |response: &Response| matches!(response, Response::Read { .. });
        self.responses.iter().any(is_read)
    }
}

impl TcpLink {
    /// Creates the link whose bytes are `stream`. `peer_psn` is the sequence number of the first
    /// request that the peer expects, if its answer has arrived; `own_psn` is that which this side
    /// expects.
    pub(crate) fn new(stream: LinkStream, peer_psn: Option<u32>, own_psn: u32) -> Self {
        let expected = u64::from(own_psn);
        let mut link = Self {
            stream,
            phase: Phase::Dialed,
            token: LinkToken {
                qp_index: u32::MAX,
                qp_num: QpNum(0),
            },
            listed: Listed::default(),
            is_silent: false,
            outbound: Outbound::default(),
            inbound: Inbound {
                first: expected,
                expected,
                acknowledged: expected,
                is_ack_requested: false,
                looks_with_ack_due: 0,
                is_refusing: false,
                was_long: false,
                stash: [0; MAX_LEN],
                stash_len: 0,
                arriving: None,
            },
        };
        if let Some(peer_psn) = peer_psn {
            link.open(peer_psn);
        }
        link
    }

    /// Returns true if the epoll set waits until the link can be written to.
    pub(crate) fn is_watched_for_writing(&self) -> bool {
        self.outbound.is_blocked && !self.stream.is_to_itself()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }

    /// Records the sequence number of the first request that the peer expects: now requests can be
    /// sent.
    pub(crate) fn open(&mut self, expected_psn: u32) {
        self.phase = Phase::Open { expected_psn };
        self.outbound.first = u64::from(expected_psn);
        self.outbound.next = u64::from(expected_psn);
        self.outbound.acked = u64::from(expected_psn);
    }

    /// Returns the sequence number of the first request that the peer expects, once it is known.
    pub(crate) fn expected_psn(&self) -> Option<u32> {
        match self.phase {
            Phase::Open { expected_psn } => Some(expected_psn),
            Phase::Dialed | Phase::Ended => None,
        }
    }

    /// Returns true if the peer has not been told of everything that was executed.
    pub(crate) fn owes_ack(&self) -> bool {
        self.inbound.acknowledged < self.inbound.expected
    }

    /// Returns true if the peer has to do something next: to acknowledge a request all of which the
    /// socket has taken.
    pub(crate) fn awaits_ack(&self) -> bool {
        self.outbound.acked < self.outbound.next
    }

    /// Answers the request that is to come next, for which no receive is posted, with an RNR NAK.
    pub(crate) fn push_rnr_nak(&mut self, timer: u8) {
        self.inbound.is_refusing = true;
        let nak = Response::ReceiverNotReady {
            // The cast takes the lower bits, as on the wire.
            sequence: self.inbound.expected as u32,
            timer,
        };
        // A peer that repeats the request without waiting for the answer gets one.
        if !self.outbound.responses.contains(&nak) {
            self.outbound.responses.push_back(nak);
        }
    }

    /// Returns true if nothing was sent or received since the link was opened.
    pub(crate) fn is_unused(&self) -> bool {
        let (outbound, inbound) = (&self.outbound, &self.inbound);
        outbound.next == outbound.first
            && outbound.partial.is_none()
            && inbound.expected == inbound.first
            && inbound.stash_len == 0
            && inbound.arriving.is_none()
    }
}

/// Returns the full sequence number whose lower bits are `low`: the one closest to `near`.
pub(crate) fn extended(low: u32, near: u64) -> u64 {
    // The cast takes the lower bits; the difference is the signed distance.
    let distance = low.wrapping_sub(near as u32) as i32;
    near.wrapping_add_signed(i64::from(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_keeps_its_queue_pair() {
        let token = LinkToken {
            qp_index: u32::MAX - 1,
            qp_num: QpNum(0x00ab_cdef),
        };
        assert_eq!(LinkToken::decode(token.encode()), token);
    }

    #[test]
    fn a_sequence_number_is_extended_to_the_closest() {
        assert_eq!(extended(5, 7), 5);
        assert_eq!(extended(9, 7), 9);
        let far = (3 << 32) - 2;
        assert_eq!(extended(3, far), (3 << 32) + 3);
        assert_eq!(extended(u32::MAX, (3 << 32) + 1), (3 << 32) - 1);
    }
}
