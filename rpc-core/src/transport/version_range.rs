//! [`VersionRange`]: the versions of a protocol that one side speaks.

use std::fmt;

/// The versions of a protocol that one side speaks, from the oldest to the newest.
///
/// In a handshake each side states its range, and the server chooses the newest version that both
/// sides speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The oldest version.
    pub oldest: u32,
    /// The newest version.
    pub newest: u32,
}

impl VersionRange {
    /// Returns the range that contains one version.
    #[must_use]
    pub const fn only(version: u32) -> Self {
        Self {
            oldest: version,
            newest: version,
        }
    }

    /// Returns true if the range contains a version.
    #[must_use]
    pub fn contains(self, version: u32) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }

    /// Returns the newest version in both ranges, or `None` if they have none in common.
    ///
    /// A peer may state a range whose oldest version is newer than its newest. Such a range
    /// contains no version.
    #[must_use]
    pub fn newest_common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

/// Prints "version 2" or "versions 2 to 4".
impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { oldest, newest } = self;
        if oldest == newest {
            write!(f, "version {newest}")
        } else {
            write!(f, "versions {oldest} to {newest}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(oldest: u32, newest: u32) -> VersionRange {
        VersionRange { oldest, newest }
    }

    #[test]
    fn the_newest_version_that_both_ranges_contain_is_chosen() {
        assert_eq!(range(2, 5).newest_common(range(3, 9)), Some(5));
        assert_eq!(range(3, 9).newest_common(range(2, 5)), Some(5));
        assert_eq!(range(2, 5).newest_common(range(5, 5)), Some(5));
        assert_eq!(range(2, 5).newest_common(range(6, 9)), None);
        assert_eq!(range(6, 9).newest_common(range(2, 5)), None);
    }

    /// A peer may state any two numbers.
    #[test]
    fn a_range_that_is_upside_down_has_nothing_in_common_with_any() {
        for other in [range(9, 2), range(2, 9), range(5, 5)] {
            assert_eq!(range(9, 2).newest_common(other), None);
            assert_eq!(other.newest_common(range(9, 2)), None);
        }
        assert!(!range(9, 2).contains(5));
    }

    #[test]
    fn a_range_is_printed_as_one_version_or_as_two() {
        assert_eq!(range(2, 2).to_string(), "version 2");
        assert_eq!(range(2, 4).to_string(), "versions 2 to 4");
    }
}
