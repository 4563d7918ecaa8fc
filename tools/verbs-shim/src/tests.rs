//! A program as a C compiler would make it, in the same process: with wrong numbers, and at the ends of
//! regions.

mod memory;

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{transmute, zeroed};
use std::ptr;

use crate::abi::{
    Remote, ibv_ah_attr, ibv_bind_of_wr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_gid, ibv_global_route, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
    ibv_send_wr, ibv_sge, ibv_wc,
};
use crate::boundary::{Errno, count, number};
use crate::post::{flag, opcode};

unsafe extern "C" {
    fn ibv_get_device_list(found: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, out: *mut ibv_gid)
    -> c_int;
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, len: usize, rights: c_int) -> *mut ibv_mr;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
}

/// `IBV_ACCESS_LOCAL_WRITE`, `_REMOTE_WRITE` and `_REMOTE_READ`.
const RIGHTS: c_int = 1 | 2 | 4;
const PAGE: usize = 4096;

fn errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// An opened device, with two queue pairs that are connected to each other.
struct Program {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    peer: *mut ibv_qp,
}

impl Program {
    fn new(device: usize) -> Self {
        // SAFETY: as the man pages ask: no object is destroyed before `Drop`, and in order.
        unsafe {
            let devices = ibv_get_device_list(ptr::null_mut());
            let context = ibv_open_device(*devices.add(device));
            assert!(!context.is_null(), "{}", io::Error::last_os_error());
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0);
            let [qp, peer] = [(); 2].map(|()| {
                let mut init = init_of(cq);
                ibv_create_qp(pd, &raw mut init)
            });
            assert!(
                !qp.is_null() && !peer.is_null(),
                "{}",
                io::Error::last_os_error()
            );
            let program = Self {
                context,
                pd,
                cq,
                qp,
                peer,
            };
            program.connect(qp, peer);
            program.connect(peer, qp);
            program
        }
    }

    fn connect(&self, qp: *mut ibv_qp, to: *mut ibv_qp) {
        // SAFETY: the program's objects.
        unsafe {
            let mut gid = ibv_gid::default();
            assert_eq!(ibv_query_gid(self.context, 1, 0, &raw mut gid), 0);
            let mut attr = ibv_qp_attr {
                qp_state: 1,
                port_num: 1,
                qp_access_flags: RIGHTS.cast_unsigned(),
                ..ibv_qp_attr::default()
            };
            assert_eq!(
                ibv_modify_qp(qp, &raw mut attr, 1 | 1 << 3 | 1 << 4 | 1 << 5),
                0
            );
            attr.qp_state = 2;
            attr.path_mtu = 3;
            attr.dest_qp_num = (*to).qp_num;
            attr.max_dest_rd_atomic = 1;
            attr.min_rnr_timer = 12;
            attr.ah_attr = ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: gid,
                    hop_limit: 1,
                    ..ibv_global_route::default()
                },
                is_global: 1,
                port_num: 1,
                ..ibv_ah_attr::default()
            };
            let to_rtr = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
            assert_eq!(ibv_modify_qp(qp, &raw mut attr, to_rtr), 0);
            attr.qp_state = 3;
            attr.timeout = 14;
            attr.retry_cnt = 6;
            attr.rnr_retry = 6;
            attr.max_rd_atomic = 1;
            let to_rts = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
            assert_eq!(ibv_modify_qp(qp, &raw mut attr, to_rts), 0);
        }
    }

    fn register(&self, bytes: &mut [u8]) -> *mut ibv_mr {
        // SAFETY: nobody else has the bytes, which live longer than the region: see the tests.
        unsafe { ibv_reg_mr(self.pd, bytes.as_mut_ptr().cast(), bytes.len(), RIGHTS) }
    }

    /// Calls `ibv_post_send` as the header does. Returns the error, and whether the list's first request
    /// is the bad one.
    fn post(&self, wr: &mut ibv_send_wr) -> (c_int, bool) {
        type PostSend =
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
        let mut bad = ptr::null_mut();
        // SAFETY: the table's function at this place has this type, and the request is the program's.
        unsafe {
            let function = transmute::<*const c_void, PostSend>((*self.context).ops[25]);
            let errno = function(self.qp, ptr::from_mut(wr), &raw mut bad);
            (errno, bad == ptr::from_mut(wr))
        }
    }

    /// Polls until a completion is there, and returns its status.
    fn status(&self) -> u32 {
        type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
        // SAFETY: as above; and a completion has numbers only.
        unsafe {
            let mut wc: ibv_wc = zeroed();
            let function = transmute::<*const c_void, PollCq>((*self.context).ops[11]);
            loop {
                match function(self.cq, 1, &raw mut wc) {
                    0 => std::hint::spin_loop(),
                    one => {
                        assert_eq!(one, 1);
                        return wc.status;
                    }
                }
            }
        }
    }

    /// Polls once, and returns how many completions there were; -1 for an error.
    fn poll_once(&self) -> c_int {
        type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
        // SAFETY: as above.
        unsafe {
            let mut wc: ibv_wc = zeroed();
            transmute::<*const c_void, PollCq>((*self.context).ops[11])(self.cq, 1, &raw mut wc)
        }
    }

    /// Brings a queue pair that has failed back to where it was: by another one.
    fn again(self, device: usize) -> Self {
        drop(self);
        Self::new(device)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: the program's objects, in an order that the man pages permit.
        unsafe {
            assert_eq!(ibv_destroy_qp(self.qp), 0);
            assert_eq!(ibv_destroy_qp(self.peer), 0);
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_dealloc_pd(self.pd), 0, "a region is left");
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }
}

