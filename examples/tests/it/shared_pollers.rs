//! Channels that share pollers, as users use them: from threads, with servers that come and go.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use proto::watch::{StoreClient, WatchRequest};
use rpc_core::transport::{Admission, Fabric, FabricError, Listener};
use rpc_core::{
    CallError, Cause, Channel, ChannelError, Code, ConnectivityState, Intents, Limits, Pollers,
    Request, Response, Server, ServerHandle, Status, block_on,
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
    let of_one_poller = channels[0].limits().unwrap().clone();
    let of_both = Limits {
        cores: vec![None; 2],
        ..of_one_poller
    };
    assert_eq!(&of_both, pollers.limits());

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
    let (calls, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    let answered = || calls.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let call = answered();
                let greeting = greet(&stays, &call.to_string()).unwrap();
                assert_eq!(greeting, format!("{call} from 2"));
                calls.store(call + 1, Ordering::Relaxed);
            }
        });
        until("calls are made before", || {
            answered() > 100 || caller.is_finished()
        });
        first.server.shutdown().unwrap();
        assert_ne!(block_on(watch.changed()), ConnectivityState::Ready);
        let during = answered();
        until("calls are made while the other server is gone", || {
            answered() > during + 100 || caller.is_finished()
        });
        is_over.store(true, Ordering::Relaxed);
        caller.join().unwrap();
    });
    let again = serve_at(3, &address);
    assert_eq!(greet(&ends, "Ada").unwrap(), "Ada from 3");
    assert_eq!(again.greeted.load(Ordering::Relaxed), 1);
    assert_eq!(second.greeted.load(Ordering::Relaxed), answered());
    assert_eq!(stays.state(), ConnectivityState::Ready);
}

#[test]
fn servers_that_stay_silent_do_not_keep_others_from_connecting() {
    // They accept connections and never answer.
    let silent: Vec<TcpListener> = (0..6)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let started = serve(1);
    let pollers = Pollers::builder(&device()).start().unwrap();
    // More than there are threads for handshakes. Their calls make them try again and again.
    let stuck: Vec<Channel> = (0..24)
        .map(|index| {
            let address = silent[index % silent.len()].local_addr().unwrap();
            Channel::builder(&pollers, &address.to_string())
                .connect_timeout(Duration::from_millis(300))
                .reconnect_backoff(Duration::from_millis(1), Duration::from_millis(1))
                .connect_lazy()
                .unwrap()
        })
        .collect();
    let mut calls: Vec<_> = stuck
        .iter()
        .map(|channel| {
            let request = Request::new(HelloRequest::default()).wait_for_ready(true);
            let greeter = GreeterClient::new(channel.clone());
            Box::pin(async move { greeter.say_hello(request).await })
        })
        .collect();
    for call in &mut calls {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(&mut cx).is_pending());
    }
    until("each of them has failed once", || {
        stuck.iter().all(|channel| channel.latest_error().is_some())
    });
    for call in 0..20 {
        let builder = Channel::builder(&pollers, &started.address);
        let channel = block_on(builder.connect()).unwrap();
        let name = call.to_string();
        assert_eq!(greet(&channel, &name).unwrap(), format!("{name} from 1"));
        assert!(
            stuck
                .iter()
                .all(|channel| channel.state() != ConnectivityState::Ready)
        );
    }
    drop((stuck, calls));
    assert_eq!(pollers.connections_in_use(), 0);
    let channel = block_on(Channel::connect(&pollers, &started.address)).unwrap();
    assert_eq!(greet(&channel, "Grace").unwrap(), "Grace from 1");
    until("the threads of the handshakes end", || {
        threads("verbline-dial") == 0
    });
}

/// A device that cannot be opened.
#[derive(Clone)]
struct Faulty {
    device: Device,
    fault: Fault,
    opened: Arc<AtomicU32>,
}

#[derive(Clone)]
enum Fault {
    /// It panics when it is opened for this time, counted from 0.
    PanicsAt(u32),
    /// Its port is down until this is true.
    IsDown { is_up: Arc<AtomicBool> },
}

impl Fabric for Faulty {
    type Transport = <Device as Fabric>::Transport;
    type Port = <Device as Fabric>::Port;

