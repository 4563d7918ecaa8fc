//! [`Target`]: the server that a command is about.

use std::time::{Duration, Instant};

use verbline::client::RemoteMethods;
use verbline::{Channel, Device, Metadata, Request};
use verbline_gateway::{AnyChannel, GrpcChannel};

use crate::arguments::Connection;
use crate::failure::Failure;

/// A channel to the server, and what all calls of the command have in common.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) address: String,
    pub(crate) channel: AnyChannel,
    pub(crate) connecting_took: Duration,
    metadata: Metadata,
    deadline: Option<Instant>,
}

impl Target {
    /// Connects.
    pub(crate) async fn connect(connection: Connection) -> Result<Self, Failure> {
        let begun = Instant::now();
        // The far future is no deadline.
        let deadline = connection
            .timeout
            .and_then(|timeout| begun.checked_add(timeout));
        let mut metadata = Metadata::new();
        for (key, value) in connection.headers.iter().flat_map(|headers| &headers.0) {
            metadata.append(key, value.clone())?;
        }
        let connecting = open(&connection);
        let channel = match (deadline, connection.timeout) {
            (Some(deadline), Some(timeout)) => {
                let connected = tokio::time::timeout_at(deadline.into(), connecting).await;
                connected.map_err(|_| Failure::ConnectTimeout {
                    address: connection.address.clone(),
                    timeout,
                })??
            }
            _ => connecting.await?,
        };
        Ok(Self {
            address: connection.address,
            channel,
            connecting_took: begun.elapsed(),
            metadata,
            deadline,
        })
    }

    /// Creates a request with the command's metadata and deadline.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let request = Request::new(message).with_metadata(self.metadata.clone());
        match self.deadline {
            Some(deadline) => request.with_deadline(deadline),
            None => request,
        }
    }

    /// Returns the methods that a Verbline server has named. A gRPC server names none by itself.
    pub(crate) fn methods(&self) -> Option<RemoteMethods> {
        match &self.channel {
            AnyChannel::Verbline(channel) => channel.methods(),
            _ => None,
        }
    }

    /// Returns the command's metadata.
    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the device over which a Verbline server is reached.
    pub(crate) fn device(&self) -> Option<String> {
        match &self.channel {
            AnyChannel::Verbline(channel) => Some(channel.limits()?.device.clone()),
            _ => None,
        }
    }

    /// Gives up the deadline, for a stream that has none.
    pub(crate) fn without_deadline(mut self) -> Self {
        self.deadline = None;
        self
    }
}

/// Returns true if the address is that of a gRPC server.
pub(crate) fn is_grpc(address: &str) -> bool {
    address.contains("://")
}

/// Opens the device to a Verbline server.
pub(crate) fn device(connection: &Connection) -> Result<Device, Failure> {
    let device = match &connection.device {
        Some(name) => Device::open(name)?,
        None => Device::best()?,
    };
    let device = match connection.allow_plaintext {
        true => device.allow_plaintext(),
        false => device,
    };
    Ok(match connection.tls.open()? {
        Some(tls) => device.with_client_tls(tls),
        None => device,
    })
}

/// Connects to a gRPC server.
pub(crate) async fn connect_grpc(connection: &Connection) -> Result<GrpcChannel, Failure> {
    if let Some(device) = &connection.device {
        return Err(Failure::NoDevice {
            address: connection.address.clone(),
            device: device.clone(),
        });
    }
    let address = &connection.address;
    let channel = match connection.tls.open()? {
        Some(tls) => GrpcChannel::connect_with_tls(address, tls).await?,
        None => GrpcChannel::connect(address).await?,
    };
    Ok(channel.max_message_len(connection.max_message_len))
}

async fn open(connection: &Connection) -> Result<AnyChannel, Failure> {
    if is_grpc(&connection.address) {
        return Ok(AnyChannel::Grpc(connect_grpc(connection).await?));
    }
    let channel = Channel::builder(&device(connection)?, &connection.address)
        .max_message_len(connection.max_message_len)
        .connect()
        .await;
    Ok(AnyChannel::Verbline(channel?))
}
