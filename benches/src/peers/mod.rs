//! The peers that Verbline is compared with: [`tonic`], the usual alternative; [`ucx`], a lower bound
//! that other software reaches on the same machine; and [`iceoryx2`], messages through shared memory
//! without encoding.

pub mod iceoryx2;
pub mod tonic;
pub mod ucx;
