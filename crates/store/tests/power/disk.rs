//! A disk that forgets what was not synced.
//!
//! Owns: which content of files and which names are certain, and which are not yet. Never: the choice of what a cut
//! leaves, see `cut`.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::trace::{Op, OpKind};

pub const SECTOR_BYTES: u64 = 512;

/// A file or a directory, independent of its current name.
type NodeId = usize;
const ROOT: NodeId = 0;

#[derive(Debug, Clone)]
enum Node {
    File { certain: Vec<u8>, pending: Vec<Pending<FileChange>> },
    Dir { certain: Names, pending: Vec<Pending<NameChange>>, now: Names },
}

type Names = BTreeMap<String, NodeId>;

#[derive(Debug, Clone)]
struct Pending<C> {
    /// Orders changes over the whole disk.
    serial: usize,
    /// When it ended, in lines of the trace.
    ended: usize,
    change: C,
}

#[derive(Debug, Clone)]
enum FileChange {
    Write { at: u64, bytes: Vec<u8> },
    SetLen(u64),
}

/// Removes a name, gives a name, or both at once.
#[derive(Debug, Clone)]
struct NameChange {
    gone: Option<String>,
    made: Option<(String, NodeId)>,
}

/// What is left of a file that was not synced may be one of these in size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Growth {
    /// No longer than the data that arrived.
    WithData,
    /// As long as it was, with zeros where data did not arrive.
    BeforeData,
}

/// The smallest thing that arrives on the disk or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    pub node: NodeId,
    serial: usize,
    /// For a write, which sector of the file.
    sector: Option<u64>,
}

/// What is there after the power came back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Image {
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    pub dirs: Vec<PathBuf>,
}

impl Unit {
    /// Whether it is content, and not a name or a length.
    pub fn is_data(&self) -> bool {
        self.sector.is_some()
    }
}

#[derive(Debug, Clone)]
pub struct Disk {
    root: PathBuf,
    nodes: Vec<Node>,
    serial: usize,
}

impl Disk {
    /// A disk whose directory `root` holds what `image` says, for certain.
    pub fn new(root: &Path, image: &Image) -> Disk {
        let empty = Node::Dir { certain: Names::new(), pending: Vec::new(), now: Names::new() };
        let mut disk = Disk { root: root.to_owned(), nodes: vec![empty], serial: 0 };
        for dir in &image.dirs {
            let what = OpKind::MakeDir(root.join(dir));
            disk.apply(&Op { began: 0, ended: 0, what });
        }
        for (path, bytes) in &image.files {
            let path = root.join(path);
            disk.apply(&Op { began: 0, ended: 0, what: OpKind::Create(path.clone()) });
            let what = OpKind::Write { path, at: 0, bytes: bytes.clone() };
            disk.apply(&Op { began: 0, ended: 0, what });
        }
        for node in 0..disk.nodes.len() {
            disk.settle(node, 0);
        }
        disk
    }

    /// Does what the program did. Notes change nothing.
    ///
    /// # Panics
    /// On something that the program cannot have done to this disk: the trace is of another one.
    pub fn apply(&mut self, op: &Op) {
        self.serial += 1;
        match &op.what {
            OpKind::Note(_) => {}
            OpKind::Create(path) => {
                let (dir, name) = self.parent(path);
                if !self.names(dir).contains_key(&name) {
                    let file = Node::File { certain: Vec::new(), pending: Vec::new() };
                    self.make(dir, name, file, op.ended);
                }
            }
            OpKind::MakeDir(path) => {
                let (dir, name) = self.parent(path);
                let made = Node::Dir { certain: Names::new(), pending: Vec::new(), now: Names::new() };
                self.make(dir, name, made, op.ended);
            }
            OpKind::Write { path, at, bytes } => {
                let change = FileChange::Write { at: *at, bytes: bytes.clone() };
                self.change_file(path, op.ended, change);
            }
            OpKind::SetLen { path, len } => self.change_file(path, op.ended, FileChange::SetLen(*len)),
            OpKind::Sync(path) => {
                // One that lost its name meanwhile cannot be found by its path.
                if let Some(node) = self.find(path) {
                    self.settle(node, op.began);
                }
            }
            OpKind::Remove(path) => {
                let (dir, name) = self.parent(path);
                self.rename_in(dir, NameChange { gone: Some(name), made: None }, op.ended);
            }
            OpKind::Rename { from, to } => {
                let ((dir, name), (to_dir, to_name)) = (self.parent(from), self.parent(to));
                assert_eq!(dir, to_dir, "moving between directories is not modelled: {}", from.display());
                let node = self.names(dir)[&name];
                self.rename_in(dir, NameChange { gone: Some(name), made: Some((to_name, node)) }, op.ended);
            }
        }
    }

