//! The shared channel as users use it: from threads and executors, with a server that restarts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use rpc_core::{
    Channel, ChannelError, Code, ConnectivityState, Execution, Request, Response, Server,
    ServerHandle, Shutdown, Status, Waiting, block_on,
};
use rpc_transport_verbs::Device;

struct CountingGreeter(Arc<AtomicU32>);

impl Greeter for CountingGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let message = format!("Hello, {}!", request.into_inner().name);
        Ok(Response::new(HelloReply { message }))
    }
}

fn device() -> Device {
    Device::best().expect("the software device always exists")
}

fn serve(address: &str) -> (ServerHandle, Arc<AtomicU32>) {
    let greeted = Arc::new(AtomicU32::new(0));
    let server = Server::builder(&device())
        .add_service(GreeterServer::new(CountingGreeter(Arc::clone(&greeted))))
        .bind(address)
        .expect("the server starts");
    (server.spawn(), greeted)
}

fn hello(name: &str) -> HelloRequest {
    HelloRequest {
        name: name.to_owned(),
    }
}

#[test]
fn threads_share_one_channel() {
    for waiting in [Waiting::Busy, Waiting::Adaptive, Waiting::Event] {
        let (server, greeted) = serve("127.0.0.1:0");
        let address = server.local_addr().to_string();
        let builder = Channel::builder(&device(), &address).waiting(waiting);
        let channel = block_on(builder.connect()).unwrap();
        assert_eq!(channel.state(), ConnectivityState::Ready);
        thread::scope(|scope| {
            for thread in 0..4 {
                let greeter = GreeterClient::new(channel.clone());
                scope.spawn(move || {
                    for call in 0..50 {
                        let name = format!("{thread}.{call}");
                        let reply = block_on(greeter.say_hello(hello(&name))).unwrap();
                        assert_eq!(reply.into_inner().message, format!("Hello, {name}!"));
                    }
                });
            }
        });
        assert_eq!(greeted.load(Ordering::Relaxed), 200, "{waiting}");
    }
}

#[test]
fn the_clients_of_a_server_that_is_dropped_before_it_serves_are_told() {
    let greeted = Arc::new(AtomicU32::new(0));
    let server = Server::builder(&device())
        .add_service(GreeterServer::new(CountingGreeter(Arc::clone(&greeted))))
        .bind("127.0.0.1:0")
        .unwrap();
    let address = server.local_addr().to_string();
    let channel = block_on(Channel::connect(&device(), &address)).unwrap();
    let greeter = GreeterClient::new(channel);
    let call = thread::spawn(move || block_on(greeter.say_hello(hello("Ada"))));
    thread::sleep(Duration::from_millis(50));
    drop(server);
    // The request had arrived or not. A server that stops answers those that have arrived.
    match call.join().unwrap() {
        Ok(reply) => {
            assert_eq!(reply.into_inner().message, "Hello, Ada!");
            assert_eq!(greeted.load(Ordering::Relaxed), 1);
        }
        Err(error) => {
            assert_eq!(error.code(), Code::Unavailable);
            assert!(error.to_string().contains("shut"), "{error}");
        }
    }
}

#[test]
fn a_server_that_nobody_started_is_an_error_and_a_lazy_channel_waits_for_it() {
    let (server, _) = serve("127.0.0.1:0");
    let address = server.local_addr().to_string();
    server.shutdown().unwrap();
    let error = block_on(Channel::connect(&device(), &address)).unwrap_err();
    assert!(matches!(error, ChannelError::Connect(_)), "{error}");

    let channel = Channel::builder(&device(), &address)
        .reconnect_backoff(Duration::from_millis(5), Duration::from_millis(20))
        .connect_lazy()
        .unwrap();
    assert_eq!(channel.state(), ConnectivityState::Idle);
    let greeter = GreeterClient::new(channel.clone());
    let error = block_on(greeter.say_hello(hello("nobody"))).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(error.execution(), Execution::NeverSent);
    assert!(error.to_string().contains(&address), "{error}");
    let started = thread::spawn({
        let address = address.clone();
        move || {
            thread::sleep(Duration::from_millis(50));
            serve(&address)
        }
    });
    let patient = Request::new(hello("Ada")).wait_for_ready(true);
    let reply = block_on(greeter.say_hello(patient)).unwrap();
    assert_eq!(reply.into_inner().message, "Hello, Ada!");
    let (server, _) = started.join().unwrap();
    drop(server);
}

#[test]
fn a_channel_finds_its_server_again() {
    let (server, _) = serve("127.0.0.1:0");
    let address = server.local_addr().to_string();
    let channel = block_on(
        Channel::builder(&device(), &address)
            .reconnect_backoff(Duration::from_millis(5), Duration::from_millis(20))
            .wait_for_ready(true)
            .connect(),
    )
    .unwrap();
    let greeter = GreeterClient::new(channel.clone());
    let mut watch = channel.watch();
    block_on(greeter.say_hello(hello("Ada"))).unwrap();
    server.shutdown().unwrap();
    let state = block_on(watch.changed());
    assert_ne!(state, ConnectivityState::Ready);
    let (server, greeted) = serve(&address);
    block_on(greeter.say_hello(hello("Grace"))).unwrap();
    assert_eq!(greeted.load(Ordering::Relaxed), 1);
    assert_eq!(channel.state(), ConnectivityState::Ready);
    drop(server);
}

