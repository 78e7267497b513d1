//! Agents that try to get out: every attempt is listed with its outcome, and none may succeed.
//!
//! A real daemon, real sandboxes, scripted models whose tools are programs of the host. The same tests run as root and
//! as an ordinary user.

mod attack;
mod bombs;
#[allow(dead_code, reason = "shared with the test program `api`, which uses all of it")]
#[path = "../api/checked.rs"]
mod checked;
#[path = "../api/host_disks.rs"]
mod host_disks;
mod jobs;
mod links;
mod network;
mod quota;
mod root;
mod set_id;
mod targets;
#[allow(dead_code, reason = "shared with the test program `api`, which uses all of it")]
#[path = "../api/world.rs"]
mod world;
