//! [`ControlStream`]: the bytes of a connection that is not one for calls, or not yet: as they are, or
//! in the records of a [`RecordLayer`]. Both sides read and write it, with a socket that blocks or does
//! not.
//!
//! What the socket does not take is kept: part of a record cannot be taken back. So whoever watches the
//! socket asks whether something is [unsent](ControlStream::is_writing).

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use verbline_verbs::for_transport::{
    BadRecord, LinkBytes, MAX_PLAIN, MAX_RECORD, MOST_EMPTY, ReadAhead, RecordLayer,
};

/// Maximum number of bytes that are read from the socket at a time, if they are in records.
const READ_LEN: usize = 4096;

/// The bytes of a connection.
pub(crate) struct ControlStream {
    /// Shared with the poller, which shuts it down to end the connection.
    socket: Arc<TcpStream>,
    records: Option<Records>,
    /// What the socket has not taken yet.
    unsent: Vec<u8>,
}

/// The records of both directions.
struct Records {
    layer: Box<dyn RecordLayer>,
    /// What has arrived and was not read.
    read_ahead: ReadAhead,
    /// Records in a row without bytes.
    empty: u32,
    /// The peer has said that nothing more follows.
    has_ended: bool,
}

/// What a read has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// Bytes, or parts of records only.
    Bytes,
    /// The peer has closed the connection.
    End,
}

/// Why a connection fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    #[error("the socket failed ({0})")]
    Socket(#[from] io::Error),
    #[error("{0}")]
    Record(#[from] BadRecord),
}

impl StreamError {
    /// Returns true if it may work later, or in time: the socket would have blocked.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Socket(error) if matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ))
    }
}

impl ControlStream {
    /// The bytes of the connection as they are.
    pub(crate) fn plain(socket: impl Into<Arc<TcpStream>>) -> Self {
        Self {
            socket: socket.into(),
            records: None,
            unsent: Vec::new(),
        }
    }

    /// From here on, bytes travel in records, of which `sealed` have been read.
    pub(crate) fn secure(&mut self, layer: Box<dyn RecordLayer>, sealed: Vec<u8>) {
        self.records = Some(Records {
            layer,
            read_ahead: ReadAhead {
                opened: Vec::new(),
                sealed,
            },
            empty: 0,
            has_ended: false,
        });
    }

    pub(crate) fn is_secured(&self) -> bool {
        self.records.is_some()
    }

    pub(crate) fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    /// Returns true if the socket has to take more of what was written.
    pub(crate) fn is_writing(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Appends what has arrived to `bytes`, of the socket at most `most` bytes, or 4 KiB of records. Reads
    /// from the socket once, and only if nothing has arrived before.
    pub(crate) fn read(
        &mut self,
        most: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<Arrived, StreamError> {
        if let Some(records) = &mut self.records {
            return records.read(&self.socket, bytes);
        }
        let start = bytes.len();
        bytes.resize(start + most, 0);
        let read = (&*self.socket).read(&mut bytes[start..]);
        let len = *read.as_ref().unwrap_or(&0);
        bytes.truncate(start + len);
        Ok(match read? {
            0 => Arrived::End,
            _ => Arrived::Bytes,
        })
    }

    /// Copies the first bytes that have arrived, and leaves them to be read. Returns their number; `None`
    /// at the end of the connection. Reads from the socket once at most.
    pub(crate) fn peek(&mut self, bytes: &mut [u8]) -> Result<Option<usize>, StreamError> {
        let Some(records) = &mut self.records else {
            let len = self.socket.peek(bytes)?;
            return Ok((len > 0).then_some(len));
        };
        let mut held = std::mem::take(&mut records.read_ahead.opened);
        let before = held.len();
        let arrived = match before < bytes.len() {
            true => records.read(&self.socket, &mut held),
            false => Ok(Arrived::Bytes),
        };
        records.read_ahead.opened = held;
        let arrived = arrived?;
        let held = &records.read_ahead.opened;
        let len = held.len().min(bytes.len());
        bytes[..len].copy_from_slice(&held[..len]);
        Ok((arrived == Arrived::Bytes).then_some(len))
    }

    /// Writes these bytes, or keeps what the socket does not take.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        match &mut self.records {
            Some(records) => {
                for bytes in bytes.chunks(MAX_PLAIN) {
                    records.layer.seal(bytes, &mut self.unsent)?;
                }
            }
            None => self.unsent.extend_from_slice(bytes),
        }
        self.flush()
    }

