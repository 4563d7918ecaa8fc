//! A whole client and a whole server, between whose long messages frames of a hostile peer arrive.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use rpc_core::frame::{
    ABANDONED, CallId, ControlEntry, ControlRequest, FRAGMENT, Flags, FrameHeader, FrameKind,
    HEADER_LEN, LONG_BODY_LEN, LongBody, ONE_MESSAGE, SEGMENTS, TransferId,
};
use rpc_core::stats::PollerStats;
use rpc_core::transport::RemoteSegment;
use rpc_core::{
    CallError, Caller, Idempotency, Intents, LocalChannel, Messages, MethodKind, MethodSpec,
    Methods, Request, Response, Sender, Status, Streaming, sender, stream,
};

use super::Script;
use super::driver::{connect, one_of};
use crate::{Faults, LoopbackNode, Node, Pair};

const fn method(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "bytes", "bytes")
}

const ECHO: MethodSpec = method("hostile.Transfers/Echo", MethodKind::Unary);
const HELD: MethodSpec = method("hostile.Transfers/Held", MethodKind::Unary);
const BOTH: MethodSpec = method("hostile.Transfers/Both", MethodKind::Streaming);

/// A call that keeps what it has received.
type Call = Pin<Box<dyn Future<Output = Result<Vec<Bytes>, CallError>>>>;

const MAX_CHANNELS: usize = 4;
const MAX_CALLS: usize = 12;

/// The unit of the lengths of messages: 250 of them are three times the free fragments, and more than
/// what is left of the memory after some others.
const LEN_UNIT: usize = 800;

/// The distance between the addresses of two segments of a [`Loopback`](crate::Loopback).
const SPACING: u64 = 1 << 32;

fn register(methods: &mut Methods) {
    methods.unary(&ECHO, |request: Request<Bytes>| async {
        Ok(Response::new(request.into_inner()))
    });
    methods.unary(&HELD, |request: Request<Bytes>| async {
        std::future::pending::<()>().await;
        Ok(Response::new(request.into_inner()))
    });
    methods.streaming(
        &BOTH,
        |request: Request<Streaming<Bytes>>, responses| async move {
            let mut messages = request.into_inner();
            let echoes = stream(async move |mut sender| {
                while let Some(message) = messages.message().await? {
                    sender.send(message).await?;
                }
                Ok::<_, Status>(())
            });
            responses.send_all(Ok(Response::new(echoes))).await
        },
    );
}

/// Makes a call with a message of this length, or with a stream of messages.
fn call(
    channel: LocalChannel,
    step: u8,
    len: usize,
    timeout: Option<Duration>,
    messages: Messages<Bytes>,
) -> Call {
    let mut request = Request::new(Bytes::from(vec![7; len]));
    if let Some(timeout) = timeout {
        request = request.with_timeout(timeout);
    }
    match step % 3 {
        2 => Box::pin(async move {
            let response = channel.streaming(&BOTH, Request::new(messages));
            let mut echoes: Streaming<Bytes> = response.await?.into_inner();
            let mut kept = Vec::new();
            while let Some(message) = echoes.message().await? {
                kept.push(message);
            }
            Ok(kept)
        }),
        kind => Box::pin(async move {
            let method = if kind == 0 { &ECHO } else { &HELD };
            let response = channel.unary::<Bytes, Bytes>(method, request).await?;
            Ok(vec![response.into_inner()])
        }),
    }
}

/// Sends a message if there is room.
fn send(sender: &mut Sender<Bytes>, len: usize) {
    let sent = pin!(sender.send(Bytes::from(vec![9; len])));
    let mut cx = Context::from_waker(Waker::noop());
    // It may have ended.
    let _ = sent.poll(&mut cx);
}

/// The number of a call, mostly of one in flight.
fn call_id(byte: u8) -> CallId {
    CallId::new(u32::from(byte & 3), u32::from(byte >> 2 & 1))
}

/// The number of a message, mostly of one that a side has begun lately. It has begun so many.
fn transfer_id(byte: u8, begun: u64) -> TransferId {
    let (index, ago) = (u32::from(byte & 3), u32::from(byte >> 2 & 7));
    match byte >> 5 {
        7 => TransferId(u32::MAX - index),
        _ => TransferId(CallId::new(index, (begun as u32).wrapping_sub(ago)).0),
    }
}

