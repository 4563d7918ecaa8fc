//! Explanations of the completion statuses.

use super::{CompletionStatus, Explanation};

pub(super) fn explain(status: CompletionStatus) -> Explanation {
    use CompletionStatus as S;
    let (meaning, causes, look_at) = match status {
        S::Success => (
            "The request was carried out. For a send this means that the peer's device has taken the message (RC), \
             or that this device has sent it (UC, UD); it does not mean that the peer's program has seen it.",
            "A request that the queue pair's state, its keys and its peer permit.",
            "Of a completion with this status every field is valid: opcode, length, and what its flags announce.",
        ),
        S::LocalLength => (
            "A length was wrong on this side. As a receive: a message is longer than the receive posted for it, and the \
             queue pair is in ERR. As a send: the message is longer than the port accepts, or than one packet on UD.",
            "Receives that are shorter than what the peer sends, or one posted for a message of another kind; on UD a \
             send longer than the path MTU (a receive that is too short silently drops the datagram); an atomic \
             operation whose local element is not 8 bytes long.",
            "Compare the sum of the receive's elements with the length that the peer sent; for sends, max_msg_len of the \
             port, and its active_mtu on UD. The peer's completion of the same message says REM_INV_REQ_ERR.",
        ),
        S::LocalQpOperation => (
            "This side's queue pair could not do what the request asked, or found its own state inconsistent. It is in \
             ERR.",
            "An operation that the queue pair's type does not have (a READ on UC, a WRITE on UD), which the driver did \
             not refuse when it was posted; an address handle of another protection domain; more elements than were \
             requested at creation. Soft-RoCE also reports it for receives that are too short or have bad keys.",
            "The operation and the type of the queue pair, its capabilities, and the protection domain of everything \
             that the request names. If all of that is right, the vendor's error number and the system's log.",
        ),
        S::LocalEeContext => (
            "An end-to-end context of this side could not do what was asked. Only reliable datagrams have such \
             contexts.",
            "None on today's devices, which have no reliable datagrams: a defect of the driver, or a completion that \
             was read from a wrong address.",
            "Versions of the driver and the firmware; whether the completion's other fields make sense.",
        ),
        S::LocalProtection => (
            "An element of this side's own request names memory that it may not use. Nothing of this request was \
             carried out that the peer could rely on; the queue pair is in ERR (RC) or SQE (sends of UC and UD).",
            "The region was deregistered while the request was in flight; the local key is of another region, or of \
             another protection domain than the queue pair's; the range reaches beyond the region; memory that the \
             device is to write (a receive, the target of a READ, the result of an atomic operation) was registered \
             without LOCAL_WRITE.",
            "Compare key, address and length of each element with its region; the region's access flags; \
             the protection domain that each was made from. In this layer a stale key or a wrong range takes an \
             element that was made with `unsafe`; the rest does not.",
        ),
        S::WorkRequestFlushed => (
            "The queue pair was in ERR (or the send queue in SQE) before this request was complete. The status \
             does not tell what became of this request: the peer may have executed it fully, partly or not at all.",
            "An earlier request of the same queue pair failed, and its completion has the cause; the program moved the \
             queue pair to ERR to end the connection; the device raised an asynchronous event that put it there; \
             something was posted after it had failed.",
            "The first completion of this queue pair whose status is another one: it may be in the completion queue of \
             the other direction. Without one, the asynchronous events, and the peer. Do not repeat what is not \
             idempotent.",
        ),
        S::MemoryWindowBind => (
            "A memory window could not be bound: it keeps its old binding, and nothing of the new binding is granted. The \
             queue pair is in ERR.",
            "The region was registered without MW_BIND, or without LOCAL_WRITE while the window is to permit writes or \
             atomics; the range is not inside of the region; window, region and queue pair are of different \
             protection domains; a window of type 2 that is bound already, or whose length is 0.",
            "The region's access flags and range; whether the window was invalidated before it was bound again; the \
             protection domain that each was made from.",
        ),
        S::BadResponse => (
            "The peer's device sent a response that matches no request in flight. The queue pair is in ERR.",
            "Sequence numbers that do not agree (this side's sq_psn has to be the peer's rq_psn); a queue pair number \
             that was used again too soon, so that packets of an earlier connection arrive; a device or a driver that \
             is defective.",
            "The sequence numbers that both sides were given, which should be random for each connection; path_mtu of \
             both sides, which has to be equal; the firmware's version on both.",
        ),
        S::LocalAccess => (
            "A peer's request failed a protection check on this side, and took a receive with it: a WRITE with \
             immediate that named memory it may not write, or a SEND that was to invalidate a key it may not. The \
             queue pair is in ERR.",
            "The peer's remote key is stale, or its range is beyond the region or the window; the region or the window \
             does not permit remote writes; the key to be invalidated is of no window of type 2 that was bound through \
             this queue pair.",
            "The address, length and remote key that this side sent to the peer, and how long they are valid. The peer's \
             completion says REM_ACCESS_ERR. A device that checks a WRITE with immediate before it takes a receive, as \
             the software device does, flushes the receive (WR_FLUSH_ERR) and raises QP_ACCESS_ERR instead.",
        ),
        S::RemoteInvalidRequest => (
            "The peer's device rejected the request as not permitted, before it checked any key. Both queue pairs are \
             in ERR.",
            "A message longer than the receive that the peer had posted; a remote operation that the peer's queue pair \
             does not permit (its access flags at INIT); more READs and atomics in flight than the peer's \
             max_dest_rd_atomic, which may be 0; an atomic operation whose remote address is no multiple of 8.",
            "On the peer: the lengths of its receives (its completion says LOC_LEN_ERR), `access` and \
             max_dest_rd_atomic in its query, and the asynchronous event QP_REQ_ERR. Here: max_rd_atomic, which must \
             not be larger.",
        ),
        S::RemoteAccess => (
            "The peer's device rejected access to the memory that the request named. Nothing was changed there; both queue pairs \
             are in ERR.",
            "A stale remote key: the region was deregistered, the window bound again or invalidated; a range that is \
             not inside; rights that the region or the window does not grant; a region of another protection domain \
             than the peer's queue pair; for a window of type 2, another queue pair than it was bound to.",
            "Compare the address, length and remote key that the peer has now with those that it sent earlier; on the \
             peer, the asynchronous event QP_ACCESS_ERR. Notify the other side before memory is removed.",
        ),
        S::RemoteOperation => (
            "The peer could not complete the request because of an error on its own side. Both queue pairs are in ERR.",
            "The peer's receive names memory that it may not write (a bad local key, a range beyond the region, no \
             LOCAL_WRITE); the completion queue of the peer's receives overran; its device failed.",
            "The peer's completion of the same receive, which says LOC_PROT_ERR, and its asynchronous events: CQ_ERR, \
             QP_FATAL. The error is on that side.",
        ),
        S::RetryExceeded => (
            "The peer did not answer: neither the first try nor any of the retries, each of which waits for the \
             acknowledgement timeout (a network card up to four times as long). The queue pair is in ERR. Whether the \
             peer has carried the request out is unknown.",
            "The peer's process has ended, or its queue pair is in RESET, INIT or ERR, where it drops everything \
             silently; this side sent before the peer was in RTR; a wrong queue pair number, GID or LID, or sequence \
             numbers that do not agree; packets that do not arrive (no route, a firewall, a switch without flow \
             control, a path MTU that is larger than a link's).",
            "Whether the peer lives, and the state of its queue pair; dest_qp_num and the address in `query` of both \
             sides; sq_psn here and rq_psn there; timeout × (retry_cnt + 1), if it is shorter than a pause of the \
             network. On RoCE: `ibv_rc_pingpong` between the two GIDs, UDP port 4791 in the firewall, the counters \
             of the port (local_ack_timeout_err, out_of_sequence), and PFC or ECN on the switches. On the device tcp: \
             whether the peer's port can be reached, and who closed the connection.",
        ),
        S::RnrRetryExceeded => (
            "The peer had no receive posted for the message, and still had none after rnr_retry waits of the time that \
             it asks for. The queue pair is in ERR here; the peer's is untouched.",
            "The peer posts receives too late, or fewer than this side sends; it is busy or stopped, so that it does \
             not post again; a shared receive queue that others have emptied; rnr_retry of 0, which tolerates none.",
            "The flow control between the two programs: a send needs a receive that was promised. The peer's \
             min_rnr_timer and this side's rnr_retry (7 is for ever); counters of RNR (`rnr_counters`; \
             rnr_nak_retry_err and out_of_buffer of a network card); the limit event of a shared receive queue.",
        ),
        S::LocalRddViolation => (
            "The reliable datagram domains of the queue pair and of the end-to-end context differ.",
            "None on today's devices, which have no reliable datagrams: a defect of the driver.",
            "Versions of the driver and the firmware; the system's log.",
        ),
        S::RemoteInvalidRdRequest => (
            "The peer rejected a reliable datagram: the domain of the receiving queue pair does not match.",
            "None on today's devices, which have no reliable datagrams: a defect of the driver.",
            "Versions of the driver and the firmware of both sides.",
        ),
        S::RemoteAborted => (
            "The peer aborted the operation, although it was in order. On reliable datagrams the peer had moved its \
             queue pair to ERR; other types have no such response.",
            "Rare: some devices report it when the peer's queue pair is destroyed or reset during a request.",
            "What the peer did with its queue pair at that moment; its log.",
        ),
        S::InvalidEecn => (
            "The end-to-end context's number is not one that exists.",
            "None on today's devices, which have no reliable datagrams: a defect of the driver.",
            "Versions of the driver and the firmware; whether the completion's other fields make sense.",
        ),
        S::InvalidEecState => (
            "The end-to-end context is in a state that does not permit the operation.",
            "None on today's devices, which have no reliable datagrams: a defect of the driver.",
            "Versions of the driver and the firmware; the system's log.",
        ),
        S::Fatal => (
            "The device itself has failed, and with it everything created from it. Whether the request was executed is unknown.",
            "A failure of the hardware or the firmware; a reset by the driver or an administrator; the device was taken \
             out of the machine or of this virtual machine.",
            "The asynchronous event DEVICE_FATAL, and the system's log for the driver's name (`dmesg`). The process has \
             to open the device again, once it is back.",
        ),
        S::ResponseTimeout => (
            "A response did not arrive within the time limit of its kind.",
            "Reliable datagrams, which no device has, and some vendors' operations beyond verbs.",
            "Whether the peer lives; versions of the driver and the firmware; the vendor's error number.",
        ),
        S::General => (
            "The device reports an error that fits none of the others. The queue pair is in ERR.",
            "A vendor-specific error: a problem of the transport below (iWARP reports the end of its TCP \
             connection this way), or an internal error.",
            "The vendor's error number of the completion, in the manual of the device; the system's log.",
        ),
        S::Unknown(_) => (
            "A status that this version of the layer does not know: the library of the system is newer.",
            "A driver that uses a status added in a later version.",
            "The number, in the header infiniband/verbs.h of the system's library (`enum ibv_wc_status`).",
        ),
    };
    Explanation {
        meaning,
        causes,
        look_at,
    }
}
