//! The ways in which a stream ends, as the table of `docs/streaming.md` has them, through local and
//! shared channels.

use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use proto::routeguide::{
    Feature, Point, Rectangle, RouteGuide, RouteGuideClient, RouteGuideServer, RouteNote,
    RouteSummary,
};
use rpc_core::{
    Caller, Channel, Code, Execution, LocalChannel, LocalPoller, Request, Response, SendError,
    Sender, Server, ServerHandle, Shutdown, Status, Stream, Streaming, block_on, sender, stream,
};
use rpc_transport_verbs::Device;

/// Sends each note back, unless its text is one of these commands.
#[derive(Default)]
struct Guide {
    /// Handlers that run.
    running: Arc<AtomicU32>,
}

const FAIL: &str = "fail";
const PANIC: &str = "panic";
const STOP_READING: &str = "stop reading";
const FLOOD: &str = "flood";
const END: &str = "end";

struct Running(Arc<AtomicU32>);

impl Running {
    fn new(running: &Arc<AtomicU32>) -> Self {
        running.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(running))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RouteGuide for Guide {
    async fn get_feature(&self, request: Request<Point>) -> Result<Response<Feature>, Status> {
        let location = Some(request.into_inner());
        let name = String::new();
        Ok(Response::new(Feature { name, location }))
    }

    async fn list_features(
        &self,
        _: Request<Rectangle>,
    ) -> Result<Response<impl Stream<Item = Result<Feature, Status>>>, Status> {
        Ok(Response::new(tokio_stream::pending()))
    }

    async fn record_route(
        &self,
        _: Request<Streaming<Point>>,
    ) -> Result<Response<RouteSummary>, Status> {
        Ok(Response::new(RouteSummary::default()))
    }

    async fn route_chat(
        &self,
        request: Request<Streaming<RouteNote>>,
    ) -> Result<Response<impl Stream<Item = Result<RouteNote, Status>>>, Status> {
        let running = Running::new(&self.running);
        let mut notes = request.into_inner();
        Ok(Response::new(stream(async move |mut responses| {
            let _running = running;
            while let Some(note) = notes.message().await? {
                match note.message.as_str() {
                    FAIL => return Err(Status::data_loss("as asked")),
                    PANIC => panic!("as asked"),
                    END => return Ok(()),
                    STOP_READING => {
                        drop(notes);
                        return pending().await;
                    }
                    FLOOD => loop {
                        responses.send(note.clone()).await?;
                    },
                    _ => responses.send(note).await?,
                }
            }
            Ok(())
        })))
    }
}

fn device() -> Device {
    let name = std::env::var("VERBLINE_DEVICE").unwrap_or_else(|_| "soft".to_owned());
    Device::open(&name).unwrap()
}

fn serve() -> (ServerHandle, Arc<AtomicU32>) {
    let guide = Guide::default();
    let running = Arc::clone(&guide.running);
    let server = Server::builder(&device())
        .max_streams(4)
        .add_service(RouteGuideServer::new(guide))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    (server, running)
}

/// Runs a test through both kinds of channels, at a server of its own each time.
macro_rules! through_both {
    ($test:expr) => {{
        let (server, running) = serve();
        let address = server.local_addr().to_string();
        let poller = LocalPoller::new(&device()).unwrap();
        let guide = RouteGuideClient::new(poller.connect(&address).unwrap());
        poller.block_on($test(&guide, &running));
        drop(server);

        let (server, running) = serve();
        let address = server.local_addr().to_string();
        block_on(async {
            let guide = RouteGuideClient::new(Channel::connect(&device(), &address).await.unwrap());
            $test(&guide, &running).await
        });
        drop(server);
    }};
}

type Guided<C> = RouteGuideClient<C>;
type Notes = (Sender<RouteNote>, Streaming<RouteNote>);

fn note(text: &str) -> RouteNote {
    let message = text.to_owned();
    RouteNote {
        location: None,
        message,
    }
}

async fn chat<C: Caller>(guide: &Guided<C>, timeout: Option<Duration>) -> Notes {
    let (notes, messages) = sender();
    let mut request = Request::new(messages);
    if let Some(timeout) = timeout {
        request = request.with_timeout(timeout);
    }
    let responses = guide.route_chat(request).await.unwrap();
    (notes, responses.into_inner())
}

/// Makes unary calls until no handler runs.
async fn until_none_runs<C: Caller>(guide: &Guided<C>, running: &AtomicU32) {
    let begun = Instant::now();
    while running.load(Ordering::SeqCst) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "a handler runs");
        guide.get_feature(Point::default()).await.unwrap();
    }
}

