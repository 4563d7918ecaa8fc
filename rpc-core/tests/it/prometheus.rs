//! The statistics as Prometheus reads them, compared with what the callers' own clocks and counts say.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{ECHO, FAIL, Gate, HELD, call, method, register};
use rpc_core::stats::{MethodStats, PollerStats, PrometheusText, Stats};
use rpc_core::{
    Caller, Code, Idempotency, Intents, MethodKind, MethodSpec, Methods, Request, Response, stream,
};
use rpc_core_testing::{Faults, LoopbackNode, Network, Pair};

fn value<'a>(text: &'a str, series: &str) -> &'a str {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series} is not in\n{text}"))
}

#[test]
fn each_count_is_there_once_and_those_with_the_same_labels_add_up() {
    let gate = Gate::default();
    let pair = Pair::new(|methods| register(methods, &gate));
    let channel = pair.connect();
    let text = |labels: &[&str]| {
        let mut text = PrometheusText::new();
        for label in labels {
            text.add(&pair.server().poller().stats(), &[("node", label)]);
        }
        text.add(&pair.client().poller().stats(), &[("node", "client")]);
        text.to_string()
    };
    let mut held = Box::pin(call(&channel, &HELD, "a"));
    assert!(pair.network().try_run(&mut held).is_none());
    for round in 1..=3 {
        for _ in 0..40 {
            pair.run(call(&channel, &ECHO, "x")).unwrap();
        }
        pair.run(call(&channel, &FAIL, "")).unwrap_err();
        let text = text(&["server"]);
        let of = |name: &str, labels: &str| -> u64 {
            value(&text, &format!("{name}{{{labels}}}"))
                .parse()
                .unwrap()
        };
        for side in ["server", "client"] {
            let labels = format!(r#"node="{side}",rpc_method="test.Test/Echo""#);
            let of =
                |name: &str, labels: &str| of(&format!("verbline_{side}_calls_{name}"), labels);
            assert_eq!(of("begun_total", &labels), 40 * round);
            assert_eq!(of("started_total", &labels), 40 * round);
            assert_eq!(of("in_flight", &labels), 0);
            let ok = format!(r#"{labels},rpc_response_status_code="OK""#);
            assert_eq!(of("total", &ok), 40 * round);
        }
        let failed =
            r#"node="server",rpc_method="test.Test/Fail",rpc_response_status_code="ABORTED""#;
        assert_eq!(of("verbline_server_calls_total", failed), round);
        let held = r#"node="client",rpc_method="test.Test/Held""#;
        assert_eq!(of("verbline_client_calls_in_flight", held), 1);
        let poller = r#"node="server",poller="0""#;
        assert_eq!(of("verbline_connections_open", poller), 1);
        assert_eq!(of("verbline_connections_accepted_total", poller), 1);
        assert_eq!(of("verbline_handlers_parked", poller), 1);
        assert_eq!(of("verbline_memory_held_bytes", poller), 0);
        let device = r#"node="server",poller="0",device="loopback""#;
        assert!(of("verbline_transport_sends_total", device) >= 41 * round);
        let posted = format!(r#"{device},state="receives_posted""#);
        assert_eq!(of("verbline_slots", &posted), 384);
    }
    gate.open();
    pair.run(held).unwrap();
    let text = text(&["a", "b", "a"]);
    for (node, calls) in [("a", "240"), ("b", "120")] {
        let labels =
            format!(r#"node="{node}",rpc_method="test.Test/Echo",rpc_response_status_code="OK""#);
        let series = format!("verbline_server_calls_total{{{labels}}}");
        assert_eq!(value(&text, &series), calls);
    }
    let names = text.lines().filter(|line| line.starts_with("# TYPE "));
    let names: Vec<_> = names.collect();
    let mut once = names.clone();
    once.dedup();
    assert_eq!(names, once);
}

#[test]
fn a_number_that_no_method_has_is_of_the_method_other() {
    let pair = Pair::new(|methods| register(methods, &Gate::default()));
    let _channel = pair.connect();
    pair.network().settle();
    let mut frame = vec![0; rpc_core::frame::HEADER_LEN];
    frame[0] = 1;
    frame[8..10].copy_from_slice(&999u16.to_le_bytes());
    pair.server().inject(pair.server().connections()[0], frame);
    pair.network().settle();
    let mut text = PrometheusText::new();
    text.add(&pair.server().poller().stats(), &[]);
    let begun = r#"verbline_server_calls_begun_total{rpc_method="_OTHER"}"#;
    assert_eq!(value(&text.to_string(), begun), "1");
}

/// Methods whose handlers take as many nanoseconds as their requests say, on the network's clock.
const SPEND: MethodSpec = method("test.Test/Spend");
const SPEND_TOO: MethodSpec = method("test.Test/SpendToo");
const SPEND_AND_STREAM: MethodSpec = MethodSpec::new(
    "test.Test/SpendAndStream",
    MethodKind::ServerStreaming,
    Idempotency::Unknown,
    "u64",
    "u64",
);

type Calls = Vec<(&'static MethodSpec, Duration)>;

/// What the callers saw, and what both sides say about it.
struct Observed {
    /// The times of each method's calls, sorted.
    seen: BTreeMap<&'static str, Vec<Duration>>,
    /// The methods of the server, and those of the client.
    methods: [(&'static str, Vec<MethodStats>); 2],
    text: String,
}

/// Makes the calls one after the other, through a local or a shared channel.
fn observe(calls: &Calls, latency_sampling: u32, is_shared: bool) -> Observed {
    let intents = Intents {
        latency_sampling,
        ..Intents::default()
    };
    let mut network = Network::new(Faults::none(), 0);
    let clock = network.clock().clone();
    let server = network.add("server", &intents, |methods: &mut Methods| {
        for method in [&SPEND, &SPEND_TOO] {
            let clock = clock.clone();
            methods.unary(method, move |request: Request<u64>| {
                clock.advance(Duration::from_nanos(request.into_inner()));
                async { Ok(Response::new(0u64)) }
            });
        }
        let clock = clock.clone();
        methods.server_streaming(
            &SPEND_AND_STREAM,
            move |request: Request<u64>, responses| {
                clock.advance(Duration::from_nanos(request.into_inner()));
                let three = stream(async |mut responses| {
                    for number in 0..3u64 {
                        responses.send(number).await?;
                    }
                    Ok(())
                });
                async { responses.send_all(Ok(Response::new(three))).await }
            },
        );
    });
    let mut seen = BTreeMap::<_, Vec<_>>::new();
    let mut measured = |method: &MethodSpec, began, spent| {
        // The callers' clock agrees with the requests.
        assert_eq!(clock.now() - began, spent);
        seen.entry(method.path).or_default().push(spent);
    };
    async fn spend(caller: &impl Caller, method: &'static MethodSpec, time: Duration) {
        let request = Request::new(time.as_nanos() as u64);
        if method.kind == MethodKind::Unary {
            caller.unary::<u64, u64>(method, request).await.unwrap();
            return;
        }
        let response = caller.server_streaming::<u64, u64>(method, request).await;
        let mut messages = response.unwrap().into_inner();
        while messages.message().await.unwrap().is_some() {}
    }
    let client: Stats = if is_shared {
        let shared = network.share("server", &intents);
        for &(method, time) in calls {
            let began = clock.now();
            network
                .try_run(spend(shared.channel(), method, time))
                .unwrap();
            measured(method, began, time);
        }
        shared.channel().stats()
    } else {
        let client = network.add("client", &intents, |_| ());
        let channel = client.poller().connect("server").unwrap();
        for &(method, time) in calls {
            let began = clock.now();
            network.try_run(spend(&channel, method, time)).unwrap();
            measured(method, began, time);
        }
        client.poller().stats()
    };
    seen.values_mut().for_each(|times| times.sort());
    let server = server.poller().stats();
    let mut text = PrometheusText::new();
    text.add(&server, &[]);
    text.add(&client, &[]);
    let totals = |stats: &Stats| -> PollerStats { stats.total() };
    Observed {
        seen,
        methods: [
            ("server", totals(&server).served),
            ("client", totals(&client).called),
        ],
        text: text.to_string(),
    }
}

/// A histogram of the text.
struct Exported {
    /// The upper bounds, in seconds, and the number of calls up to each.
    buckets: Vec<(f64, u64)>,
    sum: f64,
    count: u64,
}

impl Exported {
    fn of(text: &str, name: &str, path: &str) -> Self {
        let labels = format!(r#"rpc_method="{path}",rpc_system_name="verbline""#);
        let bucket = format!(r#"{name}_bucket{{{labels},le=""#);
        let buckets = text.lines().filter_map(|line| {
            let (le, count) = line.strip_prefix(&bucket)?.split_once(r#""} "#)?;
            Some((le.parse().unwrap(), count.parse().unwrap()))
        });
        let of = |suffix: &str| value(text, &format!("{name}_{suffix}{{{labels}}}"));
        Self {
            buckets: buckets.collect(),
            sum: of("sum").parse().unwrap(),
            count: of("count").parse().unwrap(),
        }
    }

    /// The bounds of the bucket in which the quantile is.
    fn quantile(&self, share: f64) -> (f64, f64) {
        let rank = (share * self.count as f64).max(1.0);
        let above = self
            .buckets
            .iter()
            .position(|&(_, count)| count as f64 >= rank);
        let index = above.expect("the last bucket has all calls");
        let lower = index
            .checked_sub(1)
            .map_or(0.0, |below| self.buckets[below].0);
        (lower, self.buckets[index].0)
    }
}

impl Observed {
    /// Counts are exact, however many calls are timed.
    fn check_counts(&self) {
        for (side, methods) in &self.methods {
            assert_eq!(methods.len(), self.seen.len());
            for method in methods {
                let calls = self.seen[method.path].len() as u64;
                assert_eq!((method.begun, method.ended(Code::Ok)), (calls, calls));
                let labels = format!(
                    r#"rpc_method="{}",rpc_response_status_code="OK""#,
                    method.path
                );
                let series = format!("verbline_{side}_calls_total{{{labels}}}");
                assert_eq!(value(&self.text, &series), calls.to_string());
            }
        }
    }

    /// The quantiles of the table and of the text are in the bucket of the caller's.
    fn check_quantiles(&self, name: &str, shares: &[f64]) {
        for (side, methods) in &self.methods {
            let name = name.replace('…', side);
            for method in methods {
                let seen = &self.seen[method.path];
                let exported = Exported::of(&self.text, &name, method.path);
                assert_eq!(exported.count, method.latency.count());
                for &share in shares {
                    let rank = (share * seen.len() as f64).ceil() as usize;
                    let exact = seen[rank.max(1) - 1];
                    let reported = method.latency.percentile(share).unwrap();
                    assert!(
                        reported.abs_diff(exact) * 32 <= exact,
                        "{side}, {}, {share}: {reported:?} instead of {exact:?}",
                        method.path
                    );
                    let (lower, upper) = exported.quantile(share);
                    let seconds = exact.as_secs_f64();
                    assert!(
                        lower < seconds && seconds <= upper,
                        "{name}, {}, {share}: {lower} to {upper} instead of {seconds}",
                        method.path
                    );
                }
            }
        }
    }
}

const ALL: &str = "rpc_…_call_duration_seconds";
const SAMPLED: &str = "rpc_…_call_duration_sampled_seconds";

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Of one method, every 16th call is slow.
fn every_16th_is_slow() -> Calls {
    let time = |call| {
        if call % 16 == 0 {
            micros(5000)
        } else {
            micros(10)
        }
    };
    (0..10_000).map(|call| (&SPEND, time(call))).collect()
}

/// Two methods in turn, one of which is slow.
fn in_turn() -> Calls {
    let pair = [(&SPEND, micros(3)), (&SPEND_TOO, micros(900))];
    (0..10_000).map(|call| pair[call % 2]).collect()
}

/// A median of microseconds and a tail of milliseconds, with no two times alike.
fn with_a_tail() -> Calls {
    let scattered = |call: u64| call * 7919 % 10_000;
    let time = |call| match scattered(call) {
        place @ 0..100 => Duration::from_nanos(1_000_000 + 70_001 * place),
        place => Duration::from_nanos(1_000 + place / 10),
    };
    (0..10_000).map(|call| (&SPEND, time(call))).collect()
}

/// Of the calls of a method that streams, every 16th is slow.
fn streams() -> Calls {
    let calls = every_16th_is_slow().into_iter();
    calls.map(|(_, time)| (&SPEND_AND_STREAM, time)).collect()
}

#[test]
fn what_every_call_took_is_what_its_caller_saw() {
    for calls in [every_16th_is_slow(), in_turn(), with_a_tail(), streams()] {
        for is_shared in [false, true] {
            let observed = observe(&calls, 1, is_shared);
            observed.check_counts();
            observed.check_quantiles(ALL, &[0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0]);
            for (side, methods) in &observed.methods {
                for method in methods {
                    let seen = &observed.seen[method.path];
                    let (count, sum) = (seen.len() as u64, seen.iter().sum::<Duration>());
                    assert_eq!(method.latency.count(), count);
                    assert_eq!(method.latency.max(), seen.last().copied());
                    assert_eq!(method.latency.sum(), sum);
                    let name = ALL.replace('…', side);
                    let exported = Exported::of(&observed.text, &name, method.path);
                    assert_eq!((exported.count, exported.sum), (count, sum.as_secs_f64()));
                }
            }
            assert!(!observed.text.contains("sampled"), "{}", observed.text);
        }
    }
}

#[test]
fn what_one_call_in_32_took_is_like_what_all_took_and_is_named_so() {
    for is_shared in [false, true] {
        for (calls, shares) in [
            (every_16th_is_slow(), &[0.5, 0.995][..]),
            (in_turn(), &[0.0, 0.5, 0.99, 1.0]),
            (with_a_tail(), &[]),
            (streams(), &[0.5, 0.995]),
        ] {
            let observed = observe(&calls, 32, is_shared);
            observed.check_counts();
            observed.check_quantiles(SAMPLED, shares);
            for (side, methods) in &observed.methods {
                for method in methods {
                    let share = method.begun as f64 / 32.0;
                    let timed = method.latency.count() as f64;
                    // By chance, through a shared channel: within six standard deviations.
                    let tolerance = if is_shared { 6.0 * share.sqrt() } else { 1.0 };
                    assert!(
                        (timed - share).abs() <= tolerance,
                        "{timed} of {}",
                        method.begun
                    );
                    let median = method.latency.percentile(0.5).unwrap();
                    let exact = observed.seen[method.path][method.begun as usize / 2];
                    assert!(median.abs_diff(exact) * 4 < exact, "{median:?}, {exact:?}");
                }
                let of_all = ALL.replace('…', side);
                assert!(!observed.text.contains(&of_all), "{}", observed.text);
            }
        }
    }
}

#[test]
fn without_times_there_is_no_histogram() {
    let calls = vec![(&SPEND, micros(1)); 100];
    let observed = observe(&calls, 0, false);
    observed.check_counts();
    assert!(!observed.text.contains("duration"), "{}", observed.text);
}
