//! Which directories of the host a sandbox needs for its `host:` programs.
//!
//! Owns: that choice. An agent whose tools all come from images needs none. Programs below `/usr` need the host's system
//! directories; a program elsewhere also needs its own tree, which is as narrow as it can be.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use lodge_engine::SandboxSettings;

/// Directories of programs and their libraries.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Stores whose programs refer to each other by absolute paths.
const STORES: [&str; 2] = ["/nix/store", "/gnu/store"];
/// Names of program directories. Libraries are in directories next to them.
const PROGRAM_DIRS: [&str; 3] = ["bin", "sbin", "libexec"];
/// Where the bare name of a host program is looked for, and where the command lines of `SHELL host` find programs. Any program of
/// the host is shown with all of it. The daemon's own PATH may name places that sandboxes do not see.
pub(crate) const HOST_PATH: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// Never shown: the daemon prepares the agent's own.
const SETTINGS: &str = "/etc";
/// The longest chain of links that is followed, as in the kernel.
const LINKS_MAX: usize = 40;

/// The directories and links of the host that a sandbox needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HostTrees {
    /// Directories and single programs, none beneath another.
    pub trees: Vec<PathBuf>,
    /// System directories that are links on this host, and links on the path to a program that are outside of all trees: path
    /// and target.
    pub links: Vec<(PathBuf, PathBuf)>,
}

impl HostTrees {
    /// The trees of an agent, from the current paths of its host programs. No tree contains the state directory.
    ///
    /// A program whose path leads through a directory that the agent can write is left out: otherwise the agent could choose
    /// the trees of its next start.
    pub(crate) fn of(settings: &SandboxSettings, state_dir: &Path) -> HostTrees {
        let mounts = settings.mounts.iter().filter(|mount| !mount.read_only);
        let writable: Vec<PathBuf> = mounts.map(|mount| PathBuf::from(&mount.host)).collect();
        HostTrees::of_programs(host_programs(settings), state_dir, &writable)
    }

    /// The first host program of an agent that is missing.
    pub(crate) fn lost_program(settings: &SandboxSettings) -> Option<&Path> {
        host_programs(settings).find(|path| !can_run(path))
    }

    /// Refuses trees that were not shown when the agent's programs were resolved: a user who can change a link on the
    /// path must not choose what a sandbox sees. New contents of the same trees are allowed.
    pub(crate) fn check(&self, settings: &SandboxSettings, state_dir: &Path) -> Result<(), ExposureGrew> {
        let tools = || settings.tools.iter().filter(|tool| tool.is_of_host());
        // Earlier releases recorded no trees.
        if tools().any(|tool| tool.host.is_none()) {
            return Ok(());
        }
        let recorded = tools().filter_map(|tool| tool.host.as_ref()).flat_map(|host| &host.trees);
        let mut recorded: Vec<PathBuf> = recorded.map(PathBuf::from).collect();
        // The path of a runtime was recorded without links.
        let runtime = settings.runtime.iter().filter(|runtime| runtime.image.is_none());
        let homes = homes(state_dir);
        recorded.extend(runtime.clone().filter_map(|runtime| own_tree(Path::new(&runtime.path), &homes)));
        let is_new = |tree: &&PathBuf| {
            let is_known = |known: &PathBuf| tree.starts_with(known);
            !SYSTEM.iter().any(|place| tree.starts_with(place)) && !recorded.iter().any(is_known)
        };
        let Some(tree) = self.trees.iter().find(is_new) else { return Ok(()) };
        let paths = tools().map(|tool| &tool.path).chain(runtime.map(|runtime| &runtime.path));
        let program = paths.into_iter().find(|path| trees_of(Path::new(path), state_dir).contains(tree));
        Err(ExposureGrew { program: program.cloned().unwrap_or_default(), tree: tree.clone() })
    }

