//! The statistics as exported to Prometheus.

use crate::support::{ECHO, FAIL, Gate, HELD, call, register};
use metrics_exporter_prometheus::PrometheusBuilder;
use rpc_core::metrics::Publisher;
use rpc_core_testing::Pair;

fn value(text: &str, series: &str) -> f64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let line = line.unwrap_or_else(|| panic!("{series} is not in\n{text}"));
    line.parse().unwrap()
}

#[test]
fn prometheus_is_told_what_was_counted_and_nothing_twice() {
    let gate = Gate::default();
    let pair = Pair::new(|methods| register(methods, &gate));
    let channel = pair.connect();
    let recorder = PrometheusBuilder::new().build_recorder();
    let [mut of_server, mut of_client] =
        ["server", "client"].map(|node| Publisher::new().with_label("node", node));
    let mut publish = || {
        metrics::with_local_recorder(&recorder, || {
            of_server.publish(&pair.server().poller().stats());
            of_client.publish(&pair.client().poller().stats());
        });
        recorder.handle().render()
    };
    let echo = r#"method="test.Test/Echo""#;
    let mut held = Box::pin(call(&channel, &HELD, "a"));
    assert!(pair.network().try_run(&mut held).is_none());
    for round in 1..=3 {
        for _ in 0..40 {
            pair.run(call(&channel, &ECHO, "x")).unwrap();
        }
        pair.run(call(&channel, &FAIL, "")).unwrap_err();
        let text = publish();
        for (node, side) in [("server", "server"), ("client", "client")] {
            let labels = format!(r#"node="{node}",{echo},side="{side}""#);
            let of = |name: &str| value(&text, &format!("{name}{{{labels}}}"));
            assert_eq!(of("verbline_calls_begun_total"), 40.0 * f64::from(round));
            assert_eq!(of("verbline_calls_started_total"), 40.0 * f64::from(round));
            assert_eq!(of("verbline_calls_in_flight"), 0.0);
            let ok = format!(r#"verbline_calls_total{{{labels},code="OK"}}"#);
            assert_eq!(value(&text, &ok), 40.0 * f64::from(round));
            let timed = f64::from((40 * round - 1) / 32 + 1);
            assert_eq!(of("verbline_call_latency_seconds_count"), timed);
        }
        let failed = r#"verbline_calls_total{node="server",method="test.Test/Fail",side="server",code="ABORTED"}"#;
        assert_eq!(value(&text, failed), f64::from(round));
        let in_flight =
            r#"verbline_calls_in_flight{node="client",method="test.Test/Held",side="client"}"#;
        assert_eq!(value(&text, in_flight), 1.0);
        let of_poller =
            |name: &str| value(&text, &format!(r#"{name}{{node="server",poller="0"}}"#));
        assert_eq!(of_poller("verbline_connections_open"), 1.0);
        assert_eq!(of_poller("verbline_connections_accepted_total"), 1.0);
        assert_eq!(of_poller("verbline_handlers_parked"), 1.0);
        let of_device = r#"node="server",poller="0",device="loopback""#;
        let sends = value(
            &text,
            &format!("verbline_transport_sends_total{{{of_device}}}"),
        );
        assert!(sends >= 41.0 * f64::from(round), "{sends}");
        let posted = format!(r#"verbline_slots{{{of_device},state="receives_posted"}}"#);
        assert_eq!(value(&text, &posted), 384.0);
    }
    gate.open();
    pair.run(held).unwrap();
    let text = publish();
    let ok =
        r#"verbline_calls_total{node="client",method="test.Test/Held",side="client",code="OK"}"#;
    assert_eq!(value(&text, ok), 1.0);
}
