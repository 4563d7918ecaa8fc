//! The peers that Verbline is measured in turn with: what a user would have taken instead
//! ([`tonic`]), and the floor that others have reached on the same machine ([`ucx`]).

pub mod tonic;
pub mod ucx;
