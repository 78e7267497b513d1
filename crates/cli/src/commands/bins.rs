//! `bin build`, `ls`, `inspect` and `rm`.

use std::path::PathBuf;

use lodge_proto::{
    BinBuildParams, BinDetail, BinListParams, BinProgram, BinRef, BinView, BuildBin, InspectBin, ListBins,
    PAGE_MAX, RemoveBin,
};

use super::images::{names_of, remove, short};
use super::results::ResultList;
use super::source::utf8;
use super::stdin::{read_bytes, read_stdin};
use super::transfers::{self, TransferKind};
use super::{CommandContext, map, request_id};
use crate::args::{BinBuildArgs, BinCommand};
use crate::failure::{CommandFailure, io_words};
use crate::parse::ProgramArg;
use crate::render::{cut, one_line, pairs, size};
use crate::words::put;

/// Platforms of a tool in a list.
const PLATFORMS_SHOWN: usize = 4;
/// Letters of a label, with its key. `--json` has all of it.
const LABEL_SHOWN: usize = 160;

pub(super) async fn bin(context: &CommandContext, command: BinCommand) -> Result<(), CommandFailure> {
    match command {
        BinCommand::Build(args) => build(context, args).await,
        BinCommand::Ls => list(context).await,
        BinCommand::Inspect(refs) => inspect(context, refs.bins).await,
        BinCommand::Push(args) => transfers::push(context, TransferKind::Bin, args).await,
        BinCommand::Pull(args) => transfers::pull(context, TransferKind::Bin, args).await,
        BinCommand::Rm(refs) => {
            let params = |bin, request_id| BinRef { bin, request_id };
            remove::<RemoveBin>(context, refs.bins, params).await
        }
    }
}

async fn build(context: &CommandContext, args: BinBuildArgs) -> Result<(), CommandFailure> {
    let usage = match args.usage {
        Some(file) => Some(usage_text(file).await?),
        None => None,
    };
    // Files of another machine cannot be looked at.
    let here: Vec<PathBuf> = match context.address.is_this_machine() {
        true => args.programs.iter().map(|one| one.path.clone()).collect(),
        false => Vec::new(),
    };
    let params = BinBuildParams {
        name: args.name,
        programs: args.programs.iter().map(|one| program(context, one)).collect::<Result<_, _>>()?,
        description: args.description,
        usage,
        labels: map(args.label),
        tags: args.tag,
        request_id: Some(request_id()?),
    };
    let bin = context.daemon().await?.call::<BuildBin>(params).await?;
    if context.words.json {
        return context.words.json(&bin);
    }
    context.words.print_note(&format!("built {} for {}", bin.named.join(", "), bin.platforms.join(", ")));
    warn_other_platform(context, &bin);
    for needs in here.iter().filter_map(|path| crate::needs::of(path)) {
        context.words.print_note(&needs);
    }
    put(&format!("{}\n", bin.digest))
}

/// A tool that is of no use on the daemon's host is most likely a slip.
pub(super) fn warn_other_platform(context: &CommandContext, bin: &BinView) {
    if !bin.runs_here {
        let platforms = bin.platforms.join(", ");
        context.words.print_note(&format!("it does not run on this host: it is for {platforms} only"));
    }
}

/// The daemon reads the program, from its own host and with another working directory.
fn program(context: &CommandContext, given: &ProgramArg) -> Result<BinProgram, CommandFailure> {
    let cannot = || CommandFailure::usage(format!("`{}` is not a program", given.path.display()));
    let path = if context.address.is_this_machine() {
        std::fs::canonicalize(&given.path).map_err(|cause| cannot().because(io_words(&cause)))?
    } else if given.path.is_absolute() {
        given.path.clone()
    } else {
        return Err(cannot()
            .because("the daemon runs on another machine, where relative paths mean nothing")
            .hint("copy it there and give its absolute path"));
    };
    Ok(BinProgram { platform: given.platform.clone(), path: utf8(&path)? })
}

async fn usage_text(file: String) -> Result<String, CommandFailure> {
    if file == "-" {
        return read_stdin("the usage").await;
    }
    let what = format!("`{file}`");
    let bytes = read_bytes(&what, move || std::fs::File::open(file)).await?;
    String::from_utf8(bytes)
        .map_err(|_| CommandFailure::refused(format!("could not read {what}")).because("it is not UTF-8"))
}

async fn list(context: &CommandContext) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut bins: Vec<BinView> = Vec::new();
    let mut after = None;
    loop {
        let page = daemon.call::<ListBins>(BinListParams { after, limit: Some(PAGE_MAX) }).await?;
        bins.extend(page.bins);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if context.words.json {
        return context.words.json(&bins);
    }
    if context.words.quiet {
        return put(&bins.iter().map(|bin| format!("{}\n", bin.digest)).collect::<String>());
    }
    let mut rows: Vec<Vec<String>> = bins.iter().flat_map(rows_of).collect();
    rows.sort();
    context.put_table(&["REF", "NAME", "PLATFORMS", "SIZE", "USED", "DESCRIPTION"], &rows)
}

