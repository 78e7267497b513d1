//! What kind of world a seed makes: how wide, how slow, and what goes wrong in it.

use lodge_core::lineage::Policy;

use crate::rng::SimRng;

/// A deliberate bug in the simulated shell: a simulation that finds none of them proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    None,
    /// Replies and effects leave before their commit.
    EarlyRelease,
    /// A tool's intent is not written.
    LostIntent,
    /// A runtime does not ask again for what a dead daemon did not answer.
    NoResend,
    /// An exec of which its outcome is unknown runs again, safe or not.
    BlindRerun,
    /// The end of a program is not told to the engine.
    DeafActor,
    /// A runtime that misses its heartbeat is reported dead before it is dead.
    HastyDeath,
    /// A keeper that takes over a sandbox does not know what its predecessor claimed.
    LostClaims,
    /// Turns that leave the path of their session are not written off.
    LostCut,
    /// A token that is revoked opens what it did before.
    DeafDoors,
    /// The output of a job is said to be archived before it is.
    EarlyForget,
    /// That a job starts is not written.
    LostStart,
    /// That a session heard of the end of a job is forgotten with the daemon.
    LostTold,
    /// A daemon that starts does not ask again for what an agent needs.
    LostPull,
    /// Pulled contents are not pinned until they are recorded.
    LoosePull,
    /// Contents of images go that have no name, although agents have them.
    GreedyCollection,
    /// A batch counts as written although the store could not be reached.
    AwayIsWritten,
    /// Agents leave the engine's memory before what was decided about them is on disk.
    EarlyRest,
}

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimFault {
    DaemonDies,
    /// At the next moment of this kind.
    DaemonDiesAt(CommitPoint),
    DiskFails,
    DiskFull,
    /// The store cannot be reached for a while. The batch that finds this out may be on disk all the same.
    StoreAway,
    /// Another daemon takes the store.
    StoreFenced,
    KeeperDies,
    RuntimeDies,
    RuntimeExits,
    RuntimeHangs,
    KeeperHangs,
    LinkCut,
    PowerLoss,
    ClockJumps,
    SpawnFails,
    /// Nobody offers the model of an agent for a few starts.
    ModelGone,
    ProvidersChange,
    /// Another number of agents may work at the same time.
    SlotsChange,
    SandboxSticks,
    FilesStick,
    /// The archive has no room for a while.
    ArchiveFull,
    /// Old jobs and outputs go.
    Retention,
    /// Agents at rest leave the engine's memory in the middle of everything.
    AgentsRest,
}

/// Moments of the one path at which dying is most interesting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitPoint {
    Decided,
    Committed,
    HalfReleased,
    Adopted,
    Archived,
}

const FAULTS: [SimFault; 24] = [
    SimFault::DaemonDies,
    SimFault::DaemonDiesAt(CommitPoint::Decided),
    SimFault::DaemonDiesAt(CommitPoint::Committed),
    SimFault::DaemonDiesAt(CommitPoint::HalfReleased),
    SimFault::DaemonDiesAt(CommitPoint::Adopted),
    SimFault::DaemonDiesAt(CommitPoint::Archived),
    SimFault::DiskFails,
    SimFault::DiskFull,
    SimFault::KeeperDies,
    SimFault::RuntimeDies,
    SimFault::RuntimeExits,
    SimFault::RuntimeHangs,
    SimFault::KeeperHangs,
    SimFault::LinkCut,
    SimFault::PowerLoss,
    SimFault::ClockJumps,
    SimFault::SpawnFails,
    SimFault::ModelGone,
    SimFault::ProvidersChange,
    SimFault::SlotsChange,
    SimFault::SandboxSticks,
    SimFault::FilesStick,
    SimFault::ArchiveFull,
    SimFault::Retention,
];

/// What can go wrong with a store that is elsewhere.
const STORE_FAULTS: [SimFault; 2] = [SimFault::StoreAway, SimFault::StoreFenced];

