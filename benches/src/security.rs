//! [`Security`]: the certificates of both sides of a measurement, as PEM texts. The server's process is
//! told its own.

use rpc_transport_verbs::Device;
use serde::{Deserialize, Serialize};
use tls_testing::{Authority, Issued};
use tonic::transport::{Certificate, ClientTlsConfig, Identity as TonicIdentity, ServerTlsConfig};
use verbline_tls::{ClientAuth, ClientTls, Identity, Roots, ServerTls, TlsError};

use crate::Outcome;
use crate::service::ServerArgs;

/// What the two sides know of each other.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// Of the server; `None`: what it sends is not encrypted.
    pub server: Option<ServerTexts>,
    /// Of its clients.
    pub client: Option<ClientTexts>,
}

/// A certificate and its key: ECDSA over P-256.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pair {
    certificate: String,
    key: String,
}

/// What a server has and believes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerTexts {
    identity: Pair,
    /// The authority of its clients, if they need a certificate.
    clients: Option<String>,
}

/// What a client has and believes.
#[derive(Clone, Debug)]
pub struct ClientTexts {
    authority: String,
    identity: Option<Pair>,
}

impl Security {
    /// TLS whose server proves who it is, and whose clients do if they have certificates, too.
    #[must_use]
    pub fn tls(have_clients_certificates: bool) -> Self {
        let authority = Authority::new("benches");
        let client = || Pair::from(authority.issue_to("client.example"));
        Self {
            server: Some(ServerTexts {
                identity: authority.issue(&tls_testing::local_server()).into(),
                clients: have_clients_certificates.then(|| authority.pem()),
            }),
            client: Some(ClientTexts {
                identity: have_clients_certificates.then(client),
                authority: authority.pem(),
            }),
        }
    }

    /// Returns the device, whose clients connect in this way.
    ///
    /// # Errors
    ///
    /// Fails if a text is none of a certificate.
    pub fn of_clients(&self, device: &Device) -> Outcome<Device> {
        let device = device.clone();
        Ok(match &self.client {
            Some(texts) => device.with_client_tls(texts.client_tls()?),
            None => device,
        })
    }

    /// Returns the arguments of a server that takes such clients.
    #[must_use]
    pub fn of_server(&self, mut args: ServerArgs) -> ServerArgs {
        args.tls.clone_from(&self.server);
        args
    }
}

impl ServerTexts {
    /// Returns the TLS of a server.
    ///
    /// # Errors
    ///
    /// Fails if a text is none of a certificate or a key.
    pub fn server_tls(&self) -> Outcome<ServerTls> {
        let tls = ServerTls::new(self.identity.identity()?);
        Ok(match &self.clients {
            Some(root) => tls.clients(Roots::from_pem(root.as_bytes())?, ClientAuth::Required),
            None => tls,
        })
    }

    /// Returns the same for tonic.
    #[must_use]
    pub fn of_tonic(&self) -> ServerTlsConfig {
        let tls = ServerTlsConfig::new().identity(self.identity.of_tonic());
        match &self.clients {
            Some(root) => tls.client_ca_root(Certificate::from_pem(root)),
            None => tls,
        }
    }
}

impl ClientTexts {
    fn client_tls(&self) -> Outcome<ClientTls> {
        let tls = ClientTls::new(Roots::from_pem(self.authority.as_bytes())?);
        Ok(match &self.identity {
            Some(pair) => tls.identity(pair.identity()?),
            None => tls,
        })
    }

    /// Returns the same for tonic.
    #[must_use]
    pub fn of_tonic(&self) -> ClientTlsConfig {
        let root = Certificate::from_pem(&self.authority);
        let tls = ClientTlsConfig::new().ca_certificate(root);
        match &self.identity {
            Some(pair) => tls.identity(pair.of_tonic()),
            None => tls,
        }
    }
}

impl Pair {
    fn identity(&self) -> Result<Identity, TlsError> {
        Identity::from_pem(self.certificate.as_bytes(), self.key.as_bytes())
    }

    fn of_tonic(&self) -> TonicIdentity {
        TonicIdentity::from_pem(&self.certificate, &self.key)
    }
}

impl From<Issued> for Pair {
    fn from(issued: Issued) -> Self {
        Self {
            certificate: issued.certificate,
            key: issued.key,
        }
    }
}