    fn of_programs<'p>(
        programs: impl Iterator<Item = &'p Path>,
        state_dir: &Path,
        writable: &[PathBuf],
    ) -> HostTrees {
        let homes = homes(state_dir);
        let mut own = ProgramTrees::default();
        let mut has_any = false;
        for program in programs {
            has_any = true;
            let locations = locations(program);
            let ways = locations.iter().map(PathBuf::as_path).chain([program]);
            if ways.into_iter().any(|way| leads_through(way, writable)) {
                continue;
            }
            own.add(&locations, &homes);
        }
        if !has_any {
            return HostTrees::default();
        }
        let mut found = HostTrees::default();
        for place in SYSTEM.iter().map(PathBuf::from) {
            match std::fs::read_link(&place) {
                Ok(to) => found.links.push((place, to)),
                Err(_) if place.is_dir() => found.trees.push(place),
                Err(_) => {}
            }
        }
        for tree in own.trees {
            if !found.trees.iter().any(|above| tree.starts_with(above)) {
                found.trees.push(tree);
            }
        }
        own.links.retain(|place, _| !found.trees.iter().any(|above| place.starts_with(above)));
        found.links.extend(own.links);
        found
    }
}

fn host_programs(settings: &SandboxSettings) -> impl Iterator<Item = &Path> {
    let tools = settings.tools.iter().filter(|tool| tool.is_of_host()).map(|tool| &tool.path);
    let runtime = settings.runtime.iter().filter(|runtime| runtime.image.is_none());
    tools.chain(runtime.map(|runtime| &runtime.path)).filter(|path| !path.is_empty()).map(Path::new)
}

/// Whether an executable file exists there.
pub(crate) fn can_run(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// A host program would show more of the host than when it was resolved.
#[derive(Debug, thiserror::Error)]
#[error("the program {program} leads to {} now, which was not shown when it was found", tree.display())]
pub(crate) struct ExposureGrew {
    program: String,
    tree: PathBuf,
}

/// The trees that a sandbox sees for one program, in addition to the system directories.
pub(crate) fn trees_of(program: &Path, state_dir: &Path) -> Vec<PathBuf> {
    let mut shown = ProgramTrees::default();
    shown.add(&locations(program), &homes(state_dir));
    shown.trees.into_iter().collect()
}

/// The trees and links of programs outside of the system directories.
#[derive(Debug, Default)]
struct ProgramTrees {
    trees: BTreeSet<PathBuf>,
    /// Links that are shown without their directories, each with its target.
    links: BTreeMap<PathBuf, PathBuf>,
}

impl ProgramTrees {
    fn add(&mut self, locations: &[PathBuf], homes: &[PathBuf]) {
        for (index, location) in locations.iter().enumerate() {
            let Some(tree) = own_tree(location, homes) else { continue };
            match locations.get(index + 1) {
                Some(next) if tree == *location => drop(self.links.insert(tree, next.clone())),
                Some(_) | None => drop(self.trees.insert(tree)),
            }
        }
    }
}

/// Where a sandbox finds a host program: the path that its link in `/opt/bins` leads to.
pub(crate) fn link_target(program: &Path) -> PathBuf {
    if is_system(program) {
        return program.to_owned();
    }
    // The sandbox has no links to directories, so the path must be resolved.
    locations(program).into_iter().next().unwrap_or_else(|| program.to_owned())
}

/// The program and every link that leads to it, each with the real path of its directory.
fn locations(program: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut at = program.to_owned();
    for _ in 0..LINKS_MAX {
        let (Some(dir), Some(name)) = (at.parent().and_then(|dir| dir.canonicalize().ok()), at.file_name())
        else {
            break;
        };
        let location = dir.join(name);
        let next = std::fs::read_link(&location);
        found.push(location);
        match next {
            Ok(to) => at = dir.join(to),
            Err(_) => break,
        }
    }
    found
}

/// Whether a path, or a link on it, is beneath one of these directories.
fn leads_through(path: &Path, dirs: &[PathBuf]) -> bool {
    let is_beneath = |real: &Path| dirs.iter().any(|dir| real.starts_with(dir));
    !dirs.is_empty()
        && path
            .ancestors()
            .any(|part| is_beneath(part) || part.canonicalize().is_ok_and(|real| is_beneath(&real)))
}

fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|place| path.starts_with(place))
}

