//! An open RDMA device: found by name, and queried for its limits, ports and GIDs.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

use rdma_sys::{ibv_context, ibv_device_attr};

use super::super::fork_guard::ForkGuard;
use super::super::limits::AttributeLimits;
use super::async_events;
use super::completion_channel::CompletionChannel;
use super::completion_queue::CompletionQueue;
use super::decode::device_attributes;
use super::device_list::{DeviceList, is_soft_roce, not_found, not_opened};
use super::handle::Handle;
use super::inline_probe::probe_inline;
use super::interruption::Interruption;
use super::known_windows::KnownWindows;
use super::library::{Library, library};
use super::memory::ProtectionDomain;
use super::port_counters;
use crate::types::{
    AsyncEvent, DeviceAttributes, DeviceCapability, Gid, OpenError, PartitionKey, PortAttributes,
    RnrCounters, TransportType, VerbsError,
};

#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(super) handle: Arc<Handle>,
    /// Queried once, when the device was opened.
    attributes: Arc<DeviceAttributes>,
    /// The ports' counters when the device was opened.
    rnr_before: Arc<[Option<RnrCounters>]>,
}

impl Context {
    pub(crate) fn open(name: &str) -> Result<Self, OpenError> {
        let os = |action| {
            let name = name.to_owned();
            move |source| OpenError::Os {
                name,
                action,
                source,
            }
        };
        let library = library()?;
        let fork_guard = ForkGuard::of_process().map_err(os("watch for forks"))?;
        fork_guard.check()?;
        let list = DeviceList::get(library)?;
        let Some(&device) = list
            .devices()
            .iter()
            .find(|&&device| list.name(device) == name)
        else {
            let known: Vec<_> = list.devices().iter().map(|&raw| list.name(raw)).collect();
            return Err(not_found(name, &known));
        };
        if list.info(device).transport == TransportType::Iwarp {
            return Err(OpenError::Iwarp {
                name: name.to_owned(),
            });
        }
        // SAFETY: `list` keeps the device's entry valid, and is alive until the end of this
        // function.
        let raw = unsafe { (library.ibv_open_device)(device) };
        if raw.is_null() {
            return Err(not_opened(name, io::Error::last_os_error()));
        }
        let prepare = || {
            let interruption = Interruption::new().map_err(os("make a file to be woken by"))?;
            // SAFETY: the context was opened above and is closed only on failure, after this call.
            let limits = unsafe { query_device(library, raw) }.map_err(os("say its limits"))?;
            Ok((interruption, limits))
        };
        let (interruption, (limits, attribute_limits)) = match prepare() {
            Ok(prepared) => prepared,
            Err(error) => {
                // SAFETY: the context was opened above, and nothing has been created from it.
                unsafe { (library.ibv_close_device)(raw) };
                return Err(error);
            }
        };
        let is_soft_roce = is_soft_roce(name);
        let handle = Arc::new(Handle {
            raw,
            library,
            name: name.to_owned(),
            interruption,
            fork_guard,
            limits,
            attribute_limits,
            is_soft_roce,
            windows: KnownWindows::new(is_soft_roce),
        });
        async_events::do_not_block(handle.async_fd()).map_err(os("prepare its event file"))?;
        let ports = 1..=limits.port_count;
        Ok(Self {
            rnr_before: ports.map(|port| port_counters::rnr(name, port)).collect(),
            attributes: Arc::new(DeviceAttributes {
                max_inline_data: probe_inline(&handle),
                ..limits
            }),
            handle,
        })
    }

    pub(crate) fn why_windows_do_not_protect(&self) -> Option<&'static str> {
        let capabilities = self.attributes.capabilities;
        if self.handle.is_soft_roce {
            Some("Soft-RoCE lets a peer read outside of a memory window")
        } else if !capabilities.contains(DeviceCapability::MemoryWindowType2B) {
            Some("the device has no memory windows that are tied to a queue pair (type 2B)")
        } else if !capabilities.contains(DeviceCapability::MemoryManagementExtensions) {
            Some("the device does not invalidate memory windows by work requests")
        } else {
            None
        }
    }

    pub(crate) fn device_name(&self) -> &str {
        &self.handle.name
    }

    pub(crate) fn query_device(&self) -> DeviceAttributes {
        *self.attributes
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.handle.query_port(port)
    }

    pub(crate) fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.handle.query_gid(port, index)
    }

    pub(crate) fn query_pkey(&self, port: u8, index: u16) -> Result<PartitionKey, VerbsError> {
        self.handle.query_pkey(port, index)
    }

    pub(crate) fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        ProtectionDomain::alloc(&self.handle)
    }

    pub(crate) fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        CompletionChannel::create(&self.handle)
    }

    pub(crate) fn create_cq(
        &self,
        depth: usize,
        channel: Option<&CompletionChannel>,
        vector: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::create(&self.handle, depth, channel, vector)
    }

    pub(crate) fn get_async_event(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<AsyncEvent>, VerbsError> {
        self.handle.fork_guard.check()?;
        async_events::next(&self.handle, timeout)
    }

    pub(crate) fn is_forked(&self) -> bool {
        !self.handle.is_ours()
    }

    pub(crate) fn interrupt_async_events(&self) {
        self.handle.interruption.raise();
    }

    pub(crate) fn rnr_counters(&self, port: u8) -> Option<RnrCounters> {
        let before = self
            .rnr_before
            .get(usize::from(port).checked_sub(1)?)?
            .as_ref()?;
        let now = port_counters::rnr(&self.handle.name, port)?;
        Some(RnrCounters {
            nak_sent: now.nak_sent.saturating_sub(before.nak_sent),
            nak_received: now.nak_received.saturating_sub(before.nak_received),
        })
    }
}

/// Queries the device's attributes (`ibv_query_device(3)`).
///
/// # Safety
///
/// `raw` must be an open context.
unsafe fn query_device(
    library: &Library,
    raw: *mut ibv_context,
) -> io::Result<(DeviceAttributes, AttributeLimits)> {
    let mut attributes = MaybeUninit::<ibv_device_attr>::zeroed();
    // SAFETY: the caller guarantees that the context is open, and the struct is a local variable.
    let returned = unsafe { (library.ibv_query_device)(raw, attributes.as_mut_ptr()) };
    if returned != 0 {
        return Err(io::Error::from_raw_os_error(returned.saturating_abs()));
    }
    // SAFETY: a plain struct of numbers, for which all zeros is a valid value; it was zeroed and
    // then filled in.
    let attributes = unsafe { attributes.assume_init() };
    // SAFETY: the caller guarantees that the context is open; the library set the number when it opened
    // it, and nothing changes it.
    let num_comp_vectors = unsafe { (*raw).num_comp_vectors };
    let attributes = device_attributes(&attributes, num_comp_vectors);
    let attribute_limits = AttributeLimits {
        port_count: attributes.port_count,
        pkey_count: attributes.max_pkeys,
        max_rd_atomic: attributes.max_qp_init_rd_atomic,
        max_dest_rd_atomic: attributes.max_qp_rd_atomic,
    };
    Ok((attributes, attribute_limits))
}