    fn open(&self, intents: &Intents) -> Result<Self::Transport, FabricError> {
        let nth = self.opened.fetch_add(1, Ordering::Relaxed);
        match &self.fault {
            Fault::PanicsAt(at) => assert_ne!(nth, *at, "this device has a bug"),
            Fault::IsDown { is_up } if !is_up.load(Ordering::Relaxed) => {
                return Err(FabricError::Device {
                    device: "faulty".to_owned(),
                    action: "cannot send".to_owned(),
                    source: "its port is down".into(),
                });
            }
            Fault::IsDown { .. } => {}
        }
        self.device.open(intents)
    }
    fn port(&self, transport: &Self::Transport) -> Self::Port {
        self.device.port(transport)
    }
    fn bind(&self, address: &str) -> Result<TcpListener, FabricError> {
        self.device.bind(address)
    }
    fn listen(
        &self,
        socket: TcpListener,
        ports: Vec<Self::Port>,
        admission: Arc<dyn Admission>,
    ) -> Result<Box<dyn Listener>, FabricError> {
        self.device.listen(socket, ports, admission)
    }
    fn allowed_cores(&self) -> Vec<usize> {
        self.device.allowed_cores()
    }
    fn pin_current_thread(&self, core: usize) -> Result<(), io::Error> {
        self.device.pin_current_thread(core)
    }
}

fn faulty(fault: Fault) -> Faulty {
    Faulty {
        device: device(),
        fault,
        opened: Arc::default(),
    }
}

#[test]
fn a_poller_that_panics_when_it_starts_is_reported_although_others_run() {
    for at in 0..3 {
        let error = Pollers::builder(&faulty(Fault::PanicsAt(at)))
            .pollers(3)
            .start()
            .unwrap_err();
        assert!(matches!(error, ChannelError::PollerPanicked), "{error}");
    }
}

#[test]
fn the_calls_of_a_lazy_channel_fail_if_its_device_panics() {
    let channel = Channel::builder(&faulty(Fault::PanicsAt(0)), "127.0.0.1:1")
        .wait_for_ready(true)
        .connect_lazy()
        .unwrap();
    for call in 0..100 {
        let error = greet(&channel, &call.to_string()).unwrap_err();
        assert!(
            matches!(error.cause(), Cause::NotConnected { .. }),
            "{error}"
        );
    }
    assert_eq!(channel.state(), ConnectivityState::Shutdown);
}

#[test]
fn a_lazy_channel_whose_device_cannot_be_opened_for_a_while_works_after_it() {
    let started = serve(1);
    let is_up = Arc::<AtomicBool>::default();
    let device = faulty(Fault::IsDown {
        is_up: Arc::clone(&is_up),
    });
    let backoff = Duration::from_millis(10);
    let channel = Channel::builder(&device, &started.address)
        .reconnect_backoff(backoff, backoff)
        .connect_lazy()
        .unwrap();
    let error = greet(&channel, "Ada").unwrap_err();
    assert!(error.to_string().contains("its port is down"), "{error}");
    let store = StoreClient::new(channel.clone());
    let error = match block_on(store.watch(WatchRequest::default())) {
        Ok(mut events) => block_on(events.get_mut().message())
            .unwrap_err()
            .to_string(),
        Err(error) => error.to_string(),
    };
    assert!(error.contains("its port is down"), "{error}");
    assert_eq!(channel.state(), ConnectivityState::TransientFailure);
    until("it is opened again and again", || {
        device.opened.load(Ordering::Relaxed) > 3
    });
    is_up.store(true, Ordering::Relaxed);
    until("the device is open", || greet(&channel, "Grace").is_ok());
    assert_eq!(channel.state(), ConnectivityState::Ready);
}

#[test]
fn a_channel_that_is_dropped_before_its_device_is_open_leaves_no_thread() {
    let is_up = Arc::default();
    let device = faulty(Fault::IsDown { is_up });
    let channel = Channel::builder(&device, "127.0.0.1:1")
        .reconnect_backoff(Duration::from_secs(60), Duration::from_secs(60))
        .connect_lazy()
        .unwrap();
    greet(&channel, "Ada").unwrap_err();
    drop(channel);
    until("its poller has ended", || {
        Arc::strong_count(&device.opened) == 1
    });
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
    // A call would wait for a server at this address for ever.
    let pollers = Pollers::builder(&device()).start().unwrap();
    let lazy = Channel::builder(&device(), url).connect_lazy().map(drop);
    let shared = Channel::builder(&pollers, url).connect_lazy().map(drop);
    for text in [
        error.to_string(),
        refused.to_string(),
        lazy.unwrap_err().to_string(),
        shared.unwrap_err().to_string(),
    ] {
        assert!(
            text.contains("without http://, as '127.0.0.1:50051'"),
            "{text}"
        );
    }
}
