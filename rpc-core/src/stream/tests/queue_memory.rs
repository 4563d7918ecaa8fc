//! The memory of what waits in a stream, which its host's share bounds.

use bytes::Bytes;

use crate::limits::{LengthLimit, MessageLimit};
use crate::peer_memory::PeerMemory;
use crate::stream::batch::MessageForm;
use crate::stream::inbound::Inbound;
use crate::stream::outbound::{Outbound, PushOutcome, StreamSizes};

const FRAME: u64 = 4096;

const SIZES: StreamSizes = StreamSizes {
    frame_room: FRAME as usize,
    inbound_window: 1 << 16,
    outbound_window: 1 << 16,
    // Each message has a batch of its own.
    coalesces: false,
    longest_message: MessageLimit::new(4096, LengthLimit::Receiver),
    is_served: false,
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

fn push_all(queue: &mut Outbound, messages: usize) {
    for _ in 0..messages {
        assert_eq!(push(queue), PushOutcome::Queued);
    }
}

fn send(queue: &mut Outbound, messages: usize) {
    for _ in 0..messages {
        let next = queue.next_frame().unwrap();
        queue.write_frame(&next, &mut [0]);
    }
    assert!(queue.after_sending().is_none());
}

#[test]
fn it_is_charged_when_it_grows_and_given_back_when_the_stream_is_idle() {
    let (mut queue, memory) = queue();
    for messages in 1..=40 {
        assert_eq!(push(&mut queue), PushOutcome::Queued);
        assert_eq!(memory.heap_in_use(), (messages - 1) * FRAME);
    }
    send(&mut queue, 40);
    push_all(&mut queue, 30);
    assert_eq!(memory.heap_in_use(), 39 * FRAME, "no more than before");
    send(&mut queue, 30);
    queue.trim();
    assert_eq!(memory.heap_in_use(), 0);
}

#[test]
fn a_host_at_its_limit_has_what_is_charged_until_the_end_of_the_look() {
    let (mut queue, memory) = queue();
    push_all(&mut queue, 4);
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
    push_all(&mut queue, 4);
    assert!(queue.end().is_none());
    assert_eq!(memory.heap_in_use(), 0);
}

#[test]
fn the_batches_of_an_ended_stream_are_charged_when_the_next_one_uses_them() {
    let (mut queue, memory) = queue();
    push_all(&mut queue, 3);
    send(&mut queue, 3);
    assert!(queue.end().is_none());
    queue.renew();
    assert!(queue.open(SIZES, *memory.of(None)).is_none());
    for messages in 1..=3 {
        assert_eq!(push(&mut queue), PushOutcome::Queued);
        assert_eq!(memory.heap_in_use(), (messages - 1) * FRAME);
    }
}

#[test]
fn a_long_message_waits_at_the_limit_until_nothing_else_does() {
    let (mut queue, memory) = queue();
    push_all(&mut queue, 3);
    send(&mut queue, 2);
    memory.limit_heap(0);
    let mut long = Some(Bytes::from(vec![1; 10_000]).into());
    assert_eq!(queue.push_long(&mut long), PushOutcome::Full);
    send(&mut queue, 1);
    assert_eq!(queue.push_long(&mut long), PushOutcome::Queued);
    assert!(long.is_none());
}

#[test]
fn what_a_reader_has_taken_is_not_charged_when_it_is_gone() {
    let memory = PeerMemory::default();
    memory.share_heap(1 << 20);
    let mut arrived = Inbound::default();
    arrived.open(1 << 20, *memory.of(None));
    assert_eq!(arrived.receive(MessageForm::One, &[7; 100_000]), Ok(()));
    assert!(memory.heap_in_use() > 90_000);
    let mut in_hand = Vec::new();
    assert!(arrived.take_batch(&mut in_hand));
    drop(arrived.discard());
    arrived.trim();
    assert_eq!(memory.heap_in_use(), 0);
}
