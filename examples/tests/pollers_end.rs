//! When the threads of pollers end. In a program of its own, which counts its threads.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use rpc_core::{Channel, Pollers, Request, Response, Server, Status, block_on};
use rpc_transport_verbs::Device;

struct Polite;

impl Greeter for Polite {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let message = format!("Hello, {}!", request.into_inner().name);
        Ok(Response::new(HelloReply { message }))
    }
}

fn pollers_running() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names
        .filter(|name| name.starts_with("verbline-client"))
        .count()
}

/// Waits until so many pollers run. A thread that a poller starts has its name for a moment.
fn until_running(count: usize) {
    let patience = Instant::now() + Duration::from_secs(30);
    while pollers_running() != count {
        assert!(Instant::now() < patience, "{} run", pollers_running());
        thread::sleep(Duration::from_millis(2));
    }
}

fn greet(channel: &Channel) {
    let greeter = GreeterClient::new(channel.clone());
    let request = HelloRequest {
        name: "Ada".to_owned(),
    };
    let reply = block_on(greeter.say_hello(request)).unwrap();
    assert_eq!(reply.into_inner().message, "Hello, Ada!");
}

/// One test, because tests of one program run at a time and would count each other's threads.
#[test]
fn pollers_end_with_the_last_of_their_references_and_channels() {
    let device = Device::best().unwrap();
    let server = Server::builder(&device)
        .add_service(GreeterServer::new(Polite))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();

    // The channels go first.
    let pollers = Pollers::builder(&device).pollers(3).start().unwrap();
    until_running(3);
    for _ in 0..20 {
        let channel = block_on(Channel::connect(&pollers, &address)).unwrap();
        greet(&channel);
    }
    until_running(3);
    drop(pollers.clone());
    until_running(3);
    drop(pollers);
    until_running(0);

    // The pollers go first: those without a channel end.
    let pollers = Pollers::builder(&device).pollers(3).start().unwrap();
    let channel = Channel::builder(&pollers, &address).pollers(2);
    let channel = block_on(channel.connect()).unwrap();
    drop(pollers);
    until_running(2);
    greet(&channel);
    drop(channel);
    until_running(0);

    // A channel of which nothing connects leaves nothing either.
    let pollers = Pollers::builder(&device).start().unwrap();
    server.shutdown().unwrap();
    block_on(Channel::connect(&pollers, &address)).unwrap_err();
    drop(pollers);
    until_running(0);
}
