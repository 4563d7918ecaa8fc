//! A server and its client in one program, and how to test a service this way:
//!
//! ```text
//! cargo run --release -p examples --bin in_process
//! cargo test -p examples --bin in_process
//! ```
//!
//! Nothing is mocked: calls use the software device, which exists on every machine. To mock the
//! server of a client, implement its trait and serve it in process in the same way. A test does so
//! for a client of streams.
#![forbid(unsafe_code)]
// Printing the responses is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::Cell;
use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use proto::greeter::greeter_server::LocalGreeter;
use proto::greeter::{GreeterClient, GreeterServer, HelloReply, HelloRequest};
use verbline::{Device, LocalPoller, Request, Response, Server, Status};

/// Counts its greetings. It stays on one poller, so a `Cell` is enough.
#[derive(Default)]
struct CountingGreeter {
    greeted: Cell<u64>,
}

impl LocalGreeter for CountingGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let HelloRequest { name } = request.into_inner();
        if name.is_empty() {
            return Err(Status::invalid_argument("a greeting needs a name"));
        }
        self.greeted.set(self.greeted.get() + 1);
        let message = format!("Hello, {name}! You are number {}.", self.greeted.get());
        Ok(Response::new(HelloReply { message }))
    }
}

/// Runs a server and its client in one program, with three calls
#[derive(Parser)]
#[command(
    after_help = "Next: run this program's tests with `cargo test -p examples --bin in_process`"
)]
struct Arguments {}

