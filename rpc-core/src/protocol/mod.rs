//! The rules of the protocol, as values: nothing here reads or writes a device.

pub mod connection;
pub mod credit;
pub mod frame;
pub mod session;
pub(crate) mod shares;
