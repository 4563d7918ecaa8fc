//! Every duration that the public interface takes, at nothing, at a nanosecond, beyond the 31 bits of
//! milliseconds that some system calls take, and at the longest there is: it works, or the error names
//! the setting. The control thread, which all connections of a process share, survives each.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::task::{self, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use rpc_core::error_details::RetryInfo;
use rpc_core::intercept::Call;
use rpc_core::transport::{ConnectError, Fabric, Transport};
use rpc_core::{
    Channel, DeadlinePolicy, Intents, Keepalive, LocalPoller, Pollers, Request, Response,
    SendCaller, Server, ServerHandle, Shutdown, Status, Waiting, block_on,
};
use rpc_transport_verbs::verbs::{AckTimeout, Context, RetryCount, RnrRetry, RnrTimer, VerbsError};
use rpc_transport_verbs::{Device, FabricSettings};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Short ones, which may fail, and long ones, which may not.
const SHORT: [Duration; 2] = [Duration::ZERO, Duration::from_nanos(1)];
const LONG: [Duration; 6] = [
    // 24.8 days, and a millisecond more than 31 bits hold.
    Duration::from_millis(1 << 31),
    Duration::from_secs(31 * DAY.as_secs()),
    Duration::from_secs(500 * 365 * DAY.as_secs()),
    Duration::from_millis(u64::MAX),
    Duration::from_secs(i64::MAX as u64),
    Duration::MAX,
];

/// Lists of the public items of all crates that have durations.
const ITEMS: [&str; 3] = [
    include_str!("../../public-items.txt"),
    include_str!("../../../rpc-transport-verbs/public-items.txt"),
    include_str!("../../../rpc-transport-verbs/verbs/public-items.txt"),
];

/// Times that are reported, or read from the clock, and are no setting.
const REPORTED: [&str; 8] = [
    "rpc_core::CallError::with_pushback",
    "rpc_core::Cause::PushedBack.wait",
    "rpc_core::Request::deadline",
    "rpc_core::Request::deadline_of_call_at",
    "rpc_core::stats::LONGEST",
    "rpc_core::transport::ConnectError::TimedOut.timeout",
    "verbline_verbs::DeviceAttributes.local_ca_ack_delay",
    "verbline_verbs::PortAttributes.subnet_timeout",
];

struct Hello;

impl Greeter for Hello {
    async fn say_hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply::default()))
    }
}

/// A server, and what a row needs of it.
struct Scene {
    device: Device,
    server: ServerHandle,
    address: String,
}

type Outcome = Result<(), String>;

fn hello() -> Request<HelloRequest> {
    Request::new(HelloRequest::default())
}

fn shown(error: impl ToString) -> String {
    error.to_string()
}

async fn greet(channel: impl SendCaller, request: Request<HelloRequest>) -> Outcome {
    let reply = GreeterClient::new(channel).say_hello(request).await;
    reply.map(drop).map_err(shown)
}

impl Scene {
    fn new() -> Self {
        let device = Device::open("soft").unwrap();
        let server = Server::builder(&device).add_service(GreeterServer::new(Hello));
        let server = server.bind("127.0.0.1:0").unwrap().spawn();
        let address = server.local_addr().to_string();
        Self {
            device,
            server,
            address,
        }
    }

    /// Connects and calls.
    fn call(&self, request: Request<HelloRequest>) -> Outcome {
        let connected = block_on(Channel::connect(&self.device, &self.address));
        block_on(greet(connected.map_err(shown)?, request))
    }

    /// Calls a server with these settings.
    fn with_server(&self, policy: DeadlinePolicy, shutdown: Shutdown) -> Outcome {
        let server = Server::builder(&self.device)
            .deadlines(policy)
            .shutdown(shutdown)
            .add_service(GreeterServer::new(Hello))
            .bind("127.0.0.1:0")
            .map_err(shown)?
            .spawn();
        let address = server.local_addr().to_string();
        let channel = block_on(Channel::connect(&self.device, &address)).map_err(shown)?;
        let called = block_on(greet(channel, hello()));
        server.shutdown().map_err(shown)?;
        called
    }

