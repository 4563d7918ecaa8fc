//! Explanations of the asynchronous events.

use super::{AsyncEvent, Explanation};

/// A kind of event.
pub(super) struct Event {
    pub(super) code: i32,
    pub(super) verbs_name: &'static str,
    pub(super) explanation: Explanation,
}

const fn event(
    code: i32,
    verbs_name: &'static str,
    [meaning, causes, look_at]: [&'static str; 3],
) -> Event {
    Event {
        code,
        verbs_name,
        explanation: Explanation {
            meaning,
            causes,
            look_at,
        },
    }
}

/// Returns the kind of an event.
pub(super) fn explain(event: &AsyncEvent) -> &'static Event {
    use AsyncEvent as E;
    let code = match event {
        E::CompletionQueueError { .. } => 0,
        E::QpFatal { .. } => 1,
        E::QpRequestError { .. } => 2,
        E::QpAccessError { .. } => 3,
        E::CommunicationEstablished { .. } => 4,
        E::SqDrained { .. } => 5,
        E::PathMigrated { .. } => 6,
        E::PathMigrationError { .. } => 7,
        E::DeviceFatal => 8,
        E::PortActive { .. } => 9,
        E::PortError { .. } => 10,
        E::LidChange { .. } => 11,
        E::PkeyChange { .. } => 12,
        E::SmChange { .. } => 13,
        E::SrqError { .. } => 14,
        E::SrqLimitReached { .. } => 15,
        E::QpLastWqeReached { .. } => 16,
        E::ClientReregister { .. } => 17,
        E::GidChange { .. } => 18,
        E::WorkQueueFatal => 19,
        E::DeviceSpeedChange { .. } => 20,
        E::Unknown(_) => return &UNKNOWN,
    };
    // The table is ordered by event number.
    &ALL[code]
}

const UNKNOWN: Event = event(
    -1,
    "?",
    [
        "An event that this version of the layer does not know: the library of the system is newer.",
        "A driver or a kernel that raises an event added in a later version.",
        "The number, in the header infiniband/verbs.h of the system's library (`enum ibv_event_type`).",
    ],
);

