//! Messages of streams that are alone go straight to a frame, and the others wait as always.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use rpc_core::frame::{Flags, FrameHeader, FrameKind, MESSAGE_BATCH, ONE_MESSAGE};
use rpc_core::{Caller, Request, Sender, Streaming, sender};
use rpc_core_testing::Pair;

use crate::support::raw::{Raw, one, open};
use crate::support::streams::{DOUBLE, METHODS, Probe, register_streams};

/// Message frames that the client has sent.
fn frames(pair: &Pair) -> u64 {
    pair.client().poller().stats().pollers[0]
        .streams
        .frames_sent
}

/// Message frames that the server has sent.
fn answers(pair: &Pair) -> u64 {
    pair.server().poller().stats().pollers[0]
        .streams
        .frames_sent
}

/// Sends a message, for which nobody has to wait. No turn is taken.
fn send<T>(sender: &mut Sender<T>, message: T) {
    let mut sent = pin!(sender.send(message));
    let polled = sent.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Ready(Ok(())));
}

fn read<T>(messages: &mut Streaming<T>) -> Poll<Option<T>> {
    let mut message = pin!(messages.message());
    let polled = message
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    polled.map(|message| message.unwrap())
}

#[test]
fn a_message_goes_at_once_if_one_has_arrived_since_the_last_and_those_behind_it_share_a_frame() {
    let probe = Probe::default();
    let pair = Pair::new(|methods| register_streams(methods, &probe));
    let channel = pair.connect();
    let (mut numbers, messages) = sender();
    let mut doubled: Streaming<u64> = pair.run(async {
        let response = channel.streaming(&DOUBLE, Request::new(messages)).await;
        response.unwrap().into_inner()
    });
    let mut number = 1;
    // The beginning of the response counts as an arrival.
    for in_a_row in [1, 3, 1, 2] {
        let (before, answered) = (frames(&pair), answers(&pair));
        let all = number..number + in_a_row;
        for number in all.clone() {
            send(&mut numbers, number);
            assert_eq!(frames(&pair), before + 1);
        }
        for number in all {
            let answer = pair.run(doubled.message()).unwrap();
            assert_eq!(answer, Some(2 * number));
        }
        assert_eq!(frames(&pair), before + 1 + u64::from(in_a_row > 1));
        assert_eq!(answers(&pair), answered + 1, "answers share a frame, too");
        number += in_a_row;
    }
    drop(numbers);
    assert_eq!(pair.run(doubled.message()).unwrap(), None);
    drop((channel, doubled));
    pair.assert_nothing_left();
}

#[test]
fn a_message_waits_if_there_is_no_credit_or_if_it_is_long() {
    let pair = Pair::new(|_| ());
    let raw = Raw::server(pair.network(), &METHODS);
    let channel = pair.client().poller().connect("hostile").unwrap();
    raw.settle();
    let (mut texts, messages) = sender::<String>();
    let mut call = Box::pin(channel.streaming(&DOUBLE, Request::new(messages)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
    let (opened, _) = raw.settle().remove(0);
    raw.send(one(opened.call.0), b"");
    let Poll::Ready(Ok(response)) = call.as_mut().poll(&mut cx) else {
        panic!("the server has begun to respond");
    };
    let mut answers: Streaming<String> = response.into_inner();
    assert_eq!(read(&mut answers), Poll::Ready(Some(String::new())));

    // Longer than an inline frame, and not than a slot.
    let before = frames(&pair);
    send(&mut texts, "x".repeat(2000));
    assert_eq!(frames(&pair), before);
    raw.settle();
    assert_eq!(frames(&pair), before + 1);

    // Each message of the peer allows one to go alone, as long as there are credits. They are not
    // returned for now.
    let mut sent = 0;
    loop {
        raw.peer.send(one(opened.call.0), b"");
        pair.network().settle();
        assert_eq!(read(&mut answers), Poll::Ready(Some(String::new())));
        let before = frames(&pair);
        send(&mut texts, sent.to_string());
        sent += 1;
        if frames(&pair) == before {
            break;
        }
        assert!(sent < 1000, "credits are limited");
    }
    assert!(sent > 1, "a few credits are granted");
    // The next one stays behind it, although a message arrives and there is a credit again.
    raw.peer.send(one(opened.call.0), b"");
    pair.network().settle();
    assert_eq!(read(&mut answers), Poll::Ready(Some(String::new())));
    send(&mut texts, sent.to_string());
    sent += 1;
    let frames = raw.settle();
    let mut received = Vec::new();
    for (header, body) in &frames {
        match (header.kind, header.selector) {
            (FrameKind::Message, ONE_MESSAGE) => received.push(body.clone()),
            (FrameKind::Message, MESSAGE_BATCH) => {
                let mut rest = body.as_slice();
                while let Some((len, behind)) = rest.split_first_chunk::<4>() {
                    let (message, behind) = behind.split_at(u32::from_le_bytes(*len) as usize);
                    received.push(message.to_vec());
                    rest = behind;
                }
            }
            _ => {}
        }
    }
    let encoded = |number: i32| prost::Message::encode_to_vec(&number.to_string());
    assert_eq!(received, (0..sent).map(encoded).collect::<Vec<_>>());
    assert!(
        frames
            .iter()
            .all(|(header, _)| !header.flags.contains(Flags::LAST))
    );
    drop((texts, answers, call));
    drop(channel);
    raw.settle();
    raw.peer.close();
    raw.settle();
    pair.assert_nothing_left();
}

#[test]
fn the_answer_behind_the_only_message_of_a_handler_carries_the_credit_of_the_request() {
    let pair = Pair::new(|methods| register_streams(methods, &Probe::default()));
    let raw = Raw::client(pair.network());
    // One message, and three.
    for (call, count) in [(1, 1), (2, 3)] {
        let request = FrameHeader {
            credits: 8,
            ..open(call, 2, Flags::NONE)
        };
        let frames = raw.send(request, &[8, count]);
        let [(messages, _), (answer, _)] = &frames[..] else {
            panic!("a message frame and the answer: {frames:?}");
        };
        let form = if count == 1 {
            ONE_MESSAGE
        } else {
            MESSAGE_BATCH
        };
        assert_eq!(
            (messages.kind, messages.selector),
            (FrameKind::Message, form)
        );
        assert_eq!((answer.kind, answer.selector), (FrameKind::Response, 0));
        assert_eq!(messages.credits + answer.credits, 1);
    }
    raw.peer.close();
    raw.settle();
    pair.assert_nothing_left();
}
