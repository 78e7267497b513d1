//! A poison pill: a model call that kills the daemon whenever it is computed. After three deaths in a row it is
//! quarantined, other work continues, and an operator retries it once it is harmless. Ordinary kills quarantine
//! nothing.

use std::time::Instant;

use lodge_proto::client::Client;
use lodge_proto::{
    GetTurn, ListQuarantine, QuarantineListParams, QuarantineRef, QuarantineView, RetryQuarantined, TurnRef,
};

use super::CrashSetup;
use super::plan::TurnShape;
use super::points::was_killed;
use super::report::{BrokenPromise, CrashReport};
use super::world::{CrashWorld, LOOK, through};
use crate::lodge::PATIENCE;
use crate::trouble::{Trouble, refused};

/// Deaths after which work is set aside.
const DEATHS: u32 = 3;

/// One message of an agent is a pill; a message of another is not.
pub async fn pill(setup: &CrashSetup) -> CrashReport {
    through(setup, 2, async |world| {
        world.swallow().await?;
        world.check_others().await?;
        world.retry_without_harm().await
    })
    .await
    .unwrap_or_else(CrashReport::from)
}

impl CrashWorld {
    async fn swallow(&mut self) -> Result<(), Trouble> {
        self.kill("to arm a pill")?;
        // Every message has a word of its own in it.
        self.lodge.set_env("LODGED_PILL", &format!("model_call:T{}x", self.sent.len()));
        self.start_again().await?;
        self.send_to(0, TurnShape::Plain);
        for death in 1..=DEATHS {
            match self.lodge.wait_ended(PATIENCE).await? {
                Some(status) if was_killed(status) => self.note_kill("daemon"),
                other => {
                    let what = format!("a pill did not kill the daemon for the {death}. time: {other:?}");
                    self.report.add(BrokenPromise::Wrong, what);
                    self.lodge.kill9()?;
                }
            }
            if death < DEATHS {
                self.lodge.spawn()?;
            }
        }
        self.gather().await;
        self.start_again().await
    }

    async fn check_others(&mut self) -> Result<(), Trouble> {
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        match set_aside(&mut client).await?.as_slice() {
            [work] if work.kind == "model_call" && work.deaths == DEATHS => {}
            other => {
                self.report.add(BrokenPromise::Wrong, format!("after a pill this is set aside: {other:?}"))
            }
        }
        self.send_to(1, TurnShape::Plain);
        self.gather().await;
        let Some(turn) = self.sent.last().and_then(|sent| sent.turn.clone()) else {
            self.report.add(BrokenPromise::Wrong, "beside a pill a message is not taken".to_owned());
            return Ok(());
        };
        let until = Instant::now() + PATIENCE;
        loop {
            let named = TurnRef { turn: turn.clone() };
            let view = client.call::<GetTurn>(&named).await.map_err(refused("look at a turn"))?;
            if view.status == "done" {
                return Ok(());
            }
            if Instant::now() >= until {
                self.report.add(BrokenPromise::Wrong, format!("beside a pill a turn does not end: {view:?}"));
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The next daemon computes it without harm. It stays in quarantine until an operator releases it.
    async fn retry_without_harm(&mut self) -> Result<(), Trouble> {
        self.kill("with work set aside")?;
        self.lodge.unset_env("LODGED_PILL");
        self.start_again().await?;
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        for work in set_aside(&mut client).await? {
            let params = QuarantineRef { work: work.id, request_id: None };
            client.call::<RetryQuarantined>(&params).await.map_err(refused("have work computed again"))?;
        }
        self.settle().await
    }

    /// The work that the daemon computed did not cause these deaths.
    pub async fn expect_no_quarantine(&mut self) -> Result<(), Trouble> {
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        for work in set_aside(&mut client).await? {
            self.report.add(BrokenPromise::Wrong, format!("harmless work was set aside: {work:?}"));
        }
        Ok(())
    }
}

async fn set_aside(client: &mut Client) -> Result<Vec<QuarantineView>, Trouble> {
    let list = client
        .call::<ListQuarantine>(&QuarantineListParams::default())
        .await
        .map_err(refused("list what is set aside"))?;
    Ok(list.work)
}
