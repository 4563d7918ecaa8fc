//! The device's bound: READs of memory that the other process has just written, and SENDs, on raw
//! verbs.

use std::time::Instant;

use rpc_transport_verbs::verbs::{Access, RemoteKey, RemoteMemory, Slot, WorkRequest};

use super::pattern::word_of_each_line;
use super::source::{ACKNOWLEDGED_AT_ONCE, MESSAGE_LEN, SEND_WINDOW, SourceArgs, queues};
use super::{in_flight, transfers};
use crate::Outcome;
use crate::child::Process;
use crate::cores::Cores;
use crate::endpoint::Endpoint;
use crate::role::Role;

/// Length in bytes of the receives for acknowledgements.
const ACKNOWLEDGEMENT_LEN: usize = 64;

/// This thread's side, with the process of the other side.
pub struct Raw {
    // Declared before the process, so that the queue pair is destroyed before its peer.
    endpoint: Endpoint,
    messages: Vec<Slot>,
    memory: RemoteMemory,
    bytes: usize,
    written: u8,
    process: Process,
}

impl Raw {
    /// Starts the other side with memory of `bytes` bytes, connects, and pauses it until the first
    /// turn. Pin the calling thread first.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(device: &str, cores: Cores, bytes: usize) -> Outcome<Self> {
        let args = SourceArgs {
            device: device.to_owned(),
            core: cores.server,
            bytes,
        };
        let (mut process, peer) = Process::start(&Role::Memory(args))?;
        let mut endpoint = Endpoint::open(device, &queues(ACKNOWLEDGEMENT_LEN))?;
        let domain = &endpoint.domain;
        let messages = domain.register(SEND_WINDOW * MESSAGE_LEN, Access::LOCAL_WRITE)?;
        let (addr, key) = serde_json::from_str(&endpoint.connect(&mut process, &peer)?)?;
        process.pause()?;
        Ok(Self {
            endpoint,
            messages: messages.into_slots(MESSAGE_LEN)?,
            memory: RemoteMemory {
                addr,
                key: RemoteKey(key),
            },
            bytes,
            written: 0,
            process,
        })
    }

    /// Lets the other side write all of its memory, then reads it once, `size` bytes at a time and
    /// many at a time. Returns the bytes per second of reading.
    ///
    /// # Errors
    ///
    /// Fails if the other side has ended, or if a READ fails.
    pub fn read_rate(&mut self, size: usize) -> Outcome<f64> {
        self.process.resume()?;
        self.written = self.written.wrapping_add(1).max(1);
        self.process.write_line(&self.written.to_string())?;
        self.process.read_line()?;

        let size = size.min(self.bytes);
        let (reads, at_a_time) = (transfers(self.bytes, size), in_flight(size));
        let domain = &self.endpoint.domain;
        let region = domain.register(at_a_time * size, Access::LOCAL_WRITE)?;
        let mut slots = region.into_slots(size)?;
        for slot in &mut slots {
            slot.fill(0);
        }
        let (mut begun, mut ended) = (0, Vec::with_capacity(at_a_time));
        let mut left = reads;
        let start = Instant::now();
        while left > 0 {
            // Polls after each READ: a device that reads at once has the bytes in its cache now.
            if begun < reads
                && let Some(slot) = slots.pop()
            {
                let from = self.memory.offset((begun * size) as u64);
                let read = WorkRequest::read(slot, from).signaled();
                let posted = self.endpoint.queue_pair.post_one(read);
                posted.map_err(|(_, reason)| reason)?;
                begun += 1;
            }
            self.endpoint.poll(|slot| ended.push(slot), |_| Ok(()))?;
            for slot in ended.drain(..) {
                std::hint::black_box(word_of_each_line(&slot));
                if slot[0] != self.written {
                    return Err("a READ returned bytes of an earlier turn".into());
                }
                slots.push(slot);
                left -= 1;
            }
        }
        let elapsed = start.elapsed();
        self.process.pause()?;
        Ok((reads * size) as f64 / elapsed.as_secs_f64())
    }

    /// Sends messages of 4 KiB to the other side's receives, many at a time. Returns the bytes per
    /// second until the last one is acknowledged.
    ///
    /// # Errors
    ///
    /// Fails if the other side has ended, or if a SEND fails.
    pub fn send_rate(&mut self) -> Outcome<f64> {
        self.process.resume()?;
        let sends = transfers(self.bytes, MESSAGE_LEN).next_multiple_of(ACKNOWLEDGED_AT_ONCE);
        let (mut begun, mut acknowledged) = (0, 0);
        let Self {
            endpoint, messages, ..
        } = self;
        let start = Instant::now();
        while acknowledged < sends {
            while begun < sends
                && begun < acknowledged + SEND_WINDOW
                && let Some(slot) = messages.pop()
            {
                let posted = endpoint
                    .queue_pair
                    .post_one(WorkRequest::send(slot).signaled());
                posted.map_err(|(_, reason)| reason)?;
                begun += 1;
            }
            let acknowledge = |_: &[u8]| {
                acknowledged += ACKNOWLEDGED_AT_ONCE;
                Ok(())
            };
            endpoint.poll(|slot| messages.push(slot), acknowledge)?;
        }
        let elapsed = start.elapsed();
        // The last SENDs may have no completion yet. The next turn takes its own slots only.
        while messages.len() < SEND_WINDOW {
            endpoint.poll(|slot| messages.push(slot), |_| Ok(()))?;
        }
        self.process.pause()?;
        Ok((sends * MESSAGE_LEN) as f64 / elapsed.as_secs_f64())
    }
}
