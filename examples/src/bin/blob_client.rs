//! Puts a file into a running `blob_server`, or gets one from it:
//!
//! ```text
//! cargo run --release -p examples --bin blob_client -- put cargo-lock Cargo.lock
//! cargo run --release -p examples --bin blob_client -- get cargo-lock /tmp/Cargo.lock
//! ```
//!
//! A file that fits into one message travels in one call, a longer one in a stream of parts. Both
//! sides check its SHA-256 digest.
#![forbid(unsafe_code)]
// Printing the outcome is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use clap::{Parser, Subcommand};
use proto::blobs::part::Part as Content;
use proto::blobs::{Blob, BlobsClient, GetRequest, Header, Part};
use sha2::{Digest, Sha256};
use verbline::{Channel, Code, Device, Sender, block_on, sender};

/// The longest blob that travels in one message, in bytes: a server receives messages of up to 4
/// MiB by default. Longer ones travel in parts.
const WHOLE_LEN: u64 = (4 << 20) - HEADER_LEN;

/// Bytes of a part.
const PART_LEN: usize = 1 << 20;

/// Room in a message for the header and the lengths of the fields, in bytes.
const HEADER_LEN: u64 = 1 << 10;

/// Puts files into a store of blobs, and gets them.
#[derive(Parser)]
#[command(after_help = "Next: read docs/memory.md, which says when such messages are copied")]
struct Arguments {
    /// The server's address.
    #[arg(long, default_value = "127.0.0.1:50051")]
    address: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Stores a file under a name.
    Put {
        /// The name of the blob: letters, digits, '-', '_' and '.'.
        name: String,
        /// The file to read.
        file: PathBuf,
    },
    /// Writes a blob to a file, unless its digest is wrong.
    Get {
        /// The name of the blob.
        name: String,
        /// The file to write. It is replaced if it exists.
        file: PathBuf,
    },
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

async fn put(blobs: &BlobsClient, name: String, path: &Path) -> Outcome<()> {
    let mut file = File::open(path).map_err(in_file(path))?;
    let (len, digest) = digest_of(&mut file).map_err(in_file(path))?;
    file.rewind().map_err(in_file(path))?;
    let sha256 = digest.finalize().to_vec().into();
    let header = Header { name, len, sha256 };
    let text = describe(&header);
    let (reply, how) = if len <= WHOLE_LEN {
        let mut data = Vec::new();
        file.read_to_end(&mut data).map_err(in_file(path))?;
        let header = Some(header);
        let data = data.into();
        (blobs.put(Blob { header, data }).await?, "in one message")
    } else {
        let (parts, messages) = sender();
        // The file is read on a thread of its own, and this one waits for the response. If the call
        // fails, `send` fails as well, so the thread ends.
        let reading = thread::spawn(move || block_on(send_parts(header, file, parts)));
        let reply = blobs.put_parts(messages).await;
        let read = reading.join().map_err(|_| "the reading thread panicked")?;
        // If the file could not be read, the server has got a part of it, and says only that.
        read.map_err(in_file(path))?;
        (reply?, "in parts")
    };
    let verb = if reply.into_inner().replaced {
        "replaced"
    } else {
        "put"
    };
    println!("{verb} {text}, {how}");
    Ok(())
}

/// Reads a file to its end, and returns the number of its bytes and their digest.
fn digest_of(file: &mut File) -> io::Result<(u64, Sha256)> {
    let (mut len, mut digest) = (0, Sha256::new());
    let mut piece = vec![0; PART_LEN];
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            return Ok((len, digest));
        }
        digest.update(&piece[..read]);
        len += read as u64;
    }
}

/// Sends the parts of a file, unless it cannot be read. If the call ends early, its response says why.
async fn send_parts(
    header: Header,
    mut file: impl Read,
    mut parts: Sender<Part>,
) -> io::Result<()> {
    let mut part = Some(Content::Header(header));
    while parts.send(Part { part }).await.is_ok() {
        let mut data = Vec::with_capacity(PART_LEN);
        if (&mut file).take(PART_LEN as u64).read_to_end(&mut data)? == 0 {
            break;
        }
        part = Some(Content::Data(data.into()));
    }
    Ok(())
}

async fn get(blobs: &BlobsClient, name: String, path: &Path) -> Outcome<()> {
    // The file appears under its name when the digest has been checked.
    let mut unchecked = path.as_os_str().to_owned();
    unchecked.push(".unchecked");
    let unchecked = PathBuf::from(unchecked);
    let file = File::create(&unchecked).map_err(in_file(&unchecked))?;
    let outcome = match receive(blobs, name, &file, &unchecked).await {
        Ok((header, how)) => fs::rename(&unchecked, path)
            .map(|()| println!("got {}, {how}", describe(&header)))
            .map_err(|error| in_file(path)(error).into()),
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        // The error that is reported is the first.
        let _ = fs::remove_file(&unchecked);
    }
    outcome
}

/// Receives a blob in one message, or else in parts, and checks its length and digest.
async fn receive(
    blobs: &BlobsClient,
    name: String,
    mut file: &File,
    path: &Path,
) -> Outcome<(Header, &'static str)> {
    let mut digest = Sha256::new();
    let mut received = 0;
    let mut write = |data: &[u8]| {
        digest.update(data);
        received += data.len() as u64;
        file.write_all(data).map_err(in_file(path))
    };
    let whole = blobs.get(GetRequest { name: name.clone() }).await;
    let (header, how) = match whole {
        Ok(blob) => {
            let Blob { header, data } = blob.into_inner();
            write(&data)?;
            (header, "in one message")
        }
        Err(error) if error.code() == Code::FailedPrecondition => {
            let mut parts = blobs.get_parts(GetRequest { name }).await?.into_inner();
            let mut header = None;
            while let Some(Part { part }) = parts.message().await? {
                match part {
                    Some(Content::Header(first)) => header = Some(first),
                    Some(Content::Data(data)) => write(&data)?,
                    None => return Err("the server has sent an empty part".into()),
                }
            }
            (header, "in parts")
        }
        Err(error) => return Err(error.into()),
    };
    let header = header.ok_or("the server has sent no header")?;
    if received != header.len || digest.finalize()[..] != header.sha256[..] {
        return Err(format!(
            "the blob was not written: the {received} bytes that have arrived do not have the length or the \
             digest of the header ({}). Get it again, or check the server's copy",
            describe(&header)
        )
        .into());
    }
    Ok((header, how))
}

fn describe(Header { name, len, sha256 }: &Header) -> String {
    let hex: String = sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name}: {len} bytes, sha256 {hex}")
}

/// Returns a function that adds the file's name to an error.
fn in_file(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

async fn run(arguments: Arguments) -> Outcome<()> {
    let channel = Channel::connect(&Device::best()?, &arguments.address).await?;
    let blobs = BlobsClient::new(channel);
    match arguments.command {
        Command::Put { name, file } => put(&blobs, name, &file).await,
        Command::Get { name, file } => get(&blobs, name, &file).await,
    }
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match block_on(run(Arguments::parse())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("blob_client: {error}");
            ExitCode::FAILURE
        }
    }
}
