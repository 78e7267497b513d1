//! `init`: writes an Agentfile from a template, and prints what to run next.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::models::{self, DetectedProvider, ModelOffer};
use super::templates::{self, ChosenModel, RenderedTemplate, SCRIPT_FILE};
use super::{CommandContext, can_ask, read_line};
use crate::args::{InitArgs, TemplateArg};
use crate::failure::{CommandFailure, io_words};
use crate::render::quoted;
use crate::words::{prompt_for, put};

const AGENTFILE: &str = "Agentfile";
const TEMPLATES: [(TemplateArg, &str, &str); 4] = [
    (TemplateArg::Coder, "coder", "reads, changes and tests a project"),
    (TemplateArg::Reviewer, "reviewer", "reviews changes and changes nothing"),
    (TemplateArg::Ops, "ops", "looks into logs and services"),
    (TemplateArg::Blank, "blank", "no tools"),
];

/// What was written, for scripts.
#[derive(Serialize)]
struct InitReport<'a> {
    path: String,
    template: &'static str,
    name: &'a str,
    model: &'a str,
    files: Vec<String>,
    providers: Vec<ReportedProvider>,
    /// Why it is not known whether the provider has the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    model_problem: Option<String>,
    /// Commands, in order.
    next: &'a [String],
}

/// An API key in the environment.
#[derive(Serialize)]
struct ReportedProvider {
    name: &'static str,
    variable: &'static str,
    /// Whether the daemon has a provider of that name now.
    stored: bool,
}

pub(super) async fn init(context: &CommandContext, args: InitArgs) -> Result<(), CommandFailure> {
    // Before anything is asked or stored.
    refuse_existing(&args, &[AGENTFILE])?;
    let name = name_of(&args)?;
    check_model(&args)?;
    let template = match args.template {
        Some(template) => template,
        None if can_ask(&context.words) => ask_template().await?,
        None => TemplateArg::Coder,
    };
    let word = word_of(template);
    let detected = models::detect(|variable| std::env::var_os(variable));
    let Providers { model, unlisted, reported, commands } = providers(context, &args, &detected).await?;
    let next = format!("lodge agent update {name} --model work/MODEL");
    let rendered = templates::render(template, &name, &model, &next);
    let files = write_files(&args, &rendered)?;
    let next: Vec<String> = commands.into_iter().chain([run_command(template, &args.dir)]).collect();
    if context.words.json {
        let path = files.first().cloned().unwrap_or_default();
        let model = model.name();
        return context.words.json(&InitReport {
            path,
            template: word,
            name: &name,
            model,
            files,
            providers: reported,
            model_problem: unlisted.map(|unlisted| unlisted.problem),
            next: &next,
        });
    }
    if context.words.quiet {
        return put(&files.iter().take(1).map(|file| format!("{file}\n")).collect::<String>());
    }
    for file in &files {
        context.words.print_note(&format!("wrote {file}"));
    }
    print_model(
        context,
        &format!("`{name}`, from the template {word}, is an agent"),
        &model,
        unlisted.as_ref(),
    );
    context.words.print_note(match template {
        TemplateArg::Coder | TemplateArg::Reviewer => "next, in the directory of the project:",
        TemplateArg::Ops | TemplateArg::Blank => "next:",
    });
    put(&next.iter().map(|command| format!("{command}\n")).collect::<String>())
}

/// Says which model the agent has, and what is left to edit.
fn print_model(context: &CommandContext, agent: &str, model: &ChosenModel, unlisted: Option<&UnlistedModel>) {
    let words = &context.words;
    match (model, unlisted) {
        (ChosenModel::Scripted, _) => words.print_note(&format!(
            "{agent} with a scripted model, which cannot think: add a provider with `lodge provider add work --kind anthropic \
             --api-key -` (or openai, gemini, ollama), then change the line MODEL"
        )),
        (ChosenModel::Real(model), None) => {
            words.print_note(&format!("{agent} with the model {model}; change the line MODEL for another"));
        }
        (ChosenModel::Real(model), Some(UnlistedModel { problem, is_placeholder })) => {
            words.print_note(&format!("its model could not be looked up: {problem}"));
            words.print_note(&if *is_placeholder {
                format!("{agent} without a model: replace {model} in the line MODEL of its Agentfile")
            } else {
                format!("{agent} with the model {model}, unless you change the line MODEL of its Agentfile")
            });
        }
    }
}

fn word_of(template: TemplateArg) -> &'static str {
    match template {
        TemplateArg::Coder => "coder",
        TemplateArg::Reviewer => "reviewer",
        TemplateArg::Ops => "ops",
        TemplateArg::Blank => "blank",
    }
}

