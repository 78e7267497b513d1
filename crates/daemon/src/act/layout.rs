//! The paths that the programs of a sandbox see. They depend on the root that its keeper could build.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use lodge_exec::Layer;

/// The layer of a sandbox whose agent's directory is `/`.
const PRIVATE_ROOT: &str = "private_root";

/// Directories of an agent's tools and its runtime, relative to its root.
const BINS: &str = "opt/bins";
pub(super) const BIN_IMAGES: &str = "opt/bin-images";
pub(super) const RUNTIME: &str = "opt/lodge/runtime";
/// The stock runtime once more, under the name of each `builtin:` program that an agent has.
pub(super) const BUILTIN: &str = "opt/lodge/builtin";
/// The script that is the tool of SHELL.
pub(super) const SHELL: &str = "opt/lodge/sh";
/// Their directories in the previous release.
const FORMER_BINS: &str = "usr/bin";
const FORMER_RUNTIME: &str = "usr/local/bin/runtime";

/// The paths of one sandbox, as its programs see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
    bins: &'static str,
    runtime: &'static str,
}

impl Layout {
    /// The agent's directory is `/`.
    pub(super) fn private() -> Layout {
        Layout { root: PathBuf::from("/"), bins: BINS, runtime: RUNTIME }
    }

    /// The layout for the layers that a keeper reports. `dir` is the agent's directory on the host.
    pub(super) fn of(layers: &[Layer], dir: &Path) -> Layout {
        match layers.iter().find(|layer| layer.name == PRIVATE_ROOT) {
            Some(Layer { missing: None, .. }) => Layout::private(),
            Some(Layer { missing: Some(_), .. }) => Layout { root: dir.to_owned(), ..Layout::private() },
            // A keeper of the previous release, which has no private root.
            None => Layout { root: dir.to_owned(), bins: FORMER_BINS, runtime: FORMER_RUNTIME },
        }
    }

    /// Whether the agent's files have to be described again, because the start described them for a private root.
    pub(super) fn is_fallback(&self) -> bool {
        self.bins == BINS && *self != Layout::private()
    }

    /// The agent's root.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// A path below the root. `below` may be absolute or relative.
    pub(super) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        let below = below.as_ref();
        self.root.join(below.strip_prefix("/").unwrap_or(below))
    }

    pub(super) fn workspace(&self) -> PathBuf {
        self.path("workspace")
    }

    pub(super) fn bins(&self) -> PathBuf {
        self.path(self.bins)
    }

    pub(super) fn tool(&self, name: &str) -> PathBuf {
        self.bins().join(name)
    }

    pub(super) fn runtime(&self) -> PathBuf {
        self.path(self.runtime)
    }

    /// The command line of one of the agent's tools.
    pub(super) fn tool_argv(&self, bin: &str, args: &[String]) -> Vec<OsString> {
        std::iter::once(self.tool(bin).into_os_string()).chain(args.iter().map(Into::into)).collect()
    }

    /// The environment variables that contain paths.
    pub(super) fn variables(&self) -> Vec<(OsString, OsString)> {
        let mut env: Vec<(OsString, OsString)> = vec![("PATH".into(), self.bins().into())];
        let places = [
            ("HOME", "home"),
            ("XDG_CONFIG_HOME", "home/.config"),
            ("XDG_CACHE_HOME", "home/.cache"),
            ("XDG_DATA_HOME", "home/.local/share"),
            ("TMPDIR", "tmp"),
        ];
        env.extend(places.map(|(key, below)| (key.into(), self.path(below).into())));
        env.push(("LODGE_AGENT_ROOT".into(), self.root.clone().into()));
        env
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(missing: Option<&str>) -> Vec<Layer> {
        vec![
            Layer { name: "mountns".to_owned(), missing: None },
            Layer { name: PRIVATE_ROOT.to_owned(), missing: missing.map(str::to_owned) },
        ]
    }

    #[test]
    fn the_layout_follows_the_reported_layers_and_a_previous_keeper_has_the_old_paths() {
        let dir = Path::new("/state/agents/a");
        let of = |layers: &[Layer]| {
            let layout = Layout::of(layers, dir);
            [layout.tool("sh"), layout.runtime(), layout.workspace(), layout.path("/etc/data")]
                .map(|path| path.display().to_string())
        };
        assert_eq!(of(&layer(None)), ["/opt/bins/sh", "/opt/lodge/runtime", "/workspace", "/etc/data"]);
        assert_eq!(
            of(&layer(Some("refused"))),
            ["opt/bins/sh", "opt/lodge/runtime", "workspace", "etc/data"]
                .map(|below| format!("/state/agents/a/{below}"))
        );
        assert_eq!(
            of(&layer(None)[..1]),
            ["usr/bin/sh", "usr/local/bin/runtime", "workspace", "etc/data"]
                .map(|below| format!("/state/agents/a/{below}"))
        );
    }

    #[test]
    fn the_variables_lead_below_the_root() {
        let variables = Layout::private().variables();
        let of = |key: &str| variables.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone());
        assert_eq!(of("PATH"), Some("/opt/bins".into()));
        assert_eq!(of("XDG_DATA_HOME"), Some("/home/.local/share".into()));
        assert_eq!(of("LODGE_AGENT_ROOT"), Some("/".into()));
    }
}
