//! Servers that stream and keep no rules: the affected connection, or the affected stream, ends, and
//! nothing else does.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rpc_core::frame::{
    CallId, Flags, FrameHeader, FrameKind, MESSAGE_BATCH, NO_MESSAGE, ONE_MESSAGE,
};
use rpc_core::transport::CloseReason;
use rpc_core::{
    CallError, Caller, Cause, Code, CreditError, LocalChannel, ProtocolError, Request, Response,
    Streaming, sender,
};
use rpc_core_testing::Pair;

use crate::support::raw::{Raw, cancel, grant, header, message, one};
use crate::support::streams::{COUNT, DOUBLE, ECHO, IDLE, METHODS, Probe, SUM, register_streams};

const WINDOW: usize = 32 * 1024;
const LONG: usize = 4000;
/// An encoded number.
const NUMBER: &[u8] = &[8, 5];

/// A client whose server keeps no rules, and the streams that it has open there.
struct Victim<'a> {
    raw: Raw<'a>,
    pair: &'a Pair,
    channel: LocalChannel,
}

type Call<T> = Pin<Box<dyn Future<Output = Result<T, CallError>>>>;

impl Victim<'_> {
    /// Begins a call. Returns it with its id.
    fn begin<T: 'static>(
        &self,
        call: impl Future<Output = Result<T, CallError>> + 'static,
    ) -> (u32, Call<T>) {
        let mut call: Call<T> = Box::pin(call);
        assert!(poll(&mut call).is_none());
        let frames = self.raw.settle();
        let mut requests = frames.iter();
        let request = requests.find(|(header, _)| header.kind == FrameKind::Request);
        let (request, _) = request.expect("the call sends a request");
        (request.call.0, call)
    }

    /// Opens a stream of numbers.
    fn count(&self) -> (u32, Call<Response<Streaming<u64>>>) {
        let channel = self.channel.clone();
        self.begin(async move { channel.server_streaming(&COUNT, Request::new(3)).await })
    }

    fn run<F: Future>(&self, future: F) -> F::Output {
        self.pair.run(future)
    }
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    let mut cx = Context::from_waker(Waker::noop());
    match future.as_mut().poll(&mut cx) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Lets `attack` send frames as the server of a client that also has a stream with an honest server,
