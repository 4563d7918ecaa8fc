//! Handlers of all kinds, with a stream that is driven by hand in place of a driver.

mod kinds;
mod surroundings;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_core::Stream;
use prost::Message;

use crate::deadline;
use crate::limits::{LengthLimit, MessageLimit};
use crate::message::{Request, Response};
use crate::metadata::Metadata;
use crate::method::{Idempotency, MethodKind, MethodSpec};
use crate::offload::Spawned;
use crate::outcome::{self, Section};
use crate::peer_memory::memory_of_a_host;
use crate::protocol::frame::ResponseHead;
use crate::service::dispatch::Methods;
use crate::service::executor::OnExecutor;
use crate::service::handler::{Handler, HandlerKey, RawRequest, ResponseLengths, Served};
use crate::service::registration::Instances;
use crate::status::{Code, Status};
use crate::stream::batch::{MessageForm, next_message};
use crate::stream::core::{SignalQueue, StreamCore};
use crate::stream::end::StreamEnd;
use crate::stream::from_fn::stream;
use crate::stream::outbound::StreamSizes;
use crate::stream::streaming::Streaming;

const fn spec(kind: MethodKind) -> MethodSpec {
    MethodSpec::new("test.Test/Any", kind, Idempotency::Unknown, "u64", "u64")
}

const UNARY: MethodSpec = spec(MethodKind::Unary);
const CLIENT: MethodSpec = spec(MethodKind::ClientStreaming);
const SERVER: MethodSpec = spec(MethodKind::ServerStreaming);
const BOTH: MethodSpec = spec(MethodKind::Streaming);

/// A handler, and the stream of one call of it.
struct Fixture {
    handler: Rc<dyn Handler>,
    stream: Arc<StreamCore>,
}

/// A driver that never looks: the test does.
#[derive(Debug)]
struct NoDriver;

impl SignalQueue for NoDriver {
    fn push_stream(&self, _: u32) {}
}

impl Fixture {
    fn new(register: impl FnOnce(&mut Methods)) -> Self {
        let mut methods = Methods::new();
        register(&mut methods);
        let stream = StreamCore::new();
        let sizes = StreamSizes {
            frame_room: 1024,
            inbound_window: 4096,
            outbound_window: 4096,
            coalesces: true,
            longest_message: MessageLimit::new(1024, LengthLimit::Receiver),
            is_served: false,
        };
        let waiting = stream.attach(Arc::new(NoDriver), 0, sizes, memory_of_a_host());
        assert!(waiting.is_none());
        Self {
            handler: Rc::clone(methods.handler(0).unwrap()),
            stream,
        }
    }

    fn serve(&self, message: &[u8], out: &mut [u8]) -> Served {
        self.serve_until(None, message, out)
    }

    fn serve_until(&self, deadline: Option<Instant>, message: &[u8], out: &mut [u8]) -> Served {
        let request = RawRequest {
            long: None,
            metadata: &[],
            message,
            deadline,
            stream: Some(&self.stream),
            peer: &Cell::new(None),
        };
        let mut cx = Context::from_waker(Waker::noop());
        self.handler.serve(request, &mut cx, out)
    }

    fn resume(&self, key: HandlerKey, out: &mut [u8]) -> Served {
        let mut cx = Context::from_waker(Waker::noop());
        self.handler.resume(key, &mut cx, out)
    }

    /// Delivers one message of the client.
    fn deliver(&self, number: u64) {
        let mut state = self.stream.lock();
        let body = number.encode_to_vec();
        state.inbound.receive(MessageForm::One, &body).unwrap();
    }

    fn half_close(&self) {
        self.stream.lock().inbound.end(StreamEnd::HalfClosed);
    }

    /// Takes the frames that wait: the initial metadata, and all messages.
    fn sent(&self) -> (Metadata, Vec<u64>) {
        let (mut metadata, mut numbers) = (Metadata::new(), Vec::new());
        let mut state = self.stream.lock();
        while let Some(frame) = state.outbound.next_frame() {
            let mut body = vec![0; frame.metadata_len + frame.message_len];
            state.outbound.write_frame(&frame, &mut body);
            let (initial, messages) = body.split_at(frame.metadata_len);
            if !initial.is_empty() {
                metadata = Metadata::decode(initial).unwrap();
            }
            match frame.form {
                MessageForm::None => {}
                MessageForm::One => numbers.push(u64::decode(messages).unwrap()),
                MessageForm::Batch => {
                    let mut at = 0;
                    while let Some(message) = next_message(messages, &mut at).unwrap() {
                        numbers.push(u64::decode(message).unwrap());
                    }
                }
            }
        }
        (metadata, numbers)
    }

    fn assert_nothing_kept(&self) {
        assert_eq!(self.handler.in_use(), 0);
    }
}

fn pending(served: Served) -> HandlerKey {
    match served {
        Served::Pending(key) => key,
        served => panic!("{served:?} where the handler should wait"),
    }
}

fn failed(served: Served) -> Status {
    match served {
        Served::Failed(status) => status,
        served => panic!("{served:?} where the handler should fail"),
    }
}

fn encoded(served: Served) -> ResponseLengths {
    match served {
        Served::Encoded(len) => len,
        served => panic!("{served:?} where the response should be complete"),
    }
}

/// Decodes a response as a client does: initial metadata, trailing metadata and message.
fn decode(len: ResponseLengths, out: &[u8], section: Section) -> (Metadata, Metadata, Vec<u8>) {
    let head = ResponseHead {
        code: Code::Ok.number(),
        metadata_len: len.metadata,
        has_initial: len.has_initial,
        pushback_us: 0,
    };
    let outcome = outcome::decode(head, &out[..len.total()], section).unwrap();
    (
        outcome.initial_metadata,
        outcome.trailing_metadata,
        outcome.message.to_vec(),
    )
}

async fn sum(mut numbers: Streaming<u64>) -> Result<u64, Status> {
    let mut sum = 0;
    while let Some(number) = numbers
        .message()
        .await
        .map_err(|error| Status::internal(error.to_string()))?
    {
        sum += number;
    }
    Ok(sum)
}

fn insert(metadata: &mut Metadata, key: &str, value: &str) {
    metadata.insert(key, value.to_owned()).unwrap();
}

/// Counts up to the number in the request, with metadata on both ends.
fn count_up_to(last: u64) -> Response<impl Stream<Item = Result<u64, Status>>> {
    let mut response = Response::new(stream(async move |mut responses| {
        for number in 1..=last {
            responses.send(number).await?;
        }
        Ok(())
    }));
    insert(response.metadata_mut(), "initial", "1");
    insert(response.trailing_metadata_mut(), "trailing", "2");
    response
}
