//! A full disk, at every write: the daemon refuses new work clearly, loses nothing, and continues when space is free.

mod disk;
mod jobs;
mod space;
mod strike;
mod struck;
mod world;
