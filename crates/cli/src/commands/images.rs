//! `image build`, `ls`, `inspect`, `tag` and `rm`.

use lodge_proto::{
    ApiMethod, BuildImage, ImageBin, ImageBuildParams, ImageDetail, ImageListParams, ImageRef, ImageRemoved,
    ImageTagParams, ImageView, InspectImage, LimitsView, ListImages, PAGE_MAX, RemoveImage, TagImage,
    error_code,
};

use super::results::ResultList;
use super::source::{AgentSource, place};
use super::transfers::{self, TransferKind};
use super::{CommandContext, images_archive, images_diff, map, request_id};
use crate::args::{ImageBuildArgs, ImageCommand};
use crate::failure::CommandFailure;
use crate::follow::DaemonClient;
use crate::render::{ago, now_s, or_dash, pairs, size};
use crate::words::put;

/// Letters of a digest that a listing shows; enough to name it again.
const DIGEST_SHOWN: usize = "sha256:".len() + 12;

pub(super) async fn image(context: &CommandContext, command: ImageCommand) -> Result<(), CommandFailure> {
    match command {
        ImageCommand::Build(args) => build(context, args).await,
        ImageCommand::Ls => list(context).await,
        ImageCommand::Inspect(refs) => inspect(context, refs.images).await,
        ImageCommand::Diff { from, to } => images_diff::diff(context, from, to).await,
        ImageCommand::Tag { image, names } => tag(context, image, names).await,
        ImageCommand::Push(args) => transfers::push(context, TransferKind::Image, args).await,
        ImageCommand::Pull(args) => transfers::pull(context, TransferKind::Image, args).await,
        ImageCommand::Rm(refs) => {
            let params = |image, request_id| ImageRef { image, request_id };
            remove::<RemoveImage>(context, refs.images, params).await
        }
        ImageCommand::Export(args) => images_archive::export(context, args).await,
        ImageCommand::Import(args) => images_archive::import(context, args).await,
    }
}

async fn build(context: &CommandContext, args: ImageBuildArgs) -> Result<(), CommandFailure> {
    let (path, content) = match place(context, &args.source).await? {
        AgentSource::Path(path) => (Some(path), None),
        AgentSource::Content(content) | AgentSource::Image(content) => (None, Some(content)),
    };
    let params = ImageBuildParams {
        path,
        content,
        tags: args.tag,
        build_args: map(args.build_arg),
        request_id: Some(request_id()?),
    };
    let mut daemon = context.daemon().await?;
    // Parents and tools may have to come from registries first.
    context.set_interrupt_note("detached; the daemon continues the build".to_owned());
    let image: ImageView = daemon.call::<BuildImage>(params).await?;
    if context.words.json {
        return context.words.json(&image);
    }
    context.words.print_note(&format!("built {}", image.named.join(", ")));
    print_warnings(context, &mut daemon, &image.digest).await?;
    put(&format!("{}\n", image.digest))
}

/// What is probably a mistake in an image.
pub(super) async fn print_warnings(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    digest: &str,
) -> Result<(), CommandFailure> {
    let params = ImageRef { image: digest.to_owned(), request_id: None };
    match daemon.call::<InspectImage>(params).await {
        Ok(detail) => {
            for warning in &detail.warnings {
                context.words.print_note(&format!("warning: {warning}"));
            }
            Ok(())
        }
        // Another client removed it.
        Err(failure) if failure.is(error_code!("image.not_found")) => Ok(()),
        Err(failure) => Err(failure),
    }
}

async fn list(context: &CommandContext) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut images: Vec<ImageView> = Vec::new();
    let mut after = None;
    loop {
        let page = daemon.call::<ListImages>(ImageListParams { after, limit: Some(PAGE_MAX) }).await?;
        images.extend(page.images);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if context.words.json {
        return context.words.json(&images);
    }
    if context.words.quiet {
        return put(&images.iter().map(|image| format!("{}\n", image.digest)).collect::<String>());
    }
    let now = now_s();
    let mut rows: Vec<Vec<String>> = images.iter().flat_map(|image| rows_of(image, now)).collect();
    rows.sort();
    context.put_table(&["REF", "DIGEST", "SIZE", "AGENTS", "CREATED"], &rows)
}

fn rows_of(image: &ImageView, now: i64) -> Vec<Vec<String>> {
    let row = |reference: String| {
        vec![
            reference,
            short(&image.digest),
            size_of(image),
            image.agents.to_string(),
            ago(&image.created_at, now),
        ]
    };
    names_of(&image.refs).into_iter().map(row).collect()
}

/// What of an image is not here yet cannot be given away or be a parent.
fn size_of(image: &ImageView) -> String {
    let size = size(image.size_bytes);
    if image.complete { size } else { format!("{size}, incomplete") }
}

