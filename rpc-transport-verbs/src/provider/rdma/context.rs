//! An open RDMA device: found by name, and queried for its limits, ports and GIDs.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rdma_sys::{
    ibv_context, ibv_device_attr, ibv_gid, ibv_port_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type,
};

use super::super::fork_guard::ForkGuard;
use super::super::limits::{AttributeLimits, in_range};
use super::async_events::{self, Interruption};
use super::binding::KnownWindows;
use super::completion_channel::CompletionChannel;
use super::completion_queue::CompletionQueue;
use super::decode::{device_attributes, port_attributes};
use super::device_list::{DeviceList, is_soft_roce, not_found, not_opened};
use super::library::{Library, library};
use super::memory::ProtectionDomain;
use super::{check, os_error, port_counters};
use crate::verbs::types::{
    AsyncEvent, DeviceAttributes, Gid, OpenError, PartitionKey, PortAttributes, RnrCounters,
    TransportType, VerbsError,
};

/// Inline lengths to try, since no call reports what a device supports. The layers above never
/// request more, and a larger length would enlarge every send queue entry.
const INLINE_LENGTHS: [u32; 5] = [512, 256, 128, 64, 32];

/// The open device, shared by everything that was created from it.
#[derive(Debug)]
pub(super) struct Handle {
    raw: *mut ibv_context,
    pub(super) library: &'static Library,
    pub(super) name: String,
    pub(super) interruption: Interruption,
    pub(super) fork_guard: &'static ForkGuard,
    /// The device's attributes, except that `max_inline_data`, which it does not report, is 0 here.
    pub(super) limits: DeviceAttributes,
    pub(super) attribute_limits: AttributeLimits,
    /// Whether this is the kernel's software device (Soft-RoCE), whose driver behaves differently.
    pub(super) is_soft_roce: bool,
    pub(super) windows: KnownWindows,
}

// SAFETY: libibverbs locks the state that its calls share, and the pointer is only passed to those
// calls.
unsafe impl Send for Handle {}
// SAFETY: any verb may be called from any thread (ibv_open_device(3) and the library's
// documentation of thread safety), so shared references may be used concurrently.
unsafe impl Sync for Handle {}

impl Handle {
    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw
    }

    pub(super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context and its file stay open for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.raw).async_fd) }
    }

    /// Returns true in the process that opened the device. Destructors act only there.
    pub(super) fn is_ours(&self) -> bool {
        self.fork_guard.check().is_ok()
    }

    fn check_port(&self, call: &'static str, port: u8) -> Result<(), VerbsError> {
        let count = self.limits.port_count;
        in_range(call, "port", port.into(), 1, count.into())
    }

    pub(super) fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.fork_guard.check()?;
        self.check_port("query_port", port)?;
        // SAFETY: a plain struct of numbers, for which all zeros is a valid value. It must be
        // zeroed, because the exported function writes an older, shorter struct.
        let mut raw: ibv_port_attr = unsafe { std::mem::zeroed() };
        let attributes: *mut ibv_port_attr = &mut raw;
        // SAFETY: the older struct is a prefix of ours, so the pointer is valid for the function's
        // writes.
        let returned = unsafe { (self.library.ibv_query_port)(self.raw, port, attributes.cast()) };
        check("query_port", returned)?;
        Ok(port_attributes(&raw))
    }

    pub(super) fn query_pkey(&self, port: u8, index: u16) -> Result<PartitionKey, VerbsError> {
        const CALL: &str = "query_pkey";
        self.fork_guard.check()?;
        self.check_port(CALL, port)?;
        let count = usize::from(self.query_port(port)?.pkey_count);
        in_range(CALL, "index", index.into(), 0, count.saturating_sub(1))?;
        let mut key: u16 = 0;
        // SAFETY: the context is open while `self` lives, and the key is written to a local
        // variable.
        let returned =
            unsafe { (self.library.ibv_query_pkey)(self.raw, port, index.into(), &mut key) };
        match returned {
            0 => Ok(PartitionKey(u16::from_be(key))),
            _ => Err(os_error(CALL)),
        }
    }

    pub(super) fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.fork_guard.check()?;
        self.check_port("query_gid", port)?;
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open while `self` lives, and the GID is written to a local
        // variable.
        let returned =
            unsafe { (self.library.ibv_query_gid)(self.raw, port, index.into(), &mut gid) };
        if returned != 0 {
            let error = os_error("query_gid");
            // Checked only after a failure: most callers know the length of the table.
            let count = self.query_port(port)?.gid_count as usize;
            in_range(
                "query_gid",
                "index",
                index.into(),
                0,
                count.saturating_sub(1),
            )?;
            return Err(error);
        }
        // SAFETY: every pattern of 16 bytes is a valid value of the union's field.
        Ok(Gid(unsafe { gid.raw }))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: every object that was created from the context holds an `Arc` of it, so none
            // is left.
            let returned = unsafe { (self.library.ibv_close_device)(self.raw) };
            if returned != 0 {
                tracing::error!(device = %self.name, "the device cannot be closed");
            }
        }
    }
}

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
        let fork_guard = process_guard().map_err(os("watch for forks"))?;
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
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::create(&self.handle, depth, channel)
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

/// Returns the fork guard of the process. There is only one, since each guard occupies a page
/// forever.
fn process_guard() -> io::Result<&'static ForkGuard> {
    static GUARD: OnceLock<ForkGuard> = OnceLock::new();
    if let Some(guard) = GUARD.get() {
        return Ok(guard);
    }
    let made = ForkGuard::new()?;
    Ok(GUARD.get_or_init(|| made))
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
    let raw = unsafe { attributes.assume_init() };
    let attributes = device_attributes(&raw);
    let attribute_limits = AttributeLimits {
        port_count: attributes.port_count,
        pkey_count: attributes.max_pkeys,
        max_rd_atomic: attributes.max_qp_init_rd_atomic,
        max_dest_rd_atomic: attributes.max_qp_rd_atomic,
    };
    Ok((attributes, attribute_limits))
}

/// Finds the longest inline message by trying: it creates and destroys a queue pair for each length
/// until one is granted. Returns 0 if none is, or if no queue can be created.
pub(super) fn probe_inline(handle: &Arc<Handle>) -> usize {
    let (Ok(domain), Ok(queue)) = (
        ProtectionDomain::alloc(handle),
        CompletionQueue::create(handle, 1, None),
    ) else {
        return 0;
    };
    let granted = INLINE_LENGTHS.into_iter().find_map(|length| {
        let mut wanted = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: length,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the queue are alive until the end of this function, and of this
        // context.
        let raw = unsafe { (handle.library.ibv_create_qp)(domain.raw(), &mut wanted) };
        if raw.is_null() {
            return None;
        }
        // SAFETY: the queue pair was created above, and nothing else uses it.
        let returned = unsafe { (handle.library.ibv_destroy_qp)(raw) };
        super::log_leak("destroy_qp", returned);
        Some(wanted.cap.max_inline_data as usize)
    });
    granted.unwrap_or(0)
}
