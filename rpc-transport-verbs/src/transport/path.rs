//! [`FabricSettings`]: how a device's packets travel, as the user wants it. [`Source`]: what its
//! queue pairs get of it, with the address that they send from.

use std::sync::Arc;
use std::time::Duration;

use verbline_verbs::{
    AckTimeout, AddressError, Context, LinkLayer, Mtu, PartitionKey, PortAddress, Psn, RetryCount,
    RtsAttributes,
};

use crate::transport::stall_watch::WATCHED_TIME;

/// How the packets of an RDMA device travel through its network: in which class and partition, how
/// long they are, and how long the device waits for their acknowledgements.
///
/// `None` leaves a setting at its default. Each can be given in the name of a device, too, as in
/// `mlx5_0?tc=104&mtu=1024`. The devices `soft` and `tcp` have none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricSettings {
    /// `tc`: traffic class of the packets, which is the type of service in IPv4. Its upper six bits
    /// are the DSCP by which switches choose a queue, so DSCP 26 is 104. Default: 0.
    pub traffic_class: Option<u8>,
    /// `sl`: service level, up to 15 on InfiniBand, which determines the virtual lane. On RoCE the
    /// priority of a VLAN, up to 7. Default: 0.
    pub service_level: Option<u8>,
    /// `pkey`: the partition, which has to be in the port's table. The highest bit, which says what
    /// kind of member the port is, decides only between two entries. Default: the first of the table.
    pub pkey: Option<u16>,
    /// `mtu`: the longest payload of a packet in bytes: 256, 512, 1024, 2048 or 4096, and no more
    /// than the port's. A connection uses the smaller one of its two sides. Default: the port's.
    pub max_mtu: Option<u32>,
    /// `timeout`: time to wait for an acknowledgement, rounded up to the next one that devices have:
    /// 4.096 µs times a power of two. Default: 67 ms. A device may take up to four times as long.
    pub ack_timeout: Option<Duration>,
    /// `retries`: how often packets are sent again that nothing has acknowledged, up to 6, before
    /// the connection fails. Default: 6.
    pub retries: Option<u8>,
    /// `vector`: the interrupt that wakes pollers that sleep. Default: the first.
    pub vector: Option<CompletionVector>,
}

/// Which of a device's completion vectors, which are its interrupts, wakes a poller that sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionVector {
    /// This one, counted from 0.
    Only(u32),
    /// For each poller of the process the next one, in turn.
    Spread,
}

/// A setting that cannot be in force, and why.
#[derive(Debug, thiserror::Error)]
#[error("'{device}' cannot have {setting}={value}: {reason}")]
pub(crate) struct SettingError {
    pub(crate) device: String,
    pub(crate) setting: String,
    pub(crate) value: String,
    /// Why, and what to do.
    pub(crate) reason: String,
}

/// Why a device has nothing to send from.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    /// It has no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A setting cannot be in force.
    #[error("{0}")]
    Setting(Arc<SettingError>),
}

/// An address to send from, and how.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Its MTU is what the user permits of the port's.
    pub(crate) address: PortAddress,
    pub(crate) path: Path,
}

/// What queue pairs get of the settings, beside the MTU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    /// Index of the partition key in the port's table.
    pub(crate) pkey_index: u16,
    /// The key that is there, if one was asked for.
    pub(crate) pkey: Option<PartitionKey>,
    /// `None`: as usual.
    pub(crate) timeout: Option<AckTimeout>,
    /// `None`: as usual.
    pub(crate) retries: Option<RetryCount>,
}

/// Why a device without packets has no settings.
const NO_FABRIC: &str = "it has no fabric: shared memory and TCP connections have no \
                                    packets of RDMA. Leave the setting out, or give it to an RDMA \
                                    device";

/// By the specification, a device may wait for four times the timeout.
const LONGEST_WAIT: u32 = 4;

impl Source {
    /// Returns the source of queue pairs that no setting is given for.
    pub(crate) fn plain(address: PortAddress) -> Self {
        let path = Path::default();
        Self { address, path }
    }
}

