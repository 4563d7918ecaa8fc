//! Clients of both flavours, behind one interface for the cases.

use std::fmt;
use std::time::Duration;

use rpc_core::transport::{ConnectError, FabricError};
use rpc_core::{
    CallError, Caller, Channel, ChannelError, Code, LocalChannel, LocalPoller, MetadataError,
    Request, SendError, Stats,
};
use rpc_transport_verbs::Device;

/// A limit for every call, so that a call that would hang fails its case. No case comes near it on
/// an emulated processor.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A way to make calls.
pub(crate) trait Flavor {
    /// Its channels.
    type Channel: Caller + Clone;

    /// Connects to the server.
    fn connect(&self) -> Result<Self::Channel, Failure>;

    /// Returns the client's statistics, if it has any.
    fn stats(&self, channel: &Self::Channel) -> Option<Stats>;

    /// Runs a future to its end.
    fn block_on<F: Future>(&self, future: F) -> F::Output;
}

/// The case's thread is the poller.
pub(crate) struct Local {
    poller: LocalPoller,
    address: String,
}

impl Local {
    pub(crate) fn new(device: &Device, address: &str) -> Result<Self, Failure> {
        Ok(Self {
            poller: LocalPoller::new(device)?,
            address: address.to_owned(),
        })
    }
}

impl Flavor for Local {
    type Channel = LocalChannel;

    fn connect(&self) -> Result<LocalChannel, Failure> {
        Ok(self.poller.connect(&self.address)?)
    }

    fn stats(&self, _: &LocalChannel) -> Option<Stats> {
        Some(self.poller.stats())
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.poller.block_on(future)
    }
}

/// The case's thread is not the poller, which has its own.
pub(crate) struct Shared {
    device: Device,
    address: String,
}

impl Shared {
    pub(crate) fn new(device: &Device, address: &str) -> Self {
        Self {
            device: device.clone(),
            address: address.to_owned(),
        }
    }
}

impl Flavor for Shared {
    type Channel = Channel;

    fn connect(&self) -> Result<Channel, Failure> {
        let builder = Channel::builder(&self.device, &self.address);
        Ok(rpc_core::block_on(builder.connect())?)
    }

    fn stats(&self, channel: &Channel) -> Option<Stats> {
        Some(channel.stats())
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        rpc_core::block_on(future)
    }
}

/// A gRPC server of any kind, over HTTP/2. Its runtime polls the connection, and not the calls.
#[cfg(feature = "grpc")]
pub(crate) struct Grpc {
    runtime: tokio::runtime::Runtime,
    target: String,
}

#[cfg(feature = "grpc")]
impl Grpc {
    pub(crate) fn new(address: &str) -> std::io::Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        Ok(Self {
            runtime: runtime.worker_threads(1).enable_all().build()?,
            target: format!("http://{address}"),
        })
    }
}

#[cfg(feature = "grpc")]
impl Flavor for Grpc {
    type Channel = verbline_gateway::GrpcChannel;

    fn connect(&self) -> Result<Self::Channel, Failure> {
        let channel = verbline_gateway::GrpcChannel::connect(&self.target);
        Ok(self.runtime.block_on(channel)?)
    }

    fn stats(&self, _: &Self::Channel) -> Option<Stats> {
        None
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        rpc_core::block_on(future)
    }
}

/// Creates a request that cannot hang.
pub(crate) fn request<T>(message: T) -> Request<T> {
    Request::new(message).with_timeout(TIMEOUT)
}

/// The reason that a case has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("a call failed: {0}")]
    Call(#[from] CallError),
    #[error("a message was not sent: {0}")]
    Send(#[from] SendError),
    #[error("cannot connect: {0}")]
    Connect(#[from] ConnectError),
    #[error("cannot connect: {0}")]
    Channel(#[from] ChannelError),
    #[cfg(feature = "grpc")]
    #[error("{0}")]
    Grpc(#[from] verbline_gateway::GrpcConnectError),
    #[error("metadata is invalid: {0}")]
    Metadata(#[from] MetadataError),
    #[error("cannot create a poller: {0}")]
    Poller(#[from] FabricError),
    #[error("{what}: expected {expected}, got {found}")]
    Unlike {
        what: &'static str,
        expected: String,
        found: String,
    },
    #[error("a call succeeded instead of ending with {0}")]
    Succeeded(Code),
}

/// Compares two values.
pub(crate) fn expect<T: PartialEq + fmt::Debug>(
    what: &'static str,
    found: T,
    expected: T,
) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    Err(Failure::Unlike {
        what,
        expected: format!("{expected:?}"),
        found: format!("{found:?}"),
    })
}

/// Returns the error of a call that must fail with this code.
pub(crate) fn expect_error<T>(
    outcome: Result<T, CallError>,
    code: Code,
) -> Result<CallError, Failure> {
    let Err(error) = outcome else {
        return Err(Failure::Succeeded(code));
    };
    expect("status code", error.code(), code)?;
    Ok(error)
}
