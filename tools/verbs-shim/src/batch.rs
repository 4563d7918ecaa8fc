//! Puts requests together part by part, and posts them at once: `ibv_wr_post(3)`. Errors are kept until
//! the end, as the man page says.

use std::ffi::c_int;
use std::ptr;

use verbline_verbs::PostErrorReason;
use verbline_verbs::for_shim::Element;

use crate::abi::{
    Function, NONE, Remote, ibv_ah, ibv_bind_of_wr, ibv_data_buf, ibv_mw, ibv_mw_bind_info,
    ibv_qp_ex, ibv_send_wr, ibv_sge,
};
use crate::boundary::{Errno, lock, number};
use crate::post::{check, flag, opcode, post};
use crate::queue_pairs::qp_of;

/// The requests that a program is putting together.
#[derive(Default)]
pub(crate) struct Batch {
    requests: Vec<Built>,
    failed: Option<Errno>,
}

/// A request, as if it were in the program's list.
struct Built {
    request: ibv_send_wr,
    list: Vec<Element>,
    /// The bytes of an inline request, which its only element names.
    inline: Vec<u8>,
}

/// Returns the functions of `ibv_qp_ex`.
pub(crate) fn functions() -> [Function; 21] {
    [
        wr_atomic_cmp_swp as Function,
        wr_atomic_fetch_add as Function,
        wr_bind_mw as Function,
        wr_local_inv as Function,
        wr_rdma_read as Function,
        wr_rdma_write as Function,
        wr_rdma_write_imm as Function,
        wr_send as Function,
        wr_send_imm as Function,
        wr_send_inv as Function,
        NONE, // wr_send_tso
        wr_set_ud_addr as Function,
        NONE, // wr_set_xrc_srqn
        wr_set_inline_data as Function,
        wr_set_inline_data_list as Function,
        wr_set_sge as Function,
        wr_set_sge_list as Function,
        wr_start as Function,
        wr_complete as Function,
        wr_abort as Function,
        NONE, // wr_atomic_write
    ]
}

/// Adds a request with the id and the flags that the program has put into the queue pair.
///
/// # Safety
///
/// The queue pair is the program's, here and below.
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: u32, imm_data: u32, wr: Remote) {
    // SAFETY: the caller has promised.
    let (own, wr_id, send_flags) = unsafe { (qp_of(qp.cast()), (*qp).wr_id, (*qp).wr_flags) };
    let nothing = ibv_bind_of_wr {
        mw: ptr::null_mut(),
        rkey: 0,
        bind_info: ibv_mw_bind_info {
            mr: ptr::null_mut(),
            addr: 0,
            length: 0,
            access: 0,
        },
    };
    lock(&own.batch).requests.push(Built {
        request: ibv_send_wr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: ptr::null(),
            num_sge: 0,
            opcode,
            send_flags,
            imm_data,
            wr,
            qp_type: 0,
            bind_mw: nothing,
        },
        list: Vec::new(),
        inline: Vec::new(),
    });
}

/// Changes the request that was begun last.
///
/// # Safety
///
/// As for [`begin`].
unsafe fn change(qp: *mut ibv_qp_ex, how: impl FnOnce(&mut Built) -> Result<(), Errno>) {
    // SAFETY: the caller has promised.
    let mut batch = lock(&unsafe { qp_of(qp.cast()) }.batch);
    let changed = match batch.requests.last_mut() {
        Some(last) => how(last),
        None => Err(Errno::INVALID),
    };
    if let Err(errno) = changed {
        batch.failed.get_or_insert(errno);
    }
}

fn remote(rkey: u32, addr: u64) -> Remote {
    Remote {
        addr_or_ah: addr,
        key_or_operand: rkey.into(),
        ..Remote::default()
    }
}

/// Defines functions of the table, with the same promise.
macro_rules! functions {
    ($($name:ident($qp:ident $(, $argument:ident: $type:ty)*) $body:block)*) => {
        $(
            /// # Safety
            ///
            /// As `ibv_wr_post(3)` asks.
            unsafe extern "C" fn $name($qp: *mut ibv_qp_ex $(, $argument: $type)*) {
                number(|| {
                    // SAFETY: the program's queue pair, and what its arguments point to.
                    unsafe { $body };
                    Ok(())
                });
            }
        )*
    };
}

