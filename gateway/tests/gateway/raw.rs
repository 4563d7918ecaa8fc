//! A client of HTTP/2 that writes frames by hand, and may break every rule.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

/// The flag of the answer to a ping.
const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const CANCEL: u32 = 8;

pub(crate) struct RawClient(pub(crate) TcpStream);

impl RawClient {
    /// Connects, and sends the preface with empty settings.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Self(stream);
        client.0.write_all(PREFACE).unwrap();
        client.frame(SETTINGS, 0, 0, &[]).unwrap();
        client
    }

    pub(crate) fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> io::Result<()> {
        self.0.write_all(&frame(kind, flags, stream, payload))
    }

    /// Gives each stream, and the connection, a window of 2 GiB.
    pub(crate) fn open_windows(&mut self) -> io::Result<()> {
        self.frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff])?;
        self.frame(WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes())
    }

    /// Begins a call with these headers besides those that every call has.
    pub(crate) fn begin(
        &mut self,
        stream: u32,
        path: &str,
        more: &[(&str, &str)],
    ) -> io::Result<()> {
        self.frame(HEADERS, END_HEADERS, stream, &headers(path, more))
    }

    /// Sends an empty message of gRPC.
    pub(crate) fn message(&mut self, stream: u32) -> io::Result<()> {
        self.frame(DATA, 0, stream, &[0; 5])
    }

    pub(crate) fn reset(&mut self, stream: u32, reason: u32) -> io::Result<()> {
        self.frame(RST_STREAM, 0, stream, &reason.to_be_bytes())
    }

    pub(crate) fn go_away(&mut self) -> io::Result<()> {
        self.frame(GOAWAY, 0, 0, &[0; 8])
    }

    /// Reads the next frame, and returns its kind. Answers it if it is a ping.
    pub(crate) fn read_frame(&mut self) -> io::Result<u8> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head)?;
        let mut payload = vec![0; payload_len(&head)];
        self.0.read_exact(&mut payload)?;
        if head[3] == PING {
            self.frame(PING, ACK, 0, &payload)?;
        }
        Ok(head[3])
    }

    /// Closes the connection: in order, or with a reset of TCP, because data is unread.
    pub(crate) fn close(self, in_order: bool) {
        if in_order {
            // Fails if the other side has closed it.
            let _ = self.0.shutdown(Shutdown::Write);
            self.wait_for_end();
        }
    }

    /// Reads until the other side closes the connection. Fails the test if that takes a minute.
    pub(crate) fn wait_for_end(mut self) -> Vec<u8> {
        self.0
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut read = Vec::new();
        if let Err(error) = self.0.read_to_end(&mut read) {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "still open");
        }
        read
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::from(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Headers as literals of HPACK, without its table.
pub(crate) fn headers(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    let usual = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    for (name, value) in usual.iter().chain(more) {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "a longer length has more bytes");
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    block
}

/// Returns the length of the payload that follows the head of a frame.
fn payload_len(head: &[u8]) -> usize {
    usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])
}

/// Takes the kinds of the frames that a server sent, each with its payload.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while bytes.len() >= 9 {
        let end = (9 + payload_len(bytes)).min(bytes.len());
        frames.push((bytes[3], bytes[9..end].to_vec()));
        bytes = &bytes[end..];
    }
    frames
}