/// which has to go on. Afterwards nothing may be left.
fn attacked(attack: impl FnOnce(&Victim<'_>)) {
    let probe = Probe::default();
    let pair = Pair::new(|methods| register_streams(methods, &probe));
    let honest = pair.connect();
    let (mut numbers, messages) = sender();
    let mut doubled: Streaming<u64> = pair.run(async {
        let response = honest.streaming(&DOUBLE, Request::new(messages)).await;
        response.unwrap().into_inner()
    });
    let victim = Victim {
        raw: Raw::server(pair.network(), &METHODS),
        pair: &pair,
        channel: pair.client().poller().connect("hostile").unwrap(),
    };
    victim.raw.settle();
    attack(&victim);
    let Victim { raw, channel, .. } = victim;
    drop(channel);
    raw.settle();
    raw.peer.close();
    raw.settle();
    pair.run(async {
        for number in 0..100 {
            numbers.send(number).await.unwrap();
            assert_eq!(doubled.message().await.unwrap(), Some(2 * number));
        }
        drop(numbers);
        assert_eq!(doubled.message().await.unwrap(), None);
    });
    drop((honest, doubled));
    pair.assert_nothing_left();
}

/// Returns the violation that closed the connection of a call.
fn violation(error: &CallError) -> Option<ProtocolError> {
    match error.cause() {
        Cause::Disconnected(CloseReason::Failed(error)) => error.downcast_ref().copied(),
        _ => None,
    }
}

/// Sends frames to a client with a stream open. Checks that the last one ends the connection, with
/// the expected error.
fn assert_last_ends(
    frames: impl FnOnce(u32) -> Vec<(FrameHeader, Vec<u8>)>,
    expected: impl FnOnce(CallId) -> ProtocolError,
) {
    attacked(|victim| {
        let (call, stream) = victim.count();
        let (_, other) = victim.count();
        for (header, body) in frames(call) {
            assert!(!victim.raw.peer.is_closed(), "closed before {header:?}");
            victim.raw.send(header, &body);
        }
        assert!(victim.raw.peer.is_closed());
        let error = victim.run(other).unwrap_err();
        assert_eq!(violation(&error), Some(expected(CallId(call))), "{error}");
        // This one may have ended before.
        drop(victim.run(async {
            let mut numbers = stream.await?.into_inner();
            while numbers.message().await?.is_some() {}
            Ok::<_, CallError>(())
        }));
        let late: Result<Response<u64>, _> =
            victim.run(victim.channel.unary(&ECHO, Request::new(7)));
        assert_eq!(late.unwrap_err().code(), Code::Unavailable);
    });
}

fn response(call: u32, flags: Flags) -> FrameHeader {
    FrameHeader {
        flags,
        call: CallId(call),
        ..header(FrameKind::Response)
    }
}

#[test]
fn an_honest_raw_server_is_understood() {
    attacked(|victim| {
        let (call, stream) = victim.count();
        victim.raw.send(one(call), NUMBER);
        let batch = message(call, MESSAGE_BATCH, Flags::NONE);
        victim.raw.send(batch, &[2, 0, 0, 0, 8, 7, 0, 0, 0, 0]);
        victim.raw.send(response(call, Flags::STREAM), &[]);
        let numbers = victim.run(async {
            let mut numbers = stream.await.unwrap().into_inner();
            let mut all = Vec::new();
            while let Some(number) = numbers.message().await.unwrap() {
                all.push(number);
            }
            all
        });
        assert_eq!(numbers, [5, 7, 0]);
        assert!(!victim.raw.peer.is_closed());
    });
}

#[test]
fn messages_of_calls_that_are_not_open() {
    let unknown = |call| ProtocolError::UnknownCall { call };
    for strange in [77, 1 << 20, u32::MAX] {
        assert_last_ends(
            |_| vec![(one(strange), NUMBER.to_vec())],
            |_| unknown(CallId(strange)),
        );
    }
    // After the response.
    let ended = |call| (response(call, Flags::STREAM), vec![]);
    let after = [(one as fn(u32) -> FrameHeader, NUMBER.to_vec())];
    for (frame, body) in after {
        assert_last_ends(|call| vec![ended(call), (frame(call), body)], unknown);
    }
    assert_last_ends(|call| vec![ended(call), ended(call)], unknown);
}

#[test]
fn responses_of_the_other_kind() {
    assert_last_ends(
        |call| vec![(response(call, Flags::NONE), vec![])],
        |call| ProtocolError::UnknownCall { call },
    );
    attacked(|victim| {
        let (_, stream) = victim.count();
        let channel = victim.channel.clone();
        let (call, unary) = victim.begin(async move {
            let response: Response<u64> = channel.unary(&ECHO, Request::new(7)).await?;
            Ok(response)
        });
        victim.raw.send(response(call, Flags::STREAM), NUMBER);
        let error = victim.run(unary).unwrap_err();
        let call = CallId(call);
        assert_eq!(violation(&error), Some(ProtocolError::UnknownCall { call }));
        let error = victim.run(stream).unwrap_err();
        assert_eq!(violation(&error), Some(ProtocolError::UnknownCall { call }));
    });
}

#[test]
fn a_response_to_a_stream_that_nothing_waits_for_without_the_flag_of_streams() {
    attacked(|victim| {
        let (call, stream) = victim.count();
        drop(stream);
        victim.raw.settle();
        victim.raw.send(response(call, Flags::NONE), &[]);
        assert!(victim.raw.peer.is_closed());
    });
}

#[test]
fn messages_beyond_the_window() {
    let fitting = WINDOW / (LONG + 4);
    let available = (WINDOW - fitting * (LONG + 4)) as u32;
    for is_abandoned in [false, true] {
        attacked(|victim| {
            let (call, stream) = victim.count();
            // Nothing reads the stream, or nothing has it.
            let stream = Some(stream).filter(|_| !is_abandoned);
            for _ in 0..fitting {
                victim.raw.send(one(call), &[0; LONG]);
            }
            assert!(!victim.raw.peer.is_closed());
            let (_, other) = victim.count();
            victim.raw.send(one(call), &[0; LONG]);
            assert!(victim.raw.peer.is_closed());
            let error = victim.run(other).unwrap_err();
            let expected = ProtocolError::StreamWindow {
                call: CallId(call),
                sent: LONG + 4,
                available,
            };
            assert_eq!(violation(&error), Some(expected));
            drop(stream);
        });
    }
}

#[test]
fn messages_beyond_the_receives() {
    attacked(|victim| {
        let (call, stream) = victim.count();
        // The client has promised 16 receives, and promises them again when it has read so many.
        for _ in 0..40 {
            victim.raw.peer.send(one(call), NUMBER);
        }
        victim.raw.settle();
        assert!(victim.raw.peer.is_closed());
        let (mut stream, mut got) = (stream, 0);
        let error = victim.run(async move {
            let mut numbers = (&mut stream).await.unwrap().into_inner();
            loop {
                match numbers.message().await {
                    Ok(Some(5)) => got += 1,
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => return (got, error),
                }
            }
        });
        let (got, error) = error;
        assert!((16..40).contains(&got), "{got}");
        let expected = ProtocolError::Credit(CreditError::NotGranted);
        assert_eq!(violation(&error), Some(expected));
    });
}

#[test]
fn grants_that_no_window_can_hold() {
    let too_large = |call| ProtocolError::GrantTooLarge { call };
    let huge = |call| FrameHeader {
        time_us: u32::MAX,
        ..message(call, NO_MESSAGE, Flags::NONE)
    };
    assert_last_ends(|call| vec![(huge(call), vec![])], too_large);
    let entry = |call| {
        let body = grant(call, i32::MAX as u32).encode().to_vec();
        vec![(header(FrameKind::Control), body)]
    };
    assert_last_ends(entry, too_large);
}

#[test]
fn flags_and_entries_of_clients() {
    let is_wrong = |flag: &'static str, kind| {
        move |_| {
            let role = rpc_core::Role::Client;
            ProtocolError::WrongFlag { flag, kind, role }
        }
    };
    assert_last_ends(
        |call| vec![(message(call, ONE_MESSAGE, Flags::LAST), NUMBER.to_vec())],
        is_wrong("last", FrameKind::Message),
    );
    assert_last_ends(
        |call| vec![(message(call, ONE_MESSAGE, Flags::INITIAL), NUMBER.to_vec())],
        is_wrong("initial", FrameKind::Message),
    );
    assert_last_ends(
        |call| {
            let body = cancel(call).encode().to_vec();
            vec![(header(FrameKind::Control), body)]
        },
        |call| ProtocolError::CancelFromServer { call },
    );
}

