//! `verbline bench` and `verbline report`.

use std::fs;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use proto::greeter::{Greeter, HelloReply, HelloRequest};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use tokio::sync::oneshot;
use verbline::{Request, Response, Status};
use verbline_load::Record;
use verbline_load::report::Report;

use crate::program::{Ended, command, end, on_terminal, verbline};
use crate::server::Fixture;

const SHORT: [&str; 4] = ["--seconds", "0.2", "--warm-up", "0.01"];

fn bench(address: &str, method: &str, further: &[&str]) -> Ended {
    let is_said = |option: &&str| further.contains(option);
    let short = SHORT.chunks(2).filter(|option| !is_said(&option[0]));
    let short: Vec<&str> = short.flatten().copied().collect();
    verbline(&[&["bench", address, method], &*short, further].concat())
}

/// Runs the program, and returns the steps of its only run: the points and their records.
fn steps(address: &str, method: &str, further: &[&str]) -> Vec<(f64, Record)> {
    let json = bench(address, method, &[further, &["--json", "-"]].concat()).ok();
    let report = Report::from_json(&json).expect("what --json writes");
    let [run] = <[_; 1]>::try_from(report.runs).expect("one run");
    let steps = run.sweep.steps.into_iter();
    steps.map(|step| (step.at, step.record)).collect()
}

fn record(address: &str, method: &str, further: &[&str]) -> Record {
    let steps = steps(address, method, further);
    let [(_, record)] = <[_; 1]>::try_from(steps).expect("one load");
    record
}

const ECHO: &str = "verbline.kinds.Kinds/Echo";

#[test]
fn each_kind_of_method_is_loaded_over_each_protocol_in_both_loops() {
    let server = Fixture::new();
    let chat = ["--messages", "3"];
    let exchange = ["--each-message"];
    for (method, further) in [
        (ECHO, &[][..]),
        ("verbline.kinds.Kinds/Last", &chat),
        ("verbline.kinds.Kinds/Repeat", &[]),
        ("verbline.kinds.Kinds/Repeat", &exchange),
        ("verbline.kinds.Kinds/Chat", &chat),
        ("verbline.kinds.Kinds/Chat", &exchange),
    ] {
        for address in server.both() {
            let data = [
                "-d",
                r#"{"aString": "abc"} {"aString": "d"}"#,
                "--in-flight",
                "3",
            ];
            let closed = record(address, method, &[further, &data].concat());
            assert_eq!(closed.failures.count(), 0, "{method} {closed}");
            assert!(closed.service.len() > 10, "{method}: {closed}");
            assert_eq!((closed.callers, closed.wanted), (3, None));
            if method.ends_with("Repeat") && !further.is_empty() {
                continue;
            }
            let rate = ["--rate", "200", "--arrivals", "poisson", "--seed", "1"];
            let open = record(address, method, &[further, &rate].concat());
            assert_eq!(open.failures.count(), 0, "{method} {open}");
            assert_eq!(open.wanted, Some(200.0));
            assert!((20..=60).contains(&open.due()), "{method}: {open}");
        }
    }
}

#[test]
fn a_shared_client_and_several_processes_make_the_calls_as_well() {
    let server = Fixture::new();
    for further in [
        &["--shared", "--waiting", "event", "--connections", "2"][..],
        &["--processes", "2", "--connections", "3"],
    ] {
        let all = [further, &["--in-flight", "5", "--random", "100"]].concat();
        let record = record(&server.address, ECHO, &all);
        assert_eq!((record.callers, record.failures.count()), (5, 0));
        assert!(record.service.len() > 10, "{further:?}: {record}");
    }
    let rate = ["--processes", "3", "--rate", "300"];
    let record = record(&server.address, ECHO, &rate);
    assert_eq!((record.callers, record.wanted), (256, Some(300.0)));
    assert!((30..=70).contains(&record.due()), "{record}");
}

#[test]
fn a_sweep_measures_each_of_its_values() {
    let server = Fixture::new();
    for (option, values) in [
        ("--random", &["16", "300", "5000"][..]),
        ("--connections", &["1", "2"]),
        ("--in-flight", &["1", "2", "4"]),
        ("--rate", &["50", "100", "150"]),
    ] {
        let steps = steps(&server.address, ECHO, &[option, &values.join(",")]);
        let measured: Vec<String> = steps.iter().map(|(at, _)| at.to_string()).collect();
        assert_eq!(measured, values);
        let table = bench(&server.address, ECHO, &[option, &values.join(",")]).ok();
        let rows = table.lines().skip_while(|line| !line.contains("p99"));
        assert!(rows.count() > values.len(), "{table}");
    }
    let few = ["--random", "16,17", "--rate", "50,60"];
    let said = bench(&server.address, ECHO, &few).failed(1);
    assert!(
        said.contains("--rate and --random both have several values"),
        "{said}"
    );
}

