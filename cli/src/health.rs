//! `verbline health`: the status of a server or a service, and the exit code that tells it.

use std::process::ExitCode;
use std::time::Duration;

use verbline::health::ServingStatus;
use verbline::health::v1::{HealthCheckRequest, HealthCheckResponse, HealthClient};

use crate::arguments::Health;
use crate::failure::Failure;
use crate::output::Output;
use crate::target::Target;

/// A probe that has no time limit of its own is not to hang: it is what gRPC's own probe takes for each of
/// connecting and calling.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) async fn run(arguments: Health, output: &mut Output) -> Result<ExitCode, Failure> {
    let mut connection = arguments.connection;
    connection.timeout.get_or_insert(DEFAULT_TIMEOUT);
    let target = Target::connect(connection).await?;
    let service = arguments.service;
    let request = HealthCheckRequest { service };
    if arguments.watch {
        return watch(target.without_deadline(), request, output).await;
    }
    let request = target.request(request);
    let client = HealthClient::new(target.channel.clone());
    let response = client.check(request).await?.into_inner();
    let code = exit_code(&response);
    match output.line(&name(&response)) {
        // The status is what was asked for, and the exit code tells it.
        Ok(()) | Err(Failure::PipeClosed) => Ok(code),
        Err(other) => Err(other),
    }
}

/// Prints each status, until the server ends the stream or nobody reads it.
async fn watch(
    target: Target,
    request: HealthCheckRequest,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let request = target.request(request);
    let client = HealthClient::new(target.channel.clone());
    let mut statuses = client.watch(request).await?.into_inner();
    loop {
        match statuses.message().await {
            Ok(Some(response)) => match output.line(&name(&response)) {
                Ok(()) => {}
                Err(Failure::PipeClosed) => return Ok(exit_code(&response)),
                Err(other) => return Err(other),
            },
            Ok(None) => {
                let what = "the server has ended its stream".to_owned();
                return Err(Failure::WatchEnded(what));
            }
            Err(error) => return Err(Failure::WatchEnded(error.to_string())),
        }
    }
}

fn name(response: &HealthCheckResponse) -> String {
    match ServingStatus::try_from(response.status) {
        Ok(status) => status.as_str_name().to_owned(),
        Err(_) => format!("status {}", response.status),
    }
}

fn exit_code(response: &HealthCheckResponse) -> ExitCode {
    ExitCode::from(u8::from(response.status != ServingStatus::Serving as i32))
}
