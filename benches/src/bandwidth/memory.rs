//! The machine's bound: a copy of memory that the other core has just written.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use super::in_flight;
use super::pattern::word_of_each_line;
use crate::Outcome;
use crate::cores::{self, Cores};

/// Memory that the other core writes and this thread copies out.
#[derive(Debug)]
pub struct Memory {
    cores: Cores,
    source: Vec<u8>,
    destination: Vec<u8>,
    written: u8,
}

impl Memory {
    /// Allocates a source of this length.
    #[must_use]
    pub fn new(cores: Cores, len: usize) -> Self {
        Self {
            cores,
            source: vec![0; len],
            destination: Vec::new(),
            written: 0,
        }
    }

    /// Lets a thread on the server's core write the source, then copies it out on this thread, `size`
    /// bytes at a time, into as many buffers in turn as there are transfers in flight. Returns the
    /// bytes per second of copying.
    ///
    /// # Errors
    ///
    /// Fails if the thread cannot be pinned.
    pub fn rate(&mut self, size: usize) -> Outcome<f64> {
        self.written = self.written.wrapping_add(1).max(1);
        let (core, written, source) = (self.cores.server, self.written, &mut self.source);
        let writer = || {
            cores::pin_current_thread(core)?;
            source.fill(written);
            Ok::<_, std::io::Error>(())
        };
        let written_by = thread::scope(|scope| scope.spawn(writer).join());
        written_by.map_err(|_| "the writing thread panicked")??;
        let size = size.min(self.source.len());
        self.destination.resize(size * in_flight(size), 0);
        let mut buffers = (0..in_flight(size)).cycle();
        let start = Instant::now();
        for piece in self.source.chunks_exact(size) {
            let at = buffers.next().unwrap_or_default() * size;
            let buffer = &mut self.destination[at..at + size];
            buffer.copy_from_slice(piece);
            black_box(word_of_each_line(buffer));
        }
        let elapsed = start.elapsed();
        assert_eq!(self.destination[0], written, "the copy must be the latest");
        let copied = self.source.len() / size * size;
        Ok(copied as f64 / elapsed.as_secs_f64())
    }
}
