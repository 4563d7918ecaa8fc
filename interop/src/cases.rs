//! The cases, with the names and the semantics of gRPC's `interop-test-descriptions.md`.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use proto::interop::{
    EchoStatus, Empty, Payload, ResponseParameters, SimpleRequest, StreamingInputCallRequest,
    StreamingOutputCallRequest, StreamingOutputCallResponse, TestServiceClient,
    UnimplementedServiceClient,
};
use rpc_core::{Code, Metadata, Request, SendError, StatsReader, Streaming, sender};

use crate::client::{Failure, Flavor, expect, expect_error, request};
use crate::service::{ECHO_INITIAL, ECHO_TRAILING};

/// The lengths of the payloads of a stream of requests, in bytes.
const REQUEST_LENS: [usize; 4] = [27_182, 8, 1_828, 45_904];

/// The lengths of the payloads of a stream of responses, in bytes.
const RESPONSE_LENS: [usize; 4] = [31_415, 9, 2_653, 58_979];

/// The lengths of the payloads of the longest messages, in bytes.
const LONG_REQUEST_LEN: usize = 271_828;
const LONG_RESPONSE_LEN: usize = 314_159;

/// Channels of `channel_soak`.
const SOAK_CHANNELS: usize = 20;

/// The deadlines of `timeout_on_sleeping_server`: gRPC's, and one that only a server exceeds that does
/// not end the call.
const SHORT_TIMEOUTS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(250)];

/// How long a cancelled call may take to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(20);

/// A case: returns the sizes that it has used.
pub(crate) type Case<F> = fn(&Client<F>) -> Result<String, Failure>;

/// A client and its channel.
pub(crate) struct Client<F: Flavor> {
    flavor: F,
    channel: F::Channel,
    service: TestServiceClient<F::Channel>,
    /// The statistics of the server, if it is in this process.
    server: Option<StatsReader>,
    /// Calls of `concurrent_large_unary`, and of `rpc_soak`.
    calls: usize,
}

/// The names of the cases, in the order in which they run.
pub(crate) const NAMES: [&str; 17] = [
    "empty_unary",
    "large_unary",
    "concurrent_large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "custom_metadata",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
    "cancel_after_begin",
    "cancel_after_first_response",
    "timeout_on_sleeping_server",
    "rpc_soak",
    "channel_soak",
];

impl<F: Flavor> Client<F> {
    pub(crate) fn connect(
        flavor: F,
        server: Option<StatsReader>,
        calls: usize,
    ) -> Result<Self, Failure> {
        let channel = flavor.connect()?;
        let service = TestServiceClient::new(channel.clone());
        Ok(Self {
            flavor,
            channel,
            service,
            server,
            calls,
        })
    }

    /// The cases, in the order of [`NAMES`].
    pub(crate) const CASES: [Case<F>; NAMES.len()] = [
        Self::empty_unary,
        Self::large_unary,
        Self::concurrent_large_unary,
        Self::client_streaming,
        Self::server_streaming,
        Self::ping_pong,
        Self::empty_stream,
        Self::custom_metadata,
        Self::status_code_and_message,
        Self::special_status_message,
        Self::unimplemented_method,
        Self::unimplemented_service,
        Self::cancel_after_begin,
        Self::cancel_after_first_response,
        Self::timeout_on_sleeping_server,
        Self::rpc_soak,
        Self::channel_soak,
    ];

    fn empty_unary(&self) -> Result<String, Failure> {
        let call = self.service.empty_call(request(Empty {}));
        expect(
            "response",
            self.flavor.block_on(call)?.into_inner(),
            Empty {},
        )?;
        Ok("0 bytes".to_owned())
    }

    fn large_unary(&self) -> Result<String, Failure> {
        self.flavor.block_on(long_unary(&self.service))?;
        Ok(format!(
            "request {LONG_REQUEST_LEN}, response {LONG_RESPONSE_LEN} bytes"
        ))
    }

    fn concurrent_large_unary(&self) -> Result<String, Failure> {
        let count = self.calls;
        let calls = (0..count).map(|_| Box::pin(long_unary(&self.service)));
        let mut calls: Vec<_> = calls.collect();
        let mut longest = Duration::ZERO;
        self.flavor.block_on(poll_fn(|cx| {
            let mut failure = None;
            calls.retain_mut(|call| match call.as_mut().poll(cx) {
                Poll::Pending => true,
                Poll::Ready(Ok(took)) => {
                    longest = longest.max(took);
                    false
                }
                Poll::Ready(Err(error)) => {
                    failure = Some(error);
                    false
                }
            });
            match failure {
                Some(failure) => Poll::Ready(Err(failure)),
                None if calls.is_empty() => Poll::Ready(Ok(())),
                None => Poll::Pending,
            }
        }))?;
        Ok(format!(
            "{count} calls at a time, request {LONG_REQUEST_LEN}, response {LONG_RESPONSE_LEN} bytes, longest {longest:.1?}"
        ))
    }

