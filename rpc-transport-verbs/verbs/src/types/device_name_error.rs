//! Why a text names no device.

/// Why a text names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceNameError {
    /// The text has another form.
    #[error(
        "'{name}' is no name of a device: wanted name, name:port or name:port:gid, as in mlx5_0:1:3 (numbers up to 255), or @netdev, @address or @address/prefix, as in @eth0 and @192.0.2.0/24"
    )]
    Malformed {
        /// The text.
        name: String,
    },
    /// The prefix of a subnet is no number, or is longer than an address.
    #[error("'{name}' is no name of a device: an address has a prefix of 0 to {max} bits")]
    Prefix {
        /// The text.
        name: String,
        /// The bits of an address of this kind.
        max: u8,
    },
    /// It is the name of a device with settings, or a list of devices.
    #[error(
        "'{name}' is no name of one device, since it contains '{found}'. For calls, settings of a device's fabric follow its name behind a '?', each further one behind a '&', and each further device behind a ',', as in mlx5_0?tc=104&mtu=1024,soft; verbs alone take one device and no settings"
    )]
    NotAlone {
        /// The text.
        name: String,
        /// The first character of it that a device's name does not have.
        found: char,
    },
}
