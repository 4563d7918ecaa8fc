//! gRPC's interop cases, from tonic's client through the gateway.

use proto::interop::{
    EchoStatus, Empty, Payload, ResponseParameters, SimpleRequest, SimpleResponse,
    StreamingInputCallRequest, StreamingInputCallResponse, StreamingOutputCallRequest,
    StreamingOutputCallResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::{Code, Request, Status, Streaming};

use crate::support::{Client, Fixture, send};

pub(crate) const EMPTY_CALL: &str = "/grpc.testing.TestService/EmptyCall";
const UNARY_CALL: &str = "/grpc.testing.TestService/UnaryCall";
const OUTPUT_CALL: &str = "/grpc.testing.TestService/StreamingOutputCall";
pub(crate) const INPUT_CALL: &str = "/grpc.testing.TestService/StreamingInputCall";
const DUPLEX_CALL: &str = "/grpc.testing.TestService/FullDuplexCall";
const ECHO_INITIAL: &str = "x-grpc-test-echo-initial";
const ECHO_TRAILING: &str = "x-grpc-test-echo-trailing-bin";
const REQUEST_LENS: [usize; 4] = [27_182, 8, 1_828, 45_904];
const RESPONSE_LENS: [usize; 4] = [31_415, 9, 2_653, 58_979];

fn payload(len: usize) -> Option<Payload> {
    Some(Payload {
        r#type: 0,
        body: vec![0; len],
    })
}

fn output(request_len: usize, response_lens: &[usize]) -> StreamingOutputCallRequest {
    let parameters = response_lens.iter().map(|len| ResponseParameters {
        size: i32::try_from(*len).unwrap(),
        ..ResponseParameters::default()
    });
    StreamingOutputCallRequest {
        response_parameters: parameters.collect(),
        payload: payload(request_len),
        ..StreamingOutputCallRequest::default()
    }
}

fn large_request() -> SimpleRequest {
    SimpleRequest {
        response_size: 314_159,
        payload: payload(271_828),
        ..SimpleRequest::default()
    }
}

async fn next_len(
    responses: &mut Streaming<StreamingOutputCallResponse>,
) -> Result<Option<usize>, Status> {
    let response = responses.message().await?;
    Ok(response.map(|response| response.payload.unwrap_or_default().body.len()))
}

/// Makes a call with long messages.
pub(crate) async fn large_unary(client: &Client) -> Result<(), Status> {
    let request = Request::new(large_request());
    let response = client
        .unary::<_, SimpleResponse>(UNARY_CALL, request)
        .await?;
    let payload = response.into_inner().payload.unwrap();
    assert_eq!(payload.body.len(), 314_159);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unary_calls() {
    let fixture = Fixture::interop().await;
    let client = fixture.client().await;
    let _: Empty = client
        .unary(EMPTY_CALL, Request::new(Empty {}))
        .await
        .unwrap()
        .into_inner();
    large_unary(&client).await.unwrap();
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { large_unary(&client).await.unwrap() })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    drop(client);
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams() {
    let fixture = Fixture::interop().await;
    let client = fixture.client().await;
    let requests = tokio_stream::iter(REQUEST_LENS.map(|len| StreamingInputCallRequest {
        payload: payload(len),
        ..StreamingInputCallRequest::default()
    }));
    let response: StreamingInputCallResponse = client
        .client_streaming(INPUT_CALL, Request::new(requests))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(response.aggregated_payload_size, 74_922);

    let request = Request::new(output(0, &RESPONSE_LENS));
    let mut responses = client
        .server_streaming(OUTPUT_CALL, request)
        .await
        .unwrap()
        .into_inner();
    for len in RESPONSE_LENS {
        assert_eq!(next_len(&mut responses).await.unwrap(), Some(len));
    }
    assert_eq!(next_len(&mut responses).await.unwrap(), None);

    let (requests, stream) = mpsc::channel(1);
    let request = Request::new(ReceiverStream::new(stream));
    let mut responses = client
        .streaming(DUPLEX_CALL, request)
        .await
        .unwrap()
        .into_inner();
    for (request_len, response_len) in REQUEST_LENS.into_iter().zip(RESPONSE_LENS) {
        requests
            .send(output(request_len, &[response_len]))
            .await
            .unwrap();
        assert_eq!(next_len(&mut responses).await.unwrap(), Some(response_len));
    }
    drop(requests);
    assert_eq!(next_len(&mut responses).await.unwrap(), None);

    let empty = Request::new(tokio_stream::empty::<StreamingOutputCallRequest>());
    let mut responses = client
        .streaming(DUPLEX_CALL, empty)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(next_len(&mut responses).await.unwrap(), None);
    drop((client, responses));
    fixture.end().await;
}

fn with_metadata<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert(ECHO_INITIAL, "test_initial_metadata_value".parse().unwrap());
    let value = BinaryMetadataValue::from_bytes(&[0xab, 0xab, 0xab]);
    metadata.insert_bin(ECHO_TRAILING, value);
    request
}

fn assert_trailing(trailing: &MetadataMap) {
    let value = trailing.get_bin(ECHO_TRAILING).unwrap();
    assert_eq!(value.to_bytes().unwrap(), &[0xab, 0xab, 0xab][..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_metadata() {
    let fixture = Fixture::interop().await;
    let client = fixture.client().await;
    let request = with_metadata(large_request());
    let response = client
        .unary::<_, SimpleResponse>(UNARY_CALL, request)
        .await
        .unwrap();
    // tonic's client merges both kinds of metadata of a unary call.
    assert_eq!(
        response.metadata().get(ECHO_INITIAL).unwrap(),
        "test_initial_metadata_value"
    );
    assert_trailing(response.metadata());

    let request = with_metadata(tokio_stream::once(output(27_182, &[31_415])));
    let response = client.streaming(DUPLEX_CALL, request).await.unwrap();
    assert_eq!(
        response.metadata().get(ECHO_INITIAL).unwrap(),
        "test_initial_metadata_value"
    );
    let mut responses = response.into_inner();
    assert_eq!(next_len(&mut responses).await.unwrap(), Some(31_415));
    assert_eq!(next_len(&mut responses).await.unwrap(), None);
    assert_trailing(&responses.trailers().await.unwrap().unwrap());
    drop((client, responses));
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses() {
    let fixture = Fixture::interop().await;
    let client = fixture.client().await;
    for message in [
        "test status message",
        "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n",
    ] {
        let wanted = Some(EchoStatus {
            code: 2,
            message: message.to_owned(),
        });
        let request = SimpleRequest {
            response_status: wanted.clone(),
            ..SimpleRequest::default()
        };
        let status = client
            .unary::<_, SimpleResponse>(UNARY_CALL, Request::new(request))
            .await
            .unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unknown, message));
        let request = StreamingOutputCallRequest {
            response_status: wanted,
            ..StreamingOutputCallRequest::default()
        };
        let request = Request::new(tokio_stream::once(request));
        let outcome = match client.streaming(DUPLEX_CALL, request).await {
            Ok(response) => next_len(&mut response.into_inner()).await,
            Err(status) => Err(status),
        };
        let status = outcome.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unknown, message));
    }
    for path in [
        "/grpc.testing.TestService/UnimplementedCall",
        "/grpc.testing.UnimplementedService/UnimplementedCall",
    ] {
        let status = client
            .unary::<_, Empty>(path, Request::new(Empty {}))
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
    }
    drop(client);
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_call_whose_server_sleeps() {
    let fixture = Fixture::interop().await;
    // The server waits for a request that does not come. tonic's client would end the call by itself.
    let headers = [("content-type", "application/grpc"), ("grpc-timeout", "1m")];
    let answer = send(fixture.address, DUPLEX_CALL, &headers, &[0; 5], false).await;
    // With or without the headers of a response before it.
    let trailers = answer.trailers.unwrap_or(answer.headers);
    assert_eq!(trailers["grpc-status"], "4");
    fixture.end().await;
}
