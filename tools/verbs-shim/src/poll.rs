//! Polls completion queues, and arms them.

use std::ffi::c_int;

use verbline_verbs::CompletionOpcode;
use verbline_verbs::for_shim::{Completion, CompletionQueue};

use crate::abi::{Function, ibv_context, ibv_cq, ibv_wc};
use crate::boundary::{Errno, count, lock, number};
use crate::devices::opened;
use crate::queue_pairs::qp_of;
use crate::queues::{OwnCq, cq_of};

/// The functions of `ibv_context_ops` that are here, by index.
pub(crate) const OPS: [(usize, Function); 2] =
    [(11, poll_cq as Function), (12, req_notify_cq as Function)];

/// `IBV_WC_GRH`, `IBV_WC_WITH_IMM` and `IBV_WC_WITH_INV`.
const ROUTE: u32 = 1;
const IMMEDIATE: u32 = 2;
const INVALIDATED: u32 = 8;

/// Returns the number of `enum ibv_wc_opcode`.
pub(crate) fn opcode(opcode: CompletionOpcode) -> u32 {
    match opcode {
        CompletionOpcode::Send => 0,
        CompletionOpcode::RdmaWrite => 1,
        CompletionOpcode::RdmaRead => 2,
        CompletionOpcode::CompareAndSwap => 3,
        CompletionOpcode::FetchAndAdd => 4,
        CompletionOpcode::BindWindow => 5,
        CompletionOpcode::LocalInvalidate => 6,
        CompletionOpcode::Receive => 128,
        CompletionOpcode::ReceiveRdmaWithImm => 129,
        CompletionOpcode::Other(other) => other.into(),
        // None of the software device's.
        _ => u8::MAX.into(),
    }
}

/// Returns the bits of `enum ibv_wc_flags`.
pub(crate) fn flags(completion: &Completion) -> u32 {
    let bit = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
    bit(completion.has_route, ROUTE)
        | bit(completion.has_immediate, IMMEDIATE)
        | bit(completion.has_invalidated, INVALIDATED)
}

/// Returns the immediate in the byte order of the network, or the key that was invalidated.
pub(crate) fn data(completion: &Completion) -> u32 {
    match completion.has_immediate {
        true => completion.data.to_be(),
        false => completion.data,
    }
}

/// Takes the next completion, if there is one, and frees the entries of the send queue that it covers.
///
/// # Safety
///
/// The context is the queue's own.
pub(crate) unsafe fn take(
    context: *mut ibv_context,
    own: &OwnCq,
    inner: &mut CompletionQueue,
) -> Result<Option<Completion>, Errno> {
    let Some(completion) = own.next(inner)? else {
        return Ok(None);
    };
    if opcode(completion.opcode) < 128 {
        // SAFETY: the caller has promised.
        let known = lock(&unsafe { opened(context) }.queue_pairs);
        if let Some(&qp) = known.get(&completion.qp_num.0) {
            // SAFETY: queue pairs are in the table until they are destroyed, and it is locked.
            let own = unsafe { qp_of(qp) };
            lock(&own.sends).complete(completion.wr_id, completion.status == 0);
        }
    }
    Ok(Some(completion))
}

/// `ibv_poll_cq(3)`.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, out: *mut ibv_wc) -> c_int {
    count(|| {
        let most = usize::try_from(most).map_err(|_| Errno::INVALID)?;
        // SAFETY: the program's queue, and its own context.
        let (own, context) = unsafe { (cq_of(cq), (*cq).context) };
        let mut inner = lock(&own.inner);
        let mut found = 0;
        while found < most {
            // SAFETY: the queue's own context.
            let completion = match unsafe { take(context, own, &mut inner) } {
                Ok(Some(completion)) => completion,
                Ok(None) => break,
                // What was found is reported first.
                Err(_) if found > 0 => break,
                Err(errno) => return Err(errno),
            };
            let answer = ibv_wc {
                wr_id: completion.wr_id,
                status: completion.status,
                opcode: opcode(completion.opcode),
                vendor_err: 0,
                byte_len: completion.byte_len,
                imm_data: data(&completion),
                qp_num: completion.qp_num.0,
                src_qp: completion.src_qp,
                wc_flags: flags(&completion),
                pkey_index: 0,
                slid: 0,
                sl: 0,
                dlid_path_bits: 0,
            };
            // SAFETY: the program's places, of which there are `most`.
            unsafe { *out.add(found) = answer };
            found += 1;
        }
        // At most what the program has asked for, which was a `c_int`.
        Ok(found as c_int)
    })
}

/// `ibv_req_notify_cq(3)`.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    number(|| {
        // SAFETY: the program's queue.
        let (own, channel) = unsafe { (cq_of(cq), (*cq).channel) };
        if channel.is_null() {
            // Cards take it: the event goes nowhere.
            return Ok(());
        }
        Ok(lock(&own.inner).arm(solicited_only != 0)?)
    })
}
