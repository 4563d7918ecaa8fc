//! The health service, as clients with the generated stub see it.

use std::future::poll_fn;
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use verbline::health::v1::{HealthCheckRequest, HealthCheckResponse, HealthClient};
use verbline::health::{Health, ServingStatus};
use verbline::{
    Channel, Code, Device, Execution, Request, Response, Server, ServerHandle, Shutdown, Status,
    Streaming, block_on,
};

const CART: &str = "shop.Cart";

/// Longer than any test: who waits for it waits for ever.
const HOUR: Duration = Duration::from_secs(3600);

struct MyGreeter;

impl Greeter for MyGreeter {
    async fn say_hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply::default()))
    }
}

fn device() -> Device {
    Device::open("soft").expect("the software device always exists")
}

fn serve(health: &Health, shutdown: Shutdown) -> ServerHandle {
    Server::builder(&device())
        .shutdown(shutdown)
        .pollers(2)
        .add_service(GreeterServer::new(MyGreeter))
        .add_service(health.service())
        .bind("127.0.0.1:0")
        .expect("the server starts")
        .spawn()
}

fn connect(server: &ServerHandle) -> Channel {
    let address = server.local_addr().to_string();
    block_on(Channel::connect(&device(), &address)).expect("the server accepts")
}

fn request(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

fn check(channel: &Channel, service: &str) -> Result<ServingStatus, Code> {
    let client = HealthClient::new(channel.clone());
    match block_on(client.check(request(service))) {
        Ok(response) => Ok(response.into_inner().status()),
        Err(error) => Err(error.code()),
    }
}

fn watch(channel: &Channel, service: &str) -> Streaming<HealthCheckResponse> {
    let client = HealthClient::new(channel.clone());
    let response = block_on(client.watch(request(service)));
    response.expect("the watch begins").into_inner()
}

fn next(watch: &mut Streaming<HealthCheckResponse>) -> Result<ServingStatus, Code> {
    match block_on(watch.message()) {
        Ok(message) => Ok(message.expect("a watch does not end by itself").status()),
        Err(error) => Err(error.code()),
    }
}

#[test]
fn a_check_returns_what_was_set_and_a_watch_sends_each_change() {
    let health = Health::new();
    let server = serve(&health, Shutdown::default());
    let channel = connect(&server);
    assert_eq!(check(&channel, ""), Ok(ServingStatus::Serving));
    assert_eq!(check(&channel, CART), Err(Code::NotFound));

    let mut watches = [watch(&channel, CART), watch(&channel, CART)];
    let mut others = watch(&channel, "");
    assert_eq!(next(&mut others), Ok(ServingStatus::Serving));
    for watch in &mut watches {
        assert_eq!(next(watch), Ok(ServingStatus::ServiceUnknown));
    }
    for status in [
        ServingStatus::NotServing,
        ServingStatus::Serving,
        ServingStatus::Unknown,
    ] {
        health.set(CART, status);
        assert_eq!(check(&channel, CART), Ok(status));
        for watch in &mut watches {
            assert_eq!(next(watch), Ok(status));
        }
    }
    health.set(CART, ServingStatus::ServiceUnknown);
    assert_eq!(check(&channel, CART), Err(Code::NotFound));
    for watch in &mut watches {
        assert_eq!(next(watch), Ok(ServingStatus::ServiceUnknown));
    }
    // Nothing of the cart reached the other watch.
    health.set("", ServingStatus::NotServing);
    assert_eq!(next(&mut others), Ok(ServingStatus::NotServing));
}

/// Its server holds no statuses that wait for it.
#[test]
fn a_watcher_that_does_not_read_gets_the_latest_status_when_it_does() {
    let health = Health::new();
    let server = serve(&health, Shutdown::default());
    let mut watch = watch(&connect(&server), "");
    for _ in 0..10_000 {
        health.set("", ServingStatus::NotServing);
        health.set("", ServingStatus::Serving);
    }
    health.set("", ServingStatus::Unknown);
    while next(&mut watch).expect("a status") != ServingStatus::Unknown {}
    health.set("", ServingStatus::Serving);
    assert_eq!(next(&mut watch), Ok(ServingStatus::Serving));
}

/// Without the end of the watches, the server would wait an hour for them.
#[test]
fn watchers_see_a_shutdown_and_their_streams_do_not_delay_it() {
    let health = Health::new();
    health.set(CART, ServingStatus::Serving);
    let shutdown = Shutdown {
        finish: HOUR,
        ..Shutdown::default()
    };
    let server = serve(&health, shutdown);
    let channel = connect(&server);
    let mut watches = ["", CART].map(|name| watch(&channel, name));
    let mut unknown = watch(&channel, "shop.Till");
    for watch in &mut watches {
        assert_eq!(next(watch), Ok(ServingStatus::Serving));
    }
    assert_eq!(next(&mut unknown), Ok(ServingStatus::ServiceUnknown));
    let stops = thread::spawn(move || server.shutdown());
    for watch in &mut watches {
        assert_eq!(next(watch), Ok(ServingStatus::NotServing));
        assert_eq!(next(watch), Err(Code::Unavailable));
    }
    assert_eq!(next(&mut unknown), Err(Code::Unavailable));
    stops.join().unwrap().unwrap();
    // What the application has set is as it was, for another server.
    assert!(format!("{health:?}").contains("Serving"));
    assert!(!format!("{health:?}").contains("NotServing"));
}

#[test]
fn in_its_lame_duck_time_a_server_says_not_serving_and_serves_all_the_same() {
    let health = Health::new();
    let shutdown = Shutdown {
        lame_duck: HOUR,
        ..Shutdown::default()
    };
    let server = serve(&health, shutdown);
    let address = server.local_addr().to_string();
    let channel = connect(&server);
    let mut watch = watch(&channel, "");
    assert_eq!(next(&mut watch), Ok(ServingStatus::Serving));
    // Its drop would wait for the hour. The process ends before.
    let mut stops = ManuallyDrop::new(Box::pin(server.shutdown_async()));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(stops.as_mut().poll(&mut cx).is_pending());

    assert_eq!(next(&mut watch), Ok(ServingStatus::NotServing));
    // What is set from now on does not bring clients back.
    health.set("", ServingStatus::Serving);
    // Whoever comes now is accepted and served: probes, and clients that have not looked.
    let late = block_on(Channel::connect(&device(), &address)).expect("the server accepts");
    for channel in [&channel, &late] {
        assert_eq!(check(channel, ""), Ok(ServingStatus::NotServing));
        let greeter = GreeterClient::new(channel.clone());
        block_on(greeter.say_hello(HelloRequest::default())).expect("the server serves");
    }
    let pending = block_on(poll_fn(|cx| {
        Poll::Ready(pin!(watch.message()).poll(cx).is_pending())
    }));
    assert!(pending, "the watch goes on");
}

#[test]
fn when_the_lame_duck_time_has_passed_the_server_ends() {
    let health = Health::new();
    let lame_duck = Duration::from_millis(300);
    let shutdown = Shutdown {
        lame_duck,
        finish: HOUR,
        ..Shutdown::default()
    };
    let server = serve(&health, Shutdown::default());
    let channel = connect(&server);
    let mut watch = watch(&channel, "");
    assert_eq!(next(&mut watch), Ok(ServingStatus::Serving));
    let begun = Instant::now();
    // The times of this call count, not those of the builder.
    server.shutdown_within(shutdown).unwrap();
    assert!(begun.elapsed() >= lame_duck);
    assert_eq!(next(&mut watch), Ok(ServingStatus::NotServing));
    assert_eq!(next(&mut watch), Err(Code::Unavailable));
    let error = block_on(GreeterClient::new(channel).say_hello(HelloRequest::default()));
    assert_eq!(error.unwrap_err().execution(), Execution::NeverSent);
}

#[test]
fn of_two_servers_with_one_health_only_the_one_that_stops_says_so() {
    let health = Health::new();
    let [first, second] = [(); 2].map(|()| serve(&health, Shutdown::default()));
    let mut watches = [&first, &second].map(|server| watch(&connect(server), ""));
    for watch in &mut watches {
        assert_eq!(next(watch), Ok(ServingStatus::Serving));
    }
    first.shutdown().unwrap();
    assert_eq!(next(&mut watches[0]), Ok(ServingStatus::NotServing));
    let channel = connect(&second);
    assert_eq!(check(&channel, ""), Ok(ServingStatus::Serving));
    health.set("", ServingStatus::Unknown);
    assert_eq!(next(&mut watches[1]), Ok(ServingStatus::Unknown));
}

#[test]
fn a_thousand_watchers_each_see_a_change() {
    const WATCHERS: u32 = 1000;
    let health = Health::new();
    let server = Server::builder(&device())
        .max_streams(WATCHERS)
        .add_service(health.service())
        .bind("127.0.0.1:0")
        .expect("the server starts")
        .spawn();
    let address = server.local_addr().to_string();
    let channel = Channel::builder(&device(), &address).max_streams(WATCHERS);
    let channel = block_on(channel.connect()).expect("the server accepts");
    let mut watches: Vec<_> = (0..WATCHERS).map(|_| watch(&channel, CART)).collect();
    for watch in &mut watches {
        assert_eq!(next(watch), Ok(ServingStatus::ServiceUnknown));
    }
    health.set(CART, ServingStatus::Serving);
    for watch in &mut watches {
        assert_eq!(next(watch), Ok(ServingStatus::Serving));
    }
    drop(watches);
    server.shutdown().unwrap();
}

/// The server would hold the names of watchers.
#[test]
fn a_name_that_is_too_long_to_be_one_is_refused() {
    let health = Health::new();
    let server = serve(&health, Shutdown::default());
    let channel = connect(&server);
    let long = "x".repeat(5000);
    assert_eq!(check(&channel, &long), Err(Code::ResourceExhausted));
    let client = HealthClient::new(channel.clone());
    let error = block_on(async {
        let mut watch = client.watch(request(&long)).await?.into_inner();
        watch.message().await
    });
    assert_eq!(error.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(check(&channel, ""), Ok(ServingStatus::Serving));
}
