//! Uploads and downloads: unary calls with a `bytes` field, many in flight from one thread.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use proto::bulk::{BulkClient, GetRequest, PutRequest};
use rpc_core::codegen::v1::bytes::Bytes;
use rpc_core::{CallError, LocalChannel};
use verbline_load::run_all;

use super::pattern::{payload, word_of_each_line};
use super::{in_flight, transfers};
use crate::Outcome;
use crate::rpc::{Client, Rpc};

/// The direction of the payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the server.
    Upload,
    /// To the client.
    Download,
}

/// Where the payloads of uploads lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Source {
    /// On the heap: the client copies them into registered memory.
    #[default]
    Heap,
    /// In registered memory of the client's poller, where the server reads them.
    Allocated,
}

impl Source {
    /// Returns a payload of `len` bytes.
    fn payload(self, rpc: &Rpc, len: usize) -> Outcome<Bytes> {
        /// Memory is registered by another thread, when it is first wanted.
        const ATTEMPTS: usize = 1000;
        const PAUSE: Duration = Duration::from_millis(5);

        let bytes = payload(len);
        if self == Self::Heap {
            return Ok(bytes);
        }
        for _ in 0..ATTEMPTS {
            let mut memory = rpc.poller().allocate(len);
            if memory.is_registered() {
                memory.put_slice(&bytes);
                return Ok(memory.freeze());
            }
            thread::sleep(PAUSE);
        }
        Err(format!("no registered memory of {len} bytes became free").into())
    }
}

/// Calls of one size from this thread.
pub struct Calls<'a> {
    rpc: &'a Rpc,
    client: &'a BulkClient<LocalChannel>,
    payload: Bytes,
    /// The sum that the receiver must compute of the payload: see [`word_of_each_line`].
    sum: u64,
}

impl<'a> Calls<'a> {
    /// Prepares calls with payloads of `size` bytes.
    ///
    /// # Errors
    ///
    /// Fails if the poller registers no memory for the payload within some seconds.
    pub fn new(
        rpc: &'a Rpc,
        client: &'a BulkClient<LocalChannel>,
        size: usize,
        source: Source,
    ) -> Outcome<Self> {
        let payload = source.payload(rpc, size)?;
        Ok(Self {
            rpc,
            client,
            sum: word_of_each_line(&payload),
            payload,
        })
    }

    /// Returns the processes between which the calls are made.
    pub(super) fn rpc(&self) -> &'a Rpc {
        self.rpc
    }

    /// Returns the length of a payload in bytes.
    pub(super) fn size(&self) -> usize {
        self.payload.len()
    }

    /// Makes calls that move `bytes` bytes, after as many unrecorded ones as may be in flight, and
    /// returns the bytes per second. The server must not be paused.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
    pub fn rate(&self, direction: Direction, bytes: usize) -> Outcome<f64> {
        let size = self.payload.len();
        let (calls, at_a_time) = (transfers(bytes, size), in_flight(size));
        self.make(direction, at_a_time, at_a_time)?;
        let start = Instant::now();
        self.make(direction, calls, at_a_time.min(calls))?;
        Ok((calls * size) as f64 / start.elapsed().as_secs_f64())
    }

    fn make(&self, direction: Direction, calls: usize, at_a_time: usize) -> Outcome<()> {
        let left = Cell::new(calls);
        let workers = (0..at_a_time).map(|_| async {
            while left.get() > 0 {
                left.set(left.get() - 1);
                match direction {
                    Direction::Upload => self.upload().await?,
                    Direction::Download => self.download().await?,
                }
            }
            Ok::<_, CallError>(())
        });
        self.rpc.block_on(run_all(workers))?;
        Ok(())
    }

    /// Makes one upload, and checks that the server has read the payload.
    ///
    /// # Errors
    ///
    /// Returns the call's error.
    ///
    /// # Panics
    ///
    /// Panics if the server has read something else.
    #[inline]
    pub async fn upload(&self) -> Result<(), CallError> {
        let data = self.payload.clone();
        let reply = self.client.put(PutRequest { data }).await?.into_inner();
        assert_eq!(reply.sum, self.sum, "the server must read what was sent");
        Ok(())
    }

    async fn download(&self) -> Result<(), CallError> {
        let len = self.payload.len() as u64;
        let reply = self.client.get(GetRequest { len }).await?.into_inner();
        let sum = word_of_each_line(&reply.data);
        assert_eq!(sum, self.sum, "the client must read what was sent");
        Ok(())
    }
}