    fn client_streaming(&self) -> Result<String, Failure> {
        let requests = tokio_stream::iter(REQUEST_LENS.map(input));
        let service = &self.service;
        let call = service.streaming_input_call(request(requests));
        let response = self.flavor.block_on(call)?.into_inner();
        let total: usize = REQUEST_LENS.iter().sum();
        let expected = i32::try_from(total).unwrap_or(i32::MAX);
        expect("total length", response.aggregated_payload_size, expected)?;
        Ok(format!("requests {REQUEST_LENS:?}, in total {total} bytes"))
    }

    fn server_streaming(&self) -> Result<String, Failure> {
        let service = &self.service;
        let lens = self.flavor.block_on(async {
            let call = service.streaming_output_call(request(output(None, &RESPONSE_LENS)));
            let mut responses = call.await?.into_inner();
            let mut lens = Vec::new();
            while let Some(response) = responses.message().await? {
                lens.push(zeros(response.payload)?);
            }
            Ok::<_, Failure>(lens)
        })?;
        expect("lengths of the responses", &lens[..], &RESPONSE_LENS)?;
        Ok(format!("responses {RESPONSE_LENS:?} bytes"))
    }

    fn ping_pong(&self) -> Result<String, Failure> {
        let service = &self.service;
        self.flavor.block_on(async {
            let (mut requests, messages) = sender();
            let message = |index: usize| output(Some(REQUEST_LENS[index]), &[RESPONSE_LENS[index]]);
            // Before the call has begun: servers of other kinds begin with their first response.
            requests.send(message(0)).await?;
            let call = service.full_duplex_call(request(messages));
            let mut responses = call.await?.into_inner();
            for (index, response_len) in RESPONSE_LENS.into_iter().enumerate() {
                if index > 0 {
                    requests.send(message(index)).await?;
                }
                expect_response(&mut responses, Some(response_len)).await?;
            }
            drop(requests);
            expect_response(&mut responses, None).await
        })?;
        Ok(format!(
            "requests {REQUEST_LENS:?}, responses {RESPONSE_LENS:?} bytes"
        ))
    }

    fn empty_stream(&self) -> Result<String, Failure> {
        let service = &self.service;
        self.flavor.block_on(async {
            let call = service.full_duplex_call(request(tokio_stream::empty()));
            let mut responses = call.await?.into_inner();
            expect_response(&mut responses, None).await
        })?;
        Ok("no messages".to_owned())
    }

    fn custom_metadata(&self) -> Result<String, Failure> {
        let service = &self.service;
        self.flavor.block_on(async {
            let call = service.unary_call(with_metadata(request(long_request()))?);
            let response = call.await?;
            expect_initial(response.metadata())?;
            expect_trailing(response.trailing_metadata())?;
            let len = zeros(response.into_inner().payload)?;
            expect("length of the response", len, LONG_RESPONSE_LEN)?;

            let message = output(Some(LONG_REQUEST_LEN), &[LONG_RESPONSE_LEN]);
            let messages = tokio_stream::once(message);
            let call = service.full_duplex_call(with_metadata(request(messages))?);
            let response = call.await?;
            expect_initial(response.metadata())?;
            let mut responses = response.into_inner();
            expect_response(&mut responses, Some(LONG_RESPONSE_LEN)).await?;
            expect_response(&mut responses, None).await?;
            expect_trailing(&responses.trailers().await?)
        })?;
        Ok(format!(
            "request {LONG_REQUEST_LEN}, response {LONG_RESPONSE_LEN} bytes"
        ))
    }

    fn status_code_and_message(&self) -> Result<String, Failure> {
        let message = "test status message";
        let service = &self.service;
        self.flavor.block_on(async {
            let call = service.unary_call(request(SimpleRequest {
                response_status: Some(unknown(message)),
                ..SimpleRequest::default()
            }));
            expect_status(call.await, message)?;

            let messages = tokio_stream::once(StreamingOutputCallRequest {
                response_status: Some(unknown(message)),
                ..StreamingOutputCallRequest::default()
            });
            // The server may fail the call before or after it has begun to respond.
            let outcome = match service.full_duplex_call(request(messages)).await {
                Ok(responses) => responses.into_inner().message().await,
                Err(error) => Err(error),
            };
            expect_status(outcome, message)
        })?;
        Ok(format!("message of {} bytes", message.len()))
    }

    fn special_status_message(&self) -> Result<String, Failure> {
        let message = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";
        let call = request(SimpleRequest {
            response_status: Some(unknown(message)),
            ..SimpleRequest::default()
        });
        expect_status(self.flavor.block_on(self.service.unary_call(call)), message)?;
        Ok(format!("message of {} bytes", message.len()))
    }

