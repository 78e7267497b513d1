//! Instructions that the grammar has and this release does not support. They are refused in every image and never ignored.

use lodge_image::agentfile::{Agentfile, FormMistake, LoadError, Mistake};

use super::ImageError;

pub(crate) const CODE: &str = "agentfile.unsupported";
/// The hint for an image that was built elsewhere.
pub(super) const HINT: &str = "build it from its source without these lines, or update Lodge";

/// The instructions that are refused, each with its line.
pub(crate) fn instructions(file: &Agentfile) -> Vec<(u32, &'static str)> {
    let mcps = file.mcps.iter().map(|item| (item.line, "MCP"));
    let skills = file.skills.iter().map(|item| (item.line, "SKILL"));
    let services = file.services.iter().map(|item| (item.line, "SERVICE"));
    let schedules = file.schedules.iter().map(|item| (item.line, "SCHEDULE"));
    let ons = file.ons.iter().map(|item| (item.line, "ON"));
    mcps.chain(skills).chain(services).chain(schedules).chain(ons).collect()
}

/// Refuses an image with unsupported instructions: the agent would behave differently here.
pub(super) fn refuse(file: &Agentfile) -> Result<(), ImageError> {
    let mut instructions: Vec<&'static str> = instructions(file).into_iter().map(|(_, word)| word).collect();
    instructions.dedup();
    if instructions.is_empty() { Ok(()) } else { Err(ImageError::Unsupported { instructions }) }
}

/// Whether unsupported instructions are the only mistakes of an Agentfile.
pub(crate) fn is_all(error: &LoadError) -> bool {
    match error {
        LoadError::Mistakes(errors) => {
            errors.iter().all(|error| matches!(error.mistake, Mistake::Form(FormMistake::Unsupported { .. })))
        }
        LoadError::Source(_) | LoadError::UndeclaredArgs { .. } => false,
    }
}
