//! Streams: the messages, the server process, and what is measured of them.
//!
//! - [`message`]: numbered messages of two shapes, which the reader checks;
//! - [`service`]: the service;
//! - [`rate`]: messages per second of one stream, local and shared;
//! - [`round_trip`]: a message there and back on an open stream, the first message of a stream, and
//!   from the drop of a call to the drop of its handler, each beside a unary call;
//! - [`idle`]: many streams and connections that are idle.

pub mod idle;
pub mod message;
pub mod rate;
pub mod round_trip;
pub mod service;
