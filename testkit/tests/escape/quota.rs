//! Agents that take what all share: slots for jobs, counters of the kernel, the scheduler.

use std::fs;
use std::path::PathBuf;

use lodge_testkit::lodge::{Lodge, until};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, id, is_root};

/// As many as there are shared slots.
const ENDLESS_JOBS: usize = 10;

async fn submit(api: &mut CheckedClient, agent: &str, script: &str) -> Value {
    let asked = json!({"agent": agent, "bin": "sh", "args": ["-c", script]});
    api.ok("job/submit", asked).await
}

#[tokio::test]
async fn ten_endless_jobs_of_one_agent_do_not_block_the_job_of_another() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (greedy, modest) = (world.agent(&mut api, "greedy").await, world.agent(&mut api, "modest").await);
    let mut endless = Vec::new();
    for _ in 0..ENDLESS_JOBS {
        endless.push(id(&submit(&mut api, &greedy, "exec sleep 31999").await).to_owned());
    }
    let waits = submit(&mut api, &greedy, "echo later").await;
    assert_eq!(waits["status"], "pending", "{waits:#}");
    let job = submit(&mut api, &modest, "echo well").await;
    let done = api.until("job/get", json!({"job": id(&job)}), |view| !view["finished_at"].is_null()).await;
    assert_eq!((&done["status"], &done["exit_code"]), (&json!("done"), &json!(0)), "{done:#}");
    for job in &endless {
        assert_eq!(api.ok("job/get", json!({"job": job})).await["status"], "running");
    }
    // The slots of one that ends go on to the next, so nothing of the greedy one is lost either.
    api.ok("job/cancel", json!({"job": endless[0]})).await;
    let later = json!({"job": id(&waits)});
    let done = api.until("job/get", later, |view| !view["finished_at"].is_null()).await;
    assert_eq!(done["status"], "done", "{done:#}");
}

const AGENTFILE: &str = "FROM scratch\nNAME taker\nMODEL mock/m\nBIN python3 host:python3 \"takes\"\n\
    BIN sh host:sh \"a shell\"\nBIN sleep host:sleep \"waits\"\n";

/// An agent that can run Python, with these limits.
async fn taker(api: &mut CheckedClient, name: &str, limits: &str) -> Value {
    api.ok("agent/create", json!({"content": format!("{AGENTFILE}{limits}"), "name": name})).await;
    api.agent_is(name, "ready").await
}

/// Runs a Python program as a tool, and returns what it printed.
async fn python(api: &mut CheckedClient, agent: &str, program: &str) -> String {
    let call = json!(["-c", program]);
    api.answer(agent, "p", &format!("[[tool:python3|{call}]] [[reply:{{{{tool}}}}]]")).await
}

/// Runs a Python program as a job, and returns its id and what it printed once it did.
async fn python_job(api: &mut CheckedClient, agent: &str, args: &[&str]) -> (String, String) {
    let asked = json!({"agent": agent, "bin": "python3", "args": args});
    let job = id(&api.ok("job/submit", asked).await).to_owned();
    let said = |view: &Value| view["stdout_bytes"] != 0 || !view["finished_at"].is_null();
    let view = api.until("job/get", json!({"job": job}), said).await;
    let output = api.ok("job/output", json!({"job": job, "stream": "merged"})).await;
    let said = output["data"].as_str().expect("data").to_owned();
    assert_eq!(view["status"], "running", "{said}");
    (job, said)
}

/// Tries what would change how another process runs, and what a program may do with itself.
const SCHEDULING: &str = r#"
import ctypes, os, platform, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == 'x86_64'
NUMBERS = {'sched_setscheduler': (144, 119), 'sched_setparam': (142, 118), 'sched_setattr': (314, 274),
    'sched_setaffinity': (203, 122), 'setpriority': (141, 140), 'ioprio_set': (251, 30), 'prlimit64': (302, 261),
    'migrate_pages': (256, 238), 'prctl': (157, 167)}
def call(name, *args):
    ctypes.set_errno(0)
    done = libc.syscall(NUMBERS[name][0 if x86 else 1], *args)
    if done < 0: raise OSError(ctypes.get_errno(), name)
def attempt(what, act):
    try: act()
    except OSError as error: print('closed', what, error.errno)
    else: print('OPEN', what)
def must(what, act):
    try: act()
    except OSError as error: print('BROKEN', what, error)
    else: print('works', what)
