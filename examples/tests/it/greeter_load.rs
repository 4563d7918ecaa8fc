//! The example of a load generator, as a process.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use proto::greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
use rpc_core::{Request, Response, Server, Status};
use rpc_transport_verbs::Device;

struct MyGreeter {
    calls: Arc<AtomicUsize>,
}

impl Greeter for MyGreeter {
    async fn say_hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(HelloReply::default()))
    }
}

fn load(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_greeter_load"));
    command.args(arguments);
    command
}

#[test]
fn a_load_ends_with_a_table_by_itself_and_by_ctrl_c() {
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("response.hgrm");
    let calls = Arc::new(AtomicUsize::new(0));
    let server = Server::builder(&Device::best().unwrap())
        .add_service(GreeterServer::new(MyGreeter {
            calls: Arc::clone(&calls),
        }))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();
    let report = directory.path().join("load.html");
    let output = load(&["200", &address, "--seconds", "1"])
        .arg("--hgrm")
        .arg(&plot)
        .arg("--report")
        .arg(&report)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("p99.99") && !text.contains("failed"),
        "{text}"
    );
    let plot = std::fs::read_to_string(plot).unwrap();
    assert!(plot.contains("1/(1-Percentile)"), "{plot}");
    assert!(text.contains(report.to_str().unwrap()), "{text}");
    let report = std::fs::read_to_string(report).unwrap();
    assert!(report.contains(&address), "{report}");

    let child = load(&["200", &address, "--seconds", "3600"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // A loop that makes calls waits for the signal. In its warm-up, the table is empty.
    let before = calls.load(Ordering::Relaxed);
    while calls.load(Ordering::Relaxed) == before {
        thread::sleep(Duration::from_millis(1));
    }
    let process = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("p99.99"), "{text}");
}

#[test]
fn a_rate_that_is_none_is_refused() {
    for rate in ["0", "inf", "NaN", "fast"] {
        let output = load(&[rate]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("a number above zero"), "{error}");
    }
}