/// The agent's name: as given, or from the directory.
fn name_of(args: &InitArgs) -> Result<String, CommandFailure> {
    match &args.name {
        Some(name) if templates::agent_name(name).as_deref() == Some(name) => Ok(name.clone()),
        Some(name) => Err(CommandFailure::usage(format!("`{name}` cannot be the name of an agent"))
            .hint("use lower-case letters, digits, `.`, `_` and `-`, with a letter or digit at both ends")),
        None => {
            let dir = std::path::absolute(&args.dir)
                .ok()
                .and_then(|dir| fs::canonicalize(&dir).or(Ok::<_, io::Error>(dir)).ok());
            let name =
                dir.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
            Ok(name.and_then(|name| templates::agent_name(&name)).unwrap_or_else(|| "agent".to_owned()))
        }
    }
}

/// The model becomes a line of the Agentfile, so it must be one word.
fn check_model(args: &InitArgs) -> Result<(), CommandFailure> {
    let is_model = |model: &str| {
        let (provider, name) = model.split_once('/').unwrap_or_default();
        let is_word =
            |part: &str| !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || c.is_control());
        is_word(provider) && is_word(name)
    };
    match &args.model {
        Some(model) if !is_model(model) => Err(CommandFailure::usage(format!("`{model}` cannot be a model"))
            .hint("write PROVIDER/MODEL; `lodge provider ls` lists providers")),
        Some(_) | None => Ok(()),
    }
}

async fn ask_template() -> Result<TemplateArg, CommandFailure> {
    for (number, (_, word, what)) in TEMPLATES.iter().enumerate() {
        prompt_for(&format!("  {}  {word:9} {what}\n", number + 1));
    }
    loop {
        prompt_for("Which kind of agent? [1] ");
        let Some(line) = read_line().await? else {
            return Err(
                CommandFailure::usage("no kind of agent was chosen").hint("name one with `--template`")
            );
        };
        let answer = line.trim();
        if answer.is_empty() {
            return Ok(TemplateArg::Coder);
        }
        let chosen = TEMPLATES.iter().enumerate().find(|(number, (_, word, _))| {
            answer.eq_ignore_ascii_case(word) || answer == (number + 1).to_string()
        });
        if let Some((_, (template, _, _))) = chosen {
            return Ok(*template);
        }
        prompt_for(&format!("`{answer}` is none of these. "));
    }
}

/// The model of the agent, and what became of the keys in the environment.
struct Providers {
    model: ChosenModel,
    unlisted: Option<UnlistedModel>,
    reported: Vec<ReportedProvider>,
    /// Commands that store the keys that are not stored yet.
    commands: Vec<String>,
}

/// A model that its provider did not list.
struct UnlistedModel {
    problem: String,
    /// Whether the model is a word to be replaced.
    is_placeholder: bool,
}

async fn providers(
    context: &CommandContext,
    args: &InitArgs,
    detected: &[DetectedProvider],
) -> Result<Providers, CommandFailure> {
    let mut found = Providers {
        model: ChosenModel::Scripted,
        unlisted: None,
        reported: Vec::new(),
        commands: Vec::new(),
    };
    let mut daemon = match context.daemon().await {
        Ok(daemon) => daemon,
        Err(failure) if args.add_providers => return Err(failure),
        // An Agentfile can be written without a daemon.
        Err(_) => {
            let model = detected.iter().find_map(DetectedProvider::model);
            found.model = given(args).or(model).unwrap_or(ChosenModel::Scripted);
            for provider in detected {
                found.commands.push(provider.command());
                found.reported.push(ReportedProvider {
                    name: provider.name,
                    variable: provider.variable,
                    stored: false,
                });
            }
            return Ok(found);
        }
    };
    let mut configured = models::configured(&mut daemon).await?;
    let mut later = None;
    for provider in detected {
        let is_known = |configured: &[lodge_proto::ProviderView]| {
            configured.iter().any(|known| known.name == provider.name)
        };
        if !is_known(&configured) {
            if args.add_providers || wants_stored(context, provider).await? {
                provider.store(&mut daemon).await?;
                context.words.print_note(&format!(
                    "stored the key of {} as the provider `{}`",
                    provider.variable, provider.name
                ));
                configured = models::configured(&mut daemon).await?;
            } else {
                found.commands.push(provider.command());
                later = later.or(provider.model());
            }
        }
        let stored = is_known(&configured);
        found.reported.push(ReportedProvider { name: provider.name, variable: provider.variable, stored });
    }
    if let Some(model) = given(args) {
        found.model = model;
        return Ok(found);
    }
    match models::find_model(context, &mut daemon, &configured).await {
        ModelOffer::One(ChosenModel::Scripted) => found.model = later.unwrap_or(ChosenModel::Scripted),
        // An Agentfile can be written before its provider answers.
        ModelOffer::Unlisted { provider, likely, failure } => {
            let is_placeholder = likely.is_none();
            found.model = ChosenModel::Real(likely.unwrap_or_else(|| format!("{provider}/MODEL")));
            found.unlisted = Some(UnlistedModel { problem: failure.one_line(), is_placeholder });
            found.commands.push(format!("lodge provider test {provider}"));
        }
        offer @ (ModelOffer::One(ChosenModel::Real(_)) | ModelOffer::Several { .. }) => {
            found.model = models::take_model(context, offer).await?;
        }
    }
    Ok(found)
}

