//! Selects the jobs of a listing, newest first, by indexes alone.
//!
//! Every condition is a lane: the ids of its jobs in order, from an index with that order. To find a job that all lanes
//! have, each lane in turn is asked for its newest id that is not newer than the previous result. So a page costs a few
//! lookups for each of its jobs, or for each job of the shortest lane, however many jobs exist.
//!
//! If long lanes do not meet, a page ends early, and the next one continues there. Otherwise a long read would keep the
//! database's log from starting over.

use lodge_core::job::{JobState, SESSION_LABEL};
use rusqlite::{Connection, OptionalExtension, ToSql};

use crate::reads::JobFilter;

/// Sorts after every id, and directly after the same id: ids have letters and digits only.
const BEHIND: char = '!';
const NEWEST: &str = "job_~";
/// After this many lookups a page ends.
const LOOKUPS_MAX: u64 = 20_000;

/// The common property of the jobs of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strand<'a> {
    All,
    Agent(&'a str),
    AgentState(&'a str, i64),
    Session(&'a str),
    SessionState(&'a str, i64),
    State(i64),
    Label(&'a str, &'a str),
}

impl Strand<'_> {
    fn sql(self) -> &'static str {
        match self {
            Strand::All => "SELECT id FROM jobs WHERE id < ?1 ORDER BY id DESC LIMIT 1",
            Strand::Agent(_) => {
                "SELECT id FROM jobs INDEXED BY jobs_agent WHERE id < ?1 AND agent = ?2 ORDER BY id DESC LIMIT 1"
            }
            Strand::AgentState(..) => {
                "SELECT id FROM jobs INDEXED BY jobs_agent_state WHERE id < ?1 AND agent = ?2 AND state = ?3 \
                 ORDER BY id DESC LIMIT 1"
            }
            Strand::Session(_) => {
                "SELECT id FROM jobs INDEXED BY jobs_session WHERE id < ?1 AND session = ?2 ORDER BY id DESC LIMIT 1"
            }
            Strand::SessionState(..) => {
                "SELECT id FROM jobs INDEXED BY jobs_session_state WHERE id < ?1 AND session = ?2 AND state = ?3 \
                 ORDER BY id DESC LIMIT 1"
            }
            Strand::State(_) => {
                "SELECT id FROM jobs INDEXED BY jobs_state WHERE id < ?1 AND state = ?2 ORDER BY id DESC LIMIT 1"
            }
            Strand::Label(..) => {
                "SELECT job FROM job_labels WHERE job < ?1 AND key = ?2 AND value = ?3 ORDER BY job DESC LIMIT 1"
            }
        }
    }

    /// Its newest id before this one.
    fn newest(&self, c: &Connection, before: &str) -> rusqlite::Result<Option<String>> {
        let mut statement = c.prepare_cached(self.sql())?;
        let values: &[&dyn ToSql] = match self {
            Strand::All => &[&before],
            Strand::Agent(word) | Strand::Session(word) => &[&before, word],
            Strand::State(state) => &[&before, state],
            Strand::AgentState(word, state) | Strand::SessionState(word, state) => &[&before, word, state],
            Strand::Label(key, value) => &[&before, key, value],
        };
        statement.query_row(values, |row| row.get(0)).optional()
    }
}

/// One condition: its jobs are those of any of its strands.
type Lane<'a> = Vec<Strand<'a>>;

fn lanes<'a>(filter: &JobFilter<'a>) -> Vec<Lane<'a>> {
    let of_states = |strand: &dyn Fn(JobState) -> Strand<'a>| -> Lane<'a> {
        filter.states.iter().map(|state| strand(*state)).collect()
    };
    let of_session = |session: &'a str| -> Lane<'a> {
        if filter.states.is_empty() {
            vec![Strand::Session(session)]
        } else {
            of_states(&|state| Strand::SessionState(session, state.code()))
        }
    };
    let mut lanes = Vec::new();
    if let Some(agent) = filter.agent {
        lanes.push(if filter.states.is_empty() {
            vec![Strand::Agent(agent.as_str())]
        } else {
            of_states(&|state| Strand::AgentState(agent.as_str(), state.code()))
        });
    }
    lanes.extend(filter.session.map(|session| of_session(session.as_str())));
    for (key, value) in filter.labels {
        // The daemon's own label is the session itself, and is not stored twice.
        lanes.push(if key == SESSION_LABEL { of_session(value) } else { vec![Strand::Label(key, value)] });
    }
    let by_state = lanes.iter().flatten().any(|strand| match strand {
        Strand::AgentState(..) | Strand::SessionState(..) => true,
        Strand::All | Strand::Agent(_) | Strand::Session(_) | Strand::State(_) | Strand::Label(..) => false,
    });
    if !filter.states.is_empty() && !by_state {
        lanes.push(of_states(&|state| Strand::State(state.code())));
    }
    if lanes.is_empty() {
        lanes.push(vec![Strand::All]);
    }
    lanes
}

