//! Connections that are old end: each kind of call that goes on then, and channels that are busy or idle.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use proto::routeguide::{
    Feature, Point, Rectangle, RouteGuide, RouteGuideClient, RouteGuideServer, RouteNote,
    RouteSummary,
};
use rpc_core::{
    CallError, Caller, Channel, Code, Execution, LocalPoller, Pollers, Request, Response, Server,
    ServerHandle, Status, Stream, Streaming, Waiting, block_on, sender, stream,
};
use rpc_transport_verbs::Device;

/// Time limit of what has to happen. It bounds failing tests only.
const PATIENCE: Duration = Duration::from_secs(30);

/// Ages are looked at each second, or twice.
const LOOK: Duration = Duration::from_secs(1);

const AGE: Duration = Duration::from_millis(300);

/// The pause between two messages of a stream.
const PACE: Duration = Duration::from_millis(5);

/// Messages of a stream after those that go on until its test has seen enough.
const REST: u32 = 20;

/// Tells over which connection a call has come, and has streams that go on.
#[derive(Clone, Default)]
struct Guide {
    is_enough: Arc<AtomicBool>,
    answered: Arc<AtomicU32>,
}

impl RouteGuide for Guide {
    /// Keeps its thread for as many milliseconds as the latitude says. Returns the address of the
    /// connection, and as many letters as the longitude says.
    async fn get_feature(&self, request: Request<Point>) -> Result<Response<Feature>, Status> {
        let address = request.peer().unwrap().address();
        let point = request.into_inner();
        thread::sleep(Duration::from_millis(point.latitude as u64));
        self.answered.fetch_add(1, Ordering::SeqCst);
        let name = format!("{address} {}", "x".repeat(point.longitude as usize));
        let location = Some(point);
        Ok(Response::new(Feature { name, location }))
    }

    /// Counts, until it is enough and then a little more.
    async fn list_features(
        &self,
        _: Request<Rectangle>,
    ) -> Result<Response<impl Stream<Item = Result<Feature, Status>>>, Status> {
        let (sender, mut numbers) = tokio::sync::mpsc::channel(1);
        let is_enough = Arc::clone(&self.is_enough);
        thread::spawn(move || {
            // The receiver is gone if the call has ended.
            count(&is_enough, |number| sender.blocking_send(number).is_ok())
        });
        Ok(Response::new(stream(async move |mut responses| {
            while let Some(latitude) = numbers.recv().await {
                responses.send(numbered(latitude)).await?;
            }
            Ok(())
        })))
    }

    /// Counts the points, and as the distance those that are out of order.
    async fn record_route(
        &self,
        request: Request<Streaming<Point>>,
    ) -> Result<Response<RouteSummary>, Status> {
        let mut points = request.into_inner();
        let mut summary = RouteSummary::default();
        while let Some(point) = points.message().await? {
            summary.distance += i32::from(point.latitude != summary.point_count);
            summary.point_count += 1;
        }
        Ok(Response::new(summary))
    }

    async fn route_chat(
        &self,
        _: Request<Streaming<RouteNote>>,
    ) -> Result<Response<impl Stream<Item = Result<RouteNote, Status>>>, Status> {
        Ok(Response::new(tokio_stream::empty()))
    }
}

fn numbered(latitude: i32) -> Feature {
    let longitude = 0;
    Feature {
        name: String::new(),
        location: Some(Point {
            latitude,
            longitude,
        }),
    }
}

/// Sends numbers at a pace until it is enough, and then [`REST`] more, as long as they are taken. Returns
/// how many.
fn count(is_enough: &AtomicBool, mut send: impl FnMut(i32) -> bool) -> i32 {
    let mut number = 0;
    let mut rest = REST;
    while rest > 0 {
        if is_enough.load(Ordering::SeqCst) {
            rest -= 1;
        }
        if !send(number) {
            break;
        }
        number += 1;
        thread::sleep(PACE);
    }
    number
}

/// A server whose connections have this age and grace.
struct Aged {
    server: ServerHandle,
    address: String,
    guide: Guide,
}

impl Aged {
    fn serve(device: &Device, age: Duration, grace: Duration) -> Self {
        Self::serve_waiting(device, (age, grace), Waiting::default())
    }

