//! Optional features of a port: the 32 flags of `port_cap_flags` (`ibv_query_port(3)`), which the
//! InfiniBand specification calls CapabilityMask.

use super::flags::flags;

flags! {
    /// The capability flags of a port (`port_cap_flags`). Ports other than InfiniBand ports report
    /// few of them.
    PortCapabilities(u32);
    /// One flag of a port.
    PortCapability;
    /// Always 0.
    Reserved = 0, "Reserved";
    /// A subnet manager currently runs on this port.
    SubnetManager = 1, "IsSM";
    /// The management agent supports notices.
    Notice = 2, "IsNoticeSupported";
    /// Its management agent sends traps.
    Trap = 3, "IsTrapSupported";
    /// Inter-packet delays; unused in practice.
    OptionalIpd = 4, "IsOptionalIPDSupported";
    /// Automatic path migration of connections.
    AutomaticMigration = 5, "IsAutomaticMigrationSupported";
    /// Maps service levels to virtual lanes by a table.
    SlMapping = 6, "IsSLMappingSupported";
    /// The management key survives a reset.
    MkeyNvram = 7, "IsMKeyNVRAM";
    /// Partition keys survive a reset.
    PkeyNvram = 8, "IsPKeyNVRAM";
    /// The port's LED can be controlled.
    LedInfo = 9, "IsLEDInfoSupported";
    /// The subnet manager on this port is disabled.
    SmDisabled = 10, "IsSMdisabled";
    /// Reports the GUID of its system.
    SystemImageGuid = 11, "IsSystemImageGUIDSupported";
    /// The switch traps packets with wrong partition keys at its external ports.
    PkeySwitchExternalPortTrap = 12, "IsPKeySwitchExternalPortTrapSupported";
    /// The cable's memory can be read.
    CableInfo = 13, "IsCableInfoSupported";
    /// Supports link speeds from FDR upward.
    ExtendedSpeeds = 14, "IsExtendedSpeedsSupported";
    /// Has a second capability mask.
    CapabilityMask2 = 15, "IsCapabilityMask2Supported";
    /// Connections through the communication manager.
    CommunicationManagement = 16, "IsCommunicationManagementSupported";
    /// SNMP in management packets.
    SnmpTunneling = 17, "IsSNMPTunnelingSupported";
    /// Supports a request to preserve state when the port is initialized again.
    Reinit = 18, "IsReinitSupported";
    /// Has a device management agent for I/O devices behind this port.
    DeviceManagement = 19, "IsDeviceManagementSupported";
    /// Vendor-specific management packets.
    VendorClass = 20, "IsVendorClassSupported";
    /// Notices for directed routes.
    DrNotice = 21, "IsDRNoticeSupported";
    /// Sends a trap when this mask changes.
    CapabilityMaskNotice = 22, "IsCapabilityMaskNoticeSupported";
    /// Boot management.
    BootManagement = 23, "IsBootManagementSupported";
    /// Can measure the round-trip latency of the link.
    LinkRoundTripLatency = 24, "IsLinkRoundTripLatencySupported";
    /// The subnet manager can request reregistration.
    ClientReregistration = 25, "IsClientReregistrationSupported";
    /// Sends a trap when other local attributes change. On Ethernet, kernels use this bit to say
    /// that GIDs are derived from IP addresses.
    OtherLocalChangesNotice = 26, "IsOtherLocalChangesNoticeSupported";
    /// Has a table of the speeds allowed for each width.
    LinkSpeedWidthPairsTable = 27, "IsLinkSpeedWidthPairsTableSupported";
    /// Has a table of the vendor-specific management packets that it supports.
    VendorSpecificMadsTable = 28, "IsVendorSpecificMadsTableSupported";
    /// Traps for wrong partition keys of multicast packets can be suppressed.
    MulticastPkeyTrapSuppression = 29, "IsMulticastPKeyTrapSuppressionSupported";
    /// The switch can limit the size of its multicast forwarding table.
    MulticastFdbTop = 30, "IsMulticastFDBTopSupported";
    /// Knows its location in the physical hierarchy of the installation.
    HierarchyInfo = 31, "IsHierarchyInfoSupported";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_32_have_a_name_of_their_own() {
        let bits: Vec<_> = PortCapability::ALL.iter().map(|flag| flag.bit()).collect();
        assert_eq!(bits, (0..32).collect::<Vec<_>>());
        let mut names: Vec<_> = PortCapability::ALL.iter().map(|flag| flag.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 32);
        assert_eq!(PortCapabilities::from_bits(u32::MAX).unknown().count(), 0);
    }

    #[test]
    fn a_network_cards_mask_reads_as_its_names() {
        // As reported by mlx5 on Ethernet.
        let mask = PortCapabilities::from_bits(0x0401_0000);
        let names = "IsCommunicationManagementSupported, IsOtherLocalChangesNoticeSupported";
        assert_eq!(mask.to_string(), names);
    }
}
