//! What the device says of a work request that has ended.

use std::fmt;

use super::keys::RemoteKey;
use super::queue_pair_attributes::QpNum;
use super::wr_id::WrId;

/// One work completion (`struct ibv_wc`). Claiming its memory consumes it, so that this can happen only
/// once.
#[derive(Debug)]
pub struct WorkCompletion {
    // Small, since it is moved a few times for each message: numbers, whose types are made when asked for.
    pub(crate) wr_id: WrId,
    /// One of `enum ibv_wc_status`.
    pub(crate) status: u32,
    pub(crate) qp_num: QpNum,
    pub(crate) byte_len: u32,
    /// The immediate, or the key that was invalidated: `extras` says which.
    pub(crate) data: u32,
    /// Of a datagram.
    pub(crate) src_qp: u32,
    pub(crate) opcode: CompletionOpcode,
    pub(crate) extras: Extras,
}

/// What a completion has besides the usual. The bits are this layer's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras(pub(crate) u8);

impl Extras {
    pub(crate) const SOLICITED: u8 = 1;
    pub(crate) const IMMEDIATE: u8 = 2;
    pub(crate) const INVALIDATED: u8 = 4;
    pub(crate) const GLOBAL_ROUTE: u8 = 8;
    /// Of a datagram: `src_qp` is valid.
    pub(crate) const SOURCE: u8 = 16;

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

impl WorkCompletion {
    /// The work request that has ended.
    pub fn wr_id(&self) -> WrId {
        self.wr_id
    }

    /// How it ended.
    pub fn status(&self) -> CompletionStatus {
        CompletionStatus::from_code(self.status)
    }

    /// The number of how it ended, for those who may not need the rest.
    pub(crate) fn status_code(&self) -> u32 {
        self.status
    }

    /// Whether it ended well.
    pub fn is_success(&self) -> bool {
        self.status == 0
    }

    /// The queue pair of this side. It may have been destroyed since.
    pub fn qp_num(&self) -> QpNum {
        self.qp_num
    }

    /// What it was: only a success says so ([`WrId::kind`] tells a failed send from a receive).
    pub fn opcode(&self) -> Option<CompletionOpcode> {
        self.is_success().then_some(self.opcode)
    }

    /// Bytes received, or read by an RDMA READ or an atomic; 0 for a send and for whatever failed. Of a
    /// WRITE with immediate, the bytes that it wrote. Of a datagram, with the 40 bytes before the message.
    pub fn byte_len(&self) -> usize {
        if self.is_success() {
            self.byte_len as usize
        } else {
            0
        }
    }

    /// Bytes that came into the receive itself: those of a WRITE with immediate are elsewhere.
    #[inline]
    pub(crate) fn len_in_receive(&self) -> usize {
        if self.opcode == CompletionOpcode::ReceiveRdmaWithImm {
            0
        } else {
            self.byte_len()
        }
    }

    /// Whether the sender of a received message asked for the receiver's attention. Kernel verbs do not
    /// say.
    pub fn solicited(&self) -> bool {
        self.has(Extras::SOLICITED)
    }

    /// The 32 bits that came with a message.
    pub fn imm(&self) -> Option<u32> {
        self.has(Extras::IMMEDIATE).then_some(self.data)
    }

    /// The key of this side that a message took away.
    pub fn invalidated(&self) -> Option<RemoteKey> {
        self.has(Extras::INVALIDATED)
            .then_some(RemoteKey(self.data))
    }

    /// The queue pair that a datagram came from.
    pub fn src_qp(&self) -> Option<QpNum> {
        self.has(Extras::SOURCE).then_some(QpNum(self.src_qp))
    }

    /// Whether the first 40 bytes of a received datagram hold its global route header. Without one they
    /// hold nothing.
    pub fn has_global_route(&self) -> bool {
        self.has(Extras::GLOBAL_ROUTE)
    }

