//! Fault-injection hooks for the simulation in `sim`, whose seed decides which faults occur.
//!
//! The hooks are macros, so that a build without the feature `test-util` contains nothing of them.

/// Marks a point at which the process may be killed. The kill takes effect before the store that
/// follows: peers see all of the process's earlier stores, and none later.
#[cfg(feature = "test-util")]
macro_rules! point {
    ($point:ident) => {
        crate::sim::point(crate::sim::Point::$point)
    };
}

/// Returns true if this fault is injected now.
#[cfg(feature = "test-util")]
macro_rules! strikes {
    ($fault:ident) => {
        crate::sim::strikes(crate::sim::Fault::$fault)
    };
}

/// Returns how many requests of a list are accepted: all of them, or fewer if an injected fault
/// rejects the post or accepts only part of it. The fault is attributed to `$blamed`.
#[cfg(feature = "test-util")]
macro_rules! taken {
    ($post:ident, $count:expr, $blamed:expr) => {
        crate::sim::taken(crate::sim::Post::$post, $count, $blamed)
    };
}

#[cfg(not(feature = "test-util"))]
macro_rules! point {
    ($point:ident) => {};
}

#[cfg(not(feature = "test-util"))]
macro_rules! strikes {
    ($fault:ident) => {
        false
    };
}

#[cfg(not(feature = "test-util"))]
macro_rules! taken {
    ($post:ident, $count:expr, $blamed:expr) => {
        $count
    };
}

pub(super) use {point, strikes, taken};
