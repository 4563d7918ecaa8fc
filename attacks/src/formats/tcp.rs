//! The beginning of a TCP link, and the messages between the queue pairs at its ends.

use super::Gid;

const MAGIC: &[u8; 4] = b"VBLK";
const VERSION: u16 = 1;

/// Bytes of the answer to a link's first bytes.
pub(crate) const ANSWER_LEN: usize = 12;

/// Bytes of the header of a SEND, of a response, and of an acknowledgement.
pub(crate) const BASE_LEN: usize = 20;

/// The opcodes, from 0 on: SEND, SEND with immediate, SEND with invalidate, WRITE, WRITE with
/// immediate, READ, compare and swap, fetch and add, response, acknowledgement, RNR NAK, fatal NAK.
pub(crate) const OPCODES: u8 = 12;

/// A SEND.
pub(crate) const SEND: u8 = 0;

const WRITE: u8 = 3;
const READ: u8 = 5;
const COMPARE_AND_SWAP: u8 = 6;
const RESPONSE: u8 = 8;

/// Returns the GID of a process that accepts no link.
#[must_use]
pub(crate) fn own_gid() -> Gid {
    *b"\xfd\x76\0\0\0\0\0\0attacker"
}

/// Returns the first bytes of a link.
#[must_use]
pub(crate) fn hello(secret: &[u8]) -> Vec<u8> {
    let mut hello = MAGIC.to_vec();
    hello.extend(VERSION.to_be_bytes());
    hello.extend([0, 0]);
    hello.extend(secret);
    hello
}

/// The fields of a message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Kind of message.
    pub(crate) opcode: u8,
    /// Bytes of payload after the header.
    pub(crate) len: u32,
    /// Sequence number of the request.
    pub(crate) sequence: u32,
    /// Sequence number of the request that the sender expects.
    pub(crate) acked: u32,
    /// Address in the receiver's memory.
    pub(crate) address: u64,
    /// Key of that memory.
    pub(crate) key: u32,
}

impl Header {
    /// Returns the header of a SEND.
    #[must_use]
    pub(crate) fn send(len: usize, sequence: u32, acked: u32) -> Self {
        Self {
            opcode: SEND,
            len: len as u32,
            sequence,
            acked,
            address: 0,
            key: 0,
        }
    }

    /// Returns the header as it is sent. Neither the opcode nor a length has to be valid.
    #[must_use]
    pub(crate) fn encode(self) -> Vec<u8> {
        let is_read = self.opcode == READ;
        let has_payload = self.opcode < READ || self.opcode == RESPONSE;
        // A READ has its length elsewhere.
        let (len, data) = match is_read {
            true => (0, self.len),
            false => (if has_payload { self.len } else { 0 }, 0),
        };
        let outstanding = u8::from((READ..RESPONSE).contains(&self.opcode));
        let mut bytes = vec![self.opcode, 0, outstanding, 0];
        for word in [len, self.sequence, self.acked, data] {
            bytes.extend(word.to_le_bytes());
        }
        if (WRITE..RESPONSE).contains(&self.opcode) {
            bytes.extend(self.address.to_le_bytes());
            bytes.extend(self.key.to_le_bytes());
        }
        if (COMPARE_AND_SWAP..RESPONSE).contains(&self.opcode) {
            bytes.extend([0; 16]);
        }
        bytes
    }

    /// Returns the kind, the length of the payload and the sequence number that a header says.
    #[must_use]
    pub(crate) fn decode(bytes: [u8; BASE_LEN]) -> (u8, u32, u32) {
        let [opcode, _, _, _, a, b, c, d, e, f, g, h, ..] = bytes;
        let (len, sequence) = ([a, b, c, d], [e, f, g, h]);
        (
            opcode,
            u32::from_le_bytes(len),
            u32::from_le_bytes(sequence),
        )
    }
}
