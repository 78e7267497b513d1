//! The sources of values, and the errors for wrong ones.

use super::*;

fn resolve(flags: &[&str], env: &[(&str, &str)], yaml: Option<&str>) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    if let Some(yaml) = yaml {
        std::fs::write(dir.path().join("lodged.yaml"), yaml).unwrap();
    }
    let mut words = vec!["serve"];
    words.extend(flags);
    let matches = command().try_get_matches_from(words).map_err(|error| error.to_string())?;
    let mut env: BTreeMap<String, String> = env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    env.entry("LODGE_HOME".into()).or_insert_with(|| dir.path().display().to_string());
    Config::resolve(&matches, &|name| env.get(name).cloned())
        .map_err(|error| format!("{error}; {}", error.hint()))
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let yaml = Some("serve:\n  shutdown-timeout: 7s\n  backoff-base: 3s\n  max-jobs: 4\n");
    let env = [("LODGED_SHUTDOWN_TIMEOUT", "8s"), ("LODGED_BACKOFF_BASE", "2s")];
    let config = resolve(&["--shutdown-timeout", "9s"], &env, yaml).unwrap();
    let shown = config.shown();
    let of = |name: &str| (shown[name].value.to_string(), shown[name].source.clone());
    assert_eq!(of("shutdown-timeout"), ("\"9s\"".into(), "flag".into()));
    assert_eq!(of("backoff-base"), ("\"2s\"".into(), "env".into()));
    assert_eq!(of("max-jobs"), ("4".into(), "file".into()));
    assert_eq!(of("backoff-cap"), ("\"30s\"".into(), "default".into()));
}

#[test]
fn every_mistake_names_what_was_expected() {
    for (yaml, wanted) in [
        ("serve:\n  shutdown-timeuot: 1s\n", "did you mean `shutdown-timeout`?"),
        ("serve:\n  executor: podman\n", "expected system or docker"),
        ("serve:\n  max-jobs: none\n", "a whole number from 1"),
        ("serve:\n  backoff-base: soon\n", "a duration such as"),
        ("serve:\n  job-output: large\n", "a size such as"),
        ("serve:\n  job-retention-age: 0s\n", "off, or a duration"),
        ("serve:\n  job-retention-bytes: 0\n", "off, or a size"),
        ("serve:\n  socket-path:\n", "a plain value"),
        ("serve:\n  socket-path: \"\"\n", "a path"),
        ("serve:\n  http-addr: nonsense\n", "ADDRESS:PORT, such as"),
        ("serve:\n  http-addr: :5500\n", "ADDRESS:PORT, such as"),
        ("serve:\n  http-addr: localhost:70000\n", "ADDRESS:PORT, such as"),
        ("serve:\n  heartbeat-stale: 2m\n", "no less than heartbeat-stale, which is 2m"),
        ("serve:\n  allowed-origins: [1, {}]\n", "a plain value"),
        ("serve: [\n", "not valid YAML"),
        ("servers: {}\n", "unknown key `servers`"),
        ("serve:\n  max-jobs: 1\nmax-concurrent: 4\n", "lodged.yaml:3; put it under `serve:`"),
        ("serve:\n  no-ui: yes\n  executor: podman\n", "lodged.yaml:3); expected system"),
        ("serve:\n  executor: \"system\n\n  no-ui: true\n", "look at the indentation"),
        ("serve:\n  max-jobs: 1\n  max-jobs: 2\n", "a key is there twice"),
    ] {
        let error = resolve(&[], &[], Some(yaml)).unwrap_err();
        assert!(error.contains(wanted), "{yaml:?} gave: {error}");
    }
}

#[test]
fn every_mistake_of_the_file_is_reported_at_once_with_its_line_and_its_way_out() {
    let yaml = "serve:\n  max-jobs: many\n  flavour: x\n  executor: podman\nlog-level: info\n";
    let error = resolve(&[], &[], Some(yaml)).unwrap_err();
    for told in [
        "lodged.yaml:2): expected a whole number from 1",
        "unknown key `flavour` in",
        "lodged.yaml:3: keys below",
        "lodged.yaml:4): expected system or docker",
        "lodged.yaml:5: put it under `serve:`",
    ] {
        assert!(error.contains(told), "{told} is missing: {error}");
    }
}

#[test]
fn sizes_are_powers_of_1024_and_retention_may_be_off() {
    let yaml = "serve:\n  job-output: 512k\n  job-keep-free: 2g\n  job-retention-age: 30d\n";
    let config = resolve(&[], &[], Some(yaml)).unwrap();
    let settings = config.settings();
    assert_eq!(settings.job_output, 512 << 10);
    assert_eq!(settings.job_keep_free, 2 << 30);
    assert_eq!(settings.job_retention_age, Some(Duration::from_secs(30 * 86_400)));
    assert_eq!(settings.job_retention_bytes, None);
}