functions! {
    wr_start(qp) {
        let own = qp_of(qp.cast());
        own.batching.enter();
        *lock(&own.batch) = Batch::default();
    }
    wr_abort(qp) {
        let own = qp_of(qp.cast());
        *lock(&own.batch) = Batch::default();
        own.batching.leave();
    }
    wr_send(qp) {
        begin(qp, opcode::SEND, 0, Remote::default());
    }
    wr_send_imm(qp, imm: u32) {
        begin(qp, opcode::SEND_WITH_IMM, imm, Remote::default());
    }
    wr_send_inv(qp, rkey: u32) {
        begin(qp, opcode::SEND_WITH_INV, rkey, Remote::default());
    }
    wr_local_inv(qp, rkey: u32) {
        begin(qp, opcode::LOCAL_INV, rkey, Remote::default());
    }
    wr_rdma_read(qp, rkey: u32, addr: u64) {
        begin(qp, opcode::RDMA_READ, 0, remote(rkey, addr));
    }
    wr_rdma_write(qp, rkey: u32, addr: u64) {
        begin(qp, opcode::RDMA_WRITE, 0, remote(rkey, addr));
    }
    wr_rdma_write_imm(qp, rkey: u32, addr: u64, imm: u32) {
        begin(qp, opcode::RDMA_WRITE_WITH_IMM, imm, remote(rkey, addr));
    }
    wr_atomic_cmp_swp(qp, rkey: u32, addr: u64, compare: u64, swap: u64) {
        let wr = Remote { addr_or_ah: addr, key_or_operand: compare, swap, atomic_key: rkey };
        begin(qp, opcode::ATOMIC_CMP_AND_SWP, 0, wr);
    }
    wr_atomic_fetch_add(qp, rkey: u32, addr: u64, add: u64) {
        let wr = Remote { addr_or_ah: addr, key_or_operand: add, swap: 0, atomic_key: rkey };
        begin(qp, opcode::ATOMIC_FETCH_AND_ADD, 0, wr);
    }
    wr_bind_mw(qp, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
        begin(qp, opcode::BIND_MW, 0, Remote::default());
        change(qp, |last| {
            last.request.bind_mw = ibv_bind_of_wr { mw, rkey, bind_info: *info };
            Ok(())
        });
    }
    wr_set_ud_addr(qp, ah: *mut ibv_ah, number: u32, qkey: u32) {
        change(qp, |last| {
            last.request.wr.addr_or_ah = ah.expose_provenance() as u64;
            last.request.wr.key_or_operand = u64::from(qkey) << 32 | u64::from(number);
            Ok(())
        });
    }
    wr_set_sge(qp, lkey: u32, addr: u64, length: u32) {
        change(qp, |last| {
            last.list = vec![Element { addr, len: length, local_key: lkey }];
            Ok(())
        });
    }
    wr_set_sge_list(qp, count: usize, list: *const ibv_sge) {
        let most = qp_of(qp.cast()).cap.max_send_sge as usize;
        change(qp, |last| {
            if count > most {
                return Err(Errno::INVALID);
            }
            last.list = (0..count).map(|index| {
                let sge = &*list.add(index);
                Element { addr: sge.addr, len: sge.length, local_key: sge.lkey }
            }).collect();
            Ok(())
        });
    }
    wr_set_inline_data(qp, addr: *const u8, length: usize) {
        let one = ibv_data_buf { addr, length };
        set_inline(qp, 1, &raw const one);
    }
    wr_set_inline_data_list(qp, count: usize, list: *const ibv_data_buf) {
        set_inline(qp, count, list);
    }
}

/// Copies bytes of the program into the request that was begun last.
///
/// # Safety
///
/// As for [`begin`]; and the list has so many entries, which are the program's bytes.
unsafe fn set_inline(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: the caller has promised.
    let most = unsafe { qp_of(qp.cast()) }.cap.max_inline_data as usize;
    let copy = |last: &mut Built| {
        last.inline.clear();
        for index in 0..count {
            // SAFETY: an entry of the program's list.
            let part = unsafe { &*list.add(index) };
            if part.length > most - last.inline.len() {
                return Err(Errno::INVALID);
            }
            if part.length > 0 {
                // SAFETY: the program's bytes, which it leaves alone during the call.
                let bytes = unsafe { std::slice::from_raw_parts(part.addr, part.length) };
                last.inline.extend_from_slice(bytes);
            }
        }
        last.request.send_flags |= flag::INLINE;
        last.list = vec![Element {
            addr: last.inline.as_ptr().expose_provenance() as u64,
            // At most the limit, which has 32 bits.
            len: last.inline.len() as u32,
            local_key: 0,
        }];
        Ok(())
    };
    // SAFETY: the caller has promised.
    unsafe { change(qp, copy) };
}

/// `ibv_wr_complete`: posts all requests, or none and says why.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program's queue pair.
    let own = unsafe { qp_of(qp.cast()) };
    let answer = number(|| {
        let Batch { requests, failed } = std::mem::take(&mut *lock(&own.batch));
        if let Some(errno) = failed {
            return Err(errno);
        }
        let mut inner = lock(&own.inner);
        let capacity = own.cap.max_send_wr as usize;
        if lock(&own.sends).len() + requests.len() > capacity {
            return Err(PostErrorReason::QueueFull { capacity }.into());
        }
        let mut all = Vec::with_capacity(requests.len());
        for Built { request, list, .. } in &requests {
            // SAFETY: the program's objects, which live until the request has completed.
            all.push((unsafe { check(own, request, list) }?, list));
        }
        for (request, list) in all {
            // SAFETY: the program leaves the memory to the device until the request has completed;
            // inline bytes live until the end of this function, and are copied in it.
            unsafe { post(own, &mut inner, &request, list) }?;
        }
        Ok(())
    });
    own.batching.leave();
    answer
}
