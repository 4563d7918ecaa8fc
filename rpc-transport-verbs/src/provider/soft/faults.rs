//! Hooks of a simulation, in which the device goes wrong as its seed wants it: see `sim`.
//!
//! Macros, so that nothing of them is left in a build without the feature `test-util`.

/// The process may be killed here: before the store that follows, so that all of its stores up to here
/// are seen by its peers, and none after it.
#[cfg(feature = "test-util")]
macro_rules! point {
    ($point:ident) => {
        crate::sim::point(crate::sim::Point::$point)
    };
}

/// Whether this goes wrong now.
#[cfg(feature = "test-util")]
macro_rules! strikes {
    ($fault:ident) => {
        crate::sim::strikes(crate::sim::Fault::$fault)
    };
}

/// How many requests of a list are taken: all of them, or fewer if the post is refused or taken in
/// part, which is held against `$blamed`.
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
