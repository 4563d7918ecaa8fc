//! What a port can do: the 32 flags of `port_cap_flags`, which the InfiniBand specification calls CapabilityMask.

use super::flags::flags;

flags! {
    /// The flags of a port (`port_cap_flags`). Ports that are not InfiniBand say few of them.
    PortCapabilities(u32);
    /// One flag of a port.
    PortCapability;
    /// Always 0.
    Reserved = 0, "Reserved";
    /// A subnet manager runs on this port, now.
    SubnetManager = 1, "IsSM";
    /// Its management agent takes notices.
    Notice = 2, "IsNoticeSupported";
    /// Its management agent sends traps.
    Trap = 3, "IsTrapSupported";
    /// Inter-packet delays. Nobody looks at it.
    OptionalIpd = 4, "IsOptionalIPDSupported";
    /// Connections can move to an alternate path by themselves.
    AutomaticMigration = 5, "IsAutomaticMigrationSupported";
    /// Service levels are mapped to virtual lanes by a table.
    SlMapping = 6, "IsSLMappingSupported";
    /// The management key outlives a reset.
    MkeyNvram = 7, "IsMKeyNVRAM";
    /// Partition keys outlive a reset.
    PkeyNvram = 8, "IsPKeyNVRAM";
    /// Its lamp can be switched.
    LedInfo = 9, "IsLEDInfoSupported";
    /// The subnet manager of this port cannot go on.
    SmDisabled = 10, "IsSMdisabled";
    /// It knows which system it is part of.
    SystemImageGuid = 11, "IsSystemImageGUIDSupported";
    /// A switch traps packets with wrong partition keys at its outer ports.
    PkeySwitchExternalPortTrap = 12, "IsPKeySwitchExternalPortTrapSupported";
    /// The cable's memory can be read.
    CableInfo = 13, "IsCableInfoSupported";
    /// Speeds from FDR on.
    ExtendedSpeeds = 14, "IsExtendedSpeedsSupported";
    /// There is a second mask of capabilities.
    CapabilityMask2 = 15, "IsCapabilityMask2Supported";
    /// Connections by the communication manager.
    CommunicationManagement = 16, "IsCommunicationManagementSupported";
    /// SNMP in management packets.
    SnmpTunneling = 17, "IsSNMPTunnelingSupported";
    /// It can be told what to keep when it is initialised again.
    Reinit = 18, "IsReinitSupported";
    /// A device management agent, for devices of I/O behind this port.
    DeviceManagement = 19, "IsDeviceManagementSupported";
    /// Management packets of the vendor's own.
    VendorClass = 20, "IsVendorClassSupported";
    /// Notices by directed routes.
    DrNotice = 21, "IsDRNoticeSupported";
    /// A trap tells that this mask has changed.
    CapabilityMaskNotice = 22, "IsCapabilityMaskNoticeSupported";
    /// Booting over the network.
    BootManagement = 23, "IsBootManagementSupported";
    /// The time that a packet is on the link can be measured.
    LinkRoundTripLatency = 24, "IsLinkRoundTripLatencySupported";
    /// The subnet manager can ask for registrations again.
    ClientReregistration = 25, "IsClientReregistrationSupported";
    /// A trap tells other changes of the port. On Ethernet, kernels say by this bit that GIDs are made of IP
    /// addresses.
    OtherLocalChangesNotice = 26, "IsOtherLocalChangesNoticeSupported";
    /// A table says which speeds go with which widths.
    LinkSpeedWidthPairsTable = 27, "IsLinkSpeedWidthPairsTableSupported";
    /// A table says which management packets of vendors there are.
    VendorSpecificMadsTable = 28, "IsVendorSpecificMadsTableSupported";
    /// Traps for wrong partition keys of multicasts can be suppressed.
    MulticastPkeyTrapSuppression = 29, "IsMulticastPKeyTrapSuppressionSupported";
    /// A switch can limit its table of multicasts.
    MulticastFdbTop = 30, "IsMulticastFDBTopSupported";
    /// It knows its place in the building.
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
        // What mlx5 says on Ethernet.
        let mask = PortCapabilities::from_bits(0x0401_0000);
        let names = "IsCommunicationManagementSupported, IsOtherLocalChangesNoticeSupported";
        assert_eq!(mask.to_string(), names);
    }
}
