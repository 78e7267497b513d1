//! What agents need, found and brought.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// An agent whose image was announced, of a registry that has it with its tool.
async fn announced(world: &mut ImagesWorld, registry: &Registry, agent: &PackedImage) -> AgentRow {
    registry.hold("agents/otter", Some("v1"), agent);
    let remote = registry.remote("agents/otter:v1");
    let Arrived { row, with, pins: _pins } = world.images.announce(&remote).await.unwrap();
    assert_eq!((row.state, with.len()), (ImageState::Announced, 0));
    let agent = row_of(&remote.to_string(), &row);
    world.record([row]);
    agent
}

#[tokio::test]
async fn an_agent_is_announced_by_its_config_and_then_brought_with_the_tools_of_its_repository() {
    let (mut world, registry) = (ImagesWorld::new(), Registry::start().await);
    let tool = bin("ripgrep");
    // Its name leads nowhere: only the repository of the agent has it.
    let agent = agent(&pinned("rg:latest", &tool));
    registry.hold("agents/otter", None, &tool);
    let row = announced(&mut world, &registry, &agent).await;
    assert_eq!(registry.blobs_asked(), 1, "its config alone");
    let ready = world.images.ready(&row).await.unwrap();
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
    // From now on nobody is asked.
    world.record(ready.rows);
    let asked = registry.all_asked();
    let again = world.images.ready(&row).await.unwrap();
    assert_eq!((again.rows.len(), again.tools, registry.all_asked()), (0, ready.tools, asked));
}

#[tokio::test]
async fn what_the_agentfile_says_of_a_tool_goes_before_what_its_image_says() {
    let (mut world, registry) = (ImagesWorld::new(), Registry::start().await);
    let tool = bin("ripgrep");
    let agent = agent(&pinned("rg:latest", &tool));
    registry.hold("agents/otter", None, &tool);
    let mut row = announced(&mut world, &registry, &agent).await;
    row.spec.tools[0].description = "find words".into();
    row.spec.tools[0].usage = Some("tool WORD".into());
    let ready = world.images.ready(&row).await.unwrap();
    let [found] = &ready.tools[..] else { panic!("{ready:?}") };
    assert_eq!((found.description.as_str(), found.usage.as_deref()), ("find words", Some("tool WORD")));
}

#[tokio::test]
async fn a_tool_is_looked_for_where_its_own_name_leads_when_the_repository_has_it_not() {
    let (mut world, registry) = (ImagesWorld::new(), Registry::start().await);
    let tool = bin("rg");
    registry.hold("tools/rg", Some("1"), &tool);
    let agent = agent(&pinned(&format!("{}/tools/rg:1", registry.host), &tool));
    let row = announced(&mut world, &registry, &agent).await;
    assert_eq!(world.images.ready(&row).await.unwrap().rows.len(), 2);
    let pulled = world.images.pull(&registry.remote("agents/otter:v1"), Arc::new(Unwatched)).await.unwrap();
    assert_eq!(
        pulled.with.iter().map(|row| row.digest.clone()).collect::<Vec<_>>(),
        [tool.digest.to_string()]
    );
}

#[tokio::test]
async fn a_tool_that_nobody_has_and_one_for_another_host_fail_closed_with_the_way_out() {
    let (mut world, registry) = (ImagesWorld::new(), Registry::start().await);
    let elsewhere = Platform::read("plan9/mips").unwrap();
    let tool = bin_for("rg", elsewhere, 1);
    let agent = agent(&pinned("rg:latest", &tool));
    let row = announced(&mut world, &registry, &agent).await;
    let error = world.images.ready(&row).await.unwrap_err();
    assert_eq!(error.code(), "bin.not_found");
    assert!(error.to_string().contains("rg:latest@sha256:") && error.hint().is_some(), "{error:?}");
    registry.hold("agents/otter", None, &tool);
    let error = world.images.ready(&row).await.unwrap_err();
    assert_eq!(error.code(), "bin.no_platform");
    assert!(error.cause().unwrap().contains("plan9/mips"));
    // A tool that is built again is another one, of which the agent's image knows nothing.
    let hint = error.hint().unwrap();
    assert!(
        hint.contains("the agent's image again") && hint.contains("lodge update AGENT --image"),
        "{hint}"
    );
    assert!(!world.dir.path().join("registry/programs").read_dir().unwrap().any(|_| true));
}

#[tokio::test]
async fn a_program_that_was_changed_on_disk_does_not_run_and_is_unpacked_anew() {
    let (mut world, registry) = (ImagesWorld::new(), Registry::start().await);
    let tool = bin("rg");
    let agent = agent(&pinned("rg:latest", &tool));
    registry.hold("agents/otter", None, &tool);
    let mut row = announced(&mut world, &registry, &agent).await;
    let ready = world.images.ready(&row).await.unwrap();
    row.spec.tools = ready.tools;
    let path = PathBuf::from(&row.spec.tools[0].path);
    world.images.check_programs(&row.spec).await.unwrap();
    // By this daemon's eyes, by the next one's, and when the first start of an agent finds it so.
    overwrite(&path);
    let error = world.images.check_programs(&row.spec).await.unwrap_err();
    assert_eq!((error.code(), error.hint().is_some()), ("image.damaged", true));
    let world = world.again();
    assert!(world.images.check_programs(&row.spec).await.is_err());
    let fresh = ToolRecord { path: String::new(), digest: String::new(), ..row.spec.tools[0].clone() };
    let new = AgentRow { spec: AgentSpec { tools: vec![fresh], ..row.spec.clone() }, ..row.clone() };
    assert_eq!(world.images.ready(&new).await.unwrap().tools, row.spec.tools);
    world.images.check_programs(&row.spec).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(world.images.check_programs(&row.spec).await.is_err());
    world.images.ready(&row).await.unwrap();
    world.images.check_programs(&row.spec).await.unwrap();
}

