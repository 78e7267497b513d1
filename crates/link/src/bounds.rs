//! The limits of a sandbox, and the report of a limit that was reached.

use std::path::PathBuf;

use crate::wire::{DecodeError, FieldReader, FieldWriter};

/// What of the host a sandbox may use. Absent: as much as there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    /// Processes and threads at a time.
    pub pids: Option<u64>,
    /// Of one tool call with all that it started.
    pub cpu_ms: Option<u64>,
    /// Of the agent's root.
    pub disk_bytes: Option<u64>,
}

/// Cgroups of the first version that were made for the sandbox, one for each controller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Controllers {
    pub memory: Option<PathBuf>,
    pub pids: Option<PathBuf>,
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resource {
    Memory,
    Pids,
    CpuTime,
    Disk,
    /// How long a tool call may take.
    Time,
    /// What a tool call may write to its streams.
    Output,
}

/// A limit that an exec ran into, and by which it was ended or hindered. Bytes, milliseconds, or processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitHit {
    pub resource: Resource,
    pub limit: u64,
    /// How much was used when it was noticed; 0: not known.
    pub used: u64,
}

/// A limit that a keeper enforces, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnforcedLimit {
    pub resource: Resource,
    pub limit: u64,
    pub by: String,
}

impl Resource {
    pub const ALL: [Resource; 6] = [
        Resource::Memory,
        Resource::Pids,
        Resource::CpuTime,
        Resource::Disk,
        Resource::Time,
        Resource::Output,
    ];

    pub fn code(self) -> u8 {
        match self {
            Resource::Memory => 1,
            Resource::Pids => 2,
            Resource::CpuTime => 3,
            Resource::Disk => 4,
            Resource::Time => 5,
            Resource::Output => 6,
        }
    }

    pub fn from_code(code: u8) -> Option<Resource> {
        Resource::ALL.into_iter().find(|resource| resource.code() == code)
    }
}

impl Limits {
    pub(crate) fn put(&self, put: &mut FieldWriter) {
        let all = [
            (Resource::Memory, self.memory_bytes),
            (Resource::Pids, self.pids),
            (Resource::CpuTime, self.cpu_ms),
            (Resource::Disk, self.disk_bytes),
        ];
        let given: Vec<(Resource, u64)> =
            all.into_iter().filter_map(|(resource, limit)| Some((resource, limit?))).collect();
        put.list(&given, |put, (resource, limit)| {
            put.u8(resource.code()).u64(*limit);
        });
    }

    pub(crate) fn take(take: &mut FieldReader<'_>) -> Result<Limits, DecodeError> {
        let mut limits = Limits::default();
        for (code, limit) in take.list(|take| Ok((take.u8()?, take.u64()?)))? {
            match Resource::from_code(code) {
                Some(Resource::Memory) => limits.memory_bytes = Some(limit),
                Some(Resource::Pids) => limits.pids = Some(limit),
                Some(Resource::CpuTime) => limits.cpu_ms = Some(limit),
                Some(Resource::Disk) => limits.disk_bytes = Some(limit),
                // Each exec has its own of these; one that a later version added is not known here.
                Some(Resource::Time | Resource::Output) | None => {}
            }
        }
        Ok(limits)
    }
}

impl Controllers {
    pub(crate) fn put(&self, put: &mut FieldWriter) {
        let all = [(Resource::Memory, &self.memory), (Resource::Pids, &self.pids)];
        let given: Vec<(Resource, &PathBuf)> =
            all.into_iter().filter_map(|(resource, path)| Some((resource, path.as_ref()?))).collect();
        put.list(&given, |put, (resource, path)| {
            put.u8(resource.code()).os(path.as_os_str());
        });
    }

    pub(crate) fn take(take: &mut FieldReader<'_>) -> Result<Controllers, DecodeError> {
        let mut controllers = Controllers::default();
        for (code, path) in take.list(|take| Ok((take.u8()?, take.os()?)))? {
            match Resource::from_code(code) {
                Some(Resource::Memory) => controllers.memory = Some(path.into()),
                Some(Resource::Pids) => controllers.pids = Some(path.into()),
                Some(Resource::CpuTime | Resource::Disk | Resource::Time | Resource::Output) | None => {}
            }
        }
        Ok(controllers)
    }
}

impl LimitHit {
    pub(crate) fn put(cause: Option<&LimitHit>, put: &mut FieldWriter) {
        match cause {
            Some(LimitHit { resource, limit, used }) => put.u8(resource.code()).u64(*limit).u64(*used),
            None => put.u8(0).u64(0).u64(0),
        };
    }

    /// This version cannot report a resource that a later version added.
    pub(crate) fn take(take: &mut FieldReader<'_>) -> Result<Option<LimitHit>, DecodeError> {
        let (code, limit, used) = (take.u8()?, take.u64()?, take.u64()?);
        Ok(Resource::from_code(code).map(|resource| LimitHit { resource, limit, used }))
    }
}

impl EnforcedLimit {
    pub(crate) fn put(&self, put: &mut FieldWriter) {
        put.u8(self.resource.code()).u64(self.limit).text(&self.by);
    }

    pub(crate) fn take(take: &mut FieldReader<'_>) -> Result<Option<EnforcedLimit>, DecodeError> {
        let (code, limit, by) = (take.u8()?, take.u64()?, take.text()?);
        Ok(Resource::from_code(code).map(|resource| EnforcedLimit { resource, limit, by }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_come_back_and_those_that_later_versions_add_are_passed_over() {
        let limits = Limits { memory_bytes: Some(1 << 40), pids: Some(7), cpu_ms: None, disk_bytes: Some(0) };
        let mut put = FieldWriter::default();
        limits.put(&mut put);
        assert_eq!(Limits::take(&mut FieldReader::new(&put.out)), Ok(limits));
        let mut later = FieldWriter::default();
        later.list(&[(200u8, 5u64), (Resource::Pids.code(), 9)], |put, (code, limit)| {
            put.u8(*code).u64(*limit).text("more");
        });
        let expected = Limits { pids: Some(9), ..Limits::default() };
        assert_eq!(Limits::take(&mut FieldReader::new(&later.out)), Ok(expected));
    }

    #[test]
    fn controllers_come_back() {
        let controllers = Controllers { memory: Some("/m".into()), pids: None };
        let mut put = FieldWriter::default();
        controllers.put(&mut put);
        assert_eq!(Controllers::take(&mut FieldReader::new(&put.out)), Ok(controllers));
    }
}