    /// Calls with interceptors on both sides that limit the time of calls.
    fn with_limited_deadline(&self, time: Duration) -> Outcome {
        let limit = move |call: &mut Call<'_>| {
            // The clock has no moment that is too far.
            if let Some(moment) = Instant::now().checked_add(time) {
                call.limit_deadline(moment);
            }
            Ok(())
        };
        let server = Server::builder(&self.device)
            .interceptor(limit)
            .add_service(GreeterServer::new(Hello))
            .bind("127.0.0.1:0")
            .map_err(shown)?
            .spawn();
        let address = server.local_addr().to_string();
        let channel = block_on(Channel::connect(&self.device, &address)).map_err(shown)?;
        let called = block_on(greet(channel.with_interceptor(limit), hello()));
        server.shutdown().map_err(shown)?;
        called
    }

    /// Stops a server. In a long lame-duck time, it goes on.
    fn with_lame_duck(&self, lame_duck: Duration) -> Outcome {
        let server = Server::builder(&self.device)
            .shutdown(Shutdown {
                lame_duck,
                ..Shutdown::default()
            })
            .add_service(GreeterServer::new(Hello));
        let server = server.bind("127.0.0.1:0").map_err(shown)?.spawn();
        let address = server.local_addr().to_string();
        let channel = block_on(Channel::connect(&self.device, &address)).map_err(shown)?;
        let mut stops = Box::pin(server.shutdown_async());
        if lame_duck <= DAY {
            return block_on(stops).map_err(shown);
        }
        let stopped = stops
            .as_mut()
            .poll(&mut task::Context::from_waker(Waker::noop()));
        let called = block_on(greet(channel, hello()));
        // Its drop would wait.
        mem::forget(stops);
        match stopped {
            Poll::Pending => called,
            Poll::Ready(_) => Err("it has ended".to_owned()),
        }
    }

    fn with_keepalive(&self, keepalive: Keepalive) -> Outcome {
        let server = Server::builder(&self.device)
            .keepalive(keepalive)
            .add_service(GreeterServer::new(Hello));
        let server = server.bind("127.0.0.1:0").map_err(shown)?.spawn();
        let address = server.local_addr().to_string();
        let channel = Channel::builder(&self.device, &address).keepalive(keepalive);
        let channel = block_on(channel.connect()).map_err(shown)?;
        // Some probes come, if any ever do.
        thread::sleep(Duration::from_millis(30));
        let called = block_on(greet(channel, hello()));
        server.shutdown().map_err(shown)?;
        called
    }

    fn with_connect_timeout(&self, timeout: Duration) -> Outcome {
        let own = Channel::builder(&self.device, &self.address).connect_timeout(timeout);
        block_on(own.connect()).map_err(shown)?;
        let pollers = Pollers::builder(&self.device).start().map_err(shown)?;
        let shared = Channel::builder(&pollers, &self.address).connect_timeout(timeout);
        let lazy = Channel::builder(&self.device, &self.address).connect_timeout(timeout);
        block_on(shared.connect()).map_err(shown)?;
        let lazy = lazy.connect_lazy().map_err(shown)?;
        block_on(greet(lazy, hello()))
    }

    fn with_local_connect_timeout(&self, timeout: Duration) -> Outcome {
        let poller = LocalPoller::builder(&self.device).connect_timeout(timeout);
        let poller = poller.build().map_err(shown)?;
        let channel = poller.connect(&self.address).map_err(shown)?;
        let call = async move { GreeterClient::new(channel).say_hello(hello()).await };
        poller.block_on(call).map(drop).map_err(shown)
    }

    fn transport(&self) -> impl Transport + use<> {
        let intents = Intents {
            waiting: Waiting::Event,
            ..Intents::default()
        };
        Fabric::open(&self.device, &intents).unwrap()
    }

    /// Any answer of the server is one: what is asked is not a session.
    fn answered(&self, outcome: Result<(), ConnectError>) -> Outcome {
        match outcome {
            Ok(()) | Err(ConnectError::Refused { .. }) => Ok(()),
            Err(error) => Err(shown(error)),
        }
    }
}

