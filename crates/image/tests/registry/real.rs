//! Against Debian's docker-registry, and with skopeo in both directions.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use lodge_image::oci::Descriptor;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::*;

const MISSING: &str = "these tests need docker-registry, skopeo and htpasswd: run `make tools`";
const STARTS_WITHIN: Duration = Duration::from_secs(30);

struct RealRegistry {
    child: Child,
    host: String,
    _dir: TempDir,
}

enum RegistryAccess {
    Everybody,
    /// Named `user`, with the password that `user` of the other tests has.
    OneUser,
}

impl RealRegistry {
    fn start(door: RegistryAccess) -> RealRegistry {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display();
        let mut config = format!(
            "version: 0.1\nlog:\n  accesslog:\n    disabled: true\nstorage:\n  filesystem:\n    rootdirectory: {root}/data\n\
             http:\n  addr: 127.0.0.1:0\n  secret: for-tests\n"
        );
        match door {
            RegistryAccess::Everybody => {}
            RegistryAccess::OneUser => {
                let made = Command::new("htpasswd").args(["-Bbn", "user", SECRET]).output().expect(MISSING);
                std::fs::write(dir.path().join("htpasswd"), made.stdout).unwrap();
                config.push_str(&format!("auth:\n  htpasswd:\n    realm: test\n    path: {root}/htpasswd\n"));
            }
        }
        let file = dir.path().join("config.yml");
        std::fs::write(&file, config).unwrap();
        let mut child = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect(MISSING);
        let log = BufReader::new(child.stderr.take().unwrap());
        let (found, port) = mpsc::channel();
        // It reads to the end, so that the registry never blocks on its own log.
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("listening on 127.0.0.1:") {
                    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
                    found.send(port).ok();
                }
            }
        });
        let port = port.recv_timeout(STARTS_WITHIN).expect("docker-registry does not say where it listens");
        RealRegistry { child, host: format!("127.0.0.1:{port}"), _dir: dir }
    }
}

