//! The header of a message between two queue pairs on a TCP link.
//!
//! ```text
//!  0       1      2            3       4      8           12     16
//! ┌───────┬──────┬────────────┬───────┬──────┬───────────┬──────┬──────┐
//! │opcode │flags │outstanding │ code  │ len  │ sequence  │acked │ data │  every message
//! └───────┴──────┴────────────┴───────┴──────┴───────────┴──────┴──────┘
//!  20       28     32
//! ┌────────┬──────┬──────────────────────────┐
//! │address │ key  │ of an atomic: 2 operands │  WRITEs, READs and atomics
//! └────────┴──────┴──────────────────────────┘
//! ```
//!
//! * `len` is the number of payload bytes after the header.
//! * `sequence` is a request's packet sequence number, extended to 32 bits, or that of the request
//!   that is responded to. Requests of one direction are numbered without gaps.
//! * `acked` is the sequence number of the request that the sender of this message expects next: it
//!   acknowledges all before it.
//! * `outstanding` counts the READs and atomics in flight, including this one.
//! * `code` is the timer of an RNR NAK, or the status of a fatal one.
//! * `data` is an immediate, the key to invalidate, or the length of a READ.

use crate::provider::soft::capacities::MAX_MESSAGE_LEN;
use crate::types::{RemoteKey, RemoteMemory, RemoteOperation};

/// Length in bytes of the part that every header has.
pub(crate) const BASE_LEN: usize = 20;
/// Length in bytes of a remote address and key.
const REMOTE_LEN: usize = 12;
/// Length in bytes of the longest header, which is that of an atomic.
pub(crate) const MAX_LEN: usize = BASE_LEN + REMOTE_LEN + 16;

const SOLICITED: u8 = 1;
const ACK_REQUESTED: u8 = 2;

/// The header of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) message: Message,
    /// Bytes of payload after the header.
    pub(crate) len: u32,
    pub(crate) sequence: u32,
    pub(crate) acked: u32,
}

/// The kinds of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Request(Request),
    /// Bytes of a READ, or the previous value of an atomic.
    Response,
    /// Nothing but `acked`.
    Ack,
    /// The request needs a receive, and none is posted: the code of the time to wait.
    ReceiverNotReady {
        timer: u8,
    },
    /// The request was refused, with the code of a status, and the queue pair has failed.
    Refused {
        status: u8,
    },
}

/// A request to the queue pair at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) operation: RemoteOperation,
    /// The length in bytes of a READ; 0 for all others.
    pub(crate) read_len: u32,
    /// READs and atomics in flight, including this one.
    pub(crate) outstanding: u8,
    pub(crate) is_solicited: bool,
    /// The sender waits for the acknowledgement, and not for a response only.
    pub(crate) is_ack_requested: bool,
}

/// Bytes that no queue pair of this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidHeader;

/// An encoded header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodedHeader {
    bytes: [u8; MAX_LEN],
    len: u8,
}

impl EncodedHeader {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the header's `acked`.
    pub(crate) fn acked(&self) -> u32 {
        let [_, _, _, _, _, _, _, _, _, _, _, _, a, b, c, d, ..] = self.bytes;
        u32::from_le_bytes([a, b, c, d])
    }
}

/// Returns the length in bytes of the header with this opcode.
fn len_of(opcode: u8) -> Result<usize, InvalidHeader> {
    match opcode {
        0..=2 | 8..=11 => Ok(BASE_LEN),
        3..=5 => Ok(BASE_LEN + REMOTE_LEN),
        6 | 7 => Ok(MAX_LEN),
        _ => Err(InvalidHeader),
    }
}

