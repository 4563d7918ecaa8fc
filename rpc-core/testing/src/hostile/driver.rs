//! A whole client and a whole server, between whose unary calls frames of a hostile peer arrive.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rpc_core::transport::{ConnectError, ConnectionId};
use rpc_core::{
    CallError, Caller, Idempotency, LocalChannel, MethodKind, MethodSpec, Request, Response,
};

use super::{Script, header_of};
use crate::{LoopbackNode, Node, Pair};

const fn method(path: &'static str) -> MethodSpec {
    let (kind, idempotency) = (MethodKind::Unary, Idempotency::Unknown);
    MethodSpec::new(path, kind, idempotency, "bytes", "bytes")
}

const ECHO: MethodSpec = method("hostile.Test/Echo");
const HELD: MethodSpec = method("hostile.Test/Held");

type Call = Pin<Box<dyn Future<Output = Result<Vec<u8>, CallError>>>>;

/// Maximum numbers of connections and calls in flight in a script.
const MAX_CHANNELS: usize = 4;
const MAX_CALLS: usize = 32;

/// Tests a whole client and a whole server that process calls, while frames arrive on their
/// connections that neither has sent. Afterwards one call on a new connection must succeed, and
/// after everything is dropped, every slot must be free again.
pub fn driver(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let pair = Pair::new(|methods| {
        methods.unary(&ECHO, |request: Request<Vec<u8>>| async {
            Ok(Response::new(request.into_inner()))
        });
        methods.unary(&HELD, |_: Request<Vec<u8>>| {
            std::future::pending::<Result<Response<Vec<u8>>, _>>()
        });
    });
    let mut channels = VecDeque::from([connect(&pair)]);
    let mut calls: VecDeque<Call> = VecDeque::new();
    let mut cx = Context::from_waker(Waker::noop());
    while let Some(step) = script.step() {
        match step % 8 {
            0 if calls.len() < MAX_CALLS && !channels.is_empty() => {
                let channel = &channels[usize::from(script.byte()) % channels.len()];
                let spec = if step & 8 == 0 { &ECHO } else { &HELD };
                let timeout = Some(step >> 4).filter(|timeout| *timeout > 0);
                let timeout = timeout.map(|timeout| Duration::from_millis(timeout.into()));
                calls.push_back(call(channel.clone(), spec, script.piece(), timeout));
            }
            1 => calls.retain_mut(|call| call.as_mut().poll(&mut cx).is_pending()),
            2 => drop(pair.network().step()),
            3 | 4 => {
                let node = if step & 8 == 0 {
                    pair.server()
                } else {
                    pair.client()
                };
                if let Some(connection) = one_of(node, script.byte()) {
                    let mut frame = Vec::new();
                    if step % 8 == 4 {
                        frame.extend(header_of(&mut script));
                    }
                    frame.extend(script.piece());
                    node.inject(connection, frame);
                }
            }
            5 => pair
                .network()
                .advance(Duration::from_millis((step >> 3).into())),
            6 => drop(calls.pop_front()),
            7 if step & 8 == 0 && channels.len() < MAX_CHANNELS => {
                channels.push_back(connect(&pair));
            }
            7 => drop(channels.pop_front()),
            _ => {}
        }
    }
    let unharmed = connect(&pair);
    let response = pair.run(call(unharmed.clone(), &ECHO, b"unharmed", None));
    assert_eq!(
        response.as_deref().ok(),
        Some(&b"unharmed"[..]),
        "{response:?}"
    );
    drop((calls, channels, unharmed));
    pair.assert_nothing_left();
}

fn call(
    channel: LocalChannel,
    spec: &'static MethodSpec,
    message: &[u8],
    timeout: Option<Duration>,
) -> Call {
    let mut request = Request::new(message.to_vec());
    if let Some(timeout) = timeout {
        request = request.with_timeout(timeout);
    }
    let mut call = Box::pin(async move {
        let response = channel.unary::<Vec<u8>, Vec<u8>>(spec, request).await;
        response.map(Response::into_inner)
    });
    // Polled once, as the application's own task would.
    let mut cx = Context::from_waker(Waker::noop());
    match call.as_mut().poll(&mut cx) {
        Poll::Ready(response) => Box::pin(std::future::ready(response)),
        Poll::Pending => call,
    }
}

/// Connects. A server keeps the place of a connection that has ended until its next turn.
pub(super) fn connect(pair: &Pair) -> LocalChannel {
    let connected = pair.client().poller().connect("server");
    if let Err(ConnectError::Refused { reason, .. }) = &connected
        && reason.contains("reached their limit")
    {
        pair.network().settle();
        return pair.connect();
    }
    connected.expect("the server admits the client")
}

/// Returns one of a node's connections, if it has any.
pub(super) fn one_of(node: &Node, choice: u8) -> Option<ConnectionId> {
    let connections = node.connections();
    let index = usize::from(choice).checked_rem(connections.len())?;
    connections.get(index).copied()
}