/// The ids of a page, and how many lookups they cost.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WalkPage {
    pub(crate) ids: Vec<String>,
    pub(crate) lookups: u64,
    /// The id before which the next page begins. None: there is nothing more.
    pub(crate) next: Option<String>,
}

/// A page: the requested number of ids, or fewer with a `next` if the search took long.
pub(crate) fn walk(c: &Connection, filter: &JobFilter<'_>, limit: u32) -> rusqlite::Result<WalkPage> {
    let lanes = lanes(filter);
    let mut walked = WalkPage { ids: Vec::new(), lookups: 0, next: None };
    while walked.ids.len() < limit as usize && walked.lookups < LOOKUPS_MAX {
        let before = walked.next.as_deref().or(filter.before).unwrap_or(NEWEST);
        walked.next = match newest_common_id(c, &lanes, before, &mut walked.lookups)? {
            LaneMatch::At(id) => {
                walked.ids.push(id.clone());
                Some(id)
            }
            LaneMatch::NotYet { before } => Some(before),
            LaneMatch::Nowhere => return Ok(WalkPage { next: None, ..walked }),
        };
    }
    Ok(walked)
}

/// The next common id of all lanes.
enum LaneMatch {
    At(String),
    /// Not among the checked ids: a match, if any, is before this id.
    NotYet {
        before: String,
    },
    Nowhere,
}

