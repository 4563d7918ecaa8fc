//! The opened device.

use std::time::Duration;

use super::{CompletionChannel, CompletionQueue, ProtectionDomain};
use crate::provider;
use crate::types::{
    Access, AsyncEvent, DeviceAttributes, Gid, GidEntry, Mtu, OpenError, PartitionKey,
    PortAttributes, VerbsError,
};

/// The only completion vector of `soft` and `tcp`.
const ONLY_VECTOR: u32 = 0;

/// Returns the rights with these bits, which are libibverbs'.
pub fn access(bits: u32) -> Access {
    Access::from_bits(bits)
}

/// Returns the MTU with this code, which is libibverbs'.
pub fn mtu(code: u32) -> Option<Mtu> {
    Mtu::from_code(code)
}

/// An opened device.
#[derive(Clone, Debug)]
pub struct Context(provider::Context);

impl Context {
    /// Opens a device by its name in this crate.
    ///
    /// # Errors
    ///
    /// As [`crate::Context::open`].
    pub fn open(name: &str) -> Result<Self, OpenError> {
        provider::Context::open(name).map(Self)
    }

    /// Returns the device's attributes.
    pub fn query_device(&self) -> DeviceAttributes {
        self.0.query_device()
    }

    /// Returns a port's attributes.
    ///
    /// # Errors
    ///
    /// If there is no such port.
    pub fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.0.query_port(port)
    }

    /// Returns a GID of a port.
    ///
    /// # Errors
    ///
    /// If there is no such port, or no such index.
    pub fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.0.query_gid(port, index)
    }

    /// Returns the GIDs of a port.
    ///
    /// # Errors
    ///
    /// If there is no such port.
    pub fn query_gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.0.query_gid_table(port)
    }

    /// Returns a partition key of a port.
    ///
    /// # Errors
    ///
    /// If there is no such port, or no such index.
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<PartitionKey, VerbsError> {
        self.0.query_pkey(port, index)
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    ///
    /// If the device cannot.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        self.0.alloc_pd().map(ProtectionDomain)
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// If the system has no file for it.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        self.0.create_comp_channel().map(CompletionChannel)
    }

    /// Creates a completion queue, on the only completion vector.
    ///
    /// # Errors
    ///
    /// If the depth is out of range, or the channel is of another context.
    pub fn create_cq(
        &self,
        depth: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        let cq = self
            .0
            .create_cq(depth, channel.map(|channel| &channel.0), ONLY_VECTOR)?;
        Ok(CompletionQueue(cq, provider::HeldCompletions::default()))
    }

    /// Returns the next asynchronous event; `None` after the timeout, or an interruption.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn get_async_event(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<AsyncEvent>, VerbsError> {
        self.0.get_async_event(timeout)
    }

    /// Interrupts one wait for an event.
    pub fn interrupt_async_events(&self) {
        self.0.interrupt_async_events();
    }
}
