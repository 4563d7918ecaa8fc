//! The peers that Verbline is compared with: [`tonic`], the usual alternative, and [`ucx`], a lower
//! bound that other software reaches on the same machine.

pub mod tonic;
pub mod ucx;
