//! [`Side`]: one side of a connection, which reads as rustls does, and says whatever records it likes.

use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{
    ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection, SideData,
};
use verbline_tls::{ClientTls, ServerTls};

use crate::sealer::{Sealer, Secrets};

/// One side of a connection, after its handshake.
pub struct Side {
    /// Reads what the other side says.
    pub opener: Opener,
    /// Seals what this side says: rustls has sealed nothing since the handshake.
    pub sealer: Sealer,
}

impl Side {
    /// Shakes hands with the server at the other end of a socket.
    ///
    /// # Errors
    ///
    /// Returns an error if either refuses the other.
    pub fn connect(tls: &ClientTls, host: &str, socket: &TcpStream) -> io::Result<Self> {
        let secrets = Secrets::default();
        let mut config = ClientConfig::clone(&tls.config());
        config.key_log = Arc::new(secrets.clone());
        let name = tls.server_name(host).map_err(io::Error::other)?;
        let mut client = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        shake(&mut client, socket)?;
        Self::new(client.into(), &secrets, "CLIENT")
    }

    /// Shakes hands with the client at the other end of a socket.
    ///
    /// # Errors
    ///
    /// Returns an error if either refuses the other.
    pub fn accept(tls: &ServerTls, socket: &TcpStream) -> io::Result<Self> {
        let secrets = Secrets::default();
        let mut config = ServerConfig::clone(&tls.config());
        config.key_log = Arc::new(secrets.clone());
        let mut server = ServerConnection::new(Arc::new(config)).map_err(io::Error::other)?;
        shake(&mut server, socket)?;
        Self::new(server.into(), &secrets, "SERVER")
    }

    fn new(connection: Connection, secrets: &Secrets, of: &str) -> io::Result<Self> {
        let sealer = secrets.sealer(&format!("{of}_TRAFFIC_SECRET_0"));
        let sealer = sealer.ok_or_else(|| io::Error::other("the handshake is not complete"))?;
        let opener = Opener(connection);
        Ok(Self { opener, sealer })
    }
}

fn shake<D: SideData>(
    connection: &mut rustls::ConnectionCommon<D>,
    mut socket: &TcpStream,
) -> io::Result<()> {
    while connection.is_handshaking() {
        connection.complete_io(&mut socket)?;
    }
    while connection.wants_write() {
        connection.write_tls(&mut socket)?;
    }
    Ok(())
}

/// What reads the other side's records.
#[derive(Debug)]
pub struct Opener(Connection);

impl Opener {
    /// Returns the next bytes that the other side has said. None: it has said that nothing follows.
    ///
    /// # Errors
    ///
    /// Returns an error if the socket ends before, or if rustls does not accept a record.
    pub fn read(&mut self, mut socket: &TcpStream) -> io::Result<Vec<u8>> {
        let mut plain = vec![0; 64 * 1024];
        loop {
            match self.0.reader().read(&mut plain) {
                Ok(len) => {
                    plain.truncate(len);
                    return Ok(plain);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            self.0.read_tls(&mut socket)?;
            self.0.process_new_packets().map_err(io::Error::other)?;
        }
    }
}