/// A listing has one line for each name, or one without.
pub(super) fn names_of(refs: &[String]) -> Vec<String> {
    if refs.is_empty() { vec![or_dash(None)] } else { refs.to_vec() }
}

pub(super) fn short(digest: &str) -> String {
    digest.chars().take(DIGEST_SHOWN).collect()
}

async fn inspect(context: &CommandContext, images: Vec<String>) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut batch = ResultList::new(&context.words, images.len());
    for image in images {
        let params = ImageRef { image, request_id: None };
        match daemon.call::<InspectImage>(params).await {
            Ok(detail) => batch.done(&detail, || detail_text(&detail))?,
            Err(failure) => batch.failed(failure)?,
        }
    }
    batch.finish()
}

fn detail_text(detail: &ImageDetail) -> String {
    let image = &detail.image;
    let capabilities = detail.capabilities.iter().map(|capability| {
        let note = if capability.granted { "" } else { " (grants nothing in this release)" };
        format!("{}{note}", capability.name)
    });
    let mut rows: Vec<(&str, String)> = vec![
        ("digest", image.digest.clone()),
        ("refs", image.refs.join(" ")),
        ("name", detail.name.clone().unwrap_or_default()),
        ("from", detail.from.clone().unwrap_or_else(|| "scratch".to_owned())),
        ("model", detail.model.clone().unwrap_or_default()),
        ("runtime", detail.runtime.clone().unwrap_or_else(|| "stock".to_owned())),
        ("exec", detail.exec.join(" ")),
        ("network", [vec![detail.network.mode.clone()], detail.network.allow.clone()].concat().join(" ")),
        ("limits", limits(&detail.limits)),
        ("policy", detail.revival_policy.clone().unwrap_or_default()),
        ("capabilities", capabilities.collect::<Vec<_>>().join(", ")),
        ("portable", portable(detail)),
        ("complete", if image.complete { String::new() } else { "no: not completely pulled yet".to_owned() }),
        ("size", size(image.size_bytes)),
        ("created", image.created_at.clone()),
        ("used by", detail.used_by.join(" ")),
    ];
    rows.extend(detail.contexts.iter().map(|context| {
        ("context", format!("{} {}", context.name, context.description.as_deref().unwrap_or_default()))
    }));
    rows.extend(detail.configs.iter().map(|config| {
        let value = match (&config.value, config.required) {
            (Some(value), _) => format!("={value}"),
            (None, true) => "! (required, not set)".to_owned(),
            (None, false) => " (not set)".to_owned(),
        };
        ("config", format!("{}{value} {}", config.key, config.description.as_deref().unwrap_or_default()))
    }));
    rows.extend(detail.envs.iter().map(|env| ("env", format!("{}={}", env.key, env.value))));
    rows.extend(detail.bins.iter().map(|bin| ("bin", bin_text(bin))));
    rows.extend(detail.files.iter().map(|file| ("file", format!("{} {}", file.name, size(file.bytes)))));
    rows.extend(detail.labels.iter().map(|(key, value)| ("label", format!("{key}={value}"))));
    rows.extend(detail.warnings.iter().map(|warning| ("warning", warning.clone())));
    rows.extend(detail.blobs.iter().map(|blob| {
        let title = blob.title.as_deref().unwrap_or_default();
        ("blob", format!("{} {} {} {title}", short(&blob.digest), size(blob.size_bytes), blob.media_type))
    }));
    rows.retain(|(_, value)| !value.is_empty());
    pairs(&rows)
}

fn bin_text(bin: &ImageBin) -> String {
    let place = if bin.portable { "" } else { " (this host only)" };
    let safe = if bin.safe { " safe" } else { "" };
    let shell = match (bin.shell, bin.portable) {
        (false, _) => "",
        (true, false) => " (SHELL host: runs every program of the host's /usr and /bin)",
        (true, true) => " (SHELL stock: runs the utilities that are built into it)",
    };
    format!("{} {}{place}{safe}{shell} {}", bin.name, bin.source, bin.description)
}

/// What keeps it from running elsewhere.
fn portable(detail: &ImageDetail) -> String {
    if detail.portable {
        return "yes".to_owned();
    }
    let runtime = detail.runtime.iter().filter(|runtime| runtime.starts_with("host:")).map(|_| "the runtime");
    let bins = detail.bins.iter().filter(|bin| !bin.portable).map(|bin| bin.name.as_str());
    let of_host: Vec<&str> = runtime.chain(bins).collect();
    match of_host.as_slice() {
        [] => "no".to_owned(),
        [one] => format!("no: {one} is a program of this host"),
        several => format!("no: {} are programs of this host", several.join(", ")),
    }
}