/// Waits on a thread of its own. A wait that ends early has failed, and one that goes on works.
fn waits<T: 'static>(
    time: Duration,
    wait: impl FnOnce(Option<Duration>) -> Result<Option<T>, VerbsError> + Send + 'static,
) -> Outcome {
    let waiting = thread::spawn(move || wait(Some(time)).map(|found| found.is_some()));
    if time > DAY {
        thread::sleep(Duration::from_millis(20));
        if !waiting.is_finished() {
            return Ok(());
        }
    }
    match waiting.join().unwrap() {
        Ok(false) if time <= DAY => Ok(()),
        other => Err(format!("the wait ended: {other:?}")),
    }
}

type Row = (&'static str, &'static str, fn(&Scene, Duration) -> Outcome);

/// The items, what the errors of short times say, and how to use them.
const ROWS: [Row; 28] = [
    (
        "rpc_core::ChannelBuilder::connect_timeout",
        "connect_timeout",
        Scene::with_connect_timeout,
    ),
    (
        "rpc_core::ChannelBuilder::reconnect_backoff",
        "",
        |scene, time| {
            let channel = Channel::builder(&scene.device, &scene.address);
            let channel = channel.reconnect_backoff(time, time).connect();
            block_on(greet(block_on(channel).map_err(shown)?, hello()))
        },
    ),
    (
        "rpc_core::ServerBuilder::max_connection_age",
        "connection",
        |scene, time| {
            let server = Server::builder(&scene.device)
                .max_connection_age(time, time)
                .add_service(GreeterServer::new(Hello))
                .bind("127.0.0.1:0")
                .map_err(shown)?
                .spawn();
            let address = server.local_addr().to_string();
            let channel = block_on(Channel::connect(&scene.device, &address)).map_err(shown)?;
            let called = block_on(greet(channel, hello()));
            server.shutdown().map_err(shown)?;
            called
        },
    ),
    ("rpc_core::DeadlinePolicy.cap", "deadline", |scene, time| {
        let policy = DeadlinePolicy {
            cap: Some(time),
            ..DeadlinePolicy::default()
        };
        scene.with_server(policy, Shutdown::default())
    }),
    (
        "rpc_core::DeadlinePolicy.default",
        "deadline",
        |scene, time| {
            let policy = DeadlinePolicy {
                default: Some(time),
                ..DeadlinePolicy::default()
            };
            scene.with_server(policy, Shutdown::default())
        },
    ),
    ("rpc_core::DeadlinePolicy.floor", "", |scene, time| {
        let policy = DeadlinePolicy {
            floor: Some(time),
            ..DeadlinePolicy::default()
        };
        scene.with_server(policy, Shutdown::default())
    }),
    ("rpc_core::Keepalive.every", "", |scene, every| {
        let gone_after = Duration::from_secs(30);
        scene.with_keepalive(Keepalive { every, gone_after })
    }),
    ("rpc_core::Keepalive.gone_after", "", |scene, gone_after| {
        let every = gone_after;
        scene.with_keepalive(Keepalive { every, gone_after })?;
        let every = Duration::from_secs(10);
        scene.with_keepalive(Keepalive { every, gone_after })
    }),
    (
        "rpc_core::LocalPollerBuilder::connect_timeout",
        "connect_timeout",
        Scene::with_local_connect_timeout,
    ),
    (
        "rpc_core::Request::with_deadline",
        "deadline",
        |scene, time| match Instant::now().checked_add(time) {
            Some(deadline) => scene.call(hello().with_deadline(deadline)),
            // The clock has no such moment.
            None => Ok(()),
        },
    ),
    (
        "rpc_core::Request::with_timeout",
        "deadline",
        |scene, time| scene.call(hello().with_timeout(time)),
    ),
    ("rpc_core::Shutdown.close", "", |scene, close| {
        let shutdown = Shutdown {
            close,
            ..Shutdown::default()
        };
        scene.with_server(DeadlinePolicy::default(), shutdown)
    }),
    ("rpc_core::Shutdown.finish", "", |scene, finish| {
        let shutdown = Shutdown {
            finish,
            ..Shutdown::default()
        };
        scene.with_server(DeadlinePolicy::default(), shutdown)
    }),
    ("rpc_core::Shutdown.lame_duck", "", Scene::with_lame_duck),
    (
        "rpc_core::error_details::RetryInfo::after",
        "",
        |_, time| match RetryInfo::after(time).delay() {
            None if time < DAY => Err("it is left out".to_owned()),
            _ => Ok(()),
        },
    ),
    (
        "rpc_core::intercept::Call::limit_deadline",
        "deadline",
        Scene::with_limited_deadline,
    ),
    (
        "rpc_core::transport::Dialer::dial",
        "connect_timeout",
        |scene, time| {
            let dialer = scene.transport().dialer(Arc::default());
            scene.answered(dialer.dial(&scene.address, b"", time).map(drop))
        },
    ),
    (
        "rpc_core::transport::Transport::connect",
        "connect_timeout",
        |scene, time| {
            let connected = scene.transport().connect(&scene.address, b"", time);
            scene.answered(connected.map(drop))
        },
    ),
    ("rpc_core::transport::Transport::wait", "", |scene, time| {
        let mut transport = scene.transport();
        let waker = transport.waker();
        transport.arm();
        while transport.poll().is_some() {}
        let start = Instant::now();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            waker.wake();
        });
        transport.wait(Some(time));
        match start.elapsed() < Duration::from_millis(20) && time > DAY {
            true => Err("it did not wait".to_owned()),
            false => Ok(()),
        }
    }),
    ("verbline_verbs::AckTimeout::at_least", "", |_, time| {
        let _ = AckTimeout::at_least(time);
        Ok(())
    }),
    ("verbline_verbs::RnrTimer::at_least", "", |_, time| {
        let _ = RnrTimer::at_least(time);
        Ok(())
    }),
    ("verbline_verbs::RetryCount::at_least", "", |_, time| {
        for timeout in [Some(AckTimeout::FOREVER), AckTimeout::new(1)] {
            let _ = RetryCount::at_least(time, timeout.unwrap());
        }
        Ok(())
    }),
    ("verbline_verbs::RnrRetry::at_least", "", |_, time| {
        let _ = RnrRetry::at_least(time, RnrTimer::LONGEST);
        Ok(())
    }),
    ("verbline_verbs::CompletionChannel::wait", "", |_, time| {
        let channel = Context::open("soft")
            .unwrap()
            .create_comp_channel()
            .unwrap();
        waits(time, move |time| channel.wait(time))
    }),
    ("verbline_verbs::Context::get_async_event", "", |_, time| {
        let context = Context::open("soft").unwrap();
        waits(time, move |time| context.get_async_event(time))
    }),
    // Each is refused: the device has no fabric. What a network card may have: `path::tests`.
    (
        "rpc_transport_verbs::FabricSettings.ack_timeout",
        "",
        |scene, time| {
            let ack_timeout = Some(time);
            let settings = FabricSettings {
                ack_timeout,
                ..FabricSettings::default()
            };
            let error = shown(scene.device.clone().with_fabric(settings).unwrap_err());
            error.contains("timeout=").then_some(()).ok_or(error)
        },
    ),
    ("over TCP: rpc_core::Keepalive.every", "", |_, every| {
        let device = Device::open("tcp").unwrap();
        let scene = Scene {
            device,
            ..Scene::new()
        };
        let gone_after = every;
        scene.with_keepalive(Keepalive { every, gone_after })
    }),
    (
        "over TCP: rpc_core::ChannelBuilder::connect_timeout",
        "connect_timeout",
        |_, timeout| {
            let device = Device::open("tcp").unwrap();
            let server = Server::builder(&device).add_service(GreeterServer::new(Hello));
            let server = server.bind("127.0.0.1:0").unwrap().spawn();
            let address = server.local_addr().to_string();
            let scene = Scene {
                device,
                server,
                address,
            };
            scene.with_connect_timeout(timeout)
        },
    ),
];

