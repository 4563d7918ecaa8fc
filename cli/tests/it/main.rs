//! The program, at Verbline servers in this process and at the same servers behind a gateway.

mod bad_input;
mod bench;
mod call;
mod closed_output;
mod describe;
mod golden;
mod health;
mod json;
mod list;
mod program;
mod server;
mod streams;
mod tls;
