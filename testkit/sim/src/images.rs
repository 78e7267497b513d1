//! Images: their contents on this host, their registry, and the pulls of agents.
//!
//! Contents are files and outlive every daemon. They are kept while their image is recorded, or while a pin of an
//! unfinished request protects them. Everything else is removed by the next collection.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::AgentId;
use lodge_core::agent::AgentState;
use lodge_core::record::{
    AgentRow, AgentSpec, BinImageRecord, BinRecord, ImageContents, ImageRecord, ImageRow, ImageState,
    RuntimeRecord, ToolRecord,
};
use lodge_engine::{
    Again, AgentCommand, Command, ImageCommand, NewImage, PullSeen, SandboxPlan, Seen, Ticket,
};

use crate::plan::Mutation;
use crate::world::{SimEvent, SimWorld};

/// Agents' images and tools' images that there are in this world.
pub const AGENTS: u64 = 4;
pub const BINS: u64 = 3;

/// What a daemon does about images.
#[derive(Debug, Default)]
pub struct SimPulls {
    /// The newest pull for each agent, until it is dropped.
    begun: BTreeMap<AgentId, SimPull>,
    /// Pulls that were cancelled too late: they are still reported.
    ghosts: BTreeMap<u64, AgentRow>,
    held: BTreeMap<PinHolder, BTreeSet<String>>,
}

#[derive(Debug)]
struct SimPull {
    ask: u64,
    row: AgentRow,
}

/// Who has something recorded before long.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum PinHolder {
    Request(Ticket),
    Pull(AgentId),
}

/// What is said of a pull that will never succeed.
pub const HOPELESS: &str = "it has no program for this host";

/// How a pull ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PullEnd {
    Brought,
    Failed(Again),
}

impl SimPulls {
    fn dropped(&mut self, agent: &AgentId) -> Option<SimPull> {
        self.held.remove(&PinHolder::Pull(agent.clone()));
        self.begun.remove(agent)
    }

    pub fn answered(&mut self, ticket: Ticket) {
        self.held.remove(&PinHolder::Request(ticket));
    }
}

impl SimWorld {
    /// A request has contents, which stay pinned until it is answered.
    pub fn hold_contents(&mut self, ticket: Ticket, command: &Command) {
        let new = match command {
            Command::Image(ImageCommand::Add(new)) | Command::Image(ImageCommand::AddNew(new)) => {
                Some(new.as_ref())
            }
            Command::Agent(AgentCommand::Create(new)) => Some(&new.image),
            Command::Agent(AgentCommand::Update(update)) => update.image.as_ref(),
            _ => None,
        };
        let Some(NewImage { row, with, .. }) = new else { return };
        let whole = with.iter().chain([row]).filter(|row| row.state == ImageState::Complete);
        let digests: BTreeSet<String> = whole.map(|row| row.digest.clone()).collect();
        self.contents.extend(digests.iter().cloned());
        if let Some(daemon) = &mut self.daemon {
            daemon.pulls.held.insert(PinHolder::Request(ticket), digests);
        }
    }

    pub fn pull_begins(&mut self, row: &AgentRow, ask: u64) {
        self.pull_ends(&row.id);
        self.tally.pulls += 1;
        let here = needs(&row.image_digest, &row.spec).all(|digest| self.contents.contains(digest));
        let delay = if here { self.rng.below(2) } else { self.rng.delay(self.plan.pull_ms) };
        let Some(daemon) = &mut self.daemon else { return };
        let (life, agent) = (daemon.life, row.id.clone());
        daemon.pulls.begun.insert(agent.clone(), SimPull { ask, row: row.clone() });
        self.after(delay, SimEvent::Pull { life, agent, ask });
    }

    /// Nobody waits for it any more, or it is recorded. A report that was about to be sent may still be sent.
    pub fn pull_ends(&mut self, agent: &AgentId) {
        let late = self.rng.chance(300);
        let Some(daemon) = &mut self.daemon else { return };
        if let Some(SimPull { ask, row }) = daemon.pulls.dropped(agent)
            && late
        {
            daemon.pulls.ghosts.insert(ask, row);
        }
    }

    /// The end of a pull, or of one that nobody waits for.
    pub fn finish_pull(&mut self, agent: &AgentId, ask: u64) {
        let fails = !self.calm && self.rng.chance(self.plan.pull_fails);
        let again = if fails && self.rng.chance(200) { Again::Never } else { Again::Later };
        let twice = self.rng.chance(50);
        let Some(daemon) = &mut self.daemon else { return };
        let current = daemon.pulls.begun.get(agent).filter(|pull| pull.ask == ask);
        let waits = current.is_some();
        let row = current.map(|pull| pull.row.clone()).or_else(|| daemon.pulls.ghosts.remove(&ask));
        let Some(row) = row else { return };
        let end = if fails { PullEnd::Failed(again) } else { PullEnd::Brought };
        if end == PullEnd::Brought {
            let brought: BTreeSet<String> = needs(&row.image_digest, &row.spec).map(str::to_owned).collect();
            self.contents.extend(brought.iter().cloned());
            if waits && self.mutation != Mutation::LoosePull {
                daemon.pulls.held.insert(PinHolder::Pull(agent.clone()), brought);
            }
        }
        for _ in 0..=usize::from(twice) {
            self.tell(self.pull_observation(&row, ask, end));
        }
    }

