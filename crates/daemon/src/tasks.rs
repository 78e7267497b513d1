//! Every kind of task that the daemon runs: its name, and what happens if it fails.
//!
//! Owns: the list, and the name of the task that runs now. A panic in any task ends the daemon, because memory is in
//! doubt and what is on disk is right; its report names the task. The comments below say what an error means that is
//! not a panic. Tasks belong to `Shell::tasks`, which the daemon waits for when it ends, unless a comment names another
//! owner.

tokio::task_local! {
    static RUNNING: TaskKind;
}

macro_rules! task_kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $name:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum TaskKind {
            $($(#[doc = $doc])+ $kind,)*
        }

        impl TaskKind {
            pub fn name(self) -> &'static str {
                match self {
                    $(TaskKind::$kind => $name,)*
                }
            }
        }
    };
}

task_kinds! {
    /// The engine's loop. It ends only with the daemon; later requests are refused because the daemon shuts down.
    Decide = "decide",
    /// One sandbox's effects, in order. A failure of the sandbox is an observation for the engine.
    Sandbox = "sandbox",
    /// One standalone sandbox's effects, in order. As above.
    Standalone = "standalone sandbox",
    /// Reads the ids of a command about standalone sandboxes. A failure is an observation for the engine.
    SandboxLookup = "sandbox lookup",
    /// One model call. A failure is the outcome of its step.
    ModelCall = "model call",
    /// The pause before a revival or another start. Lost with the daemon; the next one begins it again from what is
    /// stored.
    AgentPause = "agent pause",
    /// The pause before the next attempt at a provider. Lost with the daemon; the next one begins it again from what is
    /// stored.
    ProviderPause = "provider pause",
    /// Reads an agent that is not in memory. A failure is an observation for the engine, which refuses who waits for it.
    AgentLookup = "agent lookup",
    /// What an agent needs of images. A failure is an observation for the engine, which tries again.
    ImagePull = "image pull",
    /// Removes contents that no image has. A failure is logged, and the next collection finds the rest.
    ImageCollection = "image collection",
    /// What a model asked about jobs. A failure is the text that the model reads.
    JobRead = "job read",
    /// Removes jobs that are too old. A failure is logged, and the next round finds the rest.
    JobRetention = "job retention",
    /// The sweep over sandboxes. A failure is logged, and the next sweep finds the rest.
    Sweep = "sweep",
    /// Waits until deaths say nothing about what is computed. It cannot fail.
    SuspectsSettle = "suspects settle",
    /// Waits for a signal to end. It cannot fail.
    StopSignal = "stop signal",
    /// Waits for signals to read the settings again. A mistake in the settings is logged and changes nothing.
    ReloadSignal = "reload signal",
    /// Reads the settings again. A mistake is reported to the caller.
    Reload = "reload",
    /// A change that continues when its client disconnects. A failure is its answer, if the client still waits.
    Change = "change",
    /// One call of a WebSocket. A failure is its answer. A read ends with its connection.
    SocketCall = "socket call",
    /// Sends what waits for one WebSocket, and the last word. Its owner is the connection: when it fails, the peer is gone
    /// and the connection ends.
    SocketWriter = "socket writer",
    /// Follows the log for one attachment. Its owner is the connection: when it fails, the connection ends, and the client
    /// comes back with its cursor.
    SocketFollower = "socket follower",
}

/// Gives a future its name, for the report of a panic in it.
pub fn named<F: Future>(kind: TaskKind, future: F) -> impl Future<Output = F::Output> {
    RUNNING.scope(kind, future)
}

/// The name of the task that runs on this thread.
pub fn running() -> Option<&'static str> {
    RUNNING.try_with(|kind| kind.name()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_knows_its_name_and_nobody_else_has_it() {
        assert_eq!(named(TaskKind::ModelCall, async { running() }).await, Some("model call"));
        assert_eq!(running(), None);
    }
}
