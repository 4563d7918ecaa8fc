//! The list of devices, opening one, and what it and its port say about themselves.

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::{Mutex, OnceLock};

use verbline_verbs::for_shim::Context;
use verbline_verbs::{Mtu, PortMtu};

use crate::abi::{
    Function, NONE, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry,
    ibv_port_attr, ibv_qp, ibv_srq, verbs_context,
};
use crate::boundary::{Errno, Users, absent, count, number, object};
use crate::events::AsyncEvents;
use crate::{extended, memory, poll, post};

/// The names of the devices here, and in `verbline-verbs`.
const NAMES: [(&str, &str); 2] = [("soft0", "soft"), ("tcp0", "tcp")];
/// `IBV_NODE_CA`.
const CHANNEL_ADAPTER: c_int = 1;
/// A number of no vendor: the bit for locally administered ones is set.
const VENDOR: u32 = 0x02_56_42;
/// `IBV_LINK_LAYER_ETHERNET`: programs then address by GID.
const ETHERNET: u8 = 2;
/// `IBV_PORT_IP_BASED_GIDS`.
const IP_BASED_GIDS: u32 = 1 << 26;
/// `IBV_QPF_GRH_REQUIRED`.
const ROUTE_REQUIRED: u8 = 1;
/// `IBV_GID_TYPE_ROCE_V2`, and the same for `ibv_query_gid_type`.
const ROCE_V2: (u32, c_int) = (2, 1);

/// An opened device. The program has a pointer to `context` in its head.
#[repr(C)]
pub(crate) struct Opened {
    head: verbs_context,
    pub(crate) device: Context,
    /// Peers map the memory of its regions.
    pub(crate) shares_memory: bool,
    /// The program's objects, by the numbers that completions and events carry.
    pub(crate) queue_pairs: Mutex<HashMap<u32, *mut ibv_qp>>,
    pub(crate) completion_queues: Mutex<HashMap<u32, *mut ibv_cq>>,
    pub(crate) shared_receive_queues: Mutex<HashMap<u32, *mut ibv_srq>>,
    pub(crate) async_events: AsyncEvents,
    /// Domains, channels and completion queues.
    pub(crate) users: Users,
}

/// Returns the opened device of a pointer that a program has.
///
/// # Safety
///
/// `ibv_open_device` returned it, and it is not closed while the reference is used.
pub(crate) unsafe fn opened<'a>(context: *mut ibv_context) -> &'a Opened {
    let offset = std::mem::offset_of!(verbs_context, context);
    // SAFETY: the context is at this place of the head of an `Opened`.
    unsafe { &*context.byte_sub(offset).cast::<Opened>() }
}

struct Devices([*mut ibv_device; 2]);
// SAFETY: the devices are written before they are published, and never again.
unsafe impl Send for Devices {}
// SAFETY: as above.
unsafe impl Sync for Devices {}

fn devices() -> &'static Devices {
    static DEVICES: OnceLock<Devices> = OnceLock::new();
    DEVICES.get_or_init(|| {
        Devices(NAMES.map(|(name, _)| {
            let mut text = [0; 64];
            write_text(&mut text, name);
            Box::into_raw(Box::new(ibv_device {
                ops: [NONE; 2],
                node_type: CHANNEL_ADAPTER,
                transport_type: 0, // IBV_TRANSPORT_IB
                name: text,
                dev_name: text,
                dev_path: [0; 256],
                ibdev_path: [0; 256],
            }))
        }))
    })
}

fn write_text(to: &mut [c_char], text: &str) {
    // The last byte stays zero.
    let room = to.len() - 1;
    for (to, byte) in to[..room].iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
}

/// `ibv_get_device_list(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(found: *mut c_int) -> *mut *mut ibv_device {
    let [soft, tcp] = devices().0;
    if !found.is_null() {
        // SAFETY: a pointer that is not null is to an int of the program.
        unsafe { *found = 2 };
    }
    Box::into_raw(Box::new([soft, tcp, ptr::null_mut()])).cast()
}

/// `ibv_free_device_list(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: `ibv_get_device_list` made the list, of this type.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 3]>()) });
    }
}

/// `ibv_get_device_name(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: devices are never freed.
    unsafe { &raw const (*device).name }.cast()
}

/// `ibv_get_device_guid(3)`. Each process has its own device.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(_: *mut ibv_device) -> u64 {
    (u64::from(VENDOR) << 40 | u64::from(std::process::id())).to_be()
}

/// `ibv_get_device_index(3)`: the kernel has none.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(_: *mut ibv_device) -> c_int {
    -1
}