fn rows_of(bin: &BinView) -> Vec<Vec<String>> {
    let row = |reference: String| {
        vec![
            if bin.refs.is_empty() { short(&bin.digest) } else { reference },
            bin.name.clone(),
            few(&bin.platforms),
            size(bin.size_bytes),
            bin.used.to_string(),
            bin.description.clone(),
        ]
    };
    names_of(&bin.refs).into_iter().map(row).collect()
}

/// The first few platforms, and the number of the others.
fn few(platforms: &[String]) -> String {
    let more = platforms.len().saturating_sub(PLATFORMS_SHOWN);
    let shown = platforms[..platforms.len() - more].join(",");
    if more > 0 { format!("{shown},+{more}") } else { shown }
}

async fn inspect(context: &CommandContext, bins: Vec<String>) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut batch = ResultList::new(&context.words, bins.len());
    for bin in bins {
        let params = BinRef { bin, request_id: None };
        match daemon.call::<InspectBin>(params).await {
            Ok(detail) => batch.done(&detail, || detail_text(&detail))?,
            Err(failure) => batch.failed(failure)?,
        }
    }
    batch.finish()
}

fn detail_text(detail: &BinDetail) -> String {
    let bin = &detail.bin;
    let here = if bin.runs_here { "yes" } else { "no: it has no program for this platform" };
    let mut rows: Vec<(&str, String)> = vec![
        ("digest", bin.digest.clone()),
        ("refs", bin.refs.join(" ")),
        ("name", bin.name.clone()),
        ("description", bin.description.clone()),
        ("runs here", here.to_owned()),
        ("size", size(bin.size_bytes)),
        ("used", bin.used.to_string()),
        ("created", bin.created_at.clone()),
    ];
    rows.extend(detail.programs.iter().map(|program| {
        let (path, digest) = (&program.path, short(&program.digest));
        ("program", format!("{} {path} {} {digest}", program.platform, size(program.size_bytes)))
    }));
    let label = |(key, value)| cut(&one_line(&format!("{key}={value}")), LABEL_SHOWN);
    rows.extend(detail.labels.iter().map(|named| ("label", label(named))));
    rows.retain(|(_, value)| !value.is_empty());
    let usage = detail.usage.as_deref().map(|usage| format!("usage\n{}", indented(usage)));
    pairs(&rows) + &usage.unwrap_or_default()
}

fn indented(text: &str) -> String {
    text.trim_end().lines().map(|line| format!("  {line}").trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(refs: &[&str], runs_here: bool) -> BinView {
        BinView {
            digest: format!("sha256:{}", "ab".repeat(32)),
            refs: refs.iter().map(|name| (*name).to_owned()).collect(),
            named: Vec::new(),
            name: "rg".into(),
            description: "Searches files".into(),
            platforms: vec!["linux/amd64".into(), "linux/arm/v7".into()],
            runs_here,
            size_bytes: 5 << 20,
            used: 2,
            created_at: "2025-01-01T00:00:00.000Z".into(),
        }
    }

    #[test]
    fn a_tool_has_a_line_for_each_name_and_one_by_its_digest_without() {
        let row = |reference: &str| {
            [reference, "rg", "linux/amd64,linux/arm/v7", "5 MiB", "2", "Searches files"]
                .map(str::to_owned)
                .to_vec()
        };
        assert_eq!(
            rows_of(&view(&["rg:latest", "r.example/rg:v1"], true)),
            [row("rg:latest"), row("r.example/rg:v1")]
        );
        assert_eq!(rows_of(&view(&[], true)), [row("sha256:abababababab")]);
    }

    #[test]
    fn many_platforms_are_counted_and_a_long_label_is_one_short_line() {
        let names: Vec<String> = (0..6).map(|n| format!("os/{n}")).collect();
        assert_eq!(few(&names[..4]), "os/0,os/1,os/2,os/3");
        assert_eq!(few(&names), "os/0,os/1,os/2,os/3,+2");
        let labels = [("k".to_owned(), format!("a\n{}", "b".repeat(1 << 20)))].into();
        let detail = BinDetail { bin: view(&[], true), usage: None, labels, programs: Vec::new() };
        let text = detail_text(&detail);
        let label = text.lines().find(|line| line.starts_with("label")).unwrap();
        assert!(label.contains("k=a b") && label.ends_with('…') && text.len() < 1_000, "{text}");
    }

    #[test]
    fn a_tool_says_when_it_does_not_run_here_and_shows_its_usage() {
        let detail = BinDetail {
            bin: view(&["rg:latest"], false),
            usage: Some("# rg\n\nrg PATTERN\n".into()),
            labels: [("k".to_owned(), "v".to_owned())].into(),
            programs: Vec::new(),
        };
        let text = detail_text(&detail);
        assert!(text.contains("runs here     no: it has no program for this platform\n"), "{text}");
        assert!(text.ends_with("label         k=v\nusage\n  # rg\n\n  rg PATTERN\n"), "{text}");
    }
}