def write(path, text):
    with open(path, 'w') as file: file.write(text)
attr = struct.pack('IIQiIQQQ', 48, 3, 0, 19, 0, 0, 0, 0)
one, zero = ctypes.create_string_buffer(struct.pack('Q', 1)), ctypes.create_string_buffer(8)
limit = ctypes.create_string_buffer(struct.pack('QQ', 8, 8))
def runtimes():
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try: line = open('/proc/%s/cmdline' % pid).read()
        except OSError: continue
        if os.path.basename(line.split('\0')[0]) == 'runtime': yield int(pid)
others = [1] + list(runtimes())
assert len(others) > 1, 'no runtime is seen'
for pid in others:
    attempt('sched_setscheduler %d' % pid, lambda: call('sched_setscheduler', pid, 5, zero))
    attempt('sched_setparam %d' % pid, lambda: call('sched_setparam', pid, zero))
    attempt('sched_setattr %d' % pid, lambda: call('sched_setattr', pid, attr, 0))
    attempt('sched_setaffinity %d' % pid, lambda: call('sched_setaffinity', pid, 8, one))
    attempt('setpriority %d' % pid, lambda: call('setpriority', 0, pid, 19))
    attempt('setpriority of the group of %d' % pid, lambda: call('setpriority', 1, pid, 19))
    attempt('ioprio_set %d' % pid, lambda: call('ioprio_set', 1, pid, 3 << 13))
    attempt('ioprio_set of the group of %d' % pid, lambda: call('ioprio_set', 2, pid, 3 << 13))
    attempt('prlimit %d' % pid, lambda: call('prlimit64', pid, 7, limit, None))
    attempt('migrate_pages %d' % pid, lambda: call('migrate_pages', pid, 8, one, one))
    attempt('core of %d' % pid, lambda: call('prctl', 62, 2, pid, 1, 0))
    for name, text in [('autogroup', '19'), ('oom_score_adj', '1000'), ('timerslack_ns', '1000000000'), ('comm', 'x'),
                       ('coredump_filter', '0'), ('clear_refs', '1'), ('sched', '0'), ('oom_adj', '15')]:
        attempt('/proc/%d/%s' % (pid, name), lambda: write('/proc/%d/%s' % (pid, name), text))
for kind, who in ((1, 0), (2, 0), (2, os.getuid())):
    attempt('setpriority of kind %d' % kind, lambda: call('setpriority', kind, who, 19))
for kind in (2, 3):
    attempt('ioprio_set of kind %d' % kind, lambda: call('ioprio_set', kind, 0, 3 << 13))
attempt('real time', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
must('affinity of itself', lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))
must('affinity is read', lambda: os.sched_getaffinity(1))
must('scheduler is read', lambda: os.sched_getscheduler(0))
must('batch', lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)))
must('nice', lambda: os.nice(5))
must('idle disk', lambda: call('ioprio_set', 1, 0, 3 << 13))
def nice():
    if os.spawnv(os.P_WAIT, '/usr/bin/nice', ['nice', '-n', '1', sys.executable, '-c', '']): raise OSError('nice failed')
must('programs that are nice', nice)
print('over')
"#;

/// The scheduling and out-of-memory settings of a process, as the host sees them.
fn standing(pid: &Value) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    // Priority, niceness, real time priority and policy.
    let mut standing: Vec<String> = [15, 16, 37, 38].map(|at: usize| fields[at].to_owned()).into();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    standing.extend(status.lines().filter(|line| line.starts_with("Cpus_allowed:")).map(str::to_owned));
    for name in ["oom_score_adj", "limits", "comm"] {
        standing.push(std::fs::read_to_string(format!("/proc/{pid}/{name}")).expect("a process"));
    }
    standing
}

#[tokio::test]
async fn a_tool_schedules_itself_and_neither_keeper_nor_runtime() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let view = taker(&mut api, "taker", "").await;
    let both = [&view["pid"], &view["runtime_pid"]];
    let before = both.map(standing);
    let report = python(&mut api, "taker", SCHEDULING).await;
    let bad: Vec<&str> = report.lines().filter(|line| !is_fine(line)).collect();
    assert!(report.ends_with("over\n") && bad.is_empty(), "{bad:#?}\n{report}");
    assert_eq!(both.map(standing), before);
}

fn is_fine(line: &str) -> bool {
    ["closed ", "works ", "over"].iter().any(|word| line.starts_with(word))
}