#[test]
fn acknowledgements_of_nothing() {
    let ack = FrameHeader {
        flags: Flags::ACK,
        ..header(FrameKind::Acknowledgement)
    };
    assert_last_ends(
        |_| vec![(ack, vec![])],
        |_| ProtocolError::Credit(CreditError::UnexpectedAck),
    );
}

#[test]
fn batches_whose_lengths_lie_end_their_stream() {
    let batches: [&[u8]; 4] = [
        &[1],
        &[3, 0, 0, 0, 8, 5],
        &[2, 0, 0, 0, 8, 5, 0xff, 0xff, 0xff, 0xff, 1],
        &[0xff; 12],
    ];
    for batch in batches {
        attacked(|victim| {
            let (call, stream) = victim.count();
            let (other, other_stream) = victim.count();
            victim
                .raw
                .send(message(call, MESSAGE_BATCH, Flags::NONE), batch);
            let error = victim.run(async {
                let mut numbers = stream.await.unwrap().into_inner();
                loop {
                    if let Err(error) = numbers.message().await {
                        assert_eq!(numbers.message().await.unwrap(), None);
                        return error;
                    }
                }
            });
            assert_eq!(error.code(), Code::Internal, "{error}");
            // The client has cancelled the call.
            let frames = victim.raw.settle();
            let controls = frames.iter();
            let controls = controls.filter(|(header, _)| header.kind == FrameKind::Control);
            let entries: Vec<u8> = controls.flat_map(|(_, body)| body.clone()).collect();
            assert!(
                entries
                    .chunks(8)
                    .any(|entry| entry == cancel(call).encode())
            );
            victim.raw.send(response(call, Flags::STREAM), &[]);
            victim.raw.send(one(other), NUMBER);
            victim.raw.send(response(other, Flags::STREAM), &[]);
            let mut numbers = victim.run(other_stream).unwrap().into_inner();
            assert_eq!(victim.run(numbers.message()).unwrap(), Some(5));
            assert_eq!(victim.run(numbers.message()).unwrap(), None);
            assert!(!victim.raw.peer.is_closed());
        });
    }
}

