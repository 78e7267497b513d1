//! Tests of finding and pulling the images that agents need.

use std::os::unix::fs::PermissionsExt;

use lodge_engine::SandboxSettings;

use super::*;

/// Announces the image of an agent that a registry has, and returns the agent's row.
async fn announced(world: &mut ImagesWorld, registry: &FakeRegistry, agent: &PackedImage) -> AgentRow {
    registry.add_image("agents/otter", Some("v1"), agent);
    let remote = registry.remote("agents/otter:v1");
    let UnrecordedImages { row, with, pins: _pins } = world.images.announce(&remote).await.unwrap();
    assert_eq!((row.state, with.len()), (ImageState::Announced, 0));
    let agent = row_of(&remote.to_string(), &row);
    world.record([row]);
    agent
}

#[tokio::test]
async fn an_agent_is_announced_by_its_config_and_then_pulled_with_the_tools_of_its_repository() {
    let (mut world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let tool = bin("ripgrep");
    // The tool's name has no registry: only the repository of the agent has it.
    let agent = agent(&pinned("rg:latest", &tool));
    registry.add_image("agents/otter", None, &tool);
    let row = announced(&mut world, &registry, &agent).await;
    assert_eq!(registry.blobs_asked(), 1, "its config alone");
    let ready = world.images.obtain_needs(&row).await.unwrap();
    let found: Vec<&str> = ready.rows.iter().map(|row| row.digest.as_str()).collect();
    assert_eq!(found, [agent.digest.to_string(), tool.digest.to_string()]);
    assert!(ready.rows.iter().all(|row| row.state == ImageState::Complete));
    let [found] = &ready.tools[..] else { panic!("{ready:?}") };
    assert_eq!((found.name.as_str(), found.description.as_str()), ("tool", "what ripgrep is"));
    assert_eq!(found.usage.as_deref(), Some("ripgrep --help"));
    let program = Path::new(&found.path);
    assert!(program.starts_with(world.dir.path().join("registry/programs")), "{program:?}");
    let bytes = std::fs::read(program).unwrap();
    assert_eq!((bytes.len(), Digest::of(&bytes).to_string()), (PROGRAM_BYTES, found.digest.clone()));
    assert_eq!(std::fs::metadata(program).unwrap().permissions().mode() & 0o111, 0o111);
    // From now on no registry is asked.
    world.record(ready.rows);
    let asked = registry.all_asked();
    let again = world.images.obtain_needs(&row).await.unwrap();
    assert_eq!((again.rows.len(), again.tools, registry.all_asked()), (0, ready.tools, asked));
}

#[tokio::test]
async fn the_agentfile_overrides_the_description_in_the_image_of_a_tool() {
    let (mut world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let tool = bin("ripgrep");
    let agent = agent(&pinned("rg:latest", &tool));
    registry.add_image("agents/otter", None, &tool);
    let mut row = announced(&mut world, &registry, &agent).await;
    row.spec.tools[0].description = "find words".into();
    row.spec.tools[0].usage = Some("tool WORD".into());
    let ready = world.images.obtain_needs(&row).await.unwrap();
    let [found] = &ready.tools[..] else { panic!("{ready:?}") };
    assert_eq!((found.description.as_str(), found.usage.as_deref()), ("find words", Some("tool WORD")));
}

#[tokio::test]
async fn a_tool_is_pulled_by_its_own_name_if_the_agents_repository_lacks_it() {
    let (mut world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let tool = bin("rg");
    registry.add_image("tools/rg", Some("1"), &tool);
    let agent = agent(&pinned(&format!("{}/tools/rg:1", registry.host), &tool));
    let row = announced(&mut world, &registry, &agent).await;
    assert_eq!(world.images.obtain_needs(&row).await.unwrap().rows.len(), 2);
    let pulled = world.images.pull(&registry.remote("agents/otter:v1"), Arc::new(NoWatcher)).await.unwrap();
    assert_eq!(
        pulled.with.iter().map(|row| row.digest.clone()).collect::<Vec<_>>(),
        [tool.digest.to_string()]
    );
}

#[tokio::test]
async fn a_missing_tool_and_a_tool_for_another_platform_are_refused_with_a_hint() {
    let (mut world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let elsewhere = Platform::read("plan9/mips").unwrap();
    let tool = bin_for("rg", elsewhere, 1);
    let agent = agent(&pinned("rg:latest", &tool));
    let row = announced(&mut world, &registry, &agent).await;
    let error = world.images.obtain_needs(&row).await.unwrap_err();
    assert_eq!(error.code(), "bin.not_found");
    assert!(error.to_string().contains("rg:latest@sha256:") && error.hint().is_some(), "{error:?}");
    registry.add_image("agents/otter", None, &tool);
    let error = world.images.obtain_needs(&row).await.unwrap_err();
    assert_eq!(error.code(), "bin.no_platform");
    assert!(error.cause().unwrap().contains("plan9/mips"));
    // Building the tool again does not help: it gets another digest, and the image pins the old one.
    let hint = error.hint().unwrap();
    assert!(
        hint.contains("the agent's image again") && hint.contains("lodge update AGENT --image"),
        "{hint}"
    );
    assert!(!world.dir.path().join("registry/programs").read_dir().unwrap().any(|_| true));
}

#[tokio::test]
async fn a_program_that_was_changed_on_disk_does_not_run_and_is_unpacked_again() {
    let (mut world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let tool = bin("rg");
    let agent = agent(&pinned("rg:latest", &tool));
    registry.add_image("agents/otter", None, &tool);
    let mut row = announced(&mut world, &registry, &agent).await;
    let ready = world.images.obtain_needs(&row).await.unwrap();
    row.spec.tools = ready.tools;
    let path = PathBuf::from(&row.spec.tools[0].path);
    world.images.check_programs(&SandboxSettings::from(&row.spec)).await.unwrap();
    // The change is found by this daemon, by the next one, and at the first start of an agent.
    overwrite(&path);
    let error = world.images.check_programs(&SandboxSettings::from(&row.spec)).await.unwrap_err();
    assert_eq!((error.code(), error.hint().is_some()), ("image.damaged", true));
    let world = world.again();
    assert!(world.images.check_programs(&SandboxSettings::from(&row.spec)).await.is_err());
    let fresh = ToolRecord { path: String::new(), digest: String::new(), ..row.spec.tools[0].clone() };
    let new = AgentRow { spec: AgentSpec { tools: vec![fresh], ..row.spec.clone() }, ..row.clone() };
    assert_eq!(world.images.obtain_needs(&new).await.unwrap().tools, row.spec.tools);
    world.images.check_programs(&SandboxSettings::from(&row.spec)).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(world.images.check_programs(&SandboxSettings::from(&row.spec)).await.is_err());
    world.images.obtain_needs(&row).await.unwrap();
    world.images.check_programs(&SandboxSettings::from(&row.spec)).await.unwrap();
}

#[tokio::test]
async fn damaged_contents_are_pulled_again_from_a_known_registry_and_otherwise_reported() {
    let (mut world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let tool = bin("rg");
    let agent = agent(&pinned("rg:latest", &tool));
    registry.add_image("agents/otter", None, &tool);
    let row = announced(&mut world, &registry, &agent).await;
    let ready = world.images.obtain_needs(&row).await.unwrap();
    let program = PathBuf::from(&ready.tools[0].path);
    world.record(ready.rows);
    let mut world = world.again();
    std::fs::remove_file(&program).unwrap();
    world.damage(&largest(&tool));
    assert_eq!(world.images.obtain_needs(&row).await.unwrap().tools, ready.tools);
    // An agent without an origin: its image has only a local name.
    let local = AgentRow { image: "otter:latest".into(), image_digest: "sha256:0".into(), ..row.clone() };
    world.record([ImageRow::agent("sha256:0".into(), "otter:latest".into(), 0, ImageRecord::default())]);
    std::fs::remove_file(&program).unwrap();
    world.damage(&largest(&tool));
    let world = world.again();
    let error = world.images.obtain_needs(&local).await.unwrap_err();
    assert_eq!(error.code(), "image.damaged");
    assert!(error.hint().is_some_and(|hint| hint.contains("pull it again")));
}

#[tokio::test]
async fn origins_are_the_requested_name_and_then_the_other_names_of_the_image() {
    let mut world = ImagesWorld::new();
    world.record([ImageRow::agent("sha256:0".into(), "b.example/first:1".into(), 0, ImageRecord::default())]);
    for name in ["local:latest", "c.example/other:2", "a.example/asked:9"] {
        world.name(name, "sha256:0");
    }
    let origins = async |asked: &str| -> Vec<String> {
        let found = world.images.origins(asked, "sha256:0").await.unwrap();
        found.iter().map(|remote| format!("{}/{}", remote.host, remote.repository)).collect()
    };
    assert_eq!(origins("a.example/asked:1").await, ["a.example/asked", "b.example/first", "c.example/other"]);
    assert_eq!(origins("local:latest").await, ["b.example/first", "a.example/asked", "c.example/other"]);
}

/// An agent as a later release with more instructions would build it.
fn agent_of_later_release(lines: &str) -> PackedImage {
    let source = format!("FROM scratch\nMODEL p/m\nNAME otter\n{lines}");
    let builder = PinnedTools(BTreeMap::new());
    pack_agent(&load_inline(source.as_bytes(), &BTreeMap::new(), &builder).unwrap()).unwrap()
}

#[tokio::test]
async fn an_image_with_unsupported_instructions_is_refused_on_every_path() {
    let (world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let remote = registry.remote("agents/otter:v1");
    for (lines, named) in [
        ("MCP a https://a.example/\nMCP b https://b.example/\n", "MCP"),
        ("SKILL a/skill:1\n", "SKILL"),
        ("SERVICE db postgres:16\n", "SERVICE"),
        ("SCHEDULE \"0 9 * * *\" \"good morning\"\n", "SCHEDULE"),
        ("ON \"disk full\" \"make room\"\n", "ON"),
        ("ON \"a\" \"b\"\nMCP a https://a.example/\nSKILL s:1\n", "MCP, SKILL, ON"),
    ] {
        let agent = agent_of_later_release(lines);
        registry.add_image("agents/otter", Some("v1"), &agent);
        let announced = world.images.announce(&remote).await.unwrap_err();
        let pulled = world.images.pull(&remote, Arc::new(NoWatcher)).await.unwrap_err();
        let pins = world.images.blobs().unwrap().pins();
        world.images.store_packed(&pins, &agent).unwrap();
        let imported = world.images.load_row(&pins, &agent.digest.to_string(), "otter".into()).unwrap_err();
        for error in [announced, pulled, imported] {
            assert_eq!(error.code(), "agentfile.unsupported", "{lines}: {error:?}");
            assert!(error.to_string().ends_with(&format!("does not do: {named}")), "{lines}: {error:?}");
            assert!(error.hint().is_some());
        }
    }
}

/// The registry of these tests counts as outside. This address is inside.
const INSIDE: &str = "127.0.0.2:1";

pub(super) fn with_an_inside(world: &ImagesWorld) {
    let terms = lodge_image::registry::RegistryTerms {
        inward: |address| address.to_string() == "127.0.0.2",
        pause: std::time::Duration::ZERO,
        ..Default::default()
    };
    let registries = RegistryClient::with_terms(world.images.logins.clone(), terms);
    assert!(world.images.registries.set(registries).is_ok());
}

#[tokio::test]
async fn an_image_from_outside_cannot_name_tools_in_an_inside_registry() {
    let (world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    with_an_inside(&world);
    let tool = bin("rg");
    let agent = agent(&pinned(&format!("{INSIDE}/tools/rg:1"), &tool));
    registry.add_image("agents/otter", Some("v1"), &agent);
    let remote = registry.remote("agents/otter:v1");
    let error = world.images.pull(&remote, Arc::new(NoWatcher)).await.unwrap_err();
    assert_eq!(error.code(), "image.invalid");
    assert!(
        error.to_string().contains(INSIDE) && error.to_string().contains("inside this network"),
        "{error:?}"
    );
    let named = RemoteImage::read(&format!("{INSIDE}/tools/rg:1")).unwrap().unwrap();
    let inside = RemoteImage::read("127.0.0.2:2/agents/otter:v1").unwrap().unwrap();
    assert!(world.images.refuse_inward(&[inside], &named).await.is_ok(), "from inside");
    assert!(world.images.refuse_inward(&[], &named).await.is_ok(), "built here");
    // A tool in the store or in the repository of the agent is found without its own name.
    registry.add_image("agents/otter", None, &tool);
    world.images.pull(&remote, Arc::new(NoWatcher)).await.unwrap();
}

#[tokio::test]
async fn an_agent_cannot_be_a_tool() {
    let (world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let other = agent(&pinned("rg:latest", &bin("rg")));
    let agent = agent(&pinned("other:latest", &other));
    registry.add_image("agents/otter", Some("v1"), &agent);
    registry.add_image("agents/otter", None, &other);
    let pulled = world.images.pull(&registry.remote("agents/otter:v1"), Arc::new(NoWatcher)).await;
    assert_eq!(pulled.unwrap_err().code(), "bin.not_a_bin");
}