/// A length, which may be a lie about a message that is under way.
fn stated_len(script: &mut Script<'_>) -> u32 {
    match script.byte() {
        255 => u32::MAX,
        254 => 1 << 31,
        253 => 1 + (4 << 20),
        byte => u32::from(byte) * LEN_UNIT as u32 + u32::from(script.byte()),
    }
}

/// Segments of which some are exposed, if the peer has long messages under way.
fn segments(script: &mut Script<'_>) -> Vec<u8> {
    let shape = script.byte();
    let mut body = Vec::new();
    for _ in 0..shape & 3 {
        let key = u32::from(script.byte());
        let offset = u64::from(script.byte() >> 4);
        let segment = RemoteSegment {
            address: SPACING * (u64::from(key) + 1) + offset,
            key,
            len: stated_len(script),
        };
        body.extend(segment.encode());
    }
    // A part of a segment.
    body.extend(std::iter::repeat_n(1, usize::from(shape >> 2 & 1)));
    body
}

/// A piece in one of the two forms: bytes of the message, or segments.
fn piece(form: u16, script: &mut Script<'_>) -> Vec<u8> {
    match form {
        SEGMENTS => segments(script),
        _ => vec![5; usize::from(script.byte()) * 17],
    }
}

/// A frame of a long message of `from`, or a control frame about one of `to`, mostly valid.
fn frame(script: &mut Script<'_>, from: &Node, to: &Node) -> Vec<u8> {
    let begun = |node: &Node| node.poller().stats().total().transfers.sent;
    let (shape, numbers) = (script.byte(), script.byte());
    let form = match shape >> 3 & 7 {
        0..=2 => FRAGMENT,
        3 => ABANDONED,
        _ => SEGMENTS,
    };
    let (kind, flags, selector) = match shape % 8 {
        0 => (FrameKind::Request, Flags::LONG, u16::from(numbers >> 4 & 3)),
        1 => (
            FrameKind::Request,
            Flags::LONG | Flags::STREAM | Flags::LAST,
            2,
        ),
        2 => (FrameKind::Response, Flags::LONG, 0),
        3 => (FrameKind::Response, Flags::LONG | Flags::STREAM, 0),
        4 => (FrameKind::Message, Flags::LONG, ONE_MESSAGE),
        5 => (FrameKind::Control, Flags::NONE, 0),
        _ => (FrameKind::Continuation, Flags::NONE, form),
    };
    let flags = match script.byte() {
        bits @ 0..16 => flags | Flags::from_bits(bits << 4 | bits),
        16..32 => flags | Flags::ACK,
        _ => flags,
    };
    let mut body = Vec::new();
    match kind {
        FrameKind::Control => {
            for _ in 0..1 + numbers % 4 {
                let transfer = transfer_id(script.byte(), begun(to));
                let value = script.byte();
                let request = match value % 4 {
                    0 => ControlRequest::Accepted,
                    1 => ControlRequest::Stopped,
                    2 => ControlRequest::Fetched(1 + u32::from(value >> 6)),
                    _ => ControlRequest::Fetched(ControlEntry::MAX_FETCHED),
                };
                body.extend(ControlEntry::of_transfer(transfer, request).encode());
            }
        }
        FrameKind::Continuation => body.extend(piece(form, script)),
        _ => {
            let transfer = transfer_id(script.byte(), begun(from));
            body.resize(LONG_BODY_LEN, 0);
            let form = if form == ABANDONED { FRAGMENT } else { form };
            LongBody::encode(transfer, stated_len(script), form, &mut body);
            body.extend(piece(form, script));
        }
    }
    let header = FrameHeader {
        kind,
        flags,
        credits: 0,
        call: match kind {
            FrameKind::Continuation => CallId(transfer_id(numbers, begun(from)).0),
            _ => call_id(numbers),
        },
        selector,
        metadata_len: 0,
        time_us: 0,
    };
    let mut frame = vec![0; HEADER_LEN];
    header.encode(&mut frame);
    frame.extend(body);
    frame
}

