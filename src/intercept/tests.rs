//! The ready-made interceptors, on a server and its clients.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use rpc_core::Caller;

use super::*;
use crate::{
    Channel, Code, Device, Execution, LocalPoller, Request, Response, Server, ServerHandle, Status,
    block_on,
};

struct User(String);

/// Greets who calls.
struct MyGreeter;

impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let message = match request.extensions().get::<User>() {
            Some(User(name)) => name.clone(),
            None => "nobody".to_owned(),
        };
        Ok(Response::new(HelloReply { message }))
    }
}

fn served(interceptor: impl Interceptor) -> (Device, ServerHandle, String) {
    let device = Device::open("soft").unwrap();
    let server = Server::builder(&device)
        .interceptor(interceptor)
        .add_service(GreeterServer::new(MyGreeter))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();
    (device, server, address)
}

fn verify(token: &str) -> Result<User, Status> {
    match token {
        "secret" => Ok(User("Ada".to_owned())),
        // A careless check.
        long if long.len() > 100 => Err(Status::permission_denied(format!("unknown: {long}"))),
        _ => Err(Status::permission_denied("unknown token")),
    }
}

async fn greet(
    greeter: &GreeterClient<impl Caller>,
    authorization: Option<&str>,
) -> Result<String, (Code, Execution)> {
    let mut request = Request::new(HelloRequest::default());
    if let Some(value) = authorization {
        request.metadata_mut().insert(AUTHORIZATION, value).unwrap();
    }
    let reply = greeter.say_hello(request).await;
    reply
        .map(|reply| reply.into_inner().message)
        .map_err(|error| (error.code(), error.execution()))
}

fn check_tokens(check: impl Interceptor) {
    let (device, server, address) = served(check);
    block_on(async {
        let channel = Channel::connect(&device, &address).await.unwrap();
        let greeter = GreeterClient::new(channel);
        let greet = |authorization| greet(&greeter, authorization);
        let refused = |code| Err((code, Execution::NotStarted));
        assert_eq!(greet(Some("Bearer secret")).await.unwrap(), "Ada");
        assert_eq!(greet(Some("bEARER   secret ")).await.unwrap(), "Ada");
        for none in [
            None,
            Some("secret"),
            Some("Basic secret"),
            Some("Bearer"),
            Some(""),
        ] {
            assert_eq!(
                greet(none).await,
                refused(Code::Unauthenticated),
                "{none:?}"
            );
        }
        let wrong = greet(Some("Bearer secrets")).await;
        assert_eq!(wrong, refused(Code::PermissionDenied));
    });
    server.shutdown().unwrap();
}

#[test]
fn a_server_checks_bearer_tokens() {
    check_tokens(BearerCheck::new(verify));
}

#[test]
fn a_check_may_wait_for_another_thread() {
    check_tokens(BearerCheck::later(|token| async move {
        let (sender, mut answers) = crate::sender();
        thread::spawn(move || {
            let mut sender = sender;
            block_on(sender.send(token)).unwrap();
        });
        let token = std::future::poll_fn(|cx| {
            crate::Stream::poll_next(std::pin::Pin::new(&mut answers), cx)
        });
        verify(&token.await.expect("the thread sends it"))
    }));
}

/// A source whose fetches are counted, and wait until they are let go.
fn counted(
    fetched: impl Fn(u32) -> Result<Token, Status> + Send + Sync + 'static,
) -> (BearerSource, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    let fetches = Arc::clone(&count);
    let source = BearerSource::new(move || {
        let number = fetches.fetch_add(1, Ordering::Relaxed) + 1;
        let fetched = fetched(number);
        async move {
            thread::sleep(Duration::from_millis(20));
            fetched
        }
    });
    (source, count)
}

fn secret(valid_for: Duration) -> Result<Token, Status> {
    let value = "secret".to_owned();
    Ok(Token { value, valid_for })
}

#[test]
fn calls_that_need_a_token_wait_for_one_fetch() {
    let (device, server, address) = served(BearerCheck::new(verify));
    let (source, fetches) = counted(|_| secret(Duration::from_secs(3600)));
    let channel = block_on(Channel::connect(&device, &address)).unwrap();
    let threads = (0..4).map(|_| {
        let greeter = GreeterClient::new(channel.with_interceptor(source.clone()));
        thread::spawn(move || block_on(greet(&greeter, None)))
    });
    let threads: Vec<_> = threads.collect();
    // A channel of another kind shares the token.
    let poller = LocalPoller::new(&device).unwrap();
    let local = poller.connect(&address).unwrap().with_interceptor(source);
    let greeter = GreeterClient::new(local);
    assert_eq!(poller.block_on(greet(&greeter, None)).unwrap(), "Ada");
    for thread in threads {
        assert_eq!(thread.join().unwrap().unwrap(), "Ada");
    }
    assert_eq!(fetches.load(Ordering::Relaxed), 1);
    drop((greeter, channel));
    server.shutdown().unwrap();
}

