//! The layout of shared memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::links::PeerFiles;

/// Version of the layout of shared memory.
pub(super) const LAYOUT_VERSION: u32 = 8;

/// Sequence number of a ring's first message.
pub(crate) const FIRST_SEQUENCE: u64 = 1;
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
/// Offset of the entries in a page of announcements.
const ENTRIES_OFFSET: usize = 128;
/// Entries of a page.
const ENTRIES: usize = 1024;
/// Bytes of a page of announcements.
pub(crate) const ANNOUNCEMENTS_LEN: usize = ENTRIES_OFFSET + ENTRIES * size_of::<u16>();
/// The bit of an entry that tells its lap.
const LAP: u16 = 1 << 15;

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

/// Creates a ring whose first message has the PSN `psn`, and whose receiver always wants to be woken.
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
    // Ready, and the mark is armed.
    write_at(&file, &[1, 0, 0, 0, 1, 0, 0, 0], STATE_OFFSET)?;
    Ok(file)
}

/// Creates a page of announcements, and notes that say that the context sleeps and that nobody polls it. The notes
/// have no holes: the server refuses such.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub(crate) fn sleeping_context() -> io::Result<(OwnedFd, OwnedFd)> {
    let announcements = vec![0; ANNOUNCEMENTS_LEN.next_multiple_of(4096)];
    let mut notes = vec![0; NOTES_LEN.next_multiple_of(4096)];
    notes[..8].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
    let memory = |content: &[u8], seals| shared_memory(content.len() as u64, content, seals);
    Ok((
        memory(&announcements, SealFlags::SEAL)?,
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

/// Tells the receiver of a ring that it has messages. The page itself shows where the next entry goes: the
/// entries of this lap have another bit than those of the lap before.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub(crate) fn announce(files: &PeerFiles, index: u32) -> io::Result<()> {
    let mut page = [0; ANNOUNCEMENTS_LEN];
    rustix::io::pread(&files.announcements, &mut page, 0)?;
    let (entries, _) = page[ENTRIES_OFFSET..].as_chunks();
    let laps = entries.iter().map(|entry| u16::from_ne_bytes(*entry) & LAP);
    let lap = laps.clone().next().unwrap_or_default();
    let (place, lap) = match (laps.clone().position(|other| other != lap), lap) {
        (Some(place), lap) => (place, lap),
        (None, lap) => (0, lap ^ LAP),
    };
    let entry = lap | index as u16 & !LAP;
    let at = ENTRIES_OFFSET + place * size_of::<u16>();
    write_at(&files.announcements, &entry.to_ne_bytes(), at as u64)?;
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
