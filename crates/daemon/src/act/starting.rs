//! The start of an agent's sandbox: whatever it lacks is told before anything is made.

use std::path::{Path, PathBuf};

use lodge_core::record::{FileRecord, ImageRecord, NetworkMode};
use lodge_exec::{Link, Network, PrivateRoot, SandboxSpec};

use super::actor::Actor;
use super::layout::Layout;
use super::root;
use super::root::RootError;
use crate::chain;
use crate::crash;
use crate::host_trees::HostTrees;
use crate::images::CheckedPrograms;
use lodge_engine::{AgentSeen, Lack, SandboxPlan, Seen, Up};

impl Actor {
    /// Starts the agent's keeper, and what belongs into it.
    pub(super) async fn start(&mut self, plan: SandboxPlan, how: Up) {
        let run = plan.run;
        let image = match self.image_of(&plan).await {
            Ok(image) => image,
            Err(detail) => return self.report_lack(run, Lack::Image, detail).await,
        };
        if let Some(detail) = unset_configs(&plan, &image) {
            return self.report_lack(run, Lack::Config, detail).await;
        }
        if let Err(error) = self.shell.providers.resolve(&plan.spec.model) {
            let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
            return self.report_lack(run, Lack::Model, format!("{}{hint}", chain(&error))).await;
        }
        let checked = match self.shell.images.check_programs(&plan.spec).await {
            Ok(checked) => checked,
            Err(error) => return self.report_lack(run, Lack::Image, error.in_one_line()).await,
        };
        match self.start_keeper(&plan, &image, checked).await {
            Ok(link) => self.connected(link, plan, image, how).await,
            Err(NotStarted::Lacks(detail)) => self.report_lack(run, Lack::Image, detail).await,
            Err(NotStarted::Failed(detail)) => self.not_started(run, detail).await,
        }
    }

    async fn report_lack(&self, run: u32, lack: Lack, detail: String) {
        self.shell.tell(Seen::Agent(AgentSeen::Lacks { agent: self.agent.clone(), run, lack, detail })).await;
    }

    pub(super) async fn not_started(&self, run: u32, detail: String) {
        self.shell.tell(Seen::Agent(AgentSeen::SpawnFailed { agent: self.agent.clone(), run, detail })).await;
    }

    pub(super) async fn image_of(&self, plan: &SandboxPlan) -> Result<ImageRecord, String> {
        let digest = plan.image_digest.clone();
        let image = self.shell.reader.read(move |store| store.image(&digest)).await;
        let image = image.map_err(|error| chain(&error))?;
        let mut image = image.ok_or_else(|| "its image is not in the store".to_owned())?;
        // From here on what the agent has of its own goes before what its image says.
        image.configs.extend(plan.spec.configs.clone());
        Ok(image)
    }

    async fn start_keeper(
        &self,
        plan: &SandboxPlan,
        image: &ImageRecord,
        mut checked: CheckedPrograms,
    ) -> Result<Link, NotStarted> {
        let (executor, data_dir) = (&self.shell.executor, &self.shell.config.data_dir);
        let secret = self.secret(plan.incarnation);
        let root = root::root_of(data_dir, &plan.agent);
        let failed = NotStarted::Failed;
        let stock = self.shell.runtime.verified().map_err(|error| failed(chain(&error)))?;
        let runtime = stock.path();
        checked.insert(runtime.to_owned(), stock.identity());
        let (name, image_name) = (&plan.name, &plan.image);
        if let Some(program) = HostTrees::lost_program(&plan.spec) {
            return Err(failed(format!(
                "the program {} is not there any more, or cannot be executed; install it and run `lodge start {name}`, or \
                 run `lodge agent update {name} --image {image_name}` to have it looked for again",
                program.display()
            )));
        }
        let host_trees = HostTrees::of(&plan.spec, data_dir);
        host_trees.check(&plan.spec, data_dir).map_err(|error| {
            failed(format!(
                "{error}; if that is intended, run `lodge agent update {name} --image {image_name}`"
            ))
        })?;
        let spec = SandboxSpec {
            id: plan.sandbox.as_str().to_owned(),
            incarnation: plan.incarnation,
            secret: secret.clone(),
            root: root.clone(),
            private_root: Some(PrivateRoot {
                hostname: root::hostname(&plan.name),
                host_trees: host_trees.trees.clone(),
                writable: root::THEIRS.map(PathBuf::from).into(),
                host_etc: Some(self.shell.host_etc.dir().to_owned()),
            }),
            uid: plan.uid,
            binds: root::binds(&root, plan, runtime, &checked),
            network: network_of(plan),
            limits: crate::limits::of_sandbox(&plan.spec, data_dir),
            log: root::log_of(data_dir, &plan.agent),
            failpoint: crash::keeper_point(),
        };
        let make = || self.make_root(&root, plan, image, runtime, &host_trees);
        match make().await {
            // It is fetched again where that can be, and then there is a second chance.
            Err(lacks @ NotStarted::Lacks(_)) => {
                let Ok(_pins) = self.shell.images.repair(&plan.image, &plan.image_digest).await else {
                    return Err(lacks);
                };
                make().await?;
            }
            made => made?,
        }
        // Not over the whole of it: what comes before may wait for a registry. It is never closed.
        let _slot = self.shell.starting.acquire().await.ok();
        executor.start(&spec).await.map_err(|error| failed(chain(&error)))?;
        crash::point("during_start");
        let dialled = executor.dial(plan.sandbox.as_str(), &secret, self.shell.epoch).await;
        dialled.map_err(|error| failed(chain(&error)))
    }

