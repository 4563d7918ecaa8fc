//! Attributes of the software device and of its port, except the limits of its objects.

use std::time::Duration;

use crate::provider::soft::capacities::{DEVICE_NAME, MAX_RD_ATOMIC, TCP_DEVICE_NAME};
use crate::provider::soft::context::window_table::MAX_WINDOWS;
use crate::provider::soft::process::multicast::{MAX_GROUPS, MAX_MEMBERS};
use crate::types::{
    AtomicCapability, DeviceAttributes, DeviceCapabilities, DeviceCapability, DeviceInfo,
    FirmwareVersion, Gid, Guid, LinkLayer, Mtu, NodeType, PageSizes, PhysicalState, PortAttributes,
    PortCapabilities, PortFlag, PortFlags, PortMtu, PortState, TransportType, VirtualLanes,
};

/// Describes the device before it is opened, once for each path. Each process has its own device,
/// which has no GUID until it is opened.
pub(crate) fn device_infos() -> [DeviceInfo; 2] {
    let info = |name: &str, transport| DeviceInfo {
        name: name.to_owned(),
        guid: Guid::default(),
        node_type: NodeType::ChannelAdapter,
        transport,
    };
    [
        info(DEVICE_NAME, TransportType::Memory),
        info(TCP_DEVICE_NAME, TransportType::Tcp),
    ]
}

/// The firmware version: the version of this crate.
const VERSION: FirmwareVersion = {
    let text = env!("CARGO_PKG_VERSION").as_bytes();
    let mut bytes = [0; 64];
    let mut index = 0;
    while index < text.len() && index < bytes.len() {
        bytes[index] = text[index];
        index += 1;
    }
    FirmwareVersion::from_bytes(bytes)
};

const CAPABILITIES: DeviceCapabilities = DeviceCapabilities::from_bits(
    1 << DeviceCapability::UdAddressPortEnforced as u32
        | 1 << DeviceCapability::CurrentStateModifier as u32
        | 1 << DeviceCapability::SystemImageGuid as u32
        | 1 << DeviceCapability::RcRnrNak as u32
        | 1 << DeviceCapability::SrqResize as u32
        | 1 << DeviceCapability::MemoryWindow as u32
        | 1 << DeviceCapability::MemoryManagementExtensions as u32
        | 1 << DeviceCapability::MemoryWindowType2B as u32,
);

/// All attributes except the limits of the device's objects. Vendor, part and hardware are 0
/// because the device has no manufacturer.
pub(crate) const ATTRIBUTES: DeviceAttributes = DeviceAttributes {
    fw_ver: VERSION,
    node_guid: Guid(0),
    sys_image_guid: Guid(0),
    vendor_id: 0,
    vendor_part_id: 0,
    hw_ver: 0,
    capabilities: CAPABILITIES,
    // Atomics are the processor's own.
    atomic_cap: AtomicCapability::Global,
    // All page sizes from 4 KiB up: any memory of a process can be registered.
    page_sizes: PageSizes(u64::MAX << 12),
    local_ca_ack_delay: Duration::ZERO,
    port_count: 1,
    max_qp: 0,
    max_qp_wr: 0,
    max_sge: 0,
    max_sge_rd: 0,
    max_cq: 0,
    max_cqe: 0,
    // The device has no interrupts: what counts for it are the threads that wait.
    num_comp_vectors: 1,
    max_srq: 0,
    max_srq_wr: 0,
    max_srq_sge: 0,
    max_mr: 0,
    max_mr_len: 0,
    max_locked_len: usize::MAX,
    max_mw: MAX_WINDOWS,
    max_pd: u32::MAX as usize,
    max_inline_data: 0,
    max_qp_rd_atomic: MAX_RD_ATOMIC,
    max_qp_init_rd_atomic: MAX_RD_ATOMIC,
    max_res_rd_atomic: 0,
    max_pkeys: 1,
    // Address handles are plain values, so their number is not limited.
    max_ah: u32::MAX as usize,
    max_mcast_grp: MAX_GROUPS,
    max_mcast_qp_attach: MAX_MEMBERS,
    max_total_mcast_qp_attach: MAX_GROUPS * MAX_MEMBERS,
    max_raw_ipv6_qp: 0,
    max_raw_ethy_qp: 0,
    max_ee: 0,
    max_ee_rd_atomic: 0,
    max_ee_init_rd_atomic: 0,
    max_rdd: 0,
    max_fmr: 0,
    max_map_per_fmr: 0,
};

/// Returns the GUID of a process: the lower half of its GID, as on InfiniBand.
pub(crate) fn guid(gid: Gid) -> Guid {
    let [.., a, b, c, d, e, f, g, h] = gid.0;
    Guid(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
}

/// Returns the attributes of the device's port. The port is always up and has no subnet, lanes or
/// speed.
pub(crate) fn port() -> PortAttributes {
    PortAttributes {
        state: PortState::Active,
        physical_state: PhysicalState::LinkUp,
        link_layer: LinkLayer::Memory,
        max_mtu: PortMtu::Known(Mtu::Bytes4096),
        active_mtu: PortMtu::Known(Mtu::Bytes4096),
        max_msg_len: 0,
        rate: None,
        lid: 0,
        lmc: 0,
        sm_lid: 0,
        sm_sl: 0,
        subnet_timeout: None,
        init_type_reply: 0,
        virtual_lanes: VirtualLanes(1),
        capabilities: PortCapabilities::default(),
        flags: PortFlags::from_bits(1 << PortFlag::GrhRequired as u8),
        gid_count: 1,
        pkey_count: 1,
        bad_pkey_count: 0,
        qkey_violation_count: 0,
    }
}
