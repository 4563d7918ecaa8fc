//! Tests the error messages for invalid command lines.

use std::io::Write;
use std::process::Command;

/// Runs `latency`, which must fail, and returns its standard error.
fn refused(arguments: &[&str]) -> String {
    refused_by(env!("CARGO_BIN_EXE_latency"), arguments)
}

fn refused_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .expect("the program can be started");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{arguments:?}: {text}");
    text
}

#[test]
fn a_rate_that_is_none_is_refused_with_what_one_looks_like() {
    for rate in ["0", "fast", "1G", "-5"] {
        let text = refused(&[&format!("--rate={rate}")]);
        assert!(text.contains("200k"), "{text}");
    }
}

#[test]
fn a_sweep_that_does_not_rise_is_refused_with_what_one_looks_like() {
    for sweep in ["10k", "10k:1k:5", "10k:1M:1"] {
        let text = refused(&["--sweep", sweep]);
        assert!(text.contains("from:to:steps"), "{text}");
    }
}

#[test]
fn a_rate_and_a_sweep_exclude_each_other_and_the_closed_loop() {
    for arguments in [
        ["--rate", "1k", "--sweep", "1k:2k:2"],
        ["--rate", "1k", "--calls", "10"],
        ["--sweep", "1k:2k:2", "--slices", "10"],
    ] {
        let text = refused(&arguments);
        assert!(text.contains("cannot be used with"), "{text}");
    }
}

#[test]
fn what_an_open_loop_alone_has_is_refused_without_one() {
    for arguments in [
        ["--arrivals", "poisson"],
        ["--seed", "1"],
        ["--in-flight", "3"],
        ["--seconds", "1"],
    ] {
        let text = refused(&arguments);
        assert!(text.contains("--rate"), "{text}");
    }
}

#[test]
fn an_open_loop_that_could_send_or_record_nothing_is_refused() {
    let text = refused(&["--rate", "1k", "--in-flight", "0"]);
    assert!(text.contains("no call could ever be sent"), "{text}");
    for seconds in ["0", "-1", "inf"] {
        let text = refused(&["--rate", "1k", &format!("--seconds={seconds}")]);
        assert!(text.contains("nothing could be recorded"), "{text}");
    }
}

#[test]
fn a_gap_that_is_no_duration_is_refused_with_what_one_looks_like() {
    for gap in ["100", "soon", "-1s"] {
        let text = refused(&[&format!("--idle-gap={gap}")]);
        assert!(text.contains("100ms"), "{text}");
    }
}

#[test]
fn what_one_client_alone_has_is_refused_for_the_other() {
    let throughput = env!("CARGO_BIN_EXE_throughput");
    for arguments in [["--pollers", "2"], ["--client-threads", "2"]] {
        let text = refused_by(throughput, &arguments);
        assert!(text.contains("--client shared"), "{text}");
    }
    for option in ["--connections", "--idle-connections"] {
        let text = refused_by(throughput, &["--client", "shared", option, "2"]);
        assert!(text.contains("--client local"), "{text}");
    }
}

#[test]
fn a_summary_is_one_sentence_that_compares_a_call_with_verbs_and_tcp() {
    let output = Command::new(env!("CARGO_BIN_EXE_latency"))
        .args([
            "--summary",
            "--device",
            "soft",
            "--calls",
            "40",
            "--slices",
            "2",
        ])
        .output()
        .expect("the program can be started");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(text.matches(" µs").count(), 4, "{text}");
    for other in ["raw verbs", "TCP on loopback"] {
        assert!(text.contains(other), "{text}");
    }
}