#[test]
fn an_error_ends_the_stream_after_its_messages() {
    async fn test<C: Caller>(guide: &Guided<C>, running: &AtomicU32) {
        let (mut notes, mut responses) = chat(guide, None).await;
        for text in ["a", "b", FAIL] {
            notes.send(note(text)).await.unwrap();
        }
        for text in ["a", "b"] {
            assert_eq!(responses.message().await.unwrap(), Some(note(text)));
        }
        expect_answer(&mut responses, Code::DataLoss).await;
        assert_eq!(notes.send(note("c")).await, Err(SendError::Ended));
        until_none_runs(guide, running).await;
    }
    through_both!(test);
}

#[test]
fn a_panic_ends_its_own_stream_only() {
    async fn test<C: Caller>(guide: &Guided<C>, running: &AtomicU32) {
        let (mut other_notes, mut others) = chat(guide, None).await;
        let (mut notes, mut responses) = chat(guide, None).await;
        notes.send(note("a")).await.unwrap();
        assert_eq!(responses.message().await.unwrap(), Some(note("a")));
        notes.send(note(PANIC)).await.unwrap();
        expect_answer(&mut responses, Code::Internal).await;
        assert_eq!(notes.send(note("c")).await, Err(SendError::Ended));
        other_notes.send(note("b")).await.unwrap();
        assert_eq!(others.message().await.unwrap(), Some(note("b")));
        drop(others);
        until_none_runs(guide, running).await;
    }
    through_both!(test);
}

/// Expects the server's error, and nothing after it.
async fn expect_answer(responses: &mut Streaming<RouteNote>, code: Code) {
    let error = responses.message().await.unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (code, Execution::Answered)
    );
    assert_eq!(responses.message().await.unwrap(), None);
}

#[test]
fn a_deadline_ends_the_stream_on_both_sides() {
    async fn test<C: Caller>(guide: &Guided<C>, running: &AtomicU32) {
        let timeout = Duration::from_millis(100);
        let (mut notes, mut responses) = chat(guide, Some(timeout)).await;
        let begun = Instant::now();
        let error = responses.message().await.unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert!(begun.elapsed() > timeout / 2);
        assert_eq!(notes.send(note("a")).await, Err(SendError::Ended));
        until_none_runs(guide, running).await;
    }
    through_both!(test);
}

#[test]
fn a_server_that_ends_the_call_early_ends_the_sender() {
    async fn test<C: Caller>(guide: &Guided<C>, running: &AtomicU32) {
        let (mut notes, mut responses) = chat(guide, None).await;
        notes.send(note(END)).await.unwrap();
        assert_eq!(responses.message().await.unwrap(), None);
        assert_eq!(notes.send(note("a")).await, Err(SendError::Ended));
        // A client stream that nobody reads does not keep its call from being answered.
        let points = tokio_stream::iter(vec![Point::default(); 100_000]);
        let summary = guide.record_route(points).await.unwrap().into_inner();
        assert_eq!(summary, RouteSummary::default());
        until_none_runs(guide, running).await;
    }
    through_both!(test);
}

#[test]
fn a_handler_that_drops_its_requests_and_a_client_that_does_not_read_stop_no_other_call() {
    async fn test<C: Caller>(guide: &Guided<C>, running: &AtomicU32) {
        let (mut discarded, unread) = chat(guide, None).await;
        discarded.send(note(STOP_READING)).await.unwrap();
        let (mut notes, flood) = chat(guide, None).await;
        notes.send(note(FLOOD)).await.unwrap();
        for _ in 0..2_000 {
            // More than any window: the server discards them.
            discarded.send(note(&"x".repeat(1_000))).await.unwrap();
            guide.get_feature(Point::default()).await.unwrap();
        }
        assert_eq!(running.load(Ordering::SeqCst), 2);
        drop((unread, flood));
        until_none_runs(guide, running).await;
    }
    through_both!(test);
}

