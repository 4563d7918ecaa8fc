//! [`TokioExecutor`]: runs handlers on tokio.

use rpc_core::{Executor, Spawned};
use tokio::runtime::{Handle, TryCurrentError};

/// Runs the handlers of a server, or of one service, on a tokio runtime: handlers that wait for its
/// sockets, files or timers need it.
///
/// ```
/// use proto::greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
/// use verbline::{Device, Request, Response, Server, Status, TokioExecutor};
///
/// struct Slow;
///
/// impl Greeter for Slow {
///     async fn say_hello(
///         &self,
///         request: Request<HelloRequest>,
///     ) -> Result<Response<HelloReply>, Status> {
///         tokio::time::sleep(std::time::Duration::from_millis(1)).await;
///         let message = format!("Hello, {}!", request.into_inner().name);
///         Ok(Response::new(HelloReply { message }))
///     }
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let server = Server::builder(&Device::open("soft")?)
///         .executor(TokioExecutor::current())
///         .add_service(GreeterServer::new(Slow))
///         .bind("127.0.0.1:0")?;
///     // In a program: `tokio::signal::ctrl_c()`.
///     let signal = tokio::time::sleep(std::time::Duration::from_millis(10));
///     server.serve_with_shutdown(signal).await?;
///     Ok(())
/// }
/// ```
///
/// When the runtime shuts down, it drops the handlers that run, and their calls fail with
/// `UNAVAILABLE`. Stop the server first.
#[derive(Clone, Debug)]
pub struct TokioExecutor(Handle);

impl TokioExecutor {
    /// Returns an executor over the runtime of the calling task.
    ///
    /// # Panics
    ///
    /// Panics outside of a runtime; [`try_current`](Self::try_current) returns an error.
    #[must_use]
    #[track_caller]
    pub fn current() -> Self {
        Self(Handle::current())
    }

    /// Returns an executor over the runtime of the calling task.
    ///
    /// # Errors
    ///
    /// Returns tokio's error outside of a runtime.
    pub fn try_current() -> Result<Self, TryCurrentError> {
        Handle::try_current().map(Self)
    }
}

impl From<Handle> for TokioExecutor {
    fn from(handle: Handle) -> Self {
        Self(handle)
    }
}

impl Executor for TokioExecutor {
    fn spawn(&self, future: Spawned) {
        // Dropping the handle detaches the task.
        drop(self.0.spawn(future));
    }
}
