//! Handlers of all kinds, with a stream that is driven by hand in place of a driver.

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
use crate::message::{Request, Response};
use crate::metadata::Metadata;
use crate::method::{Idempotency, MethodKind, MethodSpec};
use crate::outcome::{self, Section};
use crate::protocol::frame::ResponseHead;
use crate::service::dispatch::{Instances, Methods};
use crate::service::executor::{OnExecutor, Spawned};
use crate::service::handler::{Handler, HandlerKey, RawRequest, ResponseLengths, Served};
use crate::status::{Code, Status};
use crate::stream::batch::{MessageForm, next_message};
use crate::stream::core::{SignalQueue, StreamCore, StreamSizes};
use crate::stream::from_fn::stream;
use crate::stream::inbound::StreamEnd;
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
        };
        let waiting = stream.attach(Arc::new(NoDriver), 0, sizes);
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
            metadata: &[],
            message,
            deadline,
            stream: Some(&self.stream),
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
        metadata_len: len.metadata.try_into().unwrap(),
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

#[test]
fn a_method_has_the_kind_with_which_it_was_registered() {
    let mut methods = Methods::new();
    methods.unary(&UNARY, async |_: Request<u64>| Ok(Response::new(0u64)));
    methods.client_streaming(&CLIENT, async |_: Request<Streaming<u64>>| {
        Ok(Response::new(0u64))
    });
    methods.server_streaming(&SERVER, async |_: Request<u64>, responses| {
        responses.send_all(Ok(count_up_to(0))).await
    });
    methods.streaming(&BOTH, async |_: Request<Streaming<u64>>, responses| {
        responses.send_all(Ok(count_up_to(0))).await
    });
    for (number, spec) in methods.numbered() {
        assert_eq!(methods.handler(number).unwrap().kind(), spec.kind);
    }
}

#[test]
fn a_client_streaming_handler_reads_what_arrives_and_answers_once() {
    let fixture = Fixture::new(|methods| {
        methods.client_streaming(&CLIENT, async |request: Request<Streaming<u64>>| {
            let mut response = Response::new(sum(request.into_inner()).await?);
            insert(response.metadata_mut(), "initial", "1");
            Ok(response)
        });
    });
    let mut out = [0; 64];
    let key = pending(fixture.serve(&[], &mut out));
    fixture.deliver(3);
    fixture.deliver(4);
    let key = pending(fixture.resume(key, &mut out));
    fixture.half_close();
    let len = encoded(fixture.resume(key, &mut out));
    assert!(!len.has_initial);
    let (initial, trailing, message) = decode(len, &out, Section::Initial);
    assert_eq!(initial.get("initial"), Some("1"));
    assert!(trailing.is_empty());
    assert_eq!(u64::decode(&*message), Ok(7));
    fixture.assert_nothing_kept();
}

#[test]
fn a_server_streaming_handler_sends_messages_and_ends_with_trailing_metadata() {
    let fixture = Fixture::new(|methods| {
        methods.server_streaming(&SERVER, async |request: Request<u64>, responses| {
            let outcome = Ok(count_up_to(request.into_inner()));
            responses.send_all(outcome).await
        });
    });
    let mut out = [0; 64];
    let len = encoded(fixture.serve(&3u64.encode_to_vec(), &mut out));
    let (metadata, numbers) = fixture.sent();
    assert_eq!(metadata.get("initial"), Some("1"));
    assert_eq!(numbers, [1, 2, 3]);
    assert!(!len.has_initial);
    let (initial, trailing, message) = decode(len, &out, Section::Trailing);
    assert!(initial.is_empty());
    assert_eq!(trailing.get("trailing"), Some("2"));
    assert!(message.is_empty());
    fixture.assert_nothing_kept();
}

#[test]
fn a_server_streaming_request_that_does_not_decode_starts_no_handler() {
    let started = Rc::new(Cell::new(false));
    let in_handler = Rc::clone(&started);
    let fixture = Fixture::new(|methods| {
        methods.server_streaming(&SERVER, move |_: Request<u64>, responses| {
            in_handler.set(true);
            responses.send_all(Ok(count_up_to(1)))
        });
    });
    let Served::Undecodable(status) = fixture.serve(&[0xff], &mut []) else {
        panic!("the request was decoded");
    };
    assert_eq!(status.code(), Code::Internal);
    assert!(!started.get());
    fixture.assert_nothing_kept();
}