    fn unimplemented_method(&self) -> Result<String, Failure> {
        let call = self.service.unimplemented_call(request(Empty {}));
        expect_error(self.flavor.block_on(call), Code::Unimplemented)?;
        Ok("0 bytes".to_owned())
    }

    fn unimplemented_service(&self) -> Result<String, Failure> {
        let service = UnimplementedServiceClient::new(self.channel.clone());
        let call = service.unimplemented_call(request(Empty {}));
        expect_error(self.flavor.block_on(call), Code::Unimplemented)?;
        Ok("0 bytes".to_owned())
    }

    fn cancel_after_begin(&self) -> Result<String, Failure> {
        let service = &self.service;
        let before = self.cancelled();
        self.flavor.block_on(async {
            let (mut requests, messages) = sender();
            {
                let mut call = pin!(service.streaming_input_call(request(messages)));
                let begun = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
                expect("the call has ended", begun.is_ready(), false)?;
                // The request goes to the same connection first.
                service.empty_call(request(Empty {})).await?;
                let begun = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
                expect("the call has ended", begun.is_ready(), false)?;
            }
            expect_cancelled(&mut requests, input(1)).await
        })?;
        self.expect_one_cancelled(before)?;
        Ok("no messages".to_owned())
    }

    fn cancel_after_first_response(&self) -> Result<String, Failure> {
        let service = &self.service;
        let before = self.cancelled();
        let (request_len, response_len) = (REQUEST_LENS[0], RESPONSE_LENS[0]);
        self.flavor.block_on(async {
            let (mut requests, messages) = sender();
            let message = output(Some(request_len), &[response_len]);
            requests.send(message.clone()).await?;
            let call = service.full_duplex_call(request(messages));
            let mut responses = call.await?.into_inner();
            expect_response(&mut responses, Some(response_len)).await?;
            // By then the server has ended the call, if it does so too early.
            service.empty_call(request(Empty {})).await?;
            {
                let mut next = pin!(responses.message());
                let next = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await;
                expect("the call has ended", next.is_ready(), false)?;
            }
            drop(responses);
            expect_cancelled(&mut requests, message).await
        })?;
        self.expect_one_cancelled(before)?;
        Ok(format!(
            "request {request_len}, response {response_len} bytes"
        ))
    }

    fn timeout_on_sleeping_server(&self) -> Result<String, Failure> {
        let service = &self.service;
        for timeout in SHORT_TIMEOUTS {
            let outcome = self.flavor.block_on(async {
                let (mut requests, messages) = sender();
                // The server waits for a second request.
                let _ = requests.send(output(Some(REQUEST_LENS[0]), &[])).await;
                let messages = Request::new(messages).with_timeout(timeout);
                let mut responses = service.full_duplex_call(messages).await?.into_inner();
                responses.message().await
            });
            expect_error(outcome, Code::DeadlineExceeded)?;
        }
        Ok(format!(
            "request {} bytes, timeouts {SHORT_TIMEOUTS:?}",
            REQUEST_LENS[0]
        ))
    }

    fn rpc_soak(&self) -> Result<String, Failure> {
        let service = &self.service;
        let longest = self.flavor.block_on(async {
            let mut longest = Duration::ZERO;
            for _ in 0..self.calls {
                longest = longest.max(long_unary(service).await?);
            }
            Ok::<_, Failure>(longest)
        })?;
        Ok(format!(
            "{} calls, request {LONG_REQUEST_LEN}, response {LONG_RESPONSE_LEN} bytes, longest {longest:.1?}",
            self.calls
        ))
    }

    fn channel_soak(&self) -> Result<String, Failure> {
        let mut longest = Duration::ZERO;
        for _ in 0..SOAK_CHANNELS {
            let service = TestServiceClient::new(self.flavor.connect()?);
            longest = longest.max(self.flavor.block_on(long_unary(&service))?);
        }
        Ok(format!(
            "{SOAK_CHANNELS} channels, request {LONG_REQUEST_LEN}, response {LONG_RESPONSE_LEN} bytes, longest {longest:.1?}"
        ))
    }

    /// Reads the counters of cancelled calls.
    fn cancelled(&self) -> Cancelled {
        let total = self.flavor.stats(&self.channel).map(|stats| stats.total());
        let served = self
            .server
            .as_ref()
            .map(|server| server.stats().total().served);
        let ended = served.map(|served| {
            served
                .iter()
                .map(|method| method.ended(Code::Cancelled))
                .sum()
        });
        Cancelled {
            told: total.as_ref().map(|total| total.cancels.in_flight),
            answered: total.map(|total| total.streams.ended),
            ended,
        }
    }

