//! Converts the header's device and port structs to types with units.

use std::os::raw::c_int;

use rdma_sys::{ibv_device_attr, ibv_port_attr};

use super::limit;
use super::locked_memory::lockable_len;
use crate::types::{
    AtomicCapability, DeviceAttributes, DeviceCapabilities, FirmwareVersion, Guid, LinkLayer,
    PageSizes, PhysicalState, PortAttributes, PortCapabilities, PortFlags, PortMtu, PortState,
    Rate, VirtualLanes, time_of_code,
};

/// Converts all device attributes except the inline length, which devices do not report: it is 0.
pub(super) fn device_attributes(
    raw: &ibv_device_attr,
    num_comp_vectors: c_int,
) -> DeviceAttributes {
    let small = |value| u8::try_from(limit(value)).unwrap_or(u8::MAX);
    DeviceAttributes {
        // The header's `char` is signed on some processors.
        fw_ver: FirmwareVersion::from_bytes(raw.fw_ver.map(|character| character as u8)),
        node_guid: Guid(u64::from_be(raw.node_guid)),
        sys_image_guid: Guid(u64::from_be(raw.sys_image_guid)),
        vendor_id: raw.vendor_id,
        vendor_part_id: raw.vendor_part_id,
        hw_ver: raw.hw_ver,
        capabilities: DeviceCapabilities::from_bits(raw.device_cap_flags),
        atomic_cap: AtomicCapability::from_code(raw.atomic_cap),
        page_sizes: PageSizes(raw.page_size_cap),
        local_ca_ack_delay: time_of_code(raw.local_ca_ack_delay),
        port_count: raw.phys_port_cnt,
        max_qp: limit(raw.max_qp),
        max_qp_wr: limit(raw.max_qp_wr),
        max_sge: limit(raw.max_sge),
        max_sge_rd: limit(raw.max_sge_rd),
        max_cq: limit(raw.max_cq),
        max_cqe: limit(raw.max_cqe),
        num_comp_vectors: limit(num_comp_vectors),
        max_srq: limit(raw.max_srq),
        max_srq_wr: limit(raw.max_srq_wr),
        max_srq_sge: limit(raw.max_srq_sge),
        max_mr: limit(raw.max_mr),
        max_mr_len: usize::try_from(raw.max_mr_size).unwrap_or(usize::MAX),
        max_locked_len: lockable_len(),
        max_mw: limit(raw.max_mw),
        max_pd: limit(raw.max_pd),
        max_inline_data: 0,
        max_qp_rd_atomic: small(raw.max_qp_rd_atom),
        max_qp_init_rd_atomic: small(raw.max_qp_init_rd_atom),
        max_res_rd_atomic: limit(raw.max_res_rd_atom),
        max_pkeys: raw.max_pkeys,
        max_ah: limit(raw.max_ah),
        max_mcast_grp: limit(raw.max_mcast_grp),
        max_mcast_qp_attach: limit(raw.max_mcast_qp_attach),
        max_total_mcast_qp_attach: limit(raw.max_total_mcast_qp_attach),
        max_raw_ipv6_qp: limit(raw.max_raw_ipv6_qp),
        max_raw_ethy_qp: limit(raw.max_raw_ethy_qp),
        max_ee: limit(raw.max_ee),
        max_ee_rd_atomic: limit(raw.max_ee_rd_atom),
        max_ee_init_rd_atomic: limit(raw.max_ee_init_rd_atom),
        max_rdd: limit(raw.max_rdd),
        max_fmr: limit(raw.max_fmr),
        max_map_per_fmr: limit(raw.max_map_per_fmr),
    }
}

pub(super) fn port_attributes(raw: &ibv_port_attr) -> PortAttributes {
    PortAttributes {
        state: PortState::from_code(raw.state),
        physical_state: PhysicalState::from_code(raw.phys_state),
        link_layer: LinkLayer::from_code(raw.link_layer),
        max_mtu: PortMtu::from_code(raw.max_mtu),
        active_mtu: PortMtu::from_code(raw.active_mtu),
        max_msg_len: raw.max_msg_sz as usize,
        rate: Rate::from_codes(raw.active_width, raw.active_speed.into()),
        lid: raw.lid,
        lmc: raw.lmc,
        sm_lid: raw.sm_lid,
        sm_sl: raw.sm_sl,
        subnet_timeout: match raw.subnet_timeout {
            0 => None,
            code => Some(time_of_code(code)),
        },
        init_type_reply: raw.init_type_reply,
        virtual_lanes: VirtualLanes(raw.max_vl_num),
        capabilities: PortCapabilities::from_bits(raw.port_cap_flags),
        flags: PortFlags::from_bits(raw.flags),
        gid_count: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
        pkey_count: raw.pkey_tbl_len,
        bad_pkey_count: raw.bad_pkey_cntr,
        qkey_violation_count: raw.qkey_viol_cntr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LinkSpeed, LinkWidth};

    #[test]
    fn a_port_that_says_only_what_nobody_knows_is_numbers_and_no_panic() {
        // SAFETY: a plain struct of numbers, for which any bytes are a valid value.
        let raw: ibv_port_attr =
            unsafe { std::mem::transmute([0xff_u8; size_of::<ibv_port_attr>()]) };
        let port = port_attributes(&raw);
        assert_eq!(port.state, PortState::Unknown(u32::MAX));
        assert_eq!(port.physical_state, PhysicalState::Unknown(255));
        assert_eq!(port.link_layer, LinkLayer::Other(255));
        assert_eq!(port.active_mtu, PortMtu::Unknown(u32::MAX));
        let rate = port.rate.unwrap();
        assert_eq!(rate.width, LinkWidth::Unknown(255));
        assert_eq!(rate.speed, LinkSpeed::Unknown(255));
        assert_eq!((port.gid_count, port.pkey_count), (0, u16::MAX));
        assert_eq!(port.capabilities.bits(), u32::MAX);
        assert!(!port.to_string().is_empty());
    }

    #[test]
    fn a_device_that_says_nonsense_has_no_negative_limits() {
        // SAFETY: a plain struct of numbers, for which any bytes are a valid value.
        let raw: ibv_device_attr =
            unsafe { std::mem::transmute([0xff_u8; size_of::<ibv_device_attr>()]) };
        let device = device_attributes(&raw, -1);
        assert_eq!((device.max_qp, device.max_sge), (0, 0), "-1");
        assert_eq!(device.num_comp_vectors, 0);
        assert_eq!(device.atomic_cap, AtomicCapability::Unknown(u32::MAX));
        assert_eq!(device.fw_ver.as_str(), "");
        assert!(!device.to_string().is_empty());
    }
}
