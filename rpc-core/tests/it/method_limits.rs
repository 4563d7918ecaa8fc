//! Limits of single methods: messages of the limit's length pass, and those of a byte more fail,
//! whichever side has the limit. The messages are short enough for an inline frame, fit a slot, or do
//! not.

use std::rc::Rc;

use rpc_core::{
    CallError, Caller, Cause, Code, Idempotency, Intents, LengthLimit, LocalChannel, MethodKind,
    MethodSpec, Methods, Request, Response, Streaming, sender, stream,
};
use rpc_core_testing::{Faults, Network, Node};

/// Bytes in a message, and the length of the message with its tag and length.
const LENGTHS: [(usize, u32); 3] = [(100, 102), (3000, 3003), (50_000, 50_004)];

/// Which side has a limit, for which messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limited {
    RequestsOfClient,
    RequestsOfServer,
    ResponsesOfServer,
    ResponsesOfClient,
}

const SIDES: [Limited; 4] = [
    Limited::RequestsOfClient,
    Limited::RequestsOfServer,
    Limited::ResponsesOfServer,
    Limited::ResponsesOfClient,
];

impl Limited {
    /// Returns the method as the client and as the server see it.
    fn specs(self, kind: MethodKind, limit: u32) -> [&'static MethodSpec; 2] {
        let plain = MethodSpec::new("test.Limits/Echo", kind, Idempotency::Unknown, "a", "b");
        let limited = match self {
            Self::RequestsOfClient | Self::RequestsOfServer => {
                plain.clone().with_max_request_len(limit)
            }
            Self::ResponsesOfServer | Self::ResponsesOfClient => {
                plain.clone().with_max_response_len(limit)
            }
        };
        let specs = match self {
            Self::RequestsOfClient | Self::ResponsesOfClient => [limited, plain],
            Self::RequestsOfServer | Self::ResponsesOfServer => [plain, limited],
        };
        specs.map(|spec| &*Box::leak(Box::new(spec)))
    }
}

struct Scene {
    network: Network,
    client: Rc<Node>,
    channel: Option<LocalChannel>,
}

impl Scene {
    fn new(reads: bool, register: impl FnOnce(&mut Methods)) -> Self {
        let mut network = Network::new(Faults::none(), 0);
        if reads {
            network.use_reads();
        }
        network.add("server", &Intents::default(), register);
        let client = network.add("client", &Intents::default(), |_| ());
        let channel = Some(client.poller().connect("server").unwrap());
        Self {
            network,
            client,
            channel,
        }
    }

    fn channel(&self) -> &LocalChannel {
        self.channel.as_ref().unwrap()
    }

    fn run<F: Future>(&self, future: F) -> F::Output {
        self.network.try_run(future).expect("it ends")
    }

    fn finish(mut self) {
        self.channel = None;
        self.network.assert_nothing_left();
        let memory = self.client.poller().stats().total().memory;
        assert!(
            memory.gauges().all(|(_, _, bytes)| bytes == 0),
            "{memory:?}"
        );
    }
}

/// Runs `call` with messages of each length, and of a byte more, for each limit.
fn with_each_limit(
    kind: MethodKind,
    register: impl Fn(&mut Methods, &'static MethodSpec),
    call: impl Fn(&mut Scene, &'static MethodSpec, usize) -> Result<usize, CallError>,
) {
    for limited in SIDES {
        for (len, limit) in LENGTHS {
            for reads in [false, true] {
                let [of_client, of_server] = limited.specs(kind, limit);
                let mut scene = Scene::new(reads, |methods| register(methods, of_server));
                let passed = call(&mut scene, of_client, len);
                assert_eq!(passed.ok(), Some(len), "{limited:?}");
                let error = call(&mut scene, of_client, len + 1).expect_err("a byte more");
                let text = error.to_string();
                assert_eq!(error.code(), Code::ResourceExhausted, "{limited:?}: {text}");
                let message = format!(" message of {} bytes exceeds", limit + 1);
                let of_method = format!(" the method's limit of {limit} bytes");
                for part in [message, of_method] {
                    assert!(text.contains(&part), "{limited:?}, {part}: {text}");
                }
                assert!(!text.contains("max_message_len"), "{limited:?}: {text}");
                scene.finish();
            }
        }
    }
}

fn echo_unary(methods: &mut Methods, spec: &'static MethodSpec) {
    methods.unary(spec, |request: Request<Vec<u8>>| async {
        Ok(Response::new(request.into_inner()))
    });
}

#[test]
fn unary_calls() {
    with_each_limit(MethodKind::Unary, echo_unary, |scene, spec, len| {
        let request = Request::new(vec![1; len]);
        let response = scene.channel().unary::<Vec<u8>, Vec<u8>>(spec, request);
        Ok(scene.run(response)?.into_inner().len())
    });
}

/// A handler that awaits answers later.
#[test]
fn unary_calls_whose_handlers_await() {
    let register = |methods: &mut Methods, spec| {
        methods.unary(spec, |request: Request<Vec<u8>>| async {
            let mut is_first = true;
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                match std::mem::take(&mut is_first) {
                    true => std::task::Poll::Pending,
                    false => std::task::Poll::Ready(()),
                }
            })
            .await;
            Ok(Response::new(request.into_inner()))
        });
    };
    with_each_limit(MethodKind::Unary, register, |scene, spec, len| {
        let request = Request::new(vec![1; len]);
        let response = scene.channel().unary::<Vec<u8>, Vec<u8>>(spec, request);
        Ok(scene.run(response)?.into_inner().len())
    });
}

