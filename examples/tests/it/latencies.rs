//! The latencies of `stats()` and of Prometheus' text, compared with what the caller measures over a real
//! device.

use std::time::{Duration, Instant};

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use verbline::client::Caller;
use verbline::stats::{MethodStats, PrometheusText};
use verbline::{Channel, Device, LocalPoller, Request, Response, Server, Status, block_on};

const CALLS: usize = 10_000;
const PATH: &str = "verbline.greeter.Greeter/SayHello";

/// How long the handler of a slow call takes at least.
const SLOW: Duration = Duration::from_micros(300);

struct Sleeper;

impl Greeter for Sleeper {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        if request.get_ref().name == "slow" {
            std::thread::sleep(SLOW);
        }
        Ok(Response::new(HelloReply::default()))
    }
}

/// Makes calls of which every 16th is slow, and returns their times, sorted.
async fn measure(caller: impl Caller) -> Vec<Duration> {
    let greeter = GreeterClient::new(caller);
    let mut times = Vec::new();
    for call in 0..CALLS {
        let name = if call % 16 == 0 { "slow" } else { "fast" }.to_owned();
        let began = Instant::now();
        greeter.say_hello(HelloRequest { name }).await.unwrap();
        times.push(began.elapsed());
    }
    times.sort();
    times
}

/// The number on the only line that begins like this.
fn number(text: &str, begin: &str) -> f64 {
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with(begin))
        .collect();
    let [line] = lines[..] else {
        panic!("{} lines begin with {begin}: {text}", lines.len());
    };
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Each call took the server at most as long as the client, and the client at most as long as the caller
/// measured. So this is true of all quantiles and sums.
fn compare(server: &MethodStats, client: &MethodStats, measured: &[Duration], text: &str) {
    for (side, stats) in [("server", server), ("client", client)] {
        assert_eq!((stats.path, stats.begun), (PATH, CALLS as u64));
        assert_eq!(stats.latency.count(), CALLS as u64);
        let name = format!("rpc_{side}_call_duration_seconds");
        assert_eq!(number(text, &format!("{name}_count")), CALLS as f64);
        let sum = stats.latency.sum().as_secs_f64();
        let stated = number(text, &format!("{name}_sum"));
        assert!((stated - sum).abs() < 1e-9, "{side}: {stated} of {sum}");
        for share in [0.01, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let rank = (share * CALLS as f64).ceil() as usize;
            let (stated, most) = (stats.latency.percentile(share).unwrap(), measured[rank - 1]);
            // The middle of a bucket.
            assert!(
                stated <= most + most / 32,
                "{side}, {share}: {stated:?} of {most:?}"
            );
            if share > 0.95 {
                assert!(stated >= SLOW - SLOW / 32, "{side}, {share}: {stated:?}");
            }
            // The buckets up to there have at least as many calls as the caller counted.
            let seconds = most.as_secs_f64();
            let bucket = format!("{name}_bucket{{");
            let counts = text.lines().filter_map(|line| {
                let (le, count) = line
                    .strip_prefix(&bucket)?
                    .split_once("le=\"")?
                    .1
                    .split_once("\"} ")?;
                (le.parse::<f64>().unwrap() >= seconds).then(|| count.parse::<usize>().unwrap())
            });
            assert!(counts.min().unwrap() >= rank, "{side}, {share}: {text}");
        }
    }
    let of_server = server.latency.sum();
    let of_client = client.latency.sum();
    assert!(of_server <= of_client && of_client <= measured.iter().sum::<Duration>());
    assert!(client.latency.max().unwrap() <= measured[CALLS - 1]);
}

#[test]
fn they_are_not_longer_than_the_caller_measures_and_not_shorter_than_the_handler_takes() {
    let device = Device::open("soft").unwrap();
    for is_shared in [false, true] {
        let server = Server::builder(&device)
            .latency_sampling(1)
            .add_service(GreeterServer::new(Sleeper))
            .bind("127.0.0.1:0")
            .unwrap()
            .spawn();
        let address = server.local_addr().to_string();
        let (measured, client) = if is_shared {
            let builder = Channel::builder(&device, &address).latency_sampling(1);
            let channel = block_on(builder.connect()).unwrap();
            let measured = block_on(measure(channel.clone()));
            // The poller counts a call just after its caller can have the outcome.
            while channel.stats().total().in_flight() > 0 {
                std::thread::yield_now();
            }
            (measured, channel.stats())
        } else {
            let builder = LocalPoller::builder(&device).latency_sampling(1);
            let poller = builder.build().unwrap();
            let channel = poller.connect(&address).unwrap();
            (poller.block_on(measure(channel)), poller.stats())
        };
        let stats_reader = server.stats_reader();
        server.shutdown().unwrap();
        let server = stats_reader.stats();
        let mut text = PrometheusText::new();
        text.add(&server, &[]);
        text.add(&client, &[]);
        let (served, called) = (server.total().served, client.total().called);
        compare(&served[0], &called[0], &measured, &text.to_string());
    }
}
