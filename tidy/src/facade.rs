//! What the package that programs depend on exports of the crates behind it.

use std::collections::{BTreeMap, BTreeSet};

/// Items whose own signatures need not be nameable. Programs name the trait of devices in bounds; who
/// implements it depends on `rpc-core`.
const OPAQUE: [&str; 1] = ["rpc_core::transport::Fabric"];

/// The items that a signature of an exported item names, and that the facade does not export: one
/// sentence each. `facade` and `items` are lists of public items, as
/// [`public_items`](crate::surface::public_items) makes them.
///
/// An item is found by its name alone, because the lists have signatures as they are written. So one
/// of two items with one name is enough.
#[must_use]
pub fn not_exported(facade: &[String], items: &[String]) -> Vec<String> {
    let items = PublicItems::of(items);
    let exported = items.exported_by(facade);
    let is_exported = |name: &str| exported.iter().any(|path| last(path) == name);
    let mut missing = BTreeMap::new();
    for (item, signature) in &items.signatures {
        if !exported.contains(items.described(item)) || OPAQUE.contains(item) {
            continue;
        }
        for name in names(signature) {
            let named = items.paths.iter().find(|path| last(path) == name);
            if let Some(named) = named
                && !is_exported(name)
            {
                missing.entry(*named).or_insert(*item);
            }
        }
    }
    let sentence =
        |(named, item)| format!("{item} names {named}, which the facade does not export");
    missing.into_iter().map(sentence).collect()
}

/// The lines of a list of public items.
struct PublicItems<'a> {
    /// All paths of items.
    paths: BTreeSet<&'a str>,
    /// The path under which an item is described, by its other paths.
    aliases: BTreeMap<&'a str, &'a str>,
    /// The signatures of items and of their members, each with the path of the item.
    signatures: Vec<(&'a str, &'a str)>,
}

impl<'a> PublicItems<'a> {
    fn of(lines: &'a [String]) -> Self {
        let mut this = Self {
            paths: BTreeSet::new(),
            aliases: BTreeMap::new(),
            signatures: Vec::new(),
        };
        let mut members = Vec::new();
        for line in lines {
            let Some((path, rest)) = line.split_once(' ') else {
                continue;
            };
            // Generics or bounds may follow.
            let kind = rest.split([' ', '<', ':']).next().unwrap_or_default();
            match kind {
                "=" => {
                    this.paths.insert(path);
                    this.aliases.insert(path, rest.trim_start_matches("= "));
                }
                "struct" | "enum" | "trait" | "type" => {
                    this.paths.insert(path);
                    members.push((path, rest));
                }
                // The traits of a type, and the text of a macro.
                "impl" | "mod" | "macro" => {}
                _ => members.push((path, rest)),
            }
        }
        let item_of = |member: &'a str| {
            let mut path = member;
            while !this.paths.contains(path) {
                path = &path[..path.rfind(['.', ':'])?];
                path = path.trim_end_matches(':');
            }
            Some(path)
        };
        let signatures = members.into_iter();
        this.signatures = signatures
            // A function is an item of its own.
            .map(|(member, signature)| (item_of(member).unwrap_or(member), signature))
            .collect();
        this
    }

    fn described(&self, path: &'a str) -> &'a str {
        let described = self.aliases.get(path).copied();
        // An item that a macro makes is described nowhere.
        let described = described.filter(|path| self.paths.contains(path));
        described.unwrap_or(path)
    }

    /// The items that the facade exports, alone or with their module.
    fn exported_by(&self, facade: &'a [String]) -> BTreeSet<&'a str> {
        let exports = facade.iter().filter_map(|line| line.split_once(" = "));
        let exports: Vec<_> = exports.map(|(_, path)| path).collect();
        let is_within = |path: &str, export: &str| {
            let rest = path.strip_prefix(export);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let functions = self.signatures.iter().map(|(path, _)| *path);
        let paths = self.paths.iter().copied().chain(functions);
        paths
            .filter(|path| exports.iter().any(|export| is_within(path, export)))
            .map(|path| self.described(path))
            .collect()
    }
}

fn last(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path)
}

/// The names in a signature that begin with a capital letter.
fn names(signature: &str) -> impl Iterator<Item = &str> {
    let words = signature.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with(|first: char| first.is_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_exported_items_name_is_found_through_members_modules_and_other_paths() {
        let items = lines(
            "one::Request struct<T>\n\
             one::Request::peer fn peer(&self) -> Option<&Peer>\n\
             one::Request.sizes : Sizes\n\
             one::Peer struct\n\
             one::Peer::host fn host(&self) -> Host\n\
             one::Host struct\n\
             one::Hidden struct\n\
             one::Unused fn unused(hidden: Hidden) -> Vec<Host>\n\
             one::send fn send(status: Code)\n\
             one::transport::Code enum\n\
             one::stats mod\n\
             one::stats::Sizes = one::Sizes\n\
             one::stats::Made = self::made::Made\n\
             one::stats::Stats struct\n\
             one::stats::Stats.made : Made\n\
             one::Sizes struct\n\
             one::transport::Lane struct\n\
             one::transport::Lane.code : Code",
        );
        let exports = "facade::Request = one::Request\nfacade::stats = one::stats\n\
                       facade::send = one::send\nfacade::Lane = one::transport::Lane";
        assert_eq!(
            not_exported(&lines(exports), &items),
            [
                "one::Request names one::Peer, which the facade does not export",
                "one::send names one::transport::Code, which the facade does not export",
            ]
            .map(|sentence| sentence.to_owned())
        );
        let more = "\nfacade::Peer = one::Peer\nfacade::Code = one::transport::Code";
        assert_eq!(
            not_exported(&lines(&format!("{exports}{more}")), &items),
            ["one::Peer names one::Host, which the facade does not export"]
        );
    }
}