    /// Everything that may or may not be on the disk now, in the order in which it happened.
    pub fn units(&self) -> Vec<Unit> {
        let mut units = Vec::new();
        for (node, what) in self.nodes.iter().enumerate() {
            match what {
                Node::Dir { pending, .. } => {
                    units.extend(pending.iter().map(|one| Unit { node, serial: one.serial, sector: None }));
                }
                Node::File { pending, .. } => {
                    for one in pending {
                        let serial = one.serial;
                        match &one.change {
                            FileChange::SetLen(_) => units.push(Unit { node, serial, sector: None }),
                            FileChange::Write { at, bytes } => {
                                units.extend(sectors(*at, bytes.len()).map(|sector| Unit {
                                    node,
                                    serial,
                                    sector: Some(sector),
                                }))
                            }
                        }
                    }
                }
            }
        }
        units.sort_by_key(|unit| (unit.serial, unit.sector));
        units
    }

    /// The disk after a cut that these units survived.
    pub fn image(&self, kept: &[Unit], growth: Growth) -> Image {
        let mut names: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        let mut newest: BTreeMap<(NodeId, u64), usize> = BTreeMap::new();
        for unit in kept {
            match unit.sector {
                None => names[unit.node].push(unit.serial),
                // A sector that arrived has everything that was written to it before.
                Some(sector) => {
                    let newest = newest.entry((unit.node, sector)).or_default();
                    *newest = (*newest).max(unit.serial);
                }
            }
        }
        let mut image = Image::default();
        self.collect(ROOT, Path::new(""), &names, &newest, growth, &mut image);
        image
    }

    fn collect(
        &self,
        node: NodeId,
        path: &Path,
        whole: &[Vec<usize>],
        newest: &BTreeMap<(NodeId, u64), usize>,
        growth: Growth,
        image: &mut Image,
    ) {
        let kept = |serial: &usize| whole[node].contains(serial);
        match &self.nodes[node] {
            Node::Dir { certain, pending, .. } => {
                if node != ROOT {
                    image.dirs.push(path.to_owned());
                }
                let mut names = certain.clone();
                for one in pending.iter().filter(|one| kept(&one.serial)) {
                    one.change.apply(&mut names);
                }
                for (name, child) in names {
                    self.collect(child, &path.join(name), whole, newest, growth, image);
                }
            }
            Node::File { certain, pending, .. } => {
                let mut bytes = certain.clone();
                for one in pending {
                    match &one.change {
                        FileChange::SetLen(len) if kept(&one.serial) => bytes.resize(index(*len), 0),
                        FileChange::SetLen(_) => {}
                        FileChange::Write { at, bytes: written } => {
                            let arrived = |sector| {
                                newest.get(&(node, sector)).is_some_and(|newest| one.serial <= *newest)
                            };
                            put_sectors(&mut bytes, *at, written, arrived, growth);
                        }
                    }
                }
                image.files.insert(path.to_owned(), bytes);
            }
        }
    }

    fn make(&mut self, dir: NodeId, name: String, node: Node, ended: usize) {
        self.nodes.push(node);
        let made = Some((name, self.nodes.len() - 1));
        self.rename_in(dir, NameChange { gone: None, made }, ended);
    }

