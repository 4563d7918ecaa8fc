//! The settings for services and their methods, by their paths.

use prost_types::FileDescriptorSet;

use crate::error::Error;
use crate::paths;

/// What is set for services.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceSettings {
    /// Attributes of the service traits, by the services' paths.
    pub(crate) traits: Vec<(String, String)>,
    /// Attributes of the clients.
    pub(crate) clients: Vec<(String, String)>,
    /// Attributes of the servers.
    pub(crate) servers: Vec<(String, String)>,
    /// Whether the methods of the traits have a default.
    pub(crate) default_stubs: bool,
    /// Whether the methods of the traits take `self: Arc<Self>`.
    pub(crate) arc_self: bool,
    /// The paths whose comments are left out.
    pub(crate) disable_comments: Vec<String>,
}

impl ServiceSettings {
    /// Checks that each path of an attribute is that of a service, or of a package of one.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Setting`] for each path that is neither: its attribute would be nowhere.
    pub(crate) fn check(&self, set: &FileDescriptorSet) -> Result<(), Error> {
        let services = set.file.iter().flat_map(|file| {
            let services = file.service.iter();
            services.map(|service| paths::qualified(file.package(), service.name()))
        });
        let names: Vec<_> = services.map(|name| format!(".{name}")).collect();
        let settings = [
            ("trait_attribute", &self.traits),
            ("client_attribute", &self.clients),
            ("server_attribute", &self.servers),
        ];
        let unused = settings.into_iter().flat_map(|(setting, attributes)| {
            let paths = attributes.iter().map(|(path, _)| path);
            let unused = paths.filter(|path| {
                *path != "." && !names.iter().any(|name| paths::matches(path, name))
            });
            unused.map(move |path| Error::Setting {
                message: format!("{setting}: no service has the path `{path}`"),
            })
        });
        Error::any_of(unused)
    }

    /// Returns true if the comments of the item with this name are left out.
    pub(crate) fn disables_comments(&self, name: &str) -> bool {
        let mut paths = self.disable_comments.iter();
        paths.any(|path| paths::matches(path, name))
    }
}

/// Returns the attributes for a service, each on a line.
pub(crate) fn attributes(settings: &[(String, String)], name: &str) -> String {
    let matching = settings
        .iter()
        .filter(|(path, _)| paths::matches(path, name));
    matching
        .map(|(_, attribute)| format!("{attribute}\n"))
        .collect()
}
