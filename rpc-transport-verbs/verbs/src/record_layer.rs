//! [`RecordLayer`]: what may stand between the bytes of a link and its socket, such as TLS.

use std::fmt;
use std::ops::Range;

/// Maximum number of bytes, those of a record of TLS, that one call of [`RecordLayer::seal`] gets.
pub const MAX_PLAIN: usize = 16 * 1024;

/// Maximum length in bytes of a record that a peer may send. TLS 1.3 permits 16,645.
pub const MAX_RECORD: usize = 17 * 1024;

/// Maximum number of records in a row without bytes: a peer that sends more keeps this side busy with
/// nothing.
pub const MOST_EMPTY: u32 = 64;

/// The records of one connection, in both directions, from the first one after its set-up on. Both see
/// memory of the link alone, and never that of the application: so a layer needs no unsafe code.
///
/// What its `Debug` prints may be logged: no keys.
pub trait RecordLayer: fmt::Debug + Send {
    /// Appends records with `len` bytes, at most 16 KiB, to `sealed`. `fill` writes the bytes to where
    /// they are sealed: one piece after the other, as many as there are records. If the layer has
    /// something to say itself, such as the answer to a change of keys, it comes first.
    ///
    /// # Errors
    ///
    /// If nothing more may be sent under the layer's keys: the link ends.
    fn seal_with(
        &mut self,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
        sealed: &mut Vec<u8>,
    ) -> Result<(), BadRecord>;

    /// Appends records with these bytes, at most 16 KiB, as [`seal_with`](Self::seal_with) does.
    ///
    /// # Errors
    ///
    /// As for [`seal_with`](Self::seal_with).
    fn seal(&mut self, plain: &[u8], sealed: &mut Vec<u8>) -> Result<(), BadRecord> {
        let mut rest = plain;
        let mut fill = |piece: &mut [u8]| {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
        };
        self.seal_with(plain.len(), &mut fill, sealed)
    }

    /// Appends what tells the peer that nothing more follows.
    ///
    /// # Errors
    ///
    /// As for [`seal`](Self::seal).
    fn seal_end(&mut self, sealed: &mut Vec<u8>) -> Result<(), BadRecord>;

    /// Opens the first record of `sealed`, which is at most 17 KiB long, in place. Returns `None`, and
    /// changes nothing, if not all of it has arrived.
    ///
    /// # Errors
    ///
    /// If the peer has not sealed it: the link ends.
    fn open(&mut self, sealed: &mut [u8]) -> Result<Option<Opened>, BadRecord>;
}

/// A record that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Where its bytes for the link are now; empty if it is for the layer alone.
    pub plain: Range<usize>,
    /// Its length in bytes: the next record follows.
    pub len: usize,
    /// The peer sends nothing more.
    pub is_end: bool,
}

/// A record that cannot be opened or sealed, and why, as part of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRecord(pub &'static str);

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for BadRecord {}

/// What was read from a socket before its bytes came to a link.
#[derive(Default)]
pub struct ReadAhead {
    /// Bytes of records that were opened.
    pub opened: Vec<u8>,
    /// What follows them: any number of records, and perhaps a part of one.
    pub sealed: Vec<u8>,
}

// Without the bytes, which are not for logs.
impl fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadAhead")
            .field("opened", &self.opened.len())
            .field("sealed", &self.sealed.len())
            .finish()
    }
}
