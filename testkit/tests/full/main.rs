//! A full disk, at every write: the daemon refuses new work clearly, loses nothing, and goes on when there is room.

mod disk;
mod jobs;
mod space;
mod strike;
mod struck;
mod world;