/// Takes as much as it gets of what the kernel counts, says how much that was, and keeps it.
const TAKES: &str = r#"
import ctypes, os, platform, resource, sys, time
libc = ctypes.CDLL(None, use_errno=True)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
most = int(sys.argv[1])
kept = []
def take(name, one):
    count = 0
    while count < most and one(count): count += 1
    return name, count
def terminal(_):
    try: master, slave = os.openpty()
    except OSError: return False
    os.close(slave)
    kept.append(master)
    return True
timer = ctypes.c_void_p()
taken = [
    take('inotify', lambda _: libc.inotify_init1(0) >= 0),
    take('timers', lambda _: libc.timer_create(1, None, ctypes.byref(timer)) == 0),
    take('queues', lambda n: libc.mq_open(b'/taken%d' % n, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0),
    take('terminals', terminal),
]
context = ctypes.c_void_p()
numbers = {'x86_64': (206, 248, 300), 'aarch64': (0, 217, 262)}[platform.machine()]
taken.append(take('aio', lambda _: libc.syscall(numbers[0], 1024, ctypes.byref(context)) == 0))
taken.append(take('keys', lambda n: libc.syscall(numbers[1], b'user', b'taken%d' % n, b'x', 1, -3) > 0))
taken.append(take('fanotify', lambda _: libc.syscall(numbers[2], 0x200, 0) >= 0))
print(*('%s=%d' % pair for pair in taken), flush=True)
if most > 1: time.sleep(31999)
"#;

fn counts(line: &str) -> std::collections::BTreeMap<String, u64> {
    let pairs = line.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, count)| (name.to_owned(), count.parse().expect("a number"))).collect()
}

#[tokio::test]
async fn what_the_kernel_counts_for_all_is_not_taken_by_one_agent() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    taker(&mut api, "taker", "").await;
    taker(&mut api, "other", "").await;
    let (job, line) = python_job(&mut api, "taker", &["-c", TAKES, "1000000"]).await;
    let taken = counts(&line);
    println!("taken: {taken:?}");
    for none in ["aio", "keys", "fanotify"] {
        assert_eq!(taken[none], 0, "{none}: {line}");
    }
    // Where Landlock is, queues cannot be opened at all.
    assert!(taken["queues"] <= 3, "{line}");
    let instances = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").expect("a limit");
    let instances: u64 = instances.trim().parse().expect("a number");
    let instances = if is_root() { instances } else { instances / 4 };
    for (what, most) in [("inotify", instances), ("timers", 4096), ("terminals", 256)] {
        assert!((1..=most).contains(&taken[what]), "{what}: {line}");
    }
    let call = json!(["-c", TAKES, "1"]);
    let line = api.answer("other", "p", &format!("[[tool:python3|{call}]] [[reply:{{{{tool}}}}]]")).await;
    let left = counts(&line);
    for what in ["inotify", "timers", "terminals"] {
        assert_eq!(left[what], 1, "{what}: {line}");
    }
    assert_eq!(api.ok("job/get", json!({"job": job})).await["status"], "running");
}

const DISK: &str = "LIMIT disk 32m\n";

#[tokio::test]
async fn what_was_removed_and_is_only_mapped_counts_against_the_disk() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    taker(&mut api, "taker", DISK).await;
    let program = "import mmap, os, time\nmaps = []\nfor n in range(16):\n    f = open('fill', 'w+b')\n    \
        f.write(b'x' * (4 << 20))\n    f.flush()\n    maps.append(mmap.mmap(f.fileno(), 4 << 20))\n    os.unlink('fill')\n    \
        f.close()\nfor m in maps: m.flush()\ntime.sleep(31999)";
    // mmap of Python keeps a descriptor of its own: it is closed, so that the mapping alone is left.
    let program = program.replace(
        "    f.close()\n",
        "    f.close()\nfor fd in os.listdir('/proc/self/fd'):\n    \
        name = os.path.realpath('/proc/self/fd/' + fd)\n    if 'fill' in name: os.close(int(fd))\n",
    );
    let asked = json!({"agent": "taker", "bin": "python3", "args": ["-c", program]});
    let job = id(&api.ok("job/submit", asked).await).to_owned();
    let over = |view: &Value| !view["finished_at"].is_null();
    let done = api.until("job/get", json!({"job": job}), over).await;
    let output = api.ok("job/output", json!({"job": job, "stream": "stderr"})).await;
    assert_eq!(done["cause"], "disk", "{done:#}\n{output}");
    api.agent_is("taker", "ready").await;
}

