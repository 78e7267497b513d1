#!/usr/bin/env python3
"""A whole Lodge runtime in one file: the agent loop over JSON-RPC lines on stdin and stdout.
Start it as `runtime.py serve --root <directory>`. The protocol is described in docs/runtime-protocol.md.
"""
import hashlib, json, os, re, sys

ARGUMENT_CHARS_MAX = 100 * 1024
FORM = 'Arguments are a JSON object such as {"args": ["--help"], "stdin": ""}; both may be left out.'
SCHEMA = {"type": "object", "additionalProperties": False, "properties": {
    "args": {"type": "array", "items": {"type": "string"}}, "stdin": {"type": "string"}}}

TEXT, JOB_ID = {"type": "string"}, {"job_id": {"type": "string"}}
STATES = ("pending", "running", "done", "error", "cancelled")
JOB_TOOLS = {  # programs that run in the background: what the model is told, and the arguments
    "job_submit": ("Starts a program in the background and returns its job id at once; for whatever takes longer than "
                   "about 10 seconds. You are told when it has ended.",
                   {"bin": TEXT, **SCHEMA["properties"], "timeout_s": {"type": "integer"}, "priority": {"type": "integer"},
                    "labels": {"type": "object", "additionalProperties": TEXT}}),
    "job_list": ("Lists the jobs of this conversation, the newest first, without their output.",
                 {"status": {"type": "string", "enum": STATES}, "limit": {"type": "integer"}}),
    "job_status": ("Shows how a job stands and what it wrote, without waiting. Do not poll: use job_wait.", JOB_ID),
    "job_wait": ("Waits for the end of a job and returns how it ended and what it wrote. An interrupt cancels the job.", JOB_ID),
    "job_watch": ("Waits for the end of a job and returns its stdout alone. An interrupt leaves it running.", JOB_ID),
    "job_cancel": ("Ends a job, with everything it started. What it wrote is kept.", JOB_ID)}

STRATEGIES = ("sliding", "summarize", "handoff")
SAMPLING = ("temperature", "top-p", "top-k", "presence-penalty", "frequency-penalty")
CALLS_A_STEP_MAX, ROUNDS_ALIKE_MAX = 64, 4

plan = {"epoch": 0}  # what the latest `initialize` settled
turns = {}  # turn -> {"from": first turn that the model reads, "asked": {id: request without an answer},
#            "round": what was called and came back since the model was asked, "alike": how often in a row}

class Refusal(Exception):
    """Its arguments: the JSON-RPC number, the dotted code, the message."""

def send(**message):
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()

def ask(id, method, **params):
    turns[params["turn"]]["asked"][id] = {"method": method, "params": params}
    send(id=id, method=method, params=params)

