//! The capabilities: tools that the runtime has beside the programs of an image.
//!
//! Owns: their names. Never: grants one.

/// Tools that every agent has, so that no program can have their names.
pub(super) const JOB_TOOLS: [&str; 6] =
    ["job_submit", "job_list", "job_status", "job_wait", "job_watch", "job_cancel"];

/// Every name that CAPABILITY takes.
pub const CAPABILITIES: [&str; 30] = [
    "context_list",
    "context_show",
    "env_list",
    "mount_list",
    "note_save",
    "note_list",
    "note_show",
    "note_delete",
    "note_pin",
    "note_unpin",
    "agent_list",
    "agent_info",
    "agent_exec",
    "agent_create",
    "agent_create_from_source",
    "agent_delete",
    "agent_list_all",
    "agent_info_any",
    "agent_exec_any",
    "agent_delete_any",
    "image_list",
    "bin_list",
    "model_list",
    "self_reload",
    "job_submit",
    "job_status",
    "job_list",
    "job_cancel",
    "job_wait",
    "job_watch",
];