/// Where the output of a job is that is not archived.
fn files_of(lodge: &Lodge, job: &str) -> Option<PathBuf> {
    let sandboxes = fs::read_dir(lodge.home().join("run")).expect("a directory").flatten();
    sandboxes.map(|sandbox| sandbox.path().join("exec").join(job)).find(|dir| dir.exists())
}

#[tokio::test]
async fn output_of_jobs_counts_against_the_disk_and_the_oldest_goes() {
    const DISK_BYTES: u64 = 32 << 20;
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    taker(&mut api, "taker", DISK).await;
    let program = "import sys\nfor _ in range(8): sys.stdout.write('x' * (1 << 20))";
    let mut jobs = Vec::new();
    for _ in 0..12 {
        let asked = json!({"agent": "taker", "bin": "python3", "args": ["-c", program]});
        let job = id(&api.ok("job/submit", asked).await).to_owned();
        let over = |view: &Value| !view["finished_at"].is_null();
        let done = api.until("job/get", json!({"job": job}), over).await;
        assert_eq!((&done["status"], &done["exit_code"]), (&json!("done"), &json!(0)), "{done:#}");
        assert_eq!(done["dropped_bytes"], (8 << 20) - DISK_BYTES / 8, "{done:#}");
        // Until then it counts to the files of the agent, and a slow archive would leave no room for the next job.
        until("its output is archived", || files_of(&world.lodge, &job).is_none().then_some(()));
        jobs.push(job);
    }
    // Twelve outputs of an eighth each: those of the first four are too much.
    for job in &jobs[..4] {
        api.until("job/get", json!({"job": job}), |view| view["output_removed"] == true).await;
    }
    for job in &jobs[4..] {
        let view = api.ok("job/get", json!({"job": job})).await;
        assert_eq!(view["output_removed"], false, "{view:#}");
    }
    let output = api.ok("job/output", json!({"job": jobs[11], "stream": "stdout", "limit": 16})).await;
    assert_eq!(output["data"], "x".repeat(16), "{output}");
}

#[tokio::test]
async fn a_tool_cannot_kill_the_runtime_and_can_kill_what_an_earlier_one_left() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let view = taker(&mut api, "taker", "").await;
    let scoped = view["isolation"].as_array().expect("layers").iter();
    let mut scoped = scoped.filter(|layer| layer["name"] == "landlock_scope");
    if scoped.all(|layer| layer["in_force"] != true) {
        // A kernel without it cannot keep tools from the runtime: then its death is repaired, see `lineages`.
        return;
    }
    let program = "import os, signal\nfor pid in filter(str.isdigit, os.listdir('/proc')):\n    \
        try: line = open('/proc/%s/cmdline' % pid).read()\n    except OSError: continue\n    \
        if os.path.basename(line.split(chr(0))[0]) != 'runtime': continue\n    for tid in [pid] + os.listdir('/proc/%s/task' % pid):\n        \
        for name in ('SIGKILL', 'SIGSTOP', 'SIGTERM'):\n            \
        try: os.kill(int(tid), getattr(signal, name)); print('OPEN', name)\n            \
        except OSError as error: print('closed', name, error.errno)\n\
        try: os.kill(-1, signal.SIGCONT)\nexcept OSError as error: print('closed all', error.errno)\nprint('over')";
    for _ in 0..7 {
        let report = python(&mut api, "taker", program).await;
        let bad: Vec<&str> = report.lines().filter(|line| !is_fine(line)).collect();
        assert!(
            report.ends_with("over\n") && bad.is_empty() && report.contains("closed SIGKILL"),
            "{report}"
        );
    }
    let now = api.ok("agent/get", json!({"agent": "taker"})).await;
    assert_eq!((&now["runs"], &now["runtime_pid"]), (&json!(1), &view["runtime_pid"]));
    // A server that one call starts and a later one ends is what agents do all day.
    let starts = "import subprocess\np = subprocess.Popen(['/bin/sleep', '31999'], start_new_session=True, \
        stdin=-3, stdout=-3, stderr=-3)\nprint(p.pid)";
    let left = python(&mut api, "taker", starts).await;
    let ends = format!("import os\nos.kill({}, 9)\nprint('ended')", left.trim());
    assert_eq!(python(&mut api, "taker", &ends).await, "ended\n");
}