    async fn make_root(
        &self,
        root: &Path,
        plan: &SandboxPlan,
        image: &ImageRecord,
        runtime: &Path,
        host: &HostTrees,
    ) -> Result<(), NotStarted> {
        let (root, plan, image, runtime) = (root.to_owned(), plan.clone(), image.clone(), runtime.to_owned());
        let (shell, host) = (self.shell.clone(), host.clone());
        let make = move || {
            let files = root::Files {
                contents: &|file: &FileRecord| {
                    shell.images.contents(file).map_err(|error| error.in_one_line())
                },
                room: &|bytes| shell.room.spares(bytes),
            };
            let of_host = |cause| RootError::Io { path: shell.host_etc.dir().to_owned(), cause };
            shell.host_etc.refresh().map_err(of_host)?;
            let making = root::Making { plan: &plan, image: &image, runtime: &runtime, host: &host };
            root::make(&root, &making, &files)
        };
        // A thousand at once would take as many threads.
        let _slot = self.shell.starting.acquire().await.ok();
        match tokio::task::spawn_blocking(make).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error @ RootError::Contents { .. })) => Err(NotStarted::Lacks(chain(&error))),
            Ok(Err(error)) => Err(NotStarted::Failed(chain(&error))),
            Err(error) => Err(NotStarted::Failed(error.to_string())),
        }
    }
}

impl Actor {
    /// Tells the agent where its files are on a host where it has no root of its own. A start prepares for one.
    pub(super) async fn describe_root(
        &self,
        layout: &Layout,
        plan: &SandboxPlan,
        image: &ImageRecord,
    ) -> Result<(), String> {
        let root = root::root_of(&self.shell.config.data_dir, &plan.agent);
        let (layout, plan, image, shell) = (layout.clone(), plan.clone(), image.clone(), self.shell.clone());
        let describe = move || {
            let runtime = shell.runtime.path().map_err(|error| chain(&error))?;
            let host = HostTrees::default();
            let making = root::Making { plan: &plan, image: &image, runtime, host: &host };
            root::describe(&root, &layout, &making).map_err(|error| chain(&error))
        };
        tokio::task::spawn_blocking(describe).await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Why an agent's keeper was not started.
enum NotStarted {
    /// Something of its image is not there.
    Lacks(String),
    Failed(String),
}

/// The settings that the image asks for and nobody gave, and the way to give them.
fn unset_configs(plan: &SandboxPlan, image: &ImageRecord) -> Option<String> {
    let keys: Vec<&str> = image.unset(&plan.spec.configs).collect();
    let first = keys.first()?;
    let (listed, name) = (keys.join(", "), &plan.name);
    Some(format!(
        "CONFIG {listed} must be set and is not: run `lodge agent update {name} --config {first}=…`, or write \
         `CONFIG {first}=…` in its Agentfile"
    ))
}

/// What its sandbox reaches of the network. A record of a newer release means the narrowest.
fn network_of(plan: &SandboxPlan) -> Network {
    let Some(record) = &plan.spec.network else { return Network::Host };
    match record.reach() {
        NetworkMode::Host => Network::Host,
        NetworkMode::None => Network::None,
        NetworkMode::Public => Network::Public,
        NetworkMode::Lan => Network::Lan,
        NetworkMode::List => Network::List { allow: record.allow.clone() },
    }
}
