//! Tests of the call table.

use super::*;
use crate::call_error::{Cause, Execution};
use crate::protocol::frame::HEADER_LEN;

const HEAD: ResponseHead = ResponseHead {
    pushback_us: 0,
    code: 0,
    metadata_len: 0,
    has_initial: false,
};

/// Returns a frame whose body is `byte`.
fn frame(byte: u8) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN];
    frame.push(byte);
    frame
}

fn is_slot(response: &Response<Vec<u8>>, byte: u8) -> bool {
    matches!(&response.frame, ResponseFrame::Slot(slot) if *slot == frame(byte))
}

fn begin(table: &mut CallTable<Vec<u8>>) -> CallId {
    table.begin(&mut WakeTarget::None).unwrap()
}

#[test]
fn an_answer_finds_its_call_once() {
    let mut table = CallTable::default();
    let (a, b) = (begin(&mut table), begin(&mut table));
    assert!(matches!(
        table.complete(b, HEAD, frame(7)),
        ResponseOutcome::Completed { .. }
    ));
    assert!(matches!(
        table.complete(b, HEAD, frame(8)),
        ResponseOutcome::UnknownCall(slot) if slot == frame(8)
    ));
    assert!(matches!(table.take(a), TakeOutcome::Pending));
    assert!(matches!(
        table.take(b),
        TakeOutcome::Responded(response) if is_slot(&response, 7)
    ));
    assert!(matches!(
        table.complete(b, HEAD, frame(9)),
        ResponseOutcome::UnknownCall(slot) if slot == frame(9)
    ));
    assert_eq!(table.len(), 1);
}

#[test]
fn a_late_answer_is_not_taken_for_that_of_the_next_call() {
    let mut table = CallTable::default();
    let old = begin(&mut table);
    table.complete(old, HEAD, frame(1));
    table.take(old);
    let new = begin(&mut table);
    assert_eq!(new.index(), old.index());
    assert!(matches!(
        table.complete(old, HEAD, frame(2)),
        ResponseOutcome::UnknownCall(slot) if slot == frame(2)
    ));
    assert!(matches!(table.take(new), TakeOutcome::Pending));
}

/// The ids of an entry come round after 4,096 calls.
#[test]
fn a_table_whose_calls_have_completed_knows_it_after_any_number() {
    let mut table = CallTable::default();
    let first = begin(&mut table);
    assert!(!table.has_completed());
    let mut id = first;
    for calls in 1..=4096 {
        table.complete(id, HEAD, frame(1));
        table.take(id);
        assert!(table.has_completed(), "{calls}");
        id = begin(&mut table);
    }
    assert_eq!(id, first);
}

#[test]
fn an_abandoned_call_keeps_its_entry_until_its_response_has_come() {
    let mut table = CallTable::default();
    let id = begin(&mut table);
    let abandoned = table.abandon(id);
    assert!(abandoned.response.is_none() && abandoned.timer.is_none());
    assert_eq!(table.len(), 1);
    assert!(matches!(
        table.complete(id, HEAD, frame(5)),
        ResponseOutcome::Abandoned(slot) if slot == frame(5)
    ));
    assert_eq!(table.len(), 0);
    let id = begin(&mut table);
    table.complete(id, HEAD, frame(6));
    let abandoned = table.abandon(id);
    assert!(is_slot(&abandoned.response.unwrap(), 6) && abandoned.timer.is_none());
    assert_eq!(table.len(), 0);
}

#[test]
fn answers_nobody_came_for_can_be_copied_out_of_their_slots() {
    let mut table: CallTable<Vec<u8>> = CallTable::default();
    let id = table.begin(&mut WakeTarget::None).unwrap();
    table.complete(id, HEAD, frame(2));
    let mut slots = Vec::new();
    table.copy_responses_out(|slot| slots.push(slot));
    assert_eq!(slots, [frame(2)]);
    table.copy_responses_out(|_| panic!("twice"));
    assert!(
        matches!(table.take(id), TakeOutcome::Responded(response) if matches!(&response.frame, ResponseFrame::Copied(copy) if *copy == frame(2)))
    );
}

#[test]
fn when_the_connection_ends_every_call_does() {
    let mut table = CallTable::default();
    let (waiting, answered, abandoned) = (begin(&mut table), begin(&mut table), begin(&mut table));
    table.complete(answered, HEAD, frame(1));
    table.abandon(abandoned);
    let mut woken = 0;
    let error = CallError::new(
        Cause::DeadlineExceeded { latest: None },
        Execution::MayHaveRun,
    );
    assert_eq!(table.fail_all(&error, |_, _| woken += 1), 2);
    assert_eq!(woken, 1);
    assert!(matches!(table.take(waiting), TakeOutcome::Failed(_)));
    assert!(matches!(
        table.take(answered),
        TakeOutcome::Responded(response) if is_slot(&response, 1)
    ));
    assert_eq!(table.len(), 0);
}

#[test]
fn there_are_as_many_calls_as_ids_can_tell_apart() {
    let mut table = CallTable::<Vec<u8>>::default();
    let mut last = CallId(0);
    for _ in 0..=CallId::MAX_INDEX {
        last = table.begin(&mut WakeTarget::None).unwrap();
    }
    assert_eq!(table.begin(&mut WakeTarget::None), None);
    table.complete(last, HEAD, frame(1));
    table.take(last);
    assert_eq!(
        table.begin(&mut WakeTarget::None),
        Some(CallId::new(CallId::MAX_INDEX, 1)),
        "an entry that was used before"
    );
}
