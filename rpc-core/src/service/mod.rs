//! Services as the driver uses them: methods by number, and the executor on which handlers may run.

pub(crate) mod dispatch;
pub(crate) mod executor;
pub(crate) mod handler;
mod handler_cells;
mod input;
mod intercepted;
mod limited;
pub(crate) mod registration;
mod response_lengths;
