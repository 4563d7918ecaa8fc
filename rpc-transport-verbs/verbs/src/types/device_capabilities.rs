//! Optional features of a device: the flags of `ibv_device_attr` (`ibv_query_device(3)`).

use super::flags::flags;

flags! {
    /// The capability flags of a device (`device_cap_flags`).
    DeviceCapabilities(u32);
    /// One capability flag of a device (`enum ibv_device_cap_flags`).
    DeviceCapability;
    /// The depth of a queue pair's queues can be changed.
    ResizeMaxWr = 0, "RESIZE_MAX_WR";
    /// Counts packets with wrong partition keys per port.
    BadPkeyCounter = 1, "BAD_PKEY_CNTR";
    /// Counts datagrams with wrong Q_Keys per port.
    BadQkeyCounter = 2, "BAD_QKEY_CNTR";
    /// Raw packet multicast.
    RawMulticast = 3, "RAW_MULTI";
    /// Automatic path migration of connections.
    AutomaticPathMigration = 4, "AUTO_PATH_MIG";
    /// The port of a queue pair can be changed in SQD.
    ChangePort = 5, "CHANGE_PHY_PORT";
    /// Requires an address handle's port to be the queue pair's.
    UdAddressPortEnforced = 6, "UD_AV_PORT_ENFORCE";
    /// `modify` accepts the state that the caller assumes (`IBV_QP_CUR_STATE`).
    CurrentStateModifier = 7, "CURR_QP_STATE_MOD";
    /// Ports can be shut down.
    ShutdownPort = 8, "SHUTDOWN_PORT";
    /// A port's init type can be set.
    InitType = 9, "INIT_TYPE";
    /// Raises an event when a port becomes active.
    PortActiveEvent = 10, "PORT_ACTIVE_EVENT";
    /// Reports the GUID of its system.
    SystemImageGuid = 11, "SYS_IMAGE_GUID";
    /// Generates RNR NAKs when a receiver is not ready.
    RcRnrNak = 12, "RC_RNR_NAK_GEN";
    /// Shared receive queues can be resized.
    SrqResize = 13, "SRQ_RESIZE";
    /// A completion queue can notify after a number of completions.
    NotifyAfterSeveral = 14, "N_NOTIFY_CQ";
    /// Memory windows of type 1.
    MemoryWindow = 17, "MEM_WINDOW";
    /// IP checksum offload for datagrams.
    UdIpChecksum = 18, "UD_IP_CSUM";
    /// Extended reliable connections.
    Xrc = 20, "XRC";
    /// Memory management extensions: SEND with Invalidate and local invalidate.
    MemoryManagementExtensions = 21, "MEM_MGT_EXTENSIONS";
    /// Memory windows of type 2A, which belong to a queue pair's protection domain.
    MemoryWindowType2A = 23, "MEM_WINDOW_TYPE_2A";
    /// Memory windows of type 2B, which belong to a queue pair.
    MemoryWindowType2B = 24, "MEM_WINDOW_TYPE_2B";
    /// IP checksum offload on reliable connections.
    RcIpChecksum = 25, "RC_IP_CSUM";
    /// IP checksum offload for raw packets.
    RawIpChecksum = 26, "RAW_IP_CSUM";
    /// Flow steering: rules assign incoming packets to queue pairs.
    ManagedFlowSteering = 29, "MANAGED_FLOW_STEERING";
}
