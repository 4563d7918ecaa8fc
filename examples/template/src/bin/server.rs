//! Serves until the process ends: `cargo run` or `cargo run -- 0.0.0.0:50051`.

use std::env;
use std::error::Error;

use @CRATE@::MyGreeter;
use @CRATE@::greeter::GreeterServer;
use verbline::{Device, Server};

fn main() -> Result<(), Box<dyn Error>> {
    // Verbline logs through the crate `tracing`: to see it, call `tracing_subscriber::fmt::init()` here.
    let address = env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:50051");
    // An RDMA device if there is one and the feature `rdma` is on, and shared memory otherwise. Add
    // `.allow_plaintext()` for clients of other hosts and containers: docs/deploy.md of verbline.
    let device = Device::best()?;
    let server = Server::builder(&device)
        .add_service(GreeterServer::new(MyGreeter))
        .bind(address)?;
    println!("listening at {}", server.local_addr());
    Ok(server.run()?)
}
