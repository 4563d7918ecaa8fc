//! Serves a store of blobs: files of any size, whose SHA-256 digests are checked. Run it, and then run
//! `blob_client` in another terminal:
//!
//! ```text
//! cargo run --release -p examples --bin blob_server -- blobs
//! ```
//!
//! The argument is the directory that keeps the blobs. `--help` lists the arguments.
#![forbid(unsafe_code)]
// The server prints its address for the user.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use proto::blobs::part::Part as Content;
use proto::blobs::{Blob, Blobs, BlobsServer, GetRequest, Header, Part, PutReply};
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;
use verbline::{
    Device, Request, Response, Server, Status, Stream, Streaming, TokioExecutor, stream,
};

/// The longest blob that travels in one message, in bytes: a client receives messages of up to 4
/// MiB by default. Longer ones travel in parts.
const WHOLE_LEN: u64 = (4 << 20) - HEADER_LEN;

/// Bytes of a part.
const PART_LEN: usize = 1 << 20;

/// Room in a message for the header and the lengths of the fields, in bytes.
const HEADER_LEN: u64 = 1 << 10;

/// Bytes of a digest.
const DIGEST_LEN: u64 = 32;

/// Keeps each blob as a file: the digest, then the bytes.
struct Directory {
    path: PathBuf,
    /// The number of the next temporary file.
    next: AtomicU64,
}

/// A blob that is being written. It is removed unless it is kept.
struct Writing {
    header: Header,
    path: PathBuf,
    file: File,
    digest: Sha256,
    len: u64,
}

impl Directory {
    /// Opens the directory, and removes the blobs that earlier servers were writing when they were
    /// killed. Other servers may use it too, if they see each other's processes: those in other
    /// containers do not.
    fn open(path: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&path)?;
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_str().and_then(writer_of).is_some_and(is_gone) {
                // Another server that starts may have removed it.
                let _ = fs::remove_file(entry.path());
            }
        }
        let next = AtomicU64::new(0);
        Ok(Self { path, next })
    }

    fn file_of(&self, name: &str) -> Result<PathBuf, Status> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.starts_with('.') || !name.bytes().all(is_allowed) {
            return Err(Status::invalid_argument(format!(
                "'{name}' names no blob: expected letters, digits, '-', '_' and '.', and no '.' at the \
                 beginning"
            )));
        }
        Ok(self.path.join(name))
    }

    /// Begins to write a blob.
    fn begin(&self, header: Option<Header>) -> Result<Writing, Status> {
        let header = header.ok_or_else(|| Status::invalid_argument("the header is missing"))?;
        self.file_of(&header.name)?;
        // Relaxed: only the number itself counts.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(temporary(std::process::id(), number));
        let mut file = File::create(&path).map_err(cannot("write", &header.name))?;
        file.write_all(&header.sha256)
            .map_err(cannot("write", &header.name))?;
        Ok(Writing {
            header,
            path,
            file,
            digest: Sha256::new(),
            len: 0,
        })
    }

    /// Checks the blob, and gives it its name.
    fn keep(&self, writing: Writing) -> Result<PutReply, Status> {
        let Header { name, len, sha256 } = &writing.header;
        if writing.len != *len {
            return Err(Status::data_loss(format!(
                "blob '{name}' has {} bytes; its header says {len}",
                writing.len
            )));
        }
        if writing.digest.clone().finalize()[..] != sha256[..] {
            return Err(Status::data_loss(format!(
                "the bytes of blob '{name}' do not have the digest that its header says"
            )));
        }
        let file = self.file_of(name)?;
        let replaced = file.exists();
        fs::rename(&writing.path, file).map_err(cannot("keep", name))?;
        Ok(PutReply { replaced })
    }

    /// Opens a blob, and returns its header and its bytes.
    fn header_and_bytes(&self, name: String) -> Result<(Header, File), Status> {
        let mut file = match File::open(self.file_of(&name)?) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Status::not_found(format!("there is no blob '{name}'")));
            }
            Err(error) => return Err(cannot("open", &name)(error)),
        };
        let mut digest = [0; DIGEST_LEN as usize];
        file.read_exact(&mut digest)
            .map_err(cannot("read", &name))?;
        let len = file.metadata().map_err(cannot("read", &name))?.len() - DIGEST_LEN;
        let sha256 = digest.to_vec().into();
        Ok((Header { name, len, sha256 }, file))
    }
}

