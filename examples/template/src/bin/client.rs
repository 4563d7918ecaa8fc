//! Makes one call: `cargo run --bin client`, or `cargo run --bin client -- Grace 127.0.0.1:50051`.

use std::env;
use std::error::Error;

use @CRATE@::greeter::{GreeterClient, HelloRequest};
use verbline::{Device, LocalPoller};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "Ada".to_owned());
    let address = arguments.next();
    let address = address.as_deref().unwrap_or("127.0.0.1:50051");
    // This thread polls the device: the lowest latency. `Channel` is a client for any thread.
    // `.allow_plaintext()` for servers on other hosts and in containers: docs/deploy.md of verbline.
    let poller = LocalPoller::new(&Device::best()?)?;
    let greeter = GreeterClient::new(poller.connect(address)?);
    let reply = poller.block_on(greeter.say_hello(HelloRequest { name }))?;
    println!("{}", reply.into_inner().message);
    Ok(())
}