#[test]
fn files_have_what_the_table_has_and_a_report_shows_several_runs() {
    let server = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for label in ["first", "second"] {
        let [json, hgrm, report] =
            ["json", "hgrm", "html"].map(|end| file(&format!("{label}.{end}")));
        let outputs = [
            "--label", label, "--json", &json, "--hgrm", &hgrm, "--report", &report,
        ];
        let secrets = [
            "-H",
            "a: s3cret",
            "-Hb: s3cret",
            "--header=c: s3cret",
            "--header",
            "d: s3cret",
        ];
        let table = bench(&server.address, ECHO, &[&outputs[..], &secrets].concat()).ok();
        for expected in ["p99.9", "answered:", "closed loop", ECHO, "soft"] {
            assert!(table.contains(expected), "{table}");
        }
        let lines = fs::read_to_string(&hgrm).unwrap();
        let first: Vec<&str> = lines.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(
            first,
            ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
        );
        assert!(lines.contains("#[Mean"), "{lines}");
        let html = fs::read_to_string(&report).unwrap();
        assert!(html.contains(label) && html.contains("<svg"), "{html}");
        assert!(html.contains("-H … -H… --header=… --header …"), "{html}");
        let data = fs::read_to_string(&json).unwrap();
        assert!(
            !html.contains("s3cret") && !data.contains("s3cret"),
            "{data}"
        );
    }
    let (html, svg) = (file("both.html"), file("pictures"));
    let runs = [&*file("first.json"), &file("second.json")];
    let both = [&["report"], &runs[..], &["-o", &html, "--svg", &svg]].concat();
    assert_eq!(verbline(&both).ok().trim(), html);
    let text = fs::read_to_string(&html).unwrap();
    assert!(text.contains("first") && text.contains("second"), "{text}");
    assert!(fs::read_dir(&svg).unwrap().count() > 0);
    let said = verbline(&["report", "/no/such.json"]).failed(1);
    assert!(
        said.contains("cannot read /no/such.json: No such file"),
        "{said}"
    );
    fs::write(file("first.json"), "{}").unwrap();
    let said = verbline(&both).failed(1);
    assert!(
        said.contains("is no file that `verbline bench --json` has written"),
        "{said}"
    );
}

#[test]
fn what_was_measured_is_in_the_files_whatever_becomes_of_the_others() {
    let server = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let load = [
        "bench",
        &server.address,
        ECHO,
        "--seconds",
        "0.1",
        "--warm-up",
        "0",
    ];
    let [report, hgrm] = [file("a.html"), file("a.hgrm")];
    let files = [&load[..], &["--report", &report, "--hgrm", &hgrm]].concat();
    let are_written = || {
        for file in [&report, &hgrm] {
            assert!(fs::metadata(file).unwrap().len() > 1000, "{file}");
            fs::remove_file(file).unwrap();
        }
    };
    let with_full = verbline(&[&files[..], &["--json", "/dev/full"]].concat());
    assert_eq!(with_full.code, 1, "{with_full:?}");
    assert!(
        with_full.err.contains("cannot write /dev/full: No space"),
        "{with_full:?}"
    );
    assert!(with_full.out.contains("p99.9"), "{with_full:?}");
    are_written();
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let said = end(command(&files).stdout(full).spawn().unwrap()).failed(74);
    assert!(said.contains("cannot write to standard output"), "{said}");
    are_written();
    let mut unread = command(&files).spawn().unwrap();
    drop(unread.stdout.take());
    assert_eq!(end(unread).ok(), "");
    are_written();
}

#[test]
fn an_interrupt_ends_the_making_of_many_connections() {
    let server = Fixture::with_room_for(500);
    for further in [&[][..], &["--shared"]] {
        let many = [further, &["--connections", "500"]].concat();
        let before = server.accepted();
        let mut child = start_long(&server.address, &many);
        // One of them has asked for the method's types.
        wait_until(&mut child, || server.accepted() >= before + 3);
        interrupt(&child);
        let said = end(child).failed(1);
        assert!(said.contains("interrupted before"), "{said}");
    }
}

