//! An opened device.

use std::time::Duration;

use super::completion_channel::CompletionChannel;
use super::completion_queue::CompletionQueue;
use super::protection_domain::ProtectionDomain;
use super::types::async_event::AsyncEvent;
use super::types::counters::{DeviceCounters, RnrCounters};
use super::types::device_attributes::DeviceAttributes;
use super::types::error::{OpenError, VerbsError};
use super::types::gid::{Gid, GidEntry, PartitionKey};
use super::types::port_attributes::PortAttributes;
use super::types::soft_options::SoftOptions;
use crate::provider;

/// An opened device: where every other object comes from. Cheap to clone.
///
/// Open one per poller. Its objects may be used from any thread, but one thread at a time gets
/// into the device through one context.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) raw: provider::Context,
}

impl Context {
    /// Opens a device by its name: `"soft"`, which is there everywhere, or an RDMA device's.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        Ok(Self {
            raw: provider::Context::open(name)?,
        })
    }

    /// Opens the software device with options of its own.
    pub fn open_soft(options: SoftOptions) -> Result<Self, OpenError> {
        Ok(Self {
            raw: provider::Context::open_soft(options)?,
        })
    }

    /// Opens the software device in a simulated process.
    #[cfg(feature = "test-util")]
    pub(crate) fn simulated(process: &provider::SimulatedProcess) -> std::io::Result<Self> {
        let context = process.open(SoftOptions::default())?;
        Ok(Self {
            raw: provider::Context::Soft(context),
        })
    }

    /// The name that it was opened by.
    pub fn device_name(&self) -> &str {
        self.raw.device_name()
    }

    /// What the device is, and its limits.
    pub fn query_device(&self) -> DeviceAttributes {
        self.raw.query_device()
    }

    /// What a port says of itself. Ports are numbered from 1.
    pub fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.raw.query_port(port)
    }

    /// An entry of a port's GID table.
    pub fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.raw.query_gid(port, index)
    }

    /// The entries of a port's GID table that are in use, in the order of their indexes. Those
    /// beyond 255 are left out: no address vector can name them.
    pub fn query_gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.raw.query_gid_table(port)
    }

    /// An entry of a port's table of partition keys.
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<PartitionKey, VerbsError> {
        self.raw.query_pkey(port, index)
    }

    /// The entries of a port's table of partition keys that are in use, each with its index.
    pub fn query_pkey_table(&self, port: u8) -> Result<Vec<(u16, PartitionKey)>, VerbsError> {
        let count = self.query_port(port)?.pkey_count;
        let mut table = Vec::new();
        for index in 0..count {
            let key = self.query_pkey(port, index)?;
            if key.partition() != 0 {
                table.push((index, key));
            }
        }
        Ok(table)
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        ProtectionDomain::new(self)
    }

    /// Creates a completion queue of at least `depth` entries.
    ///
    /// Size it to the sum of the depths of all queues that complete to it: one completion too many
    /// kills it, and its queue pairs with it.
    pub fn create_cq(&self, depth: usize) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(self, depth, None)
    }

    /// The same, with the channel to which it raises an event each time that it was armed
    /// ([`CompletionQueue::arm`]). Several queues may have the same channel. It costs nothing as long
    /// as it is not armed.
    ///
    /// # Errors
    ///
    /// [`VerbsError::ForeignObject`] if the channel was made from another context, and what
    /// [`create_cq`](Self::create_cq) may say.
    pub fn create_cq_with_channel(
        &self,
        depth: usize,
        channel: &CompletionChannel,
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(self, depth, Some(channel))
    }

    /// Creates a completion channel: where completion queues raise events, and threads sleep until they
    /// do. It takes a few file descriptors.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        CompletionChannel::new(self)
    }

    /// Waits for an asynchronous event; for a thread of its own.
    ///
    /// `None` after `timeout`, or when [`interrupt_async_events`](Self::interrupt_async_events) was
    /// called. Without a timeout it waits as long as it takes.
    pub fn get_async_event(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<AsyncEvent>, VerbsError> {
        self.raw.get_async_event(timeout)
    }

    /// Whether this is a child of the process that opened it, where nothing of it works.
    pub fn is_forked(&self) -> bool {
        self.raw.is_forked()
    }

    /// Makes one present or next [`get_async_event`](Self::get_async_event) return `None`.
    pub fn interrupt_async_events(&self) {
        self.raw.interrupt_async_events();
    }

    /// What the device has counted for this context. Kernel verbs count by port and not by context:
    /// there it is an error.
    pub fn counters(&self) -> Result<DeviceCounters, VerbsError> {
        self.raw.counters()
    }

    /// How often a receiver was not ready, since the context was opened. `None` if the device does
    /// not count it.
    ///
    /// The software device counts for this context. The kernel counts for a whole port, so there it
    /// is all of the port's users together, as it was at most 10 ms ago (the `lifespan` of the counters
    /// in sysfs).
    pub fn rnr_counters(&self, port: u8) -> Option<RnrCounters> {
        self.raw.rnr_counters(port)
    }

    /// Whether the device keeps its counters with the state of its data path: a look at them then waits
    /// for whoever polls, and makes that wait, while it is of no cost to the poller's own thread. Those
    /// of the kernel are read by system calls, which disturb nobody.
    pub(crate) fn counts_on_data_path(&self) -> bool {
        self.raw.counts_on_data_path()
    }
}
