//! The real keeper, driven through the real crate: as root and as an ordinary user, in parallel.

mod commands;
mod disk;
mod evidence;
mod execs;
mod fence;
mod gone;
mod home;
mod hostile;
mod job_files;
mod jobs;
mod kills;
mod limits;
mod links;
mod network;
mod runtimes;
mod sockets;