impl Writing {
    fn add(&mut self, data: &[u8]) -> Result<(), Status> {
        self.digest.update(data);
        self.len += data.len() as u64;
        let written = self.file.write_all(data);
        written.map_err(cannot("write", &self.header.name))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // A blob that was kept is no longer there.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns the name of a file that a process is writing. It is no name of a blob.
fn temporary(process: u32, number: u64) -> String {
    format!(".{process}-{number}")
}

/// Returns the process that writes the file of this name, if it is a temporary one.
fn writer_of(name: &str) -> Option<u32> {
    let (process, number) = name.strip_prefix('.')?.split_once('-')?;
    let (process, number) = (process.parse().ok()?, number.parse().ok()?);
    (temporary(process, number) == name).then_some(process)
}

/// Returns true if a process has ended. This one has written nothing yet: a file with its number is
/// an earlier one's.
fn is_gone(process: u32) -> bool {
    process == std::process::id() || !Path::new("/proc").join(process.to_string()).exists()
}

/// Returns a function that makes a status of an error.
fn cannot(what: &str, name: &str) -> impl Fn(io::Error) -> Status {
    move |error| Status::internal(format!("cannot {what} blob '{name}': {error}"))
}

fn check_digest(header: &Header, digest: Sha256) -> Result<(), Status> {
    if digest.finalize()[..] == header.sha256[..] {
        return Ok(());
    }
    let name = &header.name;
    Err(Status::data_loss(format!(
        "blob '{name}' has changed since it was put: its digest is wrong"
    )))
}

fn part(content: Content) -> Part {
    Part {
        part: Some(content),
    }
}

impl Blobs for Directory {
    async fn put(&self, request: Request<Blob>) -> Result<Response<PutReply>, Status> {
        let Blob { header, data } = request.into_inner();
        let mut writing = self.begin(header)?;
        writing.add(&data)?;
        Ok(Response::new(self.keep(writing)?))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<Blob>, Status> {
        let (header, mut file) = self.header_and_bytes(request.into_inner().name)?;
        let Header { name, len, .. } = &header;
        if *len > WHOLE_LEN {
            return Err(Status::failed_precondition(format!(
                "blob '{name}' has {len} bytes, and one message carries {WHOLE_LEN}: get it in parts"
            )));
        }
        let mut data = Vec::new();
        file.read_to_end(&mut data).map_err(cannot("read", name))?;
        check_digest(&header, Sha256::new_with_prefix(&data))?;
        Ok(Response::new(Blob {
            header: Some(header),
            data: data.into(),
        }))
    }

    async fn put_parts(
        &self,
        request: Request<Streaming<Part>>,
    ) -> Result<Response<PutReply>, Status> {
        let mut parts = request.into_inner();
        let header = match parts.message().await?.and_then(|first| first.part) {
            Some(Content::Header(header)) => Some(header),
            Some(Content::Data(_)) | None => None,
        };
        // If the client ends early, the `?` removes what was written.
        let mut writing = self.begin(header)?;
        while let Some(next) = parts.message().await? {
            match next.part {
                Some(Content::Data(data)) => writing.add(&data)?,
                Some(Content::Header(_)) | None => {
                    return Err(Status::invalid_argument("expected bytes after the header"));
                }
            }
        }
        Ok(Response::new(self.keep(writing)?))
    }

    async fn get_parts(
        &self,
        request: Request<GetRequest>,
    ) -> Result<Response<impl Stream<Item = Result<Part, Status>>>, Status> {
        let (header, mut file) = self.header_and_bytes(request.into_inner().name)?;
        Ok(Response::new(stream(async move |mut parts| {
            let mut digest = Sha256::new();
            parts.send(part(Content::Header(header.clone()))).await?;
            loop {
                let mut data = Vec::with_capacity(PART_LEN);
                let mut piece = (&mut file).take(PART_LEN as u64);
                let read = piece.read_to_end(&mut data);
                if read.map_err(cannot("read", &header.name))? == 0 {
                    return check_digest(&header, digest);
                }
                digest.update(&data);
                // Waits while the client does not read.
                parts.send(part(Content::Data(data.into()))).await?;
            }
        })))
    }
}

/// Serves a store of blobs
#[derive(Parser)]
#[command(after_help = "Next: run `blob_client put cargo-lock Cargo.lock` in another terminal")]
struct Arguments {
    /// The directory that keeps the blobs. It is created if there is none.
    directory: PathBuf,
    /// The address to listen at. With port 0, the system chooses a port.
    #[arg(default_value = "127.0.0.1:50051", value_parser = host_and_port)]
    address: String,
}

/// Accepts `host:port`, so that swapped arguments are an error before anything is created.
fn host_and_port(text: &str) -> Result<String, &'static str> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err("expected host:port, such as 127.0.0.1:50051"),
    }
}

fn run(Arguments { directory, address }: Arguments) -> Result<(), Box<dyn Error>> {
    let shown = directory.display().to_string();
    let store = Directory::open(directory).map_err(|error| format!("{shown}: {error}"))?;

    // Handlers read files and compute digests, which takes milliseconds. They run on tokio's threads,
    // so that the pollers serve other calls meanwhile.
    let runtime = Runtime::new()?;
    let server = Server::builder(&Device::best()?)
        .executor(TokioExecutor::from(runtime.handle().clone()))
        .add_service(BlobsServer::new(store))
        .bind(&address)?;
    println!("listening at {}", server.local_addr());
    Ok(server.run()?)
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("blob_server: {error}");
            ExitCode::FAILURE
        }
    }
}