/// The newest id before this one that all lanes have.
fn newest_common_id(
    c: &Connection,
    lanes: &[Lane<'_>],
    before: &str,
    lookups: &mut u64,
) -> rusqlite::Result<LaneMatch> {
    let mut before = before.to_owned();
    let mut candidate: Option<String> = None;
    let mut agreed = 0;
    // Every round requests an older id, so the loop ends.
    for lane in lanes.iter().cycle() {
        let Some(found) = newest(c, lane, &before, lookups)? else { return Ok(LaneMatch::Nowhere) };
        match candidate {
            Some(id) if id == found => agreed += 1,
            // This lane does not have it. The search may stop only here, so that every page makes progress.
            Some(passed) if *lookups >= LOOKUPS_MAX => return Ok(LaneMatch::NotYet { before: passed }),
            Some(_) | None => agreed = 1,
        }
        if agreed == lanes.len() {
            return Ok(LaneMatch::At(found));
        }
        before = format!("{found}{BEHIND}");
        candidate = Some(found);
    }
    Ok(LaneMatch::Nowhere)
}

fn newest(
    c: &Connection,
    lane: &[Strand<'_>],
    before: &str,
    lookups: &mut u64,
) -> rusqlite::Result<Option<String>> {
    let mut newest = None;
    for strand in lane {
        *lookups += 1;
        newest = newest.max(strand.newest(c, before)?);
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lodge_core::{AgentId, SessionId};

    use super::*;

    const JOBS: i64 = 100_000;
    const PAGE: u32 = 20;
    /// A page and what the shortest lane has beside it, in two lanes.
    const PAGE_LOOKUPS_MAX: u64 = 2 * (PAGE as u64 + 49);

    /// A hundred thousand jobs that are over and a few that are not, of two agents and a session each.
    ///
    /// Number 1 in a hundred failed; number 1 in a thousand has the label `rare`, all of them have `common`. The newest jobs
    /// have neither failed nor `rare`, and one agent and one session have but the oldest.
    fn many() -> (tempfile::TempDir, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.db");
        drop(crate::sqlite::open(&path, &[7; 64]).unwrap());
        let c = Connection::open(&path).unwrap();
        c.pragma_update(None, "foreign_keys", "OFF").unwrap();
        c.execute_batch(&format!(
            "BEGIN;
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {JOBS})
             INSERT INTO jobs (id, agent, session, state, priority, created_at, archived, told, request, stdin)
             SELECT 'job_' || printf('%09d', i), iif(i < 50, 'agt_1', 'agt_0'), iif(i < 50, 't', 's'),
                 iif(i > {JOBS} - 3, 2, iif(i % 100 = 0 AND i < 90000, 11, 10)), 0, i, 1, 1, x'', x'' FROM n;
             INSERT INTO job_labels SELECT 'k', 'common', id FROM jobs;
             INSERT INTO job_labels SELECT 'k', 'rare', id FROM jobs WHERE created_at % 1000 = 0 AND created_at < 50000;
             COMMIT;"
        ))
        .unwrap();
        (dir, c)
    }

    #[test]
    fn a_page_costs_a_few_lookups_for_every_filter_and_pair_of_filters() {
        let (_dir, c) = many();
        let agents: [AgentId; 2] = ["agt_0".parse().unwrap(), "agt_1".parse().unwrap()];
        let sessions: [SessionId; 2] = ["s".parse().unwrap(), "t".parse().unwrap()];
        let label = |value: &str| BTreeMap::from([("k".to_owned(), value.to_owned())]);
        let labels = [BTreeMap::new(), label("common"), label("rare"), label("none")];
        let states: [&[JobState]; 5] = [
            &[],
            &[JobState::Done],
            &[JobState::Error],
            &[JobState::Pending, JobState::Running],
            &[JobState::Cancelled],
        ];
        let choices = |chosen: usize| if chosen == 0 { None } else { Some(chosen - 1) };
        for (agent, session) in (0..3).flat_map(|a| (0..3).map(move |s| (choices(a), choices(s)))) {
            for (states, labels) in states.iter().flat_map(|s| labels.iter().map(move |l| (*s, l))) {
                let given = [agent.is_some(), session.is_some(), !states.is_empty(), !labels.is_empty()];
                if given.iter().filter(|given| **given).count() > 2 {
                    continue;
                }
                let filter = JobFilter {
                    agent: agent.map(|at| &agents[at]),
                    session: session.map(|at| &sessions[at]),
                    states,
                    labels,
                    before: None,
                };
                let walked = walk(&c, &filter, PAGE).unwrap();
                assert_eq!(walked.ids, counted(&c, &filter), "{filter:?}");
                // A lane of several states has as many strands.
                let most = PAGE_LOOKUPS_MAX * states.len().max(1) as u64;
                assert!(walked.lookups <= most, "{} lookups: {filter:?}", walked.lookups);
            }
        }
    }

    /// The expected listing, by checking every job.
    fn counted(c: &Connection, filter: &JobFilter<'_>) -> Vec<String> {
        let codes: Vec<String> = filter.states.iter().map(|state| state.code().to_string()).collect();
        let states =
            if codes.is_empty() { "1".to_owned() } else { format!("state IN ({})", codes.join(",")) };
        let sql = format!(
            "SELECT id FROM jobs NOT INDEXED WHERE {states} AND (?1 IS NULL OR agent = ?1) AND (?2 IS NULL OR session = ?2) \
             AND (?3 IS NULL OR EXISTS (SELECT 1 FROM job_labels WHERE key = 'k' AND value = ?3 AND job = id)) \
             ORDER BY id DESC LIMIT {PAGE}"
        );
        let (agent, session) = (filter.agent.map(AgentId::as_str), filter.session.map(SessionId::as_str));
        let mut statement = c.prepare_cached(&sql).unwrap();
        let found = statement.query_map((agent, session, filter.labels.get("k")), |row| row.get(0)).unwrap();
        found.map(Result::unwrap).collect()
    }

    #[test]
    fn every_lookup_is_one_step_into_an_index_that_has_the_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.db");
        drop(crate::sqlite::open(&path, &[7; 64]).unwrap());
        let c = Connection::open(&path).unwrap();
        for (strand, found) in [
            (Strand::All, "USING COVERING INDEX sqlite_autoindex_jobs_1 (id<?)"),
            (Strand::Agent("a"), "USING COVERING INDEX jobs_agent (agent=? AND id<?)"),
            (Strand::AgentState("a", 1), "INDEX jobs_agent_state (agent=? AND state=? AND id<?)"),
            (Strand::Session("s"), "USING COVERING INDEX jobs_session (session=? AND id<?)"),
            (Strand::SessionState("s", 1), "INDEX jobs_session_state (session=? AND state=? AND id<?)"),
            (Strand::State(1), "USING COVERING INDEX jobs_state (state=? AND id<?)"),
            (Strand::Label("k", "v"), "USING PRIMARY KEY (key=? AND value=? AND job<?)"),
        ] {
            let mut plan = c.prepare(&format!("EXPLAIN QUERY PLAN {}", strand.sql())).unwrap();
            let unbound = vec![rusqlite::types::Null; plan.parameter_count()];
            let lines = plan
                .query_map(rusqlite::params_from_iter(unbound), |row| row.get::<_, String>("detail"))
                .unwrap();
            let plan = lines.map(Result::unwrap).collect::<Vec<_>>().join("\n");
            assert!(plan.starts_with("SEARCH") && plan.contains(found), "{strand:?}: {plan}");
            assert!(!plan.contains("TEMP B-TREE") && !plan.contains("SCAN"), "{strand:?}: {plan}");
        }
    }

    #[test]
    fn the_label_of_a_session_is_the_session() {
        let (_dir, c) = many();
        let session: SessionId = "s".parse().unwrap();
        let (none, label) = (BTreeMap::new(), |session: &str| {
            BTreeMap::from([(SESSION_LABEL.to_owned(), session.to_owned())])
        });
        let (same, other) = (label("s"), label("t"));
        let all = JobFilter { agent: None, session: None, states: &[], labels: &none, before: None };
        let by_session = walk(&c, &JobFilter { session: Some(&session), ..all }, PAGE).unwrap();
        assert_eq!(walk(&c, &JobFilter { labels: &same, ..all }, PAGE).unwrap(), by_session);
        let both = walk(&c, &JobFilter { session: Some(&session), labels: &other, ..all }, PAGE).unwrap();
        assert_eq!(both.ids, Vec::<String>::new());
    }

    #[test]
    fn lanes_that_meet_late_or_never_are_walked_in_pages_that_end_early_and_go_on() {
        let (_dir, c) = many();
        // On every other job each; both on the two oldest of them alone.
        c.execute_batch(
            "INSERT INTO job_labels SELECT 'even', '', id FROM jobs
                 WHERE created_at > 50000 AND (created_at % 2 = 0 OR created_at < 50003);
             INSERT INTO job_labels SELECT 'odd', '', id FROM jobs
                 WHERE created_at > 50000 AND (created_at % 2 = 1 OR created_at < 50003);",
        )
        .unwrap();
        let labels = ["even", "odd"].map(|key| (key.to_owned(), String::new())).into();
        let states = [JobState::Done, JobState::Cancelled];
        for (states, limit) in [(&[][..], PAGE), (&states, PAGE), (&[], 1), (&[], 2)] {
            let mut before: Option<String> = None;
            let (mut ids, mut pages) = (Vec::new(), 0);
            loop {
                let filter = JobFilter {
                    agent: None,
                    session: None,
                    states,
                    labels: &labels,
                    before: before.as_deref(),
                };
                let walked = walk(&c, &filter, limit).unwrap();
                // The most lookups to be sure of one more job.
                assert!(walked.lookups < LOOKUPS_MAX + 5, "{} lookups", walked.lookups);
                if let (Some(next), Some(last)) = (&walked.next, &before) {
                    assert!(next < last, "{next} is no further than {last}");
                }
                pages += 1;
                ids.extend(walked.ids);
                before = walked.next;
                if before.is_none() {
                    break;
                }
            }
            assert_eq!(ids, ["job_000050002", "job_000050001"], "{states:?} {limit}");
            assert!((3..=10).contains(&pages), "{pages} pages");
        }
    }

    #[test]
    fn pages_go_on_where_the_last_one_ended() {
        let (_dir, c) = many();
        let labels = BTreeMap::from([("k".to_owned(), "rare".to_owned())]);
        let states = [JobState::Error];
        let mut filter =
            JobFilter { agent: None, session: None, states: &states, labels: &labels, before: None };
        let all = walk(&c, &filter, 1_000).unwrap().ids;
        assert_eq!(all.len(), 49);
        let first = walk(&c, &filter, 30).unwrap();
        assert_eq!(first.next.as_ref(), first.ids.last());
        filter.before = first.next.as_deref();
        let second = walk(&c, &filter, 30).unwrap();
        assert_eq!(second.next, None);
        assert_eq!([first.ids.clone(), second.ids].concat(), all);
    }
}