/// `ibv_fork_init(3)`: nothing to do.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized(3)`: `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

extern "C" fn unsupported() -> c_int {
    libc::EOPNOTSUPP
}

/// `ibv_open_device(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let made: *mut verbs_context = object(|| {
        let index = devices().0.iter().position(|known| *known == device);
        let (_, name) = NAMES[index.ok_or(Errno(libc::ENODEV))?];
        let opened = Context::open(name)?;
        let async_events = AsyncEvents::new(&opened)?;
        let mut ops: [Function; 32] = [unsupported as Function; 32];
        for (index, function) in memory::OPS.into_iter().chain(poll::OPS).chain(post::OPS) {
            ops[index] = function;
        }
        Ok(Box::new(Opened {
            head: verbs_context {
                functions: extended::functions(),
                sz: size_of::<verbs_context>(),
                context: ibv_context {
                    device,
                    ops,
                    cmd_fd: -1,
                    async_fd: async_events.fd(),
                    num_comp_vectors: 1,
                    mutex: [0; 5],
                    // Says that `functions` and `sz` are there.
                    abi_compat: ptr::without_provenance_mut(usize::MAX),
                },
            },
            shares_memory: name == "soft",
            device: opened,
            queue_pairs: Mutex::default(),
            completion_queues: Mutex::default(),
            shared_receive_queues: Mutex::default(),
            async_events,
            users: Users::default(),
        }))
    });
    match made.is_null() {
        true => ptr::null_mut(),
        // SAFETY: it was just made.
        false => unsafe { &raw mut (*made).context },
    }
}

/// `ibv_close_device(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    number(|| {
        // SAFETY: the program's context.
        let opened = unsafe { opened(context) };
        opened.async_events.stop(&opened.device);
        // Closing releases nothing that the program has not destroyed, and does not fail: this stays.
        if opened.users.check_none().is_ok() {
            // SAFETY: `ibv_open_device` made it from a box, and nothing needs it any more.
            drop(unsafe { Box::from_raw(ptr::from_ref(opened).cast_mut()) });
        }
        Ok(())
    })
}

/// Returns what `ibv_query_device(3)` fills in.
pub(crate) fn attributes(opened: &Opened) -> ibv_device_attr {
    let known = opened.device.query_device();
    let int = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
    let mut fw_ver = [0; 64];
    write_text(&mut fw_ver, known.fw_ver.as_str());
    ibv_device_attr {
        fw_ver,
        node_guid: known.node_guid.0.to_be(),
        sys_image_guid: known.sys_image_guid.0.to_be(),
        max_mr_size: known.max_mr_len as u64,
        page_size_cap: known.page_sizes.0,
        vendor_id: VENDOR,
        vendor_part_id: known.vendor_part_id,
        hw_ver: known.hw_ver,
        max_qp: int(known.max_qp),
        max_qp_wr: int(known.max_qp_wr),
        device_cap_flags: known.capabilities.bits(),
        max_sge: int(known.max_sge),
        max_sge_rd: int(known.max_sge_rd),
        max_cq: int(known.max_cq),
        max_cqe: int(known.max_cqe),
        max_mr: int(known.max_mr),
        max_pd: int(known.max_pd),
        max_qp_rd_atom: known.max_qp_rd_atomic.into(),
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(known.max_res_rd_atomic),
        max_qp_init_rd_atom: known.max_qp_init_rd_atomic.into(),
        max_ee_init_rd_atom: 0,
        atomic_cap: 2, // IBV_ATOMIC_GLOB: atomics are the processor's own
        max_ee: 0,
        max_rdd: 0,
        max_mw: int(known.max_mw),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: int(known.max_mcast_grp),
        max_mcast_qp_attach: int(known.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(known.max_total_mcast_qp_attach),
        max_ah: int(known.max_ah),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(known.max_srq),
        max_srq_wr: int(known.max_srq_wr),
        max_srq_sge: int(known.max_srq_sge),
        max_pkeys: known.max_pkeys,
        local_ca_ack_delay: 0,
        phys_port_cnt: known.port_count,
    }
}

/// `ibv_query_device(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    out: *mut ibv_device_attr,
) -> c_int {
    number(|| {
        // SAFETY: the program's context, and its place for the answer.
        unsafe { *out = attributes(opened(context)) };
        Ok(())
    })
}

