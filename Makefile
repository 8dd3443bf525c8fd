# The two commands of a newcomer. Everything they need is installed by them; downloads are cached outside the checkout.

.PHONY: test demo check lab needs

# What the build itself needs beside Rust: the BPF programs are compiled by clang, and libbpf reads them with libelf.
NEEDS := clang libelf-dev zlib1g-dev pkg-config make gcc

# Lints, unit tests, then acceptance cases on a real kernel in a virtual machine.
test: check lab

check: needs
	cargo xtask check

lab: needs
	cargo xtask lab run --all

# The before/after experiment in a virtual machine, on the model of an SSD: table, JSON, plots and an HTML report.
demo: needs
	cargo xtask demo

needs:
	@if command -v dpkg-query >/dev/null && \
		[ $$(dpkg-query -W -f '$${db:Status-Abbrev}\n' $(NEEDS) 2>/dev/null | grep -c '^ii') -ne $(words $(NEEDS)) ]; then \
		echo "installing on this host: $(NEEDS)"; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends $(NEEDS); \
	fi
