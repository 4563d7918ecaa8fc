//! `observed_server` prints its statistics on a signal, and at its end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use proto::greeter::{GreeterClient, HelloRequest};
use rpc_core::LocalPoller;
use rpc_transport_verbs::Device;
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn it_says_what_has_come_when_it_is_asked_and_all_of_it_at_the_end() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_observed_server"))
        .arg("127.0.0.1:0")
        .env("VERBLINE_DEVICE", "soft")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&server);
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut line_with = |part: &str| {
        let mut lines = lines.by_ref().map(|line| line.unwrap());
        let line = lines.find(|line| line.contains(part));
        line.unwrap_or_else(|| panic!("the server ended without a line with '{part}'"))
    };
    let address = line_with("listening at ");
    let address = address.strip_prefix("listening at ").unwrap();
    let poller = LocalPoller::new(&Device::open("soft").unwrap()).unwrap();
    let greeter = GreeterClient::new(poller.connect(address).unwrap());
    let greet = |name: &str| poller.block_on(greeter.say_hello(HelloRequest { name: name.into() }));
    for (asked, greetings) in [3, 5].into_iter().enumerate() {
        for _ in 0..greetings {
            greet("Ada").unwrap();
        }
        greet("").unwrap_err();
        kill_process(pid, Signal::USR1).unwrap();
        let line = line_with("verbline.greeter.Greeter/SayHello ");
        let words: Vec<_> = line.split_whitespace().collect();
        let calls = (greetings + 1).to_string();
        assert_eq!(words[1..3], [&calls, &greetings.to_string()], "{line}");
        assert!(line.ends_with("  1 INVALID_ARGUMENT"), "{line}");
        let ok = r#"verbline_server_calls_total{rpc_method="verbline.greeter.Greeter/SayHello",rpc_response_status_code="OK"} "#;
        let total = line_with(ok);
        let greeted = [3, 8][asked].to_string();
        assert_eq!(total.strip_prefix(ok), Some(greeted.as_str()));
    }
    kill_process(pid, Signal::TERM).unwrap();
    line_with("total:");
    let line = line_with("verbline.greeter.Greeter/SayHello ");
    assert_eq!(line.split_whitespace().nth(1), Some("10"), "{line}");
    assert!(server.wait().unwrap().success());
}
