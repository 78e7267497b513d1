# Two commands do everything: `make run` and `make test`.

CARGO ?= cargo
export LODGE_HOME := $(CURDIR)/.lodge
BIN := target/debug

.PHONY: help run stop test test-as-user soak check bench build clean tools

help:
	@echo "make run    build, start the daemon on ./.lodge, run an example agent"
	@echo "make stop   end the daemon of ./.lodge and its agents"
	@echo "make test   run all tests, as root also as an ordinary user"
	@echo "make soak   lodge selftest with new seeds, until it is stopped or fails"
	@echo "make check  formatting, lints, licences"
	@echo "make bench  measure; prints each number beside its floor"
	@echo "make clean  make stop, then remove ./.lodge and ./target"

build:
	$(CARGO) build --locked

# Touches nothing outside this directory: state lies in ./.lodge. The port is picked by the kernel.
run: build
	@mkdir -p $(LODGE_HOME) && chmod 700 $(LODGE_HOME)
	@test -e $(LODGE_HOME)/lodged.yaml || printf 'serve:\n  http-addr: 127.0.0.1:0\n' > $(LODGE_HOME)/lodged.yaml
	@if $(BIN)/lodge agent inspect hello >/dev/null 2>&1; then \
		$(BIN)/lodge -q start hello >/dev/null; \
		echo '$$ lodge prompt hello "good morning"'; $(BIN)/lodge prompt hello "good morning"; \
	else \
		echo '$$ lodge run examples/hello "good morning"'; $(BIN)/lodge run examples/hello "good morning"; \
	fi
	@echo
	@echo "The agent lives on. Try it, with the state directory of this checkout:"
	@echo "  export LODGE_HOME=$(LODGE_HOME) PATH=$(CURDIR)/$(BIN):\$$PATH"
	@echo "  lodge prompt hello 'something slow'   # and kill -9 the daemon meanwhile (lodge info shows its pid)"
	@echo "  lodge ps; lodge session ls; lodge events"
	@echo "make stop ends everything."

stop:
	@if [ -S $(LODGE_HOME)/lodge.sock ]; then $(BIN)/lodge --no-autostart shutdown --agents; else echo "nothing runs on $(LODGE_HOME)"; fi

# What the tests need beside Rust: python3, for the second runtime of the conformance test, and strace, which records
# what reaches the disk for the proof that a power loss takes nothing.
tools:
	@{ command -v python3 && command -v strace; } >/dev/null \
		|| { apt-get update -q && apt-get install -y -q python3 strace; }

test: tools
	.ci/test

test-as-user:
	.ci/test-as-user

# Each run tells its seed first; SOAK_KILLS is how many kills one seed gets.
SOAK_KILLS ?= 200
soak: build
	@while :; do $(BIN)/lodge selftest --crash $(SOAK_KILLS) || exit $$?; done

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@command -v cargo-deny >/dev/null || test -x target/tools/bin/cargo-deny \
		|| $(CARGO) install --quiet --locked --version 0.20.2 --root target/tools cargo-deny
	PATH="$(CURDIR)/target/tools/bin:$$PATH" cargo-deny --log-level error check licenses bans sources

bench:
	$(CARGO) build --locked --release --bins -p lodge-daemon -p lodge-cli -p lodge-testkit -p lodge-bench
	target/release/lodge-bench

clean: stop
	rm -rf .lodge target
