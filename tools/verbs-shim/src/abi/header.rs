//! Compares the structs here, field by field, and the places of functions in their tables with what a C
//! compiler makes of the header of libibverbs that is installed.

use std::io::Write;
use std::mem::offset_of;
use std::process::Command;
use std::{env, fs};

use super::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_bind_of_wr, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_data_buf, ibv_device, ibv_device_attr, ibv_device_attr_ex,
    ibv_gid, ibv_gid_entry, ibv_global_route, ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info,
    ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_wc, verbs_context,
};

const MISSING: &str = "!!! THE LAYOUT IS NOT COMPARED WITH <infiniband/verbs.h>: no C compiler finds it \
    (Debian package `libibverbs-dev`, or `make setup`)";

/// Makes pairs of a C expression and its value here: the size of each struct, and the offset of each
/// field. A field whose name differs has that of C behind it.
macro_rules! layouts {
    ($($name:ident $(as $c_name:literal)? { $($field:ident $(= $c_field:literal)?),* })*) => {{
        let mut pairs = Vec::new();
        $(
            let of = c_name(stringify!($name), &[$($c_name)?]);
            pairs.push((format!("sizeof({of})"), size_of::<$name>()));
            $(
                let field = [$($c_field,)? stringify!($field)][0];
                pairs.push((format!("offsetof({of}, {field})"), offset_of!($name, $field)));
            )*
        )*
        pairs
    }};
}

fn c_name(here: &str, other: &[&str]) -> String {
    match other {
        [] => format!("struct {here}"),
        [name, ..] => (*name).to_owned(),
    }
}

fn structs() -> Vec<(String, usize)> {
    layouts! {
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        verbs_context { sz, context }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_mw { context, pd, rkey, handle, kind = "type" }
        ibv_ah { context, pd, handle }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed
        }
        ibv_cq_ex { comp_mask, status, wr_id, functions = "start_poll" }
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state,
            qp_type, mutex, cond, events_completed
        }
        ibv_qp_ex { base = "qp_base", comp_mask, wr_id, wr_flags, functions = "wr_atomic_cmp_swp" }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
            create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags
        }
        ibv_cq_init_attr_ex {
            cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain
        }
        ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
        ibv_device_attr_ex {
            orig_attr, comp_mask, between = "odp_caps", xrc_odp_caps = "xrc_odp_caps",
            phys_port_cnt_ex
        }
        ibv_data_buf { addr, length }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_gid as "union ibv_gid" {}
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit
        }
        ibv_sge { addr, length, lkey }
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, qp_type, bind_mw
        }
        ibv_bind_of_wr as "__typeof__(((struct ibv_send_wr *)0)->bind_mw)" { mw, rkey, bind_info }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits
        }
        ibv_mw_bind_info { mr, addr, length, access = "mw_access_flags" }
        ibv_mw_bind { wr_id, send_flags, info = "bind_info" }
        ibv_async_event { element, event_type }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
            vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
            max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
            max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw,
            max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
            max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
            max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt
        }
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
            port_cap_flags2
        }
    }
}