    /// Waits until one more stream has been cancelled. Each stream is answered once, so no other has
    /// ended meanwhile.
    fn expect_one_cancelled(&self, before: Cancelled) -> Result<(), Failure> {
        let more = |count: Option<u64>| count.map(|count| count + 1);
        let expected = Cancelled {
            told: more(before.told),
            answered: more(before.answered),
            ended: more(before.ended),
        };
        let begun = Instant::now();
        while self.cancelled() != expected && begun.elapsed() < CANCEL_TIMEOUT {
            // Lets a local poller run.
            self.flavor
                .block_on(self.service.empty_call(request(Empty {})))?;
        }
        expect("counters of cancelled calls", self.cancelled(), expected)
    }
}

/// How many streams have been cancelled. A client over HTTP/2 counts none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cancelled {
    /// Of which the client has told the server.
    told: Option<u64>,
    /// Streams that the server has answered, cancelled or not.
    answered: Option<u64>,
    /// Calls that ended with `CANCELLED` at the server. `None` if it is another process.
    ended: Option<u64>,
}

fn zeros_of(len: usize) -> Option<Payload> {
    Some(Payload {
        body: vec![0; len],
        ..Payload::default()
    })
}

/// Returns the length of a payload, which has only zeros.
fn zeros(payload: Option<Payload>) -> Result<usize, Failure> {
    let body = payload.unwrap_or_default().body;
    let others = body.iter().filter(|&&byte| byte != 0).count();
    expect("bytes of a payload that are not 0", others, 0)?;
    Ok(body.len())
}

fn input(len: usize) -> StreamingInputCallRequest {
    StreamingInputCallRequest {
        payload: zeros_of(len),
        expect_compressed: None,
    }
}

fn output(payload_len: Option<usize>, response_lens: &[usize]) -> StreamingOutputCallRequest {
    let parameters = response_lens.iter().map(|&len| ResponseParameters {
        size: i32::try_from(len).unwrap_or(i32::MAX),
        ..ResponseParameters::default()
    });
    StreamingOutputCallRequest {
        response_parameters: parameters.collect(),
        payload: payload_len.and_then(zeros_of),
        ..StreamingOutputCallRequest::default()
    }
}

fn long_request() -> SimpleRequest {
    SimpleRequest {
        response_size: i32::try_from(LONG_RESPONSE_LEN).unwrap_or(i32::MAX),
        payload: zeros_of(LONG_REQUEST_LEN),
        ..SimpleRequest::default()
    }
}

/// Makes the call of gRPC's `large_unary`. Returns how long it took.
async fn long_unary<C: rpc_core::Caller>(
    service: &TestServiceClient<C>,
) -> Result<Duration, Failure> {
    let begun = Instant::now();
    let response = service.unary_call(request(long_request())).await?;
    let took = begun.elapsed();
    let len = zeros(response.into_inner().payload)?;
    expect("length of the response", len, LONG_RESPONSE_LEN)?;
    Ok(took)
}

/// Expects a response of this length, or the end of the stream.
async fn expect_response(
    responses: &mut Streaming<StreamingOutputCallResponse>,
    len: Option<usize>,
) -> Result<(), Failure> {
    let response = responses.message().await?;
    let found = response.map(|response| zeros(response.payload));
    expect("length of the response", found.transpose()?, len)
}

/// Waits until the sender of a cancelled call says so.
async fn expect_cancelled<T: Clone>(
    requests: &mut rpc_core::Sender<T>,
    message: T,
) -> Result<(), Failure> {
    expect(
        "outcome of `send`",
        requests.send(message).await,
        Err(SendError::Ended),
    )
}

fn with_metadata<T>(mut request: Request<T>) -> Result<Request<T>, Failure> {
    for (key, value) in METADATA {
        request.metadata_mut().insert(key, value)?;
    }
    Ok(request)
}

/// The metadata that the server returns.
const METADATA: [(&str, &[u8]); 2] = [
    (ECHO_INITIAL, b"test_initial_metadata_value"),
    (ECHO_TRAILING, &[0xab, 0xab, 0xab]),
];

fn expect_initial(metadata: &Metadata) -> Result<(), Failure> {
    let [(key, value), _] = METADATA;
    expect("initial metadata", metadata.get_bin(key), Some(value))
}

fn expect_trailing(metadata: &Metadata) -> Result<(), Failure> {
    let [_, (key, value)] = METADATA;
    expect("trailing metadata", metadata.get_bin(key), Some(value))
}

fn unknown(message: &str) -> EchoStatus {
    EchoStatus {
        code: i32::from(Code::Unknown.number()),
        message: message.to_owned(),
    }
}

fn expect_status<T>(outcome: Result<T, rpc_core::CallError>, message: &str) -> Result<(), Failure> {
    let error = expect_error(outcome, Code::Unknown)?;
    let found = error.status().map(rpc_core::Status::message);
    expect("status message", found, Some(message))
}
