//! Lists the devices that libibverbs can drive, and explains why one is missing or cannot be
//! opened.

use std::ffi::CStr;
use std::io;
use std::os::raw::c_int;

use rdma_sys::ibv_device;

use super::library::{Library, library};
use super::limit;
use crate::provider::soft::capacities::{DEVICE_NAME, TCP_DEVICE_NAME};
use crate::types::{DeviceInfo, Guid, NodeType, OpenError, TransportType};

/// The directory with the kernel's device files.
const DEVICE_FILES: &str = "/dev/infiniband";

/// Returns the devices that libibverbs can drive, in its order. Empty if there are none, or no
/// library.
pub(crate) fn devices() -> Vec<DeviceInfo> {
    let Ok(library) = library() else {
        return Vec::new();
    };
    let Ok(list) = DeviceList::get(library) else {
        return Vec::new();
    };
    let devices = list.devices().iter();
    devices.map(|&device| list.info(device)).collect()
}

/// Returns the names of the devices that libibverbs can drive, in its order. Empty if there are
/// none.
pub(crate) fn device_names() -> Result<Vec<String>, OpenError> {
    let library = library()?;
    let list = DeviceList::get(library)?;
    Ok(list.devices().iter().map(|&raw| list.name(raw)).collect())
}

/// The list of `ibv_get_device_list(3)`, freed on drop.
pub(super) struct DeviceList {
    library: &'static Library,
    raw: *mut *mut ibv_device,
    count: usize,
}

impl DeviceList {
    pub(super) fn get(library: &'static Library) -> Result<Self, OpenError> {
        let mut count: c_int = 0;
        // SAFETY: the count is written to a local variable. If the list is null, the count is not
        // used.
        let raw = unsafe { (library.ibv_get_device_list)(&mut count) };
        if raw.is_null() {
            let source = io::Error::last_os_error();
            // A kernel without verbs has no devices; any other error hides existing ones
            // (ibv_get_device_list(3)).
            if source.raw_os_error() != Some(rustix::io::Errno::NOSYS.raw_os_error()) {
                return Err(OpenError::Os {
                    name: "libibverbs".to_owned(),
                    action: "list its devices",
                    source,
                });
            }
            count = 0;
        }
        Ok(Self {
            library,
            raw,
            count: limit(count),
        })
    }

    pub(super) fn devices(&self) -> &[*mut ibv_device] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: the library allocated an array of `count` entries, which stays allocated until
        // `drop` frees it.
        unsafe { std::slice::from_raw_parts(self.raw, self.count) }
    }

    pub(super) fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: `device` is an entry of the list; its name is a C string inside the entry, alive
        // until `drop`.
        unsafe { CStr::from_ptr((self.library.ibv_get_device_name)(device)) }
            .to_string_lossy()
            .into_owned()
    }
}

impl DeviceList {
    pub(super) fn info(&self, device: *mut ibv_device) -> DeviceInfo {
        // SAFETY: `device` is an entry of the list, which stays allocated until `drop` frees it.
        let guid = unsafe { (self.library.ibv_get_device_guid)(device) };
        // Read as plain numbers: the library may be newer than rdma-sys's enums.
        // SAFETY: `device` is an entry of the list, and the fields have 32 bits each.
        let (node_type, transport) = unsafe {
            (
                (&raw const (*device).node_type).cast::<i32>().read(),
                (&raw const (*device).transport_type).cast::<i32>().read(),
            )
        };
        DeviceInfo {
            name: self.name(device),
            guid: Guid(u64::from_be(guid)),
            node_type: NodeType::from_code(node_type),
            transport: TransportType::from_code(transport),
        }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the list was allocated by the library and is freed once. Devices that were
            // opened stay open (ibv_get_device_list(3)).
            unsafe { (self.library.ibv_free_device_list)(self.raw) };
        }
    }
}

/// Returns true for the kernel's software device (Soft-RoCE), the only RDMA driver whose devices
/// have a parent network device.
pub(super) fn is_soft_roce(name: &str) -> bool {
    let directory = std::path::Path::new(super::super::kernel_devices::KERNEL_DEVICES);
    directory.join(name).join("parent").exists()
}

pub(super) fn not_found(name: &str, known: &[String]) -> OpenError {
    let name = name.to_owned();
    if !super::super::kernel_devices::is_listed_by_kernel(&name) {
        let mut all = vec![DEVICE_NAME, TCP_DEVICE_NAME];
        all.extend(known.iter().map(String::as_str));
        let known = all.join(", ");
        return OpenError::UnknownDevice { name, known };
    }
    let known = if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    };
    // The library also leaves out devices whose file is missing, not only those that it cannot
    // drive.
    let has_files = std::fs::read_dir(DEVICE_FILES).is_ok_and(|files| {
        files
            .flatten()
            .any(|file| file.file_name().to_string_lossy().starts_with("uverbs"))
    });
    if has_files {
        OpenError::NoUserDriver { name, known }
    } else {
        OpenError::NoDeviceFile { name }
    }
}

pub(super) fn not_opened(name: &str, source: io::Error) -> OpenError {
    let name = name.to_owned();
    match source.kind() {
        io::ErrorKind::PermissionDenied => OpenError::Permission { name, source },
        io::ErrorKind::NotFound => OpenError::NoDeviceFile { name },
        _ => OpenError::Os {
            name,
            action: "be opened",
            source,
        },
    }
}
