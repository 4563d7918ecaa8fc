//! A whole client and a whole server, between whose streams frames of a hostile peer arrive.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::Duration;

use rpc_core::frame::{CallId, Flags, FrameHeader, FrameKind, HEADER_LEN};
use rpc_core::{
    CallError, Caller, Idempotency, Intents, LocalChannel, Messages, MethodKind, MethodSpec,
    Methods, Request, Response, Sender, Status, Streaming, sender, stream,
};

use super::Script;
use super::driver::{connect, one_of};
use crate::{Faults, LoopbackNode, Pair};

const fn method(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "bytes", "bytes")
}

const COLLECT: MethodSpec = method("hostile.Streams/Collect", MethodKind::ClientStreaming);
const SEND: MethodSpec = method("hostile.Streams/Send", MethodKind::ServerStreaming);
const BOTH: MethodSpec = method("hostile.Streams/Both", MethodKind::Streaming);

type Call = Pin<Box<dyn Future<Output = Result<u32, CallError>>>>;

const MAX_CHANNELS: usize = 4;
const MAX_CALLS: usize = 16;

fn register(methods: &mut Methods) {
    methods.client_streaming(&COLLECT, |request: Request<Streaming<Vec<u8>>>| async {
        let count = count(request.into_inner()).await?;
        Ok(Response::new(count.to_le_bytes().to_vec()))
    });
    methods.server_streaming(&SEND, |request: Request<Vec<u8>>, responses| async move {
        let message = request.into_inner();
        let copies = stream(async move |mut sender| {
            for _ in 0..message.len() {
                sender.send(message.clone()).await?;
            }
            Ok(())
        });
        responses.send_all(Ok(Response::new(copies))).await
    });
    methods.streaming(
        &BOTH,
        |request: Request<Streaming<Vec<u8>>>, responses| async move {
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

async fn count(mut messages: Streaming<Vec<u8>>) -> Result<u32, CallError> {
    let mut count = 0;
    while messages.message().await?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// Makes a call, and counts its messages.
fn call(channel: LocalChannel, kind: u8, message: &[u8], messages: Messages<Vec<u8>>) -> Call {
    let message = message.to_vec();
    Box::pin(async move {
        match kind % 3 {
            0 => {
                let request = Request::new(messages);
                let response = channel.client_streaming::<_, Vec<u8>>(&COLLECT, request);
                response.await.map(|_| 1)
            }
            1 => {
                let response = channel.server_streaming(&SEND, Request::new(message));
                count(response.await?.into_inner()).await
            }
            _ => {
                let response = channel.streaming(&BOTH, Request::new(messages));
                count(response.await?.into_inner()).await
            }
        }
    })
}

/// Sends a message if there is room.
fn send(sender: &mut Sender<Vec<u8>>, message: &[u8]) {
    let sent = pin!(sender.send(message.to_vec()));
    let mut cx = Context::from_waker(Waker::noop());
    // It may have ended.
    let _ = sent.poll(&mut cx);
}

/// Generates the header of a frame that streams have, mostly valid.
fn header_of(script: &mut Script<'_>) -> FrameHeader {
    let shape = script.byte();
    let (kind, flags) = match shape % 8 {
        0 => (FrameKind::Request, Flags::STREAM),
        1 => (FrameKind::Request, Flags::STREAM | Flags::LAST),
        2 => (FrameKind::Response, Flags::STREAM),
        3 => (FrameKind::Control, Flags::NONE),
        4 => (FrameKind::Acknowledgement, Flags::ACK),
        5 => (FrameKind::Message, Flags::LAST),
        _ => (FrameKind::Message, Flags::NONE),
    };
    let flags = match shape >> 3 & 7 {
        0 => flags | Flags::from_bits(script.byte()),
        1 => flags | Flags::ACK,
        _ => flags,
    };
    let numbers = script.byte();
    let call = CallId::new(u32::from(numbers & 3), u32::from(numbers >> 2 & 3));
    let metadata_len = if numbers & 0x80 == 0 {
        0
    } else {
        script.byte()
    };
    FrameHeader {
        kind,
        flags,
        credits: u16::from(shape >> 6),
        call,
        selector: u16::from(numbers >> 4 & 7) % 4,
        metadata_len: metadata_len.into(),
        time_us: u32::from(script.byte()) << (numbers >> 3 & 0x1c),
    }
}

/// Tests a whole client and a whole server with streams, while frames arrive on their connections
/// that neither has sent. Afterwards a stream on a new connection must succeed, and after everything
/// is dropped, every slot must be free again.
pub fn streams(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let intents = Intents {
        max_streams: 1 + u32::from(script.byte() % 8),
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, register);
    let mut channels = VecDeque::from([connect(&pair)]);
    let mut calls: VecDeque<Call> = VecDeque::new();
    let mut senders: VecDeque<Sender<Vec<u8>>> = VecDeque::new();
    let mut cx = Context::from_waker(Waker::noop());
    while let Some(step) = script.step() {
        match step % 8 {
            0 if calls.len() < MAX_CALLS && !channels.is_empty() => {
                let channel = &channels[usize::from(script.byte()) % channels.len()];
                let (sender, messages) = sender();
                senders.push_back(sender);
                calls.push_back(call(channel.clone(), step >> 3, script.piece(), messages));
            }
            1 => calls.retain_mut(|call| call.as_mut().poll(&mut cx).is_pending()),
            2 => drop(pair.network().step()),
            3 | 4 => {
                let node = match step & 8 {
                    0 => pair.server(),
                    _ => pair.client(),
                };
                if let Some(connection) = one_of(node, script.byte()) {
                    let mut frame = vec![0; HEADER_LEN];
                    header_of(&mut script).encode(&mut frame);
                    frame.extend(script.piece());
                    node.inject(connection, frame);
                }
            }
            5 if step & 8 == 0 => {
                let by = Duration::from_millis((step >> 4).into());
                pair.network().advance(by);
            }
            5 => drop(senders.pop_front()),
            6 if step & 8 == 0 => drop(calls.pop_front()),
            6 => {
                if let Some(sender) = senders.get_mut(usize::from(step >> 4)) {
                    send(sender, script.piece());
                }
            }
            7 if step & 8 == 0 && channels.len() < MAX_CHANNELS => {
                channels.push_back(connect(&pair));
            }
            7 => drop(channels.pop_front()),
            _ => {}
        }
    }
    let unharmed = connect(&pair);
    let (mut sender, messages) = sender();
    send(&mut sender, b"unharmed");
    drop(sender);
    let echoes = pair.run(call(unharmed.clone(), 2, &[], messages));
    assert_eq!(echoes.as_ref().ok(), Some(&1), "{echoes:?}");
    drop((calls, senders, channels, unharmed));
    pair.assert_nothing_left();
}