/// The tree that a program outside of the system directories is shown with.
///
/// `/opt/jdk/bin/java` is shown with `/opt/jdk`. A settings directory (`~/.cargo`), a home and a directory of the
/// root are never shown completely: only their directory `bin` is. A program in any other directory is shown without its
/// neighbours.
fn own_tree(location: &Path, homes: &[PathBuf]) -> Option<PathBuf> {
    if is_system(location) || location.starts_with(SETTINGS) {
        return None;
    }
    if let Some(store) = STORES.iter().map(PathBuf::from).find(|store| location.starts_with(store)) {
        return Some(store);
    }
    let is_wide = |dir: &Path| {
        let is_hidden = dir.file_name().is_none_or(|name| name.as_bytes().starts_with(b"."));
        let depth = dir.components().count();
        is_hidden || depth <= 2 || homes.iter().any(|home| home.starts_with(dir))
    };
    let dir = location.parent()?;
    let is_program_dir = dir.file_name().is_some_and(|name| PROGRAM_DIRS.iter().any(|known| name == *known));
    let trees = [dir.parent(), Some(dir)].into_iter().flatten().filter(|_| is_program_dir);
    let tree = trees.into_iter().find(|tree| !is_wide(tree));
    Some(tree.unwrap_or(location).to_owned())
}

/// The homes of users of this host, and the state directory. None of them is ever shown.
fn homes(state_dir: &Path) -> Vec<PathBuf> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let homes = passwd.lines().filter_map(|line| line.split(':').nth(5));
    let mut homes: Vec<PathBuf> = homes.map(PathBuf::from).filter(|home| home.is_absolute()).collect();
    homes.extend(std::env::var_os("HOME").map(PathBuf::from));
    homes.retain(|home| home.components().count() > 1);
    homes.push(state_dir.canonicalize().unwrap_or_else(|_| state_dir.to_owned()));
    homes
}

#[cfg(test)]
mod tests {
    use lodge_core::record::{HostProgramRecord, RuntimeRecord, ToolRecord};

    use super::*;

    #[test]
    fn a_program_is_shown_with_the_narrowest_tree() {
        let homes = [PathBuf::from("/home/ann"), PathBuf::from("/root")];
        for (program, tree) in [
            ("/usr/bin/git", None),
            ("/etc/alternatives/vi", None),
            ("/opt/jdk/bin/java", Some("/opt/jdk")),
            ("/opt/idea/idea.sh", Some("/opt/idea/idea.sh")),
            ("/srv/app/tool", Some("/srv/app/tool")),
            ("/srv/app/bin/tool", Some("/srv/app")),
            ("/var/tool", Some("/var/tool")),
            ("/tool", Some("/tool")),
            ("/bin-of-mine/tool", Some("/bin-of-mine/tool")),
            ("/root/tool", Some("/root/tool")),
            ("/root/bin/tool", Some("/root/bin")),
            ("/opt/tool", Some("/opt/tool")),
            ("/opt/bin/tool", Some("/opt/bin")),
            ("/home/ann/.pyenv/versions/3.12/bin/python", Some("/home/ann/.pyenv/versions/3.12")),
            ("/root/.nvm/versions/node/v20/bin/node", Some("/root/.nvm/versions/node/v20")),
            ("/home/ann/.cargo/bin/rg", Some("/home/ann/.cargo/bin")),
            ("/home/ann/bin/mine", Some("/home/ann/bin")),
            ("/home/ann/mine", Some("/home/ann/mine")),
            ("/home/ann/.hidden/mine", Some("/home/ann/.hidden/mine")),
            ("/home/bin/tool", Some("/home/bin")),
            ("/nix/store/abc-git/bin/git", Some("/nix/store")),
        ] {
            assert_eq!(own_tree(Path::new(program), &homes), tree.map(PathBuf::from), "{program}");
        }
    }

    #[test]
    fn host_programs_need_the_system_directories_and_images_need_no_trees() {
        let state = Path::new("/nowhere");
        assert_eq!(HostTrees::of_programs(std::iter::empty(), state, &[]), HostTrees::default());
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(dir.join("kit-1/bin")).unwrap();
        std::fs::write(dir.join("kit-1/bin/tool"), "").unwrap();
        std::os::unix::fs::symlink("kit-1", dir.join("kit")).unwrap();
        std::os::unix::fs::symlink(dir.join("kit/bin/tool"), dir.join("link")).unwrap();
        let found = HostTrees::of_programs([dir.join("kit/bin/tool").as_path()].into_iter(), state, &[]);
        assert!(
            found.trees.contains(&"/usr".into()) && found.trees.contains(&dir.join("kit-1")),
            "{found:?}"
        );
        // The link to the directory does not exist in the sandbox.
        assert_eq!(link_target(&dir.join("kit/bin/tool")), dir.join("kit-1/bin/tool"));
        assert_eq!(link_target(Path::new("/usr/bin/env")), Path::new("/usr/bin/env"));
        let linked = locations(&dir.join("link"));
        assert_eq!(linked, [dir.join("link"), dir.join("kit-1/bin/tool")]);
        // A link is shown without its neighbours, and its target is resolved past links to directories.
        let found = HostTrees::of_programs([dir.join("link").as_path()].into_iter(), state, &[]);
        assert!(found.links.contains(&(dir.join("link"), dir.join("kit-1/bin/tool"))), "{found:?}");
        assert!(found.trees.contains(&dir.join("kit-1")) && !found.trees.contains(&dir), "{found:?}");
    }

