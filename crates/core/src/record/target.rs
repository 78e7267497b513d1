//! What a step of a turn waits for, and its stored form: the columns `kind`, `exec` and `request` of a step.

use prost::Message;

use super::{ExecRequest, StepKind};
use crate::id::{ExecId, JobId};

/// What a step of a turn waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepTarget {
    /// The answer of a model.
    ModelCall,
    /// The end of a program in the sandbox.
    Program { exec: ExecId, request: ExecRequest },
    /// The end of a job.
    Job(JobWait),
    /// Nothing: the step of this call is recorded together with its result.
    Answered,
}

/// A call of a tool that returns when a job ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobWait {
    pub tool: JobWaitTool,
    pub job: JobId,
}

/// The tools that wait for the end of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobWaitTool {
    Wait,
    Watch,
    Cancel,
}

/// A record of a step that this release cannot read.
#[derive(Debug, thiserror::Error)]
pub enum StepTargetError {
    #[error("the request is not a protobuf message")]
    Undecodable(#[from] prost::DecodeError),
    #[error("a program has an exec id and no request")]
    NoRequest,
    #[error("the request names neither a program nor a job to wait for")]
    UnknownTarget,
}

impl StepTarget {
    pub fn kind(&self) -> StepKind {
        match self {
            StepTarget::ModelCall => StepKind::Model,
            StepTarget::Program { .. } | StepTarget::Job(_) | StepTarget::Answered => StepKind::Tool,
        }
    }

    /// The exec that the step waits for.
    pub fn exec(&self) -> Option<&ExecId> {
        match self {
            StepTarget::Program { exec, .. } => Some(exec),
            StepTarget::ModelCall | StepTarget::Job(_) | StepTarget::Answered => None,
        }
    }

    /// The job that the step waits for.
    pub fn job_wait(&self) -> Option<&JobWait> {
        match self {
            StepTarget::Job(wait) => Some(wait),
            StepTarget::ModelCall | StepTarget::Program { .. } | StepTarget::Answered => None,
        }
    }

    /// The bytes of the column `request`.
    pub fn encode_request(&self) -> Option<Vec<u8>> {
        match self {
            StepTarget::ModelCall | StepTarget::Answered => None,
            StepTarget::Program { request, .. } => Some(request.encode_to_vec()),
            StepTarget::Job(wait) => {
                let wait = JobWaitRecord { tool: wait.tool.code(), job: wait.job.to_string() };
                Some(WaitRecord { job: Some(wait), ..WaitRecord::default() }.encode_to_vec())
            }
        }
    }

    pub fn decode(
        kind: StepKind,
        exec: Option<ExecId>,
        request: Option<&[u8]>,
    ) -> Result<StepTarget, StepTargetError> {
        match (kind, exec, request) {
            (StepKind::Model, _, _) => Ok(StepTarget::ModelCall),
            (StepKind::Tool, Some(exec), Some(bytes)) => {
                Ok(StepTarget::Program { exec, request: ExecRequest::decode(bytes)? })
            }
            (StepKind::Tool, Some(_), None) => Err(StepTargetError::NoRequest),
            (StepKind::Tool, None, Some(bytes)) => WaitRecord::decode(bytes)?
                .job_wait()
                .map(StepTarget::Job)
                .ok_or(StepTargetError::UnknownTarget),
            (StepKind::Tool, None, None) => Ok(StepTarget::Answered),
        }
    }
}

impl JobWaitTool {
    pub const ALL: [JobWaitTool; 3] = [JobWaitTool::Wait, JobWaitTool::Watch, JobWaitTool::Cancel];

    /// The name under which models call the tool.
    pub fn word(self) -> &'static str {
        match self {
            JobWaitTool::Wait => "job_wait",
            JobWaitTool::Watch => "job_watch",
            JobWaitTool::Cancel => "job_cancel",
        }
    }

    fn from_word(word: &str) -> Option<JobWaitTool> {
        JobWaitTool::ALL.into_iter().find(|tool| tool.word() == word)
    }

    fn code(self) -> i32 {
        match self {
            JobWaitTool::Wait => 1,
            JobWaitTool::Watch => 2,
            JobWaitTool::Cancel => 3,
        }
    }

