//! Images: their contents on this host, their registry, and the pulls of agents.
//!
//! Contents are files and outlive every daemon. They are kept while their image is recorded, or while a pin of an
//! unfinished request protects them. Everything else is removed by the next collection.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::agent::AgentState;
use lodge_core::record::{
    AgentRow, AgentSpec, BinImageRecord, BinRecord, ImageContents, ImageRecord, ImageRow, ImageState,
    RuntimeRecord, ToolRecord, images_of,
};
use lodge_daemon::act::ports::PullFailure;
use lodge_engine::{AgentCommand, AutoRetry, Command, ImageCommand, NewImage, SandboxPlan, Ticket};

use crate::plan::SimMutation;
use crate::world::SimWorld;

/// The number of agent images and tool images of the world.
pub const AGENTS: u64 = 4;
pub const BINS: u64 = 3;

/// Pinned contents of images that are not recorded yet.
#[derive(Debug, Default)]
pub struct SimPulls {
    pinned: BTreeMap<PinHolder, BTreeSet<String>>,
}

/// The owner of a pin.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum PinHolder {
    Request(Ticket),
    Pull(u64),
}

/// The detail of a pull that never succeeds.
pub const HOPELESS: &str = "it has no program for this host";

/// The result of a pull, and its pin.
pub type SimPulledImages = (Vec<ImageRow>, Vec<ToolRecord>, Option<RuntimeRecord>, u64);

impl SimPulls {
    pub fn answered(&mut self, ticket: Ticket) {
        self.pinned.remove(&PinHolder::Request(ticket));
    }
}

impl SimWorld {
    /// Pins the contents of a request until it is answered.
    pub fn pin_contents(&mut self, ticket: Ticket, command: &Command) {
        let new = match command {
            Command::Image(ImageCommand::Add(new)) | Command::Image(ImageCommand::AddNew(new)) => {
                Some(new.as_ref())
            }
            Command::Agent(AgentCommand::Create(new)) => Some(&new.image),
            Command::Agent(AgentCommand::Update(update)) => update.image.as_ref(),
            _ => None,
        };
        let Some(NewImage { row, with, .. }) = new else { return };
        let complete = with.iter().chain([row]).filter(|row| row.state == ImageState::Complete);
        let digests: BTreeSet<String> = complete.map(|row| row.digest.clone()).collect();
        self.contents.extend(digests.iter().cloned());
        if let Some(daemon) = &mut self.daemon {
            daemon.pulls.pinned.insert(PinHolder::Request(ticket), digests);
        }
    }

    /// How long a pull for an agent takes.
    pub fn pull_begins(&mut self, row: &AgentRow) -> u64 {
        self.tally.pulls += 1;
        let here = needs(&row.image_digest, &row.spec).all(|digest| self.contents.contains(digest));
        if here { self.rng.below(2) } else { self.rng.delay(self.plan.pull_ms) }
    }

    /// The end of a pull.
    pub fn pull_ends(&mut self, row: &AgentRow) -> Result<SimPulledImages, PullFailure> {
        if !self.calm && self.rng.chance(self.plan.pull_fails) {
            let (detail, again) = match self.rng.chance(200) {
                true => (HOPELESS, AutoRetry::Never),
                false => ("the registry does not answer", AutoRetry::Later),
            };
            return Err(PullFailure { detail: detail.to_owned(), again });
        }
        let pin = self.serial();
        let pulled: BTreeSet<String> = needs(&row.image_digest, &row.spec).map(str::to_owned).collect();
        self.contents.extend(pulled.iter().cloned());
        let new = pulled.iter().filter(|digest| !self.disk.is_complete(digest));
        let rows = new.map(|digest| image(digest)).collect();
        if self.mutation != SimMutation::LoosePull
            && let Some(daemon) = &mut self.daemon
        {
            daemon.pulls.pinned.insert(PinHolder::Pull(pin), pulled);
        }
        let AgentSpec { tools, runtime, .. } = row.spec.clone();
        Ok((rows, placed(tools), runtime.map(found), pin))
    }

    /// Drops the pin of a pull that is recorded or cancelled.
    pub fn unpin_pull(&mut self, pin: u64) {
        if let Some(daemon) = &mut self.daemon {
            daemon.pulls.pinned.remove(&PinHolder::Pull(pin));
        }
    }

    /// Removes unreferenced contents.
    pub fn collect_images(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        let mut kept: BTreeSet<&str> = match self.mutation {
            SimMutation::GreedyCollection => self.disk.named_images().collect(),
            _ => self.disk.images().map(|image| image.digest.as_str()).collect(),
        };
        kept.extend(daemon.pulls.pinned.values().flatten().map(String::as_str));
        let before = self.contents.len();
        self.contents.retain(|digest| kept.contains(digest.as_str()));
        self.tally.collected += (before - self.contents.len()) as u64;
    }

    /// All images of an agent are recorded and complete when it starts, unless it has a pending update.
    pub fn has_needed_images(&mut self, plan: &SandboxPlan) -> bool {
        let lacks = |digest: &&str| !self.contents.contains(*digest) || !self.disk.is_complete(digest);
        let empty = plan.settings.tools.iter().any(|tool| tool.path.is_empty());
        let settings = &plan.settings;
        let needed =
            images_of(&settings.tools, settings.runtime.as_ref()).chain([plan.image_digest.as_str()]);
        let lacking = { needed }.find(lacks).map(str::to_owned);
        if lacking.is_none() && !empty {
            return true;
        }
        let current = self.disk.agent(&plan.agent).is_some_and(|now| {
            let same = now.image_digest == plan.image_digest && now.spec.tools == plan.settings.tools;
            now.runs == plan.run && now.state == AgentState::Starting && same
        });
        if current {
            self.fail(format!(
                "{} starts, and {lacking:?} is not here, or a tool has no program",
                plan.agent
            ));
        }
        false
    }