fn given(args: &InitArgs) -> Option<ChosenModel> {
    args.model.clone().map(ChosenModel::Real)
}

/// Whether a user at a terminal wants a key to be stored.
async fn wants_stored(context: &CommandContext, provider: &DetectedProvider) -> Result<bool, CommandFailure> {
    if !can_ask(&context.words) {
        return Ok(false);
    }
    let DetectedProvider { name, variable, .. } = provider;
    loop {
        prompt_for(&format!(
            "{variable} is set. Store it as the provider `{name}`? Only the daemon sees it. [Y/n] "
        ));
        let answer = read_line().await?.unwrap_or_else(|| "n".to_owned());
        match answer.trim().to_ascii_lowercase().as_str() {
            "" | "y" | "yes" => return Ok(true),
            "n" | "no" => return Ok(false),
            // A key is not stored, or passed over, because of a typing mistake.
            other => prompt_for(&format!("`{other}` is neither `y` nor `n`. ")),
        }
    }
}

/// The command that runs the agent.
fn run_command(template: TemplateArg, dir: &Path) -> String {
    let place = quoted(&dir.display().to_string());
    match template {
        TemplateArg::Coder => {
            format!("lodge run {place} -v .:/workspace \"What is this project, and do its tests pass?\"")
        }
        TemplateArg::Reviewer => {
            format!("lodge run {place} -v .:/workspace:ro \"Review what changed since the last commit\"")
        }
        TemplateArg::Ops => {
            format!("lodge run {place} -v /var/log:/workspace/log:ro \"What went wrong in the last hour?\"")
        }
        TemplateArg::Blank => format!("lodge run {place} \"hello\""),
    }
}

fn refuse_existing(args: &InitArgs, names: &[&str]) -> Result<(), CommandFailure> {
    let existing = names.iter().map(|name| args.dir.join(name)).find(|path| path.symlink_metadata().is_ok());
    match existing {
        Some(path) if !args.force => Err(exists(&path)),
        Some(_) | None => Ok(()),
    }
}

fn exists(path: &Path) -> CommandFailure {
    CommandFailure::refused(format!("`{}` exists already", path.display()))
        .hint("`--force` overwrites it; `lodge init DIR` writes to another directory")
}

/// Writes the files, each whole or not at all. The Agentfile is the first in the result.
fn write_files(args: &InitArgs, rendered: &RenderedTemplate) -> Result<Vec<String>, CommandFailure> {
    let script = rendered.script.as_deref().map(|script| (SCRIPT_FILE, script));
    if script.is_some() {
        refuse_existing(args, &[SCRIPT_FILE])?;
    }
    let dir = &args.dir;
    fs::create_dir_all(dir).map_err(|cause| could_not_write(dir, &cause))?;
    let mut written = Vec::new();
    for (name, text) in [(AGENTFILE, rendered.agentfile.as_str())].into_iter().chain(script) {
        let path = dir.join(name);
        write_file(&path, text, args.force).map_err(|cause| match cause.kind() {
            io::ErrorKind::AlreadyExists => exists(&path),
            _ => could_not_write(&path, &cause),
        })?;
        written.push(path.display().to_string());
    }
    Ok(written)
}

fn could_not_write(path: &Path, cause: &io::Error) -> CommandFailure {
    CommandFailure::refused(format!("could not write `{}`", path.display())).because(io_words(cause))
}

/// Creates a file that was not there, or replaces one.
fn write_file(path: &Path, text: &str, force: bool) -> io::Result<()> {
    if !force {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        return file.write_all(text.as_bytes());
    }
    let new: PathBuf = path.with_extension("lodge-new");
    fs::write(&new, text)?;
    fs::rename(&new, path)
}