    /// Writes what the socket takes of what was kept.
    pub(crate) fn flush(&mut self) -> Result<(), StreamError> {
        while !self.unsent.is_empty() {
            match (&*self.socket).write(&self.unsent) {
                Ok(len) => drop(self.unsent.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    // Nobody gets it any more.
                    self.unsent.clear();
                    return Err(error.into());
                }
            }
        }
        // A connection that is not used has no memory for what it says.
        self.unsent = Vec::new();
        Ok(())
    }

    /// Seals the last thing that this side says. Nothing may be written afterwards.
    pub(crate) fn seal_end(&mut self) {
        if let Some(records) = &mut self.records {
            // A layer that seals nothing more says nothing more.
            let _ = records.layer.seal_end(&mut self.unsent);
        }
    }

    /// Tells the peer that nothing more follows what was written.
    pub(crate) fn shut_down_write(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// Returns the connection for a queue pair, unless another owner still has its socket.
    pub(crate) fn into_link(self) -> Option<LinkBytes> {
        debug_assert!(
            self.unsent.is_empty(),
            "the hello of a link is sent, or was read"
        );
        let socket = Arc::into_inner(self.socket)?;
        Some(match self.records {
            Some(records) => LinkBytes::in_records(socket, records.layer, records.read_ahead),
            None => socket.into(),
        })
    }
}

impl Records {
    fn read(&mut self, socket: &TcpStream, bytes: &mut Vec<u8>) -> Result<Arrived, StreamError> {
        let start = bytes.len();
        bytes.append(&mut self.read_ahead.opened);
        self.open(bytes)?;
        if bytes.len() > start {
            return Ok(Arrived::Bytes);
        }
        if self.has_ended {
            return Ok(Arrived::End);
        }
        let mut arrived = [0; READ_LEN];
        let mut socket = socket;
        match socket.read(&mut arrived)? {
            0 => return Ok(Arrived::End),
            len => self.read_ahead.sealed.extend_from_slice(&arrived[..len]),
        }
        self.open(bytes)?;
        Ok(match self.has_ended && bytes.len() == start {
            true => Arrived::End,
            false => Arrived::Bytes,
        })
    }

    /// Opens all records that have arrived.
    fn open(&mut self, bytes: &mut Vec<u8>) -> Result<(), BadRecord> {
        let sealed = &mut self.read_ahead.sealed;
        let mut start = 0;
        while !self.has_ended {
            let Some(opened) = self.layer.open(&mut sealed[start..])? else {
                break;
            };
            let plain = &sealed[start..][opened.plain];
            self.empty = match plain.is_empty() {
                true => self.empty + 1,
                false => 0,
            };
            if self.empty >= MOST_EMPTY {
                return Err(BadRecord("the peer sends records without content"));
            }
            bytes.extend_from_slice(plain);
            start += opened.len;
            self.has_ended = opened.is_end;
        }
        sealed.drain(..start);
        if sealed.len() >= MAX_RECORD {
            return Err(BadRecord("a record is longer than it may be"));
        }
        if sealed.is_empty() {
            *sealed = Vec::new();
        }
        Ok(())
    }
}

// Without the bytes, which are not for logs.
impl fmt::Debug for ControlStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = self.records.as_ref().map(|records| &records.layer);
        f.debug_struct("ControlStream")
            .field("socket", &self.socket)
            .field("layer", &layer)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