    fn serve_waiting(device: &Device, times: (Duration, Duration), waiting: Waiting) -> Self {
        let (age, grace) = times;
        let guide = Guide::default();
        let server = Server::builder(device)
            .add_service(RouteGuideServer::new(guide.clone()))
            .max_connection_age(age, grace)
            .waiting(waiting)
            .connections(256)
            .max_message_len(1 << 20)
            .max_send_message_len(64 << 20)
            .bind("127.0.0.1:0")
            .unwrap()
            .spawn();
        let address = server.local_addr().to_string();
        Self {
            server,
            address,
            guide,
        }
    }

    fn channel(&self, device: &Device) -> RouteGuideClient<Channel> {
        let builder = Channel::builder(device, &self.address).connect_timeout(PATIENCE);
        RouteGuideClient::new(block_on(builder.connect()).unwrap())
    }

    fn accepted(&self) -> u64 {
        self.server.stats().total().connections.accepted
    }

    fn closed(&self) -> u64 {
        self.server.stats().total().connections.closed()
    }

    fn open(&self) -> u64 {
        self.accepted() - self.closed()
    }

    /// All connections that have ended were ended by this side or by their clients, and no rule was
    /// broken.
    fn end(self) {
        let connections = self.server.stats().total().connections;
        let failed = (connections.failed, connections.violated);
        assert_eq!(failed, (0, 0), "{connections:?}");
        self.server.shutdown().unwrap();
    }
}

