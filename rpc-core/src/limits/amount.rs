//! [`Bytes`] and [`Count`]: numbers as people read them.

use std::fmt;

/// Bytes, printed in the unit that fits: "4 MiB", "2.6 GiB".
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let Some((unit, name)) = units.into_iter().find(|(unit, _)| self.0 >= *unit) else {
            return write!(f, "{} bytes", self.0);
        };
        if self.0.is_multiple_of(unit) {
            write!(f, "{} {name}", self.0 / unit)
        } else {
            write!(f, "{:.1} {name}", self.0 as f64 / unit as f64)
        }
    }
}

/// A number of things: "1 connection", "2 connections".
pub(crate) struct Count(pub(crate) u32, pub(crate) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, name) = self;
        match count {
            1 => write!(f, "1 {name}"),
            _ => write!(f, "{count} {name}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (4352, "4.2 KiB"),
            (4 << 20, "4 MiB"),
            ((1 << 30) + (1 << 29), "1.5 GiB"),
            (1 << 40, "1024 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn one_thing_is_not_many() {
        assert_eq!(Count(1, "stream").to_string(), "1 stream");
        assert_eq!(Count(0, "stream").to_string(), "0 streams");
    }
}
