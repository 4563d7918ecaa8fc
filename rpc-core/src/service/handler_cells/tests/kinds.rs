//! What handlers of each kind read and send, and how they end.

use super::*;

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
    let Served::NotStarted(status) = fixture.serve(&[0xff], &mut []) else {
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
        long: None,
        metadata: &[],
        message: &[],
        deadline: None,
        stream: None,
        peer: &Cell::new(None),
    };
    let mut cx = Context::from_waker(Waker::noop());
    let Served::NotStarted(status) = fixture.handler.serve(request, &mut cx, &mut []) else {
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
        assert!(status.message().contains("panicked"), "{status}");
        assert!(!status.message().contains("a bug in"), "{status}");
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
