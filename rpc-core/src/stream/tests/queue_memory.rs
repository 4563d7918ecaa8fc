//! The memory of a queue, which its host's share bounds.

use crate::limits::{LengthLimit, MessageLimit};
use crate::peer_memory::PeerMemory;
use crate::stream::outbound::{Outbound, PushOutcome, StreamSizes};

const FRAME: u64 = 4096;

const SIZES: StreamSizes = StreamSizes {
    frame_room: FRAME as usize,
    inbound_window: 1 << 16,
    outbound_window: 1 << 16,
    // Each message has a batch of its own.
    coalesces: false,
    longest_message: MessageLimit::new(4096, LengthLimit::Receiver),
};

/// Returns a queue, and the memory that it may use.
fn queue() -> (Outbound, PeerMemory) {
    let memory = PeerMemory::default();
    memory.share_heap(1 << 20);
    let mut queue = Outbound::default();
    assert!(queue.open(SIZES, *memory.of(None)).is_none());
    (queue, memory)
}

fn push(queue: &mut Outbound) -> PushOutcome {
    queue.push(&mut vec![1, 0, 0, 0, 7], 1)
}

fn send(queue: &mut Outbound, messages: usize) {
    for _ in 0..messages {
        let next = queue.next_frame().unwrap();
        queue.write_frame(&next, &mut [0]);
    }
    assert!(queue.end_look().is_none());
}

#[test]
fn it_is_charged_when_it_grows_and_given_back_when_little_is_left() {
    let (mut queue, memory) = queue();
    for messages in 1..=40 {
        assert_eq!(push(&mut queue), PushOutcome::Queued);
        assert_eq!(memory.heap_in_use(), (messages - 1) * FRAME);
    }
    // 16 batches are kept.
    send(&mut queue, 40);
    assert_eq!(memory.heap_in_use(), 39 * FRAME);
    for _ in 0..80 {
        assert_eq!(push(&mut queue), PushOutcome::Queued);
    }
    assert_eq!(memory.heap_in_use(), 79 * FRAME);
    send(&mut queue, 80);
    assert_eq!(
        memory.heap_in_use(),
        19 * FRAME,
        "when a quarter was needed"
    );
    queue.trim();
    assert_eq!(memory.heap_in_use(), 0);
}

#[test]
fn a_host_at_its_limit_has_what_is_charged_until_the_end_of_the_look() {
    let (mut queue, memory) = queue();
    for _ in 0..4 {
        assert_eq!(push(&mut queue), PushOutcome::Queued);
    }
    send(&mut queue, 2);
    memory.limit_heap(0);
    assert_eq!(
        push(&mut queue),
        PushOutcome::Queued,
        "in a batch of before"
    );
    send(&mut queue, 1);
    assert_eq!(memory.heap_in_use(), FRAME, "of the two that wait");
    assert_eq!(push(&mut queue), PushOutcome::Full);
    send(&mut queue, 2);
    assert_eq!(memory.heap_in_use(), 0);
}

#[test]
fn the_end_of_the_call_gives_it_back() {
    let (mut queue, memory) = queue();
    for _ in 0..4 {
        assert_eq!(push(&mut queue), PushOutcome::Queued);
    }
    assert!(queue.end().is_none());
    assert_eq!(memory.heap_in_use(), 0);
}
