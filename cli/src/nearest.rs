//! The names that are meant by one that does not exist.

/// The most names that are shown.
const SHOWN: usize = 3;

/// Returns the names that are nearest to the wanted one, of those that are near.
///
/// Names are compared as they are, and also their ends: `SayHelo` is near to
/// `verbline.greeter.Greeter/SayHello`. Near is one mistake in three characters of the last part.
pub(crate) fn nearest<S: AsRef<str>>(
    wanted: &str,
    names: impl IntoIterator<Item = S>,
) -> Vec<String> {
    let wanted = folded(wanted);
    let parts = wanted.split('.').count();
    let last = wanted.rsplit('.').next().unwrap_or("");
    let limit = (last.chars().count() / 3).max(1);
    let mut near: Vec<(usize, String)> = names
        .into_iter()
        .filter_map(|name| {
            let all = folded(name.as_ref());
            let skipped = all.split('.').count().saturating_sub(parts);
            let end: Vec<&str> = all.split('.').skip(skipped).collect();
            let distance = strsim::osa_distance(&wanted, &all)
                .min(strsim::osa_distance(&wanted, &end.join(".")));
            (distance <= limit).then(|| (distance, name.as_ref().to_owned()))
        })
        .collect();
    near.sort();
    near.dedup();
    near.into_iter().map(|(_, name)| name).take(SHOWN).collect()
}

fn folded(name: &str) -> String {
    name.to_lowercase().replace('/', ".")
}

/// Returns the end of a sentence that names them, or says how to learn what there is.
pub(crate) fn or_list(near: &[String]) -> String {
    match near {
        [] => ". `verbline list` prints what there is".to_owned(),
        near => did_you_mean(near),
    }
}

/// Returns the end of a sentence that names them, and nothing if there are none.
pub(crate) fn did_you_mean(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => format!("; did you mean {}?", near.join(" or ")),
    }
}
