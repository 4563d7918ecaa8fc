//! The layout of shared memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::links::PeerFiles;

/// Version of the layout of shared memory.
pub(super) const LAYOUT_VERSION: u32 = 6;

const SLOT_COUNT: u64 = 32;
const SLOT_LEN: u64 = 256;
const SLOTS_OFFSET: u64 = 256;
/// Bytes of a slot before its payload.
const SLOT_HEADER_LEN: u64 = 16;
/// Bytes of a ring's buffer, which is behind the slots.
const BUFFER_LEN: u64 = 32 << 10;
/// Bytes of a ring.
const RING_LEN: u64 = SLOTS_OFFSET + SLOT_COUNT * SLOT_LEN + BUFFER_LEN;
/// Bytes of a context's notes: the sleep note, and tables of keys and queue pairs, which may be empty.
const NOTES_LEN: usize = 64 + (512 + 1024) * 64 + 2048 * 32;
/// Offset of the acknowledgement in a ring.
pub(crate) const ACK_OFFSET: u64 = 64;
/// Offset of a ring's state, which is followed by its mark.
const STATE_OFFSET: u64 = 128;
/// Offset of the words of ready bits; the words' own bits come first.
const READY_WORDS_OFFSET: u64 = 64;
/// Bytes of the ready bits.
pub(crate) const READY_BITS_LEN: usize = READY_WORDS_OFFSET as usize + 512 * 8;

/// Creates memory for a peer. It has the seals that the server wants, and `len` bytes of which only
/// `content` has memory.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub(crate) fn shared_memory(len: u64, content: &[u8], extra: SealFlags) -> io::Result<OwnedFd> {
    let file = memfd_create("attack", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len)?;
    write_at(&file, content, 0)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | extra)?;
    Ok(file)
}

/// Creates an arena of `len` bytes that no memory backs.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub(crate) fn empty_arena(len: u64) -> io::Result<OwnedFd> {
    shared_memory(len, &[], SealFlags::FUTURE_WRITE | SealFlags::SEAL)
}

/// Creates a ring that accepts messages after `psn`, and whose receiver always wants to be woken.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub(crate) fn ring(psn: u32) -> io::Result<OwnedFd> {
    let file = shared_memory(RING_LEN.next_multiple_of(4096), &[], SealFlags::SEAL)?;
    let mut preamble = b"VBLNring".to_vec();
    preamble.extend(LAYOUT_VERSION.to_le_bytes());
    preamble.extend((SLOT_COUNT as u32).to_le_bytes());
    preamble.extend(u64::from(psn).to_le_bytes());
    write_at(&file, &preamble, 0)?;
    write_at(&file, &u64::from(psn).to_le_bytes(), ACK_OFFSET)?;
    // Ready, and the mark is armed.
    write_at(&file, &[1, 0, 0, 0, 1, 0, 0, 0], STATE_OFFSET)?;
    Ok(file)
}

/// Creates ready bits, and notes that say that the context sleeps and that nobody polls it. The notes
/// have no holes: the server refuses such.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub(crate) fn sleeping_context() -> io::Result<(OwnedFd, OwnedFd)> {
    let ready_bits = vec![0; READY_BITS_LEN.next_multiple_of(4096)];
    let mut notes = vec![0; NOTES_LEN.next_multiple_of(4096)];
    notes[..8].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
    let memory = |content: &[u8], seals| shared_memory(content.len() as u64, content, seals);
    Ok((
        memory(&ready_bits, SealFlags::SEAL)?,
        memory(&notes, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?,
    ))
}

fn slot(sequence: u64) -> u64 {
    SLOTS_OFFSET + sequence % SLOT_COUNT * SLOT_LEN
}

/// Writes a message into a ring and commits it.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub(crate) fn commit(ring: impl AsFd, sequence: u64, message: &[u8]) -> io::Result<()> {
    let at = slot(sequence);
    write_at(&ring, message, at + SLOT_HEADER_LEN)?;
    let word = (message.len() as u64) << 32 | sequence & 0xffff_ffff;
    write_at(&ring, &word.to_le_bytes(), at)
}

/// Returns true if the message with this sequence number has been committed.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub(crate) fn is_committed(ring: impl AsFd, sequence: u64) -> io::Result<bool> {
    let mut word = [0; 8];
    rustix::io::pread(&ring, &mut word, slot(sequence))?;
    Ok(u64::from_le_bytes(word) & 0xffff_ffff == sequence & 0xffff_ffff)
}

/// Tells the receiver of a ring that it has messages. The bits of one byte are not set in one step,
/// which is good enough for an attacker.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub(crate) fn announce(files: &PeerFiles, index: u32) -> io::Result<()> {
    let set = |offset: u64, bit: u64| {
        let (at, mut byte) = (offset + bit / 8, [0]);
        rustix::io::pread(&files.ready_bits, &mut byte, at)?;
        write_at(&files.ready_bits, &[byte[0] | 1 << (bit % 8)], at)
    };
    let word = u64::from(index / 64);
    set(READY_WORDS_OFFSET, u64::from(index))?;
    set(0, word)?;
    // A full file wakes its reader as well.
    let _ = rustix::io::write(&files.wake, &[1]);
    Ok(())
}

/// Writes bytes into shared memory.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub(crate) fn write_at(file: impl AsFd, bytes: &[u8], offset: u64) -> io::Result<()> {
    match rustix::io::pwrite(file, bytes, offset)? {
        len if len == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}
