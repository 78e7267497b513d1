//! What is read from the records of images.

use super::*;

#[test]
fn an_image_needs_each_image_of_its_tools_and_its_runtime_once_and_no_program_of_the_host() {
    let bin = |image: Option<&str>| BinRecord { image: image.map(str::to_owned), ..BinRecord::default() };
    let record = ImageRecord {
        bins: vec![
            bin(Some("rg:latest@sha256:2")),
            bin(None),
            bin(Some("grep:1@sha256:2")),
            bin(Some("unpinned:latest")),
        ],
        runtime_image: Some("localhost:5000/loop:1@sha256:1".to_owned()),
        ..ImageRecord::default()
    };
    let row = ImageRow::agent("sha256:0".into(), "a:latest".into(), 7, record);
    assert_eq!(row.fact().needs, ["sha256:1", "sha256:2"]);
}

#[test]
fn an_agent_has_the_images_of_its_tools_and_its_runtime() {
    let tool = |image: &str| ToolRecord { image: Some(image.to_owned()), ..ToolRecord::default() };
    let runtime = RuntimeRecord { image: Some("loop:1@sha256:3".into()), ..RuntimeRecord::default() };
    let spec = AgentSpec {
        tools: vec![tool("rg:latest@sha256:1"), ToolRecord::default(), tool("jq:latest@sha256:2")],
        runtime: Some(runtime),
        ..AgentSpec::default()
    };
    assert_eq!(spec.images().collect::<Vec<_>>(), ["sha256:1", "sha256:2", "sha256:3"]);
    assert_eq!(AgentSpec::default().images().count(), 0);
}