#[test]
fn a_dropped_call_frees_its_permit() {
    let (server, _) = serve("127.0.0.1:0");
    let address = server.local_addr().to_string();
    let builder = Channel::builder(&device(), &address).max_in_flight(2);
    let channel = block_on(builder.connect()).unwrap();
    let greeter = GreeterClient::new(channel);
    for round in 0..100 {
        let mut call = Box::pin(greeter.say_hello(hello("nobody")));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let _ = call.as_mut().poll(&mut cx);
        drop(call);
        let name = round.to_string();
        let reply = block_on(greeter.say_hello(hello(&name))).unwrap();
        assert_eq!(reply.into_inner().message, format!("Hello, {name}!"));
    }
    drop(server);
}

#[test]
fn a_channel_and_its_calls_may_go_to_any_thread() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    fn is_shared<T: Send + Sync + Clone>() {}
    is_shared::<Channel>();
    is_shared::<GreeterClient>();
    let channel = Channel::builder(&device(), "127.0.0.1:1")
        .connect_lazy()
        .unwrap();
    let greeter = GreeterClient::new(channel);
    let call = is_send(async move { greeter.say_hello(hello("Ada")).await });
    assert_eq!(block_on(call).unwrap_err().code(), Code::Unavailable);
}

/// Greets once its gate is open.
struct Slow(Arc<(Mutex<bool>, Condvar)>);

impl Slow {
    fn wait(gate: &(Mutex<bool>, Condvar)) {
        let mut is_open = gate.0.lock().unwrap();
        while !*is_open {
            is_open = gate.1.wait(is_open).unwrap();
        }
    }
}

impl Greeter for Slow {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let gate = Arc::clone(&self.0);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        thread::spawn(move || {
            Self::wait(&gate);
            let _ = sender.send(());
        });
        receiver
            .await
            .map_err(|_| Status::internal("the gate is closed"))?;
        let message = format!("Slowly, {}!", request.into_inner().name);
        Ok(Response::new(HelloReply { message }))
    }
}

#[test]
fn calls_in_flight_finish_at_a_server_that_shuts_down_while_new_ones_go_to_the_next() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let old = Server::builder(&device())
        .add_service(GreeterServer::new(Slow(Arc::clone(&gate))))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = old.local_addr().to_string();
    let channel = block_on(
        Channel::builder(&device(), &address)
            .reconnect_backoff(Duration::from_millis(5), Duration::from_millis(20))
            .wait_for_ready(true)
            .connect(),
    )
    .unwrap();
    let mut watch = channel.watch();
    let slow = thread::spawn({
        let greeter = GreeterClient::new(channel.clone());
        move || block_on(greeter.say_hello(hello("Ada")))
    });
    // The slow call is in flight once a later call on the same connection has timed out at the
    // server.
    let greeter = GreeterClient::new(channel.clone());
    let short = Request::new(hello("nobody")).with_timeout(Duration::from_millis(20));
    let error = block_on(greeter.say_hello(short)).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    let minute = Duration::from_secs(60);
    let shutdown = thread::spawn(move || {
        old.shutdown_within(Shutdown {
            finish: minute,
            close: minute,
            ..Shutdown::default()
        })
    });
    assert_ne!(block_on(watch.changed()), ConnectivityState::Ready);
    let (new, _) = serve(&address);
    let reply = block_on(greeter.say_hello(hello("Grace"))).unwrap();
    assert_eq!(reply.into_inner().message, "Hello, Grace!");
    assert!(!slow.is_finished());
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    let reply = slow.join().unwrap().unwrap();
    assert_eq!(reply.into_inner().message, "Slowly, Ada!");
    shutdown.join().unwrap().unwrap();
    drop(new);
}

#[test]
fn calls_go_round_the_pollers_of_a_channel_also_of_one_that_connects_with_its_calls() {
    for is_lazy in [false, true] {
        let (server, greeted) = serve("127.0.0.1:0");
        let address = server.local_addr().to_string();
        let builder = Channel::builder(&device(), &address).pollers(3);
        let channel = if is_lazy {
            builder.connect_lazy().unwrap()
        } else {
            block_on(builder.connect()).unwrap()
        };
        let greeter = GreeterClient::new(channel.clone());
        for call in 0..30 {
            block_on(greeter.say_hello(hello(&call.to_string()))).unwrap();
        }
        assert_eq!(greeted.load(Ordering::Relaxed), 30);
        let stats = channel.stats();
        let begun: Vec<u64> = stats
            .pollers
            .iter()
            .map(|poller| poller.called.iter().map(|method| method.begun).sum())
            .collect();
        assert_eq!(begun, [10, 10, 10], "lazy: {is_lazy}");
    }
}
