//! Tests of the call table.

use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::call_error::{Cause, Execution};
use crate::codec::LongMessage;
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

fn slot(byte: u8) -> Body<Vec<u8>> {
    Body::Slot(frame(byte))
}

fn is_slot(body: &Body<Vec<u8>>, byte: u8) -> bool {
    matches!(body, Body::Slot(slot) if *slot == frame(byte))
}

fn begin(table: &mut CallTable<Vec<u8>>) -> CallId {
    table.begin(&mut WakeTarget::None).unwrap()
}

#[test]
fn an_answer_finds_its_call_once() {
    let mut table = CallTable::default();
    let (a, b) = (begin(&mut table), begin(&mut table));
    assert!(matches!(
        table.complete(b, HEAD, slot(7)),
        ResponseOutcome::Completed { .. }
    ));
    assert!(matches!(
        table.complete(b, HEAD, slot(8)),
        ResponseOutcome::UnknownCall(body) if is_slot(&body, 8)
    ));
    assert!(matches!(table.take(a), TakeOutcome::Pending));
    assert!(matches!(
        table.take(b),
        TakeOutcome::Responded(response) if is_slot(&response.body, 7)
    ));
    assert!(matches!(
        table.complete(b, HEAD, slot(9)),
        ResponseOutcome::UnknownCall(body) if is_slot(&body, 9)
    ));
    assert_eq!(table.len(), 1);
}

#[test]
fn a_late_answer_is_not_taken_for_that_of_the_next_call() {
    let mut table = CallTable::default();
    let old = begin(&mut table);
    table.complete(old, HEAD, slot(1));
    table.take(old);
    let new = begin(&mut table);
    assert_eq!(new.index(), old.index());
    assert!(matches!(
        table.complete(old, HEAD, slot(2)),
        ResponseOutcome::UnknownCall(body) if is_slot(&body, 2)
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
        table.complete(id, HEAD, slot(1));
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
        table.complete(id, HEAD, slot(5)),
        ResponseOutcome::Abandoned(body) if is_slot(&body, 5)
    ));
    assert_eq!(table.len(), 0);
    let id = begin(&mut table);
    table.complete(id, HEAD, slot(6));
    let abandoned = table.abandon(id);
    assert!(is_slot(&abandoned.response.unwrap().body, 6) && abandoned.timer.is_none());
    assert_eq!(table.len(), 0);
}

#[test]
fn answers_nobody_came_for_can_be_copied_out_of_their_slots() {
    let mut table: CallTable<Vec<u8>> = CallTable::default();
    let id = table.begin(&mut WakeTarget::None).unwrap();
    table.complete(id, HEAD, slot(2));
    let mut slots = Vec::new();
    table.copy_responses_out(|slot| slots.push(slot));
    assert_eq!(slots, [frame(2)]);
    table.copy_responses_out(|_| panic!("twice"));
    assert!(
        matches!(table.take(id), TakeOutcome::Responded(response) if matches!(&response.body, Body::Copied(copy) if *copy == frame(2)))
    );
}

#[test]
fn a_long_answer_ends_its_call_only_after_it_has_begun() {
    let long = || {
        Body::Long(Box::new(LongMessage {
            metadata: Box::default(),
            message: Bytes::from_static(b"long"),
            share_from: 0,
            copied_in: Arc::default(),
        }))
    };
    let mut table: CallTable<Vec<u8>> = CallTable::default();
    let id = begin(&mut table);
    assert!(matches!(
        table.complete(id, HEAD, long()),
        ResponseOutcome::UnknownCall(Body::Long(_))
    ));
    assert!(table.begin_long(id).unwrap(), "it is wanted");
    assert!(table.begin_long(id).is_err(), "it has begun");
    assert!(matches!(
        table.complete(id, HEAD, slot(1)),
        ResponseOutcome::UnknownCall(body) if is_slot(&body, 1)
    ));
    assert!(matches!(
        table.complete(id, HEAD, long()),
        ResponseOutcome::Completed { .. }
    ));
    assert!(matches!(
        table.take(id),
        TakeOutcome::Responded(Response {
            body: Body::Long(_),
            ..
        })
    ));
    let id = begin(&mut table);
    table.abandon(id);
    assert!(!table.begin_long(id).unwrap(), "it was abandoned");
    assert_eq!(table.len(), 0);
}

#[test]
fn when_the_connection_ends_every_call_does() {
    let mut table = CallTable::default();
    let (waiting, answered, abandoned) = (begin(&mut table), begin(&mut table), begin(&mut table));
    table.complete(answered, HEAD, slot(1));
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
        TakeOutcome::Responded(response) if is_slot(&response.body, 1)
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
    table.complete(last, HEAD, slot(1));
    table.take(last);
    assert_eq!(
        table.begin(&mut WakeTarget::None),
        Some(CallId::new(CallId::MAX_INDEX, 1)),
        "an entry that was used before"
    );
}
