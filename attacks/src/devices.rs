//! [`ClientDevice`]: what clients of the attacked server open, with TLS or without.

use benches::Outcome;
use rpc_transport_verbs::Device;
use serde::{Deserialize, Serialize};

/// A device by its name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClientDevice {
    name: String,
    #[cfg(feature = "tls")]
    tls: Option<Pem>,
}

impl ClientDevice {
    /// Without TLS.
    #[must_use]
    pub(crate) fn plain(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// With this TLS.
    #[cfg(feature = "tls")]
    #[must_use]
    pub(crate) fn secured(name: &str, pem: &Pem) -> Self {
        Self {
            tls: Some(pem.clone()),
            ..Self::plain(name)
        }
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// Fails if the machine has no such device.
    pub(crate) fn open(&self) -> Outcome<Device> {
        let device = Device::open(&self.name)?;
        #[cfg(feature = "tls")]
        if let Some(pem) = &self.tls {
            return Ok(device.with_client_tls(pem.client()?));
        }
        Ok(device)
    }
}

/// A certificate for the server and for its clients, and the authority that they believe.
#[cfg(feature = "tls")]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pem {
    authority: String,
    certificate: String,
    key: String,
}

#[cfg(feature = "tls")]
impl Pem {
    /// Of a new authority.
    #[must_use]
    pub(crate) fn new() -> Self {
        let authority = tls_testing::Authority::new("root");
        let issued = authority.issue(&tls_testing::local_server());
        Self {
            authority: authority.pem(),
            certificate: issued.certificate,
            key: issued.key,
        }
    }

    /// Opens a server's device.
    ///
    /// # Errors
    ///
    /// Fails if the machine has no such device.
    pub(crate) fn server(&self, name: &str) -> Outcome<Device> {
        let tls = verbline_tls::ServerTls::new(self.identity()?);
        let tls = tls.clients(self.roots()?, verbline_tls::ClientAuth::Required);
        Ok(Device::open(name)?.with_server_tls(tls))
    }

    /// Returns a client's TLS.
    ///
    /// # Errors
    ///
    /// Fails if a certificate is malformed.
    pub(crate) fn client(&self) -> Outcome<verbline_tls::ClientTls> {
        Ok(verbline_tls::ClientTls::new(self.roots()?).identity(self.identity()?))
    }

    fn identity(&self) -> Outcome<verbline_tls::Identity> {
        let (certificate, key) = (self.certificate.as_bytes(), self.key.as_bytes());
        Ok(verbline_tls::Identity::from_pem(certificate, key)?)
    }

    fn roots(&self) -> Outcome<verbline_tls::Roots> {
        Ok(verbline_tls::Roots::from_pem(self.authority.as_bytes())?)
    }
}
