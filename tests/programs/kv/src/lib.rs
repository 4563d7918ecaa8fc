//! The service, in memory.
#![deny(warnings)]
#![warn(missing_docs, unreachable_pub, unused_qualifications)]

/// The generated code: packages that use one another, nested like their names.
#[allow(missing_docs)]
pub mod protos {
    include!(concat!(env!("OUT_DIR"), "/protos.rs"));
}