impl Header {
    // Inlined, as `parse` is: every message over TCP passes both, and the compiler decides otherwise now
    // and then.
    #[inline(always)]
    pub(crate) fn encode(&self) -> EncodedHeader {
        let mut bytes = [0; MAX_LEN];
        let mut remote = None;
        let mut operands = [0, 0];
        let (mut flags, mut outstanding, mut code, mut data) = (0, 0, 0, 0);
        let opcode = match self.message {
            Message::Request(request) => {
                outstanding = request.outstanding;
                flags |= if request.is_solicited { SOLICITED } else { 0 };
                flags |= if request.is_ack_requested {
                    ACK_REQUESTED
                } else {
                    0
                };
                match request.operation {
                    RemoteOperation::Send => 0,
                    RemoteOperation::SendWithImm(imm) => {
                        data = imm;
                        1
                    }
                    RemoteOperation::SendWithInvalidate(key) => {
                        data = key.0;
                        2
                    }
                    RemoteOperation::Write(memory) => {
                        remote = Some(memory);
                        3
                    }
                    RemoteOperation::WriteWithImm(memory, imm) => {
                        (remote, data) = (Some(memory), imm);
                        4
                    }
                    RemoteOperation::Read(memory) => {
                        (remote, data) = (Some(memory), request.read_len);
                        5
                    }
                    RemoteOperation::CompareAndSwap {
                        remote: memory,
                        expected,
                        desired,
                    } => {
                        (remote, operands) = (Some(memory), [expected, desired]);
                        6
                    }
                    RemoteOperation::FetchAndAdd {
                        remote: memory,
                        addend,
                    } => {
                        (remote, operands) = (Some(memory), [addend, 0]);
                        7
                    }
                }
            }
            Message::Response => 8,
            Message::Ack => 9,
            Message::ReceiverNotReady { timer } => {
                code = timer;
                10
            }
            Message::Refused { status } => {
                code = status;
                11
            }
        };
        bytes[..4].copy_from_slice(&[opcode, flags, outstanding, code]);
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.acked.to_le_bytes());
        bytes[16..20].copy_from_slice(&data.to_le_bytes());
        if let Some(memory) = remote {
            bytes[20..28].copy_from_slice(&memory.addr.to_le_bytes());
            bytes[28..32].copy_from_slice(&memory.key.0.to_le_bytes());
            bytes[32..40].copy_from_slice(&operands[0].to_le_bytes());
            bytes[40..48].copy_from_slice(&operands[1].to_le_bytes());
        }
        EncodedHeader {
            bytes,
            // Every opcode above is valid, and the longest header has 48 bytes.
            len: len_of(opcode).unwrap_or(MAX_LEN) as u8,
        }
    }

    /// Parses the header at the beginning of `bytes`. Returns it and its length; `None` if it has
    /// not arrived completely.
    #[inline(always)]
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, InvalidHeader> {
        let Some(&opcode) = bytes.first() else {
            return Ok(None);
        };
        let header_len = len_of(opcode)?;
        let Some(bytes) = bytes.get(..header_len) else {
            return Ok(None);
        };
        let [flags, outstanding, code] = [bytes[1], bytes[2], bytes[3]];
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(word)
        };
        let long = |at: usize| u64::from(word(at + 4)) << 32 | u64::from(word(at));
        let (len, data) = (word(4), word(16));
        let memory = || RemoteMemory {
            addr: long(20),
            key: RemoteKey(word(28)),
        };
        let operation = match opcode {
            0 => Some(RemoteOperation::Send),
            1 => Some(RemoteOperation::SendWithImm(data)),
            2 => Some(RemoteOperation::SendWithInvalidate(RemoteKey(data))),
            3 => Some(RemoteOperation::Write(memory())),
            4 => Some(RemoteOperation::WriteWithImm(memory(), data)),
            5 => Some(RemoteOperation::Read(memory())),
            6 => Some(RemoteOperation::CompareAndSwap {
                remote: memory(),
                expected: long(32),
                desired: long(40),
            }),
            7 => Some(RemoteOperation::FetchAndAdd {
                remote: memory(),
                addend: long(32),
            }),
            _ => None,
        };
        let message = match (operation, opcode) {
            (Some(operation), _) => Message::Request(Request {
                operation,
                read_len: if opcode == 5 { data } else { 0 },
                outstanding,
                is_solicited: flags & SOLICITED != 0,
                is_ack_requested: flags & ACK_REQUESTED != 0,
            }),
            (None, 8) => Message::Response,
            (None, 9) => Message::Ack,
            (None, 10) => Message::ReceiverNotReady { timer: code },
            (None, _) => Message::Refused { status: code },
        };
        let header = Self {
            message,
            len,
            sequence: word(8),
            acked: word(12),
        };
        // A header that says anything in a field that it does not use was not encoded here.
        let has_body = matches!(opcode, 0..=4 | 8);
        let is_valid = (has_body || len == 0)
            && len as usize <= MAX_MESSAGE_LEN
            && header.encode().as_bytes() == bytes;
        is_valid
            .then_some(Some((header, header_len)))
            .ok_or(InvalidHeader)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::operation::any_operation;

    fn any_header() -> impl Strategy<Value = Header> {
        let request = (any_operation(), any::<u32>());
        let message = (0..5, request, any::<[u8; 2]>(), any::<[bool; 2]>()).prop_map(
            |(kind, (operation, len), [outstanding, code], [is_solicited, is_ack_requested])| {
                match kind {
                    0 => Message::Request(Request {
                        operation,
                        read_len: match operation {
                            RemoteOperation::Read(_) => len,
                            _ => 0,
                        },
                        outstanding,
                        is_solicited,
                        is_ack_requested,
                    }),
                    1 => Message::Response,
                    2 => Message::Ack,
                    3 => Message::ReceiverNotReady { timer: code },
                    _ => Message::Refused { status: code },
                }
            },
        );
        (message, 0..=MAX_MESSAGE_LEN as u32, any::<[u32; 2]>()).prop_map(
            |(message, len, [sequence, acked])| {
                let has_body = match message {
                    Message::Request(request) => request.operation.has_payload(),
                    Message::Response => true,
                    _ => false,
                };
                Header {
                    message,
                    len: if has_body { len } else { 0 },
                    sequence,
                    acked,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_header_is_parsed_as_it_was_encoded_and_only_when_it_is_complete(
            header in any_header(),
            after: [u8; 3],
        ) {
            let encoded = header.encode();
            let len = encoded.as_bytes().len();
            let bytes = [encoded.as_bytes(), &after].concat();
            prop_assert_eq!(Header::parse(&bytes), Ok(Some((header, len))));
            for short in 0..len {
                prop_assert_eq!(Header::parse(&bytes[..short]), Ok(None));
            }
        }

        #[test]
        fn whatever_is_parsed_would_have_been_encoded_so(
            opcode in 0..14_u8,
            rest in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let bytes = [&[opcode], &*rest].concat();
            match Header::parse(&bytes) {
                Ok(Some((header, len))) => {
                    let encoded = header.encode();
                    prop_assert_eq!(encoded.as_bytes(), &bytes[..len]);
                }
                Ok(None) => prop_assert!(bytes.len() < MAX_LEN),
                Err(InvalidHeader) => {}
            }
        }
    }
}
