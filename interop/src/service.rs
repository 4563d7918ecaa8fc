//! The server's side: `grpc.testing.TestService`.
//!
//! It has the features of gRPC's interop server that the cases need: `EmptyCall`, `UnaryCall`,
//! `StreamingInputCall`, `StreamingOutputCall`, `FullDuplexCall`, `HalfDuplexCall`, *Echo Status* and
//! *Echo Metadata*. It does not compress, and does not wait between responses: requests that ask for
//! either are rejected with `INVALID_ARGUMENT`.

use proto::interop::{
    EchoStatus, Empty, Payload, PayloadType, ResponseParameters, SimpleRequest, SimpleResponse,
    StreamingInputCallRequest, StreamingInputCallResponse, StreamingOutputCallRequest,
    StreamingOutputCallResponse, TestService,
};
use rpc_core::{Code, Metadata, Request, Response, Status, Stream, Streaming, stream};

/// The key of the metadata that the server returns before the first message.
pub(crate) const ECHO_INITIAL: &str = "x-grpc-test-echo-initial";

/// The key of the metadata that the server returns after the last message.
pub(crate) const ECHO_TRAILING: &str = "x-grpc-test-echo-trailing-bin";

/// The service. It has no state.
pub(crate) struct TestServer;

impl TestService for TestServer {
    async fn empty_call(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        Ok(Response::new(Empty {}))
    }

    async fn unary_call(
        &self,
        request: Request<SimpleRequest>,
    ) -> Result<Response<SimpleResponse>, Status> {
        let echo = request.metadata().clone();
        let request = request.into_inner();
        fail_if_asked(request.response_status)?;
        reject_compression(request.expect_compressed.is_some_and(|flag| flag.value))?;
        let response = SimpleResponse {
            payload: Some(payload(request.response_type, request.response_size)?),
            ..SimpleResponse::default()
        };
        with_echo(Response::new(response), &echo)
    }

    // Nothing here caches.
    async fn cacheable_unary_call(
        &self,
        request: Request<SimpleRequest>,
    ) -> Result<Response<SimpleResponse>, Status> {
        self.unary_call(request).await
    }

    async fn streaming_output_call(
        &self,
        request: Request<StreamingOutputCallRequest>,
    ) -> Result<Response<impl Stream<Item = Result<StreamingOutputCallResponse, Status>>>, Status>
    {
        let echo = request.metadata().clone();
        let request = request.into_inner();
        fail_if_asked(request.response_status)?;
        let responses = request
            .response_parameters
            .into_iter()
            .map(move |parameters| output(request.response_type, &parameters));
        with_echo(Response::new(tokio_stream::iter(responses)), &echo)
    }

    async fn streaming_input_call(
        &self,
        request: Request<Streaming<StreamingInputCallRequest>>,
    ) -> Result<Response<StreamingInputCallResponse>, Status> {
        let mut requests = request.into_inner();
        let mut total = 0;
        while let Some(request) = requests.message().await? {
            reject_compression(request.expect_compressed.is_some_and(|flag| flag.value))?;
            total += request.payload.map_or(0, |payload| payload.body.len());
        }
        let aggregated_payload_size = i32::try_from(total)
            .map_err(|_| Status::out_of_range("the payloads have more than 2^31 bytes"))?;
        Ok(Response::new(StreamingInputCallResponse {
            aggregated_payload_size,
        }))
    }

    async fn full_duplex_call(
        &self,
        request: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<impl Stream<Item = Result<StreamingOutputCallResponse, Status>>>, Status>
    {
        let echo = request.metadata().clone();
        let mut requests = request.into_inner();
        let responses = stream(async move |mut responses| {
            while let Some(request) = requests.message().await? {
                fail_if_asked(request.response_status)?;
                for parameters in &request.response_parameters {
                    let response = output(request.response_type, parameters)?;
                    responses.send(response).await?;
                }
            }
            Ok(())
        });
        with_echo(Response::new(responses), &echo)
    }

    async fn half_duplex_call(
        &self,
        request: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<impl Stream<Item = Result<StreamingOutputCallResponse, Status>>>, Status>
    {
        let mut requests = request.into_inner();
        Ok(Response::new(stream(async move |mut responses| {
            let mut all = Vec::new();
            while let Some(request) = requests.message().await? {
                fail_if_asked(request.response_status)?;
                all.push((request.response_type, request.response_parameters));
            }
            for (response_type, list) in all {
                for parameters in &list {
                    responses.send(output(response_type, parameters)?).await?;
                }
            }
            Ok(())
        })))
    }

    async fn unimplemented_call(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        Err(Status::unimplemented("no server implements this method"))
    }
}

/// Returns the status that the request asks for.
fn fail_if_asked(status: Option<EchoStatus>) -> Result<(), Status> {
    let Some(EchoStatus { code, message }) = status else {
        return Ok(());
    };
    let code = u16::try_from(code).map_or(Code::Unknown, Code::from_number);
    Err(Status::new(code, message))
}

fn reject_compression(is_wanted: bool) -> Result<(), Status> {
    if is_wanted {
        return Err(Status::invalid_argument("messages are never compressed"));
    }
    Ok(())
}

fn output(
    response_type: i32,
    parameters: &ResponseParameters,
) -> Result<StreamingOutputCallResponse, Status> {
    reject_compression(parameters.compressed.is_some_and(|flag| flag.value))?;
    if parameters.interval_us != 0 {
        return Err(Status::invalid_argument(
            "this server does not wait between responses: `interval_us` must be 0",
        ));
    }
    let payload = Some(payload(response_type, parameters.size)?);
    Ok(StreamingOutputCallResponse { payload })
}

/// Creates a payload of zeros.
fn payload(response_type: i32, len: i32) -> Result<Payload, Status> {
    if response_type != PayloadType::Compressable as i32 {
        let message = format!("payload type {response_type} is unknown");
        return Err(Status::invalid_argument(message));
    }
    let len = usize::try_from(len)
        .map_err(|_| Status::invalid_argument(format!("a payload cannot have {len} bytes")))?;
    Ok(Payload {
        r#type: response_type,
        body: vec![0; len],
    })
}

/// Adds the metadata that the client wants to have back.
fn with_echo<T>(mut response: Response<T>, request: &Metadata) -> Result<Response<T>, Status> {
    let invalid = |error| Status::internal(format!("metadata of the request is invalid: {error}"));
    if let Some(value) = request.get_bin(ECHO_INITIAL) {
        let metadata = response.metadata_mut();
        metadata
            .insert(ECHO_INITIAL, value.to_vec())
            .map_err(invalid)?;
    }
    if let Some(value) = request.get_bin(ECHO_TRAILING) {
        let metadata = response.trailing_metadata_mut();
        metadata
            .insert(ECHO_TRAILING, value.to_vec())
            .map_err(invalid)?;
    }
    Ok(response)
}
