//! Generated clients call a gRPC server through a [`GrpcChannel`], and a Verbline server with the same
//! code. The gRPC server is the gateway. `make interop-grpc` calls one of another implementation.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use proto::interop::{
    EchoStatus, ResponseParameters, SimpleRequest, StreamingInputCallRequest,
    StreamingOutputCallRequest, TestServiceClient, UnimplementedServiceClient,
};
use rpc_core::{Code, Execution, Request, SendError, sender};
use verbline::Device;
use verbline_gateway::{AnyChannel, GrpcChannel};

use crate::support::Fixture;

type Client = TestServiceClient<AnyChannel>;

fn output(len: i32) -> StreamingOutputCallRequest {
    let parameters = ResponseParameters {
        size: len,
        ..ResponseParameters::default()
    };
    StreamingOutputCallRequest {
        response_parameters: vec![parameters],
        ..StreamingOutputCallRequest::default()
    }
}

/// The same calls, whatever the server is.
async fn calls(channel: AnyChannel) {
    let client = Client::new(channel.clone());
    let request = SimpleRequest {
        response_size: 100_000,
        ..SimpleRequest::default()
    };
    let mut request = Request::new(request).with_timeout(Duration::from_secs(60));
    let token: &[u8] = &[0, 255];
    let echo = request.metadata_mut();
    echo.insert("x-grpc-test-echo-initial", "initial").unwrap();
    echo.insert("x-grpc-test-echo-trailing-bin", token).unwrap();
    let response = client.unary_call(request).await.unwrap();
    let (initial, trailing) = (response.metadata(), response.trailing_metadata());
    assert_eq!(initial.get("x-grpc-test-echo-initial"), Some("initial"));
    assert_eq!(
        trailing.get_bin("x-grpc-test-echo-trailing-bin"),
        Some(token)
    );
    let payload = response.into_inner().payload.unwrap();
    assert_eq!(payload.body.len(), 100_000);

    let uploaded = tokio_stream::iter(vec![StreamingInputCallRequest::default(); 3]);
    let summary = client
        .streaming_input_call(uploaded)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(summary.aggregated_payload_size, 0);

    let mut watched = client
        .streaming_output_call(output(7))
        .await
        .unwrap()
        .into_inner();
    let message = watched.message().await.unwrap().unwrap();
    assert_eq!(message.payload.unwrap().body.len(), 7);
    assert_eq!(watched.message().await.unwrap(), None);

    let (mut requests, messages) = sender();
    let mut chat = client
        .full_duplex_call(messages)
        .await
        .unwrap()
        .into_inner();
    for len in [1, 2, 3] {
        requests.send(output(len)).await.unwrap();
        let message = chat.message().await.unwrap().unwrap();
        assert_eq!(
            message.payload.unwrap().body.len(),
            usize::try_from(len).unwrap()
        );
    }
    drop(requests);
    assert_eq!(chat.message().await.unwrap(), None);

    let status = SimpleRequest {
        response_status: Some(EchoStatus {
            code: 2,
            message: "\t☺".to_owned(),
        }),
        ..SimpleRequest::default()
    };
    let error = client.unary_call(status).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unknown, "\t☺"));
    assert_eq!(error.execution(), Execution::Answered);

    let absent = UnimplementedServiceClient::new(channel);
    let error = absent
        .unimplemented_call(proto::interop::Empty {})
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    let is_safe = matches!(
        error.execution(),
        Execution::NeverSent | Execution::NotStarted
    );
    assert!(is_safe, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_moves_between_both_kinds_of_servers_by_its_target() {
    let fixture = Fixture::interop().await;
    let device = Device::open("soft").unwrap();
    let targets = [
        format!("http://{}", fixture.address),
        fixture.server.local_addr().to_string(),
    ];
    for target in targets {
        let channel = AnyChannel::connect(&device, &target).await.unwrap();
        let is_grpc = matches!(channel, AnyChannel::Grpc(_));
        assert_eq!(is_grpc, target.starts_with("http"), "{target}");
        calls(channel).await;
    }
    fixture.end().await;
}

/// The futures need no tokio where they are polled, and a call that is dropped reaches the handler.
#[test]
fn calls_are_polled_without_tokio_and_cancelled_by_being_dropped() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let fixture = runtime.block_on(Fixture::interop());
    let target = format!("http://{}", fixture.address);
    let channel = runtime.block_on(GrpcChannel::connect(&target)).unwrap();
    let client = TestServiceClient::new(channel);
    let cancelled = || {
        let served = fixture.server.stats().total().served;
        served
            .iter()
            .map(|method| method.ended(Code::Cancelled))
            .sum::<u64>()
    };
    rpc_core::block_on(async {
        let (mut requests, messages) = sender();
        {
            let mut chat = pin!(client.full_duplex_call(messages));
            let begun = std::future::poll_fn(|cx| Poll::Ready(chat.as_mut().poll(cx)));
            assert!(begun.await.is_pending());
        }
        // The stream of requests is dropped with the call.
        assert_eq!(requests.send(output(1)).await, Err(SendError::Ended));

        let (mut requests, messages) = sender();
        let mut chat = client
            .full_duplex_call(messages)
            .await
            .unwrap()
            .into_inner();
        requests.send(output(1)).await.unwrap();
        assert!(chat.message().await.unwrap().is_some());
        drop(chat);
        assert_eq!(requests.send(output(1)).await, Err(SendError::Ended));
        while cancelled() == 0 {
            client.empty_call(proto::interop::Empty {}).await.unwrap();
        }
    });
    runtime.block_on(fixture.end());
}