    fn has(&self, bit: u8) -> bool {
        self.is_success() && self.extras.has(bit)
    }
}

/// What a successful work request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionOpcode {
    /// A message was sent.
    Send,
    /// Bytes were written to the peer.
    RdmaWrite,
    /// Bytes of the peer were read.
    RdmaRead,
    /// A number of the peer was compared, and exchanged if equal.
    CompareAndSwap,
    /// A number of the peer was added to.
    FetchAndAdd,
    /// A memory window was bound.
    BindWindow,
    /// A key was invalidated.
    LocalInvalidate,
    /// A message was received.
    Receive,
    /// A WRITE with immediate was received: it has taken a receive and left its bytes alone.
    ReceiveRdmaWithImm,
    /// Another operation, by its number in `enum ibv_wc_opcode`; 255 for a number that does not fit.
    // A byte, so that a completion stays as small as it is: it is moved a few times for each message.
    Other(u8),
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $verbs:literal, $meaning:literal;)*) => {
        /// How a work request ended, with the numbers of `enum ibv_wc_status`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum CompletionStatus {
            $(#[doc = concat!("`", $verbs, "`: ", $meaning, ".")] $name,)*
            /// A number that is newer than this layer.
            Unknown(u32),
        }

        impl CompletionStatus {
            /// Every status that has a name.
            pub const NAMED: &'static [Self] = &[$(Self::$name),*];

            /// The status with this number.
            pub fn from_code(code: u32) -> Self {
                match code {
                    $($code => Self::$name,)*
                    unknown => Self::Unknown(unknown),
                }
            }

            /// The number.
            pub fn code(self) -> u32 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Unknown(code) => code,
                }
            }

            /// What it means, for a person.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                    Self::Unknown(_) => "a status that this version does not know",
                }
            }

            /// Its name in `enum ibv_wc_status`, without the prefix: `LOC_LEN_ERR`.
            pub fn verbs_name(self) -> &'static str {
                match self {
                    $(Self::$name => $verbs,)*
                    Self::Unknown(_) => "IBV_WC_?",
                }
            }
        }
    };
}

statuses! {
    Success = 0, "SUCCESS", "the request was carried out";
    LocalLength = 1, "LOC_LEN_ERR", "a message was longer than the receive posted for it, or longer than the port takes";
    LocalQpOperation = 2, "LOC_QP_OP_ERR", "the queue pair cannot do what was asked";
    LocalEeContext = 3, "LOC_EEC_OP_ERR", "an end-to-end context failed here";
    LocalProtection = 4, "LOC_PROT_ERR", "the local key, range or access rights do not permit it";
    WorkRequestFlushed = 5, "WR_FLUSH_ERR", "the queue pair was in error before the request was carried out, or while it was: the peer may have seen it";
    MemoryWindowBind = 6, "MW_BIND_ERR", "a memory window could not be bound";
    BadResponse = 7, "BAD_RESP_ERR", "the peer's device answered something unexpected";
    LocalAccess = 8, "LOC_ACCESS_ERR", "a peer's request failed a protection check here";
    RemoteInvalidRequest = 9, "REM_INV_REQ_ERR", "the peer refused the request: longer than its receive, or not permitted";
    RemoteAccess = 10, "REM_ACCESS_ERR", "the peer's memory does not permit it";
    RemoteOperation = 11, "REM_OP_ERR", "the peer failed while it carried the request out";
    RetryExceeded = 12, "RETRY_EXC_ERR", "the peer did not answer: its process has ended, or its queue pair is not ready to receive";
    RnrRetryExceeded = 13, "RNR_RETRY_EXC_ERR", "the peer had no receive posted, for longer than the retries last";
    LocalRddViolation = 14, "LOC_RDD_VIOL_ERR", "the reliable datagram domains differ";
    RemoteInvalidRdRequest = 15, "REM_INV_RD_REQ_ERR", "the peer refused a reliable datagram";
    RemoteAborted = 16, "REM_ABORT_ERR", "the peer aborted the request";
    InvalidEecn = 17, "INV_EECN_ERR", "no such end-to-end context";
    InvalidEecState = 18, "INV_EEC_STATE_ERR", "the end-to-end context is in the wrong state";
    Fatal = 19, "FATAL_ERR", "the device has failed";
    ResponseTimeout = 20, "RESP_TIMEOUT_ERR", "no response in time";
    General = 21, "GENERAL_ERR", "the device failed for another reason";
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}): {}",
            self.verbs_name(),
            self.code(),
            self.meaning()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_verbs_header_without_a_gap() {
        for (code, status) in CompletionStatus::NAMED.iter().enumerate() {
            let code = u32::try_from(code).expect("22 statuses");
            assert_eq!(status.code(), code);
            assert_eq!(CompletionStatus::from_code(code), *status);
        }
        assert_eq!(CompletionStatus::NAMED.len(), 22);
    }

    #[test]
    fn a_number_from_the_future_is_kept() {
        let status = CompletionStatus::from_code(77);
        assert_eq!(status, CompletionStatus::Unknown(77));
        assert_eq!(status.code(), 77);
        assert!(status.to_string().contains("77"), "{status}");
    }
}