#[test]
fn every_duration_works_or_the_error_names_the_setting() {
    let scene = Scene::new();
    for (item, names, try_it) in ROWS {
        for time in SHORT {
            if let Err(error) = try_it(&scene, time) {
                assert!(!names.is_empty(), "{item} = {time:?}: {error}");
                assert!(
                    error.to_lowercase().contains(names),
                    "{item} = {time:?}: {error}"
                );
            }
        }
        for time in LONG {
            let outcome = try_it(&scene, time);
            assert_eq!(outcome, Ok(()), "{item} = {time:?}");
        }
        let afterwards = scene.call(hello());
        assert_eq!(afterwards, Ok(()), "after {item}");
    }
    scene.server.shutdown().unwrap();
}

/// It blamed other channels, or the server.
#[test]
fn a_connect_timeout_of_zero_is_an_error_that_names_it() {
    let device = Device::open("soft").unwrap();
    let pollers = Pollers::builder(&device).start().unwrap();
    let zero = Duration::ZERO;
    let own = || Channel::builder(&device, "127.0.0.1:1").connect_timeout(zero);
    let shared = Channel::builder(&pollers, "127.0.0.1:1").connect_timeout(zero);
    for error in [
        shown(block_on(own().connect()).unwrap_err()),
        shown(own().connect_lazy().unwrap_err()),
        shown(block_on(shared.connect()).unwrap_err()),
        shown(
            LocalPoller::builder(&device)
                .connect_timeout(zero)
                .build()
                .unwrap_err(),
        ),
    ] {
        assert!(
            error.starts_with("connect_timeout = 0 does not fit"),
            "{error}"
        );
    }
}

