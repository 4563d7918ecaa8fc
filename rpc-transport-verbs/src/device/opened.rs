//! [`Opened`]: a device that was opened for a poller, and has no lane yet.

use std::error::Error;

use rpc_core::transport::FabricError;
use verbline_verbs::{AddressWish, Context, DeviceAttributes, OpenError, SoftOptions, SoftPath};
#[cfg(test)]
use verbline_verbs::{LinkLayer, PortAddress};

use super::fabric::Vector;
use super::name::Name;
use crate::transport::endpoint::{SOFT, TCP};
use crate::transport::queue_pairs::{Plaintext, SourceAddresses};

/// The GID of the software device for TCP, if it has both paths: see [`SoftPath::Either`].
const TCP_GID_INDEX: u8 = 1;

/// A device to open for a poller.
pub(super) struct Wanted<'a> {
    name: &'a Name,
    /// Its place in the user's list.
    place: usize,
    path: SoftPath,
    pub(super) is_optional: bool,
    /// The place of `tcp`, if this is the software device with both of its paths.
    tcp_place: Option<usize>,
}

/// Returns the devices to open. If both `soft` and `tcp` are named, they are one device with two
/// paths.
pub(super) fn wanted(names: &[Name]) -> Vec<Wanted<'_>> {
    let place_of = |device: &str| names.iter().position(|name| name.device == device);
    let place_of_both = place_of(SOFT).zip(place_of(TCP));
    let places = names.iter().enumerate();
    places
        .filter_map(|(place, name)| {
            let mut is_optional = name.is_optional;
            let (path, tcp_place) = match (&*name.device, place_of_both) {
                (SOFT, Some((_, tcp_place))) => {
                    is_optional &= names[tcp_place].is_optional;
                    (SoftPath::Either { accept_at: None }, Some(tcp_place))
                }
                (TCP, Some(_)) => return None,
                (TCP, None) => (SoftPath::Tcp { accept_at: None }, None),
                _ => (SoftPath::SharedMemory, None),
            };
            Some(Wanted {
                name,
                place,
                path,
                is_optional,
                tcp_place,
            })
        })
        .collect()
}

/// A device that has been opened for a poller, with its attributes and addresses.
pub(crate) struct Opened {
    pub(super) name: Box<str>,
    pub(super) context: Context,
    pub(super) attributes: DeviceAttributes,
    pub(crate) source: SourceAddresses,
    pub(super) vector: Vector,
    pub(super) plaintext: Plaintext,
    pub(super) is_optional: bool,
}

impl Opened {
    pub(super) fn new(wanted: &Wanted<'_>, plaintext: Plaintext) -> Result<Self, FabricError> {
        let name = wanted.name;
        let opened = open_context(&name.device, wanted.path);
        let context = opened.map_err(|e| refused(&name.device, "cannot be opened", e))?;
        let device = context.device_name();
        let address_for = |wish| {
            let address = context.choose_address(wish);
            address.map_err(|e| refused(device, "cannot send", e))
        };
        let tcp = match wanted.tcp_place {
            Some(place) => {
                let wish = AddressWish {
                    gid_index: Some(TCP_GID_INDEX),
                    ..AddressWish::default()
                };
                Some((address_for(wish)?, place))
            }
            None => None,
        };
        let first = name
            .fabric
            .check(&context, address_for(name.wish().clone())?);
        let first = first.map_err(|e| refused(device, "cannot send as it is to", e))?;
        Ok(Self {
            name: device.into(),
            attributes: context.query_device(),
            vector: Vector::next(&name.fabric, &context),
            source: SourceAddresses {
                wish: name.wish().clone(),
                fabric: name.fabric,
                first,
                place: wanted.place,
                tcp,
            },
            plaintext,
            is_optional: wanted.is_optional,
            context,
        })
    }
}

/// Opens a device. The software device uses this path; it accepts no connections itself.
pub(crate) fn open_context(device: &str, path: SoftPath) -> Result<Context, OpenError> {
    match device {
        SOFT | TCP => Context::open_soft(SoftOptions {
            path,
            ..SoftOptions::default()
        }),
        other => Context::open(other),
    }
}

#[cfg(feature = "test-util")]
impl Opened {
    /// Opens the software device of a simulated process.
    pub(crate) fn simulated(context: Context) -> Result<Self, FabricError> {
        let address = context.choose_address(AddressWish::default());
        Ok(Self {
            name: context.device_name().into(),
            attributes: context.query_device(),
            source: SourceAddresses::only(address.map_err(|e| refused("soft", "cannot send", e))?),
            vector: Vector::default(),
            plaintext: Plaintext::Refused,
            is_optional: false,
            context,
        })
    }
}

#[cfg(test)]
impl Opened {
    /// Opens the software device under another name and kind, so a test can have two devices.
    pub(crate) fn soft_as(name: &str, link_layer: LinkLayer) -> Self {
        Self::soft_with(name, link_layer, SoftOptions::default())
    }

    /// Does the same with these options.
    pub(crate) fn soft_with(name: &str, link_layer: LinkLayer, options: SoftOptions) -> Self {
        let context = Context::open_soft(options).expect("the software device is everywhere");
        let address = context.choose_address(AddressWish::default());
        let address = address.expect("it has an address");
        Self {
            name: name.into(),
            attributes: context.query_device(),
            source: SourceAddresses::only(PortAddress {
                link_layer,
                ..address
            }),
            vector: Vector::default(),
            plaintext: Plaintext::Refused,
            is_optional: false,
            context,
        }
    }
}

pub(super) fn refused(
    device: &str,
    action: impl Into<String>,
    source: impl Error + Send + Sync + 'static,
) -> FabricError {
    FabricError::Device {
        device: device.to_owned(),
        action: action.into(),
        source: Box::new(source),
    }
}
