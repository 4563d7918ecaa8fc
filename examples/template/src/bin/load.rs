//! Calls a running server at a rate, prints what its callers wait, and draws it in `load.html`:
//! `cargo run --bin load`, or `cargo run --bin load -- 5000 127.0.0.1:50051`, and a third argument for
//! the seconds to record. Build both ends with `--release` for figures to trust. docs/load.md of
//! verbline explains them.

use std::env;
use std::error::Error;
use std::fs;
use std::time::Duration;

use @CRATE@::greeter::{GreeterClient, HelloRequest};
use verbline::{Device, LocalPoller, Request};
use verbline_load::OpenLoop;
use verbline_load::report::{Report, Run};

/// The most calls in flight.
const IN_FLIGHT: usize = 64;

const REPORT: &str = "load.html";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let rate = arguments.next();
    let rate = match rate.as_deref().unwrap_or("1000").parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => rate,
        _ => return Err("the first argument is the calls per second: a number above zero".into()),
    };
    let address = arguments.next();
    let address = address.as_deref().unwrap_or("127.0.0.1:50051");
    let seconds = arguments.next();
    let seconds = seconds.as_deref().unwrap_or("5").parse();
    let seconds = seconds.map_err(|_| "the third argument is a number of whole seconds")?;

    // This thread sends the calls and polls the device.
    let device = Device::best()?;
    let poller = LocalPoller::new(&device)?;
    let greeter = GreeterClient::new(poller.connect(address)?);
    let callers = (0..IN_FLIGHT).map(|_| {
        async || {
            let name = "Ada".to_owned();
            // Without a deadline, a call to a server that hangs would not end.
            let request = Request::new(HelloRequest { name }).with_timeout(Duration::from_secs(10));
            greeter.say_hello(request).await.map(drop)
        }
    });
    let plan = OpenLoop::at(rate)
        .poisson()
        .time(Duration::from_secs(seconds));
    let record = poller.block_on(plan.run(callers));
    print!("{record}");

    let run = Run::new("SayHello", record)
        .fact("server", address)
        .fact("device", &device)
        .fact("client", "LocalPoller");
    fs::write(REPORT, Report::new("@NAME@").run(run).to_html())?;
    println!("report: {REPORT}");
    Ok(())
}