fn run() -> Result<(), Box<dyn Error>> {
    let device = Device::best()?;
    let server = Server::builder(&device)
        .add_service(GreeterServer::per_poller(CountingGreeter::default))
        .bind("127.0.0.1:0")?
        .spawn();

    let poller = LocalPoller::new(&device)?;
    let greeter = GreeterClient::new(poller.connect(&server.local_addr().to_string())?);
    for name in ["Ada", "Grace", "Barbara"] {
        let request = HelloRequest { name: name.into() };
        let reply = poller.block_on(greeter.say_hello(request))?;
        println!("{}", reply.into_inner().message);
    }
    Ok(server.shutdown()?)
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    Arguments::parse();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("in_process: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use proto::routeguide::{
        Feature, Point, Rectangle, RouteGuide, RouteGuideClient, RouteGuideServer, RouteNote,
        RouteSummary,
    };
    use verbline::server::Spawned;
    use verbline::{Code, LocalChannel, ServerHandle, Stream, Streaming, sender, stream};

    use super::*;

    /// Starts a separate server for each test, on its own port.
    fn start() -> (ServerHandle, LocalPoller, GreeterClient<LocalChannel>) {
        let device = Device::open("soft").expect("the software device exists on every machine");
        let server = Server::builder(&device)
            .add_service(GreeterServer::per_poller(CountingGreeter::default))
            .bind("127.0.0.1:0")
            .expect("a port is free")
            .spawn();
        let poller = LocalPoller::new(&device).expect("a poller opens");
        let address = server.local_addr().to_string();
        let channel = poller.connect(&address).expect("the server answers");
        (server, poller, GreeterClient::new(channel))
    }

    #[test]
    fn every_greeting_is_counted() {
        let (_server, poller, greeter) = start();
        for number in 1..=3 {
            let request = HelloRequest { name: "Ada".into() };
            let reply = poller
                .block_on(greeter.say_hello(request))
                .expect("a reply");
            let expected = format!("Hello, Ada! You are number {number}.");
            assert_eq!(reply.into_inner().message, expected);
        }
    }

    #[test]
    fn nobody_is_not_greeted() {
        let (_server, poller, greeter) = start();
        let request = HelloRequest::default();
        let error = poller
            .block_on(greeter.say_hello(request))
            .expect_err("a status");
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains("needs a name"), "{error}");
    }
    /// A route guide whose list of features breaks off.
    struct BrokenGuide;

    impl RouteGuide for BrokenGuide {
        async fn get_feature(&self, _: Request<Point>) -> Result<Response<Feature>, Status> {
            Err(Status::unimplemented("the test does not call it"))
        }

        async fn list_features(
            &self,
            _: Request<Rectangle>,
        ) -> Result<Response<impl Stream<Item = Result<Feature, Status>>>, Status> {
            Ok(Response::new(stream(async move |mut responses| {
                for name in ["A bridge", "A mill"] {
                    let name = name.to_owned();
                    let location = None;
                    responses.send(Feature { name, location }).await?;
                }
                Err(Status::unavailable("the guide is tired"))
            })))
        }

        async fn record_route(
            &self,
            request: Request<Streaming<Point>>,
        ) -> Result<Response<RouteSummary>, Status> {
            let mut points = request.into_inner();
            let mut summary = RouteSummary::default();
            while let Ok(Some(_)) = points.message().await {
                summary.point_count += 1;
            }
            Ok(Response::new(summary))
        }

        async fn route_chat(
            &self,
            request: Request<Streaming<RouteNote>>,
        ) -> Result<Response<impl Stream<Item = Result<RouteNote, Status>>>, Status> {
            let mut notes = request.into_inner();
            Ok(Response::new(stream(async move |mut responses| {
                while let Ok(Some(note)) = notes.message().await {
                    responses.send(note).await?;
                }
                Ok(())
            })))
        }
    }

    /// The code under test: returns the names of all features, and how the list ended.
    async fn names(guide: &RouteGuideClient<LocalChannel>) -> (Vec<String>, Option<Code>) {
        let mut names = Vec::new();
        let mut features = match guide.list_features(Rectangle::default()).await {
            Ok(response) => response.into_inner(),
            Err(error) => return (names, Some(error.code())),
        };
        loop {
            match features.message().await {
                Ok(Some(feature)) => names.push(feature.name),
                Ok(None) => return (names, None),
                Err(error) => return (names, Some(error.code())),
            }
        }
    }

    #[test]
    fn a_client_of_streams_is_tested_with_a_mock() {
        for on_executor in [false, true] {
            let device = Device::open("soft").expect("the software device exists");
            let builder = Server::builder(&device);
            let builder = match on_executor {
                false => builder.add_service(RouteGuideServer::new(BrokenGuide)),
                true => builder
                    .executor(on_a_thread)
                    .add_service(RouteGuideServer::new(BrokenGuide)),
            };
            let server = builder.bind("127.0.0.1:0").expect("a port is free").spawn();
            let poller = LocalPoller::new(&device).expect("a poller opens");
            let address = server.local_addr().to_string();
            let guide = RouteGuideClient::new(poller.connect(&address).expect("it answers"));

            let (names, end) = poller.block_on(names(&guide));
            assert_eq!(names, ["A bridge", "A mill"]);
            assert_eq!(end, Some(Code::Unavailable));

            poller.block_on(async {
                let (mut points, messages) = sender();
                let sending = async {
                    for _ in 0..3 {
                        points.send(Point::default()).await.expect("it is read");
                    }
                    drop(points);
                };
                let (summary, ()) = both(guide.record_route(messages), sending).await;
                let summary = summary.expect("a summary").into_inner();
                assert_eq!(summary.point_count, 3);

                let (mut notes, messages) = sender();
                let chat = guide.route_chat(messages);
                let note = RouteNote::default;
                let sending = async {
                    notes.send(note()).await.expect("it is read");
                    notes
                };
                let (chat, notes) = both(chat, sending).await;
                let mut chat = chat.expect("the chat begins").into_inner();
                assert_eq!(chat.message().await.expect("an echo"), Some(note()));
                drop(notes);
                assert_eq!(chat.message().await.expect("the end"), None);
            });
        }
    }

    /// An executor with a thread for each future.
    fn on_a_thread(future: Spawned) {
        std::thread::spawn(|| verbline::block_on(future));
    }

    /// Completes when both futures have completed.
    async fn both<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
        let (mut one, mut other) = (pin!(one), pin!(other));
        let (mut first, mut second) = (None, None);
        poll_fn(|cx| {
            if first.is_none()
                && let Poll::Ready(output) = one.as_mut().poll(cx)
            {
                first = Some(output);
            }
            if second.is_none()
                && let Poll::Ready(output) = other.as_mut().poll(cx)
            {
                second = Some(output);
            }
            match first.is_some() && second.is_some() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        (
            first.expect("it has completed"),
            second.expect("it has completed"),
        )
    }
}