    fn rename_in(&mut self, dir: NodeId, change: NameChange, ended: usize) {
        let serial = self.serial;
        match &mut self.nodes[dir] {
            Node::Dir { pending, now, .. } => {
                change.apply(now);
                pending.push(Pending { serial, ended, change });
            }
            Node::File { .. } => panic!("a file has no names"),
        }
    }

    fn change_file(&mut self, path: &Path, ended: usize, change: FileChange) {
        // Its last name is gone, and so will be what it holds.
        let Some(node) = self.find(path) else { return };
        let serial = self.serial;
        match &mut self.nodes[node] {
            Node::File { pending, .. } => pending.push(Pending { serial, ended, change }),
            Node::Dir { .. } => panic!("{} is a directory", path.display()),
        }
    }

    /// What ended before the line is certain from now on.
    fn settle(&mut self, node: NodeId, before: usize) {
        match &mut self.nodes[node] {
            Node::Dir { certain, pending, .. } => {
                for one in pending.extract_if(.., |one| one.ended <= before) {
                    one.change.apply(certain);
                }
            }
            Node::File { certain, pending, .. } => {
                for one in pending.extract_if(.., |one| one.ended <= before) {
                    match one.change {
                        FileChange::SetLen(len) => certain.resize(index(len), 0),
                        FileChange::Write { at, bytes } => put(certain, at, &bytes),
                    }
                }
            }
        }
    }

    fn names(&self, dir: NodeId) -> &Names {
        match &self.nodes[dir] {
            Node::Dir { now, .. } => now,
            Node::File { .. } => panic!("a file has no names"),
        }
    }

    fn find(&self, path: &Path) -> Option<NodeId> {
        let beneath = path.strip_prefix(&self.root).expect("only what lies beneath the root is traced");
        let mut node = ROOT;
        for part in beneath.components() {
            let Component::Normal(name) = part else { return None };
            node = *self.names(node).get(name.to_str()?)?;
        }
        Some(node)
    }

    fn parent(&self, path: &Path) -> (NodeId, String) {
        let dir = path.parent().and_then(|dir| self.find(dir));
        let name = path.file_name().and_then(|name| name.to_str());
        match (dir, name) {
            (Some(dir), Some(name)) => (dir, name.to_owned()),
            _ => panic!("{} lies in no directory that is known", path.display()),
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        if let Some(gone) = &self.gone {
            names.remove(gone);
        }
        if let Some((name, node)) = &self.made {
            names.insert(name.clone(), *node);
        }
    }
}

impl Image {
    /// What lies in a directory now.
    pub fn read(dir: &Path) -> std::io::Result<Image> {
        let mut image = Image::default();
        let mut left = vec![PathBuf::new()];
        while let Some(beneath) = left.pop() {
            for entry in std::fs::read_dir(dir.join(&beneath))? {
                let entry = entry?;
                let path = beneath.join(entry.file_name());
                if entry.file_type()?.is_dir() {
                    image.dirs.push(path.clone());
                    left.push(path);
                } else if entry.file_type()?.is_file() {
                    image.files.insert(path, std::fs::read(entry.path())?);
                }
            }
        }
        Ok(image)
    }

    /// Makes the directory hold this and nothing else.
    pub fn write(&self, dir: &Path) -> std::io::Result<()> {
        if dir.exists() {
            std::fs::remove_dir_all(dir)?;
        }
        std::fs::create_dir(dir)?;
        for made in &self.dirs {
            std::fs::create_dir_all(dir.join(made))?;
        }
        for (path, bytes) in &self.files {
            std::fs::write(dir.join(path), bytes)?;
        }
        Ok(())
    }
}

/// Every sector that a write touches.
fn sectors(at: u64, len: usize) -> impl Iterator<Item = u64> {
    let end = at + len as u64;
    (at / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES)).filter(move |_| len > 0)
}