    fn pull_observation(&self, row: &AgentRow, ask: u64, end: PullEnd) -> Seen {
        let agent = row.id.clone();
        match end {
            PullEnd::Failed(again) => {
                let detail = match again {
                    Again::Later => "the registry does not answer",
                    Again::Never => HOPELESS,
                };
                Seen::Pull(PullSeen::Failed { agent, ask, detail: detail.to_owned(), again })
            }
            PullEnd::Brought => {
                let new = needs(&row.image_digest, &row.spec).filter(|digest| !self.disk.is_whole(digest));
                let rows = new.collect::<BTreeSet<_>>().into_iter().map(image).collect();
                let AgentSpec { tools, runtime, .. } = row.spec.clone();
                Seen::Pull(PullSeen::Pulled {
                    agent,
                    ask,
                    rows,
                    tools: placed(tools),
                    runtime: runtime.map(found),
                })
            }
        }
    }

    /// Removes what nobody needs.
    pub fn collect_images(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        let mut kept: BTreeSet<&str> = match self.mutation {
            Mutation::GreedyCollection => self.disk.named_images().collect(),
            _ => self.disk.images().map(|held| held.digest.as_str()).collect(),
        };
        kept.extend(daemon.pulls.held.values().flatten().map(String::as_str));
        let before = self.contents.len();
        self.contents.retain(|digest| kept.contains(digest.as_str()));
        self.tally.collected += (before - self.contents.len()) as u64;
    }

    /// Everything that an agent is made of is recorded and here when it is started, unless it is about to be another.
    pub fn has_what_it_needs(&mut self, plan: &SandboxPlan) -> bool {
        let lacks = |digest: &&str| !self.contents.contains(*digest) || !self.disk.is_whole(digest);
        let empty = plan.spec.tools.iter().any(|tool| tool.path.is_empty());
        let lacking = needs(&plan.image_digest, &plan.spec).find(lacks).map(str::to_owned);
        if lacking.is_none() && !empty {
            return true;
        }
        let current = self.disk.agent(&plan.agent).is_some_and(|now| {
            let same = now.image_digest == plan.image_digest && now.spec.tools == plan.spec.tools;
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

    /// After every commit: what is recorded as whole is here.
    pub fn check_contents(&mut self) {
        let whole = self.disk.images().filter(|held| held.state == ImageState::Complete);
        let lost = whole.map(|held| &held.digest).find(|digest| !self.contents.contains(*digest));
        if let Some(digest) = lost.cloned() {
            self.fail(format!("{digest} is recorded, and its contents are gone"));
        }
    }

    /// At rest nothing is kept that nobody has, and nobody pulls.
    pub fn images_are_wanted(&self) -> Result<(), String> {
        if let Some(held) = self.disk.images().find(|held| !self.disk.is_had(&held.digest)) {
            return Err(format!("at rest, and nobody has {held:?}"));
        }
        let Some(daemon) = &self.daemon else { return Ok(()) };
        if daemon.pulls.begun.is_empty() && daemon.pulls.held.is_empty() {
            return Ok(());
        }
        Err(format!("at rest, and somebody pulls: {:?}", daemon.pulls))
    }
}

/// Its image, and those of its tools and its runtime.
fn needs<'a>(image_digest: &'a str, spec: &'a AgentSpec) -> impl Iterator<Item = &'a str> {
    spec.images().chain([image_digest])
}

fn bin(number: u64) -> String {
    format!("b{number}:latest@sha256:bin-{number}")
}

/// Which tools of an agent's image are in others.
fn pinned(number: u64, tool: &str) -> Option<String> {
    match (number, tool) {
        (1 | 2, "sh") => Some(bin(0)),
        (2, "date") => Some(bin(1)),
        _ => None,
    }
}

/// One image has a runtime of its own.
pub fn runtime(number: u64) -> Option<RuntimeRecord> {
    (number == 3).then(|| RuntimeRecord { source: bin(2), image: Some(bin(2)), ..RuntimeRecord::default() })
}

/// The tools of an agent of this image, before they are pulled, and one that only some have.
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

/// An image of this world, whole.
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

/// One of a few images that share a few names, so that names move and images go.
pub fn agent_image(number: u64, name: u64) -> NewImage {
    let row = image(&format!("sha256:{number}"));
    NewImage { row, with: Vec::new(), tags: vec![format!("a:{name}")] }
}

pub fn bin_image(number: u64) -> NewImage {
    let row = image(&format!("sha256:bin-{number}"));
    NewImage { row, with: Vec::new(), tags: vec![format!("b:{number}")] }
}

impl SimWorld {
    /// As it comes from a registry: only announced, whole, or with everything that it needs.
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
