# The two commands of a newcomer. Everything they need is installed by them; downloads are cached outside the checkout.

.PHONY: test demo check lab

# Lints, unit tests, then acceptance cases on a real kernel in a virtual machine.
test: check lab

check:
	cargo xtask check

lab:
	cargo xtask lab run --all

# The before/after experiment on a simulated spinning disk in a virtual machine: table, JSON, plots and an HTML report.
demo:
	cargo xtask demo
