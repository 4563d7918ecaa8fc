//! Depends on the package verbline under another name.

mod proto {
    rpc::include_proto!("greeter");
}

use proto::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use rpc::{Device, LocalPoller, Request, Response, Server, Status};

struct MyGreeter;

impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let message = format!("Hello, {}!", request.into_inner().name);
        Ok(Response::new(HelloReply { message }))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open("soft")?;
    let server = Server::builder(&device)
        .add_service(GreeterServer::new(MyGreeter))
        .bind("127.0.0.1:0")?
        .spawn();
    let poller = LocalPoller::new(&device)?;
    let greeter = GreeterClient::new(poller.connect(&server.local_addr().to_string())?);
    let reply = poller.block_on(greeter.say_hello(HelloRequest { name: "Ada".into() }))?;
    println!("{}", reply.into_inner().message);
    server.shutdown()?;
    Ok(())
}