#[derive(Debug, Clone)]
pub struct SimPlan {
    pub agents_max: usize,
    /// Sessions of each agent.
    pub sessions: u64,
    pub callers: usize,
    pub link_ms: u64,
    pub disk_ms: u64,
    pub model_ms: u64,
    pub tool_ms: u64,
    pub pause_ms: u64,
    /// After how long without work the writer rests; the daemon's second is long in a world this quick.
    pub rest_ms: u64,
    pub fault_every_ms: u64,
    pub faults: Vec<SimFault>,
    /// What the daemon is set to do about work whose process died.
    pub policy: Policy,
    /// Agents that work at the same time.
    pub max_concurrent: usize,
    /// How often, in a thousand, a step takes several inputs.
    pub crowd: u64,
    /// How often, in a thousand, an answer asks for tools.
    pub tools: u64,
    /// How often, in a thousand, a model call fails.
    pub model_fails: u64,
    /// How often, in a thousand, a caller asks again without need.
    pub impatient: u64,
    /// How often, in a thousand, a caller restarts or updates an agent.
    pub changes: u64,
    /// How often, in a thousand, a caller changes a whole session, and something that is about no work.
    pub edits: u64,
    pub papers: u64,
    /// How often, in a thousand, an answer has to fit a schema, and how often such an answer does not.
    pub schemas: u64,
    pub misfits: u64,
    /// How often, in a thousand, an agent has a policy of its own.
    pub own_policies: u64,
    /// For how long a process hangs, at most.
    pub hang_ms: u64,
    /// How often, in a thousand, a runtime says something that is not so.
    pub lies: u64,
    /// How often, in a thousand, two calls of an answer have the same id.
    pub twins: u64,
    /// How often, in a thousand, a caller is about jobs, and a call of a model.
    pub jobs: u64,
    pub job_tools: u64,
    /// Jobs that run at the same time.
    pub max_jobs: usize,
    pub job_ms: u64,
    pub archive_ms: u64,
    /// How long a pull takes, and how often, in a thousand, it fails.
    pub pull_ms: u64,
    pub pull_fails: u64,
    /// How often, in a thousand, an image is only announced.
    pub announced: u64,
    /// How often, in a thousand, the model call of a turn kills the daemon.
    pub pills: u64,
}

impl SimPlan {
    /// Every seed gets its own mixture, so that rare combinations are common in some world.
    pub fn new(rng: &mut SimRng) -> SimPlan {
        let mut faults: Vec<SimFault> = FAULTS.into_iter().filter(|_| rng.chance(500)).collect();
        if faults.is_empty() {
            faults.push(SimFault::DaemonDies);
        }
        // Chosen aside, so that the other choices are what they would be without.
        let mut aside = rng.clone();
        faults.extend(STORE_FAULTS.into_iter().filter(|_| aside.chance(300)));
        if aside.chance(500) {
            faults.push(SimFault::AgentsRest);
        }
        // Now and then one agent with more sessions than it works on at a time.
        let wide = rng.chance(30);
        let pick = |rng: &mut SimRng, from: &[u64]| rng.pick(from).copied().unwrap_or(1);
        SimPlan {
            agents_max: if wide { 1 } else { rng.between(1, 6) as usize },
            sessions: if wide { 300 } else { rng.between(1, 4) },
            callers: if wide { 300 } else { rng.between(1, 8) as usize },
            link_ms: pick(rng, &[1, 3, 20]),
            disk_ms: pick(rng, &[0, 1, 4, 40]),
            model_ms: pick(rng, &[1, 10, 100]),
            tool_ms: pick(rng, &[1, 10, 200]),
            pause_ms: pick(rng, &[1, 10, 100]),
            rest_ms: pick(rng, &[20, 1_000]),
            fault_every_ms: pick(rng, &[50, 200, 1_000, 5_000]),
            faults,
            policy: rng.pick(&Policy::ALL).copied().unwrap_or(Policy::Revive),
            max_concurrent: pick(rng, &[1, 2, 4, 64]) as usize,
            crowd: pick(rng, &[0, 100, 900]),
            tools: pick(rng, &[100, 500, 800]),
            model_fails: pick(rng, &[0, 50, 300]),
            impatient: pick(rng, &[0, 50, 300]),
            changes: pick(rng, &[0, 5, 40]),
            edits: pick(rng, &[0, 10, 100]),
            papers: pick(rng, &[0, 10, 40]),
            schemas: pick(rng, &[0, 100, 500]),
            misfits: pick(rng, &[50, 500]),
            own_policies: 700,
            hang_ms: 120_000,
            lies: pick(rng, &[0, 0, 0, 20]),
            twins: pick(rng, &[0, 0, 20]),
            jobs: pick(rng, &[0, 100, 400]),
            job_tools: pick(rng, &[0, 200, 600]),
            max_jobs: pick(rng, &[1, 2, 4, 10]) as usize,
            job_ms: pick(rng, &[1, 20, 300]),
            archive_ms: pick(rng, &[1, 20, 500]),
            pull_ms: pick(rng, &[1, 50, 1_000]),
            pull_fails: pick(rng, &[0, 100, 500]),
            announced: pick(rng, &[0, 300, 800]),
            // Chosen aside, so that worlds without pills are what they would be if there were none at all.
            pills: pick(&mut rng.clone(), &[0, 0, 2, 20]),
        }
    }

