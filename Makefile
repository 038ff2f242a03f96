# What a person does is in README.md. Everything here may be repeated.
SHELL := /bin/bash
.DEFAULT_GOAL := help
TOOLS := target/tools
PREFIX ?= /usr/local
# This machine's static binary.
STATIC := target/cross/$(shell uname -m)-unknown-linux-musl/release/etcd-operator
# The steps of one call of make share a table, and none runs twice.
export RUN := $(shell date +%s%N)
# What `make test-all` runs: some of it with STEPS="kubernetes several"; with RESUME=1 only what was not green on
# these files.
STEPS ?= all

.PHONY: help tools build debug demo demo-stop fmt lint check test test-all s3-makes test-vm bench lab dist install uninstall

FIGURES = ETCD_OPERATOR_PROGRAM="$(CURDIR)/$(STATIC)" ETCD_OPERATOR_FIGURES="$(CURDIR)/target/figures"

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

tools:
	@tests/tools/protoc.sh $(TOOLS)/protoc

etcd-%: tools
	@tests/tools/etcd.sh $(TOOLS)/etcd $*

build: tools ## The release binary
	cargo build --release

# As the tests build it: a demo needs no small program, which takes minutes more.
debug: tools
	cargo build --bin etcd-operator

demo: debug etcd-3.6 ## The story on this machine, in under 30 s once built
	@tests/tools/demo.sh target/debug/etcd-operator $(TOOLS)/etcd/3.6

demo-stop: ## Stops what demo left running
	@tests/tools/demo.sh target/debug/etcd-operator $(TOOLS)/etcd/3.6 stop

dist: tools ## Static binaries for arm64 and amd64: tarball, .deb, image, checksums in target/dist
	@cross/dist.sh target/dist

$(STATIC):
	@cross/build.sh $(shell uname -m)-unknown-linux-musl

install: $(STATIC) ## The static binary with its units on this machine: DESTDIR, PREFIX
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" systemd/install.sh $(STATIC)

uninstall: ## Removes what install installed; etcd and its data stay
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" systemd/install.sh --uninstall

lint: ## Format and clippy
	@tests/run.sh lint

check: ## Lints, and the tests that need nothing but cargo: a few minutes cold
	@tests/run.sh lint core

test: ## What a newcomer runs: the core, and every promise of the README on real parts
	@tests/run.sh core main

test-all: ## Everything: 3.5 to 3.7, release artefacts, arm64, all tests on nodes; or STEPS="kubernetes several"
	@tests/run.sh $(STEPS)

s3-makes: tools ## The S3 tests on every make of server, garage and MinIO among them: 15 min from nothing
	@tests/tools/s3s-fs.sh $(TOOLS)/s3s-fs
	@tests/tools/versitygw.sh $(TOOLS)/versitygw
	@tests/tools/garage.sh $(TOOLS)/garage
	@tests/tools/minio.sh $(TOOLS)/minio
	cargo test --test s3_live

test-vm: dist ## The arm64 package in a whole machine whose power is cut: 8 min once built
	@tests/tools/etcd.sh --arch arm64 $(TOOLS)/etcd-arm64 3.6 3.6-before
	@tests/tools/qemu.sh $(TOOLS)/qemu system
	@tests/tools/vm/image.sh $(TOOLS)/vm
	cargo test --test aarch64 -- --ignored --nocapture

bench: dist etcd-3.6 etcd-3.6-before ## The figures of the release artefact, into benches/README.md; 20 min once built
	@tests/tools/systemd-root.sh $(TOOLS)/systemd-root
	@rm -rf target/figures && mkdir -p target/figures
	$(FIGURES) cargo bench --bench numbers
	$(FIGURES) cargo test --test systemd_live -- --ignored --nocapture numbers::
	$(FIGURES) cargo test --test kube_live -- --ignored --nocapture --test-threads=1 numbers::
	@benches/tables.py target/figures

lab: ## What the tests of Kubernetes stand on: nodes, disks, cut wires; 3 min once make test was run
	cargo test --test kube_live -- --ignored smoke::
