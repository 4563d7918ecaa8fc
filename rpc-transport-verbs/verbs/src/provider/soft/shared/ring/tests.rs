//! Tests of a ring against a small model, and against peers that write garbage into it.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::sender::BadAck;
use super::*;
use crate::provider::soft::shared::announcements::AnnouncementPage;
use crate::provider::soft::shared::commit::{Commit, Flags};
use crate::provider::soft::shared::copy::copy_message;
use crate::provider::soft::shared::memory::{PeerMemory, SharedMemory};
use crate::provider::soft::shared::published::ContextNotes;
use crate::provider::soft::shared::wake::ReceiverState;
use crate::provider::soft::shared::wake_socket::{EngineCaller, WakeSockets};

/// The commit of an empty message.
const NOTHING: Commit = Commit {
    len: 0,
    flags: Flags(0),
};

/// Returns both halves of one ring, mapped twice, as in two processes.
pub(crate) fn pair(psn: u32) -> (RingSender, RingReceiver) {
    let receiver = RingReceiver::new(psn, false).unwrap();
    let fd = receiver.fd().try_clone_to_owned().unwrap();
    let mapping = Mapping::from_peer(&fd, RING_LEN, PeerMemory::Ring).unwrap();
    (RingSender::new(mapping, notifier(3)).unwrap(), receiver)
}

pub(super) fn notifier(index: usize) -> RingNotifier {
    let page = SharedMemory::for_writers("test", size_of::<AnnouncementPage>()).unwrap();
    let notes = SharedMemory::for_readers("test", size_of::<ContextNotes>()).unwrap();
    let (_, wake) = WakeSockets::new().unwrap().add().unwrap();
    let files = [page.fd, notes.fd, wake];
    let context = ContextNotifier::from_peer(files, EngineCaller::default()).unwrap();
    RingNotifier::new(Arc::new(context), index)
}

fn send(sender: &mut RingSender, message: &[u8]) {
    sender.send(NonNull::from(message).cast(), message.len(), 0);
}

