//! Soft-RoCE's deviations from the specification and the features it does not support, each with
//! evidence. `docs/deviations.md` describes the consequences for users.

/// A reason why a case does not pass.
pub(crate) struct Reason {
    /// The key that names the reason in the report.
    pub(crate) key: &'static str,
    pub(crate) what: &'static str,
    pub(crate) evidence: &'static str,
}

macro_rules! reasons {
    ($($name:ident = $key:literal, $what:literal, $evidence:literal;)*) => {
        $(pub(crate) static $name: Reason = Reason {
            key: $key,
            what: $what,
            evidence: $evidence,
        };)*

        /// All reasons, in the order of the report.
        pub(crate) const ALL: &[&Reason] = &[$(&$name),*];
    };
}

reasons! {
    RECEIVE_STATUSES = "receive-statuses",
        "A receive that cannot take its message ends with LOC_QP_OP_ERR, and where it was too short the send with REM_OP_ERR, in place of LOC_LEN_ERR or LOC_PROT_ERR, and REM_INV_REQ_ERR.",
        "rxe_resp.c, rxe_responder: RESPST_ERR_LENGTH and RESPST_ERR_MALFORMED_WQE (Linux 6.1).";
    SEND_STATUS = "send-status",
        "A send that may not be read ends with LOC_QP_OP_ERR; the acknowledgements of those before it may be forgotten, so that they are flushed.",
        "rxe_req.c, rxe_requester: finish_packet fails, and the request is completed with IB_WC_LOC_QP_OP_ERR (Linux 6.1).";
    WINDOW_BOUNDS = "window-bounds",
        "Through a window, everything of its region can be reached.",
        "rxe_resp.c, check_rkey: the range is checked against the window's region alone (Linux 6.1).";
    WINDOW_HOLDS_QUEUE_PAIR = "window-holds-queue-pair",
        "A queue pair that bound a type 2 window is not destroyed until the window is gone, or 50 s are over.",
        "rxe_mw.c, rxe_do_bind_mw takes a reference to the queue pair; rxe_pool.c waits for it (Linux 6.1).";
    INVALIDATE_ANYWHERE = "invalidate-anywhere",
        "A type 2 window can be invalidated through queue pairs that it was not bound through.",
        "rxe_mw.c, rxe_check_invalidate_mw does not look at the queue pair (Linux 6.1).";
    INVALIDATE_OF_NOTHING = "invalidate-of-nothing",
        "A local invalidate of a type 2 window that is bound to nothing would be the end of the kernel: the layer refuses it when it is posted.",
        "rxe_mw.c, rxe_do_invalidate_mw gives back the queue pair of the window, a null pointer; seen in the guest (Linux 6.1).";
    INVALIDATE_AT_ONCE = "invalidate-at-once",
        "A local invalidate may not wait for messages before it that the peer was not ready for.",
        "rxe_req.c, rxe_requester: rxe_do_local_ops as soon as the send queue comes to it, and that waits for a retry's timer no more than with other requests (Linux 6.1).";
    INVALIDATE_ACKNOWLEDGED = "invalidate-acknowledged",
        "A message whose invalidate fails at the peer succeeds for its sender.",
        "rxe_resp.c, RESPST_ERR_INVALIDATE_RKEY: class J, without an answer of its own; the next acknowledges it (Linux 6.1).";
    WRITE_IMM_STATUS = "write-imm-status",
        "The receive that a refused WRITE with immediate ends is told REM_ACCESS_ERR.",
        "rxe_resp.c, RESPST_ERR_RKEY_VIOLATION: do_class_ac_error with IB_WC_REM_ACCESS_ERR (Linux 6.1).";
    UNALIGNED_AT_POST = "unaligned-at-post",
        "An unaligned atomic is refused when it is posted.",
        "rdma-core 44, providers/rxe/rxe.c, validate_send_wr: EINVAL; the layer names it.";
    KEY_GONE_MIDWAY = "key-gone-midway",
        "A READ whose key is taken away while it is answered may end with RETRY_EXC_ERR, and the invalidate that takes it away be flushed.",
        "seen; rxe_resp.c, acknowledge: the refusal has the number of the READ's request, which its first response has answered already, and rxe_qp_error then silences and flushes the end that refuses (Linux 6.2).";
    LONG_DATAGRAMS = "long-datagrams",
        "A datagram that is longer than the port takes would succeed, and nothing be sent: the layer refuses it when it is posted.",
        "rxe_req.c, rxe_requester, beside its note of C10-93.1.1 (Linux 6.1).";
    HOPS_OF_THE_ROUTE = "hops-of-the-route",
        "Packets may pass as many routers as the route to their receiver says, 64, whatever the address handle does.",
        "core/verbs.c, ib_resolve_unicast_gid_dmac puts the route's into grh.hop_limit, of every RoCE device (Linux 6.1).";
    KEYS_AS_THEY_ARE = "keys-as-they-are",
        "A key with the highest bit is sent as it is, in place of the sender's own.",
        "rxe_req.c, init_req_packet puts wr.ud.remote_qkey into the header (Linux 6.1).";
    SHORT_RECEIVES_END = "short-receives-end",
        "A datagram that is longer than its receive ends the receive with LOC_QP_OP_ERR.",
        "rxe_resp.c, rxe_responder: RESPST_ERR_LENGTH completes the receive of unreliable types, too (Linux 6.1).";
    SRQ_DOMAIN = "srq-domain",
        "Memory of a shared receive queue is checked against the domain of the queue pair, in place of the queue's own.",
        "rxe_resp.c, send_data_in: copy_data is given qp->pd (Linux 6.1).";
    ATOMIC_FOR_ITSELF = "atomic-for-itself",
        "Atomics are atomic among themselves, and not against the processor's.",
        "query_device says IBV_ATOMIC_HCA; rxe_resp.c, process_atomic: a load and a store under a lock of the driver (Linux 6.1).";
    INVALIDATE_STATUS = "invalidate-status",
        "A local invalidate that cannot be carried out ends with LOC_QP_OP_ERR in place of MW_BIND_ERR.",
        "rxe_req.c, rxe_do_local_ops (Linux 6.1).";
    DRAINED_UNASKED = "drained-unasked",
        "SQ_DRAINED is raised even where nobody asked for it.",
        "rxe_comp.c, comp_check_sq_drain_done looks at no flag (Linux 6.1).";
    OVERRUN_GOES_ON = "overrun-goes-on",
        "A completion that finds its queue full is lost, with CQ_ERR each time; the queue goes on working, and QP_FATAL is not raised.",
        "rxe_cq.c, rxe_cq_post (Linux 6.1).";
    SOLICITED_ERRORS = "solicited-errors",
        "An arming for solicited completions hears of a failed send never, and of a failed receive only if its sender asked for attention.",
        "rxe_cq.c, rxe_cq_post looks at its argument `solicited` alone (Linux 6.1).";
    RECEIVE_DEPTH = "receive-depth",
        "A receive queue takes 2^n - 1 requests, and says what was asked for.",
        "rxe_queue.c, rxe_queue_init rounds up, and rxe_qp.c leaves cap.max_recv_wr as it was (Linux 6.1).";
    RECEIVES_STAY_IN_ERROR = "receives-stay-in-error",
        "A receive that is posted in ERR is not flushed, until the queue pair is brought to ERR once more.",
        "The provider's post_recv rings no doorbell (rdma-core 44, providers/rxe/rxe.c), so the kernel looks at the queue with the next packet or at a modify.";
    SQD_RESUMES_LATE = "sqd-resumes-late",
        "Back in RTS after SQD, the send queue goes on when the next request is posted.",
        "rxe_qp.c, rxe_qp_from_attr: the change from SQD to RTS starts no task (Linux 6.1).";
    RNR_IS_NOT_BEGUN = "rnr-is-not-begun",
        "A message that the receiver was not ready for does not keep the send queue from being drained.",
        "rxe_req.c, next_opcode of SQD looks at the message that is about to be sent, and waits for no timer (Linux 6.1).";
    FEW_EVENTS = "few-events",
        "COMM_EST, QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR and QP_LAST_WQE_REACHED are never raised.",
        "No caller in drivers/infiniband/sw/rxe of Linux 6.1 but for SQ_DRAINED, CQ_ERR, SRQ_LIMIT_REACHED and the port's; spdk/spdk #1697 saw the last.";
    MAY_LOSE = "unreliable-may-lose",
        "Unreliable messages may be lost between two queue pairs of one port, too; the case insists on all of them.",
        "rxe_net.c and rxe_req.c drop packets that find their socket or queue full (Linux 6.1).";
    SENDERS_ARE_ADDRESSES = "senders-are-addresses",
        "An unreliable connection takes messages of every queue pair at its peer's address: packets do not name theirs.",
        "rxe_recv.c, check_addr compares the addresses, and rxe_resp.c, check_psn takes any first packet of UC (Linux 6.1).";
    UC_TOO_LONG = "unreliable-too-long",
        "A message on an unreliable connection that is longer than the receive brings its receiver to ERR.",
        "rxe_resp.c, rxe_responder: RESPST_ERR_LENGTH of UC is do_class_d1e_error, with LOC_QP_OP_ERR (Linux 6.1).";
    MULTICAST_NEEDS_IP = "multicast-needs-ip",
        "Datagrams to a group that was joined through verbs alone do not arrive: IP has to join it as well.",
        "rxe_mcast.c, rxe_mcast_add tells the network device alone (dev_mc_add), and IP drops what its UDP socket has not joined; seen in the guest (Linux 6.1).";
    NO_ADDRESS_IN_SQD = "no-address-in-sqd",
        "An unreliable connection in SQD cannot be given another address.",
        "uverbs_cmd.c, modify_qp adds IB_QP_PORT to IB_QP_AV, and verbs.c, qp_state_table does not let UC have it in SQD (Linux 6.1).";
    NO_SQE = "no-send-queue-error",
        "A send of an unreliable queue pair that fails here does not lead to SQE; a datagram longer than the MTU completes as if it had been sent.",
        "rxe_req.c, rxe_requester: a datagram over the MTU is skipped, and rxe_comp.c knows ERR alone (Linux 6.1).";
    SOFT_OPTION = "option-of-soft",
        "The case is about an option or a bound of the software device.",
        "SoftOptions.";
}

/// Returns the keys of all reasons.
pub(crate) fn keys() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|reason| reason.key)
}
