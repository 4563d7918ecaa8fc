//! [`Script`]: what a hostile peer does, and this side in between, as bytes.

/// A script that is read from its beginning.
#[derive(Clone, Copy, Debug)]
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// Creates a script from bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next byte, or `None` at the end of the script.
    pub fn step(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    /// Returns the next byte as an argument; 0 past the end.
    pub fn byte(&mut self) -> u8 {
        self.step().unwrap_or(0)
    }

    /// Returns two bytes as an argument, little-endian.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Returns eight bytes as an argument, little-endian.
    pub fn long(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Reads a length byte and returns that many bytes, or as many as are left.
    pub fn piece(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte()).min(self.0.len());
        let (piece, rest) = self.0.split_at(len);
        self.0 = rest;
        piece
    }

    /// Returns all remaining bytes.
    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}