#[test]
fn a_stream_beyond_the_limit_waits_until_another_ends() {
    async fn test<C: Caller>(guide: &Guided<C>, running: &AtomicU32) {
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(chat(guide, None).await);
        }
        {
            let mut fifth = pin!(chat(guide, None));
            let first = poll_fn(|cx| Poll::Ready(fifth.as_mut().poll(cx).is_ready())).await;
            for _ in 0..100 {
                guide.get_feature(Point::default()).await.unwrap();
            }
            assert!(!first && running.load(Ordering::SeqCst) == 4);
            open.pop();
            open.push(fifth.await);
        }
        let (notes, responses) = open.last_mut().unwrap();
        notes.send(note("a")).await.unwrap();
        assert_eq!(responses.message().await.unwrap(), Some(note("a")));
        drop(open);
        until_none_runs(guide, running).await;
    }
    through_both!(test);
}

#[test]
fn a_server_that_shuts_down_lets_streams_finish_for_a_while_and_then_ends_them() {
    let (server, running) = serve();
    let address = server.local_addr().to_string();
    let guide = block_on(async {
        RouteGuideClient::new(Channel::connect(&device(), &address).await.unwrap())
    });
    let (mut notes, mut responses) = block_on(chat(&guide, None));
    let (mut ends, mut ended) = block_on(chat(&guide, None));
    let finish = Duration::from_millis(500);
    let begun = Instant::now();
    let shutdown = thread::spawn(move || {
        let close = Duration::from_secs(20);
        let lame_duck = Duration::ZERO;
        server
            .shutdown_within(Shutdown {
                lame_duck,
                finish,
                close,
            })
            .unwrap();
    });
    block_on(async {
        notes.send(note("a")).await.unwrap();
        assert_eq!(responses.message().await.unwrap(), Some(note("a")));
        ends.send(note(END)).await.unwrap();
        assert_eq!(ended.message().await.unwrap(), None);
        let error = responses.message().await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert!(begun.elapsed() > finish / 2);
        assert_eq!(notes.send(note("b")).await, Err(SendError::Ended));
    });
    shutdown.join().unwrap();
    assert_eq!(running.load(Ordering::SeqCst), 0);
}

/// A client that a thread keeps in a variable, and that makes its last calls when it is dropped.
struct Kept {
    poller: LocalPoller,
    guide: Guided<LocalChannel>,
    said: mpsc::Sender<Result<(), Status>>,
}

impl Kept {
    fn new(address: &str, said: &mpsc::Sender<Result<(), Status>>) -> Self {
        let poller = LocalPoller::new(&device()).unwrap();
        Self {
            guide: RouteGuideClient::new(poller.connect(address).unwrap()),
            poller,
            said: said.clone(),
        }
    }

    /// Makes a call, and opens a stream that it gives up.
    fn call(&self) -> Result<(), Status> {
        let list = self.guide.list_features(Rectangle::default());
        drop(self.poller.block_on(list)?);
        let feature = self.guide.get_feature(Point::default());
        self.poller.block_on(feature)?;
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let outcome = self.call();
        // On no poller's thread.
        assert!(LocalPoller::current().is_none());
        self.said.send(outcome).unwrap();
    }
}

thread_local! {
    static KEPT: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
}

/// A panic there would end the process. Variables that were used first are destroyed last, so those of
/// the library are gone.
#[test]
fn a_thread_may_make_its_last_calls_while_its_variables_are_destroyed() {
    let (server, running) = serve();
    let address = server.local_addr().to_string();
    let (said, outcomes) = mpsc::channel();
    let thread = thread::spawn(move || {
        KEPT.with_borrow_mut(|kept| {
            for _ in 0..2 {
                let one = Kept::new(&address, &said);
                one.call().unwrap();
                kept.push(one);
            }
        });
    });
    thread.join().unwrap();
    let outcomes: Vec<_> = outcomes.iter().collect();
    assert!(matches!(outcomes[..], [Ok(()), Ok(())]), "{outcomes:?}");
    assert_eq!(running.load(Ordering::SeqCst), 0);
    drop(server);
}
