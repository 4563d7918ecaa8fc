//! Protobuf names, and how the paths in settings match them.

/// Returns `package.name`, or `name` for a file without a package.
pub(crate) fn qualified(package: &str, name: &str) -> String {
    if package.is_empty() {
        name.to_owned()
    } else {
        format!("{package}.{name}")
    }
}

/// Returns the name of a package with a leading dot, or nothing for a file without a package.
pub(crate) fn with_dot(package: &str) -> String {
    match package {
        "" => String::new(),
        package => format!(".{package}"),
    }
}

/// Returns true if the path of a setting matches the name of an item, which has a leading dot. The
/// rules are those of prost.
pub(crate) fn matches(path: &str, name: &str) -> bool {
    let rest = match path.starts_with('.') {
        true if path == "." => return true,
        true => name.strip_prefix(path),
        false => return name.ends_with(path) && name[..name.len() - path.len()].ends_with('.'),
    };
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the value of the last setting whose path matches the name.
pub(crate) fn last<T: Copy>(settings: &[(String, T)], name: &str) -> Option<T> {
    let matching = settings.iter().rfind(|(path, _)| matches(path, name));
    matching.map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_as_in_prost() {
        let name = ".demo.Request.data";
        for path in [".", ".demo", ".demo.Request", name, "data", "Request.data"] {
            assert!(matches(path, name), "{path}");
        }
        for path in [".dem", ".demo.Req", "Request", "ata", "demo", "", ".data"] {
            assert!(!matches(path, name), "{path}");
        }
    }

    #[test]
    fn the_last_setting_counts() {
        let settings = [(".".to_owned(), 1), (".b".to_owned(), 2)];
        assert_eq!(last(&settings, ".a.M"), Some(1));
        assert_eq!(last(&settings, ".b.M"), Some(2));
        assert_eq!(last(&settings[1..], ".a.M"), None);
    }
}
