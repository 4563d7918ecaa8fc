//! Attacks of a hostile peer on a ring: forged writes, interleaved with the work of both halves.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::super::announcements::AnnouncementPage;
use super::super::commit::{Commit, Flags};
use super::super::descriptor::{DESCRIPTOR_LEN, Descriptor};
use super::super::published::ContextNotes;
use super::super::wake_socket::{EngineCaller, WakeSockets};
use super::{
    ContextNotifier, MAX_BUFFERED, RING_LEN, RingNotifier, RingReceiver, RingSender, SLOT_COUNT,
    in_buffer,
};
use crate::provider::soft::shared::copy::copy_message;
use crate::provider::soft::shared::memory::{Mapping, PeerMemory, SharedMemory};
use crate::testing::Script;

impl RingReceiver {
    /// Makes one write to the ring that no correct process makes, chosen by the script.
    pub(crate) fn forge(&self, script: &mut Script<'_>) {
        let (ring, next) = (self.ring_for_tests(), self.next_for_tests());
        let head = ring.head();
        // Sequence numbers near the current one, where forged values have an effect.
        let near = |byte: u8| next.wrapping_add(u64::from(byte)).wrapping_sub(8);
        match script.byte() % 9 {
            0 => {
                let at = usize::from(script.short());
                scribble(&ring.mapping, at, script.piece());
            }
            1 | 2 => {
                let sequence = next.wrapping_add(u64::from(script.byte() % 4));
                let flags = script.byte();
                let len = match flags & 0x80 {
                    0 => u16::from(script.byte()),
                    _ => script.short(),
                };
                let commit = Commit {
                    len,
                    flags: Flags(flags.into()),
                };
                ring.commit_word(sequence).publish(sequence, commit);
            }
            3 => {
                let sequence = next.wrapping_add(u64::from(script.byte() % 4));
                let descriptor = Descriptor {
                    arena: u64::from(script.byte()),
                    offset: script.long() >> (script.byte() % 64),
                    len: u32::from(script.short()) << (script.byte() % 17),
                };
                for (at, byte) in descriptor.encode().into_iter().enumerate() {
                    // SAFETY: a descriptor fits a slot's payload, and every byte value is valid for
                    // an atomic.
                    let cell: &AtomicU8 = unsafe { ring.payload(sequence).add(at).cast().as_ref() };
                    cell.store(byte, Ordering::Relaxed);
                }
                let commit = Commit {
                    len: DESCRIPTOR_LEN as u16,
                    flags: Flags(Flags::DESCRIPTOR),
                };
                ring.commit_word(sequence).publish(sequence, commit);
            }
            4 => head.progress.ack.publish(near(script.byte())),
            5 => {
                let fatal_nak = near(script.byte()) << 8 | u64::from(script.byte());
                head.progress.fatal_nak.store(fatal_nak, Ordering::Release);
            }
            6 => head.progress.nak.store(script.long(), Ordering::Release),
            7 => head.notices.retry.store(script.long(), Ordering::Release),
            _ => {
                let value = u32::from(script.byte() % 4);
                match script.byte() % 3 {
                    0 => head.readiness.state.store(value, Ordering::Release),
                    1 => head.notices.closed.close(),
                    _ => head.readiness.mark.arm(),
                }
            }
        }
    }
}

/// Writes anywhere in a mapping, as another process could.
pub(crate) fn scribble(memory: &Mapping, at: usize, bytes: &[u8]) {
    for (offset, &byte) in bytes.iter().enumerate() {
        let at = (at + offset) % memory.len();
        // SAFETY: the byte is within the mapping, which lives for the borrow, and every byte value
        // is valid for an atomic.
        let cell: &AtomicU8 = unsafe { memory.start().add(at).cast().as_ref() };
        cell.store(byte, Ordering::Relaxed);
    }
}

/// Runs both halves of a ring while a third party writes to its memory.
pub fn soft_ring(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let mut receiver =
        RingReceiver::new(u32::from(script.byte()) << 16, false).expect("memory for a ring");
    let fd = receiver.fd().try_clone_to_owned().expect("a descriptor");
    let mapping = Mapping::from_peer(&fd, RING_LEN, PeerMemory::Ring).expect("it is a ring");
    let page = SharedMemory::for_writers("ready", size_of::<AnnouncementPage>()).expect("memory");
    let notes = SharedMemory::for_readers("notes", size_of::<ContextNotes>()).expect("memory");
    let sockets = WakeSockets::new().expect("an epoll set");
    let (_, wake) = sockets.add().expect("a pair of sockets");
    let files = [page.fd, notes.fd, wake];
    let context = ContextNotifier::from_peer(files, EngineCaller::default());
    let context = Arc::new(context.expect("they are valid"));
    let notifier = RingNotifier::new(context, usize::from(script.short()) << 4);
    let mut sender = RingSender::new(mapping, notifier).expect("it is a ring");
    let mut message = [0; MAX_BUFFERED];
    while let Some(step) = script.step() {
        match step % 8 {
            0 | 1 => {
                let piece = script.piece();
                let len = piece.len().min(MAX_BUFFERED);
                if sender.has_room(in_buffer(0, len)) {
                    sender.send(NonNull::from(piece).cast(), len, (step >> 3).into());
                    sender.ring_doorbell();
                }
            }
            2 | 3 => {
                if let Ok(Some(incoming)) = receiver.peek() {
                    assert!(incoming.len <= MAX_BUFFERED);
                    // SAFETY: `peek` returned a payload of this length, which is at most the
                    // array's.
                    unsafe {
                        let to = NonNull::from(&mut message).cast();
                        copy_message(incoming.payload, to, incoming.len);
                    }
                    if step & 8 != 0 {
                        receiver.is_closed_after_copy();
                    }
                    receiver.advance(incoming.commit());
                }
            }
            4 => receiver.publish_ack(),
            5 => {
                let before = sender.unacked();
                if let Ok(newly) = sender.collect_ack() {
                    assert_eq!(sender.unacked() + newly, before);
                }
                sender.fatal_nak();
                assert!(sender.nak().timer < 32);
            }
            6 => match step >> 3 {
                0..8 => receiver.send_rnr_nak(step),
                8..16 => receiver.send_fatal_nak(step),
                16..20 => sender.allow_retry(sender.nak()),
                20..24 => sender.close(),
                24..28 => drop(receiver.try_go_cold()),
                28..30 => receiver.go_hot(),
                30 => receiver.set_ready(),
                _ => receiver.set_closed(),
            },
            _ => receiver.forge(&mut script),
        }
        assert!(sender.unacked() <= SLOT_COUNT);
    }
}
