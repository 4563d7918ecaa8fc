//! A service's code as the driver calls it: methods by their numbers, and the executor that a handler
//! may run on.

pub mod dispatch;
pub mod executor;

pub use self::dispatch::{Methods, Service};
pub use self::executor::Executor;