fn copy(incoming: &Incoming) -> Vec<u8> {
    let mut bytes = vec![0; incoming.len];
    // SAFETY: `peek` returned a payload of this length, and the message is not yet acknowledged.
    unsafe {
        copy_message(
            incoming.payload,
            NonNull::from(&mut *bytes).cast(),
            incoming.len,
        )
    };
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    Send(Vec<u8>),
    Receive,
    Acknowledge,
    CollectAck,
    GoCold,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => proptest::collection::vec(any::<u8>(), 0..=MAX_BUFFERED).prop_map(Step::Send),
        6 => Just(Step::Receive),
        3 => Just(Step::Acknowledge),
        3 => Just(Step::CollectAck),
        1 => Just(Step::GoCold),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The model: a queue of messages, the number acknowledged, and how much of it the sender
    /// knows.
    #[test]
    fn a_ring_is_a_bounded_queue(
        psn in 0..1_u32 << 24,
        steps in proptest::collection::vec(any_step(), 0..600),
    ) {
        let (mut sender, mut receiver) = pair(psn);
        prop_assert_eq!(sender.expected_psn(), psn);
        let mut in_flight = VecDeque::new();
        let (mut unacked_sender, mut received, mut acked) = (0_u64, 0_u64, 0_u64);
        for step in steps {
            match step {
                Step::Send(message) => {
                    let has_room = sender.has_room(in_buffer(0, message.len()));
                    if sender.unacked() < unacked_sender {
                        // A full ring reads the acknowledgement by itself, and so does a full buffer.
                        unacked_sender -= acked;
                        acked = 0;
                    }
                    if message.len() <= MAX_IN_RING {
                        prop_assert_eq!(has_room, unacked_sender < SLOT_COUNT);
                    }
                    if has_room {
                        send(&mut sender, &message);
                        prop_assert_eq!(sender.ring_doorbell(), ReceiverState::Hot);
                        in_flight.push_back(message);
                        unacked_sender += 1;
                    }
                }
                Step::Receive => {
                    let incoming = receiver.peek().unwrap();
                    prop_assert_eq!(incoming.as_ref().map(copy), in_flight.front().cloned());
                    if let Some(incoming) = incoming {
                        receiver.advance(incoming.commit());
                        in_flight.pop_front();
                        received += 1;
                    }
                }
                Step::Acknowledge => {
                    receiver.publish_ack();
                    acked += received;
                    received = 0;
                }
                Step::CollectAck => {
                    prop_assert_eq!(sender.collect_ack(), Ok(acked));
                    unacked_sender -= acked;
                    acked = 0;
                }
                Step::GoCold => {
                    prop_assert_eq!(receiver.try_go_cold(), in_flight.is_empty());
                    receiver.go_hot();
                }
            }
            prop_assert_eq!(sender.unacked(), unacked_sender);
        }
    }

    /// Whatever a peer writes into the ring it sends on, the receiver gets a message within bounds,
    /// nothing, or an error.
    #[test]
    fn a_receiver_bounds_what_a_peer_commits(words in proptest::collection::vec(any::<u64>(), 16)) {
        let mut receiver = RingReceiver::new(0, false).unwrap();
        for (sequence, word) in (1_u64..).zip(words) {
            // Most garbage has a wrong sequence number; half of the words get the right one.
            let word = if word & 1 << 63 != 0 { word & !0xffff_ffff | sequence } else { word };
            // SAFETY: the commit word is an aligned atomic of this size inside the mapping, which
            // the receiver keeps alive.
            let commit: &AtomicU64 = unsafe { receiver_slot(&receiver, sequence).cast().as_ref() };
            commit.store(word, Ordering::Release);
            let commit = match receiver.peek() {
                Ok(Some(incoming)) => {
                    prop_assert!(incoming.len <= MAX_BUFFERED);
                    copy(&incoming);
                    incoming.commit()
                }
                _ => NOTHING,
            };
            receiver.advance(commit);
        }
    }

    /// Whatever a peer writes into the lines it acknowledges on, the sender accepts only valid
    /// acknowledgements.
    #[test]
    fn a_sender_believes_no_impossible_acknowledgement(
        sent in 0..SLOT_COUNT,
        ack in prop_oneof![any::<u64>(), 0..300_u64],
        fatal_nak: u64,
        nak: u64,
    ) {
        let (mut sender, mut receiver) = pair(0);
        for _ in 0..100 {
            send(&mut sender, b"x");
            let incoming = receiver.peek().unwrap().unwrap();
            receiver.advance(incoming.commit());
            receiver.publish_ack();
            prop_assert_eq!(sender.collect_ack(), Ok(1));
        }
        for _ in 0..sent {
            send(&mut sender, b"x");
        }
        let head = receiver_head(&receiver);
        head.progress.ack.publish(ack);
        head.progress.fatal_nak.store(fatal_nak, Ordering::Release);
        head.progress.nak.store(nak, Ordering::Release);
        match sender.collect_ack() {
            Ok(newly) => {
                prop_assert!(newly <= sent && ack == 100 + newly);
                prop_assert_eq!(sender.unacked(), sent - newly);
            }
            Err(BadAck) => {
                prop_assert!(!(100..=100 + sent).contains(&ack));
                prop_assert_eq!(sender.unacked(), sent);
            }
        }
        if let Some(code) = sender.fatal_nak() {
            prop_assert_eq!((fatal_nak >> 8, fatal_nak as u8), (100 + sent - sender.unacked() + 1, code));
        }
        prop_assert!(sender.nak().timer < 32);
    }
}

fn receiver_head(receiver: &RingReceiver) -> &Head {
    receiver.ring_for_tests().head()
}

fn receiver_slot(receiver: &RingReceiver, sequence: u64) -> NonNull<u8> {
    receiver.ring_for_tests().slot(sequence)
}

#[test]
fn a_receiver_that_is_not_ready_is_asked_again_only_when_the_sender_says_so() {
    let (mut sender, mut receiver) = pair(0);
    send(&mut sender, b"now?");
    assert!(receiver.peek().unwrap().is_some());
    receiver.send_rnr_nak(13);
    assert!(receiver.peek().unwrap().is_none());
    let nak = sender.nak();
    assert_eq!((nak.count, nak.timer), (1, 13));
    sender.allow_retry(nak);
    assert!(receiver.peek().unwrap().is_some());
}

#[test]
fn nothing_behind_a_lost_message_is_received() {
    let (mut sender, mut receiver) = pair(0);
    send(&mut sender, b"lost");
    send(&mut sender, b"whole");
    receiver.peek().unwrap().unwrap();
    receiver.stop();
    assert!(receiver.peek().unwrap().is_none());
    assert!(receiver.try_go_cold());
    let plain = Commit {
        len: 5,
        flags: Flags::default(),
    };
    assert!(receiver.plain_payload(plain).is_none());
}

