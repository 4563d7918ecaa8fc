//! The server and the client as the processes that users start.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A server's process, which is killed if a test fails before it has stopped.
struct ServerProcess(Child);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_greets_counts_and_stops_when_it_is_told() -> Result<(), Box<dyn Error>> {
    let process = Command::new(env!("CARGO_BIN_EXE_server"))
        .args(["127.0.0.1:0", "--metrics", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut server = ServerProcess(process);
    let output = server.0.stdout.take().ok_or("it is piped")?;
    let mut lines = BufReader::new(output).lines();
    let mut address_after = |words: &str| -> Result<String, Box<dyn Error>> {
        let line = lines.next().ok_or("the server has ended")??;
        let address = line.strip_prefix(words).ok_or("another line was expected")?;
        Ok(address.to_owned())
    };
    let address = address_after("listening at ")?;
    let metrics = address_after("metrics at http://")?;

    let client = Command::new(env!("CARGO_BIN_EXE_client"))
        .args(["Ada", &address])
        .output()?;
    assert_eq!(String::from_utf8(client.stdout)?, "Hello, Ada!\n");

    let host = metrics.trim_end_matches("/metrics");
    let mut scrape = TcpStream::connect(host)?;
    write!(scrape, "GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    scrape.read_to_string(&mut text)?;
    let counted = text.lines().find(|line| line.contains("calls_total{") && line.contains("SayHello"));
    assert!(counted.is_some_and(|line| line.ends_with(" 1")), "{text}");

    let pid = server.0.id().to_string();
    Command::new("kill").args(["-TERM", &pid]).status()?;
    assert!(server.0.wait()?.success());
    let mut log = String::new();
    server.0.stderr.take().ok_or("it is piped")?.read_to_string(&mut log)?;
    assert!(log.contains("stopping: calls in flight have 10 s"), "{log}");
    Ok(())
}

#[test]
fn each_program_says_how_to_use_it() -> Result<(), Box<dyn Error>> {
    for (program, option) in [
        (env!("CARGO_BIN_EXE_server"), "--grace <SECONDS>"),
        (env!("CARGO_BIN_EXE_client"), "--timeout <SECONDS>"),
        (env!("CARGO_BIN_EXE_load"), "--seconds <SECONDS>"),
    ] {
        let help = Command::new(program).arg("--help").output()?;
        let text = String::from_utf8(help.stdout)?;
        assert!(help.status.success() && text.contains(option), "{text}");
    }
    Ok(())
}
