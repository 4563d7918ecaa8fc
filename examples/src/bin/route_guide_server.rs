//! Serves gRPC's route guide, which has a method of each kind. Run it, and then run
//! `route_guide_client` in another terminal:
//!
//! ```text
//! cargo run --release -p examples --bin route_guide_server
//! ```
//!
//! The features are in `examples/data/features.json`. `--help` lists the arguments.
#![forbid(unsafe_code)]
// The server prints its address for the user.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::HashMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Parser;
use proto::routeguide::{
    Feature, Point, Rectangle, RouteGuide, RouteGuideServer, RouteNote, RouteSummary,
};
use verbline::{Device, Request, Response, Server, Status, Stream, Streaming, stream};

struct Guide {
    features: Vec<Feature>,
    /// The notes at each latitude and longitude.
    notes: Mutex<HashMap<(i32, i32), Vec<RouteNote>>>,
}

impl Guide {
    fn name_at(&self, point: Point) -> Option<&str> {
        let at = |feature: &&Feature| feature.location == Some(point);
        self.features
            .iter()
            .find(at)
            .map(|feature| feature.name.as_str())
    }

    /// Adds a note, and returns the earlier ones at the same point.
    fn add(&self, note: RouteNote) -> Vec<RouteNote> {
        let point = note.location.unwrap_or_default();
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let here = notes.entry((point.latitude, point.longitude)).or_default();
        let earlier = here.clone();
        here.push(note);
        earlier
    }
}

impl RouteGuide for Guide {
    async fn get_feature(&self, request: Request<Point>) -> Result<Response<Feature>, Status> {
        let point = request.into_inner();
        Ok(Response::new(Feature {
            name: self.name_at(point).unwrap_or_default().to_owned(),
            location: Some(point),
        }))
    }

    // Any `Stream` will do, and it may borrow from the service.
    async fn list_features(
        &self,
        request: Request<Rectangle>,
    ) -> Result<Response<impl Stream<Item = Result<Feature, Status>>>, Status> {
        let area = request.into_inner();
        let inside = move |feature: &&Feature| {
            feature
                .location
                .is_some_and(|point| contains(&area, &point))
        };
        let features = self.features.iter().filter(inside).cloned().map(Ok);
        Ok(Response::new(tokio_stream::iter(features)))
    }

    async fn record_route(
        &self,
        request: Request<Streaming<Point>>,
    ) -> Result<Response<RouteSummary>, Status> {
        let mut points = request.into_inner();
        let mut summary = RouteSummary::default();
        let mut meters = 0.0;
        let mut last: Option<Point> = None;
        let begun = Instant::now();
        while let Some(point) = points.message().await? {
            summary.point_count += 1;
            summary.feature_count += i32::from(self.name_at(point).is_some());
            meters += last.map_or(0.0, |last| distance(&last, &point));
            last = Some(point);
        }
        summary.distance = meters as i32;
        summary.elapsed_time = i32::try_from(begun.elapsed().as_secs()).unwrap_or(i32::MAX);
        Ok(Response::new(summary))
    }

    // A stream that is written as a loop.
    async fn route_chat(
        &self,
        request: Request<Streaming<RouteNote>>,
    ) -> Result<Response<impl Stream<Item = Result<RouteNote, Status>>>, Status> {
        let mut notes = request.into_inner();
        Ok(Response::new(stream(async move |mut responses| {
            while let Some(note) = notes.message().await? {
                for earlier in self.add(note) {
                    responses.send(earlier).await?;
                }
            }
            Ok(())
        })))
    }
}

fn contains(area: &Rectangle, point: &Point) -> bool {
    let (lo, hi) = (area.lo.unwrap_or_default(), area.hi.unwrap_or_default());
    let between = |value: i32, a: i32, b: i32| (a.min(b)..=a.max(b)).contains(&value);
    between(point.latitude, lo.latitude, hi.latitude)
        && between(point.longitude, lo.longitude, hi.longitude)
}

/// Returns the distance on a sphere, in meters.
fn distance(from: &Point, to: &Point) -> f64 {
    const EARTH_RADIUS: f64 = 6_371_000.0;
    let radians = |value: i32| (f64::from(value) / 1e7).to_radians();
    let (from_latitude, to_latitude) = (radians(from.latitude), radians(to.latitude));
    let half_latitude = ((to_latitude - from_latitude) / 2.0).sin();
    let half_longitude = ((radians(to.longitude) - radians(from.longitude)) / 2.0).sin();
    let a =
        half_latitude.powi(2) + from_latitude.cos() * to_latitude.cos() * half_longitude.powi(2);
    2.0 * EARTH_RADIUS * a.sqrt().asin()
}

fn features() -> Result<Vec<Feature>, Box<dyn Error>> {
    let list: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("../../data/features.json"))?;
    let degrees = |value: &serde_json::Value| value.as_i64().map(i32::try_from);
    let feature = |value: &serde_json::Value| {
        Ok(Feature {
            name: value["name"]
                .as_str()
                .ok_or("a name is missing")?
                .to_owned(),
            location: Some(Point {
                latitude: degrees(&value["latitude"]).ok_or("a latitude is missing")??,
                longitude: degrees(&value["longitude"]).ok_or("a longitude is missing")??,
            }),
        })
    };
    list.iter().map(feature).collect()
}

/// Serves gRPC's route guide
#[derive(Parser)]
#[command(
    after_help = "Next: call each of its methods with route_guide_client in another terminal"
)]
struct Arguments {
    /// The address to listen at. With port 0, the system chooses a port.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
}

fn run(Arguments { address }: Arguments) -> Result<(), Box<dyn Error>> {
    let guide = Guide {
        features: features()?,
        notes: Mutex::default(),
    };
    let server = Server::builder(&Device::best()?)
        .add_service(RouteGuideServer::new(guide))
        .bind(&address)?;
    println!("listening at {}", server.local_addr());
    Ok(server.run()?)
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("route_guide_server: {error}");
            ExitCode::FAILURE
        }
    }
}