#[test]
fn a_token_is_fetched_again_before_it_expires() {
    let (device, server, address) = served(BearerCheck::new(verify));
    let (source, fetches) = counted(|number| match number {
        1 => secret(Duration::from_millis(500)),
        _ => secret(Duration::from_secs(3600)),
    });
    block_on(async {
        let channel = Channel::connect(&device, &address).await.unwrap();
        let greeter = GreeterClient::new(channel.with_interceptor(source));
        greet(&greeter, None).await.unwrap();
        assert_eq!(fetches.load(Ordering::Relaxed), 1);
        // Four fifths of its time have passed: the call goes on with it, and another one is fetched.
        thread::sleep(Duration::from_millis(420));
        greet(&greeter, None).await.unwrap();
        thread::sleep(Duration::from_millis(200));
        greet(&greeter, None).await.unwrap();
        assert_eq!(fetches.load(Ordering::Relaxed), 2);
    });
    server.shutdown().unwrap();
}

#[test]
fn a_fetch_that_fails_fails_the_calls_and_is_not_repeated_at_once() {
    let (device, server, address) = served(BearerCheck::new(verify));
    type Fetch = fn(u32) -> Result<Token, Status>;
    let failing: [(&str, Fetch); 2] = [
        ("fails", |_| Err(Status::unavailable("no issuer"))),
        ("panics", |_| panic!("this fetch has a bug")),
    ];
    let channel = block_on(Channel::connect(&device, &address)).unwrap();
    for (name, fetch) in failing {
        let (source, fetches) = counted(fetch);
        let greeter = GreeterClient::new(channel.with_interceptor(source));
        for _ in 0..5 {
            let error = block_on(greet(&greeter, None)).unwrap_err();
            assert_eq!(error, (Code::Unavailable, Execution::NeverSent), "{name}");
        }
        assert_eq!(fetches.load(Ordering::Relaxed), 1, "{name}");
    }
    // A token that is never valid.
    let (source, _) = counted(|_| secret(Duration::ZERO));
    let greeter = GreeterClient::new(channel.with_interceptor(source));
    let error = block_on(greet(&greeter, None)).unwrap_err();
    assert_eq!(error, (Code::Unauthenticated, Execution::NeverSent));
    // An executor that runs the fetch at once, before the call waits.
    let source = BearerSource::on(block_on::<rpc_core::Spawned>, || async {
        secret(Duration::ZERO)
    });
    let greeter = GreeterClient::new(channel.with_interceptor(source));
    let error = block_on(greet(&greeter, None)).unwrap_err();
    assert_eq!(error, (Code::Unauthenticated, Execution::NeverSent));
    // An executor that runs nothing.
    let source = BearerSource::on(drop::<rpc_core::Spawned>, || async {
        secret(Duration::MAX)
    });
    let greeter = GreeterClient::new(channel.with_interceptor(source));
    let error = block_on(greet(&greeter, None)).unwrap_err();
    assert_eq!(error, (Code::Unavailable, Execution::NeverSent));
    let fixed = GreeterClient::new(channel.with_interceptor(BearerSource::fixed("secret")));
    assert_eq!(block_on(greet(&fixed, None)).unwrap(), "Ada");
    drop(channel);
    server.shutdown().unwrap();
}

/// Collects the lines of the log of one thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn failed_and_slow_calls_have_a_line() {
    let (device, server, address) = served(BearerCheck::new(verify));
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .without_time()
        .finish();
    let channel = block_on(Channel::connect(&device, &address)).unwrap();
    let greeter = |log: CallLog| GreeterClient::new(channel.with_interceptor(log));
    tracing::subscriber::with_default(subscriber, || {
        let failures = greeter(CallLog::failures());
        block_on(greet(&failures, Some("Bearer secret"))).unwrap();
        assert_eq!(lines.take(), [""; 0]);
        block_on(greet(&failures, Some("Bearer other"))).unwrap_err();
        let [line] = &lines.take()[..] else {
            panic!("there is one line");
        };
        for part in [
            "WARN",
            "a call failed",
            "side=\"client\"",
            "method=\"verbline.greeter.Greeter/SayHello\"",
            "code=PERMISSION_DENIED",
            "reason=\"unknown token\"",
            "requests=1",
            "responses=0",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let slow = greeter(CallLog::failures().and_slower_than(Duration::ZERO));
        block_on(greet(&slow, Some("Bearer secret"))).unwrap();
        let [line] = &lines.take()[..] else {
            panic!("there is one line");
        };
        assert!(
            line.contains("a call was slow") && line.contains("elapsed="),
            "{line}"
        );
        // No client fills the log, neither with long lines nor with many.
        let long = format!("Bearer {}", "x".repeat(2_000));
        block_on(greet(&failures, Some(&long))).unwrap_err();
        let [line] = &lines.take()[..] else {
            panic!("there is one line");
        };
        assert!(line.len() < 1_000 && line.contains("… (cut)"), "{line}");
        for _ in 0..300 {
            block_on(greet(&failures, Some("Bearer other"))).unwrap_err();
        }
        assert!(lines.take().len() <= 200);
    });
    drop(channel);
    server.shutdown().unwrap();
}

#[test]
fn a_method_has_its_deadline() {
    let limits = MethodDeadlines::new().service("verbline.greeter.Greeter", Duration::ZERO);
    let (device, server, address) = served(BearerCheck::new(verify));
    let channel = block_on(Channel::connect(&device, &address)).unwrap();
    let greeter = GreeterClient::new(channel.with_interceptor(limits));
    let error = block_on(greet(&greeter, None)).unwrap_err();
    assert_eq!(error, (Code::DeadlineExceeded, Execution::NeverSent));
    drop((greeter, channel));
    server.shutdown().unwrap();
}
