//! What the device says of a work request that has ended.

use std::fmt;

use super::queue_pair_attributes::QpNum;
use super::wr_id::WrId;

/// One work completion. Claiming its slot consumes it, so that this can happen only once.
#[derive(Debug)]
pub struct WorkCompletion {
    wr_id: WrId,
    status: CompletionStatus,
    qp_num: QpNum,
    opcode: CompletionOpcode,
    byte_len: u32,
    solicited: bool,
}

impl WorkCompletion {
    pub(crate) fn new(
        wr_id: WrId,
        status: CompletionStatus,
        qp_num: QpNum,
        opcode: CompletionOpcode,
        byte_len: u32,
        solicited: bool,
    ) -> Self {
        Self {
            wr_id,
            status,
            qp_num,
            opcode,
            byte_len,
            solicited,
        }
    }

    /// The work request that has ended.
    pub fn wr_id(&self) -> WrId {
        self.wr_id
    }

    /// How it ended.
    pub fn status(&self) -> CompletionStatus {
        self.status
    }

    /// Whether it ended well.
    pub fn is_success(&self) -> bool {
        self.status == CompletionStatus::Success
    }

    /// The queue pair of this side. It may have been destroyed since.
    pub fn qp_num(&self) -> QpNum {
        self.qp_num
    }

    /// What it was: only a success says so ([`WrId::kind`] tells a failed send from a receive).
    pub fn opcode(&self) -> Option<CompletionOpcode> {
        self.is_success().then_some(self.opcode)
    }

    /// Bytes received; 0 for a send and for whatever failed.
    pub fn byte_len(&self) -> usize {
        if self.is_success() {
            self.byte_len as usize
        } else {
            0
        }
    }

    /// Whether the sender of a received message asked for the receiver's attention.
    pub fn solicited(&self) -> bool {
        self.is_success() && self.solicited
    }
}

/// What a successful work request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionOpcode {
    /// A message was sent.
    Send,
    /// A message was received.
    Receive,
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

            fn verbs_name(self) -> &'static str {
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
