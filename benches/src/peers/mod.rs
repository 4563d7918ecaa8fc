//! The peers that Verbline is compared with: [`tonic`], the usual alternative, with its streams in
//! [`tonic_streams`] and its uploads in [`tonic_puts`]; and `iceoryx2` (feature `peers`), messages through
//! shared memory without encoding.

#[cfg(feature = "peers")]
pub mod iceoryx2;
pub mod tonic;
pub mod tonic_puts;
pub mod tonic_streams;