    /// A bug that shows only in some worlds is looked for there: in one that hangs, or is changed a lot.
    #[must_use]
    pub fn where_it_shows(mut self, mutation: Mutation) -> SimPlan {
        match mutation {
            Mutation::HastyDeath => {
                self.faults = vec![SimFault::RuntimeHangs];
                (self.policy, self.own_policies) = (Policy::Revive, 0);
                // Silence takes minutes to be noticed, and time passes only while there is little to do.
                (self.callers, self.agents_max, self.sessions) = (2, 2, 2);
                (self.model_ms, self.pause_ms, self.hang_ms) = (100, 100, 1_000_000);
                (self.changes, self.edits, self.lies) = (0, 0, 0);
                // The order to kill is slower than the decision to revive.
                (self.link_ms, self.disk_ms) = (20, 0);
            }
            Mutation::LostCut => self.edits = 100,
            Mutation::AwayIsWritten => self.faults = vec![SimFault::StoreAway],
            // An agent has to end by itself, and the engine to hear of the disk before that is there.
            Mutation::EarlyRest => {
                self.faults = vec![SimFault::AgentsRest, SimFault::RuntimeExits];
                (self.fault_every_ms, self.disk_ms) = (50, 40);
            }
            // A job whose claim is forgotten is taken for one without output before it can run twice.
            Mutation::LostClaims => (self.jobs, self.job_tools) = (0, 0),
            Mutation::DeafDoors => self.papers = 40,
            Mutation::EarlyForget | Mutation::LostStart | Mutation::LostTold => {
                (self.jobs, self.job_tools) = (200, 200);
            }
            Mutation::LostPull | Mutation::GreedyCollection => {
                (self.changes, self.papers, self.announced) = (40, 100, 500);
            }
            Mutation::LoosePull => {
                // An image has to go while another one is here and about to be recorded.
                (self.changes, self.papers, self.announced) = (200, 500, 800);
                (self.callers, self.agents_max, self.sessions) = (8, 6, 2);
                (self.pull_ms, self.pull_fails, self.disk_ms) = (1, 0, 40);
                (self.jobs, self.job_tools, self.pills) = (0, 0, 0);
            }
            Mutation::None
            | Mutation::EarlyRelease
            | Mutation::LostIntent
            | Mutation::NoResend
            | Mutation::BlindRerun
            | Mutation::DeafActor => {}
        }
        self
    }
}
