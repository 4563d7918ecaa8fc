//! Work completions: the device's report on a work request that has ended.

use std::fmt;

use super::keys::RemoteKey;
use super::queue_pair_attributes::QpNum;
use super::wr_id::WrId;

/// A work completion (`struct ibv_wc`, `ibv_poll_cq(3)`). Claiming the request's memory consumes
/// it, so that memory is claimed only once.
#[derive(Debug)]
pub struct WorkCompletion {
    // Kept small, since each message moves it a few times: fields are plain numbers, converted to
    // their types on access.
    pub(crate) wr_id: WrId,
    /// A value of `enum ibv_wc_status`.
    pub(crate) status: u32,
    pub(crate) qp_num: QpNum,
    pub(crate) byte_len: u32,
    /// The immediate, or the invalidated key; `extras` determines which.
    pub(crate) data: u32,
    /// The source of a datagram.
    pub(crate) src_qp: u32,
    pub(crate) opcode: CompletionOpcode,
    pub(crate) extras: Extras,
}

/// Flags for the optional fields of a completion. The bits are private to this layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras(pub(crate) u8);

impl Extras {
    pub(crate) const SOLICITED: u8 = 1;
    pub(crate) const IMMEDIATE: u8 = 2;
    pub(crate) const INVALIDATED: u8 = 4;
    pub(crate) const GLOBAL_ROUTE: u8 = 8;
    /// `src_qp` is valid (datagrams only).
    pub(crate) const SOURCE: u8 = 16;

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

impl WorkCompletion {
    /// A place for a completion.
    pub(crate) const EMPTY: Self = Self {
        wr_id: WrId::NONE,
        status: 0,
        qp_num: QpNum(0),
        byte_len: 0,
        data: 0,
        src_qp: 0,
        opcode: CompletionOpcode::Send,
        extras: Extras(0),
    };

    /// Returns the id of the work request that has ended.
    #[inline]
    pub fn wr_id(&self) -> WrId {
        self.wr_id
    }

    /// Returns the request's status.
    pub fn status(&self) -> CompletionStatus {
        CompletionStatus::from_code(self.status)
    }

    /// Returns the status as a number, without converting it.
    #[inline]
    #[doc(hidden)]
    pub fn status_code(&self) -> u32 {
        self.status
    }

    /// Returns true if the request succeeded.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.status == 0
    }

    /// Returns the number of the local queue pair. It may have been destroyed since.
    #[inline]
    pub fn qp_num(&self) -> QpNum {
        self.qp_num
    }

    /// Returns the operation of a successful request. A failed request has none; [`WrId::kind`]
    /// distinguishes a failed send from a failed receive.
    pub fn opcode(&self) -> Option<CompletionOpcode> {
        self.is_success().then_some(self.opcode)
    }

    /// Returns the number of bytes received, or read by an RDMA READ or an atomic. For a WRITE with
    /// immediate, this is the number of bytes that it wrote. For a datagram, it includes the 40
    /// bytes before the message. 0 for a send and for every failed request.
    pub fn byte_len(&self) -> usize {
        if self.is_success() {
            self.byte_len as usize
        } else {
            0
        }
    }

    /// Returns the number of bytes written into the receive itself, which is 0 for a WRITE with
    /// immediate.
    #[inline]
    pub(crate) fn len_in_receive(&self) -> usize {
        if self.opcode == CompletionOpcode::ReceiveRdmaWithImm || !self.is_success() {
            0
        } else {
            self.byte_len as usize
        }
    }

    /// Returns true if the sender of a received message requested a solicited event. Kernel verbs
    /// do not report it.
    pub fn solicited(&self) -> bool {
        self.has(Extras::SOLICITED)
    }

    /// Returns the immediate, 32 bits that arrived with a message.
    pub fn imm(&self) -> Option<u32> {
        self.has(Extras::IMMEDIATE).then_some(self.data)
    }

    /// Returns the local key that a received message invalidated.
    pub fn invalidated(&self) -> Option<RemoteKey> {
        self.has(Extras::INVALIDATED)
            .then_some(RemoteKey(self.data))
    }

    /// Returns the queue pair number of a datagram's sender.
    pub fn src_qp(&self) -> Option<QpNum> {
        self.has(Extras::SOURCE).then_some(QpNum(self.src_qp))
    }

    /// Returns true if the first 40 bytes of a received datagram hold its global route header. If
    /// false, their content is undefined.
    pub fn has_global_route(&self) -> bool {
        self.has(Extras::GLOBAL_ROUTE)
    }

    fn has(&self, bit: u8) -> bool {
        self.is_success() && self.extras.has(bit)
    }
}

/// The operation of a successful work request (`enum ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionOpcode {
    /// A message was sent.
    Send,
    /// An RDMA WRITE to the peer.
    RdmaWrite,
    /// An RDMA READ from the peer.
    RdmaRead,
    /// An atomic compare-and-swap on a number of the peer.
    CompareAndSwap,
    /// An atomic fetch-and-add on a number of the peer.
    FetchAndAdd,
    /// A memory window was bound.
    BindWindow,
    /// A key was invalidated.
    LocalInvalidate,
    /// A message was received.
    Receive,
    /// A WRITE with immediate was received. It consumed a receive and left its bytes unchanged.
    ReceiveRdmaWithImm,
    /// An operation unknown to this layer, by its number in `enum ibv_wc_opcode`; 255 for a number
    /// that does not fit.
    // A byte, so that a completion stays small: each message moves it a few times.
    Other(u8),
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $verbs:literal, $meaning:literal;)*) => {
        /// Status of a work request that has ended (`enum ibv_wc_status`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum CompletionStatus {
            $(#[doc = concat!("`", $verbs, "`: ", $meaning, ".")] $name,)*
            /// A status unknown to this layer, by its number.
            Unknown(u32),
        }

        impl CompletionStatus {
            /// All statuses that have a name.
            pub const NAMED: &'static [Self] = &[$(Self::$name),*];

            /// Returns the status with this number.
            pub fn from_code(code: u32) -> Self {
                match code {
                    $($code => Self::$name,)*
                    unknown => Self::Unknown(unknown),
                }
            }

            /// Returns the number.
            pub fn code(self) -> u32 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Unknown(code) => code,
                }
            }

            /// Returns a description for people.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                    Self::Unknown(_) => "a status that this version does not know",
                }
            }

            /// Returns the name in `enum ibv_wc_status`, without the prefix: `LOC_LEN_ERR`.
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

impl CompletionStatus {
    /// Returns the status with which a responder refuses a request; `None` if none refuses so.
    pub(crate) fn of_refusal(code: u8) -> Option<Self> {
        let status = Self::from_code(u32::from(code));
        let is_of_responder = matches!(
            status,
            Self::RemoteInvalidRequest | Self::RemoteAccess | Self::RemoteOperation
        );
        is_of_responder.then_some(status)
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

    /// Above all, no refusal completes a request successfully.
    #[test]
    fn a_peer_refuses_with_the_statuses_of_responders_only() {
        let refusals: Vec<_> = (0..=u8::MAX)
            .filter_map(CompletionStatus::of_refusal)
            .collect();
        let expected = [
            CompletionStatus::RemoteInvalidRequest,
            CompletionStatus::RemoteAccess,
            CompletionStatus::RemoteOperation,
        ];
        assert_eq!(refusals, expected);
    }
}