#[tokio::test]
async fn damaged_contents_are_brought_again_where_a_registry_is_known_and_told_where_none_is() {
    let (mut world, registry) = (ImagesWorld::new(), Registry::start().await);
    let tool = bin("rg");
    let agent = agent(&pinned("rg:latest", &tool));
    registry.hold("agents/otter", None, &tool);
    let row = announced(&mut world, &registry, &agent).await;
    let ready = world.images.ready(&row).await.unwrap();
    let program = PathBuf::from(&ready.tools[0].path);
    world.record(ready.rows);
    let mut world = world.again();
    std::fs::remove_file(&program).unwrap();
    world.damage(&largest(&tool));
    assert_eq!(world.images.ready(&row).await.unwrap().tools, ready.tools);
    // An agent that came from nowhere, whose image has a name of this host alone.
    let local = AgentRow { image: "otter:latest".into(), image_digest: "sha256:0".into(), ..row.clone() };
    world.record([ImageRow::agent("sha256:0".into(), "otter:latest".into(), 0, ImageRecord::default())]);
    std::fs::remove_file(&program).unwrap();
    world.damage(&largest(&tool));
    let world = world.again();
    let error = world.images.ready(&local).await.unwrap_err();
    assert_eq!(error.code(), "image.damaged");
    assert!(error.hint().is_some_and(|hint| hint.contains("pull it again")));
}

#[tokio::test]
async fn an_agent_came_from_where_the_name_it_was_asked_for_leads_then_its_images_other_names() {
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

/// An agent as a release would build it that does more.
fn agent_of_later(lines: &str) -> PackedImage {
    let source = format!("FROM scratch\nMODEL p/m\nNAME otter\n{lines}");
    let builder = Pinned(BTreeMap::new());
    pack_agent(&load_inline(source.as_bytes(), &BTreeMap::new(), &builder).unwrap()).unwrap()
}

#[tokio::test]
async fn an_image_with_what_this_release_does_not_do_is_refused_however_it_comes() {
    let (world, registry) = (ImagesWorld::new(), Registry::start().await);
    let remote = registry.remote("agents/otter:v1");
    for (lines, named) in [
        ("MCP a https://a.example/\nMCP b https://b.example/\n", "MCP"),
        ("SKILL a/skill:1\n", "SKILL"),
        ("SERVICE db postgres:16\n", "SERVICE"),
        ("SCHEDULE \"0 9 * * *\" \"good morning\"\n", "SCHEDULE"),
        ("ON \"disk full\" \"make room\"\n", "ON"),
        ("ON \"a\" \"b\"\nMCP a https://a.example/\nSKILL s:1\n", "MCP, SKILL, ON"),
    ] {
        let agent = agent_of_later(lines);
        registry.hold("agents/otter", Some("v1"), &agent);
        let announced = world.images.announce(&remote).await.unwrap_err();
        let pulled = world.images.pull(&remote, Arc::new(Unwatched)).await.unwrap_err();
        let pins = world.images.blobs().unwrap().pins();
        world.images.keep(&pins, &agent).unwrap();
        let imported = world.images.found(&pins, &agent.digest.to_string(), "otter".into()).unwrap_err();
        for error in [announced, pulled, imported] {
            assert_eq!(error.code(), "agentfile.unsupported", "{lines}: {error:?}");
            assert!(error.to_string().ends_with(&format!("does not do: {named}")), "{lines}: {error:?}");
            assert!(error.hint().is_some());
        }
    }
}

/// The registry of these tests is outside, and this address is not.
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
async fn an_image_from_outside_has_nobody_look_for_its_tools_inside() {
    let (world, registry) = (ImagesWorld::new(), Registry::start().await);
    with_an_inside(&world);
    let tool = bin("rg");
    let agent = agent(&pinned(&format!("{INSIDE}/tools/rg:1"), &tool));
    registry.hold("agents/otter", Some("v1"), &agent);
    let remote = registry.remote("agents/otter:v1");
    let error = world.images.pull(&remote, Arc::new(Unwatched)).await.unwrap_err();
    assert_eq!(error.code(), "image.invalid");
    assert!(
        error.to_string().contains(INSIDE) && error.to_string().contains("inside this network"),
        "{error:?}"
    );
    let named = RemoteImage::read(&format!("{INSIDE}/tools/rg:1")).unwrap().unwrap();
    let inside = RemoteImage::read("127.0.0.2:2/agents/otter:v1").unwrap().unwrap();
    assert!(world.images.refuse_inward(&[inside], &named).await.is_ok(), "from inside");
    assert!(world.images.refuse_inward(&[], &named).await.is_ok(), "built here");
    // What is here or in the repository of the agent needs nobody's name.
    registry.hold("agents/otter", None, &tool);
    world.images.pull(&remote, Arc::new(Unwatched)).await.unwrap();
}

#[tokio::test]
async fn an_agent_is_nobodys_tool() {
    let (world, registry) = (ImagesWorld::new(), Registry::start().await);
    let other = agent(&pinned("rg:latest", &bin("rg")));
    let agent = agent(&pinned("other:latest", &other));
    registry.hold("agents/otter", Some("v1"), &agent);
    registry.hold("agents/otter", None, &other);
    let pulled = world.images.pull(&registry.remote("agents/otter:v1"), Arc::new(Unwatched)).await;
    assert_eq!(pulled.unwrap_err().code(), "bin.not_a_bin");
}
