//! The service and its client in one process, over the software device.

use @CRATE@::MyGreeter;
use @CRATE@::greeter::{GreeterClient, GreeterServer, HelloRequest};
use verbline::{Channel, Code, Device, Server, block_on};

#[test]
fn people_are_greeted_by_name() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open("soft")?;
    let server = Server::builder(&device)
        .add_service(GreeterServer::new(MyGreeter))
        // Port 0: the system chooses a free one.
        .bind("127.0.0.1:0")?
        .spawn();
    let channel = block_on(Channel::connect(&device, &server.local_addr().to_string()))?;
    let greeter = GreeterClient::new(channel);

    let name = "Ada".to_owned();
    let reply = block_on(greeter.say_hello(HelloRequest { name }))?;
    assert_eq!(reply.into_inner().message, "Hello, Ada!");

    let error = block_on(greeter.say_hello(HelloRequest::default())).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    Ok(())
}