impl FabricSettings {
    /// Returns what queue pairs get that send from this address: as [`source`](Self::source), and it
    /// refuses an MTU that the port does not have.
    ///
    /// # Errors
    ///
    /// [`SettingError`] names the first setting that cannot be in force.
    pub(crate) fn check(
        &self,
        context: &Context,
        address: PortAddress,
    ) -> Result<Source, SettingError> {
        let port = address.mtu;
        let source = self.source(context, address)?;
        if let Some(wanted) = self.max_mtu
            && wanted > port.bytes()
        {
            return Err(SettingError {
                device: context.device_name().to_owned(),
                setting: "mtu".to_owned(),
                value: wanted.to_string(),
                reason: format!(
                    "its port has an MTU of {port}. Take that or less, or raise the MTU of its network"
                ),
            });
        }
        Ok(source)
    }

    /// Returns what queue pairs get that send from this address.
    ///
    /// # Errors
    ///
    /// [`SettingError`] names the first setting that cannot be in force.
    pub(crate) fn source(
        &self,
        context: &Context,
        mut address: PortAddress,
    ) -> Result<Source, SettingError> {
        let device = context.device_name();
        let refuse = |setting: &str, reason: String| SettingError {
            device: device.to_owned(),
            setting: setting.to_owned(),
            value: self.value(setting),
            reason,
        };
        if let LinkLayer::Memory | LinkLayer::Tcp = address.link_layer
            && let Some(error) = self.without_fabric(device)
        {
            return Err(error);
        }
        let (most, which) = match address.link_layer {
            LinkLayer::InfiniBand => (15, "a service level"),
            _ => (7, "the priority of a VLAN"),
        };
        if let Some(level) = self.service_level
            && level > most
        {
            let reason = format!("{which} is a number up to {most}");
            return Err(refuse("sl", reason));
        }
        let (pkey_index, pkey) = match self.pkey {
            Some(wanted) => {
                let table = context.query_pkey_table(address.port);
                let table = table.map_err(|error| {
                    refuse("pkey", format!("the port's table cannot be read: {error}"))
                })?;
                let found = find_pkey(address.port, &table, PartitionKey(wanted));
                let (index, key) = found.map_err(|reason| refuse("pkey", reason))?;
                (index, Some(key))
            }
            None => (0, None),
        };
        if let Some(most) = self.max_mtu {
            let mtu = Mtu::at_most(most);
            if mtu.bytes() != most {
                let reason = "MTUs are 256, 512, 1024, 2048 and 4096 bytes".to_owned();
                return Err(refuse("mtu", reason));
            }
            address.mtu = address.mtu.min(mtu);
        }
        let timeout = self.timeout();
        let timeout = timeout.map_err(|reason| refuse("timeout", reason))?;
        let retries = self.retries();
        let retries = retries.map_err(|reason| refuse("retries", reason))?;
        check_wait(timeout, retries).map_err(|reason| refuse("timeout", reason))?;
        self.check_vector(vector_count(context))
            .map_err(|reason| refuse("vector", reason))?;
        let path = Path {
            traffic_class: self.traffic_class.unwrap_or_default(),
            service_level: self.service_level.unwrap_or_default(),
            pkey_index,
            pkey,
            timeout,
            retries,
        };
        Ok(Source { address, path })
    }

    /// Returns the error of a device that has no fabric, if there are settings.
    pub(crate) fn without_fabric(&self, device: &str) -> Option<SettingError> {
        let (setting, value) = self.items().next()?;
        Some(SettingError {
            device: device.to_owned(),
            setting: setting.to_owned(),
            value,
            reason: NO_FABRIC.to_owned(),
        })
    }

    fn timeout(&self) -> Result<Option<AckTimeout>, String> {
        let Some(time) = self.ack_timeout else {
            return Ok(None);
        };
        if time.is_zero() {
            return Err(
                "0 waits for ever, and a peer that is gone would not be noticed".to_owned(),
            );
        }
        match AckTimeout::at_least(time) {
            Some(timeout) => Ok(Some(timeout)),
            None => Err("devices have no timeout that is as long".to_owned()),
        }
    }

    fn retries(&self) -> Result<Option<RetryCount>, String> {
        match self.retries {
            None => Ok(None),
            Some(count @ ..=6) => Ok(RetryCount::new(count)),
            Some(_) => Err(
                "packets are sent again up to 6 times; some devices would go on for ever after 7"
                    .to_owned(),
            ),
        }
    }

