# Two commands do everything: `make run` and `make test`.

CARGO ?= cargo
export LODGE_HOME := $(CURDIR)/.lodge
BIN := target/debug

.PHONY: help run stop stock test test-fast test-as-user soak check bench build clean tools

help:
	@echo "make run    build, start the daemon on ./.lodge, run an example agent"
	@echo "make stop   end the daemon of ./.lodge and its agents"
	@echo "make stock  build the stock set of tools that examples use; some minutes, once. make run gives it to the daemon"
	@echo "make test   run all tests, as root also as an ordinary user"
	@echo "make test-fast   the tests that need seconds, for daily work; some minutes at first, then under five"
	@echo "make soak   lodge selftest with new seeds, until it is stopped or fails"
	@echo "make check  formatting, lints, licences"
	@echo "make bench  measure; prints each number beside its floor"
	@echo "make clean  make stop, then remove ./.lodge and ./target"

build:
	$(CARGO) build --locked

# Touches nothing outside this directory: the state is in ./.lodge. The kernel picks the port.
run: build
	@mkdir -p $(LODGE_HOME) && chmod 700 $(LODGE_HOME)
	@test -e $(LODGE_HOME)/lodged.yaml || printf 'serve:\n  http-addr: 127.0.0.1:0\n' > $(LODGE_HOME)/lodged.yaml
	@test ! -e target/stock/stock.tar || $(BIN)/lodge -q image import --yes --move target/stock/stock.tar >/dev/null
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
	@if [ -e target/stock/stock.tar ]; then \
		echo "The stock tools are here (lodge bin ls):"; \
		echo "  lodge run examples/coder 'make the tests pass'; lodge run examples/researcher 'who wrote about agreement?'"; \
	else \
		echo "make stock builds the tools of examples/coder, examples/logwatch and examples/researcher; then make run again."; \
	fi
	@echo "make stop ends everything."

# Agents outlive their daemon. If it is gone, another one adopts them and ends them.
stop:
	@if [ -S $(LODGE_HOME)/lodge.sock ] || ls $(LODGE_HOME)/run/*/lock >/dev/null 2>&1; then \
		$(BIN)/lodge -q ps >/dev/null && $(BIN)/lodge --no-autostart shutdown --agents; \
	else echo "nothing runs on $(LODGE_HOME)"; fi

# The programs of stock/programs and Debian's static busybox, packed as images into target/stock/stock.tar. Programs that
# exist in their version are not built again.
stock: build
	stock/build
	stock/pack

# What the tests need besides Rust: python3 for the second runtime of the conformance test; strace to record disk writes
# for the power-loss tests; openssl to create certificates; git and curl, with which agents reach a server; busybox, which
# is packed; a registry (with htpasswd, for one with logins) and skopeo, to push to and to pull with; Docker Engine for an
# empty container.
tools:
	@for tool in python3 strace openssl git curl busybox docker-registry htpasswd skopeo dockerd docker; do command -v $$tool >/dev/null || missing=1; done; \
	if [ -n "$$missing" ]; then \
		apt-get update -q && apt-get install -y -q --no-install-recommends python3 strace openssl git curl busybox-static docker-registry apache2-utils skopeo docker.io \
		&& { command -v docker >/dev/null || apt-get install -y -q --no-install-recommends docker-cli; }; \
	fi

test: tools stock
	.ci/test

# Checks a change before CI: unit tests of all crates, the engine, the store, and turns, agents and commands on a real daemon.
test-fast:
	$(CARGO) build --locked --workspace --bins
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		$(CARGO) nextest run --locked --workspace --profile fast --no-fail-fast; \
	else \
		$(CARGO) test --locked --workspace --lib --bins --no-fail-fast; \
	fi

test-as-user:
	.ci/test-as-user

# Each run prints its seed first; SOAK_KILLS is how many kills one seed gets.
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
