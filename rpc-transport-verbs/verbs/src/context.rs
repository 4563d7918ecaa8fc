//! Device contexts: `ibv_open_device(3)` and the queries on an open device.

use std::sync::Arc;
use std::time::Duration;

use super::device_name::{AddressWish, DeviceName};
use super::device_search;
use super::types::async_event::AsyncEvent;
use super::types::counters::{DeviceCounters, RnrCounters};
use super::types::device_attributes::DeviceAttributes;
use super::types::gid::{Gid, GidEntry, PartitionKey};
use super::types::locked_memory::LockedMemory;
use super::types::open_error::OpenError;
use super::types::port_attributes::PortAttributes;
use super::types::soft_options::SoftOptions;
use super::types::verbs_error::VerbsError;
use crate::provider;

/// An open device, from which every other object is created. Cloning it is cheap.
///
/// Open one per poller. Its objects may be used from any thread, but the device serializes access
/// through one context: one thread at a time.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) raw: provider::Context,
    /// What the name asks for under which the device was opened.
    pub(super) wish: Arc<AddressWish>,
}

impl Context {
    /// Opens a device by name (`ibv_open_device(3)`): `"soft"`, which exists everywhere, or the
    /// name of an RDMA device; or an RDMA device by what an operator knows of it, its network device
    /// (`"@eth0"`), its address (`"@192.0.2.1"`) or its subnet (`"@192.0.2.0/24"`). A port and an
    /// index in the port's GID table may follow a name: `"mlx5_0:1:3"`. See [`DeviceName`].
    ///
    /// By network device, address or subnet, the first device is opened that has an active port with
    /// such a GID. That takes some milliseconds for each device of the host.
    /// [`choose_address`](Self::choose_address) then prefers the port and the GIDs that were named.
    ///
    /// # Errors
    ///
    /// [`OpenError`] names the cause: a malformed name, no such device, missing library, driver,
    /// device file or permission, an iWARP device, a refusal by the operating system, or a fork after
    /// the first device was opened.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let name: DeviceName = name.parse()?;
        let raw = match &name.device {
            Some(device) => provider::Context::open(device)?,
            None => device_search::open(&name)?,
        };
        Ok(Self {
            raw,
            wish: Arc::new(name.wish),
        })
    }

    /// Opens the software device with the given options.
    ///
    /// # Errors
    ///
    /// [`OpenError::Os`] if the operating system refuses a resource, [`OpenError::Forked`] if the
    /// process was forked after its first device was opened.
    pub fn open_soft(options: SoftOptions) -> Result<Self, OpenError> {
        Ok(Self {
            raw: provider::Context::open_soft(options)?,
            wish: Arc::default(),
        })
    }

    /// Opens the software device in a simulated process.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn simulated(
        process: &provider::SimulatedProcess,
        options: SoftOptions,
    ) -> std::io::Result<Self> {
        let context = process.open(options)?;
        Ok(Self {
            raw: provider::Context::Soft(context),
            wish: Arc::default(),
        })
    }

    /// Returns the device's name, also if it was opened by network device or by address.
    pub fn device_name(&self) -> &str {
        self.raw.device_name()
    }

    /// Returns the device's attributes and limits (`ibv_query_device(3)`), as read when the device
    /// was opened.
    pub fn query_device(&self) -> DeviceAttributes {
        self.raw.query_device()
    }

    /// Returns the current attributes of a port (`ibv_query_port(3)`). Ports are numbered from 1.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if there is no such port. On RDMA devices also
    /// [`VerbsError::Os`] if the driver refuses, and [`VerbsError::Forked`] in a forked child.
    pub fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.raw.query_port(port)
    }

    /// Returns one entry of a port's GID table (`ibv_query_gid(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if there is no such port or index. On RDMA devices also
    /// [`VerbsError::Os`] if the driver refuses, and [`VerbsError::Forked`] in a forked child.
    pub fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.raw.query_gid(port, index)
    }

    /// Returns the entries of a port's GID table that are in use, ordered by index
    /// (`ibv_query_gid_table(3)`). Entries beyond index 255 are left out, since an address vector
    /// cannot name them.
    ///
    /// # Errors
    ///
    /// As for [`query_gid`](Self::query_gid).
    pub fn query_gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.raw.query_gid_table(port)
    }

    /// Returns one entry of a port's partition key table (`ibv_query_pkey(3)`).
    ///
    /// # Errors
    ///
    /// As for [`query_gid`](Self::query_gid).
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<PartitionKey, VerbsError> {
        self.raw.query_pkey(port, index)
    }

    /// Returns the entries of a port's partition key table that are in use, each with its index.
    ///
    /// # Errors
    ///
    /// As for [`query_pkey`](Self::query_pkey).
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

    /// Waits for an asynchronous event (`ibv_get_async_event(3)`). Call it on a dedicated thread.
    ///
    /// Returns `None` after `timeout`, or once
    /// [`interrupt_async_events`](Self::interrupt_async_events) was called. Without a timeout it
    /// waits indefinitely. The event is already acknowledged.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Os`] if waiting or reading fails, [`VerbsError::Forked`] in a forked child.
    pub fn get_async_event(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<AsyncEvent>, VerbsError> {
        self.raw.get_async_event(timeout)
    }

    /// Returns true in a forked child of the process that opened the device. No object of the
    /// context works there.
    pub fn is_forked(&self) -> bool {
        self.raw.is_forked()
    }

    /// Makes one current or future call of [`get_async_event`](Self::get_async_event) return
    /// `None`.
    pub fn interrupt_async_events(&self) {
        self.raw.interrupt_async_events();
    }

    /// Returns the counters of this context.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NotCounted`] for RDMA devices: kernel verbs count by port, not by context.
    /// [`VerbsError::Forked`] in a forked child.
    pub fn counters(&self) -> Result<DeviceCounters, VerbsError> {
        self.raw.counters()
    }

    /// Returns how often a receiver was not ready since the context was opened, or `None` if the
    /// device does not count it.
    ///
    /// The software device counts for this context. The kernel counts for a whole port, so its
    /// numbers include all users of the port, and may be up to 10 ms old (the `lifespan` of the
    /// counters in sysfs).
    pub fn rnr_counters(&self, port: u8) -> Option<RnrCounters> {
        self.raw.rnr_counters(port)
    }

    /// Returns what this process has locked for devices, and may still lock; `None` for the software
    /// device, which locks nothing.
    #[doc(hidden)]
    pub fn locked_memory(&self) -> Option<LockedMemory> {
        self.raw.locked_memory()
    }

    /// Returns true if the device keeps its counters with its data path state. Reading them from
    /// another thread then contends with the polling thread; reading them on the polling thread is
    /// free. Kernel counters are read by system calls and disturb no other thread.
    #[doc(hidden)]
    pub fn counts_on_data_path(&self) -> bool {
        self.raw.counts_on_data_path()
    }
}
