#!/usr/bin/env python3
"""A whole Lodge runtime in one file: the agent loop over JSON-RPC lines on stdin and stdout.
Start it as `runtime.py serve --root <directory>`. The protocol is described in docs/runtime-protocol.md.
"""
import hashlib, json, os, sys

ARGUMENT_CHARS_MAX = 100 * 1024
FORM = 'Arguments are a JSON object such as {"args": ["--help"], "stdin": ""}, and not both may be empty.'
SCHEMA = {"type": "object", "additionalProperties": False, "properties": {
    "args": {"type": "array", "items": {"type": "string"}}, "stdin": {"type": "string"}}}

plan = {"epoch": 0}  # what the latest `initialize` settled
turns = {}  # turn -> {"number": its place in the session, "asked": {id: request without an answer}}

class Refusal(Exception):
    """Its arguments: the JSON-RPC number, the dotted code, the message."""

def send(**message):
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()

def ask(id, method, **params):
    turns[params["turn"]]["asked"][id] = {"method": method, "params": params}
    send(id=id, method=method, params=params)

def window(number):
    """The first turn the model still sees: cut to half when full, so the prefix stays the same for long."""
    most = max(1, plan["messages"] // 2)
    between = most - max(1, most // 2) + 1
    return 1 + -(-max(0, number - most) // between) * between if plan["messages"] else 1

def setting(configs, key, default):
    if not configs.get(key, "0").isdecimal():
        print(f"level=warn event=config.defaulted key={key}", file=sys.stderr, flush=True)
        return default
    return int(configs.get(key, default))

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
                messages=setting(configs, "memory-max-messages", 20))
    offered = [{"name": tool["name"], "parameters": SCHEMA, "description": "\n\n## Usage\n\n".join(
        filter(None, (tool.get("description"), tool.get("usage"))))} for tool in tools]
    return {"protocol": 1, "runtime": {"name": "tiny-runtime", "version": "1"}, "tools": offered,
            "context": {"id": plan["context"], "system": system},
            "params": {"max_tokens": setting(configs, "max-tokens", 4096)},
            "window": {"max_messages": plan["messages"]}, "turns": [{"turn": turn} for turn in turns]}

def tool_request(name, arguments):
    """What a model's tool call becomes: a program to run, or an answer that tells why it was not."""
    try:
        if name not in plan["tools"]:
            raise ValueError(f"there is no tool `{name}`; the tools are: {', '.join(plan['tools'])}")
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        args, stdin = given.get("args") or [], given.get("stdin") or ""
        texts = [stdin, *args]
        if not set(given) <= {"args", "stdin"} or type(args) is not list or {*map(type, texts)} != {str}:
            raise ValueError("the arguments have the wrong form")
        if texts == [""]:
            raise ValueError("`args` and `stdin` are both empty")
        if max(map(len, texts)) > ARGUMENT_CHARS_MAX or "\0" in "".join(args):
            raise ValueError("an argument is too large or contains a NUL character")
    except (ValueError, TypeError, AttributeError) as why:
        return "tool/answer", {"text": f"Not run: {why}. {FORM}", "error": True}
    return "exec/run", {"bin": name, "args": args, "stdin": stdin}

def go_on(turn, step, calls=()):
    """Asks for the calls of step's answer; with nothing unanswered, asks the model, unless often enough."""
    for call in calls:
        method, params = tool_request(call["name"], call.get("arguments"))
        ask(f"{turn}:t{step}.{call['id']}", method, turn=turn, step=step, call=call["id"], **params)
    if turns[turn]["asked"]:
        return
    if step >= plan["steps"]:
        return finish(turn, step, "turn.max_iterations", f"the model was asked {step} times in this turn")
    ask(f"{turn}:m{step + 1}", "model/stream", turn=turn, step=step + 1, context=plan["context"],
        from_turn=window(turns[turn]["number"]), finish_if_no_tools=True)

def finish(turn, step, code, message):
    turns[turn]["asked"].clear()
    ask(f"{turn}:f{step}", "turn/finish", turn=turn, step=step, status="failed", code=code, message=message)

def take_answer(id, result=None, error=None, **_):
    turn = next((turn for turn in turns if id in turns[turn]["asked"]), None)
    if turn is None:
        return
    request = turns[turn]["asked"].pop(id)
    step, method = request["params"]["step"], request["method"]
    error = error or (result is None and {"message": "the answer has no result"})
    code = error and (error.get("data") or {}).get("code", "runtime.refused")
    ended = method == "turn/finish" or code in ("turn.gone", "turn.interrupted", "turn.failed")
    if ended or method == "model/stream" and not error and result["finished"]:
        del turns[turn]
    elif error:
        finish(turn, step, code, error.get("message", ""))
    else:
        go_on(turn, step, result.get("calls", []) if method == "model/stream" else ())

def take_request(id, method, params):
    if method == "initialize":
        send(id=id, result=initialize(**params))
        for turn in turns.values():
            for old, request in turn["asked"].items():
                if request["method"] == "model/stream":
                    request["params"].update(context=plan["context"], from_turn=window(turn["number"]))
                send(id=old, **request)
    elif method in ("turn/run", "turn/interrupt", "ping"):
        if method == "turn/run" and "context" not in plan:
            raise Refusal(-32000, "runtime.not_initialized", "`initialize` must come first")
        send(id=id, result={})
        if method == "turn/interrupt":
            turns.pop(params["turn"], None)
        elif method == "turn/run" and params["turn"] not in turns:
            turns[params["turn"]] = {"number": params["number"], "asked": {}}
            go_on(params["turn"], params["step"] - 1, params.get("calls", []))
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
