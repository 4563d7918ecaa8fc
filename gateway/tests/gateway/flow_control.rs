//! Slow sides: what one of them does not read holds up nobody else.

use std::future::{pending, poll_fn};
use std::io::{Read, Write};
use std::iter::repeat_with;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream, SendStream};
use http::HeaderValue;
use proto::routeguide::{
    Feature, Point, Rectangle, RouteGuide, RouteGuideServer, RouteNote, RouteSummary,
};
use rpc_core::{Request, Response, Server, Status, Stream, Streaming};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use verbline::Device;
use verbline_gateway::GatewayBuilder;

use crate::hostile::{GET_FEATURE, LIST_FEATURES};
use crate::raw::{PREFACE, RawClient};
use crate::support::Fixture;
use crate::torn::{RECORD_ROUTE, ROUTE_CHAT};

/// Reads no stream of requests unless it is asked to, and sends long features and short notes without end.
struct Unread;

impl RouteGuide for Unread {
    async fn get_feature(&self, _: Request<Point>) -> Result<Response<Feature>, Status> {
        Ok(Response::new(Feature::default()))
    }

    async fn list_features(
        &self,
        _: Request<Rectangle>,
    ) -> Result<Response<impl Stream<Item = Result<Feature, Status>>>, Status> {
        let feature = || {
            Ok(Feature {
                name: "x".repeat(1 << 20),
                location: None,
            })
        };
        Ok(Response::new(tokio_stream::iter(repeat_with(feature))))
    }

    async fn record_route(
        &self,
        request: Request<Streaming<Point>>,
    ) -> Result<Response<RouteSummary>, Status> {
        if !request.metadata().contains("read") {
            return pending().await;
        }
        let mut points = request.into_inner();
        while points.message().await?.is_some() {}
        Ok(Response::new(RouteSummary::default()))
    }

    async fn route_chat(
        &self,
        _: Request<Streaming<RouteNote>>,
    ) -> Result<Response<impl Stream<Item = Result<RouteNote, Status>>>, Status> {
        let note = || {
            Ok(RouteNote {
                message: "x".repeat(1000),
                location: None,
            })
        };
        Ok(Response::new(tokio_stream::iter(repeat_with(note))))
    }
}

async fn unread(configure: impl FnOnce(GatewayBuilder) -> GatewayBuilder) -> Fixture {
    let device = Device::open("soft").unwrap();
    let server = Server::builder(&device)
        .add_service(RouteGuideServer::new(Unread))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    Fixture::start(&device, server, configure).await
}

/// A connection of h2, which keeps to the windows.
async fn connect(fixture: &Fixture) -> SendRequest<Bytes> {
    let socket = TcpStream::connect(fixture.address).await.unwrap();
    let (client, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    client
}

fn request(path: &str) -> http::Request<()> {
    let request = http::Request::post(format!("http://test{path}"));
    let request = request.header("content-type", "application/grpc");
    request.body(()).unwrap()
}

/// Makes a call with an empty message, and returns the body of its response.
async fn call(client: &SendRequest<Bytes>, path: &str) -> RecvStream {
    let mut client = client.clone().ready().await.unwrap();
    let (response, mut body) = client.send_request(request(path), false).unwrap();
    body.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
    response.await.unwrap().into_body()
}

async fn get_feature(client: &SendRequest<Bytes>) {
    let mut body = call(client, GET_FEATURE).await;
    while let Some(data) = body.data().await {
        data.unwrap();
    }
    let trailers = body.trailers().await.unwrap().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
}

/// Sends messages of this length until it is dropped, each in a frame, and counts their bytes.
async fn upload(client: SendRequest<Bytes>, message_len: usize, sent: Arc<AtomicUsize>) {
    let mut message = vec![0; 5 + message_len];
    message[1..5].copy_from_slice(&u32::try_from(message_len).unwrap().to_be_bytes());
    let message = Bytes::from(message);
    let mut client = client.ready().await.unwrap();
    let (_response, mut body) = client.send_request(request(RECORD_ROUTE), false).unwrap();
    loop {
        body.reserve_capacity(message.len());
        while body.capacity() < message.len() {
            poll_fn(|cx| body.poll_capacity(cx)).await.unwrap().unwrap();
        }
        body.send_data(message.clone(), false).unwrap();
        sent.fetch_add(message.len(), Ordering::SeqCst);
    }
}

/// Long messages, and short ones, whose frames cost more than their bytes.
#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_their_server_does_not_read_leave_room_for_other_calls() {
    for (uploads, message_len) in [(10, 8 << 10), (1, 30)] {
        let fixture = unread(|builder| builder).await;
        let client = connect(&fixture).await;
        let sent = Arc::<AtomicUsize>::default();
        let uploads: Vec<_> = (0..uploads)
            .map(|_| {
                let upload = upload(client.clone(), message_len, Arc::clone(&sent));
                tokio::spawn(upload)
            })
            .collect();
        // Until the windows are full.
        let mut before = None;
        while before != Some(sent.load(Ordering::SeqCst)) || before == Some(0) {
            before = Some(sent.load(Ordering::SeqCst));
            sleep(Duration::from_millis(200)).await;
        }
        for _ in 0..10 {
            let call = timeout(Duration::from_secs(60), get_feature(&client));
            call.await.expect("the uploads are in its way");
        }
        uploads.iter().for_each(tokio::task::JoinHandle::abort);
        drop(client);
        fixture.end().await;
    }
}

