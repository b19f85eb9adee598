#!/usr/bin/env bash
# check-arch.sh: boots Debian's kernel of each architecture under qemu's emulation. It runs a real PostgreSQL, the
# worker and internal/archcheck there. They capture all processes through SQL, and test Yama (the kernel's restriction
# of ptrace). It also runs the tests that stop processes (package ptrace). After a success, it writes the machine's
# rows of doc/benchmarks.md's table of architectures.
#
# Some minutes for each architecture; the first time 60 to 150 MB of packages each, kept in the cache. Needs apt-get,
# Go and qemu-system (installed automatically as root).
#   ARCHS="arm64 s390x"  only these (default: all five)
#   ARCH_CPUS=1          processors of a machine (default 2)
#   ARCH_SUITE=forky ARCH_VERSION=18
#                        another Debian, with the PostgreSQL that it has

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/arch.sh
source "$TOP/scripts/arch.sh"
# shellcheck source=scripts/stacks.sh
source "$TOP/scripts/stacks.sh"
# shellcheck source=scripts/arch-tests.sh
source "$TOP/scripts/arch-tests.sh"

YAMA_ON=amd64
ALL="amd64 arm64 ppc64le s390x riscv64"
read -ra CHOSEN <<<"${ARCHS:-$ALL}"

declare -A MACHINE
for machine in "${!GOARCH_OF[@]}"; do MACHINE[${GOARCH_OF[$machine]}]=$machine; done

# The machine's script: the tests that stop processes first, then Yama, whose setting cannot be undone. Yama's rules
# do not differ between architectures, so they are tested on one.
run_script() {
	cat <<SCRIPT
status=0
busybox --install -s /usr/bin 2>/dev/null
echo 0 >/proc/sys/kernel/yama/ptrace_scope
export PGSB_ARCH_PROGRAM=/check/pg_stat_backtrace PGSB_ARCH_PROGRAMS=/check/programs PGSB_TEST_BINDIRS=$1
/check/archcheck.test -test.v -test.timeout 25m -test.run '^TestPrograms$' || status=1
/check/archcheck.test -test.v -test.timeout 40m -test.run '^TestStacks$' || status=1
SCRIPT
	arch_tests_script
	[[ $2 != "$YAMA_ON" ]] ||
		echo "PGSB_ARCH_YAMA=1 /check/archcheck.test -test.v -test.timeout 30m -test.run '^TestYama\$' || status=1"
	echo "exit \$status"
}

# check ARCH: build, boot, collect.
check() {
	local goarch=$1 overlay=$WORK/overlay-$1 log=$WORK/$1.log bins start=$SECONDS
	local share scenario
	arch_facts "$goarch"
	need_qemu
	need_cross "${MACHINE[$goarch]}"
	arch_fetch
	say "$goarch: Debian's $KERNEL and PostgreSQL $PG_MAJOR under ${QEMU[0]}"
	arch_overlay "$goarch" "$overlay"
	share=usr/share/postgresql/$PG_MAJOR/extension
	bins=/usr/lib/postgresql/$PG_MAJOR/bin
	mkdir -p "$overlay/$share"
	cp "$TOP/pg_stat_backtrace.control" "$TOP"/sql/pg_stat_backtrace--*.sql "$overlay/$share/"
	GOARCH=$goarch make -s -C "$TOP" build OUT="$overlay/check/pg_stat_backtrace"
	(cd "$TOP" && CGO_ENABLED=0 GOARCH=$goarch "$GO" test -c -trimpath -o "$overlay/check/archcheck.test" ./internal/archcheck)
	if [[ $goarch == arm64 ]]; then
		# Frame pointers and no call frame information.
		fetch_npm_arm64
		mkdir -p "$overlay/opt/npm"
		cp -r "$NPM_SERVER/." "$overlay/opt/npm/"
		cp "$overlay/$share"/* "$overlay/opt/npm/share/postgresql/extension/"
		# Neither, as on Alpine.
		mkdir -p "$overlay/opt/musl" "$overlay/lib"
		cp -r "$(dirname "$("$TOP/scripts/build-postgresql.sh" musl-arm64)")/." "$overlay/opt/musl/"
		mv "$overlay/opt/musl/lib/ld-musl-aarch64.so.1" "$overlay/lib/"
		cp "$overlay/$share"/* "$overlay/opt/musl/share/extension/"
		bins=/opt/npm/bin:/opt/musl/bin:$bins
	fi
	arch_tests "${MACHINE[$goarch]}" "$overlay"
	mkdir "$overlay/check/programs"
	STACK_PAGE=65536
	for scenario in $(stack_scenarios "${MACHINE[$goarch]}"); do
		build_stack "${MACHINE[$goarch]}" "$scenario" "$overlay/check/programs/$scenario" -DSPIN
	done
	run_script "$bins" "$goarch" >"$overlay/check/run"
	if ! arch_boot "$log" "$ARCH_DIR/root" "$overlay"; then
		tail -n 60 "$log" >&2
		grep -E '^ +[a-z0-9_]+\.go:[0-9]+: |--- FAIL' "$log" | grep -B 8 -e '--- FAIL' >&2 || true
		[[ -z ${KEEP_ON_FAILURE:-} ]] || cp "$log" "$KEEP_ON_FAILURE/"
		die "$goarch failed"
	fi
	[[ -z ${ARCH_LOGS:-} ]] || cp "$log" "$ARCH_LOGS/"
	rm -rf "$overlay"
	grep -B 1 '^ *--- SKIP' "$log" || true
	note "$(grep -c '^@@result' "$log") servers, $(grep -c '^--- PASS' "$log") tests, $((SECONDS - start)) s"
	{
		echo "@@qemu $("${QEMU[0]}" --version | sed -n '1s/.*version \([0-9.]*\).*/\1/p')"
		grep '^@@' "$log"
	} >"$WORK/results"
	(cd "$TOP" && "$GO" run ./internal/archcheck/table doc/benchmarks.md <"$WORK/results")
}

make_workdir
for goarch in "${CHOSEN[@]}"; do
	check "$goarch"
done
say "doc/benchmarks.md has the results"
