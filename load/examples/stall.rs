//! A server that answers nothing for 100 ms, once in two seconds, under a closed loop and under an open one:
//!
//! ```text
//! cargo run --release -p verbline-load --example stall
//! ```
//!
//! Only the open loop shows the stall. With `--features report -- DIR`, it also draws that: `DIR/stall.svg`.
#![forbid(unsafe_code)]
// Printing the records is the purpose of this program.
#![allow(clippy::print_stdout)]

use std::env;
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use verbline::{Device, LocalPoller, Request, Response, Server, Status};
use verbline_load::{ClosedLoop, OpenLoop, Record};

const EVERY: Duration = Duration::from_secs(2);
const STALL: Duration = Duration::from_millis(100);

/// Its handlers run on one thread, so one that sleeps stops all of them.
struct StallingGreeter {
    start: Instant,
}

impl Greeter for StallingGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let into_period = self.start.elapsed().as_nanos() % EVERY.as_nanos();
        // The second half of the period, so that each of the loops meets whole stalls.
        let into_stall = into_period.checked_sub(EVERY.as_nanos() / 2);
        let left = into_stall.and_then(|into| STALL.as_nanos().checked_sub(into));
        if let Some(left) = left {
            thread::sleep(Duration::from_nanos(left as u64));
        }
        let message = format!("Hello, {}!", request.into_inner().name);
        Ok(Response::new(HelloReply { message }))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::open("soft")?;
    let start = Instant::now();
    let server = Server::builder(&device)
        .add_service(GreeterServer::new(StallingGreeter { start }))
        .bind("127.0.0.1:0")?
        .spawn();
    let poller = LocalPoller::new(&device)?;
    let greeter = GreeterClient::new(poller.connect(&server.local_addr().to_string())?);
    let callers = |count| {
        let greeter = &greeter;
        (0..count).map(move |_| {
            async move || {
                let name = "Ada".to_owned();
                greeter.say_hello(HelloRequest { name }).await.map(drop)
            }
        })
    };

    println!("A twentieth of the time, the server answers nothing.\n");
    let plan = ClosedLoop::new().time(2 * EVERY);
    let closed = poller.block_on(plan.try_run(callers(1)))?;
    println!("closed loop\n{closed}");
    let plan = OpenLoop::at(10_000.0).time(2 * EVERY);
    let open = poller.block_on(plan.try_run(callers(64)))?;
    println!("open loop\n{open}");
    server.shutdown()?;
    match env::args().nth(1) {
        Some(folder) => draw(closed, open, &folder),
        None => Ok(()),
    }
}

#[cfg(feature = "report")]
fn draw(closed: Record, open: Record, folder: &str) -> Result<(), Box<dyn Error>> {
    use verbline_load::report::{Report, Run};

    let report = Report::new("A server that stalls")
        .run(Run::new("closed loop", closed))
        .run(Run::new("open loop", open));
    for (name, picture) in report.pictures() {
        if name == "over-time" {
            std::fs::write(format!("{folder}/stall.svg"), picture.to_svg())?;
        }
    }
    Ok(())
}

#[cfg(not(feature = "report"))]
fn draw(_: Record, _: Record, _: &str) -> Result<(), Box<dyn Error>> {
    Err("pictures need the feature: --features report".into())
}