/// Tests a whole client and a whole server with long messages in either form, while frames arrive on
/// their connections that neither has sent: lengths that lie, messages that were never begun, segments
/// that are not exposed, and releases of what is not held. Afterwards a long message on a new connection
/// must come back, and after everything is dropped, every slot and every byte must be free again.
///
/// Returns the counters of both sides.
#[must_use]
pub fn transfers(bytes: &[u8]) -> [PollerStats; 2] {
    let mut script = Script::new(bytes);
    let shape = script.byte();
    let intents = Intents {
        message_memory: 150_000 << (shape >> 1 & 3),
        max_message_len: 300_000,
        waits_for_memory: shape & 8 == 0,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, register);
    if shape & 1 == 0 {
        pair.network().use_reads();
    }
    let mut channels = VecDeque::from([connect(&pair)]);
    let mut calls: VecDeque<Call> = VecDeque::new();
    let mut senders: VecDeque<Sender<Bytes>> = VecDeque::new();
    let mut kept = VecDeque::new();
    let mut cx = Context::from_waker(Waker::noop());
    while let Some(step) = script.step() {
        match step % 8 {
            0 if calls.len() < MAX_CALLS && !channels.is_empty() => {
                let channel = &channels[usize::from(step >> 3) % channels.len()];
                let (sender, messages) = sender();
                let len = usize::from(script.byte()) * LEN_UNIT;
                let timeout = Duration::from_millis((script.byte() & 0x7f).into());
                let timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
                senders.push_back(sender);
                calls.push_back(call(channel.clone(), step >> 3, len, timeout, messages));
                poll_all(&mut calls, &mut kept, &mut cx);
            }
            1 | 2 => {
                for _ in 0..=step >> 3 & 7 {
                    pair.network().step();
                    poll_all(&mut calls, &mut kept, &mut cx);
                }
            }
            4 => drop(kept.pop_front()),
            3 => {
                let (from, to) = match step & 8 {
                    0 => (pair.client(), pair.server()),
                    _ => (pair.server(), pair.client()),
                };
                if let Some(connection) = one_of(to, step >> 4) {
                    to.inject(connection, frame(&mut script, from, to));
                }
            }
            5 if step & 8 == 0 => {
                let by = Duration::from_millis(u64::from(step >> 4) << (step >> 4));
                pair.network().advance(by);
            }
            5 => drop(senders.pop_front()),
            6 if step >> 3 < 4 => drop(calls.pop_front()),
            6 => {
                if let Some(sender) = senders.get_mut(usize::from(step >> 3) % MAX_CALLS) {
                    send(sender, usize::from(script.byte()) * LEN_UNIT);
                }
            }
            7 if step & 8 == 0 => {
                // Most connections end soon.
                channels.push_back(connect(&pair));
                channels.drain(..channels.len().saturating_sub(MAX_CHANNELS));
            }
            _ => {}
        }
    }
    let unharmed = connect(&pair);
    drop((calls, senders, channels, kept));
    // A message that may not wait for memory would find that of the others.
    pair.network().settle();
    let (_, messages) = sender();
    let echo = call(unharmed.clone(), 0, 100_000, None, messages);
    let echo = pair.run(echo).expect("an unharmed connection");
    assert!(echo[0] == vec![7; 100_000]);
    drop((echo, unharmed));
    pair.assert_nothing_left();
    [pair.client(), pair.server()].map(|node| {
        let stats = node.poller().stats().total();
        // Also the registered bytes: a loopback registers those that are in use.
        assert!(
            stats.memory.gauges().all(|(_, _, bytes)| bytes == 0),
            "{:?}",
            stats.memory
        );
        stats
    })
}

/// Polls all calls, and keeps what they have received.
fn poll_all(calls: &mut VecDeque<Call>, kept: &mut VecDeque<Vec<Bytes>>, cx: &mut Context<'_>) {
    calls.retain_mut(|call| match call.as_mut().poll(cx) {
        std::task::Poll::Pending => true,
        std::task::Poll::Ready(outcome) => {
            kept.extend(outcome);
            false
        }
    });
}
