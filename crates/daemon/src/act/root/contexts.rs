//! The sections of the system prompt that describe an agent and its environment. Every start writes them again, so that they
//! show all changes.

use lodge_core::record::{ImageRecord, LimitsRecord, MountRecord, NetworkMode};
use lodge_engine::{DESCRIPTION_LABEL, SandboxPlan};

use super::configured_env;
use super::mask;
use crate::act::layout::Layout;

/// The names of Lodge's own sections.
const AGENT: &str = "AGENT";
const WORKSPACE: &str = "WORKSPACE";
const MOUNTS: &str = "MOUNTS";
/// Longer values are cut here. Programs get the full value.
const VALUE_CHARS_MAX: usize = 200;

/// One section of the system prompt, and the file that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::act) struct Section {
    pub name: String,
    pub description: Option<String>,
    pub text: String,
}

impl Section {
    /// Its name below `etc/context`.
    pub(in crate::act) fn file(&self) -> String {
        format!("{}.md", self.name)
    }

    fn ours(name: &str, text: String) -> Section {
        Section { name: name.to_owned(), description: None, text }
    }
}

/// Every section of the system prompt, in order. An image cannot have a section with one of Lodge's names.
pub(in crate::act) fn contexts(layout: &Layout, plan: &SandboxPlan, image: &ImageRecord) -> Vec<Section> {
    let mut all = vec![
        Section::ours(AGENT, about_agent(layout, plan, image)),
        Section::ours(WORKSPACE, about_workspace(layout)),
    ];
    if !plan.settings.mounts.is_empty() {
        all.push(Section::ours(MOUNTS, about_mounts(layout, &plan.settings.mounts)));
    }
    all.extend(image.contexts.iter().map(|context| Section {
        name: context.name.clone(),
        description: context.description.clone(),
        text: context.text.clone(),
    }));
    all
}

fn about_agent(layout: &Layout, plan: &SandboxPlan, image: &ImageRecord) -> String {
    let mut text = format!("You are the agent `{}` (id `{}`).\n", plan.name, plan.agent);
    let described = plan.settings.description.as_ref().or_else(|| image.labels.get(DESCRIPTION_LABEL));
    if let Some(description) = described {
        text.push_str(&format!("\n{}\n", description.trim()));
    }
    text.push_str(&format!(
        "\nYou were made from the image `{}`; your model is `{}`.\n",
        plan.image, plan.settings.model
    ));
    text.push_str(&about_tools(plan));
    text.push_str(&about_files(layout, image));
    text.push_str(&about_env(plan, image));
    text.push_str(&about_capabilities(plan));
    text.push_str(&about_limits(plan.settings.limits));
    text.push_str(&about_network(plan));
    text
}

fn about_tools(plan: &SandboxPlan) -> String {
    if plan.settings.tools.is_empty() {
        return "\n## Tools\n\nYou have no tools.\n".to_owned();
    }
    let mut text = "\n## Tools\n\nYour tools are these programs and no others. Call one with \
        `{\"args\": [\"…\"], \"stdin\": \"…\"}`: every argument reaches the program as it is, without a shell between.\n\n"
        .to_owned();
    for tool in &plan.settings.tools {
        text.push_str(&format!("- `{}`: {}\n", tool.name, one_line(&tool.description)));
    }
    text
}

fn about_files(layout: &Layout, image: &ImageRecord) -> String {
    let rows = image.files.iter().map(|file| {
        let path = layout.path("etc/data").join(&file.name).display().to_string();
        vec![code(&path), cell(file.description.as_deref().unwrap_or_default())]
    });
    table("Files that came with you", &["file", "what it is"], rows.collect())
}

fn about_env(plan: &SandboxPlan, image: &ImageRecord) -> String {
    let rows = configured_env(plan, image).into_iter().map(|var| {
        let value = mask::shown(&var.key, &var.value);
        vec![code(&var.key), code(value), cell(var.description.as_deref().unwrap_or_default())]
    });
    table("Environment", &["variable", "value", "what it is for"], rows.collect())
}

fn about_capabilities(plan: &SandboxPlan) -> String {
    if plan.settings.capabilities.is_empty() {
        return String::new();
    }
    let names: Vec<String> = plan.settings.capabilities.iter().map(|name| code(name)).collect();
    format!("\n## Capabilities\n\nDeclared, and without tools in this release: {}.\n", names.join(", "))
}

fn about_limits(limits: LimitsRecord) -> String {
    let lines: Vec<String> = [
        limits.memory_bytes.map(|max| format!("memory: {} for all your programs together", bytes(max))),
        limits.pids.map(|max| format!("processes: {max} at the same time")),
        limits.cpu_ms.map(|max| format!("CPU time: {} for one program", span(max))),
        limits.disk_bytes.map(|max| format!("disk: {} for all that you write", bytes(max))),
        limits
            .output_bytes
            .map(|max| format!("output: {} of one program, stdout and stderr together", bytes(max))),
    ]
    .into_iter()
    .flatten()
    .map(|line| format!("- {line}\n"))
    .collect();
    if lines.is_empty() {
        return String::new();
    }
    format!(
        "\n## Limits\n\nA program that goes beyond one of these is ended, and you are told.\n\n{}",
        lines.concat()
    )
}

