//! The rules of the protocol, as values: nothing here reads or writes a device.

pub(crate) mod connection;
pub(crate) mod credit;
pub mod frame;
pub(crate) mod inline_frame;
pub mod session;
pub(crate) mod shares;
