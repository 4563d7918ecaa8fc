//! Loads a service through any async client, and records what its calls take.
//!
//! ```
//! use std::time::Duration;
//!
//! use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
//! use verbline::{Device, LocalPoller, Request, Response, Server, Status};
//! use verbline_load::{OpenLoop, hgrm};
//!
//! struct MyGreeter;
//!
//! impl Greeter for MyGreeter {
//!     async fn say_hello(
//!         &self,
//!         request: Request<HelloRequest>,
//!     ) -> Result<Response<HelloReply>, Status> {
//!         let message = format!("Hello, {}!", request.into_inner().name);
//!         Ok(Response::new(HelloReply { message }))
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let device = Device::open("soft")?;
//!     let server = Server::builder(&device)
//!         .add_service(GreeterServer::new(MyGreeter))
//!         .bind("127.0.0.1:0")?
//!         .spawn();
//!
//!     // The client of your service: this one, or tonic's, or any other with async calls.
//!     let poller = LocalPoller::new(&device)?;
//!     let greeter = GreeterClient::new(poller.connect(&server.local_addr().to_string())?);
//!     // At most sixteen calls in flight, each with a deadline.
//!     let callers = (0..16).map(|_| {
//!         async || {
//!             let request = Request::new(HelloRequest { name: "Ada".to_owned() });
//!             greeter.say_hello(request.with_timeout(Duration::from_secs(1))).await.map(drop)
//!         }
//!     });
//!     let plan = OpenLoop::at(1000.0)
//!         .poisson()
//!         .warm_up(Duration::from_millis(100))
//!         .time(Duration::from_millis(400));
//!     let record = poller.block_on(plan.run(callers));
//!
//!     println!("{record}");
//!     hgrm::write(&record.response, &mut std::io::stdout())?;
//!     assert_eq!(record.failures.count(), 0);
//!     # assert!(record.due() > 100);
//!     server.shutdown()?;
//!     Ok(())
//! }
//! ```
//!
//! # Two loops
//!
//! - [`OpenLoop`] sends calls at their times, no matter how earlier ones fare, as independent users do.
//!   Its response times count from the intended start. Use it to learn what callers will see.
//! - [`ClosedLoop`] sends a call when the last one has been answered. Use it to learn how many calls a
//!   server answers at most, and what a call takes while nothing disturbs it.
//!
//! Neither needs an async runtime: both are futures, and each caller is an async closure that makes one
//! call. [`Sweep`](sweep::Sweep) runs a loop at rising rates until calls begin to queue.
//!
//! # Records
//!
//! A [`Record`] has the times as HdrHistograms, failures by their errors, and what must be known to
//! trust the times: calls that were sent late or never, and [`Record::shortfall`], which says that the
//! rate could not be offered. It prints a table. [`hgrm::write`] writes a file for HdrHistogram's
//! plotter, and [`Record::to_json`] what [`Record::merge`] makes one record of: those of several
//! threads or processes.
//!
//! [`TaskSet`] and [`Dispatcher`] are for loops of your own.
#![forbid(unsafe_code)]

mod arrivals;
mod closed_loop;
mod dispatcher;
mod failures;
#[cfg(test)]
mod fake;
pub mod hgrm;
mod histogram;
mod open_loop;
mod period;
#[cfg(feature = "report")]
pub mod plot;
mod points;
mod record;
mod recorder;
#[cfg(feature = "report")]
pub mod report;
mod slices;
pub mod sweep;
mod table;
mod task_set;
#[cfg(test)]
mod tests;
pub mod unit;

pub use self::arrivals::{Arrivals, Schedule};
pub use self::closed_loop::ClosedLoop;
pub use self::dispatcher::{Dispatcher, Which};
pub use self::failures::Failures;
pub use self::histogram::{add_time, histogram};
pub use self::open_loop::OpenLoop;
pub use self::period::Period;
pub use self::points::Points;
pub use self::record::{MergeError, Record, Shortfall};
pub use self::recorder::LATE;
pub use self::slices::{Slice, Slices};
pub use self::task_set::{TaskSet, run_all};

#[doc(no_inline)]
pub use hdrhistogram::Histogram;