/// Each call would fail, with a status that does not say why.
#[test]
fn a_deadline_policy_of_zero_is_an_error_that_names_it() {
    let device = Device::open("soft").unwrap();
    let (zero, policy) = (Some(Duration::ZERO), DeadlinePolicy::default());
    let (cap, default) = (
        DeadlinePolicy {
            cap: zero,
            ..policy
        },
        DeadlinePolicy {
            default: zero,
            ..policy
        },
    );
    for (setting, policy) in [("cap", cap), ("default", default)] {
        let server = Server::builder(&device).deadlines(policy);
        let error = shown(server.bind("127.0.0.1:0").unwrap_err());
        let wanted = format!("DeadlinePolicy::{setting} = 0 does not fit");
        assert!(error.starts_with(&wanted), "{error}");
    }
}

/// A new setting needs a row.
#[test]
fn the_table_has_every_public_item_that_takes_a_time() {
    let known: BTreeSet<_> = ROWS
        .iter()
        .map(|(item, ..)| *item)
        .chain(REPORTED)
        .collect();
    for line in ITEMS.iter().flat_map(|items| items.lines()) {
        let (item, kind) = line.split_once(' ').unwrap_or((line, ""));
        let takes = kind.split("->").next().unwrap_or(kind);
        let takes_a_time = ["Duration", "Instant"]
            .iter()
            .any(|time| takes.contains(time));
        if takes_a_time && !item.contains("::testing::") {
            assert!(known.contains(item), "{line}");
        }
    }
}
