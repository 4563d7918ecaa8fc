//! Links in the records of TLS 1.3, without a handshake between their ends.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use tls_testing::agreed;
use verbline_tls::{Opened as OpenedRecord, RecordError, Records};
use verbline_verbs::for_transport::{BadRecord, MAX_PLAIN, Opened, RecordLayer};

/// Lengths of the records that are sealed, in turn.
const LENGTHS: [usize; 5] = [1, 2, 3, 17, MAX_PLAIN];
/// Every so many records, one without bytes is in between.
const RECORDS_BETWEEN_EMPTY: u64 = 64;
/// Number of records of each key.
const RECORDS_OF_A_KEY: u64 = 50;

/// Returns the layer of one side of the link between these addresses.
pub(super) fn layer(own: SocketAddr, peer: SocketAddr) -> Box<dyn RecordLayer> {
    let mut hasher = DefaultHasher::new();
    (own.min(peer), own.max(peer)).hash(&mut hasher);
    let (low, high) = agreed::records(hasher.finish());
    let mut records = if own < peer { low } else { high };
    records.use_each_key_for(RECORDS_OF_A_KEY);
    Box::new(TlsRecords { records, sealed: 0 })
}

/// Records of odd lengths, with all that TLS may put between them.
#[derive(Debug)]
struct TlsRecords {
    records: Records,
    /// Number of records.
    sealed: u64,
}

impl RecordLayer for TlsRecords {
    fn seal_with(
        &mut self,
        mut left: usize,
        fill: &mut dyn FnMut(&mut [u8]),
        sealed: &mut Vec<u8>,
    ) -> Result<(), BadRecord> {
        while left > 0 {
            if self.sealed.is_multiple_of(RECORDS_BETWEEN_EMPTY) {
                self.records.seal(&[], sealed).map_err(bad)?;
            }
            let len = LENGTHS[self.sealed as usize % LENGTHS.len()].min(left);
            let done = self.records.seal_with(len, &mut *fill, sealed);
            done.map_err(bad)?;
            self.sealed += 1;
            left -= len;
        }
        Ok(())
    }

    fn seal_end(&mut self, sealed: &mut Vec<u8>) -> Result<(), BadRecord> {
        self.records.seal_end(sealed).map_err(bad)
    }

    fn open(&mut self, sealed: &mut [u8]) -> Result<Option<Opened>, BadRecord> {
        let opened = self.records.open(sealed).map_err(bad)?;
        Ok(opened.map(|OpenedRecord { plain, len, is_end }| Opened { plain, len, is_end }))
    }
}

fn bad(error: RecordError) -> BadRecord {
    BadRecord(error.sentence())
}
