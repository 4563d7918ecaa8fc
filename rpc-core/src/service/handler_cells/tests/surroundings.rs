//! What surrounds a handler: its service, its executor, its deadline, and metadata of both kinds.

use super::*;

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
}
