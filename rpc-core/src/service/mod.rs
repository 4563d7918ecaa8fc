//! A service's code as the driver calls it: methods by their numbers, and the executor that a handler
//! may run on.

pub(crate) mod dispatch;
pub(crate) mod executor;
