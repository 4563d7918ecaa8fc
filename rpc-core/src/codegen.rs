//! What generated code names, and nothing else: `rpc-codegen` emits paths into [`v1`] alone.
//!
//! A later generator that needs other items finds them in a `v2`, so that a version skew between
//! the generator and this crate is one readable compile error (no such module), not a page of them.

/// For code that version 0.1 of `rpc-codegen` generates.
pub mod v1 {
    pub use bytes;
    pub use prost;
    pub use prost_types;

    // Items of the standard library, including the prelude: in the module of a service called
    // `Send`, the marker trait is `v1::Send`.
    pub use core::clone::Clone;
    pub use core::fmt;
    pub use core::future::Future;
    pub use core::marker::{Send, Sync};
    pub use core::ops::Fn;
    pub use core::result::Result;
    pub use std::sync::Arc;

    pub use crate::call_error::CallError;
    pub use crate::client::Caller;
    pub use crate::dispatch::{Instances, Methods, Service};
    pub use crate::executor::{Executor, OnExecutor};
    pub use crate::message::{IntoRequest, Request, Response};
    pub use crate::method::{Idempotency, MethodKind, MethodSpec};
    pub use crate::shared::Channel;
    pub use crate::status::Status;
}
