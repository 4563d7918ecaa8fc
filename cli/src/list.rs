//! `verbline list`: the names of services, and of methods.

use std::collections::BTreeSet;

use crate::arguments::List;
use crate::failure::Failure;
use crate::nearest::nearest;
use crate::output::Output;
use crate::reflection::Reflection;
use crate::schema::{Schema, Symbol};
use crate::target::Target;

pub(crate) async fn run(arguments: List, output: &mut Output) -> Result<(), Failure> {
    let target = Target::connect(arguments.connection).await?;
    let names = match arguments.service {
        None => services(&target).await?,
        Some(service) => methods(&target, service.trim_start_matches('.')).await?,
    };
    for name in names {
        output.line(&name)?;
    }
    Ok(())
}

/// A Verbline server names its methods when a client connects. So this needs no reflection.
async fn services(target: &Target) -> Result<Vec<String>, Failure> {
    if let Some(methods) = target.methods() {
        let paths = methods.iter().filter_map(|spec| spec.path.split_once('/'));
        let names: BTreeSet<&str> = paths.map(|(service, _)| service).collect();
        return Ok(names.into_iter().map(str::to_owned).collect());
    }
    Reflection::new(target)
        .services()
        .await
        .map_err(|failure| match failure {
            Failure::NoReflection { address } => Failure::NotListed { address },
            other => other,
        })
}

async fn methods(target: &Target, service: &str) -> Result<Vec<String>, Failure> {
    let mut names: Vec<String> = match target.methods() {
        Some(methods) => {
            let paths = methods.iter().filter_map(|spec| spec.path.split_once('/'));
            let of_service = paths.filter(|(of, _)| *of == service);
            of_service
                .map(|(of, method)| format!("{of}.{method}"))
                .collect()
        }
        None => match Schema::of_server(target).symbol(service).await {
            Ok(Symbol::Service(found)) => {
                let methods = found.methods();
                methods
                    .map(|method| method.full_name().to_owned())
                    .collect()
            }
            Err(Failure::NoReflection { address }) => return Err(Failure::NotListed { address }),
            Ok(_) | Err(Failure::NoSymbol { .. }) => Vec::new(),
            Err(other) => return Err(other),
        },
    };
    if names.is_empty() {
        return Err(Failure::NoService {
            of: target.address.clone(),
            service: service.to_owned(),
            near: nearest(service, services(target).await?),
        });
    }
    names.sort_unstable();
    Ok(names)
}