/// The places of functions, of the fields of requests and of what is not a struct of its own here.
fn places() -> Vec<(String, usize)> {
    let wr = offset_of!(ibv_send_wr, wr);
    let mut places: Vec<_> = [
        ("wr.rdma.remote_addr", wr),
        ("wr.rdma.rkey", wr + 8),
        ("wr.atomic.remote_addr", wr),
        ("wr.atomic.compare_add", wr + 8),
        ("wr.atomic.swap", wr + 16),
        ("wr.atomic.rkey", wr + 24),
        ("wr.ud.ah", wr),
        ("wr.ud.remote_qpn", wr + 8),
        ("wr.ud.remote_qkey", wr + 12),
        ("invalidate_rkey", offset_of!(ibv_send_wr, imm_data)),
    ]
    .map(|(field, at)| (format!("offsetof(struct ibv_send_wr, {field})"), at))
    .into();
    let mut table = |of: &str, start: usize, names: &[(usize, &str)]| {
        for (index, name) in names {
            places.push((format!("offsetof({of}, {name})"), start + index * 8));
        }
    };
    let ops = [
        (7, "alloc_mw"),
        (8, "bind_mw"),
        (9, "dealloc_mw"),
        (11, "poll_cq"),
        (12, "req_notify_cq"),
        (20, "post_srq_recv"),
        (25, "post_send"),
        (26, "post_recv"),
    ];
    table("struct ibv_context_ops", 0, &ops);
    let extension = [
        (0, "query_port"),
        (25, "create_cq_ex"),
        (27, "query_device_ex"),
        (33, "create_qp_ex"),
        (34, "get_srq_num"),
        (35, "create_srq_ex"),
    ];
    table("struct verbs_context", 0, &extension);
    let numbered =
        |names: &'static str| -> Vec<_> { names.split_whitespace().enumerate().collect() };
    let polls = "start_poll next_poll end_poll read_opcode read_vendor_err read_byte_len \
        read_imm_data read_qp_num read_src_qp read_wc_flags read_slid read_sl read_dlid_path_bits";
    let start = offset_of!(ibv_cq_ex, functions);
    table("struct ibv_cq_ex", start, &numbered(polls));
    let posts = "wr_atomic_cmp_swp wr_atomic_fetch_add wr_bind_mw wr_local_inv wr_rdma_read \
        wr_rdma_write wr_rdma_write_imm wr_send wr_send_imm wr_send_inv wr_send_tso \
        wr_set_ud_addr wr_set_xrc_srqn wr_set_inline_data wr_set_inline_data_list wr_set_sge \
        wr_set_sge_list wr_start wr_complete wr_abort";
    let start = offset_of!(ibv_qp_ex, functions);
    table("struct ibv_qp_ex", start, &numbered(posts));
    places
}

/// Compiles and runs a program. Returns what it printed; `None` if there is no compiler, or no header.
fn output(source: &str) -> Option<String> {
    let folder = env::temp_dir().join(format!("verbs-shim-layout-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder");
    let (source_path, program) = (folder.join("layout.c"), folder.join("layout"));
    let include = "#include <infiniband/verbs.h>\n";
    let compiles = |text: &str| {
        fs::write(&source_path, text).expect("the temporary folder is writable");
        let mut compiler = Command::new("cc");
        compiler.arg("-o").arg(&program).arg(&source_path).output()
    };
    let header = compiles(&format!("{include}int main(void) {{ return 0; }}\n"));
    let found = header.is_ok_and(|run| run.status.success()).then(|| {
        let run = compiles(&format!("{include}{source}")).expect("it has just compiled");
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{errors}");
        let run = Command::new(&program).output().expect("it was compiled");
        String::from_utf8(run.stdout).expect("numbers")
    });
    let _ = fs::remove_dir_all(&folder);
    found
}

#[test]
fn the_layout_is_that_of_the_installed_header() {
    let ours: Vec<_> = structs().into_iter().chain(places()).collect();
    let mut source = String::from("#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n");
    for (expression, _) in &ours {
        source += &format!("    printf(\"%zu\\n\", (size_t)({expression}));\n");
    }
    source += "    return 0;\n}\n";
    let Some(theirs) = output(&source) else {
        assert!(env::var_os("CI").is_none(), "{MISSING}");
        // Not by `eprintln`, which the test harness captures.
        let _ = writeln!(std::io::stderr(), "{MISSING}");
        return;
    };
    let theirs: Vec<usize> = theirs
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert_eq!(theirs.len(), ours.len());
    let differences: Vec<_> = ours
        .iter()
        .zip(theirs)
        .filter(|((_, here), there)| here != there)
        .map(|((expression, here), there)| format!("{expression}: {here} here, {there} there"))
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
