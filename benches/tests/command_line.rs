//! Tests the error messages for invalid command lines, and the reports of short measurements.

use std::process::{Command, Output};

use serde_json::Value;

/// Runs `bench` with these words, and further arguments.
fn bench(words: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(words.split(' '))
        .args(["--out", &format!("{}/bench", env!("CARGO_TARGET_TMPDIR"))])
        .args(arguments)
        .output()
        .expect("the program can be started")
}

/// Runs `bench`, which must fail and say `reason` on standard error.
fn refused(words: &str, reason: &str) {
    let output = bench(words, &[]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{words}: {text}");
    assert!(text.contains(reason), "{words}: {text}");
}

/// Runs `bench` on `soft`, and returns what it printed and the object on its last line.
fn report(words: &str) -> (String, Value) {
    let output = bench(words, &["--device", "soft", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = text.lines().last().expect("it prints lines");
    let report = serde_json::from_str(last).expect("an object");
    (text, report)
}

fn rows<'a>(report: &'a Value, table: &str) -> &'a [Value] {
    let rows = report[table].as_array();
    rows.unwrap_or_else(|| panic!("{table}: {report}"))
}

#[test]
fn a_rate_that_is_none_is_refused_with_what_one_looks_like() {
    for rate in ["0", "fast", "1G", "-5"] {
        refused(&format!("open --rate={rate}"), "200k");
    }
}

#[test]
fn a_sweep_that_does_not_rise_is_refused_with_what_one_looks_like() {
    for sweep in ["10k", "10k:1k:5", "10k:1M:1"] {
        refused(&format!("open --sweep {sweep}"), "from:to:steps");
    }
}

#[test]
fn a_rate_and_a_sweep_exclude_each_other_and_the_closed_loop() {
    refused("open --rate 1k --sweep 1k:2k:2", "cannot be used with");
    refused("open --rate 1k --calls 10", "unexpected argument");
    refused("open --sweep 1k:2k:2 --slices 10", "unexpected argument");
}

#[test]
fn what_an_open_loop_alone_has_is_refused_without_one() {
    for arguments in ["", " --arrivals poisson", " --seed 1", " --in-flight 3"] {
        refused(&format!("open{arguments}"), "--rate");
    }
    refused("latency --arrivals poisson", "unexpected argument");
}

#[test]
fn an_open_loop_that_could_send_or_record_nothing_is_refused() {
    let words = "open --rate 1k --in-flight 0";
    refused(words, "no call could ever be sent");
    for seconds in ["0", "-1", "inf"] {
        let words = format!("open --rate 1k --seconds={seconds}");
        refused(&words, "nothing could be recorded");
    }
}

#[test]
fn a_gap_that_is_no_duration_is_refused_with_what_one_looks_like() {
    for gap in ["100", "soon", "-1s"] {
        refused(&format!("idle --gap={gap}"), "100ms");
    }
}

#[test]
fn an_unknown_measurement_or_option_is_refused_with_what_there_is() {
    refused("latencies", "'latency'");
    refused("latency --slice 2", "--slices");
}

#[test]
fn what_one_client_alone_has_is_refused_for_the_other() {
    for option in ["--pollers", "--client-threads"] {
        refused(&format!("throughput {option} 2"), "--client shared");
    }
    for option in ["--connections", "--idle-connections"] {
        let words = format!("throughput --client shared {option} 2");
        refused(&words, "--client local");
    }
}

#[test]
fn a_summary_is_one_sentence_that_compares_a_call_with_verbs_and_tcp() {
    let output = bench("summary --device soft --calls 40 --slices 2", &[]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(text.matches(" µs").count(), 4, "{text}");
    for other in ["raw verbs", "TCP on loopback"] {
        assert!(text.contains(other), "{text}");
    }
}

#[test]
fn a_latency_has_a_table_an_object_histograms_and_a_drawing() {
    let (text, report) = report("latency --calls 40 --slices 2");
    let rows = rows(&report, "clients");
    let names: Vec<_> = rows.iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["raw", "rpc", "shared async", "shared blocking"]);
    for row in rows {
        assert!(row["p50_ns"].as_u64() <= row["p99_ns"].as_u64(), "{row}");
    }
    assert!(
        rows[1]["ratio_to_raw"].is_f64() && rows[2]["ratio_to_rpc"].is_f64(),
        "{report}"
    );
    assert_eq!(report["client_allocations_per_call"], 0.0, "{report}");
    let drawing = text.lines().find_map(|line| line.strip_prefix("drawing: "));
    let drawing = drawing.expect("a drawing");
    let svg = std::fs::read_to_string(drawing).expect("it was written");
    let names = ["raw", "rpc", "shared async", "shared blocking"];
    for name in names {
        assert!(svg.contains(&format!("\n{name}\n")), "{name}: {svg}");
    }
    // Each curve, and its line in the legend.
    let lines = svg.matches("stroke-width=\"2\"").count();
    assert!(lines >= 2 * names.len(), "{lines} lines: {svg}");
    let histogram = drawing.replace("percentiles.svg", "rpc.hgrm");
    assert!(std::path::Path::new(&histogram).exists(), "{histogram}");
}

#[test]
fn an_overload_without_any_load_or_time_is_refused() {
    refused("overload --in-flight 0", "no call could ever be sent");
    refused("overload --connections 0", "no call could ever be sent");
    refused("overload --seconds 0", "nothing could be recorded");
    refused("overload --loads 0.5,0", "multiples of the capacity");
}

#[test]
fn an_overload_ends_with_one_object_for_either_client() {
    for client in ["local", "shared"] {
        // The deadline is longer than a machine that runs other tests delays a call.
        let (text, report) = report(&format!(
            "overload --client {client} --connections 2 --spin-us 300 --seed 7 --loads 0.5,4 \
             --seconds 0.4 --warm-up 0.1 --deadline 5s"
        ));
        let number = |key: &str| report[key].as_f64().expect("a number");
        let peak = number("peak_per_s");
        assert!(peak > 0.0 && peak >= number("at_last_load_per_s"), "{text}");
        assert!(
            (0.0..=1.0).contains(&number("useless_handlers_share")),
            "{text}"
        );
        for expected in [
            "--seed 7",
            "capacity: ",
            "0.50 × capacity",
            "4.00 × capacity",
            "full goodput",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}

#[test]
fn servers_that_are_pinned_are_compared_with_others() {
    for more in ["", " --beside --waiting busy"] {
        let (text, report) = report(&format!("pinning --calls 40 --slices 2{more}"));
        let rows = rows(&report, "servers");
        assert_eq!(rows.len(), 4, "{text}");
        assert!(rows.iter().all(|row| row["p99_ns"].is_number()), "{text}");
    }
}

#[test]
fn an_unfair_load_ends_with_the_rate_of_each_client() {
    let (text, report) = report("unfair --seconds 1.5 --others 2 --flooder 8 --spin-us 100");
    let rows = rows(&report, "clients");
    assert_eq!(rows.len(), 3, "{text}");
    assert!(
        rows[0]["calls_per_s"]
            .as_f64()
            .is_some_and(|rate| rate > 0.0),
        "{text}"
    );
    assert!(rows.iter().all(|row| row["calls_per_s"].is_f64()), "{text}");
    assert!(report["least_of_equal_share"].is_f64(), "{text}");
}

#[test]
fn a_size_that_is_none_is_refused_with_what_one_looks_like() {
    for sizes in ["0", "1K,large", "2G", "-1"] {
        refused(&format!("bandwidth --sizes={sizes}"), "4096, 64K, 8M");
    }
    refused("neighbour --size 1K,2K", "4096, 64K, 8M");
    refused("bandwidth --rounds 0", "nothing could be measured");
}

#[test]
fn bandwidth_measures_one_thing_at_a_time() {
    for words in [
        "puts --bytes 1M",
        "idle-memory --sizes 1K",
        "idle-memory --rounds 2",
    ] {
        refused(words, "unexpected argument");
    }
}

/// Returns the report of a measurement that compares two cores, or `None` on a machine with one core.
fn report_of_two_cores(words: &str) -> Option<Value> {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1) {
        let words = format!("{words} --device soft");
        refused(&words, "a cache line needs two cores");
        return None;
    }
    Some(report(words).1)
}

#[test]
fn bandwidth_ends_with_one_object_with_a_row_for_each_size() {
    let Some(report) = report_of_two_cores("bandwidth --rounds 2 --sizes 1K,64K --bytes 1M") else {
        return;
    };
    assert_eq!(report["device"], "soft");
    let rows = rows(&report, "rates");
    let sizes: Vec<_> = rows.iter().map(|row| &row["size_bytes"]).collect();
    assert_eq!(sizes, [1024, 65_536]);
    for row in rows {
        for column in [
            "upload_gbs",
            "download_gbs",
            "raw_read_gbs",
            "memcpy_gbs",
            "raw_send_gbs",
            "upload_of_raw_read",
        ] {
            let number = row[column].as_f64().expect("a number");
            assert!(number > 0.0, "{column}: {report}");
        }
    }
}

#[test]
fn single_puts_have_a_median_for_each_size() {
    let Some(report) = report_of_two_cores("puts --rounds 2 --sizes 4K,64K") else {
        return;
    };
    let puts = rows(&report, "puts");
    assert_eq!(puts.len(), 2, "{report}");
    for put in puts {
        assert!(
            put["p50_ns"].as_f64().is_some_and(|p50| p50 > 0.0),
            "{report}"
        );
        assert!(
            put["near_p50_ns"].is_f64() || put["far_p50_ns"].is_f64(),
            "{report}"
        );
    }
}

#[test]
fn neighbours_of_a_stream_are_compared_with_those_of_none() {
    let Some(report) = report_of_two_cores("neighbour --rounds 2 --size 64K --seconds 0.1") else {
        return;
    };
    assert!(report["stream_gbs"].is_f64(), "{report}");
    for (table, figure) in [
        ("p50_of_64-byte_calls", "p50_ns"),
        ("p99_of_64-byte_calls", "p99_ns"),
    ] {
        let rows = rows(&report, table);
        let names: Vec<_> = rows.iter().map(|row| &row["name"]).collect();
        assert_eq!(names, ["alone", "beside"]);
        assert!(
            rows.iter()
                .all(|row| row[figure].is_f64() && row["ratio"].is_f64()),
            "{report}"
        );
    }
}

#[test]
fn points_of_a_curve_that_are_none_are_refused_with_what_one_looks_like() {
    for points in ["0", "1,many", "-1"] {
        refused(&format!("curves --in-flight={points}"), "1 to 1000000");
        refused(&format!("curves --connections={points}"), "1 to 1000000");
        refused(&format!("curves --sizes={points}"), "4096, 64K, 8M");
    }
    for measurement in ["curves", "ratios"] {
        refused(
            &format!("{measurement} --rounds 0"),
            "nothing could be measured",
        );
    }
}

#[test]
fn a_curve_has_a_row_for_each_point_and_two_drawings() {
    let words = "curves --rounds 1 --in-flight 1,8 --connections 1,3 --sizes 8,4K";
    let Some(report) = report_of_two_cores(words) else {
        return;
    };
    let curves = [
        ("in_flight", ["1", "8"]),
        ("connections", ["1", "3"]),
        ("bytes", ["8", "4096"]),
    ];
    for (curve, points) in curves {
        let rows = rows(&report, curve);
        let names: Vec<_> = rows.iter().map(|row| &row["name"]).collect();
        assert_eq!(names, points);
        for row in rows {
            let number = |figure: &str| row[figure].as_f64().expect("a number");
            assert!(number("calls_per_s") > 0.0, "{row}");
            assert!(number("p50_ns") <= number("p99_ns"), "{row}");
        }
        let file = |name: &str| {
            let (folder, curve) = (env!("CARGO_TARGET_TMPDIR"), curve.replace('_', "-"));
            let path = format!("{folder}/bench/curves-{curve}-{name}");
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        assert!(file("rate.svg").contains("\nmost of a turn\n"), "{curve}");
        assert!(file("latency.svg").contains("\np99\n"), "{curve}");
        file(&format!("{}.hgrm", points[1]));
    }
}

#[test]
fn ratios_of_one_round_are_shown_and_not_judged() {
    let Some(report) = report_of_two_cores("ratios --rounds 1") else {
        return;
    };
    assert_eq!(rows(&report, "loads").len(), 7, "{report}");
    for row in rows(&report, "ratios") {
        assert!(
            row["ratio"].is_f64() && row["accepted_ratio"].is_f64(),
            "{row}"
        );
        assert_eq!((&row["rounds"], &row["verdict"]), (&1.into(), &"".into()));
    }
}

#[test]
fn copies_end_with_the_rule_of_the_machine() {
    let words = "copies --sizes 1024,16384 --pieces 8192 --rounds 1 --bytes 65536";
    let output = bench(words, &[]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    for expected in [
        "\n1 KiB in 1 KiB, plain ",
        "\n16 KiB in 16 KiB, past ",
        "\n16 KiB in 8 KiB, past ",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let last = text.lines().last().expect("it prints lines");
    assert!(last.starts_with("the rule of this machine: "), "{text}");
}
