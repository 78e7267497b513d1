//! The executor of a simulated daemon.

use std::io;
use std::path::Path;
use std::time::Duration;

use lodge_core::{JobId, SandboxId};
use lodge_exec::{
    BindOwner, CapturedStream, DialError, Evidence, ExecFuture, ExecStream, Executor, JobBytes,
    JobStreamExtent, JobTotals, KeepRules, KeeperSecret, Layer, Link, OwnerTrial, RemoveError,
    SandboxReadError, SandboxSpec, StartError,
};

use super::SimPort;

/// How long a dial waits for an answer, as on a real host.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Too many open files.
const EMFILE: i32 = 24;

fn id_of(sandbox: &str) -> Option<SandboxId> {
    sandbox.parse().ok()
}

impl Executor for SimPort {
    fn boot_id(&self) -> &str {
        &self.boot
    }

    fn probe(&self) -> ExecFuture<'_, Vec<Layer>> {
        Box::pin(async { Vec::new() })
    }

    fn try_owner<'a>(&'a self, _path: &'a Path, _owner: BindOwner) -> ExecFuture<'a, OwnerTrial> {
        Box::pin(async { OwnerTrial::Works })
    }

    fn sandboxes(&self) -> ExecFuture<'_, Vec<String>> {
        Box::pin(async {
            self.with(|world| world.machine.sandboxes.keys().map(ToString::to_string).collect())
        })
    }

    fn start<'a>(&'a self, spec: &'a SandboxSpec) -> ExecFuture<'a, Result<(), StartError>> {
        Box::pin(async move {
            self.pause(10).await;
            let Some(id) = id_of(&spec.id) else {
                return Err(StartError::BadId { sandbox: spec.id.clone() });
            };
            let started = self.with(|world| world.start_keeper(&id, spec));
            started.then_some(()).ok_or_else(|| StartError::Died { sandbox: spec.id.clone() })
        })
    }

    fn dial<'a>(
        &'a self,
        sandbox: &'a str,
        secret: &'a KeeperSecret,
        epoch: u64,
    ) -> ExecFuture<'a, Result<Link, DialError>> {
        Box::pin(async move {
            self.pause(5).await;
            let Some(id) = id_of(sandbox) else {
                return Err(DialError::BadId { sandbox: sandbox.to_owned() });
            };
            if self.lacks_descriptors() {
                let cause = io::Error::from_raw_os_error(EMFILE);
                return Err(DialError::NoKeeper { sandbox: sandbox.to_owned(), cause });
            }
            if !self.wait_until(ANSWER_WITHIN, |world| !world.is_hung(&id)).await {
                let waited_ms = u64::try_from(ANSWER_WITHIN.as_millis()).unwrap_or(u64::MAX);
                return Err(DialError::TimedOut { sandbox: sandbox.to_owned(), waited_ms });
            }
            let link = self.with(|world| world.connect(self, &id, secret, epoch))?;
            if self.with(|world| world.dies_adopting(&id)) {
                return self.die("in the middle of an adoption").await;
            }
            Ok(link)
        })
    }

    fn is_held(&self, sandbox: &str) -> bool {
        id_of(sandbox).is_some_and(|id| self.lock().machine.is_held(&id))
    }

    fn wait_gone<'a>(&'a self, sandbox: &'a str, within: Duration) -> ExecFuture<'a, bool> {
        let Some(id) = id_of(sandbox) else { return Box::pin(async { true }) };
        Box::pin(async move { self.wait_until(within, |world| !world.machine.is_held(&id)).await })
    }

    fn has_leftovers<'a>(&'a self, _sandbox: &'a str) -> ExecFuture<'a, bool> {
        Box::pin(async { false })
    }

    fn kill_keeper<'a>(&'a self, sandbox: &'a str) -> ExecFuture<'a, io::Result<bool>> {
        Box::pin(async move {
            self.pause(10).await;
            let Some(id) = id_of(sandbox) else { return Ok(false) };
            if !self.lock().machine.is_held(&id) {
                return Ok(false);
            }
            // A keeper that cannot be killed is found again.
            self.with(|world| world.try_kill_keeper(&id));
            Ok(true)
        })
    }

    fn process_of(&self, _keeper: u32, _numbered: u32) -> Option<u32> {
        None
    }

    fn remove<'a>(&'a self, sandbox: &'a str) -> ExecFuture<'a, Result<(), RemoveError>> {
        Box::pin(async move {
            self.pause(1).await;
            let Some(id) = id_of(sandbox) else { return Err(RemoveError::BadId { id: sandbox.to_owned() }) };
            self.with(|world| {
                if world.machine.is_held(&id) {
                    return Err(RemoveError::Held { sandbox: sandbox.to_owned() });
                }
                if !world.calm && world.rng.chance(20) {
                    return Err(RemoveError::Dying { sandbox: sandbox.to_owned() });
                }
                world.remove_sandbox_files(&id);
                Ok(())
            })
        })
    }

    fn forget<'a>(&'a self, sandbox: &'a str, exec: &'a str) -> ExecFuture<'a, Result<(), RemoveError>> {
        Box::pin(async move {
            self.pause(1).await;
            if let Some(id) = id_of(sandbox) {
                self.with(|world| world.forget_in_dead_sandbox(&id, exec));
            }
            Ok(())
        })
    }

    fn keep_output<'a>(
        &'a self,
        _sandbox: &'a str,
        _exec: &'a str,
        _rules: &'a KeepRules<'a>,
    ) -> ExecFuture<'a, Result<(), SandboxReadError>> {
        Box::pin(async { Ok(()) })
    }

    fn evidence(&self, sandbox: &str, exec: &str) -> Evidence {
        id_of(sandbox).map_or(Evidence::NoClaim, |id| self.lock().evidence(&id, exec))
    }

    fn read_output(
        &self,
        _sandbox: &str,
        _exec: &str,
        stream: ExecStream,
        head_max: usize,
        _tail_max: usize,
    ) -> Result<CapturedStream, SandboxReadError> {
        if self.lacks_descriptors() {
            let cause = io::Error::from_raw_os_error(EMFILE);
            return Err(SandboxReadError::Open { what: "output", cause });
        }
        let mut head = match stream {
            ExecStream::Stdout => b"out".to_vec(),
            ExecStream::Stderr => Vec::new(),
        };
        head.truncate(head_max);
        Ok(CapturedStream { total: head.len() as u64, head, tail: Vec::new() })
    }

    fn job_read(
        &self,
        sandbox: &str,
        job: &str,
        stream: ExecStream,
        offset: u64,
        len_max: usize,
    ) -> Result<JobBytes, SandboxReadError> {
        let totals = self.job_totals(sandbox, job)?;
        let stream = match stream {
            ExecStream::Stdout => totals.stdout,
            ExecStream::Stderr => totals.stderr,
        };
        let offset = offset.max(stream.released);
        let len = usize::try_from(stream.end.saturating_sub(offset)).unwrap_or(0).min(len_max);
        Ok(JobBytes { offset, bytes: vec![b'x'; len], released: stream.released })
    }

    fn job_totals(&self, sandbox: &str, job: &str) -> Result<JobTotals, SandboxReadError> {
        let (id, job) = (id_of(sandbox), job.parse::<JobId>().ok());
        let world = self.lock();
        let sandbox = id.and_then(|id| world.machine.sandboxes.get(&id));
        let file = sandbox.zip(job).and_then(|(sandbox, job)| sandbox.files.get(&job));
        let (wrote, released) = file.map_or((0, 0), |file| (file.wrote, file.released));
        let stdout = JobStreamExtent { head: wrote, tail_from: None, end: wrote, released };
        Ok(JobTotals { stdout, stderr: JobStreamExtent::default(), order: 0 })
    }

    fn job_order(&self, _sandbox: &str, _job: &str, _offset: u64) -> Result<Vec<u8>, SandboxReadError> {
        Ok(Vec::new())
    }

    fn job_release(
        &self,
        _sandbox: &str,
        _job: &str,
        _stream: ExecStream,
        _upto: u64,
    ) -> Result<(), SandboxReadError> {
        Ok(())
    }
}
