//! The RDMA devices that the kernel lists.

/// Directory in which the kernel lists its RDMA devices.
pub(super) const KERNEL_DEVICES: &str = "/sys/class/infiniband";

/// Returns the names of the kernel's RDMA devices, sorted, whether or not this build can drive
/// them.
pub fn kernel_device_names() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(KERNEL_DEVICES) else {
        // The kernel has no RDMA support.
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

pub(super) fn is_listed_by_kernel(name: &str) -> bool {
    kernel_device_names().iter().any(|listed| listed == name)
}