#[test]
fn an_overload_without_any_load_or_time_is_refused() {
    let overload = env!("CARGO_BIN_EXE_overload");
    for (arguments, reason) in [
        (["--in-flight", "0"], "no call could ever be sent"),
        (["--connections", "0"], "no call could ever be sent"),
        (["--seconds", "0"], "nothing could be recorded"),
        (["--loads", "0.5,0"], "multiples of the capacity"),
    ] {
        let text = refused_by(overload, &arguments);
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn an_overload_ends_with_one_object_for_either_client() {
    for client in ["local", "shared"] {
        let output = Command::new(env!("CARGO_BIN_EXE_overload"))
            .args(["--device", "soft", "--client", client])
            .args(["--connections", "2", "--spin-us", "300", "--seed", "7"])
            .args(["--loads", "0.5,4", "--seconds", "0.4", "--warm-up", "0.1"])
            // Longer than a machine that runs other tests delays a call.
            .args(["--deadline", "5s"])
            .output()
            .expect("the program can be started");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().expect("it prints lines");
        let report: serde_json::Value = serde_json::from_str(last).expect("an object");
        let number = |key: &str| report[key].as_f64().expect("a number");
        assert!(
            number("peak") > 0.0 && number("peak") >= number("at_4x"),
            "{text}"
        );
        assert!((0.0..=1.0).contains(&number("useless_handlers")), "{text}");
        for expected in [
            "seed: 7",
            "capacity: ",
            " 0.50 | ",
            " 4.00 | ",
            "full goodput",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}

#[test]
fn an_unfair_load_ends_with_the_rate_of_each_client() {
    let output = Command::new(env!("CARGO_BIN_EXE_unfair"))
        .args(["--device", "soft", "--seconds", "1.5", "--others", "2"])
        .args(["--flooder", "8", "--spin-us", "100"])
        .output()
        .expect("the program can be started");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().expect("it prints lines");
    let report: serde_json::Value = serde_json::from_str(last).expect("an object");
    assert!(
        report["flooder"].as_f64().is_some_and(|rate| rate > 0.0),
        "{text}"
    );
    let others = report["others"].as_array().expect("a list");
    assert_eq!(others.len(), 2, "{text}");
    assert!(others.iter().all(serde_json::Value::is_f64), "{text}");
}

#[test]
fn a_size_that_is_none_is_refused_with_what_one_looks_like() {
    let bandwidth = env!("CARGO_BIN_EXE_bandwidth");
    for sizes in ["0", "1K,large", "2G", "-1"] {
        let text = refused_by(bandwidth, &[&format!("--sizes={sizes}")]);
        assert!(text.contains("4096, 64K, 8M"), "{text}");
    }
    let text = refused_by(bandwidth, &["--neighbour", "--sizes", "1K,2K"]);
    assert!(text.contains("expected one size"), "{text}");
    let text = refused_by(bandwidth, &["--rounds", "0"]);
    assert!(text.contains("nothing could be measured"), "{text}");
}

#[test]
fn bandwidth_measures_one_thing_at_a_time() {
    let bandwidth = env!("CARGO_BIN_EXE_bandwidth");
    for arguments in [
        ["--puts", "--neighbour"],
        ["--puts", "--bytes=1M"],
        ["--idle-memory", "--sizes=1K"],
        ["--idle-memory", "--rounds=2"],
    ] {
        let text = refused_by(bandwidth, &arguments);
        assert!(text.contains("cannot be used with"), "{text}");
    }
}

/// Runs `bandwidth`, and returns the object on its last line, or `None` on a machine with one core.
fn bandwidth(arguments: &[&str]) -> Option<serde_json::Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_bandwidth"))
        .args(["--device", "soft", "--rounds", "2", "--json"])
        .args(arguments)
        .output()
        .expect("the program can be started");
    let error = String::from_utf8_lossy(&output.stderr);
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1) {
        assert!(error.contains("a cache line needs two cores"), "{error}");
        return None;
    }
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().expect("it prints lines");
    Some(serde_json::from_str(last).expect("an object"))
}

#[test]
fn bandwidth_ends_with_one_object_with_a_row_for_each_size() {
    let arguments = ["--sizes", "1K,64K", "--bytes", "1M"];
    let Some(report) = bandwidth(&arguments) else {
        return;
    };
    assert_eq!(report["device"], "soft");
    let rows = report["rows"].as_array().expect("a list");
    let sizes: Vec<_> = rows.iter().map(|row| &row["size"]).collect();
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
    let Some(report) = bandwidth(&["--puts", "--sizes", "4K,64K"]) else {
        return;
    };
    let puts = report["puts"].as_array().expect("a list");
    assert_eq!(puts.len(), 2, "{report}");
    for put in puts {
        assert!(
            put["p50_us"].as_f64().is_some_and(|p50| p50 > 0.0),
            "{report}"
        );
        assert!(
            put["near_p50_us"].is_f64() || put["far_p50_us"].is_f64(),
            "{report}"
        );
    }
}

#[test]
fn neighbours_of_a_stream_are_compared_with_those_of_none() {
    let arguments = ["--neighbour", "--sizes", "64K", "--seconds", "0.1"];
    let Some(report) = bandwidth(&arguments) else {
        return;
    };
    for key in ["stream_gbs", "ratio_p50", "ratio_p99"] {
        assert!(report[key].is_f64(), "{key}: {report}");
    }
    for row in ["alone", "beside"] {
        assert!(
            report[row]["p99_ns"].as_f64() >= report[row]["p50_ns"].as_f64(),
            "{report}"
        );
    }
}

#[test]
fn copies_end_with_the_rule_of_the_machine() {
    let output = Command::new(env!("CARGO_BIN_EXE_copies"))
        .args(["--sizes", "1024,16384", "--pieces", "8192"])
        .args(["--rounds", "1", "--bytes", "65536"])
        .output()
        .expect("the program can be started");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    for expected in ["\n1024    1024 ", "\n16384  16384 ", "\n16384   8192 "] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let last = text.lines().last().expect("it prints lines");
    assert!(last.starts_with("the rule of this machine: "), "{text}");
}

/// Runs attacks for a short time, and checks what does not depend on time: on a machine that runs
/// other tests, latencies mean nothing.
fn attacks_do_no_harm(names: &[&str]) {
    let attack = env!("CARGO_BIN_EXE_attack");
    if !rustix::process::geteuid().is_root() {
        const WHY: &str = "NOT RUN: this test starts processes of another user, so it needs root";
        assert!(std::env::var_os("CI").is_none(), "{WHY}");
        let text = refused_by(attack, &[]);
        assert!(text.contains("as root"), "{text}");
        // Not by `eprintln`, which the test harness captures.
        let _ = writeln!(std::io::stderr(), "{WHY}");
        return;
    }
    let output = Command::new(attack)
        .args(names)
        .args(["--seconds", "1", "--rounds", "1"])
        .output()
        .expect("the program can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(lines.len(), names.len(), "{output:?}");
    for (line, name) in lines.iter().zip(names) {
        let (verdict, seen) = line.split_once(" | ").expect("a verdict and its reasons");
        assert!(verdict.starts_with(name), "{line}");
        for harm in [
            "errors", "refused", "blocked", "remains", "changed", "memory",
        ] {
            assert!(!verdict.contains(harm), "{line}");
        }
        assert!(seen.contains("good client: 0 errors"), "{line}");
        assert!(!seen.contains("gave up"), "{line}");
    }
}

#[test]
fn attacks_by_another_user_do_no_harm() {
    attacks_do_no_harm(&["block", "slots", "files"]);
}

#[test]
fn attacks_by_the_same_user_do_no_harm() {
    attacks_do_no_harm(&["blockwake", "notafile"]);
}