fn about_network(plan: &SandboxPlan) -> String {
    let words = match plan.settings.network.as_ref().map(|network| (network.reach(), &network.allow)) {
        None | Some((NetworkMode::Host, _)) => "Programs have the network of the host.".to_owned(),
        Some((NetworkMode::None, _)) => "Programs have no network.".to_owned(),
        Some((NetworkMode::Public, _)) => {
            "Programs reach the internet by TCP and names by DNS. They reach neither this host nor private networks."
                .to_owned()
        }
        Some((NetworkMode::Lan, _)) => {
            "Programs reach the internet and private networks by TCP and names by DNS. They do not reach this host."
                .to_owned()
        }
        Some((NetworkMode::List, allow)) => {
            let places: Vec<String> = allow.iter().map(|place| code(place)).collect();
            format!(
                "Programs reach these places by TCP and no others: {}.",
                places.join(", ")
            )
        }
    };
    format!("\n## Network\n\n{words}\n")
}

fn about_workspace(layout: &Layout) -> String {
    let at = |below: &str| layout.path(below).display().to_string();
    format!(
        "Your files:\n\n\
         | directory | what it is |\n|---|---|\n\
         | `{}` | yours: programs start here; kept until you are removed |\n\
         | `{}` | your `HOME`, kept |\n\
         | `{}` | data that you want to keep |\n\
         | `{}` | scratch, wiped at every start |\n\
         | `{}` | about you, read-only: `agent.yaml`, `Agentfile`, `context/`, `data/` |\n\
         | `{}` | your tools, read-only |\n\n\
         - Use absolute paths, or paths relative to the workspace.\n\
         - Write in the first four, and in what is mounted to be written; all the rest is refused.\n",
        at("workspace"),
        at("home"),
        at("var/lib"),
        at("tmp"),
        at("etc"),
        layout.bins().display(),
    )
}

fn about_mounts(layout: &Layout, mounts: &[MountRecord]) -> String {
    let mut text = "Directories and files of the host that you can use:\n\n".to_owned();
    for mount in mounts {
        let mode = if mount.read_only { "read-only" } else { "read and write" };
        let what =
            mount.description.as_deref().map(|what| format!(": {}", one_line(what))).unwrap_or_default();
        text.push_str(&format!("- `{}` ({mode}){what}\n", layout.path(&mount.target).display()));
    }
    text
}

/// A section with a table. Empty if the table has no rows.
fn table(title: &str, header: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let header: Vec<String> = header.iter().map(|name| (*name).to_owned()).collect();
    let rule = vec!["---".to_owned(); header.len()];
    let rows: String = rows.iter().map(|row| line(row)).collect();
    format!("\n## {title}\n\n{}{}{rows}", line(&header), line(&rule))
}

/// Escapes untrusted text so that it stays in its table cell.
fn cell(text: &str) -> String {
    let mut shown: String = one_line(text).replace('|', "\\|").chars().take(VALUE_CHARS_MAX).collect();
    if text.chars().count() > VALUE_CHARS_MAX {
        shown.push('…');
    }
    shown
}

fn code(text: &str) -> String {
    // A backtick would end the code span.
    format!("`{}`", cell(text).replace('`', "'"))
}

fn one_line(text: &str) -> String {
    text.trim().replace('\r', "").replace('\n', "\\n").replace(char::is_control, " ")
}

fn bytes(count: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let fits = UNITS.iter().find(|(unit, _)| count >= *unit && count.is_multiple_of(*unit));
    fits.map_or_else(|| format!("{count} bytes"), |(unit, name)| format!("{} {name}", count / unit))
}

fn span(ms: u64) -> String {
    if ms.is_multiple_of(1_000) { format!("{} s", ms / 1_000) } else { format!("{ms} ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_stays_in_its_cell() {
        assert_eq!(cell("a | b\nc"), "a \\| b\\nc");
        assert_eq!(code("a`b"), "`a'b`");
        assert_eq!(cell(&"x".repeat(300)), format!("{}…", "x".repeat(200)));
        assert_eq!(table("Nothing", &["a"], Vec::new()), "");
    }

    #[test]
    fn sizes_and_spans_use_the_largest_exact_unit() {
        assert_eq!([bytes(512 << 20), bytes(1 << 30), bytes(1_000)], ["512 MiB", "1 GiB", "1000 bytes"]);
        assert_eq!([span(60_000), span(1_500)], ["60 s", "1500 ms"]);
    }
}