/// Starts a load of a minute.
fn start_long(address: &str, further: &[&str]) -> Child {
    let long = [
        "bench",
        address,
        ECHO,
        "--seconds",
        "60",
        "--warm-up",
        "0.01",
        "--json",
        "-",
    ];
    command(&[&long[..], further].concat()).spawn().unwrap()
}

/// Waits for what a load does to its server.
#[track_caller]
fn wait_until(child: &mut Child, is_so: impl Fn() -> bool) {
    while !is_so() {
        let ended = child.try_wait().unwrap();
        assert_eq!(ended, None, "it makes calls for a minute");
        thread::sleep(Duration::from_millis(1));
    }
}

fn interrupt(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::INT).unwrap();
}

#[test]
fn an_interrupt_ends_a_load_with_what_has_been_recorded() {
    let server = Fixture::new();
    for further in [&[][..], &["--processes", "2"], &["--rate", "100,200"]] {
        let before = server.answered();
        let mut child = start_long(&server.address, further);
        // More than the first calls, which are not recorded, as is the warm-up of 10 ms.
        wait_until(&mut child, || server.answered() >= before + 10);
        thread::sleep(Duration::from_secs(1));
        interrupt(&child);
        let json: Json = serde_json::from_str(&end(child).ok()).unwrap();
        let record = &json["runs"][0]["sweep"]["steps"][0]["record"];
        let record: Record = serde_json::from_value(record.clone()).unwrap();
        assert!(record.service.len() > 10, "{further:?}: {record}");
        assert!(
            record.time < Duration::from_secs(30),
            "{further:?}: {record}"
        );
    }
}

