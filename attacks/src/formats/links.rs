//! Messages of links, and the files beside them.

use std::os::fd::OwnedFd;

use super::Gid;
use super::memory::LAYOUT_VERSION;
use benches::Outcome;

const HELLO: u32 = 0x4c42_4556;
const ARENA: u32 = 1;
const ATTACH: u32 = 5;
const CONTEXT: u32 = 6;
const WELCOME: u32 = 10;
const CLAIM: u32 = 15;

/// Longest message of a link.
pub(crate) const MAX_PACKET: usize = 64;

/// Number of the only context of a peer.
const OUR_CONTEXT: u32 = 1;

/// The limits that a peer grants: arenas, contexts, bytes of arenas.
fn limits() -> [u8; 16] {
    let mut limits = [0; 16];
    limits[..4].copy_from_slice(&1000_u32.to_le_bytes());
    limits[4..8].copy_from_slice(&1000_u32.to_le_bytes());
    limits[8..].copy_from_slice(&(1_u64 << 50).to_le_bytes());
    limits
}

/// Returns the message with which a dialer greets.
#[must_use]
pub(crate) fn greeting(gid: &Gid) -> Vec<u8> {
    let version = LAYOUT_VERSION.to_le_bytes();
    packet(HELLO, &[&version, &version, gid, &limits()])
}

/// Returns the message that proves the sender's GID, for the queue pair that it has offered.
#[must_use]
pub(crate) fn claim(nonce: &[u8], qp_number: u32) -> Vec<u8> {
    packet(CLAIM, &[nonce, &qp_number.to_le_bytes()])
}

/// Returns true if a message accepts a greeting.
#[must_use]
pub(crate) fn is_welcome(packet: &[u8]) -> bool {
    packet.starts_with(&WELCOME.to_le_bytes())
}

/// Returns the announcement of an arena, which needs one file.
#[must_use]
pub(crate) fn arena(number: u64) -> Vec<u8> {
    packet(ARENA, &[&number.to_le_bytes()])
}

/// Returns the announcement of the peer's context. Its files are the announcements, the notes and
/// the wake file.
#[must_use]
pub(crate) fn context() -> Vec<u8> {
    packet(CONTEXT, &[&OUR_CONTEXT.to_le_bytes()])
}

/// Returns true if a message announces a context.
#[must_use]
pub(crate) fn is_context(packet: &[u8]) -> bool {
    packet.starts_with(&CONTEXT.to_le_bytes())
}

/// Returns the announcement of a ring in which the queue pair `from` receives from `to`, which
/// needs the ring's file.
#[must_use]
pub(crate) fn attach(from: u32, to: u32) -> Vec<u8> {
    let fields = [from, to, OUR_CONTEXT, 0].map(u32::to_le_bytes);
    packet(ATTACH, &fields.each_ref().map(|field| &field[..]))
}

/// Returns the index of the receiver's queue pair if the message is an attachment.
#[must_use]
pub(crate) fn attached_index(packet: &[u8]) -> Option<u32> {
    let [a, b, c, d] = *packet.strip_prefix(&ATTACH.to_le_bytes())?.last_chunk()?;
    Some(u32::from_le_bytes([a, b, c, d]))
}

fn packet(kind: u32, fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    for field in fields {
        bytes.extend_from_slice(field);
    }
    bytes
}

/// The files by which one side sends to the other.
#[derive(Debug)]
pub(crate) struct PeerFiles {
    /// The ring.
    pub(crate) ring: OwnedFd,
    /// The sender's announcements to the receiver.
    pub(crate) announcements: OwnedFd,
    /// The receiver's sleep note.
    pub(crate) note: OwnedFd,
    /// The file that wakes the receiver.
    pub(crate) wake: OwnedFd,
}

impl PeerFiles {
    /// Sorts the files of the server's context and of its ring.
    ///
    /// # Errors
    ///
    /// Fails if some are missing.
    pub(crate) fn of(context: Vec<OwnedFd>, ring: Vec<OwnedFd>) -> Outcome<Self> {
        let numbers = (context.len(), ring.len());
        match (
            <[OwnedFd; 3]>::try_from(context),
            <[OwnedFd; 1]>::try_from(ring),
        ) {
            (Ok([announcements, note, wake]), Ok([ring])) => Ok(Self {
                ring,
                announcements,
                note,
                wake,
            }),
            _ => Err(format!("the server sent {numbers:?} files").into()),
        }
    }
}
