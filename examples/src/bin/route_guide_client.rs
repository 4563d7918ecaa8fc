//! Calls each method of a running `route_guide_server`: one of each kind.
//!
//! ```text
//! cargo run --release -p examples --bin route_guide_client
//! ```
//!
//! `--help` lists the arguments.
#![forbid(unsafe_code)]
// Printing the responses is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use proto::routeguide::{Feature, Point, Rectangle, RouteGuideClient, RouteNote};
use verbline::{Device, LocalChannel, LocalPoller, Request, sender};

type Client = RouteGuideClient<LocalChannel>;
type Outcome<T> = Result<T, Box<dyn Error>>;

const EIGER: Point = Point {
    latitude: 465_776_000,
    longitude: 80_053_000,
};

/// The Bernese Oberland.
const OBERLAND: Rectangle = Rectangle {
    lo: Some(Point {
        latitude: 465_000_000,
        longitude: 75_000_000,
    }),
    hi: Some(Point {
        latitude: 468_000_000,
        longitude: 81_000_000,
    }),
};

async fn get_feature(guide: &Client) -> Outcome<()> {
    let feature = guide.get_feature(EIGER).await?.into_inner();
    println!("feature: {}", feature.name);
    Ok(())
}

/// One request, a stream of responses.
async fn list_features(guide: &Client) -> Outcome<Vec<Feature>> {
    let mut responses = guide.list_features(OBERLAND).await?.into_inner();
    let mut features = Vec::new();
    while let Some(feature) = responses.message().await? {
        println!("in the Oberland: {}", feature.name);
        features.push(feature);
    }
    Ok(features)
}

/// A stream of requests, one response.
async fn record_route(guide: &Client, features: &[Feature]) -> Outcome<()> {
    let points: Vec<_> = features.iter().filter_map(|at| at.location).collect();
    // The deadline of a stream is that of the whole call.
    let points = Request::new(tokio_stream::iter(points)).with_timeout(Duration::from_secs(10));
    let summary = guide.record_route(points).await?.into_inner();
    println!(
        "route: {} points, {} features, {} m",
        summary.point_count, summary.feature_count, summary.distance
    );
    Ok(())
}

/// Streams in both directions at once.
async fn route_chat(guide: &Client) -> Outcome<()> {
    let (mut notes, messages) = sender();
    let mut earlier = guide.route_chat(messages).await?.into_inner();
    for text in ["first", "second", "third"] {
        notes
            .send(RouteNote {
                location: Some(EIGER),
                message: format!("{text} note"),
            })
            .await?;
    }
    // Dropping the sender half-closes the call. The server then ends it.
    drop(notes);
    while let Some(note) = earlier.message().await? {
        println!("earlier at the same point: {}", note.message);
    }
    Ok(())
}

/// Calls each method of a running route_guide_server: one of each kind
#[derive(Parser)]
#[command(after_help = "Next: read docs/streaming.md, or try chat_server and chat_client")]
struct Arguments {
    /// The server's address.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
}

fn run(Arguments { address }: Arguments) -> Outcome<()> {
    let poller = LocalPoller::new(&Device::best()?)?;
    let guide = RouteGuideClient::new(poller.connect(&address)?);
    poller.block_on(async {
        get_feature(&guide).await?;
        let features = list_features(&guide).await?;
        record_route(&guide, &features).await?;
        route_chat(&guide).await
    })
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("route_guide_client: {error}");
            ExitCode::FAILURE
        }
    }
}
