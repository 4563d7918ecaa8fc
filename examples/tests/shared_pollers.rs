//! Channels that share pollers, as users use them: from threads, with servers that come and go.

use std::fs;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use rpc_core::{
    CallError, Cause, Channel, ChannelError, Code, ConnectivityState, Pollers, Request, Response,
    Server, ServerHandle, Status, block_on,
};
use rpc_transport_verbs::Device;

/// Greets with its own number.
struct Numbered(usize, Arc<AtomicU32>);

impl Greeter for Numbered {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let message = format!("{} from {}", request.into_inner().name, self.0);
        Ok(Response::new(HelloReply { message }))
    }
}

fn device() -> Device {
    Device::best().expect("the software device always exists")
}

struct Started {
    server: ServerHandle,
    address: String,
    greeted: Arc<AtomicU32>,
}

fn serve(number: usize) -> Started {
    serve_at(number, "127.0.0.1:0")
}

fn serve_at(number: usize, address: &str) -> Started {
    let greeted = Arc::new(AtomicU32::new(0));
    let server = Server::builder(&device())
        .add_service(GreeterServer::new(Numbered(number, Arc::clone(&greeted))))
        .connections(256)
        .bind(address)
        .expect("the server starts")
        .spawn();
    let address = server.local_addr().to_string();
    Started {
        server,
        address,
        greeted,
    }
}

fn greet(channel: &Channel, name: &str) -> Result<String, CallError> {
    let greeter = GreeterClient::new(channel.clone());
    let request = HelloRequest {
        name: name.to_owned(),
    };
    let reply = block_on(greeter.say_hello(request))?;
    Ok(reply.into_inner().message)
}

/// The threads of this process whose names begin like this.
fn threads(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|comm| comm.starts_with(name)).count()
}

/// Waits until the condition holds.
fn until(what: &str, condition: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < patience, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_hundred_channels_to_several_servers_share_two_pollers() {
    fn is_shared<T: Send + Sync + Clone>() {}
    is_shared::<Pollers>();
    let servers: Vec<Started> = (0..4).map(serve).collect();
    let pollers = Pollers::builder(&device())
        .pollers(2)
        .connections(50)
        .start()
        .unwrap();
    // All connect at once.
    let channels: Vec<Channel> = thread::scope(|scope| {
        let connecting: Vec<_> = (0..100)
            .map(|index| {
                let (pollers, address) = (&pollers, &servers[index % 4].address);
                scope.spawn(move || block_on(Channel::connect(pollers, address)).unwrap())
            })
            .collect();
        let connected = connecting.into_iter();
        connected.map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(pollers.connections_in_use(), 100);
    thread::scope(|scope| {
        for (index, channel) in channels.iter().enumerate() {
            scope.spawn(move || {
                for call in 0..20 {
                    let name = format!("{index}.{call}");
                    let greeting = greet(channel, &name).unwrap();
                    assert_eq!(greeting, format!("{name} from {}", index % 4));
                }
            });
        }
    });
    // The default is one connection for each channel, and as many channels on one poller as on the
    // other.
    let stats = pollers.stats();
    let begun = stats.pollers.iter().map(|poller| {
        let methods = poller.called.iter();
        methods.map(|method| method.begun).sum::<u64>()
    });
    assert_eq!(begun.collect::<Vec<_>>(), [1000, 1000]);
    assert_eq!(channels[0].stats().pollers.len(), 1);
    assert_eq!(channels[0].limits(), Some(pollers.limits()));

    let refused = block_on(Channel::connect(&pollers, &servers[0].address)).unwrap_err();
    assert!(
        matches!(refused, ChannelError::NoConnection { connections: 50 }),
        "{refused}"
    );
    let lazy = Channel::builder(&pollers, &servers[0].address).connect_lazy();
    assert!(matches!(lazy, Err(ChannelError::NoConnection { .. })));
    drop(channels);
    until("the channels' connections are free again", || {
        pollers.connections_in_use() == 0
    });
    let both = Channel::builder(&pollers, &servers[0].address).pollers(7);
    let both = block_on(both.connect()).unwrap();
    assert_eq!(pollers.connections_in_use(), 2);
    greet(&both, "Ada").unwrap();
}

#[test]
fn the_calls_of_other_channels_go_on_when_a_server_ends_and_it_is_found_again() {
    let (first, second) = (serve(1), serve(2));
    let pollers = Pollers::builder(&device()).start().unwrap();
    let connect = |address: &str| {
        let builder = Channel::builder(&pollers, address)
            .wait_for_ready(true)
            .reconnect_backoff(Duration::from_millis(5), Duration::from_millis(20));
        block_on(builder.connect()).unwrap()
    };
    let (ends, stays) = (connect(&first.address), connect(&second.address));
    let mut watch = ends.watch();
    let address = first.address.clone();
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            for call in 0..2000 {
                let greeting = greet(&stays, &call.to_string()).unwrap();
                assert_eq!(greeting, format!("{call} from 2"));
            }
        });
        first.server.shutdown().unwrap();
        assert_ne!(block_on(watch.changed()), ConnectivityState::Ready);
        caller.join().unwrap();
    });
    let again = serve_at(3, &address);
    assert_eq!(greet(&ends, "Ada").unwrap(), "Ada from 3");
    assert_eq!(again.greeted.load(Ordering::Relaxed), 1);
    assert_eq!(second.greeted.load(Ordering::Relaxed), 2000);
    assert_eq!(stays.state(), ConnectivityState::Ready);
}

