//! A Verbline server in this process, a gateway in front of it, and foreign clients: tonic's, h2's,
//! and one that writes frames by hand.
// The long forms print what they have measured.
#![allow(clippy::print_stdout)]

mod flow_control;
mod forwarded;
mod hostile;
mod interop;
mod lifecycle;
mod mapping;
mod naive;
#[cfg(feature = "tls")]
mod program;
mod raw;
#[path = "../../../interop/src/service.rs"]
mod service;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod torn;
mod way_back;