impl Drop for RealRegistry {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn skopeo(arguments: &[&str]) {
    let mut command = Command::new("skopeo");
    command.args(["--insecure-policy", "copy", "--all", "--preserve-digests"]).args(arguments);
    let done = command.output().expect(MISSING);
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A tar, as images hold them, packed: skopeo looks into layers.
fn layer(name: &str, contents: &[u8]) -> (Vec<u8>, String) {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(contents.len() as u64);
    header.set_mode(0o755);
    header.set_cksum();
    tar.append_data(&mut header, name, contents).unwrap();
    let tar = tar.into_inner().unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&tar).unwrap();
    (packed.finish().unwrap(), lodge_testkit::registry::digest(&tar))
}

/// An index of two platforms, as tools have them, in the store.
fn tool(here: &LocalStore) -> Descriptor {
    let manifests: Vec<_> = ["amd64", "arm64"]
        .into_iter()
        .enumerate()
        .map(|(number, architecture)| {
            let (layer, unpacked) = layer("tool", &bytes(number as u64, 3 << 20));
            let config = written(&json!({
                "os": "linux",
                "architecture": architecture,
                "config": { "Entrypoint": ["/tool"] },
                "rootfs": { "type": "layers", "diff_ids": [unpacked] },
            }));
            let mut manifest = manifest_of(&config, std::slice::from_ref(&layer));
            manifest["config"]["mediaType"] = json!("application/vnd.oci.image.config.v1+json");
            manifest["layers"][0]["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar+gzip");
            manifest.as_object_mut().unwrap().remove("artifactType");
            for blob in [&layer, &config, &written(&manifest)] {
                here.put(blob);
            }
            (architecture, written(&manifest))
        })
        .collect();
    let parts: Vec<_> =
        manifests.iter().map(|(architecture, bytes)| (*architecture, bytes.as_slice())).collect();
    let index = written(&index_of(&parts));
    Descriptor::new(INDEX, here.put(&index), index.len() as u64)
}

/// The descriptors that a layout on the disk names.
fn layout(dir: &Path) -> Vec<Value> {
    let index: Value = serde_json::from_slice(&std::fs::read(dir.join("index.json")).unwrap()).unwrap();
    index["manifests"].as_array().unwrap().clone()
}

#[tokio::test]
async fn what_is_pushed_to_a_real_registry_is_pulled_as_it_was_by_us_and_by_skopeo() {
    let registry = RealRegistry::start(RegistryAccess::Everybody);
    let here = LocalStore::new(quick());
    let image = tool(&here);
    let at = remote(&registry.host, "team/tool:v1");
    let sent = here.push(&image, &at).await.unwrap();
    assert!(sent > 6 << 20, "{sent}");
    assert_eq!(here.push(&image, &at).await.unwrap(), image.size, "only its name");

    let there = LocalStore::new(quick());
    assert_eq!(there.pull(&at).await.unwrap(), image);
    assert_eq!(there.stored(), here.stored());

    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (format!("docker://{}/team/tool:v1", registry.host), dir.path().join("layout"));
    skopeo(&["--src-tls-verify=false", &from, &format!("oci:{}:v1", to.display())]);
    assert_eq!(layout(&to)[0]["digest"], json!(image.digest.to_string()));

    let back = format!("docker://{}/back/tool:v2", registry.host);
    skopeo(&["--dest-tls-verify=false", &format!("oci:{}:v1", to.display()), &back]);
    let again = LocalStore::new(quick());
    assert_eq!(again.pull(&remote(&registry.host, "back/tool:v2")).await.unwrap(), image);
    assert_eq!(again.stored(), here.stored());
}

#[tokio::test]
async fn an_image_that_is_no_program_travels_with_skopeo_too() {
    let registry = RealRegistry::start(RegistryAccess::Everybody);
    let here = LocalStore::new(quick());
    let layers = [b"# Agent\n".to_vec(), bytes(5, 100_000)];
    for blob in [CONFIG, &layers[0], &layers[1]] {
        here.put(blob);
    }
    let manifest = written(&manifest_of(CONFIG, &layers));
    let image = Descriptor::new(MANIFEST, here.put(&manifest), manifest.len() as u64);
    here.push(&image, &remote(&registry.host, "agent:v1")).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("layout");
    let from = format!("docker://{}/agent:v1", registry.host);
    skopeo(&["--src-tls-verify=false", &from, &format!("oci:{}:v1", to.display())]);
    assert_eq!(layout(&to)[0]["digest"], json!(image.digest.to_string()));
    let back = format!("docker://{}/agent:v2", registry.host);
    skopeo(&["--dest-tls-verify=false", &format!("oci:{}:v1", to.display()), &back]);
    let again = LocalStore::new(quick());
    assert_eq!(again.pull(&remote(&registry.host, "agent:v2")).await.unwrap(), image);
}

#[tokio::test]
async fn a_docker_image_of_skopeo_is_pulled_in_its_own_format() {
    let registry = RealRegistry::start(RegistryAccess::Everybody);
    let here = LocalStore::new(quick());
    let image = tool(&here);
    here.push(&image, &remote(&registry.host, "tool:v1")).await.unwrap();
    let (from, to) =
        (format!("docker://{}/tool:v1", registry.host), format!("docker://{}/tool:docker", registry.host));
    let mut command = Command::new("skopeo");
    command.args(["--insecure-policy", "--override-arch", "amd64", "copy", "--format", "v2s2"]);
    command.args(["--src-tls-verify=false", "--dest-tls-verify=false", &from, &to]);
    let done = command.output().expect(MISSING);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let there = LocalStore::new(quick());
    let pulled = there.pull(&remote(&registry.host, "tool:docker")).await.unwrap();
    assert_eq!(pulled.media_type, "application/vnd.docker.distribution.manifest.v2+json");
    there.push(&pulled, &remote(&registry.host, "again:v1")).await.unwrap();
    let again = LocalStore::new(quick());
    assert_eq!(again.pull(&remote(&registry.host, "again:v1")).await.unwrap(), pulled);
}

#[tokio::test]
async fn a_real_registry_with_a_password_lets_in_who_has_it() {
    let registry = RealRegistry::start(RegistryAccess::OneUser);
    let here = LocalStore::with(user(&registry.host), quick());
    let image = tool(&here);
    let at = remote(&registry.host, "private/tool:v1");
    here.push(&image, &at).await.unwrap();
    let there = LocalStore::with(user(&registry.host), quick());
    assert_eq!(there.pull(&at).await.unwrap(), image);
    let stranger = LocalStore::new(quick());
    let error = stranger.pull(&at).await.unwrap_err();
    assert_eq!(error.code(), "registry.denied", "{}", told(&error));
    assert!(stranger.stored().is_empty());
}

#[tokio::test]
async fn a_real_registry_says_what_it_has_not() {
    let registry = RealRegistry::start(RegistryAccess::Everybody);
    let here = LocalStore::new(quick());
    for name in ["nothing:v1", &format!("nothing@sha256:{}", "0".repeat(64))] {
        let error = here.pull(&remote(&registry.host, name)).await.unwrap_err();
        assert_eq!(error.code(), "registry.not_found", "{}", told(&error));
    }
}
