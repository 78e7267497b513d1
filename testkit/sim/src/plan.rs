//! The parameters of a world, chosen by its seed: size, delays and faults.

use lodge_core::lineage::Policy;

use crate::rng::SimRng;

/// A deliberate bug in the simulated shell. Finding it shows that the laws can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimMutation {
    None,
    /// Replies and effects leave before their commit.
    EarlyRelease,
    /// A tool's intent is not written.
    LostIntent,
    /// A runtime does not repeat requests that a dead daemon did not answer.
    NoResend,
    /// An exec with an unknown outcome runs again, even if it is not safe.
    BlindRerun,
    /// The end of a program is not reported to the engine.
    LostExecEnd,
    /// A runtime that misses its heartbeat is reported dead before it is dead.
    HastyDeath,
    /// The next keeper of a sandbox ignores the claims of its predecessor.
    LostClaims,
    /// The cut of a session's path is not written.
    LostCut,
    /// A revoked token stays valid.
    IgnoredRevocation,
    /// The output of a job is reported as archived before it is.
    EarlyForget,
    /// The start of a job is not written.
    LostStart,
    /// A restart forgets that the end of a job was reported to its session.
    LostEndReport,
    /// A daemon does not resume pulls at startup.
    LostPull,
    /// Pulled contents are not pinned until they are recorded.
    LoosePull,
    /// The collection removes contents of images without a name, although agents use them.
    GreedyCollection,
    /// A batch counts as written although the store could not be reached.
    AwayIsWritten,
    /// Agents leave the engine's memory before their last decision is on disk.
    EarlyRest,
    /// A restart forgets why turns wait.
    LostWait,
    /// A turn that continues another one is planned without the results of its tools.
    LostResults,
}

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimFault {
    DaemonDies,
    /// The daemon dies at the next point of this kind.
    DaemonDiesAt(CommitPoint),
    DiskFails,
    DiskFull,
    /// The store cannot be reached for a while. The batch that fails may still be on disk.
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
    /// No provider offers the model of an agent for a few starts.
    ModelGone,
    ProvidersChange,
    /// The provider answers no request for a long time.
    ProviderDown,
    /// The limit of working agents changes.
    SlotsChange,
    SandboxSticks,
    FilesStick,
    /// The archive has no space for a while.
    ArchiveFull,
    /// The retention removes old jobs and outputs.
    Retention,
    /// Agents at rest leave the engine's memory while the daemon is busy.
    AgentsRest,
    /// The sweep visits a sandbox.
    Sweep,
    /// The daemon has no descriptors for a while.
    DescriptorsGone,
}

/// Points of the one path at which the daemon can be killed.
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

