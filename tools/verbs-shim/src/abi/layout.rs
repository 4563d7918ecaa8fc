//! Sizes and places that a C program printed with the header, on x86-64. A test compares all of them with
//! the header that is installed.

use std::mem::offset_of;

use super::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_data_buf, ibv_device, ibv_device_attr, ibv_device_attr_ex,
    ibv_gid_entry, ibv_mr, ibv_mw, ibv_mw_bind, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr,
    ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr, ibv_srq,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_wc, verbs_context,
};

const _: () = {
    assert!(size_of::<ibv_device>() == 664 && offset_of!(ibv_device, ibdev_path) == 408);
    assert!(size_of::<ibv_context>() == 328 && offset_of!(ibv_context, abi_compat) == 320);
    assert!(offset_of!(ibv_context, ops) == 8 && offset_of!(ibv_context, async_fd) == 268);
    assert!(size_of::<verbs_context>() == 648 && offset_of!(verbs_context, sz) == 312);
    assert!(offset_of!(verbs_context, context) == 320);
    assert!(size_of::<ibv_pd>() == 16 && size_of::<ibv_mr>() == 48 && size_of::<ibv_ah>() == 24);
    assert!(size_of::<ibv_mw>() == 32 && offset_of!(ibv_mw, kind) == 24);
    assert!(size_of::<ibv_comp_channel>() == 16 && size_of::<ibv_srq>() == 128);
    assert!(size_of::<ibv_cq>() == 128 && offset_of!(ibv_cq, comp_events_completed) == 120);
    assert!(size_of::<ibv_cq_ex>() == 288 && offset_of!(ibv_cq_ex, functions) == 144);
    assert!(size_of::<ibv_qp>() == 160 && offset_of!(ibv_qp, state) == 56);
    assert!(size_of::<ibv_qp_ex>() == 352 && offset_of!(ibv_qp_ex, functions) == 184);
    assert!(size_of::<ibv_qp_init_attr>() == 64 && size_of::<ibv_srq_init_attr>() == 24);
    assert!(size_of::<ibv_ah_attr>() == 32 && size_of::<ibv_gid_entry>() == 32);
    assert!(size_of::<ibv_qp_attr>() == 144 && offset_of!(ibv_qp_attr, ah_attr) == 56);
    assert!(size_of::<ibv_send_wr>() == 128 && offset_of!(ibv_send_wr, wr) == 40);
    assert!(offset_of!(ibv_send_wr, bind_mw) == 80 && size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_wc>() == 48 && size_of::<ibv_device_attr>() == 232);
    assert!(size_of::<ibv_port_attr>() == 52 && offset_of!(ibv_port_attr, link_layer) == 46);
    assert!(size_of::<ibv_qp_init_attr_ex>() == 136 && size_of::<ibv_cq_init_attr_ex>() == 56);
    assert!(offset_of!(ibv_qp_init_attr_ex, comp_mask) == 60);
    assert!(offset_of!(ibv_qp_init_attr_ex, send_ops_flags) == 128);
    assert!(offset_of!(ibv_cq_init_attr_ex, wc_flags) == 32 && size_of::<ibv_data_buf>() == 16);
    assert!(size_of::<ibv_srq_init_attr_ex>() == 64 && offset_of!(ibv_srq_init_attr_ex, pd) == 32);
    assert!(size_of::<ibv_device_attr_ex>() == 400);
    assert!(offset_of!(ibv_device_attr_ex, phys_port_cnt_ex) == 396);
    assert!(size_of::<ibv_mw_bind>() == 48 && size_of::<ibv_async_event>() == 16);
};