#[test]
fn servers_that_stay_silent_do_not_keep_others_from_connecting() {
    // It accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_address = silent.local_addr().unwrap().to_string();
    let started = serve(1);
    let pollers = Pollers::builder(&device()).start().unwrap();
    let minute = Duration::from_secs(60);
    let stuck: Vec<_> = (0..12)
        .map(|_| {
            let builder = Channel::builder(&pollers, &silent_address).connect_timeout(minute);
            let mut connecting = Box::pin(builder.connect());
            let mut cx = Context::from_waker(Waker::noop());
            assert!(connecting.as_mut().poll(&mut cx).is_pending());
            connecting
        })
        .collect();
    until("the silent server is being dialed", || {
        threads("verbline-dial") >= 12
    });
    let channel = block_on(Channel::connect(&pollers, &started.address)).unwrap();
    assert_eq!(greet(&channel, "Ada").unwrap(), "Ada from 1");
    assert_eq!(pollers.connections_in_use(), 13);
    drop(stuck);
    until(
        "the channels are removed while their handshakes go on",
        || pollers.connections_in_use() == 1,
    );
    assert_eq!(greet(&channel, "Grace").unwrap(), "Grace from 1");
}

#[test]
fn a_call_says_why_its_channel_was_not_connected_in_time() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = unused.local_addr().unwrap().to_string();
    drop(unused);
    let pollers = Pollers::builder(&device()).start().unwrap();
    let channel = Channel::builder(&pollers, &address).connect_lazy().unwrap();
    let greeter = GreeterClient::new(channel);
    let request = Request::new(HelloRequest::default())
        .wait_for_ready(true)
        .with_timeout(Duration::from_millis(300));
    let error = block_on(greeter.say_hello(request)).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(
        matches!(error.cause(), Cause::DeadlineExceeded { latest: Some(_) }),
        "{error}"
    );
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_url_is_refused_with_the_address_to_write_instead() {
    let url = "http://127.0.0.1:50051";
    let error = block_on(Channel::connect(&device(), url)).unwrap_err();
    let refused = Server::builder(&device())
        .add_service(GreeterServer::new(Numbered(0, Arc::default())))
        .bind(url)
        .map(drop)
        .unwrap_err();
    for text in [error.to_string(), refused.to_string()] {
        assert!(
            text.contains("without http://, as '127.0.0.1:50051'"),
            "{text}"
        );
    }
}
