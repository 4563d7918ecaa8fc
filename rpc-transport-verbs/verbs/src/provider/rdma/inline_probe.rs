//! Finds the longest message that a device sends inline, which no call reports.

use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type};

use super::completion_queue::CompletionQueue;
use super::handle::Handle;
use super::log_leak;
use super::memory::ProtectionDomain;

/// The longest inline message in bytes that is tried. The layers above never request more, and a
/// larger length would enlarge every send queue entry.
const MOST_INLINE: u32 = 512;

/// Queue pairs that are created at most: one for [`MOST_INLINE`], and those of a search among the
/// lengths below it. Each takes a card some hundred microseconds.
const MOST_ATTEMPTS: u32 = 1 + MOST_INLINE.ilog2();

/// Finds the longest inline message, up to [`MOST_INLINE`] bytes, by creating and destroying queue
/// pairs. Returns 0 if none is granted, or if no queue can be created.
pub(super) fn probe_inline(handle: &Arc<Handle>) -> usize {
    let (Ok(domain), Ok(queue)) = (
        ProtectionDomain::alloc(handle),
        CompletionQueue::create(handle, 1, None, 0),
    ) else {
        return 0;
    };
    longest_granted(|length| granted(handle, &domain, &queue, length)) as usize
}

/// Searches for the longest inline length. `grant` tries a length, and returns what the device grants:
/// at least as much, or `None`. A device that grants a length grants all shorter ones. The limits of
/// devices are no powers of two: 96 bytes on bnxt_re, 48 or 101 on irdma.
fn longest_granted(mut grant: impl FnMut(u32) -> Option<u32>) -> u32 {
    let (mut longest, mut refused) = (0, MOST_INLINE + 1);
    let mut length = MOST_INLINE;
    for _ in 0..MOST_ATTEMPTS {
        match grant(length) {
            Some(granted) => longest = granted.max(length),
            None => refused = length,
        }
        if longest >= refused - 1 {
            break;
        }
        length = longest.midpoint(refused);
    }
    longest
}

/// Creates and destroys a queue pair. Returns the inline length that it has been granted.
fn granted(
    handle: &Handle,
    domain: &ProtectionDomain,
    queue: &CompletionQueue,
    length: u32,
) -> Option<u32> {
    let mut wanted = ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: queue.raw(),
        recv_cq: queue.raw(),
        srq: ptr::null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: length,
        },
        qp_type: ibv_qp_type::IBV_QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: the domain and the queue are borrowed, so they are alive, and both are of the context
    // of `handle`.
    let raw = unsafe { (handle.library.ibv_create_qp)(domain.raw(), &mut wanted) };
    if raw.is_null() {
        return None;
    }
    // SAFETY: the queue pair was created above, and nothing else uses it.
    let returned = unsafe { (handle.library.ibv_destroy_qp)(raw) };
    log_leak("destroy_qp", returned);
    Some(wanted.cap.max_inline_data)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches on a device that grants up to `limit` bytes, in multiples of `step`. Returns the
    /// result and the number of queue pairs.
    fn search(limit: u32, step: u32) -> (u32, u32) {
        let mut attempts = 0;
        let longest = longest_granted(|length| {
            attempts += 1;
            Some(length.next_multiple_of(step)).filter(|granted| *granted <= limit)
        });
        (longest, attempts)
    }

    #[test]
    fn every_limit_is_found_to_the_byte_with_few_queue_pairs() {
        for limit in 0..=MOST_INLINE {
            let (longest, attempts) = search(limit, 1);
            assert_eq!(longest, limit);
            assert!(attempts <= MOST_ATTEMPTS, "{limit}: {attempts}");
        }
        assert_eq!(MOST_ATTEMPTS, 10);
    }

    #[test]
    fn what_a_device_grants_beyond_the_wish_counts() {
        // bnxt_re, two generations of irdma, and cards that count in units of 16 bytes.
        for (limit, step) in [(96, 1), (48, 1), (101, 1), (96, 16), (220, 16), (28, 4)] {
            let (longest, attempts) = search(limit, step);
            assert_eq!(longest, limit / step * step, "{limit} in steps of {step}");
            assert!(attempts <= MOST_ATTEMPTS, "{limit}: {attempts}");
        }
        // mlx5: more than was asked for, with the first queue pair.
        assert_eq!(search(828, 828), (828, 1));
    }
}