fn init_of(cq: *mut ibv_cq) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: ptr::null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
        },
        qp_type: 2,
        sq_sig_all: 0,
    }
}

/// A signaled request with one element.
fn request(opcode: u32, sge: *const ibv_sge, remote: Remote) -> ibv_send_wr {
    // SAFETY: a request has numbers and pointers only.
    let bind_mw: ibv_bind_of_wr = unsafe { zeroed() };
    ibv_send_wr {
        wr_id: 7,
        next: ptr::null_mut(),
        sg_list: sge,
        num_sge: 1,
        opcode,
        send_flags: flag::SIGNALED,
        imm_data: 0,
        wr: remote,
        qp_type: 0,
        bind_mw,
    }
}

/// Whole pages of the heap, so that a test's region shares none with anything else.
fn pages(count: usize) -> &'static mut [u8] {
    let room = vec![0_u8; (count + 1) * PAGE].leak();
    let start = room.as_ptr().align_offset(PAGE);
    &mut room[start..][..count * PAGE]
}

#[test]
fn a_region_begins_and_ends_where_it_was_asked_to() {
    for device in [0, 1] {
        // In the middle of a page, and across a border.
        for (from, len) in [(100, 200), (PAGE - 3, 10), (0, 1)] {
            for opcode in [opcode::RDMA_WRITE, opcode::RDMA_READ] {
                let mut program = Program::new(device);
                for (offset, expected) in [(0, 0), (len - 1, 0), (len, 10), (usize::MAX, 10)] {
                    let (bytes, local) = (pages(3), pages(1));
                    let (target, source) = (&mut bytes[from..][..len], &mut local[5..6]);
                    source[0] = 0xa5;
                    target[len - 1] = 0x5a;
                    let remote = program.register(target);
                    let mine = program.register(source);
                    assert!(
                        !remote.is_null() && !mine.is_null(),
                        "{}",
                        io::Error::last_os_error()
                    );
                    // SAFETY: the program's regions.
                    let (lkey, rkey) = unsafe { ((*mine).lkey, (*remote).rkey) };
                    let sge = ibv_sge {
                        addr: source.as_ptr().expose_provenance() as u64,
                        length: 1,
                        lkey,
                    };
                    let addr =
                        (target.as_ptr().expose_provenance() as u64).wrapping_add(offset as u64);
                    let wr = Remote {
                        addr_or_ah: addr,
                        key_or_operand: rkey.into(),
                        ..Remote::default()
                    };
                    let posted = program.post(&mut request(opcode, &raw const sge, wr));
                    assert_eq!(posted.0, 0);
                    let status = program.status();
                    assert_eq!(
                        status, expected,
                        "{device}: {opcode}, {from}+{len}, {offset}"
                    );
                    // SAFETY: the program's regions, which no request names any more.
                    unsafe {
                        assert_eq!(ibv_dereg_mr(remote), 0);
                        assert_eq!(ibv_dereg_mr(mine), 0);
                    }
                    let is_read = opcode == opcode::RDMA_READ && offset == len - 1;
                    assert!(
                        !is_read || local[5] == 0x5a,
                        "{from}+{len}: {:#x}",
                        local[5]
                    );
                    let written = bytes.iter().filter(|byte| **byte == 0xa5).count();
                    let is_written = opcode == opcode::RDMA_WRITE && expected == 0;
                    assert_eq!(written, usize::from(is_written));
                    if expected != 0 {
                        program = program.again(device);
                    }
                }
            }
        }
    }
}