    fn check_vector(&self, count: u32) -> Result<(), String> {
        match self.vector {
            Some(CompletionVector::Only(number)) if number >= count => Err(format!(
                "the device has {count} completion vector{}, counted from 0. Take one of these, or 'spread'",
                if count == 1 { "" } else { "s" }
            )),
            _ => Ok(()),
        }
    }

    /// Returns true if this setting, as it is called in the name of a device, is set.
    pub(crate) fn is_set(&self, wanted: &str) -> bool {
        self.items().any(|(setting, _)| setting == wanted)
    }

    fn value(&self, wanted: &str) -> String {
        let mut items = self.items();
        let found = items.find(|(setting, _)| *setting == wanted);
        found.map_or_else(String::new, |(_, value)| value)
    }

    /// Returns the settings that are set, each as it is written in the name of a device.
    pub(crate) fn items(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let vector = self.vector.map(|vector| match vector {
            CompletionVector::Only(number) => number.to_string(),
            CompletionVector::Spread => "spread".to_owned(),
        });
        let items = [
            ("tc", self.traffic_class.map(|class| class.to_string())),
            ("sl", self.service_level.map(|level| level.to_string())),
            ("pkey", self.pkey.map(|key| format!("{key:#06x}"))),
            ("mtu", self.max_mtu.map(|mtu| mtu.to_string())),
            ("timeout", self.ack_timeout.map(shown_timeout)),
            ("retries", self.retries.map(|count| count.to_string())),
            ("vector", vector),
        ];
        let set = |(setting, value): (_, Option<String>)| Some((setting, value?));
        items.into_iter().filter_map(set)
    }

    /// Returns these settings, and for those that are not set the other ones.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            traffic_class: self.traffic_class.or(other.traffic_class),
            service_level: self.service_level.or(other.service_level),
            pkey: self.pkey.or(other.pkey),
            max_mtu: self.max_mtu.or(other.max_mtu),
            ack_timeout: self.ack_timeout.or(other.ack_timeout),
            retries: self.retries.or(other.retries),
            vector: self.vector.or(other.vector),
        }
    }
}

/// Returns the time as it is written in the name of a device: as a code if there is one for it.
fn shown_timeout(time: Duration) -> String {
    let code = AckTimeout::at_least(time).filter(|code| code.duration() == Some(time));
    if let Some(code) = code {
        return code.code().to_string();
    }
    let nanos = time.as_nanos();
    for (unit, unit_nanos) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if nanos.is_multiple_of(unit_nanos) {
            return format!("{}{unit}", nanos / unit_nanos);
        }
    }
    format!("{nanos}ns")
}

/// Checks that the device gives up before Verbline does. With the usual timeout it always does.
fn check_wait(timeout: Option<AckTimeout>, retries: Option<RetryCount>) -> Result<(), String> {
    let usual = RtsAttributes::new(Psn::default());
    let timeout = timeout.unwrap_or(usual.timeout);
    let budget = retries.unwrap_or(usual.retry_cnt).budget(timeout);
    let wait = budget.unwrap_or(Duration::MAX).saturating_mul(LONGEST_WAIT);
    if wait <= WATCHED_TIME {
        return Ok(());
    }
    Err(format!(
        "with all retries, the device could wait for {wait:.1?}, and a connection whose send has not \
         ended after {WATCHED_TIME:.0?} is closed. Take a shorter timeout, or fewer retries"
    ))
}

/// Returns the index and the value of the key of this partition in the port's table: of this very key
/// if the port is there as a full and as a limited member, since limited members do not hear each other.
fn find_pkey(
    port: u8,
    table: &[(u16, PartitionKey)],
    wanted: PartitionKey,
) -> Result<(u16, PartitionKey), String> {
    let of_partition = |(_, key): &&(u16, PartitionKey)| key.partition() == wanted.partition();
    let same = table.iter().find(|(_, key)| *key == wanted);
    let found = same.or_else(|| table.iter().find(of_partition));
    found.copied().ok_or_else(|| {
        let known: Vec<_> = table
            .iter()
            .map(|(index, key)| format!("{index}: {key}"))
            .collect();
        format!(
            "port {port} is in no such partition; its table has {}. Take one of these, or have the \
             subnet manager add the port to the partition",
            known.join(", ")
        )
    })
}

/// Returns the number of the device's completion vectors: one at least.
pub(crate) fn vector_count(context: &Context) -> u32 {
    let count = context.query_device().num_comp_vectors;
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests;