fn limits(limits: &LimitsView) -> String {
    let bytes = |value: Option<u64>| value.map(size);
    let count = |value: Option<u64>| value.map(|n| n.to_string());
    let all = [
        ("memory", bytes(limits.memory_bytes)),
        ("pids", count(limits.pids)),
        ("cpu-time", limits.cpu_ms.map(format_duration)),
        ("disk", bytes(limits.disk_bytes)),
        ("output", bytes(limits.output_bytes)),
        ("budget-usd", limits.budget_micro_usd.map(dollars)),
        ("budget-tokens", count(limits.budget_tokens)),
        ("context-tokens", count(limits.context_tokens)),
    ];
    let told = all.into_iter().filter_map(|(key, value)| Some(format!("{key} {}", value?)));
    told.collect::<Vec<_>>().join(", ")
}

/// As LIMIT takes it: in the largest unit of which it is a whole number.
fn format_duration(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    match UNITS.iter().find(|(unit, _)| ms > 0 && ms.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", ms / unit),
        None => format!("{ms}ms"),
    }
}

fn dollars(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

async fn tag(context: &CommandContext, image: String, names: Vec<String>) -> Result<(), CommandFailure> {
    let told = names.join(", ");
    let params = ImageTagParams { image, tags: names, request_id: Some(request_id()?) };
    let image = context.daemon().await?.call::<TagImage>(params).await?;
    if context.words.json {
        return context.words.json(&image);
    }
    context.words.print_note(&format!("tagged {told}"));
    put(&format!("{}\n", image.digest))
}

/// Takes names away, or images and tools with them. `params` names one to the method.
pub(super) async fn remove<M: ApiMethod<Reply = ImageRemoved>>(
    context: &CommandContext,
    given: Vec<String>,
    params: impl Fn(String, Option<String>) -> M::Params,
) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut batch = ResultList::new(&context.words, given.len());
    for one in given {
        let params = params(one, Some(request_id()?));
        match daemon.call::<M>(params).await {
            Ok(removed) => {
                if removed.removed {
                    context.words.print_note(&format!("removed {}", short(&removed.digest)));
                }
                batch.done(&removed, || removed_text(&removed))?;
            }
            Err(failure) => batch.failed(failure)?,
        }
    }
    batch.finish()
}

fn removed_text(removed: &ImageRemoved) -> String {
    if removed.untagged.is_empty() {
        return format!("{}\n", removed.digest);
    }
    removed.untagged.iter().map(|reference| format!("{reference}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bin(name: &str, source: &str) -> ImageBin {
        ImageBin {
            name: name.into(),
            source: source.into(),
            portable: !source.starts_with("host:"),
            safe: name == "rg",
            description: "does things".into(),
            usage: None,
            shell: false,
        }
    }

    fn detail(bins: Vec<ImageBin>, runtime: Option<&str>) -> ImageDetail {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let image = serde_json::json!({"digest": digest, "refs": ["x:latest"], "size_bytes": 1, "agents": 0,
            "created_at": "", "exec": [], "parents": 0, "contexts": [], "configs": [], "envs": [], "bins": [],
            "files": [], "labels": {}, "limits": {}, "network": {"mode": "none", "allow": []},
            "capabilities": [], "agentfile": "", "used_by": [], "blobs": [], "complete": true, "portable": true});
        let detail: ImageDetail = serde_json::from_value(image).unwrap();
        let portable = bins.iter().all(|bin| bin.portable) && runtime.is_none();
        ImageDetail { bins, runtime: runtime.map(str::to_owned), portable, ..detail }
    }

    #[test]
    fn what_belongs_to_this_host_only_is_reported() {
        let text = detail_text(&detail(vec![bin("rg", "rg:v1@sha256:12"), bin("sh", "host:sh")], None));
        assert!(text.contains("bin        rg rg:v1@sha256:12 safe does things\n"), "{text}");
        assert!(text.contains("bin        sh host:sh (this host only) does things\n"), "{text}");
        assert!(text.contains("portable   no: sh is a program of this host\n"), "{text}");
        let text = detail_text(&detail(vec![bin("sh", "host:sh")], Some("host:/usr/bin/x")));
        assert!(text.contains("portable   no: the runtime, sh are programs of this host\n"), "{text}");
        assert!(detail_text(&detail(Vec::new(), None)).contains("portable   yes\n"));
    }

    #[test]
    fn sizes_and_sums_are_reported_in_few_letters() {
        assert_eq!((size(0), size(1_023), size(1_024)), ("0 B".into(), "1023 B".into(), "1 KiB".into()));
        assert_eq!((size(5 << 20), size(1_700_000)), ("5 MiB".into(), "1.6 MiB".into()));
        assert_eq!(size(3 << 30), "3 GiB");
        assert_eq!([300_000, 90_000, 1_500, 7_200_000].map(format_duration), ["5m", "90s", "1500ms", "2h"]);
        assert_eq!((dollars(2_500_000), dollars(1)), ("2.5".into(), "0.000001".into()));
        assert_eq!(dollars(3_000_000), "3");
    }
}