/// Faults of a remote store.
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
    /// How long the read of a few rows takes. 0 for a local store.
    pub read_ms: u64,
    pub tool_ms: u64,
    pub pause_ms: u64,
    /// The idle time after which the writer rests. Shorter than the daemon's, because the simulated world is faster.
    pub rest_ms: u64,
    pub fault_every_ms: u64,
    pub faults: Vec<SimFault>,
    /// The configured policy for work whose process died.
    pub policy: Policy,
    /// Agents that work at the same time.
    pub max_concurrent: usize,
    /// How often, in a thousand, a step takes several inputs.
    pub crowd: u64,
    /// How often, in a thousand, an answer calls tools.
    pub tools: u64,
    /// How often, in a thousand, a model call fails.
    pub model_fails: u64,
    /// How long a failing model call is tried again.
    pub retry_for_ms: u64,
    /// How often, in a thousand, a caller repeats a request without need.
    pub impatient: u64,
    /// How often, in a thousand, a caller restarts or updates an agent.
    pub changes: u64,
    /// How often, in a thousand, a caller changes a session, and a token or image.
    pub edits: u64,
    pub token_requests: u64,
    /// How often, in a thousand, an answer needs a schema, and how often such an answer does not match.
    pub schemas: u64,
    pub misfits: u64,
    /// How often, in a thousand, an agent has a policy of its own.
    pub own_policies: u64,
    /// The longest time that a process hangs.
    pub hang_ms: u64,
    /// How often, in a thousand, a runtime lies.
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
    /// Every seed has its own parameters, so that each rare combination is common in some world.
    pub fn new(rng: &mut SimRng) -> SimPlan {
        let mut faults: Vec<SimFault> = FAULTS.into_iter().filter(|_| rng.chance(500)).collect();
        if faults.is_empty() {
            faults.push(SimFault::DaemonDies);
        }
        // A separate generator, so that the other choices do not change.
        let mut aside = rng.clone();
        faults.extend(STORE_FAULTS.into_iter().filter(|_| aside.chance(300)));
        if aside.chance(500) {
            faults.push(SimFault::AgentsRest);
        }
        if aside.chance(500) {
            faults.push(SimFault::Sweep);
        }
        if aside.chance(300) {
            faults.push(SimFault::DescriptorsGone);
        }
        if aside.clone().chance(300) {
            faults.push(SimFault::ProviderDown);
        }
        let read_ms = *aside.pick(&[0, 0, 0, 2]).unwrap_or(&0);
        // Sometimes one agent with more sessions than it works on at a time.
        let wide = rng.chance(30);
        let pick = |rng: &mut SimRng, from: &[u64]| rng.pick(from).copied().unwrap_or(1);
        SimPlan {
            agents_max: if wide { 1 } else { rng.between(1, 6) as usize },
            sessions: if wide { 300 } else { rng.between(1, 4) },
            callers: if wide { 300 } else { rng.between(1, 8) as usize },
            link_ms: pick(rng, &[1, 3, 20]),
            disk_ms: pick(rng, &[0, 1, 4, 40]),
            model_ms: pick(rng, &[1, 10, 100]),
            read_ms,
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
            // A separate generator, so that the other choices do not change.
            retry_for_ms: pick(&mut rng.clone(), &[0, 2_000, 20_000, 600_000]),
            impatient: pick(rng, &[0, 50, 300]),
            changes: pick(rng, &[0, 5, 40]),
            edits: pick(rng, &[0, 10, 100]),
            token_requests: pick(rng, &[0, 10, 40]),
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
            // A separate generator, so that worlds without pills do not change.
            pills: pick(&mut rng.clone(), &[0, 0, 2, 20]),
        }
    }

    /// Adjusts the parameters so that the bug can show, for example with hangs or frequent changes.
    #[must_use]
    pub fn adjusted_for(mut self, mutation: SimMutation) -> SimPlan {
        match mutation {
            SimMutation::HastyDeath => {
                self.faults = vec![SimFault::RuntimeHangs];
                (self.policy, self.own_policies) = (Policy::Revive, 0);
                // Silence is noticed after minutes, and simulated time passes only while there is little work.
                (self.callers, self.agents_max, self.sessions) = (2, 2, 2);
                (self.model_ms, self.pause_ms, self.hang_ms) = (100, 100, 1_000_000);
                (self.changes, self.edits, self.lies) = (0, 0, 0);
                // The order to kill is slower than the decision to revive.
                (self.link_ms, self.disk_ms) = (20, 0);
            }
            SimMutation::LostCut => self.edits = 100,
            SimMutation::AwayIsWritten => self.faults = vec![SimFault::StoreAway],
            // An agent has to end by itself, and the engine has to get a report before that end is on disk.
            SimMutation::EarlyRest => {
                self.faults = vec![SimFault::AgentsRest, SimFault::RuntimeExits];
                (self.fault_every_ms, self.disk_ms) = (50, 40);
            }
            SimMutation::LostWait => {
                self.faults = vec![SimFault::DaemonDies, SimFault::ProviderDown];
                (self.callers, self.agents_max, self.sessions) = (8, 6, 4);
                (self.max_concurrent, self.retry_for_ms, self.pills) = (64, 600_000, 0);
            }
            SimMutation::LostResults => {
                (self.edits, self.tools, self.model_fails) = (200, 800, 300);
                (self.job_tools, self.lies) = (0, 0);
            }
            // Without jobs: a job with a forgotten claim fails another check before it runs twice.
            SimMutation::LostClaims => (self.jobs, self.job_tools) = (0, 0),
            SimMutation::IgnoredRevocation => self.token_requests = 40,
            SimMutation::EarlyForget | SimMutation::LostStart | SimMutation::LostEndReport => {
                (self.jobs, self.job_tools) = (200, 200);
            }
            SimMutation::LostPull | SimMutation::GreedyCollection => {
                (self.changes, self.token_requests, self.announced) = (40, 100, 500);
            }
            SimMutation::LoosePull => {
                // An image has to be removed while another one is pulled and not recorded yet.
                (self.changes, self.token_requests, self.announced) = (200, 500, 800);
                (self.callers, self.agents_max, self.sessions) = (8, 6, 2);
                (self.pull_ms, self.pull_fails, self.disk_ms) = (1, 0, 40);
                (self.jobs, self.job_tools, self.pills) = (0, 0, 0);
            }
            SimMutation::None
            | SimMutation::EarlyRelease
            | SimMutation::LostIntent
            | SimMutation::NoResend
            | SimMutation::BlindRerun
            | SimMutation::LostExecEnd => {}
        }
        self
    }
}