/// Also not if its sender says that it may be asked again, any number of times.
#[test]
fn a_sender_does_not_start_a_receiver_that_has_stopped() {
    let (mut sender, mut receiver) = pair(0);
    receiver.stop();
    send(&mut sender, b"more");
    let mut nak = sender.nak();
    nak.count = u64::MAX;
    sender.allow_retry(nak);
    assert!(receiver.peek().unwrap().is_none());
}

#[test]
fn a_cold_ring_notifies_its_receiver() {
    let (mut sender, mut receiver) = pair(0);
    assert!(receiver.try_go_cold());
    send(&mut sender, b"hello");
    assert_eq!(sender.ring_doorbell(), ReceiverState::Cold);
    receiver.go_hot();
    assert_eq!(sender.ring_doorbell(), ReceiverState::Hot);
}

#[test]
fn a_ring_does_not_go_cold_over_a_message() {
    let (mut sender, mut receiver) = pair(0);
    send(&mut sender, b"hello");
    assert!(!receiver.try_go_cold());
    assert_eq!(sender.ring_doorbell(), ReceiverState::Hot);
}

#[test]
fn a_refusal_for_good_names_the_oldest_message_and_nothing_else() {
    let (mut sender, mut receiver) = pair(7);
    send(&mut sender, b"good");
    send(&mut sender, b"bad");
    receiver.peek().unwrap().unwrap();
    receiver.advance(NOTHING);
    receiver.publish_ack();
    receiver.send_fatal_nak(9);
    assert_eq!(
        sender.fatal_nak(),
        None,
        "the first is not known to be taken yet"
    );
    assert_eq!(sender.collect_ack(), Ok(1));
    assert_eq!(sender.fatal_nak(), Some(9));
}

#[test]
fn a_ring_of_another_layout_is_refused_with_both_versions() {
    let receiver = RingReceiver::new(0, false).unwrap();
    receiver_head(&receiver)
        .preamble
        .version
        .store(LAYOUT_VERSION + 1, Ordering::Relaxed);
    let fd = receiver.fd().try_clone_to_owned().unwrap();
    let mapping = Mapping::from_peer(&fd, RING_LEN, PeerMemory::Ring).unwrap();
    let error = RingSender::new(mapping, notifier(3)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a ring has shared-memory layout 9, this process has 8: run the same version of Verbline on both sides"
    );
}

/// Passes messages of all lengths from one thread to another, by the words and copies of both
/// halves: under Miri, an access that the words do not order is found.
#[test]
fn the_words_of_a_ring_order_the_copies() {
    const MESSAGES: u64 = if cfg!(miri) { 150 } else { 20_000 };
    let ring = Ring::new(Mapping::for_tests(RING_LEN)).unwrap();
    let len = |sequence: u64| (sequence * 7) as usize % (MAX_IN_RING + 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 1..=MESSAGES {
                while sequence - ring.head().progress.ack.peek() > SLOT_COUNT {
                    std::thread::yield_now();
                }
                let message = [sequence as u8; MAX_IN_RING];
                let (from, to) = (NonNull::from(&message).cast(), ring.payload(sequence));
                // SAFETY: a slot has this many bytes. Its last message was acknowledged, so the
                // receiver does not read it.
                unsafe { copy_message(from, to, len(sequence)) };
                ring.request_word(sequence)
                    .store(sequence, Ordering::Relaxed);
                let commit = Commit {
                    len: len(sequence) as u16,
                    flags: Flags::default(),
                };
                ring.commit_word(sequence).publish(sequence, commit);
            }
        });
        for sequence in 1..=MESSAGES {
            let commit = loop {
                match ring.commit_word(sequence).peek(sequence) {
                    Some(commit) => break commit,
                    None => std::thread::yield_now(),
                }
            };
            let mut message = [0; MAX_IN_RING];
            let to = NonNull::from(&mut message).cast();
            // SAFETY: a slot has at least as many bytes as the array, and its sender leaves it alone
            // until the acknowledgement.
            unsafe { copy_message(ring.payload(sequence), to, commit.len.into()) };
            assert_eq!(usize::from(commit.len), len(sequence));
            assert_eq!(
                message[..len(sequence)],
                vec![sequence as u8; len(sequence)]
            );
            let word = ring.request_word(sequence).load(Ordering::Relaxed);
            assert_eq!(word, sequence);
            ring.head().progress.ack.publish(sequence);
        }
    });
}
