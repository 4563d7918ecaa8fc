//! The service: its generated code, and its implementation.

use verbline::{Request, Response, Status};

/// The code that the build script generates from `proto/greeter.proto`.
pub mod greeter {
    verbline::include_proto!("greeter");
}

use greeter::{Greeter, HelloReply, HelloRequest};

/// Greets people by name.
pub struct MyGreeter;

impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let HelloRequest { name } = request.into_inner();
        if name.is_empty() {
            return Err(Status::invalid_argument("a greeting needs a name"));
        }
        let message = format!("Hello, {name}!");
        Ok(Response::new(HelloReply { message }))
    }
}
