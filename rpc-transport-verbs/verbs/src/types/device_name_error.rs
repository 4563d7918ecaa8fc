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
}