#[test]
fn unary_calls_through_a_shared_channel() {
    with_each_limit(MethodKind::Unary, echo_unary, |scene, spec, len| {
        let shared = scene.network.share("server", &Intents::default());
        let channel = shared.channel();
        let request = Request::new(vec![1; len]);
        let response = channel.unary::<Vec<u8>, Vec<u8>>(spec, request);
        Ok(scene.run(response)?.into_inner().len())
    });
}

/// A client that streams messages gets all of them as one.
#[test]
fn client_streaming() {
    let register = |methods: &mut Methods, spec| {
        methods.client_streaming(spec, |request: Request<Streaming<Vec<u8>>>| async {
            let mut messages = request.into_inner();
            let mut all = Vec::new();
            while let Some(message) = messages.message().await? {
                all.extend(message);
            }
            Ok(Response::new(all))
        });
    };
    with_each_limit(MethodKind::ClientStreaming, register, |scene, spec, len| {
        let (mut sender, messages) = sender();
        let response = scene
            .channel()
            .client_streaming::<Vec<u8>, Vec<u8>>(spec, Request::new(messages));
        let sent = async move {
            // A message that is too long ends the call, which says why.
            let _ = sender.send(vec![1; len]).await;
        };
        let both = async {
            let (mut response, mut sent) = (Box::pin(response), Box::pin(sent));
            let mut is_sent = false;
            std::future::poll_fn(move |cx| {
                is_sent = is_sent || sent.as_mut().poll(cx).is_ready();
                response.as_mut().poll(cx)
            })
            .await
        };
        Ok(scene.run(both)?.into_inner().len())
    });
}

#[test]
fn server_streaming() {
    let register = |methods: &mut Methods, spec| {
        methods.server_streaming(spec, |request: Request<Vec<u8>>, responses| async {
            let message = request.into_inner();
            let once = stream(async move |mut sender| sender.send(message).await);
            responses.send_all(Ok(Response::new(once))).await
        });
    };
    with_each_limit(MethodKind::ServerStreaming, register, |scene, spec, len| {
        let request = Request::new(vec![1; len]);
        let messages = async {
            let response = scene
                .channel()
                .server_streaming::<Vec<u8>, Vec<u8>>(spec, request);
            let mut messages = response.await?.into_inner();
            let message = messages.message().await?.expect("a message");
            assert!(messages.message().await?.is_none());
            Ok(message.len())
        };
        scene.run(messages)
    });
}

/// Of the limits of both sides, the error names the lower one.
#[test]
fn the_limits_of_the_two_sides_are_told_apart() {
    const ECHO: MethodSpec = MethodSpec::new(
        "test.Limits/Echo",
        MethodKind::Unary,
        Idempotency::Unknown,
        "a",
        "b",
    );
    let intents = |sent: usize, received: usize| Intents {
        max_send_message_len: sent,
        max_message_len: received,
        ..Intents::default()
    };
    // The limits of client and server, and the one that the request or its response exceeds.
    for (client, server, is_request, exceeded, said) in [
        (
            intents(10_000, 90_000),
            intents(90_000, 20_000),
            true,
            LengthLimit::Sender,
            "the client's own limit of 10000 bytes: raise `max_send_message_len` on the client;",
        ),
        (
            intents(20_000, 90_000),
            intents(90_000, 10_000),
            true,
            LengthLimit::Receiver,
            "the server's limit of 10000 bytes: raise `max_message_len` on the server;",
        ),
        (
            intents(90_000, 20_000),
            intents(10_000, 90_000),
            false,
            LengthLimit::Sender,
            "the server's own limit of 10000 bytes: raise `max_send_message_len` on the server",
        ),
        (
            intents(90_000, 10_000),
            intents(20_000, 90_000),
            false,
            LengthLimit::Receiver,
            "the client's limit of 10000 bytes: raise `max_message_len` on the client",
        ),
    ] {
        let mut network = Network::new(Faults::none(), 0);
        network.add("server", &server, |methods| echo_unary(methods, &ECHO));
        let poller = network.add("client", &client, |_| ());
        let channel = poller.poller().connect("server").unwrap();
        let request = Request::new(vec![1; 30_000]);
        let call = channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, request);
        let error = network.try_run(call).unwrap().unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("exceeds {said}")), "{text}");
        assert_eq!(text.matches("raise").count(), 1, "{text}");
        if is_request {
            let cause = error.cause();
            let is_expected = matches!(
                cause,
                Cause::RequestTooLong { limit: 10_000, exceeded: named, .. } if *named == exceeded
            );
            assert!(is_expected, "{error}");
        }
        drop(channel);
        network.assert_nothing_left();
    }
}
