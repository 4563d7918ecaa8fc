//! Services as the driver uses them: methods by number, and the executor on which handlers may run.

pub mod dispatch;
pub mod executor;

pub use self::dispatch::{Methods, Service};
pub use self::executor::Executor;