    /// After every commit: images that are recorded as complete have their contents.
    pub fn check_contents(&mut self) {
        let complete = self.disk.images().filter(|image| image.state == ImageState::Complete);
        let lost = complete.map(|image| &image.digest).find(|digest| !self.contents.contains(*digest));
        if let Some(digest) = lost.cloned() {
            self.fail(format!("{digest} is recorded, and its contents are gone"));
        }
    }

    /// At rest all contents are referenced, and no pull runs.
    pub fn images_are_referenced(&self) -> Result<(), String> {
        if let Some(image) = self.disk.images().find(|image| !self.disk.is_referenced(&image.digest)) {
            return Err(format!("at rest, and nobody has {image:?}"));
        }
        let Some(daemon) = &self.daemon else { return Ok(()) };
        if daemon.pulls.pinned.is_empty() {
            return Ok(());
        }
        Err(format!("at rest, and somebody pulls: {:?}", daemon.pulls))
    }
}

/// The image of an agent, and those of its tools and its runtime.
fn needs<'a>(image_digest: &'a str, spec: &'a AgentSpec) -> impl Iterator<Item = &'a str> {
    spec.images().chain([image_digest])
}

fn bin(number: u64) -> String {
    format!("b{number}:latest@sha256:bin-{number}")
}

/// The tools of an agent's image that come from other images.
fn pinned(number: u64, tool: &str) -> Option<String> {
    match (number, tool) {
        (1 | 2, "sh") => Some(bin(0)),
        (2, "date") => Some(bin(1)),
        _ => None,
    }
}

/// The runtime of an image. Only one image has its own.
pub fn runtime(number: u64) -> Option<RuntimeRecord> {
    (number == 3).then(|| RuntimeRecord { source: bin(2), image: Some(bin(2)), ..RuntimeRecord::default() })
}

/// The tools of an agent of this image, before they are pulled. Only some agents have the last one.
pub fn tools(number: u64, last: u8) -> Vec<ToolRecord> {
    let tool = |name: &str, safe| {
        let image = pinned(number, name);
        let path = if image.is_some() { String::new() } else { format!("/usr/bin/{name}") };
        ToolRecord { name: name.into(), path, safe, image, ..ToolRecord::default() }
    };
    let mut tools = vec![tool("sh", false), tool("date", true)];
    if last.is_multiple_of(3) {
        tools.push(tool("make", false));
    }
    tools
}

fn placed(tools: Vec<ToolRecord>) -> Vec<ToolRecord> {
    let placed = |tool: ToolRecord| match &tool.image {
        Some(image) => {
            ToolRecord { path: format!("{image}/{}", tool.name), usage: Some("so".into()), ..tool }
        }
        None => tool,
    };
    tools.into_iter().map(placed).collect()
}

fn found(runtime: RuntimeRecord) -> RuntimeRecord {
    RuntimeRecord { path: format!("{}/runtime", runtime.source), ..runtime }
}

/// A complete image.
fn image(digest: &str) -> ImageRow {
    let number = |prefix| digest.strip_prefix(prefix).and_then(|number: &str| number.parse::<u64>().ok());
    let contents = match number("sha256:bin-") {
        Some(number) => {
            ImageContents::Bin(BinImageRecord { name: format!("b{number}"), ..BinImageRecord::default() })
        }
        None => ImageContents::Agent(agent_record(number("sha256:").unwrap_or_default())),
    };
    let (digest, name) = (digest.to_owned(), digest.to_owned());
    ImageRow { digest, name, bytes: 1, state: ImageState::Complete, contents }
}

/// The record of an agent's image.
pub fn agent_contents(digest: &str) -> Option<ImageRecord> {
    match image(digest).contents {
        ImageContents::Agent(record) => Some(record),
        ImageContents::Bin(_) => None,
    }
}

fn agent_record(number: u64) -> ImageRecord {
    let named = ["sh", "date"].into_iter().filter_map(|name| Some((name, pinned(number, name)?)));
    let bins = named.map(|(name, image)| BinRecord {
        name: name.to_owned(),
        image: Some(image),
        ..BinRecord::default()
    });
    let runtime_image = runtime(number).and_then(|runtime| runtime.image);
    ImageRecord { bins: bins.collect(), runtime_image, ..ImageRecord::default() }
}

/// One of a few images that share a few names, so that names move and images are removed.
pub fn agent_image(number: u64, name: u64) -> NewImage {
    let row = image(&format!("sha256:{number}"));
    NewImage { row, with: Vec::new(), tags: vec![format!("a:{name}")] }
}

pub fn bin_image(number: u64) -> NewImage {
    let row = image(&format!("sha256:bin-{number}"));
    NewImage { row, with: Vec::new(), tags: vec![format!("b:{number}")] }
}

impl SimWorld {
    /// An image as it arrives from a registry: announced, complete, or complete with its needs.
    pub fn some_arrival(&mut self, new: NewImage) -> NewImage {
        let NewImage { row, with, tags } = new;
        if self.rng.chance(self.plan.announced) {
            return NewImage { row: ImageRow { state: ImageState::Announced, ..row }, with, tags };
        }
        let with = if self.rng.chance(500) {
            row.contents.needs().iter().map(|digest| image(digest)).collect()
        } else {
            with
        };
        NewImage { row, with, tags }
    }
}
