//! Streams and long messages of this build at the greeter of an old one, which has none.
//! `.ci/test-versions` starts the old server and runs this.

use proto::greeter::{HelloReply, HelloRequest};
use proto::routeguide::{Point, RouteGuideClient};
use rpc_core::{
    Caller, Cause, Channel, Code, Execution, Idempotency, LengthLimit, LocalPoller, MethodKind,
    MethodSpec, Request, Response, Streaming, block_on,
};
use rpc_transport_verbs::Device;

const fn greet(kind: MethodKind) -> MethodSpec {
    let path = "verbline.greeter.Greeter/SayHello";
    MethodSpec::new(
        path,
        kind,
        Idempotency::Unknown,
        "HelloRequest",
        "HelloReply",
    )
}

const GREET: MethodSpec = greet(MethodKind::Unary);
const GREET_IN_STREAM: MethodSpec = greet(MethodKind::ServerStreaming);

async fn check<C: Caller + Clone>(channel: C) {
    let hello = || {
        Request::new(HelloRequest {
            name: "Ada".to_owned(),
        })
    };
    // A method that this build believes to stream, and one that the server lacks.
    let stream = channel.server_streaming::<HelloRequest, HelloReply>(&GREET_IN_STREAM, hello());
    let stream: Result<Response<Streaming<HelloReply>>, _> = stream.await;
    let guide = RouteGuideClient::new(channel.clone());
    let points = guide.record_route(tokio_stream::iter([Point::default()]));
    for error in [stream.map(drop).unwrap_err(), points.await.unwrap_err()] {
        assert_eq!(error.code(), Code::Unimplemented, "{error}");
        assert_eq!(error.execution(), Execution::NeverSent, "{error}");
        assert!(
            matches!(error.cause(), Cause::Unimplemented { .. }),
            "{error}"
        );
    }
    // Only those calls have ended.
    let reply: Response<HelloReply> = channel.unary(&GREET, hello()).await.unwrap();
    assert_eq!(reply.into_inner().message, "Hello, Ada!");
}

#[test]
#[ignore = "needs the server of an old build: make test-versions"]
fn a_stream_at_a_server_without_streams_is_unimplemented_and_ends_no_other_call() {
    let address = std::env::var("VERBLINE_TEST_SERVER").unwrap();
    let device = Device::open("soft").unwrap();
    let poller = LocalPoller::new(&device).unwrap();
    poller.block_on(check(poller.connect(&address).unwrap()));
    block_on(async { check(Channel::connect(&device, &address).await.unwrap()).await });
}

async fn check_long<C: Caller>(channel: C) {
    let greet = |name: String| channel.unary(&GREET, Request::new(HelloRequest { name }));
    let error: Result<Response<HelloReply>, _> = greet("a".repeat(5000)).await;
    let error = error.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert_eq!(error.execution(), Execution::NeverSent, "{error}");
    // The message has a tag and two bytes of length.
    let Cause::RequestTooLong {
        message_len: 5003,
        limit,
        exceeded: LengthLimit::Slot,
    } = *error.cause()
    else {
        panic!("{error:?}");
    };
    let said = error.to_string();
    for word in [
        "5003 bytes",
        &format!("limit of {limit} bytes"),
        "`max_message_len` on the server",
    ] {
        assert!(said.contains(word), "{said}");
    }
    // Only that call has ended, and one that fits goes through.
    let reply: Response<HelloReply> = greet("Ada".to_owned()).await.unwrap();
    assert_eq!(reply.into_inner().message, "Hello, Ada!");
    let reply: Response<HelloReply> = greet("a".repeat(2000)).await.unwrap();
    assert_eq!(reply.into_inner().message.len(), "Hello, !".len() + 2000);
}

#[test]
#[ignore = "needs the server of an old build: make test-versions"]
fn a_long_request_at_a_server_without_long_messages_is_never_sent_and_says_why() {
    let address = std::env::var("VERBLINE_TEST_SERVER").unwrap();
    let device = Device::open("soft").unwrap();
    let poller = LocalPoller::new(&device).unwrap();
    poller.block_on(check_long(poller.connect(&address).unwrap()));
    block_on(async { check_long(Channel::connect(&device, &address).await.unwrap()).await });
}