#[test]
fn a_flag_names_the_state_directory_before_every_other_place() {
    let env = [("LODGED_DATA_DIR", "/b"), ("LODGE_HOME", "/c")];
    assert_eq!(resolve(&["--data-dir", "/a"], &env, None).unwrap().data_dir, Path::new("/a"));
    assert_eq!(resolve(&[], &env, None).unwrap().data_dir, Path::new("/b"));
    assert_eq!(resolve(&[], &env[1..], None).unwrap().data_dir, Path::new("/c"));
}

#[test]
fn what_is_read_again_counts_only_once_it_is_swapped_and_a_restart_is_named_where_it_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let put = |yaml: &str| std::fs::write(dir.path().join("lodged.yaml"), yaml).unwrap();
    let home = dir.path().display().to_string();
    let matches = command().try_get_matches_from(["serve", "--max-jobs", "3"]).unwrap();
    let config = Config::resolve(&matches, &|name| (name == "LODGE_HOME").then(|| home.clone())).unwrap();
    assert_eq!((config.settings().max_concurrent, config.file()), (10, None));
    put("serve:\n  max-concurrent: 4\n  max-jobs: 9\n  http-addr: 127.0.0.1:1\n");
    let reread = config.reread().unwrap();
    assert_eq!(config.settings().max_concurrent, 10);
    let keys = |list: &[lodge_proto::SettingChange]| -> Vec<String> {
        list.iter().map(|change| change.key.clone()).collect()
    };
    assert_eq!(keys(&reread.told.changed), ["max-concurrent"]);
    assert_eq!(keys(&reread.told.needs_restart), ["http-addr"]);
    assert_eq!(
        (reread.told.overridden[0].key.as_str(), reread.told.overridden[0].by.as_str()),
        ("max-jobs", "flag")
    );
    config.swap(reread);
    assert_eq!(config.settings().max_concurrent, 4);
    assert_eq!(config.settings().http_addr, "127.0.0.1:5500", "it is bound");
    assert!(config.warnings()[0].contains("http-addr"), "{:?}", config.warnings());
    put("serve:\n  max-concurrent: 5\n  max-jobs: many\n");
    assert!(config.reread().is_err(), "a mistake counts also where a flag goes before it");
    assert_eq!(config.settings().max_concurrent, 4);
}

#[test]
fn a_variable_that_is_no_setting_is_reported_with_what_was_meant() {
    let names = ["LODGED_MAX_JOB", "LODGED_CRASH_AT", "LODGED_MAX_JOBS", "LODGE_HOME", "LODGED_X", "PATH"];
    let told = unknown_variables(names.map(str::to_owned).into_iter());
    let words = ["LODGED_MAX_JOB is no setting; did you mean LODGED_MAX_JOBS?", "LODGED_X is no setting"];
    assert_eq!(told, words);
}

/// Each row of the table of `docs/configuration.md`: the keys, and their defaults where the page says them.
fn documented() -> Vec<(String, Option<String>)> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("| key | default | |\n|---|---|---|\n").unwrap();
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = table.lines().take_while(|line| line.starts_with('|')).flat_map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let (keys, defaults) = (quoted(cells[1]), quoted(cells[2]));
        let last = defaults.last().cloned();
        keys.into_iter()
            .enumerate()
            .map(move |(at, key)| (key, defaults.get(at).cloned().or_else(|| last.clone())))
    });
    rows.collect()
}

#[test]
fn the_documentation_has_every_setting_with_its_default() {
    let mut expected: Vec<(String, Option<String>)> = SETTINGS
        .iter()
        .map(|setting| {
            let default = (!setting.default.is_empty()).then(|| setting.default.to_owned());
            (setting.name.to_owned(), default)
        })
        .collect();
    let mut documented = documented();
    expected.sort();
    documented.sort();
    assert_eq!(documented, expected);
}

#[test]
fn the_documentation_names_the_settings_that_wait_for_a_restart() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (before, _) = page.split_once(" take effect at the next start").unwrap();
    let sentence = before.rsplit("\n\n").next().unwrap();
    let named: std::collections::BTreeSet<&str> = sentence.split('`').skip(1).step_by(2).collect();
    let waiting = SETTINGS.iter().filter(|setting| setting.change == table::WhenApplied::Restart);
    assert_eq!(named, waiting.map(|setting| setting.name).chain(["data-dir"]).collect());
}

#[test]
fn a_setting_has_the_name_of_its_field_with_dashes() {
    let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
    assert!(
        names.contains(&"job-retention-bytes") && !names.iter().any(|name| name.contains('_')),
        "{names:?}"
    );
}