    #[test]
    fn a_program_in_a_directory_that_the_agent_can_write_adds_no_tree() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        for place in ["project", "private"] {
            std::fs::create_dir(dir.join(place)).unwrap();
            std::fs::write(dir.join(place).join("tool"), "").unwrap();
        }
        let project = dir.join("project");
        // The agent can create these links at `project/bin/tool` and `project/tool` while it runs.
        std::os::unix::fs::symlink("../private", project.join("bin")).unwrap();
        std::os::unix::fs::symlink("../private/tool", project.join("linked")).unwrap();
        let trees = |program: &str, writable: &[PathBuf]| {
            let program = dir.join(program);
            let found =
                HostTrees::of_programs([program.as_path()].into_iter(), Path::new("/nowhere"), writable);
            found.trees.into_iter().filter(|tree| tree.starts_with(&dir)).collect::<Vec<_>>()
        };
        for program in ["project/bin/tool", "project/linked", "project/tool"] {
            assert_eq!(trees(program, std::slice::from_ref(&project)), Vec::<PathBuf>::new(), "{program}");
            assert_ne!(trees(program, &[]), Vec::<PathBuf>::new(), "{program}");
        }
    }

    #[test]
    fn a_program_outside_of_its_recorded_trees_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        for place in ["kit/bin", "private/bin"] {
            std::fs::create_dir_all(dir.join(place)).unwrap();
            std::fs::write(dir.join(place).join("tool"), "").unwrap();
        }
        let state = Path::new("/nowhere");
        let tool = dir.join("kit/bin/tool");
        let record = |path: &Path| ToolRecord {
            path: path.display().to_string(),
            host: Some(HostProgramRecord {
                trees: trees_of(path, state).iter().map(|tree| tree.display().to_string()).collect(),
            }),
            ..ToolRecord::default()
        };
        let runtime = RuntimeRecord { path: tool.display().to_string(), ..RuntimeRecord::default() };
        let mut settings = SandboxSettings {
            tools: vec![record(&tool), record(Path::new("/usr/bin/env"))],
            runtime: Some(runtime),
            ..SandboxSettings::default()
        };
        let check = |settings: &SandboxSettings| HostTrees::of(settings, state).check(settings, state);
        check(&settings).unwrap();
        // New contents at the same path are an update of the program.
        std::fs::write(&tool, "new").unwrap();
        check(&settings).unwrap();
        let refused = |settings: &SandboxSettings| check(settings).unwrap_err().to_string();
        std::fs::remove_file(&tool).unwrap();
        std::os::unix::fs::symlink("../../private/bin/tool", &tool).unwrap();
        let private = dir.join("private").display().to_string();
        assert!(refused(&settings).contains(&private), "{}", refused(&settings));
        // Only the runtime, which is recorded by its real path.
        let tools = std::mem::take(&mut settings.tools);
        assert!(refused(&settings).contains(&private));
        // An agent of an earlier release, without recorded trees.
        (settings.tools, settings.runtime) = (tools, None);
        settings.tools[0].host = None;
        check(&settings).unwrap();
    }

    #[test]
    fn no_tree_contains_the_state_directory() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(dir.join("share/lodge")).unwrap();
        std::fs::write(dir.join("share/tool"), "").unwrap();
        let program = dir.join("share/tool");
        let found = HostTrees::of_programs([program.as_path()].into_iter(), &dir.join("share/lodge"), &[]);
        assert!(found.trees.contains(&program) && !found.trees.contains(&dir.join("share")), "{found:?}");
    }
}