pub(super) const ALL: [Event; 21] = [
    event(
        0,
        "CQ_ERR",
        [
            "A completion queue has failed: a completion did not fit and is lost. Queue pairs that complete to it go \
             to ERR; on some devices, completions that it held already can still be polled. The queue cannot be \
             repaired: a new one has to be created. On Soft-RoCE it continues to work without the lost completions.",
            "The queue is smaller than the sum of what can complete to it: the send and receive queues of all its queue \
             pairs, and the shared receive queue. It was not polled in time.",
            "Compare the depth given at creation with that sum (the device may have granted deeper queues than \
             requested). The queues of Verbline's transport are as deep as the sum: if one of them fails, check the system's \
             log, and report a bug in Verbline or in the driver.",
        ],
    ),
    event(
        1,
        "QP_FATAL",
        [
            "A queue pair has failed outside of any request, so no completion reports it. It is in ERR: it has to be \
             destroyed, and the connection made again.",
            "Its completion queue overran, so the error cannot be reported there; the device or the driver found \
             the queue pair's own memory or state to be inconsistent.",
            "The system's log for the device; CQ_ERR of its completion queues at about the same time.",
        ],
    ),
    event(
        2,
        "QP_REQ_ERR",
        [
            "A peer sent this queue pair a request that is not permitted, and that consumed no receive whose \
             completion could report it. The queue pair is in ERR; the peer's completion says REM_INV_REQ_ERR.",
            "A remote operation that the queue pair's `access` does not permit; more READs and atomics at a time than \
             its max_dest_rd_atomic; an atomic operation at an address that is no multiple of 8; a packet that does \
             not fit the one before.",
            "Whether the peer runs a compatible version of the program: Verbline's transport never sends such requests. \
             Compare `access` and max_dest_rd_atomic of this queue pair with the peer's requests; the peer's \
             max_rd_atomic must not be larger.",
        ],
    ),
    event(
        3,
        "QP_ACCESS_ERR",
        [
            "A peer's request named memory of this side that it may not use. The memory was not touched. The queue pair \
             is in ERR; the peer's completion says REM_ACCESS_ERR.",
            "A remote key that is stale, of another protection domain or bound to another queue pair; a range that is \
             not inside of the region or the window; rights that were not granted; or an attack.",
            "The address, length and remote key that this side sent to the peer; whether the region or the window \
             was removed since; its access flags; which other program sends to this address.",
        ],
    ),
    event(
        4,
        "COMM_EST",
        [
            "The first message arrived at a queue pair that is in RTR and not yet in RTS. Nothing is wrong: the peer \
             completed its side of the setup first.",
            "Connection setup in which the peer's first message arrives before its last setup message \
             (\"ready\").",
            "Nothing. A program that waits for the last setup message may go to RTS now.",
        ],
    ),
    event(
        5,
        "SQ_DRAINED",
        [
            "A queue pair that was brought to SQD has no requests in flight any more: its attributes may be changed \
             now, or it may go back to RTS.",
            "The program's own transition from RTS to SQD with notify_drained; on Soft-RoCE without, too.",
            "sq_draining in the query, which is false from now on. If the event never comes: requests that the peer \
             does not acknowledge.",
        ],
    ),
    event(
        6,
        "PATH_MIG",
        [
            "The connection has moved to its alternate path and continues there.",
            "The primary path failed, or the peer's side migrated, or the program asked for it.",
            "Why the primary path failed: port events, counters of the link. Load a new alternate path and arm it \
             again.",
        ],
    ),
    event(
        7,
        "PATH_MIG_ERR",
        [
            "The peer wanted to move the connection to the alternate path, and this side could not.",
            "The alternate path of this side is not loaded, not armed, or differs from the peer's.",
            "alternate_path and path_migration of both sides.",
        ],
    ),
    event(
        8,
        "DEVICE_FATAL",
        [
            "The device has failed, and with it everything created from it. No more completions are to be expected. It \
             needs a reset, which its driver may do by itself; then it has to be opened again.",
            "A failure of the hardware or the firmware; a reset by the driver; the device was taken out of the machine \
             or of this virtual machine.",
            "The system's log (`dmesg`); whether the device is present. A program has to destroy everything and close the \
             device before it opens it again.",
        ],
    ),
    event(
        9,
        "PORT_ACTIVE",
        [
            "A port's link is up, and it can be used.",
            "A cable was plugged in; the network device was set up; on InfiniBand, a subnet manager has configured the \
             port.",
            "The port's addresses, which may have changed: query the GID table again. Connections that failed in \
             between have to be created again.",
        ],
    ),
    event(
        10,
        "PORT_ERR",
        [
            "A port's link is down. Requests are repeated until the retries run out, and then fail with RETRY_EXC_ERR: \
             calls in flight may time out, and connections survive if the link is back before.",
            "A cable; the switch; `ip link set … down`; on InfiniBand, a subnet manager that took the port down.",
            "The cable, the switch's port and the network device; physical_state and state of the port; the system's log. \
             A link that comes back within timeout × (retry_cnt + 1) ends no connection.",
        ],
    ),
    event(
        11,
        "LID_CHANGE",
        [
            "The subnet manager gave a port another local identifier (or its first one). Connections to an old one will \
             fail.",
            "A subnet manager that was started, or replaced by one with other tables; two subnets that were joined.",
            "`lid` of the port. Peers that have the old one in their address vectors no longer reach this side: \
             they have to connect again.",
        ],
    ),
    event(
        12,
        "PKEY_CHANGE",
        [
            "A port's table of partition keys has changed. Connections whose partition was removed will fail.",
            "The subnet manager's configuration of partitions; on Ethernet it is not raised.",
            "The table (`query_pkey_table`): whether the key is still at the index that queue pairs were given. If not, \
             packets are dropped on one of the two sides (bad_pkey_count), and requests end with RETRY_EXC_ERR. If the \
             change was not intended, ask the subnet's administrator.",
        ],
    ),
    event(
        13,
        "SM_CHANGE",
        [
            "A port's subnet has another subnet manager. Connections are not affected.",
            "The subnet manager was restarted, or another one took over.",
            "`sm_lid` and `sm_sl` of the port, for programs that communicate with it. Multicast groups and other \
             registrations may have to be repeated (CLIENT_REREGISTER reports this).",
        ],
    ),
    event(
        14,
        "SRQ_ERR",
        [
            "A shared receive queue has failed: nothing can be received through it any more, nor posted to it. Its queue \
             pairs will fail; they have to be destroyed, and then the queue.",
            "The device or the driver found the queue's memory or state to be inconsistent.",
            "The system's log for the device.",
        ],
    ),
    event(
        15,
        "SRQ_LIMIT_REACHED",
        [
            "Fewer receives than the limit are left in a shared receive queue. The event disarms the limit. Nothing has \
             failed yet.",
            "Messages arrive faster than receives are posted again, which the limit is there to report.",
            "Post receives, then arm the limit again. A limit that is armed while fewer are left may raise the event at \
             once or at the next message only, so check the count after arming.",
        ],
    ),
    event(
        16,
        "QP_LAST_WQE_REACHED",
        [
            "A queue pair in ERR that receives from a shared receive queue will take no more from it, and all that it \
             had taken has been completed. It can be destroyed without losing a receive.",
            "The queue pair has gone to ERR, for any reason.",
            "Poll the completion queue until it is empty, then destroy the queue pair. Do not wait for this event \
             without a time limit: Soft-RoCE never raises it, and devices do not raise it for queue pairs that took \
             no receive.",
        ],
    ),
    event(
        17,
        "CLIENT_REREGISTER",
        [
            "The subnet manager asks for a port's registrations again: multicast groups, services, events. Connections are \
             not affected.",
            "A subnet manager that was restarted and has lost them.",
            "The multicast groups that the program uses: join them again.",
        ],
    ),
    event(
        18,
        "GID_CHANGE",
        [
            "A port's table of GIDs has changed. Connections over an entry that was removed will fail with RETRY_EXC_ERR.",
            "On Ethernet: an IP address, a VLAN or a MAC address was added, changed or taken away; the network device \
             went up or down. On InfiniBand: the subnet's prefix changed.",
            "The table (`query_gid_table`): whether the GID is still at the index that queue pairs and address handles \
             were given. If the change was not intended: the addresses of the port's network device.",
        ],
    ),
    event(
        19,
        "WQ_FATAL",
        [
            "A work queue, one half of a queue pair that was created from parts, has failed. This layer creates no such \
             queues: it belongs to another part of the program.",
            "The device or the driver found its memory or state to be inconsistent.",
            "The system's log for the device; the part of the program that created the queue.",
        ],
    ),
    event(
        20,
        "DEVICE_SPEED_CHANGE",
        [
            "A port's link has another speed or width than before.",
            "The link was trained again: a bad cable or module that lost lanes, a switch that was configured anew, a \
             power state.",
            "The cable, if the link became slower. Compare `rate` of the port with what the cable and the switch support; \
             error counters of the link (symbol_error, link_error_recovery).",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_numbers() {
        for (index, event) in ALL.iter().enumerate() {
            assert_eq!(event.code, i32::try_from(index).unwrap());
        }
    }
}
