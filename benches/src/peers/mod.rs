//! The peers that Verbline is compared with: [`tonic`], the usual alternative, with its streams in
//! [`tonic_streams`]; [`ucx`], a lower bound that other software reaches on the same machine; and
//! `iceoryx2` (feature `peers`), messages through shared memory without encoding.

#[cfg(feature = "peers")]
pub mod iceoryx2;
pub mod tonic;
pub mod tonic_streams;
pub mod ucx;