#[test]
fn messages_in_answer_to_a_call_that_expects_one_response() {
    attacked(|victim| {
        let channel = victim.channel.clone();
        let (numbers, messages) = sender::<u64>();
        let (call, sum) = victim.begin(async move {
            let response: Response<u64> = channel
                .client_streaming(&SUM, Request::new(messages))
                .await?;
            Ok(response)
        });
        victim.raw.send(one(call), NUMBER);
        let error = victim.run(sum).unwrap_err();
        assert_eq!(error.code(), Code::Internal, "{error}");
        victim.raw.send(response(call, Flags::STREAM), NUMBER);
        assert!(!victim.raw.peer.is_closed());
        drop(numbers);
    });
}

#[test]
fn metadata_that_is_none_and_lengths_of_metadata_that_lie_fail_their_call() {
    attacked(|victim| {
        let (call, stream) = victim.count();
        let metadata = FrameHeader {
            metadata_len: 3,
            ..message(call, NO_MESSAGE, Flags::NONE)
        };
        victim.raw.send(metadata, &[0xff; 3]);
        assert!(victim.run(stream).is_err());
        victim.raw.send(response(call, Flags::STREAM), &[]);
        for body in [&[9, 0, 0][..], &[0xff, 0xff, 0], &[1]] {
            let (call, stream) = victim.count();
            let lying = FrameHeader {
                metadata_len: body.len() as u16,
                ..response(call, Flags::STREAM.with(Flags::INITIAL))
            };
            victim.raw.send(lying, body);
            assert!(victim.run(stream).is_err(), "{body:?}");
        }
        assert!(!victim.raw.peer.is_closed());
    });
}

#[test]
fn a_server_that_never_answers_keeps_what_was_abandoned_until_the_connection_ends() {
    attacked(|victim| {
        for _ in 0..99 {
            let (_, stream) = victim.count();
            drop(stream);
        }
        let channel = victim.channel.clone();
        let timeout = Duration::from_millis(5);
        let (_, late) = victim.begin(async move {
            let request = Request::new(3).with_timeout(timeout);
            let response: Response<Streaming<u64>> =
                channel.server_streaming(&COUNT, request).await?;
            Ok(response)
        });
        victim.pair.network().advance(timeout);
        let error = victim.run(late).unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert!(!victim.raw.peer.is_closed());
    });
}

#[test]
fn a_server_that_never_grants_stops_its_senders_alone() {
    attacked(|victim| {
        let channel = victim.channel.clone();
        let (mut numbers, messages) = sender::<u64>();
        let (call, stream) = victim.begin(async move {
            let response: Response<Streaming<u64>> =
                channel.streaming(&IDLE, Request::new(messages)).await?;
            Ok(response)
        });
        let sent = Cell::new(0u64);
        let mut send = pin!(async {
            loop {
                if let Err(error) = numbers.send(u64::MAX).await {
                    return error;
                }
                sent.set(sent.get() + 1);
            }
        });
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..50 {
            assert!(send.as_mut().poll(&mut cx).is_pending());
            victim.raw.settle();
        }
        // The response ends the stream, and its sender.
        victim.raw.send(response(call, Flags::STREAM), &[]);
        assert!(send.as_mut().poll(&mut cx).is_ready());
        let most = (WINDOW + 5 * (LONG + 200)) / 15 + 32;
        let sent = sent.get();
        assert!(sent > 0 && sent < most as u64, "{sent} messages");
        let mut stream = victim.run(stream).unwrap().into_inner();
        assert_eq!(victim.run(stream.message()).unwrap(), None);
    });
}
