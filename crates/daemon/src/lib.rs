//! lodged: decides, records and routes.
//!
//! The one path: input, decide (`engine`), commit, reply and publish, act. This crate is the only place where the
//! store, processes, images and models meet.

pub mod engine;
mod view;

mod act;
mod api;
mod auth;
mod commit;
pub mod config;
pub mod crash;
mod home;
mod hub;
pub mod serve;
mod shell;
