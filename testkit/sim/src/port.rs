//! The simulated implementation of every interface of `act/`.
//!
//! A method that may wait does so for a time that the seed chooses, and then reads the world.

mod executor;
mod work;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lodge_core::Timestamp;
use lodge_daemon::act::ports::{Clock, WorkRead};
use lodge_model::Redactor;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::link::next_look;
use crate::world::SimWorld;

/// The access of one life of a daemon to the world.
#[derive(Debug, Clone)]
pub struct SimPort {
    world: Arc<Mutex<SimWorld>>,
    life: u64,
    boot: Arc<str>,
    /// The same instant on both clocks.
    start: (u64, Instant),
    /// Wakes the driver of the world: an event is earlier than it expects.
    pub attention: Arc<Notify>,
    redactor: Arc<Redactor>,
}

impl SimPort {
    /// Called within the runtime of that life.
    pub fn new(world: &Arc<Mutex<SimWorld>>) -> SimPort {
        let locked = world.lock().unwrap_or_else(PoisonError::into_inner);
        let (life, boot, now) = (locked.life, locked.host().boot, locked.now);
        drop(locked);
        SimPort {
            world: world.clone(),
            life,
            boot: boot.into(),
            start: (now, Instant::now()),
            attention: Arc::default(),
            redactor: Arc::new(Redactor::new([""; 0])),
        }
    }

    /// The time of the world.
    pub fn now(&self) -> u64 {
        self.start.0 + u64::try_from(self.start.1.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The instant at which the world's clock shows this time.
    pub fn instant(&self, at: u64) -> Instant {
        self.start.1 + Duration::from_millis(at.saturating_sub(self.start.0))
    }

    fn lock(&self) -> MutexGuard<'_, SimWorld> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the world now.
    pub fn with<T>(&self, act: impl FnOnce(&mut SimWorld) -> T) -> T {
        let mut world = self.lock();
        world.now = self.now();
        let before = world.next_at();
        let done = act(&mut world);
        let sooner = world.next_at().is_some_and(|at| before.is_none_or(|before| at < before));
        if sooner || world.has_orders() {
            self.attention.notify_one();
        }
        done
    }

    /// As [`SimPort::with`], unless that daemon is dead by now.
    pub fn if_alive(&self, act: impl FnOnce(&mut SimWorld)) {
        let mut world = self.lock();
        if world.daemon.as_ref().is_some_and(|daemon| daemon.life == self.life) {
            act(&mut world);
        }
    }

    /// Never returns after the daemon died, so that its tasks have no effects until they are dropped.
    pub async fn alive(&self) {
        let lives = self.lock().daemon.as_ref().is_some_and(|daemon| daemon.life == self.life);
        if !lives {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for about this long.
    pub async fn pause(&self, typical_ms: u64) {
        self.alive().await;
        let pause = self.lock().rng.delay(typical_ms);
        if pause > 0 {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            self.alive().await;
        }
    }

    /// Waits for a condition. False: it was not met in time.
    pub async fn wait_until(&self, within: Duration, is_so: impl Fn(&SimWorld) -> bool) -> bool {
        let since = Instant::now();
        let mut pause_ms = 0;
        loop {
            self.alive().await;
            if is_so(&self.lock()) {
                return true;
            }
            let left = within.saturating_sub(since.elapsed());
            if left.is_zero() {
                return false;
            }
            pause_ms = next_look(pause_ms);
            tokio::time::sleep(Duration::from_millis(pause_ms).min(left)).await;
        }
    }

    /// Whether the daemon can open nothing now.
    fn lacks_descriptors(&self) -> bool {
        let now = SimPort::now(self);
        now < self.lock().descriptors_gone_until
    }

    /// Reads the disk, unless the store cannot be reached.
    fn read_disk(&self, read: WorkRead) -> bool {
        let world = self.lock();
        let is_there = !world.store.is_missed();
        if is_there {
            read(&world.disk);
        }
        is_there
    }

    /// Kills the daemon. Never returns.
    async fn die<T>(&self, why: &str) -> T {
        self.with(|world| world.daemon_dies(why));
        std::future::pending().await
    }
}

impl Clock for SimPort {
    fn now(&self) -> Timestamp {
        let now = SimPort::now(self);
        let mut world = self.lock();
        world.now = now;
        world.wall()
    }
}
