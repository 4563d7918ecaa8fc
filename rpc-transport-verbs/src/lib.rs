//! Verbline's transport.

mod handshake;
mod provider;
pub mod verbs;
