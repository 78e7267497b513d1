//! The real keeper, driven through the real crate: as root and as an ordinary user, in parallel.

mod evidence;
mod execs;
mod fence;
mod home;
mod links;
