//! What `verbline bench` leaves: a table, JSON, a file for HdrHistogram's plotter, and a report.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::path::Path;

use verbline_load::report::{Report, Run};
use verbline_load::sweep::{Over, Sweep};
use verbline_load::{Arrivals, hgrm};

use super::arguments::{Bench, Report as ReportArguments};
use super::plan::Plan;
use super::service::Service;
use crate::call::kind_name;
use crate::failure::Failure;
use crate::output::Output;
use crate::target::is_grpc;

/// The name of standard output in place of a file.
const STANDARD_OUTPUT: &str = "-";

/// Finds out whether the files can be written, without changing what is in them.
pub(super) fn check_files(arguments: &Bench) -> Result<(), Failure> {
    let Bench {
        report, json, hgrm, ..
    } = arguments;
    for file in [report, json, hgrm].into_iter().flatten() {
        if file != Path::new(STANDARD_OUTPUT) {
            let opened = OpenOptions::new().create(true).append(true).open(file);
            opened.map_err(|source| unwritable(file, source))?;
        }
    }
    Ok(())
}

/// Writes all that the command line asks for.
pub(super) fn write(
    arguments: &Bench,
    plan: &Plan,
    service: &Service,
    sweep: Sweep,
    output: &mut Output,
) -> Result<(), Failure> {
    let heading = heading(arguments, plan, service);
    let table = table(plan, &sweep);
    let last = sweep.steps.last().map(|step| step.record.response.clone());
    let label = arguments.label.clone();
    let label = label.unwrap_or_else(|| service.spec.path.to_owned());
    let mut run = Run::new(label, sweep);
    for (name, value) in facts(arguments, plan, service) {
        run = run.fact(name, value);
    }
    run = run.fact("command line", command_line());
    let report = Report::new(service.spec.path).run(run);
    let json = arguments.json.as_deref();
    let (file, printed) = match json.filter(|file| *file == Path::new(STANDARD_OUTPUT)) {
        Some(_) => (None, format!("{}\n", report.to_json())),
        None => (json, format!("{heading}\n{table}")),
    };
    let json = file.map_or(Ok(()), |file| write_file(file, report.to_json()));
    let html = arguments.report.as_deref();
    let html = html.map_or(Ok(()), |file| write_file(file, report.to_html()));
    let hgrm = match (&arguments.hgrm, last) {
        (Some(file), Some(response)) => {
            let mut text = Vec::new();
            let written = hgrm::write(&response, &mut text);
            let written = written.map_err(|source| unwritable(file, source));
            written.and_then(|()| write_file(file, text))
        }
        _ => Ok(()),
    };
    // Each of them is worth the time that was measured, whatever becomes of the others.
    let printed = output.text(&printed);
    json.and(html).and(hgrm).and(printed)
}

/// `verbline report`: several runs side by side.
pub(crate) fn report(arguments: ReportArguments, output: &mut Output) -> Result<(), Failure> {
    let mut all = Report::new(arguments.title);
    for file in &arguments.runs {
        let text = fs::read_to_string(file).map_err(|source| Failure::UnreadableRuns {
            file: file.clone(),
            source,
        })?;
        let report = Report::from_json(&text).map_err(|source| Failure::NotRuns {
            file: file.clone(),
            source,
        })?;
        all.runs.extend(report.runs);
    }
    write_file(&arguments.output, all.to_html())?;
    if let Some(folder) = &arguments.svg {
        fs::create_dir_all(folder).map_err(|source| unwritable(folder, source))?;
        for (name, plot) in all.pictures() {
            write_file(&folder.join(format!("{name}.svg")), plot.to_svg())?;
        }
    }
    output.line(&format!("{}", arguments.output.display()))
}

fn write_file(file: &Path, text: impl AsRef<[u8]>) -> Result<(), Failure> {
    fs::write(file, text).map_err(|source| unwritable(file, source))
}

fn unwritable(file: &Path, source: std::io::Error) -> Failure {
    let file = file.to_owned();
    Failure::Unwritable { file, source }
}

/// What has been measured, under which conditions: what is to be known before one looks at figures.
fn facts(arguments: &Bench, plan: &Plan, service: &Service) -> Vec<(&'static str, String)> {
    let load = plan.at(plan.points.first());
    let mut facts = vec![
        ("server", arguments.connection.address.clone()),
        (
            "method",
            format!("{}, {}", service.spec.path, kind_name(service.spec.kind)),
        ),
    ];
    facts.extend(service.device.clone().map(|device| ("device", device)));
    let client = match (is_grpc(&arguments.connection.address), arguments.shared) {
        (true, _) => "HTTP/2",
        (_, true) => "Channel, with a thread of its own",
        (_, false) => "LocalPoller, on the thread that makes the calls",
    };
    facts.push(("client", client.to_owned()));
    if let Some(waiting) = arguments.waiting {
        facts.push(("waiting", format!("{waiting:?}").to_lowercase()));
    }
    facts.push((
        "load",
        match load.rate {
            Some(_) if arguments.arrivals == Arrivals::Poisson => {
                format!("open loop, poisson arrivals, seed {}", load.seed)
            }
            Some(_) => "open loop, fixed arrivals".to_owned(),
            None => "closed loop".to_owned(),
        },
    ));
    for (over, name, number) in [
        (Over::InFlight, "in flight", load.in_flight),
        (Over::Connections, "connections", load.connections),
    ] {
        if plan.over != over {
            facts.push((name, number.to_string()));
        }
    }
    facts.push(("processes", arguments.processes.to_string()));
    facts.push(("requests", service.describe(arguments, plan, &load)));
    let [time, warm_up] = [arguments.seconds, arguments.warm_up].map(|time| time.as_secs_f64());
    facts.push(("time", format!("{time} s, after {warm_up} s of warm-up")));
    facts
}

/// The longest argument that is shown whole.
const LONG_ARGUMENT: usize = 200;

/// The command line without secrets: values of `-H` are left out.
fn command_line() -> String {
    let mut shown = vec!["verbline".to_owned()];
    let mut is_value = false;
    for argument in env::args_os().skip(1) {
        let argument = argument.to_string_lossy().into_owned();
        let option = ["--header=", "-H"]
            .into_iter()
            .find(|option| argument.starts_with(option));
        shown.push(match option {
            _ if is_value => "…".to_owned(),
            Some(option) if argument != option => format!("{option}…"),
            _ if argument.chars().count() > LONG_ARGUMENT => {
                let begin: String = argument.chars().take(LONG_ARGUMENT).collect();
                format!("{begin}…")
            }
            _ => argument.clone(),
        });
        is_value = !is_value && ["-H", "--header"].contains(&argument.as_str());
    }
    shown.join(" ")
}

/// The first lines of the output.
fn heading(arguments: &Bench, plan: &Plan, service: &Service) -> String {
    let mut heading = String::new();
    for (name, value) in facts(arguments, plan, service) {
        // A text takes everything.
        let _ = writeln!(heading, "{name:<12}{value}");
    }
    heading
}

/// The record of a single load, or a line for each load of a sweep.
fn table(plan: &Plan, sweep: &Sweep) -> String {
    if let (false, [step]) = (plan.points.is_sweep(), &*sweep.steps) {
        return step.record.to_string();
    }
    sweep.to_string()
}
