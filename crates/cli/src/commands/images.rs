//! `image build`, `ls`, `inspect` and `rm`.

use lodge_proto::{
    ImageBuildParams, ImageDetail, ImageList, ImageListParams, ImageRef, ImageRemoved, ImageView, LimitsView,
    PAGE_MAX,
};

use super::agents::Batch;
use super::source::{Source, place};
use super::{Context, map, request_id};
use crate::args::{ImageBuildArgs, ImageCommand};
use crate::failure::Failure;
use crate::render::{ago, now_s, or_dash, pairs, size};
use crate::words::put;

/// Letters of a digest that a listing shows; enough to name it again.
const DIGEST_SHOWN: usize = "sha256:".len() + 12;

pub(super) async fn image(context: &Context, command: ImageCommand) -> Result<(), Failure> {
    match command {
        ImageCommand::Build(args) => build(context, args).await,
        ImageCommand::Ls => list(context).await,
        ImageCommand::Inspect { images } => inspect(context, images).await,
        ImageCommand::Rm { images } => remove(context, images).await,
    }
}

async fn build(context: &Context, args: ImageBuildArgs) -> Result<(), Failure> {
    let (path, content) = match place(context, &args.source).await? {
        Source::Path(path) => (Some(path), None),
        Source::Content(content) | Source::Image(content) => (None, Some(content)),
    };
    let params = ImageBuildParams {
        path,
        content,
        tags: args.tag,
        build_args: map(args.build_arg),
        request_id: Some(request_id()?),
    };
    let mut daemon = context.daemon().await?;
    let image: ImageView = daemon.call("image/build", params).await?;
    if context.words.json {
        return context.words.json(&image);
    }
    context.words.say(&format!("built {}", image.refs.join(", ")));
    put(&format!("{}\n", image.digest))
}

async fn list(context: &Context) -> Result<(), Failure> {
    let mut daemon = context.daemon().await?;
    let mut images: Vec<ImageView> = Vec::new();
    let mut after = None;
    loop {
        let page: ImageList =
            daemon.call("image/list", ImageListParams { after, limit: Some(PAGE_MAX) }).await?;
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

/// One line for each of its names, or one without.
fn rows_of(image: &ImageView, now: i64) -> Vec<Vec<String>> {
    let nameless = String::new();
    let refs: Vec<&String> =
        if image.refs.is_empty() { vec![&nameless] } else { image.refs.iter().collect() };
    let row = |reference: &String| {
        vec![
            or_dash(Some(reference)),
            short(&image.digest),
            size(image.size_bytes),
            image.agents.to_string(),
            ago(&image.created_at, now),
        ]
    };
    refs.into_iter().map(row).collect()
}

fn short(digest: &str) -> String {
    digest.chars().take(DIGEST_SHOWN).collect()
}

async fn inspect(context: &Context, images: Vec<String>) -> Result<(), Failure> {
    let mut daemon = context.daemon().await?;
    let mut batch = Batch::new(&context.words, images.len());
    for image in images {
        let params = ImageRef { image, request_id: None };
        match daemon.call::<_, ImageDetail>("image/inspect", params).await {
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
    rows.extend(detail.bins.iter().map(|bin| {
        let safe = if bin.safe { " safe" } else { "" };
        ("bin", format!("{} {}{safe} {}", bin.name, bin.source, bin.description))
    }));
    rows.extend(detail.files.iter().map(|file| ("file", format!("{} {}", file.name, size(file.bytes)))));
    rows.extend(detail.labels.iter().map(|(key, value)| ("label", format!("{key}={value}"))));
    rows.retain(|(_, value)| !value.is_empty());
    pairs(&rows)
}

fn limits(limits: &LimitsView) -> String {
    let bytes = |value: Option<u64>| value.map(size);
    let count = |value: Option<u64>| value.map(|n| n.to_string());
    let all = [
        ("memory", bytes(limits.memory_bytes)),
        ("pids", count(limits.pids)),
        ("cpu-time", limits.cpu_ms.map(|ms| format!("{ms} ms"))),
        ("disk", bytes(limits.disk_bytes)),
        ("output", bytes(limits.output_bytes)),
        ("budget-usd", limits.budget_micro_usd.map(dollars)),
        ("budget-tokens", count(limits.budget_tokens)),
        ("context-tokens", count(limits.context_tokens)),
    ];
    let told = all.into_iter().filter_map(|(key, value)| Some(format!("{key} {}", value?)));
    told.collect::<Vec<_>>().join(", ")
}

fn dollars(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

async fn remove(context: &Context, images: Vec<String>) -> Result<(), Failure> {
    let mut daemon = context.daemon().await?;
    let mut batch = Batch::new(&context.words, images.len());
    for image in images {
        let params = ImageRef { image, request_id: Some(request_id()?) };
        match daemon.call::<_, ImageRemoved>("image/remove", params).await {
            Ok(removed) => {
                if removed.removed {
                    context.words.say(&format!("removed {}", short(&removed.digest)));
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

    #[test]
    fn sizes_and_sums_are_told_in_few_letters() {
        assert_eq!((size(0), size(1_023), size(1_024)), ("0 B".into(), "1023 B".into(), "1 KiB".into()));
        assert_eq!(size(5 << 20), "5 MiB");
        assert_eq!((dollars(2_500_000), dollars(1)), ("2.5".into(), "0.000001".into()));
        assert_eq!(dollars(3_000_000), "3");
    }
}