#[test]
fn regions_share_all_of_their_pages_or_none() {
    let program = Program::new(0);
    let bytes = pages(3);
    let first = program.register(&mut bytes[..PAGE + 1]);
    let inside = program.register(&mut bytes[PAGE..][..10]);
    assert!(!first.is_null() && !inside.is_null());
    let across = program.register(&mut bytes[PAGE..]);
    assert!(across.is_null());
    assert_eq!(errno(), libc::ENOMEM);
    let beside = program.register(&mut bytes[2 * PAGE..]);
    assert!(!beside.is_null());
    // SAFETY: the program's regions.
    unsafe {
        for region in [first, inside, beside] {
            assert_eq!(ibv_dereg_mr(region), 0);
        }
        let now = program.register(&mut bytes[PAGE..]);
        assert!(!now.is_null(), "the pages are no region's any more");
        assert_eq!(ibv_dereg_mr(now), 0);
    }
}

#[test]
fn wrong_numbers_are_refused() {
    let program = Program::new(0);
    let bytes = pages(1);
    let mr = program.register(bytes);
    let sge = ibv_sge {
        addr: bytes.as_ptr().expose_provenance() as u64,
        length: 65,
        // SAFETY: the program's region.
        lkey: unsafe { (*mr).lkey },
    };
    let good = request(opcode::SEND, &raw const sge, Remote::default());
    let wrong: [fn(&mut ibv_send_wr); 8] = [
        |wr| wr.num_sge = -1,
        |wr| wr.num_sge = 3,
        |wr| wr.num_sge = c_int::MAX,
        |wr| wr.sg_list = ptr::null(),
        |wr| wr.opcode = 77,
        |wr| wr.send_flags |= 1 << 9,
        |wr| wr.send_flags |= flag::INLINE,
        |wr| wr.opcode = opcode::ATOMIC_FETCH_AND_ADD,
    ];
    for (index, change) in wrong.iter().enumerate() {
        let mut wr = good;
        change(&mut wr);
        // Inline takes as much as the device grants, which is more than was asked for.
        if wr.send_flags & flag::INLINE != 0 {
            wr.num_sge = 2;
            let twice = [ibv_sge {
                length: 4000,
                ..sge
            }; 2];
            wr.sg_list = twice.as_ptr();
            assert_eq!(program.post(&mut wr), (libc::EINVAL, true), "{index}");
            continue;
        }
        assert_eq!(program.post(&mut wr), (libc::EINVAL, true), "{index}");
    }
    // A list that is a circle ends when the queue is full.
    let mut circle = good;
    circle.next = &raw mut circle;
    assert_eq!(program.post(&mut circle), (libc::ENOMEM, true));
    // SAFETY: the program's objects.
    unsafe {
        for (mask, change) in [
            (1, (|attr| attr.qp_state = 99) as fn(&mut ibv_qp_attr)),
            (1 | 1 << 1, |attr| attr.cur_qp_state = 99),
            (1 << 15, |attr| attr.min_rnr_timer = 32),
            (1 << 18, |attr| attr.path_mig_state = 9),
            (1 << 19, |_| {}),
            (1 << 25, |_| {}),
        ] {
            let mut attr = ibv_qp_attr {
                qp_state: 3,
                ..ibv_qp_attr::default()
            };
            change(&mut attr);
            let errno = ibv_modify_qp(program.qp, &raw mut attr, mask);
            assert_eq!(errno, libc::EINVAL, "{mask:#x}");
        }
        let none = ptr::null_mut();
        for (cqe, vector) in [(0, 0), (-1, 0), (c_int::MAX, 0), (16, 1), (16, -1)] {
            let cq = ibv_create_cq(program.context, cqe, none, ptr::null_mut(), vector);
            assert!(cq.is_null() && errno() == libc::EINVAL, "{cqe}, {vector}");
        }
        for (qp_type, expected) in [(77, libc::EINVAL), (8, libc::EOPNOTSUPP)] {
            let mut init = init_of(program.cq);
            init.qp_type = qp_type;
            assert!(ibv_create_qp(program.pd, &raw mut init).is_null());
            assert_eq!(errno(), expected);
        }
        let mut gid = ibv_gid::default();
        let gid = ibv_query_gid(program.context, 1, 256, &raw mut gid);
        assert_eq!((gid, errno()), (-1, libc::EINVAL));
        assert!(ibv_reg_mr(program.pd, none, 1, RIGHTS).is_null());
        assert!(ibv_reg_mr(program.pd, bytes.as_mut_ptr().cast(), 0, RIGHTS).is_null());
        assert_eq!(ibv_destroy_cq(program.cq), libc::EBUSY);
        assert_eq!(ibv_dealloc_pd(program.pd), libc::EBUSY);
        // The requests of the circle name the region.
        let mut attr = ibv_qp_attr::default();
        assert_eq!(ibv_modify_qp(program.qp, &raw mut attr, 1), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
}

/// What a queue pair left in the completion queue goes with its reset, and covers no request of its next
/// life.
#[test]
fn a_reset_takes_the_completions_along() {
    for device in [0, 1] {
        let program = Program::new(device);
        let bytes = pages(1);
        let (addr, mr) = (
            bytes.as_ptr().expose_provenance() as u64,
            program.register(bytes),
        );
        // SAFETY: the program's region.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        let sge = ibv_sge {
            addr,
            length: 1,
            lkey,
        };
        let wr = Remote {
            addr_or_ah: addr,
            key_or_operand: rkey.into(),
            ..Remote::default()
        };
        let mut write = request(opcode::RDMA_WRITE, &raw const sge, wr);
        for _ in 0..2 {
            assert_eq!(program.post(&mut write).0, 0);
            assert_eq!(program.post(&mut write).0, 0);
            // The second one is there as well: they complete in order, and soon.
            assert_eq!(program.status(), 0);
            std::thread::sleep(std::time::Duration::from_millis(20));
            for qp in [program.qp, program.peer] {
                let mut attr = ibv_qp_attr::default();
                // SAFETY: the program's queue pair.
                assert_eq!(unsafe { ibv_modify_qp(qp, &raw mut attr, 1) }, 0);
            }
            assert_eq!(program.poll_once(), 0, "{device}");
            program.connect(program.qp, program.peer);
            program.connect(program.peer, program.qp);
        }
        // SAFETY: the program's region, which no request names any more.
        assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
    }
}

#[test]
fn a_panic_ends_at_the_boundary() {
    assert_eq!(number(|| panic!("planted")), libc::EIO);
    assert_eq!(count(|| panic!("planted")), -1);
    assert_eq!(errno(), libc::EIO);
    assert_eq!(number(|| Err(Errno::BUSY)), libc::EBUSY);
}