#[test]
fn a_streaming_handler_without_a_stream_is_unimplemented() {
    let fixture = Fixture::new(|methods| {
        methods.client_streaming(&CLIENT, async |request: Request<Streaming<u64>>| {
            Ok(Response::new(sum(request.into_inner()).await?))
        });
    });
    let request = RawRequest {
        metadata: &[],
        message: &[],
        deadline: None,
        stream: None,
    };
    let mut cx = Context::from_waker(Waker::noop());
    let Served::Undecodable(status) = fixture.handler.serve(request, &mut cx, &mut []) else {
        panic!("the handler was started");
    };
    assert_eq!(status.code(), Code::Unimplemented);
}

#[test]
fn a_handler_with_two_streams_answers_each_message_as_it_arrives() {
    let fixture = Fixture::new(|methods| {
        methods.streaming(
            &BOTH,
            async |request: Request<Streaming<u64>>, responses| {
                let mut numbers = request.into_inner();
                let doubled = stream(async move |mut responses| {
                    while let Ok(Some(number)) = numbers.message().await {
                        responses.send(2 * number).await?;
                    }
                    Ok(())
                });
                responses.send_all(Ok(Response::new(doubled))).await
            },
        );
    });
    let mut out = [0; 64];
    let mut key = pending(fixture.serve(&[], &mut out));
    for number in [5, 6] {
        fixture.deliver(number);
        key = pending(fixture.resume(key, &mut out));
        assert_eq!(fixture.sent().1, [2 * number]);
    }
    fixture.half_close();
    let len = encoded(fixture.resume(key, &mut out));
    assert_eq!((len.total(), len.has_initial), (0, false));
    fixture.assert_nothing_kept();
}

/// A stream whose code has a bug.
struct Buggy {
    panics_when_polled: bool,
    panics_when_dropped: bool,
}

impl Stream for Buggy {
    type Item = Result<u64, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        assert!(!self.panics_when_polled, "a bug in poll_next");
        Poll::Ready(None)
    }
}

impl Drop for Buggy {
    fn drop(&mut self) {
        assert!(
            !self.panics_when_dropped || thread::panicking(),
            "a bug in drop"
        );
    }
}

#[test]
fn a_panic_of_a_stream_ends_its_own_call_and_its_memory_is_used_again() {
    for (in_poll, in_drop) in [(true, false), (false, true), (true, true)] {
        let fixture = Fixture::new(|methods| {
            methods.server_streaming(
                &SERVER,
                move |request: Request<u64>, responses| async move {
                    let is_buggy = request.into_inner() == 0;
                    let buggy = Buggy {
                        panics_when_polled: in_poll && is_buggy,
                        panics_when_dropped: in_drop && is_buggy,
                    };
                    responses.send_all(Ok(Response::new(buggy))).await
                },
            );
        });
        let status = failed(fixture.serve(&0u64.encode_to_vec(), &mut []));
        assert_eq!(status.code(), Code::Internal);
        assert!(status.message().contains("a bug in"), "{status}");
        fixture.assert_nothing_kept();
        encoded(fixture.serve(&1u64.encode_to_vec(), &mut []));
    }
}

#[test]
fn a_handler_that_is_dropped_discards_what_its_client_still_sends() {
    let fixture = Fixture::new(|methods| {
        methods.client_streaming(&CLIENT, async |request: Request<Streaming<u64>>| {
            Ok(Response::new(sum(request.into_inner()).await?))
        });
    });
    let key = pending(fixture.serve(&[], &mut []));
    assert_eq!(Arc::strong_count(&fixture.stream), 2);
    fixture.handler.discard(key);
    fixture.assert_nothing_kept();
    assert_eq!(Arc::strong_count(&fixture.stream), 1);
    fixture.deliver(1);
    // Discarded messages are granted to the client again.
    assert!(fixture.stream.lock().inbound.take_grant() > 0);
}

/// A service that is not `Send`, and whose streams borrow it.
struct Shelf {
    numbers: RefCell<Vec<u64>>,
    _not_send: Rc<()>,
}

impl Shelf {
    async fn list(
        &self,
        request: Request<u64>,
    ) -> Result<Response<impl Stream<Item = Result<u64, Status>>>, Status> {
        let least = request.into_inner();
        Ok(Response::new(stream(async move |mut responses| {
            let mut index = 0;
            while let Some(number) = { self.numbers.borrow().get(index).copied() } {
                index += 1;
                if number >= least {
                    responses.send(number).await?;
                }
            }
            Ok(())
        })))
    }
}

#[test]
fn a_stream_may_borrow_the_service_of_its_poller() {
    let instances = Instances::per_poller(|| Shelf {
        numbers: RefCell::new(vec![1, 5, 9]),
        _not_send: Rc::new(()),
    });
    let fixture = Fixture::new(|methods| {
        let instance = instances.instance();
        methods.server_streaming(&SERVER, move |request: Request<u64>, responses| {
            let service = instance.clone();
            async move { responses.send_all(service.list(request).await).await }
        });
    });
    encoded(fixture.serve(&4u64.encode_to_vec(), &mut []));
    assert_eq!(fixture.sent().1, [5, 9]);
}