fn port(opened: &Opened, port: u8) -> Result<ibv_port_attr, Errno> {
    let known = opened.device.query_port(port)?;
    let mtu = |mtu| match mtu {
        PortMtu::Known(mtu) => mtu as u32,
        PortMtu::Unknown(_) => Mtu::Bytes4096 as u32,
    };
    Ok(ibv_port_attr {
        state: 4, // IBV_PORT_ACTIVE
        max_mtu: mtu(known.max_mtu),
        active_mtu: mtu(known.active_mtu),
        gid_tbl_len: c_int::try_from(known.gid_count).unwrap_or(c_int::MAX),
        port_cap_flags: IP_BASED_GIDS,
        max_msg_sz: u32::try_from(known.max_msg_len).unwrap_or(u32::MAX),
        pkey_tbl_len: known.pkey_count,
        max_vl_num: 1,
        active_width: 2,  // four lanes, and
        active_speed: 32, // 25 Gb/s each: programs refuse a port without a rate
        phys_state: 5,    // the link is up
        link_layer: ETHERNET,
        flags: ROUTE_REQUIRED,
        ..ibv_port_attr::default()
    })
}

/// `ibv_query_port(3)`, as programs call it that do not look for [`query_port`].
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    of: u8,
    out: *mut ibv_port_attr,
) -> c_int {
    let oldest = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: what the caller has promised. The oldest struct of a program ends there.
    unsafe { query_port(context, of, out, oldest) }
}

/// `ibv_query_port(3)`, into a struct of `len` bytes.
///
/// # Safety
///
/// As the man page asks.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    of: u8,
    out: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    number(|| {
        // SAFETY: the program's context.
        let known = port(unsafe { opened(context) }, of)?;
        let len = len.min(size_of::<ibv_port_attr>());
        // SAFETY: the program's struct has at least `len` bytes.
        unsafe { ptr::copy_nonoverlapping((&raw const known).cast::<u8>(), out.cast(), len) };
        Ok(())
    })
}

/// `ibv_query_gid(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut ibv_gid,
) -> c_int {
    count(|| {
        let index = u8::try_from(index).map_err(|_| Errno::INVALID)?;
        // SAFETY: the program's context, and its place for the answer.
        unsafe { (*out).0 = opened(context).device.query_gid(port, index)?.0 };
        Ok(0)
    })
}

/// A function of libibverbs that tools of its own package use.
///
/// # Safety
///
/// The pointers are to a context and to an int.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    _: *mut ibv_context,
    _: u8,
    _: u32,
    kind: *mut c_int,
) -> c_int {
    // SAFETY: the program's place for the answer.
    unsafe { *kind = ROCE_V2.1 };
    0
}

/// `ibv_query_gid_ex(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    _: usize,
) -> c_int {
    number(|| {
        let port_number = u8::try_from(port).map_err(|_| Errno::INVALID)?;
        let gid_index = u8::try_from(index).map_err(|_| Errno::INVALID)?;
        if flags != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        // SAFETY: the program's context.
        let gid = unsafe { opened(context) }
            .device
            .query_gid(port_number, gid_index)?;
        let found = ibv_gid_entry {
            gid: ibv_gid(gid.0),
            gid_index: index,
            port_num: port,
            gid_type: ROCE_V2.0,
            ndev_ifindex: 0,
        };
        // SAFETY: the program's place for the answer.
        unsafe { *entry = found };
        Ok(())
    })
}

/// `ibv_query_gid_table(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    entry_len: usize,
) -> isize {
    let mut found = 0;
    let failed = number(|| {
        if flags != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        // SAFETY: the program's context.
        let table = unsafe { opened(context) }.device.query_gid_table(1)?;
        if table.len() > most {
            return Err(Errno::INVALID);
        }
        for entry in table {
            // SAFETY: the program's table has `most` entries.
            let place = unsafe { out.add(found as usize) };
            let index = entry.index.into();
            // SAFETY: the same context, and an entry of the table.
            match unsafe { _ibv_query_gid_ex(context, 1, index, place, 0, entry_len) } {
                0 => found += 1,
                errno => return Err(Errno(errno)),
            }
        }
        Ok(())
    });
    if failed == 0 {
        found
    } else {
        -(failed as isize)
    }
}

/// `ibv_query_pkey(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    count(|| {
        let index = u16::try_from(index).map_err(|_| Errno::INVALID)?;
        // SAFETY: the program's context, and its place for the answer.
        unsafe { *out = opened(context).device.query_pkey(port, index)?.0.to_be() };
        Ok(0)
    })
}

/// `ibv_import_device(3)`: devices of one process are not another's.
#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(_: c_int) -> *mut ibv_context {
    absent()
}
