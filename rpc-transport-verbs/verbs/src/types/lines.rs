//! Formats sets of attributes: one line per attribute, with aligned values.

use std::fmt;

/// Writes lines of a name and a value.
pub(crate) struct Lines<'a, 'f> {
    f: &'a mut fmt::Formatter<'f>,
    is_first: bool,
    /// Width of the name column in characters.
    width: usize,
}

impl<'a, 'f> Lines<'a, 'f> {
    pub(crate) fn new(f: &'a mut fmt::Formatter<'f>, width: usize) -> Self {
        Self {
            f,
            is_first: true,
            width,
        }
    }

    pub(crate) fn line(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        if !std::mem::take(&mut self.is_first) {
            self.f.write_str("\n")?;
        }
        let width = self.width;
        write!(self.f, "{name:<width$} {value}")
    }

    /// Writes the line unless the value is `None`.
    pub(crate) fn line_if_some(
        &mut self,
        name: &str,
        value: Option<impl fmt::Display>,
    ) -> fmt::Result {
        value.map_or(Ok(()), |value| self.line(name, value))
    }
}

/// A number of bytes, displayed in the largest unit that leaves a whole number.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let (mut number, mut unit) = (self.0, 0);
        while number != 0 && number % 1024 == 0 {
            number /= 1024;
            unit += 1;
        }
        write!(f, "{number} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_largest_unit_that_leaves_a_whole_number() {
        let text = |bytes| Bytes(bytes).to_string();
        assert_eq!(text(0), "0 bytes");
        assert_eq!(text(512), "512 bytes");
        assert_eq!(text(4096), "4 KiB");
        assert_eq!(text(1 << 30), "1 GiB");
        assert_eq!(text((1 << 30) + 1), "1073741825 bytes");
        assert_eq!(text(1 << 63), "8 EiB");
        assert_eq!(text(u64::MAX), "18446744073709551615 bytes");
    }
}
