//! What a device can do beyond the rest: the flags of `ibv_device_attr`.

use super::flags::flags;

flags! {
    /// The flags of a device (`device_cap_flags`).
    DeviceCapabilities(u32);
    /// One thing that a device may be able to do (`enum ibv_device_cap_flags`).
    DeviceCapability;
    /// The depth of a queue pair's queues can be changed.
    ResizeMaxWr = 0, "RESIZE_MAX_WR";
    /// Packets with wrong partition keys are counted for each port.
    BadPkeyCounter = 1, "BAD_PKEY_CNTR";
    /// Datagrams with wrong keys are counted for each port.
    BadQkeyCounter = 2, "BAD_QKEY_CNTR";
    /// Raw packets can be multicast.
    RawMulticast = 3, "RAW_MULTI";
    /// Connections can move to an alternate path by themselves.
    AutomaticPathMigration = 4, "AUTO_PATH_MIG";
    /// The port of a queue pair can be changed in SQD.
    ChangePort = 5, "CHANGE_PHY_PORT";
    /// The port of an address handle has to be the queue pair's.
    UdAddressPortEnforced = 6, "UD_AV_PORT_ENFORCE";
    /// `modify` can be told the state that the caller believes in.
    CurrentStateModifier = 7, "CURR_QP_STATE_MOD";
    /// Ports can be shut down.
    ShutdownPort = 8, "SHUTDOWN_PORT";
    /// The kind of initialisation that a port wants can be set.
    InitType = 9, "INIT_TYPE";
    /// An event tells that a port became active.
    PortActiveEvent = 10, "PORT_ACTIVE_EVENT";
    /// It knows which system it is part of.
    SystemImageGuid = 11, "SYS_IMAGE_GUID";
    /// A receiver that is not ready says so.
    RcRnrNak = 12, "RC_RNR_NAK_GEN";
    /// Shared receive queues can be resized.
    SrqResize = 13, "SRQ_RESIZE";
    /// A completion queue can notify after a number of completions.
    NotifyAfterSeveral = 14, "N_NOTIFY_CQ";
    /// Memory windows of type 1.
    MemoryWindow = 17, "MEM_WINDOW";
    /// Checksums of IP in datagrams.
    UdIpChecksum = 18, "UD_IP_CSUM";
    /// Extended reliable connections.
    Xrc = 20, "XRC";
    /// Sends can invalidate a key, and so can local requests.
    MemoryManagementExtensions = 21, "MEM_MGT_EXTENSIONS";
    /// Memory windows of type 2 that belong to a queue pair's protection domain.
    MemoryWindowType2A = 23, "MEM_WINDOW_TYPE_2A";
    /// Memory windows of type 2 that belong to a queue pair.
    MemoryWindowType2B = 24, "MEM_WINDOW_TYPE_2B";
    /// Checksums of IP on reliable connections.
    RcIpChecksum = 25, "RC_IP_CSUM";
    /// Checksums of IP in raw packets.
    RawIpChecksum = 26, "RAW_IP_CSUM";
    /// Incoming packets can be steered to queue pairs by rules.
    ManagedFlowSteering = 29, "MANAGED_FLOW_STEERING";
}
