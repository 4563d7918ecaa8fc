//! [`Flags`]: the flags of a frame.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// A set of flags: one byte of the header. All eight bits have a meaning.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The sender has consumed the control frame that the receiver had in flight.
    pub const ACK: Self = Self(1);
    /// The sender used its last credit for this frame, or had too few credits to send its long message at
    /// once: it would benefit from a larger window.
    pub const SPENT: Self = Self(2);
    /// The sender, a server, ends this connection, for its age or in a shutdown: the client must start no
    /// more calls on it.
    pub const GOING_AWAY: Self = Self(4);
    /// The credits of this control frame are returned by the sender rather than granted.
    pub const RETURNED: Self = Self(8);
    /// The call is a stream, whose response takes a credit.
    pub const STREAM: Self = Self(0x10);
    /// The message does not fit the frame, which begins it.
    pub const LONG: Self = Self(0x20);
    /// No message of the client follows.
    pub const LAST: Self = Self(0x40);
    /// The response's metadata has two parts, the first of which is initial metadata.
    pub const INITIAL: Self = Self(0x80);

    const NAMES: [&'static str; 8] = [
        "ack",
        "spent",
        "going away",
        "credits returned",
        "stream",
        "long",
        "last",
        "initial",
    ];

    /// Creates a set from the byte of a header.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Returns the byte for a header.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns true if all flags of `other` are in this set.
    #[inline]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if any flag of `other` is in this set.
    #[inline]
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the union of both sets.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the flags of this set that are not in `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the name of the lowest flag, or an empty string if there is none.
    #[must_use]
    pub fn first_name(self) -> &'static str {
        let index = self.0.trailing_zeros() as usize;
        Self::NAMES.get(index).copied().unwrap_or_default()
    }
}

impl BitOr for Flags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

impl BitOrAssign for Flags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        *self = self.with(other);
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = (0..8).filter(|bit| self.0 >> bit & 1 != 0);
        f.debug_set()
            .entries(set.map(|bit: usize| Self::NAMES[bit]))
            .finish()
    }
}
