# The commands for newcomers. They install everything that they need, and cache downloads outside of the checkout.

.PHONY: test test-all demo check lab deb install needs

# What the build needs besides Rust: the BPF programs are compiled by clang, and libbpf reads them with libelf.
NEEDS := clang libelf-dev zlib1g-dev pkg-config make gcc

# What tests compare with, where the package manager has it: they are skipped otherwise.
test check test-all: OPTIONAL := umoci

# Where nothing has been compiled for development yet, what is tested is compiled once and quickly: in large units, without preparing for incremental
# compilation, without debugging information (a panic says its place without); for tests by clippy's driver, which lints at the same time.
QUICKLY = $(if $(wildcard $(or $(CARGO_TARGET_DIR),target)/debug/incremental),,CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_CODEGEN_UNITS=4 \
	CARGO_PROFILE_DEV_DEBUG=none)
LINTED = $(if $(QUICKLY),$(shell clippy-driver --version >/dev/null 2>&1 && echo RUSTC_WORKSPACE_WRAPPER=clippy-driver))

# Lints, unit tests, then acceptance cases on a real kernel in a virtual machine: check and lab, with what the lab needs made meanwhile.
test: needs
	$(QUICKLY) $(LINTED) cargo xtask test

check: needs
	cargo xtask check

lab: needs
	cargo xtask lab run --quick

# The same with all cases, before a release: an hour.
test-all: check
	cargo xtask lab run --all

# The before/after experiment in a virtual machine, on the model of an SSD: table, JSON, plots and an HTML report.
demo: needs
	$(QUICKLY) $(LINTED) cargo xtask demo

# The Debian package, target/debian/bulkhead-release.deb.
deb: needs
	$(QUICKLY) cargo xtask deb

# For hosts without dpkg: the programs, their units, manual and completions, below DESTDIR.
install: needs
	cargo build --release --locked --bin bulkhead --bin bulkhead-runtime
	install -D -m 755 -t $(DESTDIR)/usr/bin target/release/bulkhead target/release/bulkhead-runtime
	[ -e $(DESTDIR)/etc/bulkhead/runtime.toml ] || install -D -m 644 -t $(DESTDIR)/etc/bulkhead packaging/runtime.toml
	install -D -m 644 -t $(DESTDIR)/usr/lib/systemd/system packaging/bulkhead.service packaging/bulkhead-tenant@.service \
		packaging/bulkhead-trim.service packaging/bulkhead-trim.timer
	install -D -m 644 -t $(DESTDIR)/usr/lib/systemd/system/run-bulkhead-mnt-.mount.d packaging/run-bulkhead-mnt-.mount.d/50-bulkhead.conf
	install -D -m 644 packaging/bulkhead.sysusers $(DESTDIR)/usr/lib/sysusers.d/bulkhead.conf
	install -D -m 644 -t $(DESTDIR)/usr/lib/udev/rules.d packaging/60-bulkhead.rules
	install -D -m 644 packaging/bulkhead.tmpfiles $(DESTDIR)/usr/lib/tmpfiles.d/bulkhead.conf
	install -D -m 644 -t $(DESTDIR)/usr/share/man/man1 docs/cli/man/*.1
	install -D -m 644 -t $(DESTDIR)/usr/share/man/man8 packaging/bulkhead-runtime.8
	install -d $(DESTDIR)/usr/share/bash-completion/completions
	target/release/bulkhead completions bash > $(DESTDIR)/usr/share/bash-completion/completions/bulkhead

needs:
	@if command -v dpkg-query >/dev/null; then \
		missing() { for package in "$$@"; do dpkg-query -W -f '$${db:Status-Abbrev}' $$package 2>/dev/null | grep -q ^ii || echo $$package; done; }; \
		install() { echo "installing on this host:" "$$@"; apt-get install -y -qq --no-install-recommends "$$@"; }; \
		packages=$$(missing $(NEEDS)); \
		if [ -n "$$packages" ]; then { apt-get update -qq && install $$packages; } || exit; fi; \
		for package in $$(missing $(OPTIONAL)); do \
			if [ "$$(id -u)" = 0 ] && apt-cache show $$package >/dev/null 2>&1; then install $$package || true; fi; \
		done; \
	fi
