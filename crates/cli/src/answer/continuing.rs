//! How a turn that ended early can be continued, which depends on its place in its session.

use lodge_proto::{GetSession, GetTurn, SessionRef, SessionView, TurnRef, TurnView};

use crate::follow::DaemonClient;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WayToContinue {
    /// It is the last turn of the path.
    Retry,
    /// Other turns follow it.
    ForkFirst,
    /// It was replaced or rewound.
    ActivateFirst,
}

impl WayToContinue {
    /// `turn` is from `turn/get`, as its place may have changed since it was sent.
    pub(crate) fn of(turn: &TurnView, session: &SessionView) -> WayToContinue {
        match (turn.active, u64::from(turn.number) == session.turns) {
            (true, true) => WayToContinue::Retry,
            (true, false) => WayToContinue::ForkFirst,
            (false, _) => WayToContinue::ActivateFirst,
        }
    }

    /// The place of a turn now. A turn that cannot be looked up counts as the last one: `turn retry` checks it again.
    pub(super) async fn look_up(daemon: &mut DaemonClient<'_>, turn: &TurnView) -> (WayToContinue, TurnView) {
        let now = daemon.call_without_start::<GetTurn>(TurnRef { turn: turn.id.clone() }).await;
        let turn = now.unwrap_or_else(|_| TurnView { active: true, ..turn.clone() });
        let session = SessionRef { session: turn.session.clone() };
        match daemon.call_without_start::<GetSession>(session).await {
            Ok(view) => (WayToContinue::of(&turn, &view.session), turn),
            Err(_) => (WayToContinue::Retry, turn),
        }
    }

    /// The commands, to follow `run`.
    pub(crate) fn steps(self, turn: &TurnView) -> String {
        let TurnView { id, session, number, .. } = turn;
        match self {
            WayToContinue::Retry => format!("`lodge turn retry {id}` to continue it"),
            WayToContinue::ForkFirst => format!(
                "`lodge session fork {session} --at {number}`, then `lodge turn retry --session NEW` with the id that this \
                 prints, to continue it in a copy: other turns follow it"
            ),
            WayToContinue::ActivateFirst => format!(
                "`lodge session activate {session} {id}`, then `lodge turn retry {id}`, to continue it: it is not on the \
                 path of its session"
            ),
        }
    }
}