#[test]
fn a_stream_on_an_executor_is_sent_from_its_thread_with_the_deadline_of_the_call() {
    let spawned: Arc<Mutex<Option<Spawned>>> = Arc::default();
    let queue = Arc::clone(&spawned);
    let executor = OnExecutor::new(Arc::new(()), move |future| {
        *queue.lock().unwrap() = Some(future);
    });
    let seen = Arc::new(Mutex::new(None));
    let in_handler = Arc::clone(&seen);
    let fixture = Fixture::new(|methods| {
        methods.streaming(&BOTH, move |request: Request<Streaming<u64>>, responses| {
            let seen = Arc::clone(&in_handler);
            executor.run(async move {
                let number = sum(request.into_inner()).await?;
                *seen.lock().unwrap() = deadline::current();
                responses.send_all(Ok(count_up_to(number))).await
            })
        });
    });
    let moment = Instant::now() + Duration::from_secs(1);
    let mut out = [0; 64];
    let key = pending(fixture.serve_until(Some(moment), &[], &mut out));
    fixture.deliver(2);
    fixture.half_close();
    let mut future = spawned.lock().unwrap().take().unwrap();
    let running = thread::spawn(move || {
        let mut cx = Context::from_waker(Waker::noop());
        future.as_mut().poll(&mut cx)
    });
    assert_eq!(running.join().unwrap(), Poll::Ready(()));
    assert_eq!(*seen.lock().unwrap(), Some(moment));
    let len = encoded(fixture.resume(key, &mut out));
    assert_eq!(fixture.sent().1, [1, 2]);
    let (_, trailing, _) = decode(len, &out, Section::Trailing);
    assert_eq!(trailing.get("trailing"), Some("2"));
}

#[test]
fn the_deadline_of_a_call_is_current_in_every_poll_of_its_handler() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let in_handler = Rc::clone(&seen);
    let fixture = Fixture::new(|methods| {
        methods.unary(&UNARY, move |_: Request<u64>| {
            let seen = Rc::clone(&in_handler);
            poll_fn(move |_| {
                seen.borrow_mut().push(deadline::current());
                match seen.borrow().len() {
                    1 => Poll::Pending,
                    2 => panic!("in the second poll"),
                    _ => Poll::Ready(Ok(Response::new(0u64))),
                }
            })
        });
    });
    let moment = Instant::now();
    let outer = Some(moment + Duration::from_secs(1));
    let _scope = deadline::enter(outer);
    let key = pending(fixture.serve_until(Some(moment), &[], &mut []));
    assert_eq!(deadline::current(), outer);
    failed(fixture.resume(key, &mut []));
    assert_eq!(deadline::current(), outer);
    encoded(fixture.serve(&[], &mut []));
    assert_eq!(*seen.borrow(), [Some(moment), Some(moment), None]);
}

#[test]
fn a_unary_response_carries_both_kinds_of_metadata() {
    let fixture = Fixture::new(|methods| {
        methods.unary(&UNARY, async |_: Request<u64>| {
            let mut response = Response::new(8u64);
            insert(response.metadata_mut(), "initial", "1");
            insert(response.trailing_metadata_mut(), "trailing", "2");
            Ok(response)
        });
    });
    let check = |len: ResponseLengths, out: &[u8]| {
        assert!(len.has_initial);
        let (initial, trailing, message) = decode(len, out, Section::Initial);
        assert_eq!(initial.get("initial"), Some("1"));
        assert_eq!(trailing.get("trailing"), Some("2"));
        assert_eq!(u64::decode(&*message), Ok(8));
    };
    let mut out = [0; 64];
    check(encoded(fixture.serve(&[], &mut out)), &out);

    let Served::Long(key, len) = fixture.serve(&[], &mut [0; 8]) else {
        panic!("a response that does not fit was not kept");
    };
    let mut out = vec![0; len.total()];
    fixture.handler.encode_response(key, &mut out).unwrap();
    check(len, &out);
    fixture.assert_nothing_kept();

    // A client that knows one kind of metadata gets all of it.
    let mut merged = len;
    merged.merge_metadata(&mut out[..len.metadata]);
    let (both, _, message) = decode(merged, &out, Section::Initial);
    assert_eq!(
        (both.get("initial"), both.get("trailing")),
        (Some("1"), Some("2"))
    );
    assert_eq!(u64::decode(&*message), Ok(8));
}
