//! The command line.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use verbline::message::bytes::Bytes;
use verbline::{Metadata, MetadataKey};

use crate::bench::arguments::{Bench, Report};
use crate::method_name::MethodName;
use crate::security::Tls;

const AFTER_HELP: &str = "\
ADDRESS is `host:port` for a Verbline server, over --device; for any gRPC server, it is \
`http://host:port`, over HTTP/2 in plain text, or `https://host:port`, over TLS.

Exit codes: 0 for success, 2 for a wrong command line, and 1 for what is wrong on this side: types that are not \
known, JSON that does not fit, a device that cannot be used. `call`: 64 and the number of the status, 65 to 80, \
if the call has failed; 78 is UNAVAILABLE, also for a server that cannot be reached. The others: 69 if \
the server cannot be reached or does not answer, 74 if the output cannot be written. `health`: 0 for SERVING, 1 for \
another status, 2 if there is none.

Examples:
  verbline list 127.0.0.1:50051
  verbline describe 127.0.0.1:50051 verbline.greeter.Greeter
  verbline call 127.0.0.1:50051 verbline.greeter.Greeter/SayHello -d '{\"name\": \"Ada\"}'
  verbline health http://127.0.0.1:50052 --watch
  verbline call https://shop.example shop.Cart/Show --ca roots.pem --cert me.pem --key me.key
  verbline bench 127.0.0.1:50051 verbline.greeter.Greeter/SayHello -d '{\"name\": \"Ada\"}' --rate 20k --report ada.html";

/// Lists, describes, calls, probes and loads Verbline servers and gRPC servers
#[derive(Debug, Parser)]
#[command(name = "verbline", version, after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the services of a server, or the methods of one service
    List(List),
    /// Print what a .proto file says about a service, a method, a message or another symbol
    Describe(Describe),
    /// Call a method, with requests and responses in JSON
    Call(Call),
    /// Print whether a server, or a service, takes calls: for probes
    Health(Health),
    /// Load a method, at a rate or as fast as it answers, and print what its calls take
    Bench(Box<Bench>),
    /// Show what `bench --json` has written, of several runs side by side, as one HTML file
    Report(Report),
    /// Print a script that completes the command line in a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Which server, and how it is reached.
#[derive(Clone, Debug, Args)]
pub(crate) struct Connection {
    /// The server: host:port of a Verbline server, or http://host:port or https://host:port of a gRPC
    /// server
    pub(crate) address: String,
    /// The device to a Verbline server: soft, tcp, or an RDMA device (mlx5_0, mlx5_0:1:3, @eth0,
    /// 'mlx5_0?tc=104'). Default: the best one, or the one that VERBLINE_DEVICE names
    #[arg(long)]
    pub(crate) device: Option<String>,
    /// Call Verbline servers of other hosts, containers and users, too, over TCP, in plain text
    #[arg(long)]
    pub(crate) allow_plaintext: bool,
    /// Metadata to send, also to the server's reflection. The value of a key that ends in -bin is base64.
    /// @FILE: a file with one pair in each line, which other users do not see in the list of processes
    #[arg(short = 'H', long = "header", value_name = "KEY: VALUE", value_parser = headers)]
    pub(crate) headers: Vec<Headers>,
    /// Seconds for everything together: connecting, learning the types, and the call; of `bench`, for what
    /// comes before its calls, and then for each of them. Default: 1 for `health`, and no limit for the others
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Bytes of the longest message that is received
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    pub(crate) max_message_len: usize,
    #[command(flatten)]
    pub(crate) tls: Tls,
}

/// Where types come from, if not from the server's reflection.
#[derive(Clone, Debug, Args)]
pub(crate) struct Protos {
    /// Take the types from this .proto file, and not from the server's reflection
    #[arg(long = "proto", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// A folder in which imports are looked up. Default: those of the files
    #[arg(short = 'I', long = "include", value_name = "DIR", requires = "files")]
    pub(crate) includes: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The service whose methods are printed. Default: the names of all services
    pub(crate) service: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Describe {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The full name of a service, a method, a message, a field, an enum or an extension
    pub(crate) symbol: String,
    #[command(flatten)]
    pub(crate) protos: Protos,
}

#[derive(Debug, Args)]
pub(crate) struct Call {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The method, as package.Service/Method or package.Service.Method
    pub(crate) method: MethodName,
    /// The requests in JSON. @FILE: those of a file. -: those of standard input, each of which is sent when
    /// it has been read. Default: one empty message, or an empty stream
    #[arg(short, long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) data: Option<Data>,
    #[command(flatten)]
    pub(crate) protos: Protos,
    /// Indent responses. Default: each is one line
    #[arg(long)]
    pub(crate) pretty: bool,
    /// Print metadata, how far the call got, and times to standard error
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Health {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The service. Default: the server as a whole
    #[arg(default_value = "")]
    pub(crate) service: String,
    /// Print the status and then each new one, until the server ends. The time limit is for connecting
    #[arg(long)]
    pub(crate) watch: bool,
}

/// Where the requests of a call come from.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Json(String),
    File(PathBuf),
    StandardInput,
}

impl FromStr for Data {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix('@') {
            Some("-") => Self::StandardInput,
            Some(file) => Self::File(file.into()),
            None if text == "-" => Self::StandardInput,
            None => Self::Json(text.to_owned()),
        })
    }
}

/// Pairs of metadata: one of the command line, or those of a file.
#[derive(Clone, Debug)]
pub(crate) struct Headers(pub(crate) Vec<(MetadataKey, Bytes)>);

fn headers(text: &str) -> Result<Headers, String> {
    let Some(path) = text.strip_prefix('@') else {
        return Ok(Headers(vec![header(text)?]));
    };
    let lines =
        fs::read_to_string(path).map_err(|error| format!("cannot read '{path}': {error}"))?;
    let lines = lines.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    // The line itself may be a secret.
    let pairs = lines.map(|(index, line)| {
        header(line).map_err(|error| format!("line {} of '{path}': {error}", index + 1))
    });
    Ok(Headers(pairs.collect::<Result<_, _>>()?))
}

fn header(text: &str) -> Result<(MetadataKey, Bytes), String> {
    let (key, value) = text
        .split_once(':')
        .ok_or("expected `key: value`, and there is no colon")?;
    let key: MetadataKey = key
        .trim()
        .to_ascii_lowercase()
        .parse()
        .map_err(|error| format!("{error}"))?;
    let value = value.trim();
    if !key.is_binary() {
        let value = Bytes::copy_from_slice(value.as_bytes());
        let checked = Metadata::new().append(&key, value.clone());
        return checked
            .map(|()| (key, value))
            .map_err(|error| error.to_string());
    }
    let any_padding =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let value = GeneralPurpose::new(&STANDARD, any_padding)
        .decode(value)
        .map_err(|error| format!("the value of {key} is not base64: {error}"))?;
    Ok((key, value.into()))
}

/// Three years, for a time that is in effect none, and no sum of which overflows.
const MOST_SECONDS: f64 = 1e8;

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let duration = seconds_or_none(text)?;
    if duration.is_zero() {
        return Err("no time at all: nothing would be tried".to_owned());
    }
    Ok(duration)
}

pub(crate) fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| *seconds <= MOST_SECONDS)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("expected a number of seconds, up to {MOST_SECONDS}: 10, 2.5"))
}
