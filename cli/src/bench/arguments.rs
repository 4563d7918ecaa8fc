//! The command line of `verbline bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use verbline::Waiting;
use verbline_load::unit::Unit;
use verbline_load::{Arrivals, Points};

use crate::arguments::{Connection, Data, Protos, seconds, seconds_or_none};
use crate::method_name::MethodName;

#[derive(Clone, Debug, Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The method, as package.Service/Method or package.Service.Method
    pub(crate) method: MethodName,
    /// The requests in JSON, which are sent in turn. @FILE: those of a file. -: those of standard input.
    /// Default: an empty message
    #[arg(short, long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) data: Option<Data>,
    /// Send random messages of the request's type, of so many encoded bytes if a number is given
    #[arg(
        long,
        value_name = "BYTES",
        num_args = 0..=1,
        value_parser = |text: &str| Points::parse(text, Unit::Bytes),
        conflicts_with = "data"
    )]
    #[expect(
        clippy::option_option,
        reason = "without a number, with one, and not at all"
    )]
    pub(crate) random: Option<Option<Points>>,
    /// The seed of random messages and of Poisson arrivals, to repeat a run that has printed it
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) protos: Protos,

    /// Send calls at this rate, however many are in flight (open loop). Default: each caller makes its next
    /// call when the last one is answered (closed loop)
    #[arg(
        long,
        value_name = "PER_SECOND",
        value_parser = |text: &str| Points::parse(text, Unit::PerSecond),
        help_heading = "Load"
    )]
    pub(crate) rate: Option<Points>,
    /// How the times between the calls of a rate are distributed
    #[arg(
        long,
        value_enum,
        default_value = "fixed",
        requires = "rate",
        help_heading = "Load"
    )]
    pub(crate) arrivals: Arrivals,
    /// The calls in flight; the most of them, with --rate. Default: 1, or 256 with --rate
    #[arg(
        long,
        value_name = "CALLS",
        value_parser = |text: &str| Points::parse(text, Unit::Number),
        help_heading = "Load"
    )]
    pub(crate) in_flight: Option<Points>,
    /// The connections, which take turns
    #[arg(
        long,
        value_name = "NUMBER",
        value_parser = |text: &str| Points::parse(text, Unit::Number),
        help_heading = "Load"
    )]
    pub(crate) connections: Option<Points>,
    /// The processes that share the rate, the calls in flight and the connections
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=256),
        help_heading = "Load"
    )]
    pub(crate) processes: u32,
    /// Seconds to record, at each value of a sweep
    #[arg(long, default_value = "10", value_parser = seconds, help_heading = "Load")]
    pub(crate) seconds: Duration,
    /// Seconds of calls that are not recorded, before
    #[arg(long, default_value = "1", value_parser = seconds_or_none, help_heading = "Load")]
    pub(crate) warm_up: Duration,
    /// Requests of each call, if the method takes a stream of them. Default: 1
    #[arg(
        long,
        value_name = "NUMBER",
        conflicts_with = "each_message",
        help_heading = "Load"
    )]
    pub(crate) messages: Option<u32>,
    /// Count messages instead of calls: a request and its response, on streams that stay open; or the
    /// responses to one request
    #[arg(long, help_heading = "Load")]
    pub(crate) each_message: bool,

    /// Call through a `Channel`, which has a thread of its own, and not through a `LocalPoller`
    #[arg(long, help_heading = "Client")]
    pub(crate) shared: bool,
    /// How an idle poller of this side waits. Default: that of the library
    #[arg(long, value_enum, help_heading = "Client")]
    pub(crate) waiting: Option<WaitingName>,

    /// Write a report, one HTML file, with pictures and all figures
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,
    /// Write everything as JSON, which `verbline report` reads. -: to standard output, instead of the table
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) json: Option<PathBuf>,
    /// Write the response times for HdrHistogram's plotter, in nanoseconds
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) hgrm: Option<PathBuf>,
    /// The name of this run in reports. Default: the method
    #[arg(long, value_name = "TEXT", help_heading = "Output")]
    pub(crate) label: Option<String>,

    /// This process makes a part of the calls, as its parent says on standard input
    #[arg(long, hide = true)]
    pub(crate) is_part: bool,
}

/// The names of [`Waiting`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WaitingName {
    Busy,
    Adaptive,
    Event,
}

impl From<WaitingName> for Waiting {
    fn from(name: WaitingName) -> Self {
        match name {
            WaitingName::Busy => Self::Busy,
            WaitingName::Adaptive => Self::Adaptive,
            WaitingName::Event => Self::Event,
        }
    }
}

/// Several runs in one report.
#[derive(Clone, Debug, Args)]
pub(crate) struct Report {
    /// Files that `bench --json` has written
    #[arg(required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// The report, one HTML file
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub(crate) output: PathBuf,
    /// Write the pictures too, as SVG files in this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
    /// The title
    #[arg(long, default_value = "Latency")]
    pub(crate) title: String,
}