def cut(number, epoch):
    """Where to compact a conversation that is full: at half, so that the prefix stays the same for long."""
    first, most = 0, max(1, plan["messages"] // 2)
    if plan["messages"] and number + 1 - epoch["from_turn"] > most:
        first = number + 1 - max(1, most // 2)
    if plan["tokens"] and epoch["bytes"] > plan["tokens"] * 4:
        kept = 1
        while kept < len(epoch["turns"]) and sum(epoch["turns"][-kept - 1:]) <= plan["tokens"] * 2:
            kept += 1
        first = max(first, number + 1 - kept)
    return first

def setting(configs, key, default, form=str.isdecimal):
    if key in configs and not form(configs[key]):
        raise Refusal(-32000, "config.unusable", f"the value of `{key}` cannot be used")
    return type(default)(configs.get(key, default))

def sampling(configs):
    """Passed on when they are set, and not at all otherwise."""
    number = re.compile(r"-?\d+(\.\d+)?").fullmatch
    return {key.replace("-", "_"): json.loads(setting(configs, key, "", number)) for key in SAMPLING if key in configs}

def milliseconds(text):
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|)", text)
    return found and int(found[1]) * {"ms": 1, "m": 60_000, "h": 3_600_000}.get(found[2], 1_000)

def section(root, name, file, description=None):
    try:
        with open(os.path.join(root, "etc/context", file), encoding="utf-8", errors="replace") as opened:
            text = opened.read().strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refusal(-32000, "context.unreadable", f"could not read context file `{file}`: {error}")
    return text and f"# {name}\n\n" + (f"> {description}\n\n" if description else "") + text

def initialize(epoch, root, configs={}, context=[], tools=[], **_):
    if epoch < plan["epoch"]:
        raise Refusal(-32000, "epoch.stale", f"epoch {epoch} is older than {plan['epoch']}")
    system = "\n\n---\n\n".join(filter(None, (section(root, **entry) for entry in context)))
    plan.update(epoch=epoch, context=hashlib.sha256(system.encode()).hexdigest()[:16],
                tools=[tool["name"] for tool in tools], steps=setting(configs, "max-iterations", 20),
                messages=setting(configs, "memory-max-messages", 20), tokens=setting(configs, "memory-max-tokens", 0),
                strategy=setting(configs, "memory-strategy", "summarize", STRATEGIES.__contains__),
                timeout=milliseconds(setting(configs, "tool-timeout", "10m", milliseconds)))
    offered = [{"name": tool["name"], "parameters": SCHEMA, "description": "\n\n## Usage\n\n".join(
        filter(None, (tool.get("description"), tool.get("usage"))))} for tool in tools]
    for name, (description, properties) in JOB_TOOLS.items():
        if name not in plan["tools"]:  # a program has its name for itself
            if "bin" in properties and plan["tools"]:
                properties = {**properties, "bin": {**TEXT, "enum": plan["tools"]}}
            offered.append({"name": name, "description": description, "parameters": {
                "type": "object", "additionalProperties": False, "properties": properties}})
    return {"protocol": 1, "runtime": {"name": "tiny-runtime", "version": "1"}, "tools": offered,
            "context": {"id": plan["context"], "system": system},
            "params": {"max_tokens": setting(configs, "max-tokens", 4096), **sampling(configs)},
            "window": {"max_messages": plan["messages"]}, "turns": [{"turn": turn} for turn in turns]}

def program_words(given):
    args, stdin = given.get("args") or [], given.get("stdin") or ""
    texts = [stdin, *args]
    if type(args) is not list or {*map(type, texts)} != {str}:
        raise ValueError("`args` is a list of strings and `stdin` a string")
    if max(map(len, texts)) > ARGUMENT_CHARS_MAX or "\0" in "".join(args):
        raise ValueError("an argument is too large or contains a NUL character")
    return {"args": args, "stdin": stdin}

def job_request(name, arguments):
    """The same for the tools for jobs, which the daemon has."""
    known = JOB_TOOLS[name][1]
    try:
        given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments or {}
        if type(given) is not dict or not set(given) <= set(known):
            raise ValueError("the wrong form")
        numbers = {key: given.get(key) or default for key, default in (("limit", 20), ("timeout_s", 0), ("priority", 0))}
        labels = given.get("labels") or {}
        if {*map(type, numbers.values())} != {int} or {*map(type, labels.values())} - {str}:
            raise ValueError("`limit`, `timeout_s` and `priority` are whole numbers, `labels` are strings")
        if name == "job_submit":
            if given.get("bin") not in plan["tools"]:
                raise ValueError(f"`bin` is one of: {', '.join(sorted(plan['tools']))}")
            return "job/submit", {"bin": given["bin"], **program_words(given), "timeout_ms": numbers["timeout_s"] * 1000,
                                  "priority": numbers["priority"], "labels": labels}
        if name == "job_list":
            status = {"status": given["status"]} if given.get("status") else {}
            if given.get("status") not in (None, *STATES):
                raise ValueError(f"`status` is one of: {', '.join(STATES)}")
            return "job/list", {"limit": numbers["limit"], **status}
        if type(given.get("job_id")) is not str:
            raise ValueError("`job_id` is what job_submit returned")
        return name.replace("_", "/"), {"job": given["job_id"]}
    except (ValueError, TypeError, AttributeError) as why:
        text = f"Not run: {why}. The arguments are a JSON object with: {', '.join(known)}."
        return "tool/answer", {"text": text, "error": True}

def tool_request(name, arguments):
    """What a model's tool call becomes: a program to run, or an answer that tells why it was not."""
    if name in JOB_TOOLS and name not in plan["tools"]:
        return job_request(name, arguments)
    try:
        if name not in plan["tools"]:
            raise ValueError(f"there is no tool `{name}`; the tools are: {', '.join(plan['tools'])}")
        given = json.loads(arguments.strip() or "{}") if isinstance(arguments, str) else arguments
        given = {} if given is None else given
        words = program_words(given)
        if not set(given) <= {"args", "stdin"}:
            raise ValueError("the arguments have the wrong form")
    except (ValueError, TypeError, AttributeError) as why:
        return "tool/answer", {"text": f"Not run: {why}. {FORM}", "error": True}
    return "exec/run", {"bin": name, **words, "timeout_ms": plan["timeout"]}

def call_tools(turn, step, calls):
    for place, call in enumerate(calls):
        method, params = tool_request(call["name"], call.get("arguments"))
        if place >= CALLS_A_STEP_MAX:
            text = f"Not run: one answer may contain at most {CALLS_A_STEP_MAX} tool calls."
            method, params = "tool/answer", {"text": text, "error": True}
        ask(f"{turn}:t{step}.{call['id']}", method, turn=turn, step=step, call=call["id"], **params)
    turns[turn]["round"] = {call["id"]: [call["name"], call.get("arguments"), None] for call in calls}

def is_stuck(turn):
    """Whether the same calls had the same results too often in a row. What is not known is like nothing else."""
    around = [value for _, value in sorted(turn["round"].items())]
    known = around and all(result is not None for _, _, result in around)
    turn["alike"] = turn["alike"] + 1 if known and around == turn.get("before") else 1
    turn["before"], turn["round"] = (around if known else None), {}
    return turn["alike"] >= ROUNDS_ALIKE_MAX

def go_on(turn, step):
    """With nothing unanswered, asks the model, unless often enough or in vain."""
    if turns[turn]["asked"]:
        return
    names = ", ".join(f"`{name}`" for name, _, _ in turns[turn]["round"].values())
    if is_stuck(turns[turn]):
        return finish(turn, step, "turn.stuck", f"{names}: the same calls had the same results again and again")
    if step >= plan["steps"]:
        return finish(turn, step, "turn.max_iterations", f"the model was asked {step} times in this turn")
    ask(f"{turn}:m{step + 1}", "model/stream", turn=turn, step=step + 1, context=plan["context"],
        from_turn=turns[turn]["from"], finish_if_no_tools=True)

def run(turn, number, step, calls=(), epoch=None, **_):
    epoch = epoch or {"from_turn": 1, "bytes": 0, "turns": []}
    turns[turn] = {"from": epoch["from_turn"], "asked": {}, "round": {}, "alike": 0}
    first = cut(number, epoch)
    if step == 1 and first > epoch["from_turn"]:
        return ask(f"{turn}:e{first}", "context/compact", turn=turn, from_turn=first, strategy=plan["strategy"])
    call_tools(turn, step - 1, calls)
    turns[turn]["round"] = {}  # the other calls of that answer were another process's business
    go_on(turn, step - 1)

def finish(turn, step, code, message):
    turns[turn]["asked"].clear()
    ask(f"{turn}:f{step}", "turn/finish", turn=turn, step=step, status="failed", code=code, message=message)

def take_answer(id, result=None, error=None, **_):
    turn = next((turn for turn in turns if id in turns[turn]["asked"]), None)
    if turn is None:
        return
    request = turns[turn]["asked"].pop(id)
    step, method = request["params"].get("step", 0), request["method"]
    error = error or (result is None and {"message": "the answer has no result"})
    code = error and (error.get("data") or {}).get("code", "runtime.refused")
    ended = method == "turn/finish" or code in ("turn.gone", "turn.interrupted", "turn.failed")
    if ended or method == "model/stream" and not error and result["finished"]:
        del turns[turn]
    elif error:
        finish(turn, step, code, error.get("message", ""))
    else:
        if method == "model/stream":
            call_tools(turn, step, result.get("calls", []))
        elif method == "context/compact":
            turns[turn]["from"] = result["from_turn"]
        elif request["params"]["call"] in turns[turn]["round"]:
            told = request["params"]["text"] if method == "tool/answer" else result.get("digest")
            # To wait again is no sign of going round in circles.
            told = None if method in ("job/wait", "job/watch") else told
            turns[turn]["round"][request["params"]["call"]][2] = told
        go_on(turn, step)

def take_request(id, method, params):
    if method == "initialize":
        send(id=id, result=initialize(**params))
        for turn in turns.values():
            for old, request in turn["asked"].items():
                if request["method"] == "model/stream":
                    request["params"].update(context=plan["context"])
                send(id=old, **request)
    elif method in ("turn/run", "turn/interrupt", "ping"):
        if method == "turn/run" and "context" not in plan:
            raise Refusal(-32000, "runtime.not_initialized", "`initialize` must come first")
        send(id=id, result={})
        if method == "turn/interrupt":
            turns.pop(params["turn"], None)
        elif method == "turn/run" and params["turn"] not in turns:
            run(**params)
    else:
        raise Refusal(-32601, "rpc.unknown_method", f"there is no method `{method}`")

def take_line(line):
    message = {}
    try:
        message = dict(json.loads(line))
        if "method" in message:
            take_request(message.get("id"), message["method"], message.get("params", {}))
        elif message.get("id") is not None:
            take_answer(**message)
    except (Refusal, ValueError, TypeError, KeyError, RecursionError) as error:
        number, code, text = error.args if isinstance(error, Refusal) else (-32700, "rpc.parse", "bad line")
        print(f"level=warn event=line.refused code={code}", file=sys.stderr, flush=True)
        send(id=message.get("id"), error={"code": number, "message": text, "data": {"code": code}})

if __name__ == "__main__":
    for line in sys.stdin.buffer:
        if line.strip():
            take_line(line)