/// Returns the address of the connection over which a call goes.
async fn whose<C: Caller>(guide: &RouteGuideClient<C>) -> Result<String, CallError> {
    let feature = guide.get_feature(Point::default()).await?.into_inner();
    Ok(feature.name)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs scenarios side by side, each on each device that every machine has: they wait most of their time.
fn in_each_device(scenarios: &[fn(&Device)]) {
    thread::scope(|scope| {
        for name in ["soft", "tcp"] {
            for (number, scenario) in scenarios.iter().enumerate() {
                let run = move || scenario(&Device::open(name).unwrap());
                let thread = thread::Builder::new().name(format!("{name}, scenario {number}"));
                thread.spawn_scoped(scope, run).unwrap();
            }
        }
    });
}

#[test]
fn streams_lose_nothing_within_the_grace_and_end_with_a_reason_after_it() {
    in_each_device(&[
        streams_that_end_within_the_grace_lose_nothing,
        streams_that_outlive_the_grace_are_cut_off,
        calls_wait_for_the_streams_of_two_old_connections,
    ]);
}

fn streams_that_end_within_the_grace_lose_nothing(device: &Device) {
    let aged = Aged::serve(device, AGE, PATIENCE);
    let guide = aged.channel(device);
    let is_enough = &aged.guide.is_enough;
    let first = block_on(whose(&guide)).unwrap();
    let mut features = block_on(guide.list_features(Rectangle::default()))
        .unwrap()
        .into_inner();
    let (mut points, messages) = sender();
    let mut recording = pin!(guide.record_route(messages));
    // The stream has begun when the first of its points is on its way.
    let begun = block_on(poll_fn(|cx| Poll::Ready(recording.as_mut().poll(cx))));
    assert!(begun.is_pending());
    thread::scope(|scope| {
        let listing = scope.spawn(move || {
            let mut numbers = 0;
            while let Some(feature) = block_on(features.message()).unwrap() {
                assert_eq!(feature, numbered(numbers));
                numbers += 1;
            }
            numbers
        });
        let sending = scope.spawn(move || {
            count(is_enough, |number| {
                block_on(points.send(numbered(number).location.unwrap())).is_ok()
            })
        });
        // New calls go over another connection while both streams go on.
        wait_until("the connection is old", || {
            block_on(whose(&guide)).unwrap() != first
        });
        assert!(!listing.is_finished() && !sending.is_finished());
        is_enough.store(true, Ordering::SeqCst);
        assert!(listing.join().unwrap() > REST as i32);
        let summary = block_on(recording).unwrap().into_inner();
        let sent = sending.join().unwrap();
        assert_eq!((summary.point_count, summary.distance), (sent, 0));
    });
    wait_until("what is finished is closed", || aged.open() <= 1);
    aged.end();
}

fn streams_that_outlive_the_grace_are_cut_off(device: &Device) {
    let aged = Aged::serve(device, AGE, AGE);
    let guide = aged.channel(device);
    let first = block_on(whose(&guide)).unwrap();
    let mut features = block_on(guide.list_features(Rectangle::default()))
        .unwrap()
        .into_inner();
    let mut numbers = 0;
    let error = loop {
        match block_on(features.message()) {
            Ok(feature) => {
                assert_eq!(feature, Some(numbered(numbers)));
                numbers += 1;
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!(error.execution(), Execution::MayHaveRun, "{error}");
    let text = error.to_string();
    assert!(text.contains("its `max_connection_age`"), "{text}");
    assert_ne!(block_on(whose(&guide)).unwrap(), first);
    aged.end();
}

/// The grace is longer than the age: a channel does not collect connections for ever.
fn calls_wait_for_the_streams_of_two_old_connections(device: &Device) {
    let aged = Aged::serve(device, AGE, PATIENCE);
    let guide = aged.channel(device);
    let mut connections = Vec::new();
    let mut streams = Vec::new();
    let mut error = None;
    wait_until("two connections are old", || {
        match block_on(whose(&guide)) {
            Ok(connection) if !connections.contains(&connection) => {
                connections.push(connection);
                let stream = block_on(guide.list_features(Rectangle::default()));
                streams.push(stream.unwrap().into_inner());
            }
            Ok(_) => {}
            Err(failed) => error = Some(failed),
        }
        error.is_some()
    });
    let error = error.unwrap();
    assert!(streams.len() >= 2, "{error}");
    assert_eq!(error.execution(), Execution::NeverSent, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("which their servers are ending, go on"),
        "{text}"
    );
    drop(streams);
    let patient = Request::new(Point::default()).wait_for_ready(true);
    block_on(guide.get_feature(patient)).unwrap();
    aged.end();
}

#[test]
fn a_long_response_arrives_whole_and_busy_and_idle_channels_connect_again() {
    in_each_device(&[
        a_response_that_is_half_sent_arrives_whole,
        busy_pollers_notice_the_age,
        idle_channels_are_closed,
        clients_that_do_not_hear_are_closed_after_the_grace,
    ]);
}

fn a_response_that_is_half_sent_arrives_whole(device: &Device) {
    const LEN: usize = 48 << 20;
    let aged = Aged::serve(device, AGE, PATIENCE);
    let poller = LocalPoller::builder(device).max_message_len(64 << 20);
    let poller = poller.build().unwrap();
    let guide = RouteGuideClient::new(poller.connect(&aged.address).unwrap());
    let point = Point {
        latitude: 0,
        longitude: LEN as i32,
    };
    let mut call = pin!(guide.get_feature(point));
    while aged.guide.answered.load(Ordering::SeqCst) == 0 {
        let begun = poller.block_on(poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))));
        assert!(begun.is_pending());
        poller.turn();
    }
    // The client does nothing until its connection is old.
    thread::sleep(AGE * 11 / 10 + 2 * LOOK);
    poller.turn();
    let received = || poller.stats().total().transfers.bytes_received;
    assert!(received() < LEN as u64, "the response is on its way");
    // The server has sent all that it had to send, but what it has only told of is not read.
    while received() + (3 << 20) < LEN as u64 {
        poller.turn();
    }
    if aged.server.stats().total().transfers.bytes_by_reference > 0 {
        thread::sleep(LOOK * 3 / 2);
    }
    let feature = poller.block_on(call).unwrap().into_inner();
    let (_, letters) = feature.name.split_once(' ').unwrap();
    assert!(letters.len() == LEN && letters.bytes().all(|letter| letter == b'x'));
    let mut error = None;
    wait_until("the connection is told to be old", || {
        error = poller.block_on(whose(&guide)).err();
        error.is_some()
    });
    let error = error.unwrap();
    assert_eq!(error.execution(), Execution::NeverSent, "{error}");
    aged.end();
}

fn busy_pollers_notice_the_age(device: &Device) {
    let aged = Aged::serve_waiting(device, (AGE, AGE), Waiting::Busy);
    let builder = Channel::builder(device, &aged.address).waiting(Waiting::Busy);
    let guide = RouteGuideClient::new(block_on(builder.connect()).unwrap());
    let first = block_on(whose(&guide)).unwrap();
    wait_until("the connection is old", || {
        of_old_or_new(block_on(whose(&guide))).is_some_and(|now| now != first)
    });
    // Nobody calls any more.
    let before = aged.closed();
    wait_until("idle connections are closed", || aged.closed() > before);
    block_on(whose(&guide)).unwrap();
    aged.end();
}

fn idle_channels_are_closed(device: &Device) {
    let aged = Aged::serve(device, AGE, PATIENCE);
    let guide = aged.channel(device);
    wait_until("an idle connection is closed", || aged.closed() > 0);
    block_on(whose(&guide)).unwrap();
    assert!(aged.accepted() > 1);
    aged.end();
}

/// A client whose thread does something else does not learn that its connection is old.
fn clients_that_do_not_hear_are_closed_after_the_grace(device: &Device) {
    let start = Instant::now();
    let aged = Aged::serve(device, AGE, 2 * AGE);
    let poller = LocalPoller::new(device).unwrap();
    let guide = RouteGuideClient::new(poller.connect(&aged.address).unwrap());
    wait_until("a client that does not hear is closed", || {
        aged.closed() > 0
    });
    let took = start.elapsed();
    assert!(took > AGE * 9 / 10 + 2 * AGE, "it had its grace: {took:?}");
    let error = poller.block_on(whose(&guide)).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    aged.end();
}

#[test]
fn no_call_fails_when_many_connections_are_old_at_a_time_or_the_server_never_rests() {
    in_each_device(&[
        fifty_channels_connect_again,
        a_server_that_never_rests_ends_old_connections,
        the_longest_and_the_shortest_times,
    ]);
}

/// Returns the answer of a call, which may have been cut off because its connection is old: on a machine
/// with much to do, it may take longer than a short grace.
fn of_old_or_new(called: Result<String, CallError>) -> Option<String> {
    called
        .inspect_err(|error| assert!(is_of_age(error), "{error}"))
        .ok()
}

fn is_of_age(error: &CallError) -> bool {
    error.to_string().contains("its `max_connection_age`")
}

/// Makes calls over each channel at a time, until each has had a third connection. Calls fail only if their
/// grace is short.
fn call_until_each_has_had_three(
    guides: &[RouteGuideClient<Channel>],
    point: Point,
    is_grace_short: bool,
) {
    thread::scope(|scope| {
        for guide in guides {
            scope.spawn(move || {
                let mut connections = Vec::new();
                wait_until("a third connection", || {
                    match block_on(guide.get_feature(point)) {
                        Ok(feature) => {
                            let name = feature.into_inner().name;
                            if connections.last() != Some(&name) {
                                connections.push(name);
                            }
                        }
                        Err(error) => assert!(is_grace_short && is_of_age(&error), "{error}"),
                    }
                    connections.len() == 3
                });
            });
        }
    });
}

fn fifty_channels_connect_again(device: &Device) {
    let aged = Aged::serve(device, AGE, PATIENCE);
    let pollers = Pollers::new(device).unwrap();
    let guides: Vec<_> = (0..50)
        .map(|_| {
            let builder = Channel::builder(&pollers, &aged.address).connect_timeout(PATIENCE);
            RouteGuideClient::new(block_on(builder.connect()).unwrap())
        })
        .collect();
    call_until_each_has_had_three(&guides, Point::default(), false);
    aged.end();
}

/// Each turn of its poller takes long, and none finds nothing to do.
fn a_server_that_never_rests_ends_old_connections(device: &Device) {
    let aged = Aged::serve(device, AGE, PATIENCE);
    let guides: Vec<_> = (0..4).map(|_| aged.channel(device)).collect();
    let point = Point {
        latitude: 4,
        longitude: 0,
    };
    call_until_each_has_had_three(&guides, point, false);
    aged.end();
}

fn the_longest_and_the_shortest_times(device: &Device) {
    let of = |age, grace| Aged::serve(device, age, grace);
    let error = Server::builder(device)
        .max_connection_age(Duration::ZERO, PATIENCE)
        .bind("127.0.0.1:0")
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("max_connection_age"), "{text}");
    // Its calls are short, so hardly any is cut off.
    let without_grace = of(AGE, Duration::ZERO);
    let shortest = of(Duration::from_nanos(1), Duration::ZERO);
    let endless = of(Duration::MAX, Duration::MAX);
    let with_all_grace = of(AGE, Duration::MAX);
    let guides = [&without_grace, &shortest, &with_all_grace].map(|aged| aged.channel(device));
    let lasting = endless.channel(device);
    let first = block_on(whose(&lasting)).unwrap();
    call_until_each_has_had_three(&guides, Point::default(), true);
    assert_eq!(block_on(whose(&lasting)).unwrap(), first);
    for aged in [without_grace, shortest, endless, with_all_grace] {
        aged.end();
    }
}
