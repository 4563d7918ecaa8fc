//! Uploads through a plain Unix socket: a length, the bytes, and eight bytes back. Both sides poll
//! their sockets without sleeping.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use clap::Args;

use crate::Outcome;
use crate::bandwidth::pattern::{payload, word_of_each_line};
use crate::bandwidth::puts::{puts_in_a_turn, unrecorded_puts};
use crate::child::{self, Process};
use crate::cores::{self, Cores};
use crate::slices::{Side, Stopwatch};

/// Name of the hidden command that runs [`UnixArgs::serve`].
pub const SERVE: &str = "serve-unix-puts";

/// The command-line arguments of a server process.
#[derive(Clone, Debug, Args)]
pub struct UnixArgs {
    /// Core to pin to
    #[arg(long)]
    pub core: usize,
    /// Path of the socket
    #[arg(long)]
    pub path: PathBuf,
}

impl UnixArgs {
    /// Runs the server process: takes the puts of one client until it is killed.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        cores::pin_current_thread(self.core)?;
        let listener = UnixListener::bind(&self.path)?;
        child::write_line_to_parent("ready")?;
        let (mut stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        let mut bytes = Vec::new();
        loop {
            let mut len = [0; 8];
            fill(&mut stream, &mut len)?;
            bytes.resize(usize::try_from(u64::from_le_bytes(len))?, 0);
            fill(&mut stream, &mut bytes)?;
            let sum = word_of_each_line(&bytes);
            send_all(&mut stream, &sum.to_le_bytes())?;
        }
    }
}

/// Reads until the buffer is full, without sleeping.
fn fill(stream: &mut UnixStream, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => buffer = &mut buffer[len..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all bytes, without sleeping.
fn send_all(stream: &mut UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Puts payloads of one size, one at a time.
pub struct UnixPuts {
    stream: UnixStream,
    payload: Vec<u8>,
    sum: u64,
    server: Process,
    // Keeps the directory of the socket.
    _directory: tempfile::TempDir,
}

impl UnixPuts {
    /// Starts the server process, connects, and pauses the server until the first turn. Pin the
    /// calling thread first.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(cores: Cores, size: usize) -> Outcome<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("puts");
        let mut server = Process::start(&[
            SERVE.to_owned(),
            "--core".to_owned(),
            cores.server.to_string(),
            "--path".to_owned(),
            path.display().to_string(),
        ])?;
        server.read_line()?;
        let stream = UnixStream::connect(&path)?;
        stream.set_nonblocking(true)?;
        let payload = payload(size).to_vec();
        let mut this = Self {
            stream,
            sum: word_of_each_line(&payload),
            payload,
            server,
            _directory: directory,
        };
        this.put()?;
        this.server.pause()?;
        Ok(this)
    }

    fn put(&mut self) -> io::Result<()> {
        let len = self.payload.len() as u64;
        send_all(&mut self.stream, &len.to_le_bytes())?;
        send_all(&mut self.stream, &self.payload)?;
        let mut sum = [0; 8];
        fill(&mut self.stream, &mut sum)?;
        let sum = u64::from_le_bytes(sum);
        assert_eq!(sum, self.sum, "the server must read what was sent");
        Ok(())
    }
}

impl Side for UnixPuts {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let puts = puts_in_a_turn(self.payload.len()).min(calls);
        self.server.resume()?;
        for _ in 0..unrecorded_puts(puts) {
            self.put()?;
        }
        stopwatch.start();
        for _ in 0..puts {
            self.put()?;
            stopwatch.lap();
        }
        Ok(self.server.pause()?)
    }
}
