//! lodged: decides, records and routes.
//!
//! The one path: input, decide (`lodge_engine`), commit, reply and publish, act. This crate is the only place where the
//! store, processes, images and models meet.

pub mod act;
mod api;
mod auth;
mod commit;
mod compute;
pub mod config;
pub mod context;
pub mod crash;
mod decide;
mod excerpt;
mod exec_logs;
mod home;
mod host_etc;
mod host_trees;
mod hub;
mod images;
mod jobs;
mod limits;
pub mod log;
mod read_view;
mod reap;
mod room;
pub mod serve;
mod shell;
mod store_faults;
mod suspects;
pub mod tasks;
mod tls;
pub mod view;

/// An error and its causes, each once.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