/// Sends a frame once the window has room for it. Returns an error if the connection has ended.
async fn send_frame(body: &mut SendStream<Bytes>, frame: &Bytes) -> Result<(), h2::Error> {
    body.reserve_capacity(frame.len());
    while body.capacity() < frame.len() {
        match poll_fn(|cx| body.poll_capacity(cx)).await {
            Some(capacity) => drop(capacity?),
            None => return Err(Reason::STREAM_CLOSED.into()),
        }
    }
    body.send_data(frame.clone(), false)
}

/// Long frames, which are read, made h2 forget how many short ones it kept: 50,000 of these take 20 MB.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_many_frames_nobody_reads_is_closed_whatever_else_it_sends() {
    let fixture = unread(|builder| builder).await;
    let client = connect(&fixture).await;
    let mut read = request(RECORD_ROUTE);
    read.headers_mut()
        .insert("read", HeaderValue::from_static("1"));
    let begin = async |request| {
        let mut client = client.clone().ready().await.unwrap();
        client.send_request(request, false).unwrap()
    };
    let (_response, mut unread) = begin(request(RECORD_ROUTE)).await;
    let (_other_response, mut read) = begin(read).await;
    let (short, long) = (
        Bytes::from_static(&[0; 5]),
        Bytes::from_static(&[0; 16_000]),
    );
    let mut rounds = 0..50_000 / 60;
    let error = loop {
        rounds.next().expect("50,000 frames were kept");
        let sent = async {
            for _ in 0..60 {
                send_frame(&mut unread, &short).await?;
            }
            send_frame(&mut read, &long).await
        };
        if let Err(error) = sent.await {
            break error;
        }
    };
    println!("closed after {rounds:?}: {error}");
    drop(client);
    fixture.end().await;
}

/// Reads as many bytes of the response, half a window at a time.
async fn read_slowly(body: &mut RecvStream, len: usize) {
    let (mut read, mut unreleased) = (0, 0);
    while read < len {
        let data = body.data().await.unwrap().unwrap();
        read += data.len();
        unreleased += data.len();
        if unreleased >= 32 << 10 {
            sleep(Duration::from_millis(50)).await;
            body.flow_control().release_capacity(unreleased).unwrap();
            unreleased = 0;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_slowly_keeps_its_call_and_one_that_stops_loses_that_call_only() {
    let fixture = unread(|builder| builder.stall_time(Duration::from_secs(1))).await;
    let client = connect(&fixture).await;
    let mut slow = call(&client, LIST_FEATURES).await;
    // Another connection, because a stream that is not read takes from the window of its own one.
    let other = connect(&fixture).await;
    let mut stopped = call(&other, LIST_FEATURES).await;
    // A message that takes longer than a client may stall, and its connection after it.
    read_slowly(&mut slow, 2 << 20).await;
    // The other call has ended, and its connection has not.
    let error = loop {
        match stopped.data().await.unwrap() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.reason(), Some(Reason::CANCEL));
    assert!(error.is_reset(), "{error}");
    // Gives back the window of the connection that it has taken.
    drop(stopped);
    get_feature(&other).await;
    drop((client, slow, other));
    fixture.end().await;
}

/// It does not answer pings either: they wait behind the responses.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_socket_takes_nothing_is_closed() {
    let time = Duration::from_millis(300);
    let fixture = unread(|builder| builder.keepalive(time, time).max_connections(1)).await;
    let mut client = RawClient::connect(fixture.address);
    client.open_windows().unwrap();
    client.begin(1, ROUTE_CHAT, &[]).unwrap();
    let begun = Instant::now();
    // The settings of the other side come if there is room for the connection.
    let has_room = || {
        let mut next = std::net::TcpStream::connect(fixture.address)?;
        next.write_all(PREFACE)?;
        next.read_exact(&mut [0])
    };
    while has_room().is_err() {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "nobody closes it"
        );
        sleep(Duration::from_millis(10)).await;
    }
    drop(client);
    fixture.end().await;
}