    fn from_code(code: i32) -> Option<JobWaitTool> {
        JobWaitTool::ALL.into_iter().find(|tool| tool.code() == code)
    }
}

/// The request of a step that waits for anything but a program. It shares its column with `ExecRequest`, so tags 1 to 5
/// keep the meaning that they have there.
#[derive(Clone, PartialEq, Eq, Message)]
struct WaitRecord {
    /// Earlier releases recorded a wait for a job as a program with the name of the tool. This is that name.
    #[prost(string, tag = "1")]
    old_tool: String,
    /// The job, as the only argument of that program.
    #[prost(string, repeated, tag = "2")]
    old_args: Vec<String>,
    #[prost(message, optional, tag = "6")]
    job: Option<JobWaitRecord>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct JobWaitRecord {
    #[prost(int32, tag = "1")]
    tool: i32,
    #[prost(string, tag = "2")]
    job: String,
}

impl WaitRecord {
    fn job_wait(&self) -> Option<JobWait> {
        match &self.job {
            Some(wait) => {
                Some(JobWait { tool: JobWaitTool::from_code(wait.tool)?, job: wait.job.parse().ok()? })
            }
            None => {
                let job = self.old_args.first()?.parse().ok()?;
                Some(JobWait { tool: JobWaitTool::from_word(&self.old_tool)?, job })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> JobId {
        "job_0123456789abcdefg".parse().unwrap()
    }

    fn waits(tool: JobWaitTool) -> StepTarget {
        StepTarget::Job(JobWait { tool, job: job() })
    }

    fn read(kind: StepKind, exec: Option<ExecId>, request: Option<&[u8]>) -> Option<StepTarget> {
        StepTarget::decode(kind, exec, request).ok()
    }

    #[test]
    fn every_target_is_read_as_it_was_stored() {
        let exec: ExecId = "exe_0123456789abcdefg".parse().unwrap();
        let request =
            ExecRequest { bin: "job_wait".into(), args: vec![job().to_string()], ..Default::default() };
        let mut targets = vec![
            StepTarget::ModelCall,
            StepTarget::Answered,
            // A program that has the name of a tool for jobs.
            StepTarget::Program { exec, request },
        ];
        targets.extend(JobWaitTool::ALL.map(waits));
        for target in targets {
            let (exec, request) = (target.exec().cloned(), target.encode_request());
            assert_eq!(read(target.kind(), exec, request.as_deref()), Some(target));
        }
    }

    #[test]
    fn a_wait_is_stored_under_a_tag_of_its_own() {
        let mut bytes = vec![0x32, 25, 0x08, 2, 0x12, 21];
        bytes.extend(b"job_0123456789abcdefg");
        assert_eq!(waits(JobWaitTool::Watch).encode_request(), Some(bytes));
    }

    #[test]
    fn a_wait_that_an_older_release_stored_as_a_program_is_a_wait() {
        for (tool, name) in JobWaitTool::ALL.into_iter().zip(["job_wait", "job_watch", "job_cancel"]) {
            // bin, args and boot, as those releases wrote them.
            let mut bytes = vec![0x0a, u8::try_from(name.len()).unwrap()];
            bytes.extend(name.as_bytes());
            bytes.extend([0x12, 21]);
            bytes.extend(b"job_0123456789abcdefg");
            bytes.extend(b"\x22\x04boot");
            assert_eq!(read(StepKind::Tool, None, Some(&bytes)), Some(waits(tool)));
        }
    }

    #[test]
    fn a_record_that_names_no_target_is_refused() {
        let unknown_tool =
            WaitRecord { job: Some(JobWaitRecord { tool: 9, job: job().to_string() }), ..Default::default() };
        let program = ExecRequest { bin: "sh".into(), args: vec![job().to_string()], ..Default::default() };
        for bytes in [unknown_tool.encode_to_vec(), program.encode_to_vec(), Vec::new(), vec![0x0a, 9]] {
            assert_eq!(read(StepKind::Tool, None, Some(&bytes)), None);
        }
        assert_eq!(read(StepKind::Tool, "exe_0".parse().ok(), None), None);
    }
}