fn put(file: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let (from, to) = (index(at), index(at) + bytes.len());
    if file.len() < to {
        file.resize(to, 0);
    }
    file[from..to].copy_from_slice(bytes);
}

/// Puts those sectors of a write that arrived.
fn put_sectors(file: &mut Vec<u8>, at: u64, bytes: &[u8], arrived: impl Fn(u64) -> bool, growth: Growth) {
    let end = at + bytes.len() as u64;
    for sector in sectors(at, bytes.len()) {
        let (from, to) = ((sector * SECTOR_BYTES).max(at), ((sector + 1) * SECTOR_BYTES).min(end));
        if arrived(sector) {
            put(file, from, &bytes[index(from - at)..index(to - at)]);
        } else if growth == Growth::BeforeData && file.len() < index(to) {
            file.resize(index(to), 0);
        }
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("files of tests fit into memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(whats: Vec<OpKind>) -> Disk {
        let mut disk = Disk::new(Path::new("/d"), &Image::default());
        for (line, what) in whats.into_iter().enumerate() {
            disk.apply(&Op { began: line + 1, ended: line + 1, what });
        }
        disk
    }

    fn write(name: &str, at: u64, bytes: &[u8]) -> OpKind {
        OpKind::Write { path: Path::new("/d").join(name), at, bytes: bytes.to_vec() }
    }

    fn path(name: &str) -> PathBuf {
        Path::new("/d").join(name)
    }

    #[test]
    fn a_synced_file_without_a_synced_directory_has_no_name() {
        let made = || vec![OpKind::Create(path("f")), write("f", 0, b"abc"), OpKind::Sync(path("f"))];
        let disk = run(made());
        assert!(disk.image(&[], Growth::WithData).files.is_empty());
        let mut synced = made();
        synced.push(OpKind::Sync(path("")));
        let disk = run(synced);
        assert_eq!(disk.image(&[], Growth::WithData).files[Path::new("f")], b"abc");
        assert!(disk.units().is_empty());
    }

    #[test]
    fn sectors_arrive_one_by_one_and_contain_what_was_written_to_them_before() {
        let mut whats = vec![OpKind::Create(path("f")), OpKind::Sync(path(""))];
        whats.extend([write("f", 0, &[1; 1024]), write("f", 500, &[2; 24])]);
        let disk = run(whats);
        let units = disk.units();
        assert_eq!(units.len(), 4);
        // Only the second state of the second sector.
        let image = disk.image(&units[3..], Growth::WithData);
        let file = &image.files[Path::new("f")];
        assert_eq!((file.len(), file[511], file[512], file[523], file[524]), (1024, 0, 2, 2, 1));
        let grown = disk.image(&[], Growth::BeforeData);
        assert_eq!(grown.files[Path::new("f")], [0; 1024]);
    }

    #[test]
    fn a_file_moved_over_another_is_the_old_or_the_new_one() {
        let whats = vec![
            OpKind::Create(path("f")),
            write("f", 0, b"old"),
            OpKind::Sync(path("f")),
            OpKind::Sync(path("")),
            OpKind::Create(path("g")),
            write("g", 0, b"new"),
            OpKind::Rename { from: path("g"), to: path("f") },
        ];
        let disk = run(whats);
        let units = disk.units();
        let file = |kept: &[Unit]| disk.image(kept, Growth::WithData).files[Path::new("f")].clone();
        assert_eq!(file(&[]), b"old");
        assert_eq!(file(&units), b"new");
        // It was not synced before it was moved, so it may be empty.
        assert_eq!(file(&units[2..]), b"");
    }

    #[test]
    fn what_began_before_a_sync_and_ended_after_is_not_covered() {
        let mut disk = run(vec![OpKind::Create(path("f")), OpKind::Sync(path(""))]);
        disk.apply(&Op { began: 10, ended: 13, what: write("f", 0, b"x") });
        disk.apply(&Op { began: 12, ended: 14, what: OpKind::Sync(path("f")) });
        assert_eq!(disk.units().len(), 1);
    }
}
