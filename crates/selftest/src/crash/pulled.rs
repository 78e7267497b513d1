//! Agents that come from a registry, with a tool that is an image, too.

use std::time::Instant;

use lodge_proto::{
    AgentCreateParams, BinBuildParams, BinProgram, BinRef, BuildBin, BuildImage, ImageBuildParams,
    ImagePushParams, ImageRef, PushImage, RemoveBin, RemoveImage,
};

use super::report::BrokenPromise;
use super::world::{CrashWorld, LOOK};
use crate::lodge::PATIENCE;
use crate::mock::MockRegistry;
use crate::trouble::{Trouble, refused, system};

/// What the tool of such an agent is called.
const TOOL: &str = "probe";

impl CrashWorld {
    /// What creates an agent of which this host has nothing: its image and its tool are in a registry alone.
    pub async fn pulled_params(&mut self) -> Result<AgentCreateParams, Trouble> {
        if self.registry.is_none() {
            let registry = MockRegistry::start().await.map_err(system("start a registry"))?;
            self.registry = Some(registry);
        }
        let host = self.registry.as_ref().map(MockRegistry::host).unwrap_or_default();
        let made = self.agent_params()?;
        let (name, dir) = (made.name.unwrap_or_default(), made.path.unwrap_or_default());
        let (image, tool) = (format!("{host}/crash/{name}:latest"), format!("{TOOL}-{name}:latest"));
        let program = format!("{dir}/{TOOL}");
        let write = |path: &str, text: &str| std::fs::write(path, text).map_err(system("write a program"));
        write(&program, &format!("#!/bin/sh\n# {name}\n"))?;
        let agentfile = format!("{dir}/Agentfile");
        let text = std::fs::read_to_string(&agentfile).map_err(system("read an Agentfile"))?;
        write(&agentfile, &format!("{text}BIN {TOOL} {tool}\n"))?;
        let programs =
            vec![BinProgram { platform: format!("linux/{}", std::env::consts::ARCH), path: program }];
        let bin = BinBuildParams {
            name: TOOL.into(),
            programs,
            tags: vec![tool.clone()],
            ..BinBuildParams::default()
        };
        let build =
            ImageBuildParams { path: Some(dir), tags: vec![image.clone()], ..ImageBuildParams::default() };
        let push = ImagePushParams { image: image.clone(), ..ImagePushParams::default() };
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        let bin = client.call::<BuildBin>(&bin).await.map_err(refused("build a tool"))?;
        let built = client.call::<BuildImage>(&build).await.map_err(refused("build an image"))?;
        client.call::<PushImage>(&push).await.map_err(refused("push an image"))?;
        let named = ImageRef { image: image.clone(), ..ImageRef::default() };
        client.call::<RemoveImage>(&named).await.map_err(refused("remove an image"))?;
        let named = BinRef { bin: tool, ..BinRef::default() };
        client.call::<RemoveBin>(&named).await.map_err(refused("remove a tool"))?;
        for gone in [bin.digest, built.digest] {
            self.until_collected(&gone).await;
        }
        Ok(AgentCreateParams {
            image: Some(image),
            name: Some(name.clone()),
            request_id: Some(format!("create-{name}")),
            ..AgentCreateParams::default()
        })
    }

    /// Waits until nothing of an image is left: what is here is not pulled.
    async fn until_collected(&mut self, digest: &str) {
        let hex = digest.strip_prefix("sha256:").unwrap_or_default();
        let path = self.lodge.home().join("registry/blobs/sha256").join(hex);
        let until = Instant::now() + PATIENCE;
        while path.exists() {
            if Instant::now() >= until {
                return self
                    .report
                    .add(BrokenPromise::Wrong, format!("{digest} was removed and is still there"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