#[test]
fn the_parts_of_a_load_end_with_the_process_that_has_started_them() {
    let server = Fixture::new();
    let mut parent = start_long(&server.address, &["--processes", "2"]);
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let mut parts = Vec::new();
    while parts.len() < 2 {
        assert!(
            parent.try_wait().unwrap().is_none(),
            "it makes calls for a minute"
        );
        let text = fs::read_to_string(&children).unwrap();
        parts = text.split_whitespace().map(str::to_owned).collect();
        thread::sleep(Duration::from_millis(10));
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
    // Without the end of the parent, they would go on for a minute.
    while parts
        .iter()
        .any(|part| fs::exists(format!("/proc/{part}/cmdline")).unwrap())
    {
        let is_zombie = |part: &String| {
            let status = fs::read_to_string(format!("/proc/{part}/stat")).unwrap_or_default();
            status.is_empty() || status.contains(") Z ")
        };
        if parts.iter().all(is_zombie) {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_cannot_be_measured_is_said_before_anything_is() {
    let server = Fixture::new();
    let failed = |method: &str, further: &[&str], code: i32, expected: &str| {
        let said = bench(&server.address, method, further).failed(code);
        assert!(said.contains(expected), "{said}");
    };
    failed(
        "verbline.kinds.Kinds/Ech",
        &[],
        1,
        "did you mean verbline.kinds.Kinds/Echo?",
    );
    failed(
        ECHO,
        &["-d", "{\"aStrin\": \"x\"}"],
        1,
        "has no field aStrin; did you mean aString?",
    );
    failed(ECHO, &["-d", ""], 1, "there is none");
    failed(ECHO, &["-H", "fail-with: 7"], 69, "PERMISSION_DENIED");
    failed(
        ECHO,
        &["--json", "/nowhere/at/all.json"],
        1,
        "cannot write /nowhere/at/all.json",
    );
    failed(
        ECHO,
        &["--processes", "4", "--in-flight", "2"],
        1,
        "each process needs one at least",
    );
    failed(
        ECHO,
        &["--in-flight", "2", "--connections", "3"],
        1,
        "Raise --in-flight",
    );
    failed(ECHO, &["--each-message"], 1, "leave --each-message out");
    failed(ECHO, &["--messages", "3"], 1, "leave --messages out");
    failed(ECHO, &["--random", "1"], 1, "the nearest one has");
    failed(
        ECHO,
        &["--processes", "2", "-d", "-"],
        1,
        "name it with -d @FILE",
    );
    let responses = ["--each-message", "--rate", "5"];
    failed(
        "verbline.kinds.Kinds/Repeat",
        &responses,
        1,
        "whose rate is the server's",
    );
    let parts = ["--processes", "2", "-H", "fail-with: 7"];
    failed(ECHO, &parts, 1, "PERMISSION_DENIED");
    for wrong in [
        &["--rate", "0"][..],
        &["--rate", "1e18"],
        &["--rate", "NaN"],
        &["--connections", "0"],
        &["--in-flight", "0"],
        &["--processes", "1000"],
        &["--seconds", "1e300"],
        &["--warm-up", "nan"],
        &["--rate", "2k,1k"],
        &["--random", "1G"],
        &["--in-flight", "x"],
        &["--processes", "0"],
        &["--random", "5", "-d", "{}"],
        &["--arrivals", "poisson"],
        &["--seconds", "0"],
    ] {
        let ended = bench(&server.address, ECHO, wrong);
        assert_eq!(ended.code, 2, "{wrong:?}: {ended:?}");
    }
}

/// A call of each `every` takes this long; other calls go on, unless it blocks the server's thread.
struct Slow {
    calls: AtomicU64,
    every: u64,
    delay: Duration,
    is_stall: bool,
    /// What each call took here: a busy machine makes delays longer.
    took: Arc<Mutex<Vec<Duration>>>,
}

impl Slow {
    fn new(every: u64, delay: Duration, is_stall: bool) -> Self {
        Self {
            calls: AtomicU64::new(0),
            every,
            delay,
            is_stall,
            took: Arc::default(),
        }
    }
}

impl Greeter for Slow {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let begun = Instant::now();
        if self.calls.fetch_add(1, Ordering::Relaxed) % self.every == self.every - 1 {
            if self.is_stall {
                thread::sleep(self.delay);
            } else {
                let (end, delayed) = oneshot::channel();
                let delay = self.delay;
                thread::spawn(move || {
                    thread::sleep(delay);
                    end.send(())
                });
                let _ = delayed.await;
            }
        }
        self.took.lock().unwrap().push(begun.elapsed());
        let message = request.into_inner().name;
        Ok(Response::new(HelloReply { message }))
    }
}

const HELLO: &str = "verbline.greeter.Greeter/SayHello";

#[test]
fn the_p99_of_planted_delays_is_the_planted_one() {
    // One of 25 calls, so that the p99 is that of a delayed one.
    let slow = Slow::new(25, Duration::from_millis(200), false);
    let took = Arc::clone(&slow.took);
    let server = Fixture::greeting(slow);
    let plan = ["--rate", "150", "--seconds", "2", "--warm-up", "0.01"];
    let record = record(&server.address, HELLO, &plan);
    let mut took = took.lock().unwrap();
    took.sort_unstable();
    let planted = took[took.len() * 99 / 100].as_nanos() as f64;
    let ratio = record.response.value_at_quantile(0.99) as f64 / planted;
    assert!(
        (0.95..1.05).contains(&ratio),
        "{ratio} times {planted} ns: {record}"
    );
    assert!(
        record.response.value_at_quantile(0.5) < 100_000_000,
        "{record}"
    );
}

#[test]
fn an_open_loop_shows_a_stall_that_a_closed_loop_hides() {
    let share_above = |record: &Record| {
        let above = record.response.count_between(20_000_000, u64::MAX);
        above as f64 / record.response.len() as f64
    };
    let share = |load: &[&str]| {
        // One of 500 calls makes all others wait.
        let server = Fixture::greeting(Slow::new(500, Duration::from_millis(100), true));
        let time = ["--seconds", "2", "--warm-up", "0.01"];
        let record = record(&server.address, HELLO, &[load, &time].concat());
        assert!(record.response.max() > 90_000_000, "{record}");
        share_above(&record)
    };
    // A hundred calls of five hundred come during a stall.
    let open = share(&["--rate", "1000"]);
    assert!(open > 0.1, "{open} of the calls waited");
    // All others are not made.
    let closed = share(&[]);
    assert!(closed < 0.01, "{closed} of the calls waited");
}

#[test]
fn a_terminal_sees_a_bar_however_wide_it_is() {
    let server = Fixture::new();
    let arguments = [&["bench", &server.address, ECHO], &SHORT[..]].concat();
    let shown = [0, 10, 80].map(|columns| on_terminal(&mut command(&arguments), columns));
    assert_eq!(shown.each_ref().map(|(code, _)| *code), [0; 3], "{shown:?}");
    let [without_width, _, wide] = shown.map(|(_, shown)| shown);
    assert!(without_width.contains("p99.9"), "{without_width}");
    assert!(wide.contains("in flight 1"), "{wide}");
}
